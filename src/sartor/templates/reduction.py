"""What reductions share: dims joined into kept and reduced groups, and accumulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sartor.graph.layer import Tensor
from sartor.loops.language import I64, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, product
from sartor.templates.slots import Slots


@dataclass(frozen=True)
class Group:
    """Neighbouring dims, all kept or all reduced: how many steps, and rows of the input between two steps."""

    size: Dim
    stride: Dim
    reduced: bool


@dataclass(frozen=True)
class Reduction:
    """The groups of the input's rows, innermost first, and whether the columns (the last dim) are reduced."""

    groups: tuple[Group, ...]
    columns: Dim
    along_columns: bool

    @property
    def kept(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if not g.reduced)

    @property
    def reduced(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.reduced)

    @property
    def count(self) -> Dim:
        """How many elements make one of the output."""
        return product(g.size for g in self.reduced) * (self.columns if self.along_columns else 1)

    @property
    def rows(self) -> Dim:
        """Rows of the output."""
        return product(g.size for g in self.kept)


def reduction_of(tensor: Tensor, axes: Sequence[int]) -> Reduction:
    """Joins the dims of a reduction of `tensor` over `axes`; dims of size 1 disappear."""
    shape = tensor.shape or (1,)
    rank = len(shape)
    chosen = {a % rank for a in axes} if tensor.shape else set()
    along = rank - 1 in chosen
    groups: list[Group] = []
    stride: Dim = 1
    for place in range(rank - 2, -1, -1):
        size, reduced = shape[place], place in chosen
        if size == 1:
            continue
        if groups and groups[-1].reduced == reduced:
            groups[-1] = Group(groups[-1].size * size, groups[-1].stride, reduced)
        else:
            groups.append(Group(size, stride, reduced))
        stride = stride * size
    if shape[-1] == 1:
        along = True  # reducing one element keeps it
    return Reduction(tuple(groups), shape[-1], along)


class KeptRows:
    """Finds where a row of the output begins in the input, in rows."""

    def __init__(self, slots: Slots, reduction: Reduction) -> None:
        kept = reduction.kept
        self.sizes = [slots.known("kept", g.size) for g in kept[:-1]]
        self.strides = [1 if isinstance(g.stride, int) and g.stride == 1 else slots.known("kept_stride", g.stride) for g in kept]

    def start(self, row: Value) -> Number:
        """Rows of the input before the first one that output row `row` takes."""
        rest, total = row, None
        for place, stride in enumerate(self.strides):
            index = rest
            if place < len(self.sizes):
                quotient = rest // self.sizes[place]
                index = rest - quotient * self.sizes[place]
                rest = quotient
            part = index if isinstance(stride, int) and stride == 1 else index * stride
            total = part if total is None else part + total
        return 0 if total is None else total


# --- accumulators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accumulator:
    """One way to combine elements: a start, a step that takes an element in, and how two partial results are combined."""

    start: Callable[[Builder, Type], Value]
    step: Callable[[Builder, Value, Value], Value]
    combine: Callable[[Builder, Value, Value], Value]


def _zero(b: Builder, kind: Type) -> Value:
    return b.constant(0, kind)


def _add(b: Builder, total: Value, x: Value) -> Value:
    return b.binary("add", total, x)


def _magnitude(b: Builder, x: Value) -> Value:
    return b.unary("abs", x) if x.type.is_float or x.type.scalar.startswith("i") else x


def _smallest(b: Builder, kind: Type) -> Value:
    """Below or equal to every number of the type."""
    if kind.is_float or kind.scalar == "bool":
        return b.constant(float("-inf") if kind.is_float else False, kind)
    bits = 8 * Type(kind.scalar).bytes
    return b.constant(0 if kind.scalar.startswith("u") else -(1 << (bits - 1)), kind)


def _largest(b: Builder, kind: Type) -> Value:
    if kind.is_float or kind.scalar == "bool":
        return b.constant(float("inf") if kind.is_float else True, kind)
    bits = 8 * Type(kind.scalar).bytes
    return b.constant((1 << bits) - 1 if kind.scalar.startswith("u") else (1 << (bits - 1)) - 1, kind)


def extreme(b: Builder, code: str, best: Value, x: Value) -> Value:
    """min or max where a NaN, once met, stays."""
    if x.type.scalar == "bool":
        return b.binary("or" if code == "max" else "and", best, x)
    found = b.binary(code, best, x)
    return b.select(best.ne(best), best, found) if x.type.is_float else found


def accumulator(op: str) -> Accumulator:
    """The accumulator of a reduction `op` of layer.py (not of the two-pass and arg ones), or of `peak`, a max that passes over NaNs."""
    if op == "peak":
        def higher(b: Builder, best: Value, x: Value) -> Value:
            return b.maximum(x, best)

        return Accumulator(_smallest, higher, higher)
    if op in ("max", "min"):
        def step(b: Builder, best: Value, x: Value) -> Value:
            return extreme(b, op, best, x)

        return Accumulator(_smallest if op == "max" else _largest, step, step)
    if op == "prod":
        def multiply(b: Builder, total: Value, x: Value) -> Value:
            return total * x

        return Accumulator(lambda b, kind: b.constant(1, kind), multiply, multiply)
    if op == "l1":
        return Accumulator(_zero, lambda b, total, x: total + _magnitude(b, x), _add)
    if op in ("l2", "sum_square"):
        return Accumulator(_zero, lambda b, total, x: b.fma(x, x, total), _add)
    return Accumulator(_zero, _add, _add)


def lane_reduce(b: Builder, how: Accumulator, vector: Value) -> Value:
    """Combines the lanes of a vector pairwise, halves first."""
    while vector.type.lanes > 1:
        half = vector.type.lanes // 2
        low, high = b.shuffle(vector, vector, range(half)), b.shuffle(vector, vector, range(half, 2 * half))
        if vector.type.lanes % 2:
            return how.combine(b, lane_reduce(b, how, how.combine(b, low, high)), b.extract(vector, vector.type.lanes - 1))
        vector = how.combine(b, low, high)
    return vector


# --- loops ----------------------------------------------------------------------------------------------------------------

Fetch: TypeAlias = Callable[[Value, int, "Value | None"], Value]
"""The elements of one row from a column on: (column, lanes, mask) -> vector."""


class RowTotal:
    """One result from many elements that lie along columns: vectors of accumulators, combined at the end.

    `take` may be emitted inside loops over rows; the accumulators live through them.
    """

    def __init__(self, b: Builder, how: Accumulator, scalar: str, lanes: int, *, masked: bool, vectors: int = 4) -> None:
        self.b, self.how, self.lanes, self.masked = b, how, lanes, masked
        kind = Type(scalar, lanes)
        self.totals = [b.variable("total", how.start(b, kind)) for _ in range(vectors if lanes > 1 else 1)]
        self.rest = None if masked or lanes == 1 else b.variable("rest", how.start(b, Type(scalar)))

    def take(self, start: Number, stop: Number, fetch: Fetch) -> None:
        """Emits the loops that take in the columns start...stop of one row."""
        b, lanes, how = self.b, self.lanes, self.how
        length = stop if isinstance(start, int) and start == 0 else stop - start
        wide = lanes * len(self.totals)
        first = _round_down(length, wide)
        second = _round_down(length, lanes)
        if len(self.totals) > 1:
            with b.loop("column", start, _plus(first, start), wide) as column:
                for place, total in enumerate(self.totals):
                    total.set(how.step(b, total.get(), fetch(column + place * lanes, lanes, None)))
        total = self.totals[0]
        with b.loop("column", _plus(first, start), _plus(second, start), lanes) as column:
            total.set(how.step(b, total.get(), fetch(column, lanes, None)))
        if lanes == 1 or (isinstance(length, int) and length == second):
            return
        edge = _plus(second, start)
        if self.rest is not None:
            rest = self.rest
            with b.loop("column", edge, stop) as column:
                rest.set(how.step(b, rest.get(), fetch(column, 1, None)))
            return
        at = edge if isinstance(edge, Value) else b.constant(edge, I64)
        left = stop - at
        with b.branch(left > 0):
            mask = b.first_lanes(left, lanes)
            x = fetch(at, lanes, mask)
            total.set(b.select(mask, how.step(b, total.get(), x), total.get()))

    def result(self) -> Value:
        """The total, a scalar."""
        b, how = self.b, self.how
        values = [t.get() for t in self.totals]
        while len(values) > 1:
            values = [how.combine(b, *values[i:i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
        total = lane_reduce(b, how, values[0])
        return total if self.rest is None else how.combine(b, total, self.rest.get())


def _round_down(length: Number, step: int) -> Number:
    """The largest multiple of `step` (a power of two) that is not above `length`."""
    if isinstance(length, Value):
        return length & -step
    return int(length) // step * step


def _plus(a: Number, b: Number) -> Number:
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    return a + b


Nest: TypeAlias = Sequence[tuple[Number, Number, Number]]
"""Loops over rows, outermost first: first index, end and stride in rows."""


def nest(b: Builder, loops: Nest, row: Number, body: Callable[[Number], None]) -> None:
    """Emits nested loops over rows from `row` on; `body` gets the row."""
    if not loops:
        body(row)
        return
    (first, end, stride), *inner = loops
    with b.loop("r", first, end) as r:
        step = r if isinstance(stride, int) and stride == 1 else r * stride
        nest(b, inner, _plus(step, row), body)


def tile_totals(b: Builder, how: Accumulator, kind: Type, vectors: int, loops: Nest, row: Number,
                fetch: Callable[[Number, int], Value], chunk: int = 256) -> list[Value]:
    """Totals over rows for `vectors` neighbouring vectors of columns; `fetch(row, vector)` gives their elements.

    The innermost loop is cut in chunks whose totals are added up, which keeps the rounding error of long sums small.
    """
    totals = [b.variable("total", how.start(b, kind)) for _ in range(vectors)]
    if not loops:
        return [how.step(b, t.get(), fetch(row, v)) for v, t in enumerate(totals)]
    *outer, (first, end, stride) = loops

    def inner(base: Number) -> None:
        with b.loop("chunk", first, end, chunk) as start:
            parts = [b.variable("part", how.start(b, kind)) for _ in range(vectors)]
            with b.loop("r", start, b.minimum(start + chunk, end)) as r:
                at = _plus(r if isinstance(stride, int) and stride == 1 else r * stride, base)
                for v, part in enumerate(parts):
                    part.set(how.step(b, part.get(), fetch(at, v)))
            for total, part in zip(totals, parts, strict=True):
                total.set(how.combine(b, total.get(), part.get()))

    nest(b, outer, row, inner)
    return [t.get() for t in totals]


Tile: TypeAlias = Callable[[Value, int, int, "Value | None"], None]
"""Code for `vectors` vectors of `lanes` columns from a column on: (column, vectors, lanes, mask)."""


def tiles(b: Builder, start: Number, stop: Number, lanes: int, vectors: int, body: Tile, *, masked: bool) -> None:
    """Emits `body` for all columns start...stop: tiles of several vectors, single vectors, then a masked one or scalars."""
    length = stop if isinstance(start, int) and start == 0 else stop - start
    first: Number = _round_down(length, lanes * vectors) if vectors > 1 else 0
    second = _round_down(length, lanes)
    if not (isinstance(first, int) and first == 0):
        with b.loop("column", start, _plus(first, start), lanes * vectors) as column:
            body(column, vectors, lanes, None)
    if not (isinstance(length, int) and first == second):
        with b.loop("column", _plus(first, start), _plus(second, start), lanes) as column:
            body(column, 1, lanes, None)
    if lanes == 1 or (isinstance(length, int) and length == second):
        return
    edge = _plus(second, start)
    if not masked:
        with b.loop("column", edge, stop) as column:
            body(column, 1, 1, None)
        return
    at = edge if isinstance(edge, Value) else b.constant(edge, I64)
    left = stop - at
    with b.branch(left > 0):
        body(at, 1, lanes, b.first_lanes(left, lanes))


def blocks(b: Builder, columns: Number, width: int, body: Callable[[Value, Number, Number], None]) -> None:
    """Walks an extent of rows x ceil(columns / width) blocks: `body(row, first column, end of columns)` for what lies in one row."""
    if isinstance(columns, int) and columns <= width:
        with b.loop("row", b.begin, b.end) as row:
            body(row, 0, columns)
        return
    total = columns if isinstance(columns, Value) else b.constant(columns, I64)
    count = (total + (width - 1)) // width
    with b.branch(b.begin < b.end):
        at = b.variable("at", b.begin)
        line = b.variable("row", b.begin // count)
        first = b.variable("first", b.begin - line.get() * count)
        with b.repeat_while() as test:
            b.proceed(test, at.get() < b.end)
            last = b.minimum(count, first.get() + (b.end - at.get()))
            body(line.get(), first.get() * width, b.minimum(last * width, total))
            at.set(at.get() + (last - first.get()))
            line.set(line.get() + 1)
            first.set(0)


def block_count(columns: Dim, width: int) -> Dim:
    """Blocks of `blocks` in one row."""
    return ceildiv(columns, width)
