"""Operators whose results have as many elements as the data decides: they are counted first, then picked."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import emit_gather, strides_of
from sartor.ops.movement import emit_slice
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, product


def true_places(context: Context, flags: str) -> str:
    """The places of the true elements of a bool vector: counts them, makes the count known, and notes the places."""
    length, = context.shape(flags)
    ones = context.elementwise([flags], lambda e, x: e("cast", x, dtype="i64"), (length,), suffix="ones")
    total = context.layer("reduce", [ones], Tensor("i64", (1,)), suffix="count", op="sum", axes=(0,), select_last=False)
    count, = context.bind("sizes", [total], 1)
    return context.layer("nonzero", [flags], Tensor("i64", (count,)), suffix="places")


def _flags(context: Context, x: str) -> str:
    """A flat vector that says which elements are not zero."""
    tensor = context.tensor(x)
    if tensor.dtype == "string":
        raise DeclinedError(f"{context.call} has an input of type {tensor}")
    flat = context.reshape(x, (tensor.elements,), suffix="flat")
    if tensor.dtype == "bool":
        return flat
    zero: float | int = 0 if tensor.dtype[0] in "iu" else 0.0
    return context.elementwise([flat], lambda e, v: e("ne", v, e.constant(zero, tensor.dtype)), (tensor.elements,), suffix="flags")


def _column(context: Context, dims: list[Dim], base: str) -> str:
    """A column of sizes."""
    content = np.empty((len(dims), 1), object)
    content[:, 0] = dims
    name = context.unique(f"{context.call.output(0)}.{base}")
    context.set_content(name, content)
    return name


def _coordinates(e: ExpressionBuilder, place: int, stride: int, dim: int) -> int:
    return e("mod", e("div", place, stride), dim)


def _non_zero(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = context.shape(x)
    places = true_places(context, _flags(context, x))
    count, = context.shape(places)
    if not shape:  # a scalar has no coordinates
        context.elementwise([places], lambda e, p: p, (0, count), output=call.outputs[0])
        return
    if len(shape) == 1:
        context.reshape(places, (1, count), output=call.outputs[0])
        return
    operands = [places, _column(context, strides_of(shape), "strides"), _column(context, list(shape), "dims")]
    context.elementwise(operands, _coordinates, (len(shape), count), output=call.outputs[0])


def _compress(context: Context, call: Call) -> None:
    """The elements, or slices along an axis, that a vector of conditions picks; what it is too short for is left out."""
    x, condition = call.inputs
    shape = context.shape(x)
    axis = call.get("axis")
    if context.dtype(x) == "string" or len(context.shape(condition)) != 1:
        raise DeclinedError(f"{call} has inputs of the types {context.tensor(x)} and {context.tensor(condition)}")
    if axis is None:
        x, place = context.reshape(x, (product(shape),), suffix="flat"), 0
    else:
        place = axis_of(axis, len(shape), call)
    context.require_at_least(context.shape(x)[place], context.shape(condition)[0])
    emit_gather(context, x, true_places(context, condition), place, call.outputs[0])


# --- unique ----------------------------------------------------------------------------------------------------------------


def _unique(context: Context, call: Call) -> None:
    """Rows in ascending order; where one differs from the one before it a new group begins, whose first row stands for it."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    axis = call.get("axis")
    if tensor.dtype == "string":
        raise DeclinedError(f"{call} has an input of type {tensor}")
    if axis is None:
        whole = context.reshape(x, (tensor.elements,), suffix="flat")
        rest: tuple[Dim, ...] = ()
        perm: list[int] = []
    else:
        place = axis_of(axis, len(tensor.shape), call)
        perm = [place, *(i for i in range(len(tensor.shape)) if i != place)]
        whole = context.transpose(x, perm, suffix="turned")
        rest = context.shape(whole)[1:]
    count = context.shape(whole)[0]
    rows = context.reshape(whole, (count, product(rest)), suffix="rows")
    if tensor.dtype == "bool":
        rows = context.elementwise([rows], lambda e, v: e("cast", v, dtype="u8"), context.shape(rows), suffix="bytes")
    order = context.layer("order", [rows], Tensor("i64", (count,)))
    starts = _group_starts(context, rows, order, axis is None)
    firsts = true_places(context, starts)  # places in the order at which groups begin
    groups, = context.shape(firsts)
    first = emit_gather(context, order, firsts, 0, None)
    rank = None if call.get("sorted", 1) else context.layer("order", [context.reshape(first, (groups, 1))], Tensor("i64", (groups,)))
    chosen = first if rank is None else emit_gather(context, first, rank, 0, None)
    if call.output(0):
        picked = emit_gather(context, whole, chosen, 0, call.outputs[0] if axis is None or perm == sorted(perm) else None)
        if picked != call.outputs[0]:
            context.transpose(picked, [perm.index(i) for i in range(len(perm))], output=call.outputs[0])
    if call.output(1):
        context.copy(chosen, call.outputs[1])
    if call.output(2) or call.output(3):
        _membership(context, call, order, starts, rank, groups)


def _group_starts(context: Context, rows: str, order: str, equal_nan: bool) -> str:
    """Which rows, in their order, differ from the one before; the first one does."""
    count, columns = context.shape(rows)
    dtype = context.dtype(rows)
    ordered = emit_gather(context, rows, order, 0, None)
    before = context.elementwise([context.arange(count)], lambda e, i: e("max", e("sub", i, e.constant(1, "i64")), e.constant(0, "i64")),
                                 (count,), suffix="before")
    previous = emit_gather(context, ordered, before, 0, None)

    def differs(e: ExpressionBuilder, a: int, b: int) -> int:
        other = e("ne", a, b)
        if equal_nan and dtype[0] in "fb":
            other = e("and", other, e("or", e("eq", a, a), e("eq", b, b)))
        return e("cast", other, dtype="i64")

    apart = context.elementwise([ordered, previous], differs, (count, columns), suffix="apart")
    most = context.layer("reduce", [apart], Tensor("i64", (count, 1)), suffix="differs", op="sum", axes=(1,), select_last=False)
    index = context.reshape(context.arange(count), (count, 1))

    def begins(e: ExpressionBuilder, different: int, place: int) -> int:
        zero = e.constant(0, "i64")
        return e("or", e("ne", different, zero), e("eq", place, zero))

    starts = context.elementwise([most, index], begins, (count, 1), suffix="starts")
    return context.reshape(starts, (count,))


def _membership(context: Context, call: Call, order: str, starts: str, rank: str | None, groups: Dim) -> None:
    """Which group each row belongs to, and how many rows each group has."""
    count, = context.shape(order)
    ones = context.elementwise([starts], lambda e, x: e("cast", x, dtype="i64"), (count,), suffix="steps")
    running = context.layer("cumulative", [ones], Tensor("i64", (count,)), suffix="running", op="sum", axis=0,
                            exclusive=False, reverse=False)
    group = context.elementwise([running], lambda e, x: e("sub", x, e.constant(1, "i64")), (count,), suffix="group")
    if rank is not None:  # the group's number among those in order of their first row
        number = _scattered(context, rank, context.arange(groups), groups, "none", "number")
        group = emit_gather(context, number, group, 0, None)
    if call.output(2):
        context.copy(_scattered(context, order, group, count, "none", "inverse"), call.outputs[2])
    if call.output(3):
        one = context.new_constant(np.array(1, np.int64), f"{call.outputs[3]}.one")
        each = context.elementwise([one], lambda e, x: x, (count,), suffix="each")
        context.copy(_scattered(context, group, each, groups, "add", "counts"), call.outputs[3])


def _scattered(context: Context, places: str, updates: str, length: Dim, op: str, suffix: str) -> str:
    """Zeros with numbers put, or added, at places."""
    zero = context.new_constant(np.array(0, np.int64), f"{context.call.output(0)}.zero")
    count, = context.shape(places)
    reads = [context.elementwise([zero], lambda e, x: x, (length, 1), suffix="zeros"), places, context.reshape(updates, (count, 1))]
    return context.reshape(context.layer("scatter", reads, Tensor("i64", (length, 1)), suffix=suffix, op=op), (length,))


# --- boxes -----------------------------------------------------------------------------------------------------------------


def _non_max_suppression(context: Context, call: Call) -> None:
    """For each class of each batch the best boxes, as rows of batch, class and box."""
    boxes, scores = call.inputs[:2]
    shape = context.shape(scores)
    if len(context.shape(boxes)) != 3 or len(shape) != 3 or context.shape(boxes)[2] != 4:
        raise ModelError(f"{call} has boxes and scores of the types {context.tensor(boxes)} and {context.tensor(scores)}")
    batches = context.same(context.shape(boxes)[0], shape[0], "the batch")
    count = context.same(context.shape(boxes)[1], shape[2], "the boxes")
    limits = [_limit(context, call, place, default, dtype) for place, default, dtype in
              ((2, 0, "i64"), (3, 0.0, "f32"), (4, -np.inf, "f32"))]
    kept = context.layer("suppress", [boxes, scores, *limits], Tensor("i64", (batches, shape[1], count)),
                         center=bool(call.get("center_point_box", 0)))
    flat = context.reshape(kept, (product((batches, shape[1], count)),), suffix="flat")
    chosen = context.elementwise([flat], lambda e, x: e("ge", x, e.constant(0, "i64")), context.shape(flat), suffix="chosen")
    places = true_places(context, chosen)
    found, = context.shape(places)
    box = context.reshape(emit_gather(context, flat, places, 0, None), (found, 1))
    line = context.reshape(places, (found, 1))

    def batch(e: ExpressionBuilder, place: int, classes: int, length: int) -> int:
        return e("div", e("div", place, length), classes)

    def kind(e: ExpressionBuilder, place: int, classes: int, length: int) -> int:
        return e("mod", e("div", place, length), classes)

    sizes = [context.size_value(shape[1]), context.size_value(count)]
    columns = [context.elementwise([line, *sizes], build, (found, 1), suffix=name) for build, name in ((batch, "batch"), (kind, "class"))]
    context.layer("concat", [*columns, box], Tensor("i64", (found, 3)), output=call.outputs[0], axis=1)


def _limit(context: Context, call: Call, place: int, default: Any, dtype: str) -> str:
    """An optional input as a vector of one element."""
    if not call.input(place) or 0 in context.shape(call.input(place)):
        kind = np.int64 if dtype == "i64" else np.float32
        return context.new_constant(np.array([default], kind), f"{call.outputs[0]}.default")
    if context.tensor(call.inputs[place]).elements == 1:
        return context.reshape(call.inputs[place], (1,))
    rank = len(context.shape(call.inputs[place]))
    return context.reshape(emit_slice(context, call.inputs[place], [0] * rank, [1] * rank, [1] * rank), (1,))


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Compress"): _compress,
    ("", "NonMaxSuppression"): _non_max_suppression,
    ("", "NonZero"): _non_zero,
    ("", "Unique"): _unique,
}
