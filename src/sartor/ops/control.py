"""Control flow: `If`, `Loop` and `Scan` as layers with bodies.

An `If` whose condition is known is its branch.  One whose branches make values of different ranks takes the rest of the graph into
both of them.  A branch that makes no sense is none: where the condition depends on sizes, binding refuses the sizes that lead there.
What of a loop's carried sizes changes from one iteration to the next is a symbol of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir

from sartor.errors import ModelError, UnsupportedError
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.ops import host
from sartor.ops.assume import facts_of, is_one
from sartor.ops.bodies import body_items, graph_of, named_outputs, output_names
from sartor.ops.context import Array, Call, Context
from sartor.ops.numbers import Ratio
from sartor.sizes import Dim, Size, maximum, symbols

if TYPE_CHECKING:
    from sartor.ops.lowering import Item, Walk

Versions = Mapping[str, int]
Define = tuple[str, int, int]

_ROUNDS = 64  # of lowering a loop's body until the types it is handed and makes are the same; each makes a size a symbol
_FOREVER = 1 << 62  # iterations


class MixedError(UnsupportedError):
    """The branches of a condition make values of different ranks."""


@dataclass
class _Branch:
    """A branch lowered, or why it makes no sense."""

    walk: Walk | None
    names: tuple[str, ...]
    error: ModelError | None = None

    def tensor(self, index: int) -> Tensor:
        assert self.walk is not None
        return self.walk.context.tensor(self.names[index])

    def content(self, index: int) -> Array | None:
        assert self.walk is not None
        return self.walk.context.content(self.names[index])

    def is_sequence(self, index: int) -> bool:
        return self.walk is not None and self.walk.context.sequence(self.names[index]) is not None


def lower(walk: Walk, call: Call, versions: Versions, origin: tuple[str, ...]) -> None:
    """Lowers a node of control flow; one that has no layer becomes a `host` layer."""
    context = walk.context
    mark = context.mark()
    try:
        OPERATORS[call.op_type](walk, call, versions, origin)
    except MixedError:
        if context.around is not None:
            raise  # the condition around this one may take all that follows it into its branches
        context.rewind(mark)
        host.lower(context, call, versions)
    except UnsupportedError:
        context.rewind(mark)
        host.lower(context, call, versions)
    context.call = call


def _check_condition(context: Context, call: Call, name: str) -> None:
    tensor = context.tensor(name)
    if tensor.dtype != "bool":
        raise ModelError(f"{call} has the condition {name!r} of type {tensor}; expected one bool")
    if isinstance(tensor.elements, int) and tensor.elements != 1:
        raise ModelError(f"{call} has the condition {name!r} of type {tensor}; expected one element")


# --- If ----------------------------------------------------------------------------------------------------------------------


def _if(walk: Walk, call: Call, versions: Versions, origin: tuple[str, ...]) -> None:
    context = walk.context
    graphs = [graph_of(call, "then_branch"), graph_of(call, "else_branch")]
    if not call.input(0):
        raise ModelError(f"{call} has no condition")
    _check_condition(context, call, call.inputs[0])
    for name, graph in zip(("then", "else"), graphs, strict=True):
        if len(graph.outputs) != len(call.outputs):
            raise ModelError(f"{call} has {len(call.outputs)} outputs; its {name} branch makes {len(graph.outputs)}")
        if len(graph.inputs):
            raise ModelError(f"{call} has a {name} branch with inputs; branches take values by their names alone")
    content = context.content(call.inputs[0])
    test: Dim | None = None if content is None else content.reshape(-1)[0]
    bodies = [[*body_items(graph, versions, origin), *named_outputs(call.outputs, graph, call)] for graph in graphs]
    if test is not None and not isinstance(test, Size):
        walk.push(bodies[0 if test else 1])
        return
    wanted = [(i, name) for i, name in enumerate(call.outputs) if name]
    try:
        names = tuple(context.unique(f"{name}.branch") for _, name in wanted)
        own = []
        for graph in graphs:
            fresh = dict(zip((i for i, _ in wanted), names, strict=True))
            given = (fresh.get(i, "") for i in range(len(call.outputs)))
            own.append([*body_items(graph, versions, origin), *named_outputs(given, graph, call)])
        branches = _branches(walk, call, test, own, names)
        if not _one_branch(walk, test, branches, bodies):
            _emit_if(context, call, test, branches, [name for _, name in wanted])
    except MixedError:
        _fork(walk, call, test, bodies)


def _fork(walk: Walk, call: Call, test: Dim | None, bodies: Sequence[Sequence[Item]]) -> None:
    """Takes the rest of the graph into both branches."""
    if walk.outputs is None:
        raise MixedError(f"{call} leads to values of which it cannot be told before it runs how many dimensions they have")
    rest = list(walk.items)
    names = tuple(dict.fromkeys(name for name in walk.outputs if not walk.context.knows(name)))
    branches = _branches(walk, call, test, [[*body, *rest] for body in bodies], names)
    if not _one_branch(walk, test, branches, bodies):
        _emit_if(walk.context, call, test, branches, names)
        walk.items.clear()


def _squeeze(walk: Walk, call: Call, versions: Versions, origin: tuple[str, ...]) -> None:
    """A Squeeze that drops all sizes of 1: the walk forks on the first size of which that is not known, and lowers it again."""
    from sartor.ops.lowering import again

    ones = [is_one(d, walk.context.facts) for d in walk.context.shape(call.inputs[0])]
    item = again(call, versions, origin)
    _fork(walk, call, next(one for one in ones if isinstance(one, Size)), [[item], [item]])


def takes(context: Context, call: Call) -> bool:
    """Whether a node is of control flow, or leads to different ranks as one would."""
    if call.domain or call.op_type not in OPERATORS:
        return False
    if call.op_type != "Squeeze":
        return True
    if call.input(1) or "axes" in call.attributes or context.sequence(call.input(0)) is not None:
        return False
    return any(isinstance(is_one(d, context.facts), Size) for d in context.shape(call.inputs[0]))


def _branches(walk: Walk, call: Call, test: Dim | None, bodies: Sequence[Sequence[Item]], names: tuple[str, ...]) -> list[_Branch]:
    """Both branches lowered; of a condition on sizes also one that makes no sense."""
    branches: list[_Branch] = []
    for holds, items in zip((True, False), bodies, strict=True):
        facts = {} if test is None else facts_of(test, holds)
        inner = walk.inner(Context(f"{call.name}.{'then' if holds else 'else'}", walk.context, facts), items, names)
        try:
            inner.run()
            branches.append(_Branch(inner, names))
        except ModelError as error:
            if test is None:
                raise
            branches.append(_Branch(None, names, error))
    if all(branch.walk is None for branch in branches):
        raise branches[0].error or ModelError(f"{call} has no branch that makes sense")
    return branches


def _one_branch(walk: Walk, test: Dim | None, branches: Sequence[_Branch], bodies: Sequence[Sequence[Item]]) -> bool:
    """Goes on with the only branch that makes sense, where there is but one: binding refuses the sizes that lead to the other."""
    lost = [branch.walk is None for branch in branches]
    if test is None or not any(lost):
        return False
    holds = lost[1]
    walk.context.graph.conditions.append((test, int(holds)))
    walk.context.assume(facts_of(test, holds))
    walk.push(bodies[0 if holds else 1])
    return True


def _emit_if(context: Context, call: Call, test: Dim | None, branches: Sequence[_Branch], outputs: Sequence[str]) -> None:
    """The layer for two branches that make values of the same types."""
    kept: list[int] = []
    for index, name in enumerate(outputs):
        if any(branch.is_sequence(index) for branch in branches):
            raise MixedError(f"{call} has the output {name!r}, a sequence whose elements cannot be told before it runs")
        if (content := _common(test, *(branch.content(index) for branch in branches))) is not None:
            context.set_content(name, content, branches[0].tensor(index).dtype)
        else:
            kept.append(index)
    if not kept:
        return
    defines: list[Define] = []
    types: list[Tensor] = []
    for place, index in enumerate(kept):
        types.append(_joined(context, call, test, outputs[index], [(b, b.tensor(index)) for b in branches], place, defines))
    graphs: list[Graph] = []
    for branch in branches:
        assert branch.walk is not None
        branch.walk.outputs = tuple(branch.names[index] for index in kept)
        graphs.append(branch.walk.finish())
    captured = tuple(dict.fromkeys(name for graph in graphs for name in graph.inputs))
    for graph, branch in zip(graphs, branches, strict=True):
        assert branch.walk is not None
        for name in captured:
            branch.walk.context.take(name)
            graph.tensors[name] = branch.walk.context.tensor(name)
        graph.inputs = captured
    for index, tensor in zip(kept, types, strict=True):
        context.graph.tensors[outputs[index]] = tensor
    inputs = (context.value(call.inputs[0]) if test is None else "", *map(context.value, captured))
    attributes: dict[str, Any] = {"then": graphs[0], "else": graphs[1], "defines": defines}
    if test is not None:
        attributes["test"] = (test,)
    context.append(Layer(call.name, "if", inputs, tuple(outputs[i] for i in kept), attributes, None, (), (call.name,)))


def _common(test: Dim | None, a: Array | None, b: Array | None) -> Array | None:
    """The contents of a result whichever branch is taken, where they can be said."""
    if a is None or b is None or a.shape != b.shape:
        return None
    if all(x == y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)):
        return a
    if test is None or any(isinstance(x, float | Ratio) for x in (*a.reshape(-1), *b.reshape(-1))):
        return None
    out = a.copy()
    out.reshape(-1)[:] = [x if x == y else test * x + (1 - test) * y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return out


def _joined(context: Context, call: Call, test: Dim | None, name: str, made: Sequence[tuple[_Branch, Tensor]], place: int,
            defines: list[Define]) -> Tensor:
    """The type of a result that each branch makes in its own way."""
    (_, a), (_, b) = made
    if a.dtype != b.dtype:
        raise ModelError(f"{call} gives its output {name!r} the type {a} in one branch and {b} in the other")
    if len(a.shape) != len(b.shape):
        raise MixedError(f"{call} gives its output {name!r} the type {a} in one branch and {b} in the other: how many dimensions "
                         "it has cannot be told before it runs")
    hidden = {s for branch, _ in made if branch.walk for s in branch.walk.context.created}
    shape: list[Dim] = []
    for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
        own = bool(hidden & (symbols(x) | symbols(y)))
        if x == y and not own:
            shape.append(x)
        elif test is not None and not own:
            shape.append(test * x + (1 - test) * y)
        else:
            shape.append(_defined(context, name, place, axis, defines))
    return Tensor(a.dtype, tuple(shape))


def _defined(context: Context, name: str, place: int, axis: int, defines: list[Define]) -> Dim:
    """A fresh symbol for a size that only the layer's run tells."""
    fresh = context.symbol(f"{name}.{axis}")
    defines.append((str(fresh), place, axis))
    return fresh


# --- Loop --------------------------------------------------------------------------------------------------------------------


def _loop(walk: Walk, call: Call, versions: Versions, origin: tuple[str, ...]) -> None:
    context, graph = walk.context, graph_of(call, "body")
    carried = [context.aliases.get(v, v) for v in call.inputs[2:]]
    if "" in carried:
        raise ModelError(f"{call} lacks the value of a carried variable")
    names = [v.name or "" for v in graph.inputs]
    if len(names) != len(carried) + 2:
        raise ModelError(f"{call} carries {len(carried)} values; its body has {len(names)} inputs, expected {len(carried) + 2}")
    if not len(carried) < len(graph.outputs) or len(graph.outputs) - 1 != len(call.outputs):
        raise ModelError(f"{call} carries {len(carried)} values and has {len(call.outputs)} outputs; its body makes "
                         f"{len(graph.outputs)} values, expected {len(call.outputs) + 1}")
    if call.input(0) and context.dtype(call.inputs[0]) not in ("i64", "i32"):
        raise ModelError(f"{call} has the trip count {call.inputs[0]!r} of type {context.tensor(call.inputs[0])}; expected i64")
    if call.input(1):
        _check_condition(context, call, call.inputs[1])
    begins = _known(context, call.input(1))
    scalars = [Tensor(dtype, _single(value)) for dtype, value in zip(("i64", "bool"), graph.inputs[:2], strict=True)]
    body, types, results, hidden = _fixpoint(walk, call, graph, (versions, origin), (scalars, [context.tensor(v) for v in carried]))
    inner = body.context
    _check_condition(inner, call, body.outputs[0] if body.outputs else "")
    goes_on = inner.aliases.get(body.outputs[0] if body.outputs else "", "")
    ends = goes_on != names[1] and _known(inner, goes_on) is not True
    trip = _trip(context, call)
    if not ends and begins and ((trip is None and not call.input(0)) or (isinstance(trip, int) and trip >= _FOREVER)):
        raise ModelError(f"{call} never ends: it has no trip count, and its condition always holds")
    count = maximum(trip, 0) if trip is not None and not ends and begins else None
    defines: list[Define] = []
    made: list[Tensor] = []
    for place, (name, tensor) in enumerate(zip(call.outputs, results, strict=True)):
        shape = list(types[place].shape) if place < len(carried) else [count, *tensor.shape]
        made.append(Tensor(tensor.dtype, tuple(
            d if d is not None and not hidden & symbols(d) else _defined(context, name or call.name, place, axis, defines)
            for axis, d in enumerate(shape))))
    layer_graph = body.finish(tuple(names))
    inputs = (_read(context, call.input(0), "i64"), context.value(call.inputs[1]) if call.input(1) else "",
              *map(context.value, carried), *map(context.value, layer_graph.inputs[len(names):]))
    attributes = {"body": layer_graph, "carried": len(carried), "while": ends, "defines": defines}
    _emit(context, call, "loop", inputs, made, attributes)


def _emit(context: Context, call: Call, kind: str, inputs: tuple[str, ...], types: Sequence[Tensor], attributes: dict[str, Any]) -> None:
    outputs = [name or context.unique(f"{call.name}.unused") for name in call.outputs]
    context.graph.tensors.update(zip(outputs, types, strict=True))
    context.append(Layer(call.name, kind, inputs, tuple(outputs), attributes, None, (), (call.name,)))


def _single(value: onnx_ir.Value) -> tuple[int, ...]:
    """The shape a body declares for a scalar it is given: of no dimension, or of one element."""
    return (1,) if value.shape is not None and len(value.shape) == 1 else ()


def _known(context: Context, name: str) -> bool | None:
    """A condition where it is known; an absent one holds."""
    if not name:
        return True
    content = context.content(name)
    first = None if content is None else content.reshape(-1)[0]
    return None if first is None or isinstance(first, Size) else bool(first)


def _trip(context: Context, call: Call) -> Dim | None:
    dims = context.dims(call.inputs[0]) if call.input(0) else None
    return dims[0] if dims else None


def _read(context: Context, name: str, dtype: str) -> str:
    """The name to read a value by, as elements of a type; "" for an absent one."""
    if not name or context.dtype(name) == dtype:
        return context.value(name) if name else ""
    return context.elementwise([name], lambda e, x: e("cast", x, dtype=dtype), context.shape(name), suffix="count")


def _fixpoint(
    walk: Walk, call: Call, graph: onnx_ir.Graph, source: tuple[Versions, tuple[str, ...]], given: tuple[list[Tensor], list[Tensor]],
    after: Sequence[Tensor] = (), skip: int = 1,
) -> tuple[Walk, list[Tensor], list[Tensor], set[str]]:
    """The body lowered for types of carried values that it keeps; with those types, those of its outputs after `skip`, and its symbols.

    `given` are the types of the body's inputs before the carried values, and of the values before the first iteration; `after` those
    of the inputs after them.
    """
    before, types, changing = given[0], list(given[1]), set[str]()
    names = [v.name or "" for v in graph.inputs]
    for _ in range(_ROUNDS):
        context = Context(f"{call.name}.body", walk.context)
        for name, tensor in zip(names, (*before, *types, *after), strict=True):
            context.graph.tensors[name] = tensor
            context.reserve(name)
        outputs = tuple(walk.context.unique(f"{call.name}.{name}") for name in output_names(graph))
        inner = walk.inner(context, [*body_items(graph, *source), *named_outputs(outputs, graph, call)], outputs)
        inner.run()
        results = [context.tensor(v) for v in outputs[skip:]]
        if not _generalized(walk.context, call, names[len(before):], types, results, changing):
            return inner, types, results, changing | context.created
    raise UnsupportedError(f"{call} carries values whose sizes never settle")


def _generalized(context: Context, call: Call, names: Sequence[str], types: list[Tensor], results: Sequence[Tensor],
                 changing: set[str]) -> bool:
    """Makes symbols (`changing`) of the sizes that an iteration changes; returns whether there were new ones."""
    known = len(changing)
    for index, (old, new) in enumerate(zip(types, results, strict=False)):
        if old.dtype != new.dtype:
            raise ModelError(f"{call} carries the value {names[index]!r} as {old} into an iteration and as {new} out of it")
        if len(old.shape) != len(new.shape):
            raise MixedError(f"{call} carries the value {names[index]!r} as {old} into an iteration and as {new} out of it: how many "
                             "dimensions it has cannot be told before it runs")
        shape = list(old.shape)
        for axis, (x, y) in enumerate(zip(old.shape, new.shape, strict=True)):
            if x != y and str(x) not in changing:
                shape[axis] = fresh = context.symbol(f"{call.name}.{names[index]}.{axis}")
                changing.add(str(fresh))
        types[index] = Tensor(old.dtype, tuple(shape))
    return len(changing) > known


# --- Scan --------------------------------------------------------------------------------------------------------------------


def _scan(walk: Walk, call: Call, versions: Versions, origin: tuple[str, ...]) -> None:
    context, graph = walk.context, graph_of(call, "body")
    batched = call.version < 9
    reads = [context.aliases.get(v, v) for v in (call.inputs[1:] if batched else call.inputs)]
    scanned = int(call["num_scan_inputs"])
    states = len(reads) - scanned
    if states < 0 or scanned < 1 or "" in reads:
        raise ModelError(f"{call} has {len(reads)} inputs, of which {scanned} are to be scanned")
    if len(graph.inputs) != len(reads):
        raise ModelError(f"{call} has {len(reads)} inputs; its body has {len(graph.inputs)}")
    if len(graph.outputs) != len(call.outputs) or len(graph.outputs) < states:
        raise ModelError(f"{call} has {len(call.outputs)} outputs and {states} states; its body makes {len(graph.outputs)} values")
    stacks = len(call.outputs) - states
    parts = _Parts(call, graph, (versions, origin), states, scanned,
                   _flags(call, "directions" if batched else "scan_input_directions", scanned),
                   _flags(call, "" if batched else "scan_output_directions", stacks))
    if batched:
        _batches(walk, parts, call.input(0), reads)
        return
    axes = _axes(call, "scan_input_axes", [len(context.shape(v)) for v in reads[states:]])
    moved = [context.transpose(v, (a, *(i for i in range(len(context.shape(v))) if i != a)), suffix="scanned")
             for v, a in zip(reads[states:], axes, strict=True)]
    inputs, types, attributes = _scan_layer(walk, parts, "", [*reads[:states], *moved])
    axes = _axes(call, "scan_output_axes", [len(t.shape) for t in types[states:]])
    outputs = [name or context.unique(f"{call.name}.unused") for name in call.outputs]
    made = [name if k < states or not axes[k - states] else context.unique(f"{name}.stack") for k, name in enumerate(outputs)]
    context.graph.tensors.update(zip(made, types, strict=True))
    context.append(Layer(call.name, "scan", inputs, tuple(made), attributes, None, (), (call.name,)))
    for name, stack, axis in zip(outputs[states:], made[states:], axes, strict=True):
        if axis:
            rank = len(context.shape(stack))
            context.transpose(stack, (*range(1, axis + 1), 0, *range(axis + 1, rank)), output=name)


@dataclass
class _Parts:
    """A Scan as the model has it."""

    call: Call
    graph: onnx_ir.Graph
    source: tuple[Versions, tuple[str, ...]]
    states: int
    scanned: int
    reverse: tuple[bool, ...]
    reverse_outputs: tuple[bool, ...]


def _flags(call: Call, attribute: str, count: int) -> tuple[bool, ...]:
    values = call.get(attribute) or [0] * count
    if len(values) != count:
        raise ModelError(f"{call} has {len(values)} {attribute}; expected {count}")
    return tuple(bool(v) for v in values)


def _axes(call: Call, attribute: str, ranks: Sequence[int]) -> list[int]:
    axes = call.get(attribute) or [0] * len(ranks)
    if len(axes) != len(ranks) or any(not -rank <= a < rank for a, rank in zip(axes, ranks, strict=True)):
        raise ModelError(f"{call} has {attribute} {list(axes)}, which do not fit values of {', '.join(map(str, ranks))} dimensions")
    return [a % rank for a, rank in zip(axes, ranks, strict=True)]


def _scan_layer(walk: Walk, parts: _Parts, count: str, reads: Sequence[str]) -> tuple[tuple[str, ...], list[Tensor], dict[str, Any]]:
    """Inputs, types of outputs and attributes of a scan along first dimensions."""
    context, call, states = walk.context, parts.call, parts.states
    tensors = [context.tensor(v) for v in reads]
    if any(not t.shape for t in tensors[states:]):
        raise ModelError(f"{call} is to scan a value of no dimensions")
    length = tensors[states].shape[0]
    for tensor in tensors[states + 1:]:
        length = context.same(length, tensor.shape[0], "the scanned dimension")
    elements = [Tensor(t.dtype, t.shape[1:]) for t in tensors[states:]]
    body, types, results, hidden = _fixpoint(walk, call, parts.graph, parts.source, ([], tensors[:states]), elements, 0)
    defines: list[Define] = []
    made: list[Tensor] = []
    for place, tensor in enumerate(results):
        shape = types[place].shape if place < states else (length, *tensor.shape)
        made.append(Tensor(tensor.dtype, tuple(
            _defined(context, call.outputs[place] or call.name, place, axis, defines) if hidden & symbols(d) else d
            for axis, d in enumerate(shape))))
    names = tuple(v.name or "" for v in parts.graph.inputs)
    graph = body.finish(names)
    inputs = (_read(context, count, "i64"), *map(context.value, reads), *map(context.value, graph.inputs[len(names):]))
    return inputs, made, {"body": graph, "states": states, "scanned": parts.scanned, "reverse": parts.reverse,
                          "reverse_outputs": parts.reverse_outputs, "defines": defines}


def _batches(walk: Walk, parts: _Parts, lengths: str, reads: Sequence[str]) -> None:
    """The Scan of opset 8, which has a batch dimension before all others: a scan over the batch whose body is a scan."""
    context, call = walk.context, parts.call
    every = ([lengths] if lengths else []) + list(reads)
    if any(not context.shape(v) for v in every):
        raise ModelError(f"{call} has an input without a batch dimension")
    batch = context.shape(every[0])[0]
    for v in every[1:]:
        batch = context.same(batch, context.shape(v)[0], "the batch dimension")
    around = Context(f"{call.name}.batch", context)
    around.call = call
    names = []
    for v in every:
        names.append(around.unique(f"{call.name}.{v}.element"))
        around.graph.tensors[names[-1]] = Tensor(context.dtype(v), context.shape(v)[1:])
    results = tuple(around.unique(f"{call.name}.{name}.element") for name in call.outputs)
    inner = walk.inner(around, [], results)
    own = names[1:] if lengths else names
    inputs, types, attributes = _scan_layer(inner, parts, names[0] if lengths else "", own)
    if attributes["defines"]:
        raise UnsupportedError(f"{call} has results whose sizes only its run tells")
    around.graph.tensors.update(zip(results, types, strict=True))
    around.append(Layer(around.unique_layer(f"{call.name}.sequence"), "scan", inputs, results, attributes, None, (), (call.name,)))
    graph = inner.finish(tuple(names))
    reads = ("", *map(context.value, every), *map(context.value, graph.inputs[len(names):]))
    _emit(context, call, "scan", tuple(reads), [Tensor(t.dtype, (batch, *t.shape)) for t in types], {
        "body": graph, "states": 0, "scanned": len(every), "reverse": (False,) * len(every),
        "reverse_outputs": (False,) * len(results), "defines": []})


Lower: TypeAlias = "Callable[[Walk, Call, Versions, tuple[str, ...]], None]"
OPERATORS: dict[str, Lower] = {"If": _if, "Loop": _loop, "Scan": _scan, "Squeeze": _squeeze}
