"""Nodes without layers of their own: they become `host` layers, run by onnx's reference implementation.

Types and shapes come from onnx's inference for the single node.  A size that depends on data gets a fresh symbol, which the
layer's `defines` attribute lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
import onnx_ir

from sartor.errors import ModelError, UnsupportedError
from sartor.graph.layer import Layer, Tensor
from sartor.ops.context import Array, Call, Context
from sartor.ops.folding import infer
from sartor.sizes import Dim

_TYPES = {
    "f32": onnx.TensorProto.FLOAT, "f64": onnx.TensorProto.DOUBLE, "f16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16, "bool": onnx.TensorProto.BOOL, "string": onnx.TensorProto.STRING,
    "i8": onnx.TensorProto.INT8, "i16": onnx.TensorProto.INT16, "i32": onnx.TensorProto.INT32, "i64": onnx.TensorProto.INT64,
    "u8": onnx.TensorProto.UINT8, "u16": onnx.TensorProto.UINT16, "u32": onnx.TensorProto.UINT32, "u64": onnx.TensorProto.UINT64,
    "f8e4m3fn": onnx.TensorProto.FLOAT8E4M3FN, "f8e4m3fnuz": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "f8e5m2": onnx.TensorProto.FLOAT8E5M2, "f8e5m2fnuz": onnx.TensorProto.FLOAT8E5M2FNUZ, "f8e8m0": onnx.TensorProto.FLOAT8E8M0,
    "f6e2m3": onnx.TensorProto.FLOAT6E2M3, "f6e3m2": onnx.TensorProto.FLOAT6E3M2, "f4e2m1": onnx.TensorProto.FLOAT4E2M1,
    "i4": onnx.TensorProto.INT4, "u4": onnx.TensorProto.UINT4, "i2": onnx.TensorProto.INT2, "u2": onnx.TensorProto.UINT2,
}
_NAMES = {int(number): name for name, number in _TYPES.items()}


def element_name(number: int) -> str | None:
    """Sartor's name of an ONNX element type; None for one it has no name for."""
    return _NAMES.get(number)


def type_words(dtype: str) -> str | None:
    """A tensor type in ONNX's words, as `tensor(float)`; None where ONNX has no name for its elements."""
    number = _TYPES.get(dtype)
    return None if number is None else f"tensor({onnx.TensorProto.DataType.Name(number).lower()})"


def lower(context: Context, call: Call, versions: Mapping[str, int]) -> None:
    """Emits a `host` layer for any node whose output types onnx can infer."""
    if not onnx.defs.has(call.op_type, call.version, call.domain):
        raise UnsupportedError(f"{call} is no operator of version {call.version} of the domain {call.domain or 'ai.onnx'!r} that is "
                               "known here")
    node = onnx_ir.to_proto(call.node)
    require_known(node, versions)
    if call.op_type == "Scatter":  # the name ScatterElements had before opset 11; the reference knows only the new one
        call = replace(call, op_type="ScatterElements", version=11)
        node.op_type, versions = "ScatterElements", {**versions, "": 11}
    for place, name in enumerate(call.inputs):
        node.input[place] = name
    for v in captures(node):
        context.take(v)
    captured = [v for v in captures(node) if v not in call.inputs]
    reads = [v for v in (*call.inputs, *captured) if v]
    known: dict[str, Dim] = {}
    types = {v: type_proto(context.tensor(v), known) for v in reads}
    constants: dict[str, Array] = {v: a for v in reads if (a := _small_constant(context, v)) is not None}
    try:
        inferred = infer(node, call, types, constants, versions)
    except Exception as error:
        text = (str(error).strip().splitlines() or ["onnx gives no reason"])[-1]
        raise ModelError(f"{call} does not fit its inputs: {text}") from error
    defines: list[tuple[str, int, int]] = []
    for place, name in enumerate(call.outputs):
        if name:
            context.graph.tensors[name] = _tensor(context, call, place, inferred.get(name), known, defines)
    inputs = tuple(context.value(v) if v else "" for v in (*call.inputs, *captured))
    attributes = {"node": node.SerializeToString(), "domains": dict(versions), "captures": tuple(captured), "defines": defines}
    context.append(Layer(call.name, "host", inputs, call.outputs, attributes, None, (), (call.name,)))


def require_known(node: onnx.NodeProto, versions: Mapping[str, int]) -> None:
    """Raises `UnsupportedError` where the bodies of a node hold operators that onnx does not declare, so that nothing can run them."""
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for inner in graph.node:
                domain = "" if inner.domain == "ai.onnx" else inner.domain
                if not onnx.defs.has(inner.op_type, versions.get(domain, 1), domain):
                    raise UnsupportedError(f"node {inner.name!r} ({inner.op_type}), inside node {node.name!r} ({node.op_type}), is no "
                                           f"operator of the domain {domain or 'ai.onnx'!r} that is known here")
                require_known(inner, versions)


def _small_constant(context: Context, name: str) -> Array | None:
    elements = context.tensor(name).elements
    return context.constant(name) if isinstance(elements, int) and elements <= 1024 else None


def captures(node: onnx.NodeProto) -> list[str]:
    """Names that the node's subgraphs take from the graph around them."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            _free_names(graph, set(), found)
    return list(found)


def _free_names(graph: onnx.GraphProto, outer: set[str], found: dict[str, None]) -> None:
    made = outer | {v.name for v in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                found[name] = None
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _free_names(inner, made, found)
        made |= set(node.output)
    for value in graph.output:
        if value.name not in made:
            found[value.name] = None


def type_proto(tensor: Tensor, known: dict[str, Dim]) -> onnx.TypeProto:
    """The type for onnx's inference; formulas are shown to it as named dimensions, which `known` translates back."""
    shape: list[int | str] = []
    for dim in tensor.shape:
        known[str(dim)] = dim
        shape.append(dim if isinstance(dim, int) else str(dim))
    return onnx.helper.make_tensor_type_proto(_TYPES[tensor.dtype], shape)


def _tensor(context: Context, call: Call, place: int, proto: onnx.TypeProto | None, known: Mapping[str, Dim],
            defines: list[tuple[str, int, int]]) -> Tensor:
    name = call.outputs[place]
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.elem_type:
        raise UnsupportedError(f"{call}: its output {name!r} is no tensor, or one of a type that cannot be told before it runs")
    if proto.tensor_type.elem_type not in _NAMES:
        known_as = onnx.TensorProto.DataType.Name(proto.tensor_type.elem_type).lower()
        raise UnsupportedError(f"{call}: its output {name!r} has the element type {known_as}, which is not supported")
    if not proto.tensor_type.HasField("shape"):
        _declared_rank(call, place, proto)
    if not proto.tensor_type.HasField("shape"):
        raise UnsupportedError(f"{call}: how many dimensions its output {name!r} has cannot be told before it runs")
    shape: list[Dim] = []
    for axis, dim in enumerate(proto.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            shape.append(dim.dim_value)
        elif dim.dim_param in known:
            shape.append(known[dim.dim_param])
        else:
            fresh = context.symbol(f"{name}.{axis}")
            defines.append((str(fresh), place, axis))
            shape.append(fresh)
    return Tensor(_NAMES[proto.tensor_type.elem_type], tuple(shape))




def _declared_rank(call: Call, place: int, proto: onnx.TypeProto) -> None:
    """Adds the number of dimensions that the model states for a value, where inference gives none; sizes are often stale there."""
    stated = call.node.outputs[place].shape if place < len(call.node.outputs) else None
    if stated is not None:
        proto.tensor_type.shape.SetInParent()
        for _ in stated:
            proto.tensor_type.shape.dim.add()
