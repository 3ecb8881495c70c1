"""ONNX files to IR1: an `onnx_ir.Model` that is checked, self-contained and sorted.

What comes out has no model-local functions (they are inlined), no sparse initializers (they are made dense), no graph input that
is also an initializer, and its nodes in order of computation.  External data stays in its files until a tensor is read, but its
location, offset and length have been checked, so that a hostile model reads nothing outside of its own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableSequence
from math import prod
from pathlib import Path
from stat import S_ISBLK, S_ISCHR
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.checker
import onnx.external_data_helper
import onnx.inliner
import onnx.numpy_helper
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from sartor.errors import ModelError, UnsupportedError
from sartor.importers.declared import declared_part, undeclared, unknown_attributes
from sartor.importers.limits import check_unfolding

Source: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"

NEWEST_OPSET = onnx.defs.onnx_opset_version()
EXPERIMENTAL = ("Affine", "ConstantFill", "Crop", "DynamicSlice", "GivenTensorFill", "ImageScaler", "ParametricSoftplus", "Scale",
                "ScaledTanh", "ThresholdedRelu")
"""Operators that the first releases of ONNX had on trial, and old models use; `sartor.ops.experimental` says what they mean."""
STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training")
FOREIGN_DOMAINS = ("com.microsoft",)
"""Domains that onnx does not declare and of which some operators have layers; which, is seen when nodes are lowered."""

FOREIGN_OPERATORS = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Operators that ONNX Runtime's optimiser puts in ONNX's own domain, whatever the opset."""


def load(source: Source) -> onnx_ir.Model:
    """Reads a model.

    Parameters
    ----------
    source
        A path, the bytes of a file, or a `ModelProto`.  External data is looked for in the file's folder, and only there;
        a model given as bytes or as a `ModelProto` must hold all its data.

    Returns
    -------
    The model as an `onnx_ir.Model` (see the module's docstring for what always holds of it).

    Raises
    ------
    ModelError
        The file is missing, not ONNX, cut short, refers to values or data that do not exist, or contradicts itself.
    UnsupportedError
        The model needs a newer opset or an operator of a domain nobody here knows.
    """
    proto, folder, what = _read(source)
    try:
        return _checked(proto, folder, what)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # text that is no text, numbers out of range
        raise ModelError(f"{what} is damaged: {_first_line(error)}") from error


def _checked(proto: onnx.ModelProto, folder: Path | None, what: str) -> onnx_ir.Model:
    """IR1 of a parsed model, or the error that says what is wrong with it."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{what} is not an ONNX model: it holds no graph")
    proto = _with_opsets(proto, what)
    check_unfolding(proto, what)
    for tensor in _tensors(proto):
        _check_tensor(tensor, folder, what)
    proto = _inlined(proto, what)
    _densify(proto.graph)
    _check_nodes(proto, what)
    _check_names(proto.graph, what)
    _forget_maps(proto.graph)
    try:
        model = onnx_ir.from_proto(proto)
    except Exception as error:
        raise ModelError(f"{what} cannot be understood: {_first_line(error)}") from error
    if folder is not None:
        onnx_ir.external_data.set_base_dir(model.graph, folder)
    _drop_doubles(model.graph.outputs)
    for value in [v for v in model.graph.inputs if v.name in model.graph.initializers]:
        model.graph.inputs.remove(value)
    try:
        model.graph.sort()
    except ValueError as error:
        raise ModelError(f"{what} has a cycle: some node needs its own result") from error
    return model


def _forget_maps(graph: onnx.GraphProto) -> None:
    """Drops the declared types of values that are maps, or sequences of them, for which onnx_ir has no form."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        inner = value.type
        while inner.WhichOneof("value") in ("sequence_type", "optional_type"):
            inner = getattr(inner, inner.WhichOneof("value")).elem_type
        if inner.HasField("map_type"):
            value.ClearField("type")


def _drop_doubles(outputs: MutableSequence[onnx_ir.Value]) -> None:
    """Drops outputs that are given out a second time: what a run returns is named."""
    kept = list(dict.fromkeys(outputs))
    if len(kept) < len(outputs):
        outputs[:] = kept


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _read(source: Source) -> tuple[onnx.ModelProto, Path | None, str]:
    """The parsed model (our own copy), the folder of its external data, and words that name it."""
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy, None, "the model"
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the model"), None, "the model"
    path = Path(source)
    what = f"model file {str(path)!r}"
    try:
        if path.suffix in (".json", ".textproto", ".txtpb", ".pbtxt", ".onnxtxt", ".onnxtext", ".onnxjson"):
            return onnx.load(path, load_external_data=False), path.resolve().parent, what
        _check_file(path, what)
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{what} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what} is not an ONNX model: {_first_line(error)}") from error
    return _parse(data, what), path.resolve().parent, what


def _check_file(path: Path, what: str) -> None:
    """Refuses what must not be read whole: devices, which may have no end, and files beyond what the format can hold."""
    found = path.stat()
    if S_ISCHR(found.st_mode) or S_ISBLK(found.st_mode):
        raise ModelError(f"{what} is a device, not a file")
    if found.st_size >= 1 << 31:
        raise ModelError(f"{what} has {found.st_size} bytes; a model file ends at 2 GiB, larger weights belong into external data")


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{what} is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{what} is not an ONNX model, or was cut short") from error
    return proto


def _with_opsets(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Names the default domain "" everywhere, and refuses opsets newer than the installed onnx knows."""
    for node in _nodes(proto):
        if node.domain == "ai.onnx":
            node.domain = ""
    for entry in [e for function in proto.functions for e in function.opset_import]:
        if entry.domain == "ai.onnx":
            entry.domain = ""
    for entry in proto.opset_import:
        if entry.domain == "ai.onnx":
            entry.domain = ""
        if entry.domain == "" and entry.version > NEWEST_OPSET:
            raise UnsupportedError(
                f"{what} needs opset {entry.version}, the installed onnx knows up to {NEWEST_OPSET}; install a newer onnx")
    if proto.ir_version < 3 and not proto.opset_import:
        proto.opset_import.append(onnx.helper.make_opsetid("", 1))
    if not proto.opset_import:
        raise ModelError(f"{what} does not say which opset it is written in; it may have been cut short")
    return proto


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a model: of subgraphs and functions too."""
    waiting: list[onnx.NodeProto] = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                waiting.extend(graph.node)


# --- tensors ---------------------------------------------------------------------------------------------------------------


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a model: initializers and attributes, of subgraphs and functions too."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield attribute.sparse_tensor.values
            yield attribute.sparse_tensor.indices
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            yield from _graph_tensors(graph)


def _byte_count(tensor: onnx.TensorProto) -> int | None:
    """Bytes of the tensor's contents as raw data; None where that is not fixed (strings) or the type is unknown."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        data_type = onnx_ir.DataType(tensor.data_type)
    except ValueError:
        return None
    return -(-int(prod(tensor.dims)) * round(data_type.itemsize * 8) // 8)


def _check_tensor(tensor: onnx.TensorProto, folder: Path | None, what: str) -> None:
    name = f"tensor {tensor.name!r} of {what}"
    if tensor.data_type not in onnx.TensorProto.DataType.values() or tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ModelError(f"{name} has the unknown data type {tensor.data_type}")
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"{name} has a negative size: {list(tensor.dims)}")
    needed = _byte_count(tensor)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, folder, needed, name)
    elif tensor.HasField("raw_data") and needed is not None and len(tensor.raw_data) != needed:
        raise ModelError(f"{name} should hold {needed} bytes for shape {list(tensor.dims)}, it holds {len(tensor.raw_data)}")
    elif not tensor.HasField("raw_data"):
        _check_typed_data(tensor, name)


def _check_typed_data(tensor: onnx.TensorProto, name: str) -> None:
    """Compares the number of elements in the typed field with the shape."""
    if _byte_count(tensor) is None or tensor.data_type in _PACKED:
        return
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    parts = 2 if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128) else 1
    held = len(getattr(tensor, field)) // parts
    if held != prod(tensor.dims):
        raise ModelError(f"{name} should hold {prod(tensor.dims)} elements for shape {list(tensor.dims)}, it holds {held}")


_PACKED = {value for name, value in onnx.TensorProto.DataType.items() if name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")}


def _check_external(tensor: onnx.TensorProto, folder: Path | None, needed: int | None, name: str) -> None:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{name} keeps its data in the file {location!r}; give the model's path instead of its contents")
    path = folder / location
    if not location or Path(location).is_absolute() or not path.resolve().is_relative_to(folder):
        raise ModelError(f"{name} names external data outside of the model's folder: {location!r}")
    if not path.is_file():
        raise ModelError(f"{name} needs the external data file {str(path)!r}, which does not exist")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries["length"]) if "length" in entries else path.stat().st_size - offset
    except ValueError as error:
        raise ModelError(f"{name} has external data with a broken offset or length") from error
    if offset < 0 or length < 0 or offset + length > path.stat().st_size:
        raise ModelError(f"{name} needs bytes {offset} to {offset + length} of {str(path)!r}, "
                         f"which has only {path.stat().st_size} bytes")
    if needed is not None and length < needed:
        raise ModelError(f"{name} should hold {needed} bytes for shape {list(tensor.dims)}, its external data has {length}")


def _densify(graph: onnx.GraphProto) -> None:
    """Turns sparse initializers and sparse constants into dense ones, in subgraphs too."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(onnx.numpy_helper.from_array(_dense_array(sparse), sparse.values.name))
    graph.ClearField("sparse_initializer")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "sparse_value" and node.op_type == "Constant":
                dense = onnx.numpy_helper.from_array(_dense_array(attribute.sparse_tensor))
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _densify(inner)


def _dense_array(sparse: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    """The dense array of a sparse tensor (indices linear, or one row of coordinates a value)."""
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"sparse tensor {sparse.values.name!r} has indices that do not fit its shape {list(sparse.dims)}"
                         ) from error
    return dense


# --- functions and nodes ---------------------------------------------------------------------------------------------------


def _inlined(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    _spell_out_defaults(proto)
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    differs = any(versions.get(entry.domain, entry.version) != entry.version
                  for function in proto.functions for entry in function.opset_import)
    try:
        if differs:  # the conversion wants to know all types
            proto = onnx.shape_inference.infer_shapes(proto)
            known = {v.name for v in proto.graph.input}
            proto.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                                     for t in proto.graph.initializer if t.name not in known)
        return onnx.inliner.inline_local_functions(proto, convert_version=differs)
    except Exception as error:
        raise ModelError(f"the functions of {what} cannot be inlined: {_first_line(error)}") from error


def _spell_out_defaults(proto: onnx.ModelProto) -> None:
    """Gives calls of functions the attributes that they leave at the function's defaults, which inlining would drop."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions if f.attribute_proto}
    for node in _nodes(proto) if defaults else ():
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for a in defaults.get((node.domain, node.op_type, node.overload), ()) if a.name not in given)


def _check_nodes(proto: onnx.ModelProto, what: str) -> None:
    """Holds every node to its operator's declaration and its domain to those that are known; drops attributes nobody knows."""
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version or 3
    context.opset_imports = versions
    for node in proto.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        words = f"node {node.name!r} ({node.op_type}) of {what}"
        if domain in FOREIGN_DOMAINS:  # its own tools leave the import out
            continue
        if domain not in STANDARD_DOMAINS:
            raise UnsupportedError(f"{words} is of the domain {domain!r}, whose operators are not known here")
        if domain not in versions:
            raise ModelError(f"{words} is of the domain {domain!r}, of which the model imports no version")
        known_here = onnx.defs.has(node.op_type, versions[domain], domain)
        if not known_here and domain == "" and node.op_type in (*EXPERIMENTAL, *FOREIGN_OPERATORS):
            continue
        if not known_here:
            known = onnx.defs.has(node.op_type, domain)
            raise ModelError(f"{words} is no operator of opset {versions[domain]} of domain {domain or 'ai.onnx'!r}"
                             + ("; the model's opset import does not fit its nodes" if known else ""))
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        if wrong := undeclared(node, schema):
            raise ModelError(f"{words} {wrong}")
        if unknown_attributes(node, schema):
            node.CopyFrom(declared_part(node, schema))
        if any(a.HasField("g") or a.graphs or a.HasField("t") or a.tensors for a in node.attribute):
            continue  # holds data or graphs, whose check would need the names around them
        if schema.deprecated:
            continue  # which the checker refuses, though its meaning is known
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            raise ModelError(f"{words} is broken: {_first_line(error)}") from error


def _check_names(graph: onnx.GraphProto, what: str) -> None:
    """Every value must be made once, and every value used must be made."""
    made = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in made:
                raise ModelError(f"the value {name!r} of {what} is defined twice")
            made.add(name)
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                raise ModelError(f"node {node.name!r} ({node.op_type}) of {what} needs the value {name!r}, which nothing makes")
    for value in graph.output:
        if value.name not in made:
            raise ModelError(f"the output {value.name!r} of {what} is made by nothing")
