"""IR1 to IR2: one walk over the model's nodes in order, which infers shapes, folds constants and emits Layers.

A `Walk` goes through items, mostly nodes, in order; control flow puts more before them (`control`).  For each node, in this
order: constants are folded; small integer values that come from shapes are followed as formulas (`contents`); else the operator's
function in `OPERATORS` emits layers; where there is none, or it declines, the node becomes a `host` layer, or the body that onnx
defines the operator by is lowered in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import onnx_ir

from sartor.errors import ModelError, OptionError, UnsupportedError
from sartor.graph.layer import Graph, Tensor
from sartor.graph.passes.dead import living
from sartor.ops import OPERATORS, contents, contrib, control, folding, functions, host
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.declared import check_types
from sartor.ops.stretch import wants
from sartor.sizes import Dim, Size, at_least, maximum, minimum, substitute, symbol
from sartor.types import BYTES

_TYPES = {
    "FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "BOOL": "bool", "STRING": "string",
    "INT8": "i8", "INT16": "i16", "INT32": "i32", "INT64": "i64",
    "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64",
    "FLOAT8E4M3FN": "f8e4m3fn", "FLOAT8E4M3FNUZ": "f8e4m3fnuz", "FLOAT8E5M2": "f8e5m2", "FLOAT8E5M2FNUZ": "f8e5m2fnuz",
    "FLOAT8E8M0": "f8e8m0", "FLOAT6E2M3": "f6e2m3", "FLOAT6E3M2": "f6e3m2", "FLOAT4E2M1": "f4e2m1",
    "INT4": "i4", "UINT4": "u4", "INT2": "i2", "UINT2": "u2",
}
ELEMENTS_LIMIT = 1 << 48
"""Elements a tensor may have as far as its sizes are numbers: what today's processors can address."""
MOST_NODES = 20_000
"""How many nodes may be lowered, those in several branches again, before branches are left to the host."""

_UNNAMED = (None, "", "?", "-1", "None")  # what exporters write for a dimension of which nothing is known


def lower(model: onnx_ir.Model, shapes: Mapping[str, Sequence[int | str]] | None = None) -> Graph:
    """Lowers a model to a graph of layers.

    Parameters
    ----------
    model
        IR1, as `sartor.importers.onnx.load` makes it.
    shapes
        Sizes of inputs that replace the model's: numbers, or names of symbols.  A number in place of a symbol replaces that
        symbol in all inputs.

    Raises
    ------
    ModelError
        The model contradicts itself.
    UnsupportedError
        An operator, element type or shape is not supported.
    OptionError
        `shapes` names an unknown input or has the wrong number of sizes.
    """
    context = Context(model.graph.name or "")
    for name in _names(model):
        context.reserve(name)
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            raise ModelError(f"the initializer {name!r} has no contents")
        context.set_lazy_constant(name, value.const_value, element_type(value.const_value.dtype, name))
    _add_inputs(context, model, shapes or {})
    versions = {("" if d == "ai.onnx" else d): v for d, v in model.opset_imports.items()}
    outputs = tuple(dict.fromkeys(v.name or "" for v in model.graph.outputs))
    walk = Walk(context, deque(node_items(model.graph, versions)), outputs, [max(MOST_NODES, 4 * len(model.graph))])
    walk.run()
    return walk.finish()


def element_type(data_type: onnx_ir.DataType | None, name: str) -> str:
    """Sartor's name of an ONNX element type."""
    if data_type is None or data_type.name not in _TYPES:
        raise UnsupportedError(f"the value {name!r} has the element type {data_type.name.lower() if data_type else 'none'}, "
                               "which is not supported")
    return _TYPES[data_type.name]


def _names(model: onnx_ir.Model) -> list[str]:
    names = [v.name or "" for v in model.graph.inputs] + list(model.graph.initializers)
    return names + [v.name for node in model.graph for v in node.outputs if v.name]


# --- inputs ----------------------------------------------------------------------------------------------------------------


def _add_inputs(context: Context, model: onnx_ir.Model, shapes: Mapping[str, Sequence[int | str]]) -> None:
    inputs = {v.name or "": v for v in model.graph.inputs}
    for name in shapes:
        if name not in inputs:
            raise OptionError(f"shapes name the input {name!r}; the model's inputs are {', '.join(map(repr, inputs))}")
    declared: dict[str, list[int | str | None]] = {}
    for name, value in inputs.items():
        try:
            declared[name] = _declared(value, name, shapes.get(name))
            element_type(value.dtype, name)
        except UnsupportedError as error:
            error.values = (name,)
            raise
    for symbols in declared.values():
        for label in symbols:
            if isinstance(label, str):
                context.reserve_symbol(label)
    replaced: dict[str, Dim] = {}
    chosen: dict[str, list[Dim]] = {}
    for name, own in declared.items():
        chosen[name] = []
        for axis, (old, new) in enumerate(zip(own, shapes.get(name, own), strict=True)):
            if isinstance(new, str):
                context.reserve_symbol(new)
            dim: Dim = context.symbol(f"{name}.{axis}") if new is None else symbol(new) if isinstance(new, str) else int(new)
            if not isinstance(new, str) and new is not None and int(new) < 0:
                raise OptionError(f"shapes give the input {name!r} the size {new}; sizes are at least 0")
            if isinstance(old, str) and new != old:
                if replaced.setdefault(old, dim) != dim:
                    raise OptionError(f"shapes give the dimension {old!r} of the model two sizes, {replaced[old]} and {dim}")
            chosen[name].append(dim)
    for name, value in inputs.items():
        dtype = element_type(value.dtype, name)
        context.graph.tensors[name] = Tensor(dtype, tuple(substitute(d, replaced) for d in chosen[name]))
    context.graph.inputs = tuple(inputs)


def _declared(value: onnx_ir.Value, name: str, given: Sequence[int | str] | None) -> list[int | str | None]:
    """The model's own sizes of an input: numbers, symbols, None where it says nothing."""
    if value.type is not None and not isinstance(value.type, onnx_ir.TensorType):
        raise UnsupportedError(f"the input {name!r} is no tensor but {value.type}; only tensors are supported")
    if value.shape is None:
        if given is None:
            raise UnsupportedError(f"the model does not say how many dimensions the input {name!r} has; give its shape")
        return [None] * len(given)
    dims: list[int | str | None] = [d if isinstance(d, int) else d.value for d in value.shape.dims]
    if given is not None and len(given) != len(dims):
        raise OptionError(f"shapes give the input {name!r} {len(given)} sizes, it has {len(dims)} dimensions")
    return [None if d in _UNNAMED or (isinstance(d, int) and d < 0) else d for d in dims]


# --- nodes -----------------------------------------------------------------------------------------------------------------


def _call(context: Context, node: onnx_ir.Node, index: int, versions: Mapping[str, int]) -> Call:
    domain = "" if node.domain == "ai.onnx" else node.domain
    attributes = {name: _attribute(a) for name, a in node.attributes.items()}
    name = context.unique_layer(node.name or f"{node.op_type}_{index}")
    for value in node.inputs:
        if value is not None:
            context.take(value.name or "")
    inputs = tuple(context.aliases.get(v.name or "", v.name or "") if v is not None else "" for v in node.inputs)
    outputs = tuple(v.name or "" for v in node.outputs)
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return Call(node.op_type, domain, versions.get(domain, 1), name, inputs, outputs, attributes, node)


def _attribute(attribute: onnx_ir.Attr) -> Any:
    value = attribute.value
    return list(value) if isinstance(value, tuple) else value


Item: TypeAlias = Callable[["Walk"], None]


class Walk:
    """Goes through the items of one graph, main or body, in order.

    Parameters
    ----------
    context
        The graph in the making.
    items
        What is left to do.
    outputs
        What the graph is to give in the end; None where that is not for this walk to say.
    budget
        One number, shared by a model's walks: how many nodes may still be lowered.
    """

    def __init__(self, context: Context, items: deque[Item], outputs: tuple[str, ...] | None, budget: list[int]) -> None:
        self.context, self.items, self.outputs, self.budget = context, items, outputs, budget

    def run(self) -> None:
        while self.items:
            self.items.popleft()(self)

    def inner(self, context: Context, items: Iterable[Item], outputs: tuple[str, ...]) -> Walk:
        """A walk for a body."""
        return Walk(context, deque(items), outputs, self.budget)

    def push(self, items: Sequence[Item]) -> None:
        """Puts items before all others."""
        self.items.extendleft(reversed(items))

    def finish(self, inputs: tuple[str, ...] = ()) -> Graph:
        """The graph, for a body with these inputs and what it took from around."""
        context = self.context
        assert self.outputs is not None
        context.graph.inputs = context.graph.inputs or inputs
        _finish(context, self.outputs)
        _check_sizes(context.graph)
        if context.around is None:
            context.graph.wants = wants(context.graph, context.told)
        else:
            read = {v for layer in context.graph.layers for v in layer.reads}
            context.graph.inputs = (*inputs, *(v for v in context.captured if v in read))
            for name, tensor in context.graph.tensors.items():
                if tensor.dtype not in BYTES:
                    raise UnsupportedError(f"the value {name!r} has elements of type {tensor.dtype}, which no layer can hold")
        return context.graph


def node_items(graph: onnx_ir.Graph, versions: Mapping[str, int], origin: tuple[str, ...] | None = None) -> list[Item]:
    """Lowering the nodes of a graph, for a body with its initializers.

    `origin` are the outputs of the main graph's node that an error then concerns; by default each node's own.
    """
    begin: list[Item] = [] if origin is None else [partial(_take_initializers, graph)]
    return begin + [partial(_lower_item, node, index, versions, origin) for index, node in enumerate(graph)]


def named(name: str, of: str, call: Call) -> Item:
    """Letting a name stand for a value, for an output of the body of `call`."""
    return partial(_name, name, of, call)


def _name(name: str, of: str, call: Call, walk: Walk) -> None:
    walk.context.take(of)
    if not walk.context.knows(of):
        raise ModelError(f"{call} has a body whose output {of!r} is made by nothing")
    walk.context.alias(name, of)


def again(call: Call, versions: Mapping[str, int], origin: tuple[str, ...]) -> Item:
    """Lowering a node once more, where more is known."""
    return partial(_again, call, versions, origin)


def _again(call: Call, versions: Mapping[str, int], origin: tuple[str, ...], walk: Walk) -> None:
    for name in call.inputs:
        walk.context.take(name)
    _lower_node(walk, replace(call, name=walk.context.unique_layer(call.name)), versions, origin)


def _take_initializers(graph: onnx_ir.Graph, walk: Walk) -> None:
    for name, value in graph.initializers.items():
        if value.const_value is not None:
            walk.context.set_lazy_constant(name, value.const_value, element_type(value.const_value.dtype, name))


def _lower_item(node: onnx_ir.Node, index: int, versions: Mapping[str, int], origin: tuple[str, ...] | None, walk: Walk) -> None:
    walk.budget[0] -= 1
    values = origin if origin is not None else tuple(v.name for v in node.outputs if v.name)
    call: Call | None = None
    try:
        if walk.budget[0] < 0 and walk.context.around is not None:
            raise UnsupportedError("the branches of the model's conditions lead to too many different networks")
        call = _call(walk.context, node, index, versions)
        check_types(walk.context, call)
        _lower_node(walk, call, versions, values)
    except UnsupportedError as error:
        error.values = values
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        what = str(call) if call else f"node {node.name!r} ({node.op_type})"
        inputs = ", ".join(str(walk.context.tensor(v)) if v else "none" for v in call.inputs) if call else "none"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{what} does not fit its inputs ({inputs}): {reason}") from error


def _lower_node(walk: Walk, call: Call, versions: Mapping[str, int], origin: tuple[str, ...]) -> None:
    context = walk.context
    context.call = call
    operator = OPERATORS.get((call.domain, call.op_type))
    if call.op_type in folding.CONVERSIONS and operator is not None and folding.convert(context, call, operator):
        return
    if folding.fold(context, call, versions) or contents.propagate(context, call):
        return
    if control.takes(context, call):
        control.lower(walk, call, versions, origin)
        return
    if operator is not None:
        mark = context.mark()
        try:
            operator(context, call)
            contrib.check(context, call, mark[0])
            return
        except DeclinedError as error:
            context.rewind(mark)
            if call.domain == contrib.DOMAIN:
                raise UnsupportedError(f"{error}: there is no native form of that, nor any other of the domain {call.domain!r}") from error
    body = functions.expand(context, call, versions)
    if body is None:
        host.lower(context, call, versions)
        return
    graph, imports = body
    mark = context.mark()
    try:
        Walk(context, deque(node_items(graph, imports)), None, walk.budget).run()
        context.call = call
    except UnsupportedError:
        context.rewind(mark)
        context.call = call
        host.lower(context, call, versions)


# --- the end ---------------------------------------------------------------------------------------------------------------


def _finish(context: Context, outputs: Sequence[str]) -> None:
    """Gives the graph's outputs the model's names, and drops layers and values that nothing needs."""
    graph = context.graph
    for name in outputs:
        context.take(name)
        if context.sequence(name) is not None:
            error = UnsupportedError(f"the output {name!r} is a sequence, which no layer can make")
            error.values = (name,)
            raise error
        if name not in graph.tensors and name not in context.aliases:
            raise ModelError(f"the model's output {name!r} is made by nothing")
        context.value(name)
    made = {v for layer in graph.layers for v in layer.outputs}
    renames: dict[str, str] = {}
    for name in outputs:
        target = context.aliases.get(name, name)
        if target != name and target in made and target not in outputs and target not in renames:
            renames[target] = name  # the layer makes the output itself
        elif target == name and name not in made and name not in graph.inputs:
            renames[name] = context.move_aside(name)  # a constant, of which the output is a copy
    _rename(graph, renames)
    for name in renames.values():
        context.aliases.pop(name, None)
    made = {v for layer in graph.layers for v in layer.outputs}
    for name in outputs:
        if name not in made and name not in graph.inputs:
            target = context.aliases.pop(name, name)
            context.call = Call("Identity", "", 0, context.unique_layer(f"{name}.copy"), (), (name,), {})
            context.copy(renames.get(target, target), name)
    graph.outputs = tuple(outputs)
    _prune(graph)


def _check_sizes(graph: Graph) -> None:
    """Makes sure that the sizes of all values can be: not negative, and within what 64 bits can address."""
    for name, tensor in graph.tensors.items():
        known = [d for d in tensor.shape if isinstance(d, int)]
        if any(d < 0 for d in known):
            raise ModelError(f"the value {name!r} would have a negative size: {tensor}")
        factors = [abs(f) for d in tensor.shape if isinstance(d, Size) for _, f in d.terms]
        if prod(max(d, 1) for d in known) > ELEMENTS_LIMIT or max(factors, default=0) > ELEMENTS_LIMIT:
            raise ModelError(f"the value {name!r} would be larger than any memory: {tensor}")
    for layer in graph.layers:
        if layer.kind == "gather":
            size, wanted = graph.tensors[layer.inputs[0]].shape[layer.attributes["axis"]], graph.tensors[layer.inputs[1]].elements
            if size == 0 and isinstance(wanted, int) and wanted:
                raise ModelError(f"node {', '.join(layer.source)!r} takes elements from {layer.inputs[0]!r}, which has none")
            if isinstance(size, Size) and not at_least(size, 1):  # where anything is taken, there must be something
                some, least = minimum(wanted, 1), minimum(size, 1)
                graph.conditions.append((maximum(some, least), least))


def _rename(graph: Graph, names: Mapping[str, str]) -> None:
    if not names:
        return

    def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    graph.layers = [replace(layer, inputs=renamed(layer.inputs), outputs=renamed(layer.outputs), extra=renamed(layer.extra))
                    for layer in graph.layers]
    graph.tensors.update({new: graph.tensors.pop(old) for old, new in names.items()})


def _prune(graph: Graph) -> None:
    graph.layers = living(graph)
    needed = {*graph.outputs, *(v for layer in graph.layers for v in layer.reads)}
    named = needed | set(graph.inputs) | {v for layer in graph.layers for v in layer.outputs}
    graph.tensors = {name: tensor for name, tensor in graph.tensors.items() if name in named}
    graph.constants = {name: array for name, array in graph.constants.items() if name in needed}
