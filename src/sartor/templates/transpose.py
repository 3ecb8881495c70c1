"""Transposition by any permutation.

Dims that stay together are joined.  Where the last dim is kept, rows are copied.  Else the plane of the input's last dim and the
output's last dim is cut in blocks, and tiles of one vector by one vector are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Number, Value
from sartor.sizes import Dim, ceildiv, maximum, minimum, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.movement_code import Mover, computes
from sartor.templates.slots import Slots
from sartor.templates.vectors import along
from sartor.templates.walk import runs
from sartor.types import BYTES

WORK = 1 << 13  # elements worth a slice of their own


@dataclass(frozen=True)
class Axis:
    """One joined dim: its size and its strides in rows of input and output; None where its elements are neighbours."""

    size: Dim
    source: Dim | None
    result: Dim | None


@dataclass(frozen=True)
class Plan:
    """The joined dims in the output's order; `dense` names which of input and output must have no gaps between rows."""

    axes: tuple[Axis, ...]
    dense_source: bool
    dense_result: bool


def plan_of(problem: Problem) -> Plan:
    """Joins the dims of a transposition.

    Strides along the last dim are 1; those of the other dims count rows, or elements where the tensor is dense.
    """
    perm: tuple[int, ...] = tuple(problem["perm"])
    shape = problem.input(0).shape
    rank = len(shape)
    kept = [p for p in perm if shape[p] != 1]
    order = sorted(kept)
    groups: list[list[int]] = []
    for p in kept:
        if groups and order.index(p) == order.index(groups[-1][-1]) + 1:
            groups[-1].append(p)
        else:
            groups.append([p])
    # A group that reaches over the last dim can be taken as one only in a dense tensor.
    last_source, last_result = rank - 1, perm[-1] if perm else 0
    dense_source = rank > 1 and (shape[-1] == 1 or any(len(g) > 1 and last_source in g for g in groups))
    dense_result = rank > 1 and (shape[last_result] == 1 or any(len(g) > 1 and last_result in g for g in groups))
    if dense_result and computes(problem):
        groups, dense_result = _split(groups, last_result), False
    source = _strides(tuple(shape), range(rank), dense_source)
    result = _strides(tuple(shape), perm, dense_result)
    axes = [Axis(product(shape[p] for p in g), source[g[-1]], result[g[-1]]) for g in groups]
    if not axes or axes[-1].result is not None:
        axes.append(Axis(1, 0, None))
    if all(a.source is not None for a in axes):
        axes.insert(0, Axis(1, None, 0))
    return Plan(tuple(axes), dense_source, dense_result)


def _split(groups: list[list[int]], last: int) -> list[list[int]]:
    """The groups with the output's last dim by itself."""
    found = []
    for group in groups:
        found.extend([group[:-1], group[-1:]] if len(group) > 1 and group[-1] == last else [group])
    return found


def _strides(shape: tuple[Dim, ...], order: Any, dense: bool) -> dict[int, Dim | None]:
    """The stride of each dim of a tensor whose dims lie in `order`: elements when dense, else rows; None for neighbours."""
    found: dict[int, Dim | None] = {}
    stride: Dim = 1
    dims = list(order)
    for place in range(len(dims) - 1, -1, -1):
        dim = dims[place]
        if place == len(dims) - 1:
            found[dim] = None
            stride = shape[dim] if dense else 1
        else:
            found[dim] = None if dense and stride == 1 and shape[dim] != 1 else stride
            stride = stride * shape[dim]
    return found


class Transpose:
    """See the module."""

    name = "transpose"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "transpose" and problem.input(0).dtype in BYTES

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"block": (8, 16, 32, 64), "length": (64, 256, 1024)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {"block": max(16, 64 // BYTES[problem.input(0).dtype]), "length": 256}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        plan = plan_of(problem)
        return (value == problem.layer.inputs[0] and plan.dense_source) or (value == problem.layer.outputs[0] and plan.dense_result)

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, config, device)
        extent, grain = code.write()
        call = KernelCall(code.b.finish(), code.slots.arguments, extent, grain=grain,
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


Write = Callable[[Value, Number, Number, int, "Value | None"], None]


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, config: Config, device: Device) -> None:
        self.b = b = Builder("transpose")
        self.plan = plan_of(problem)
        self.block, self.length = int(config["block"]), int(config["length"])
        self.slots = slots = Slots(b, problem)
        self.mover = Mover(slots, device.target)
        self.x = self.mover.source("x", problem.layer.inputs[0])
        self.x_pitch: Number = 1 if self.plan.dense_source else slots.pitch("x_pitch", problem.layer.inputs[0])
        self.y_pitch: Number = 1 if self.plan.dense_result else self.mover.y_pitch

    def sources(self, axis: Axis) -> Number:
        """Elements of the input between two steps of an axis."""
        if axis.source is None:
            return 1
        return self.times(self.slots.known("source", axis.source), self.x_pitch)

    def rows(self, axis: Axis) -> Number:
        """Rows of the output (elements where it is dense) between two steps of an axis."""
        return 0 if axis.result is None else self.slots.known("result", axis.result)

    @staticmethod
    def times(a: Number, b: Number) -> Number:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int) and x in (0, 1):
                return y if x else 0
        return a * b

    def offset(self, indexes: list[Value], strides: list[Number]) -> Number:
        total: Number = 0
        for place, stride in zip(indexes, strides, strict=True):
            step = self.times(place, stride)
            if not (isinstance(step, int) and step == 0):
                total = step if isinstance(total, int) and total == 0 else total + step
        return total

    def write(self) -> tuple[Dim, Dim]:
        """Emits the loops; returns extent and grain."""
        axes = self.plan.axes
        if axes[-1].source is None:
            return self.copy_rows()
        inner = next(i for i, a in enumerate(axes) if a.source is None)
        return self.planes(axes[inner], axes[-1], [a for i, a in enumerate(axes) if i not in (inner, len(axes) - 1)])

    # --- the last dim kept ---

    def copy_rows(self) -> tuple[Dim, Dim]:
        b = self.b
        *outer, last = self.plan.axes
        outer = [a for a in outer if a.size != 1] if len(outer) > 1 else outer
        if not outer:
            self.copy(b.begin, b.end, 0, 0, 0)
            return last.size, 4096
        columns = self.slots.known("columns", last.size)
        reverse = outer[::-1]
        sizes = [self.slots.known("size", a.size) for a in reverse[:-1]]
        sources, results = [self.sources(a) for a in reverse], [self.rows(a) for a in reverse]

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            base, row = self.offset(places, sources[1:]), self.offset(places, results[1:])
            with b.loop("place", first, stop) as place:
                source = self.sum(self.times(place, sources[0]), base)
                result = self.sum(self.times(place, results[0]), row)
                self.copy(0, columns, source, self.times(result, self.y_pitch), result)

        runs(b, sizes, run)
        return product(a.size for a in outer), maximum(1, ceildiv(WORK, maximum(last.size, 1)))

    @staticmethod
    def sum(a: Number, b: Number) -> Number:
        if isinstance(a, int) and a == 0:
            return b
        return a if isinstance(b, int) and b == 0 else a + b

    def copy(self, first: Number, stop: Number, source: Number, result: Number, row: Number) -> None:
        """Copies elements first...stop of one row."""
        mover = self.mover

        def body(at: Value, lanes: int, mask: Value | None) -> None:
            x = mover.load(self.x, self.sum(at, source), lanes, mask)
            mover.store(self.sum(at, result), x, row, at, lanes, mask)

        along(self.b, first, stop, mover.lanes, body, masked=mover.masked)

    # --- planes ---

    def planes(self, inner: Axis, last: Axis, outer: list[Axis]) -> tuple[Dim, Dim]:
        """`inner` has the neighbours of the input, `last` those of the output."""
        b, slots = self.b, self.slots
        size, length = slots.known("inner", inner.size), slots.known("last", last.size)
        across, down = self.sources(last), self.rows(inner)
        reverse = [a for a in outer[::-1] if a.size != 1]
        blocks, lengths = ceildiv(inner.size, self.block), ceildiv(last.size, self.length)
        sizes = [slots.known("blocks", blocks), slots.known("lengths", lengths), *(slots.known("size", a.size) for a in reverse)][:-1]
        sources, results = [self.sources(a) for a in reverse], [self.rows(a) for a in reverse]

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            part, *around = places
            base, row = self.offset(around, sources), self.offset(around, results)
            begin = part * self.length
            end = b.minimum(begin + self.length, length)
            plane = _Plane(self, base, row, across, down)
            low, high = first * self.block, b.minimum(stop * self.block, size)
            if not self.interleaves(inner, last):
                plane.block(low, high, begin, end, size)
                return
            with b.branch(self.mover.y_pitch.eq(length)):
                plane.interleave(low, high, int(last.size))  # type: ignore[arg-type]
            with b.otherwise():
                plane.block(low, high, begin, end, size)

        runs(b, sizes, run)
        each = maximum(1, minimum(inner.size, self.block) * minimum(last.size, self.length))
        return blocks * lengths * product(a.size for a in reverse), maximum(1, ceildiv(WORK, each))


    def interleaves(self, inner: Axis, last: Axis) -> bool:
        """Whether the output's rows are a few elements that follow each other where it has no gaps: pixels from planes."""
        few = isinstance(last.size, int) and 1 < last.size <= 4
        simple = self.mover.plain or self.mover.epilogue.columns_only
        return few and simple and self.mover.lanes > 1 and inner.result == 1 and not self.plan.dense_result


class _Plane:
    """Transposes one plane: element (i, o) is at x[base + i + o * across] and comes to row `row + i * down`, column o."""

    def __init__(self, code: _Code, base: Number, row: Number, across: Number, down: Number) -> None:
        self.code, self.b, self.mover = code, code.b, code.mover
        self.base, self.row, self.across, self.down = base, row, across, down
        mover = code.mover
        self.unit = max(1, 16 // max(mover.element, 1 if mover.plain else 4))  # elements of one 128-bit lane
        self.lanes = max(self.unit, mover.lanes if mover.element >= 4 else self.unit)
        if not mover.plain:
            self.lanes = mover.lanes
            self.unit = min(self.lanes, self.unit)

    def block(self, first: Value, stop: Value, begin: Value, end: Value, size: Number) -> None:
        """Elements first...stop of the input's dim and begin...end of the output's."""
        b, lanes = self.b, self.lanes
        if lanes == 1 or self.unit < 2:
            self.single(first, stop, begin, end)
            return
        whole = first + ((stop - first) & -lanes)
        edge = begin + ((end - begin) & -lanes)
        line = max(lanes, 64 // self.mover.element)  # a line of the output is filled before the next rows are begun
        with b.loop("o", begin, edge, line) as begun:
            limit = b.minimum(begun + line, edge)
            with b.loop("i", first, whole, lanes) as i, b.loop("o", begun, limit, lanes) as o:
                self.tile(i, o)
        if not self.mover.masked:
            self.single(first, whole, edge, end)
            self.single(whole, stop, begin, end)
            return
        with b.branch(edge < end), b.loop("i", first, whole, lanes) as i:
            self.tile(i, edge, columns=end - edge)
        with b.branch(whole < stop):
            if isinstance(size, int) and size < 3 and not isinstance(self.across, int):
                self.single(whole, stop, begin, end)
                return
            with b.loop("o", begin, edge, lanes) as o:
                self.tile(whole, o, rows=stop - whole)
            with b.branch(edge < end):
                self.single(whole, stop, edge, end)

    def interleave(self, first: Value, stop: Value, count: int) -> None:
        """`count` planes to pixels of `count` elements without gaps: as many vectors of the output from as many of the input."""
        b, code, mover, lanes = self.b, self.code, self.mover, self.mover.lanes
        whole = first + ((stop - first) & -lanes)
        with b.loop("i", first, whole, lanes) as i:
            source = code.sum(i, self.base)
            planes = [mover.load(code.x, source + code.times(self.across, o), lanes) for o in range(count)]
            if not mover.plain:
                planes = [mover.epilogue.apply_down(plane, o) for o, plane in enumerate(planes)]
            to = code.times(code.sum(i, self.row), count)
            for part in range(count):
                wanted = [divmod(part * lanes + lane, count) for lane in range(lanes)]  # (pixel, plane) of each lane
                vector = planes[0]
                for o in range(count):
                    keep = [lane if plane != o else pixel + (lanes if o else 0) for lane, (pixel, plane) in enumerate(wanted)]
                    vector = b.shuffle(vector, planes[o], keep)
                b.store(mover.y, to + part * lanes, vector)
        self.single(whole, stop, 0, count)

    def single(self, first: Number, stop: Number, begin: Number, end: Number) -> None:
        """Element by element."""
        b, mover = self.b, self.mover
        with b.loop("i", first, stop) as i:
            row = self.code.sum(self.code.times(i, self.down), self.row)
            to = self.code.times(row, self.code.y_pitch)
            source = self.code.sum(i, self.base)
            with b.loop("o", begin, end) as o:
                x = mover.load(self.code.x, source + self.code.times(o, self.across))
                mover.store(self.code.sum(o, to), x, row, o)

    def tile(self, i: Value, o: Value, rows: Value | None = None, columns: Value | None = None) -> None:
        """A square of one vector by one vector; where `rows` or `columns` are given only so many of each exist."""
        b, code, lanes = self.b, self.code, self.lanes
        mask = None if rows is None else b.first_lanes(rows, lanes)
        source = code.sum(i, self.base)
        vectors: list[list[Value]] = [[] for _ in range(lanes // self.unit)]
        loaded = []
        for k in range(lanes):
            place: Value = o + k
            if columns is not None:
                place = o + b.minimum(columns - 1, k)
            loaded.append(source + code.times(place, self.across))
        if mask is not None:
            whole = [code.mover.load(code.x, at, lanes, mask) for at in loaded]
            vectors = [[self.piece(whole, k, part) for k in range(self.unit)] for part in range(lanes // self.unit)]
        else:
            for part in range(lanes // self.unit):
                for k in range(self.unit):
                    pieces = [code.mover.load(code.x, loaded[k + self.unit * p] + part * self.unit, self.unit)
                              for p in range(lanes // self.unit)]
                    vectors[part].append(self.join(pieces))
        stored = None if columns is None else b.first_lanes(columns, lanes)
        for part, group in enumerate(vectors):
            for k, vector in enumerate(transposed(b, group, self.unit)):
                self.put(i, part * self.unit + k, o, vector, rows, stored)

    def piece(self, whole: list[Value], k: int, part: int) -> Value:
        """The vector that `join` makes, from vectors already loaded."""
        pieces = [self.b.shuffle(whole[k + self.unit * p], whole[k + self.unit * p], range(part * self.unit, (part + 1) * self.unit))
                  for p in range(self.lanes // self.unit)]
        return self.join(pieces)

    def join(self, pieces: list[Value]) -> Value:
        """One vector from several, one after the other."""
        while len(pieces) > 1:
            half = pieces[0].type.lanes
            pieces = [self.b.shuffle(a, c, range(2 * half)) for a, c in zip(pieces[::2], pieces[1::2], strict=True)]
        return pieces[0]

    def put(self, i: Value, k: int, o: Value, vector: Value, rows: Value | None, mask: Value | None) -> None:
        b, code = self.b, self.code

        def store() -> None:
            row = code.sum(code.times(i + k, self.down), self.row)
            code.mover.store(code.sum(o, code.times(row, code.y_pitch)), vector, row, o, self.lanes, mask)

        if rows is None:
            store()
        else:
            with b.branch(rows > k):
                store()


def transposed(b: Builder, rows: list[Value], unit: int) -> list[Value]:
    """Transposes squares of `unit` by `unit` that lie side by side in `unit` vectors, by rounds of interleaving inside 128-bit lanes."""
    lanes = rows[0].type.lanes
    low = [base + (k // 2) + (lanes if k % 2 else 0) for base in range(0, lanes, unit) for k in range(unit)]
    high = [index + unit // 2 for index in low]
    count = unit
    while count > 1:
        rows = [b.shuffle(rows[k], rows[k + unit // 2], which) for k in range(unit // 2) for which in (low, high)]
        count //= 2
    return rows


