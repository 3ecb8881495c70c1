"""Models that run as a whole on the host, by onnx's reference implementation: those with values no layer can have.

Such values are sequences, optionals, maps, strings, tensors of element types without kernels, and tensors whose number of
dimensions only a run tells.  The types of a model's inputs and outputs are told as far as they are known: a value that is no
tensor of known rank has its type in ONNX's words, as `seq(tensor(float))`, in place of an element type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx.reference import ReferenceEvaluator

from sartor.errors import ModelError, OptionError, UnsupportedError
from sartor.graph.tensor import Tensor
from sartor.ops.host import element_name
from sartor.sizes import Dim, symbol


@dataclass(frozen=True)
class WholeModel:
    """A model for the host.

    Attributes
    ----------
    name
        Of the model.
    proto
        The model as a serialized `ModelProto`.
    inputs, outputs
        Types by name.
    nodes
        For each node its name, operator, inputs and outputs.
    """

    name: str
    proto: bytes
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    nodes: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]


def whole_model(model: onnx_ir.Model, shapes: Mapping[str, Sequence[int | str]], reason: UnsupportedError) -> WholeModel:
    """The model for the host.

    Parameters
    ----------
    model
        IR1, as `sartor.importers.onnx.load` makes it.
    shapes
        Sizes of inputs that replace the model's.
    reason
        Why the model cannot be lowered.

    Raises
    ------
    UnsupportedError
        `reason`, where the reference implementation cannot run the model either.
    ModelError
        An output is made by nothing.
    OptionError
        `shapes` names an unknown input or has the wrong number of sizes.
    """
    proto = onnx_ir.to_proto(onnx_ir.external_data.load_to_model(model))
    try:
        text = proto.SerializeToString()
        ReferenceEvaluator(proto)
    except (EncodeError, ValueError, NotImplementedError, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise reason from error
    graph = proto.graph
    made = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {v for node in graph.node for v in node.output}
    for value in graph.output:
        if value.name not in made:
            raise ModelError(f"the model's output {value.name!r} is made by nothing")
    inputs = {value.name: _type(value.type) for value in graph.input}
    for name, sizes in shapes.items():
        inputs[name] = _replaced(inputs, name, sizes)
    outputs = {value.name: _type(value.type) for value in graph.output}
    return WholeModel(graph.name, text, inputs, outputs, tuple(_nodes(graph.node)))


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    taken: set[str] = set()
    for index, node in enumerate(nodes):
        name = node.name or f"{node.op_type}_{index}"
        if name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        yield name, node.op_type, tuple(node.input), tuple(node.output)


def _replaced(inputs: Mapping[str, Tensor], name: str, sizes: Sequence[int | str]) -> Tensor:
    """The type of an input whose sizes were given."""
    if name not in inputs:
        raise OptionError(f"shapes name the input {name!r}; the model's inputs are {', '.join(map(repr, inputs))}")
    tensor = inputs[name]
    if tensor.opaque:
        raise OptionError(f"shapes give sizes to the input {name!r}, which is {tensor} and runs as it comes")
    if len(sizes) != len(tensor.shape):
        raise OptionError(f"shapes give the input {name!r} {len(sizes)} sizes, it has {len(tensor.shape)} dimensions")
    return Tensor(tensor.dtype, tuple(symbol(d) if isinstance(d, str) else int(d) for d in sizes))


def _type(proto: onnx.TypeProto) -> Tensor:
    """The type of an input or output as far as the model tells it."""
    kind = proto.tensor_type
    name = element_name(kind.elem_type) if proto.HasField("tensor_type") and kind.HasField("shape") else None
    if name is None:
        return Tensor(_words(proto), ())
    shape: list[Dim] = []
    for axis, dim in enumerate(kind.shape.dim):
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        shape.append(dim.dim_value if known else symbol(dim.dim_param or f"?{axis}"))
    return Tensor(name, tuple(shape))


def _words(proto: onnx.TypeProto) -> str:
    """A type in ONNX's words."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({_words(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({_words(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)},{_words(proto.map_type.value_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_element(proto.sparse_tensor_type.elem_type)})"
    return f"tensor({_element(proto.tensor_type.elem_type)})" if kind == "tensor_type" else "any()"


def _element(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number)).lower()
