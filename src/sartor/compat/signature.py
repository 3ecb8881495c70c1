"""What ONNX Runtime's sessions tell of a model: names, type strings, shapes, and the file's metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sartor.graph.layer import Tensor
from sartor.sizes import Size

_TYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
    "string": "string",
    "f8e4m3fn": "float8e4m3fn",
    "f8e4m3fnuz": "float8e4m3fnuz",
    "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz",
    "f8e8m0": "float8e8m0",
    "f6e2m3": "float6e2m3",
    "f6e3m2": "float6e3m2",
    "f4e2m1": "float4e2m1",
    "i4": "int4",
    "u4": "uint4",
    "i2": "int2",
    "u2": "uint2",
}

_NO_VERSION = 2**63 - 1  # what ONNX Runtime says where the file says nothing


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` as `tensor(float)`, `shape` with numbers, names of symbols, and None for what has no name."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the model file says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """All of it."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    metadata: ModelMetadata


def type_string(dtype: Any) -> str:
    """ONNX Runtime's name of the type of tensors of a NumPy dtype, as `tensor(float)`."""
    from sartor.types import from_numpy

    return f"tensor({_TYPES[from_numpy(np.dtype(dtype))]})"


def read_signature(model: bytes | None, program: Any) -> Signature:
    """The signature of `program`, with the names of dimensions and the metadata of the ONNX file it came from, where given."""
    inputs = [_from_tensor(name, tensor) for name, tensor in program.inputs.items()]
    outputs = [_from_tensor(name, tensor) for name, tensor in program.outputs.items()]
    if model is None:
        return Signature(tuple(inputs), tuple(outputs), ModelMetadata())
    import onnx

    proto = onnx.ModelProto.FromString(model)
    graph = proto.graph
    declared = {info.name: _shape(info.type.tensor_type) for info in (*graph.input, *graph.output)}
    metadata = ModelMetadata(
        proto.producer_name,
        graph.name,
        graph.doc_string,
        proto.domain,
        proto.doc_string,
        proto.model_version if proto.HasField("model_version") else _NO_VERSION,
        {entry.key: entry.value for entry in proto.metadata_props},
    )
    inputs, outputs = ([_as_declared(arg, declared.get(arg.name)) for arg in args] for args in (inputs, outputs))
    return Signature(tuple(inputs), tuple(outputs), metadata)


def _from_tensor(name: str, tensor: Tensor) -> NodeArg:
    if tensor.opaque:
        return NodeArg(name, tensor.dtype, [])
    return NodeArg(name, f"tensor({_TYPES[tensor.dtype]})", [str(d) if isinstance(d, Size) else d for d in tensor.shape])


def _shape(tensor_type: Any) -> list[int | str | None] | None:
    if not tensor_type.HasField("shape"):
        return None
    return [_size(dim) for dim in tensor_type.shape.dim]


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _as_declared(arg: NodeArg, shape: list[int | str | None] | None) -> NodeArg:
    return arg if shape is None else NodeArg(arg.name, arg.type, shape)
