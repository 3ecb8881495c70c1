"""Models that run on the host, as a whole or from some node on, by onnx's reference implementation: those with values no layer has.

Such values are sequences, optionals, maps, strings, tensors of element types without kernels, and tensors whose number of
dimensions only a run tells.  The types of a model's inputs and outputs are told as far as they are known: a value that is no
tensor of known rank has its type in ONNX's words, as `seq(tensor(float))`, in place of an element type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx.reference import ReferenceEvaluator

from sartor.errors import ModelError, OptionError, UnsupportedError
from sartor.graph.host_operators import operators
from sartor.graph.layer import Graph, Tensor
from sartor.importers.onnx import load
from sartor.ops.host import captures, element_name, require_known
from sartor.sizes import Dim, symbol

TRIES = 16
"""How many nodes without layers are looked for one by one; with more, the whole model is left to the host."""


@dataclass(frozen=True)
class Split:
    """A model in two: a head of layers and a tail for the host.

    Attributes
    ----------
    name
        Of the model.
    head
        The head lowered; None where all of the model is left to the host.
    tail
        The rest as a serialized `ModelProto`.  It reads inputs of the model and outputs of the head.
    inputs, outputs
        Types of the model's own inputs and outputs by name.
    nodes
        For each node of the tail its name, operator, inputs and outputs.
    """

    name: str
    head: Graph | None
    tail: bytes
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    nodes: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]


def split(
    model: onnx_ir.Model,
    shapes: Mapping[str, Sequence[int | str]],
    reason: UnsupportedError,
    lowered: Callable[[onnx_ir.Model, Mapping[str, Sequence[int | str]]], Graph],
) -> Split:
    """Splits a model that has values no layer can have.

    Parameters
    ----------
    model
        IR1, as `sartor.importers.onnx.load` makes it.
    shapes
        Sizes of inputs that replace the model's.
    reason
        Why the model cannot be lowered.
    lowered
        Lowers the head.

    Raises
    ------
    UnsupportedError
        `reason`, where the reference implementation cannot run the rest either.
    ModelError
        An output is made by nothing.
    OptionError
        `shapes` names an unknown input or has the wrong number of sizes.
    """
    try:
        proto = onnx_ir.to_proto(onnx_ir.external_data.load_to_model(model))
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"the model cannot be written down again: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    graph = proto.graph
    made = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {v for node in graph.node for v in node.output}
    for value in graph.output:
        if value.name not in made:
            raise ModelError(f"the model's output {value.name!r} is made by nothing")
    inputs = {value.name: _type(value.type) for value in graph.input}
    for name, sizes in shapes.items():
        inputs[name] = _replaced(inputs, name, sizes)
    head, rest = _lowered_head(proto, shapes, reason, lowered)
    try:
        text = rest.SerializeToString()
        ReferenceEvaluator(rest, new_ops=operators())
        for node in rest.graph.node:  # whose bodies are looked at only when they run
            require_known(node, {entry.domain: entry.version for entry in rest.opset_import})
    except (EncodeError, ValueError, NotImplementedError, RuntimeError, TypeError, LookupError, AttributeError, UnsupportedError) as error:
        raise reason from error
    outputs = {value.name: _type(value.type) for value in graph.output}
    for types in (inputs, outputs):
        types.update({name: head.tensors[name] for name in types if head and name in (*head.inputs, *head.outputs)})
    taken = {layer.name for layer in head.layers} if head else set()
    return Split(graph.name, head, text, inputs, outputs, tuple(_nodes(rest.graph.node, taken)))


def _lowered_head(
    proto: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int | str]],
    reason: UnsupportedError,
    lowered: Callable[[onnx_ir.Model, Mapping[str, Sequence[int | str]]], Graph],
) -> tuple[Graph | None, onnx.ModelProto]:
    """The largest head that can be lowered, and the rest of the model."""
    outside: set[str] = set(reason.values)
    for _ in range(TRIES if outside else 0):
        head, rest = _cut(proto, outside)
        if not head.graph.node:
            break
        try:
            graph = lowered(load(head), {name: s for name, s in shapes.items() if name not in outside})
        except UnsupportedError as error:
            if outside.issuperset(error.values):
                break
            outside.update(error.values)
        else:
            return graph, rest
    return None, proto


def _cut(proto: onnx.ModelProto, lacking: set[str]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The nodes that need none of the values `lacking`, and those that do or make one."""
    graph, outside = proto.graph, set(lacking)
    first: list[onnx.NodeProto] = []
    second: list[onnx.NodeProto] = []
    needed: dict[str, None] = {}
    for node in graph.node:
        reads = {*node.input, *captures(node)}
        if outside & {*reads, *node.output} - {""}:
            outside.update(node.output)
            second.append(node)
            needed.update(dict.fromkeys(sorted(reads - {""})))
        else:
            first.append(node)
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | outside
    results = {value.name: value for value in graph.output}
    crossing = [name for name in needed if name not in own]
    ends = [value for name, value in results.items() if name not in outside]
    ends += [onnx.ValueInfoProto(name=name) for name in crossing if name not in results]
    head = _part(proto, first, [value for value in graph.input if value.name not in outside], ends)
    begins = [onnx.ValueInfoProto(name=v.name) for v in graph.input] + [onnx.ValueInfoProto(name=name) for name in crossing]
    return head, _part(proto, second, begins, [value for name, value in results.items() if name in outside])


def _part(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A model of some of a model's nodes."""
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    part.graph.name = proto.graph.name
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(outputs)
    needed = {v for node in nodes for v in (*node.input, *captures(node))} | {value.name for value in outputs}
    part.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in needed)
    made = {v for node in nodes for v in node.output}
    part.graph.value_info.extend(value for value in proto.graph.value_info if value.name in made)
    return part


def _nodes(nodes: Iterable[onnx.NodeProto], taken: set[str]) -> Iterable[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Name, operator, inputs and outputs of each node; names that are `taken` get a number."""
    for index, node in enumerate(nodes):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{len(taken)}"
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
