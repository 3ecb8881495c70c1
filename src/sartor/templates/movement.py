"""Layers that move elements without looking at them: concat, slice and pad.

All three walk the rows of what they write.  Concat has one call of the same kernel for each input, so that inputs which the planner
has already put in place can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Buffer, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.movement_code import Mover
from sartor.templates.slots import Slots
from sartor.templates.vectors import along
from sartor.templates.walk import runs
from sartor.types import BYTES, working

WORK = 1 << 13  # elements worth a slice of their own


class _Moving(Knobless):
    """What these templates have in common."""

    name = ""

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == self.name and all(problem.tensors[n].dtype in BYTES for n in problem.layer.reads)

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False


def _grain(columns: Dim) -> Dim:
    """Rows of `columns` elements that are worth a slice."""
    return maximum(1, ceildiv(WORK, maximum(columns, 1)))


# --- concat ---------------------------------------------------------------------------------------------------------------


class Concat(_Moving):
    """Inputs one after the other along `axis`."""

    name = "concat"

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        out = problem.output()
        axis = problem["axis"] % len(out.shape)
        before: Dim = 0
        calls = []
        for name in problem.layer.inputs:
            calls.append(_concat_call(problem, device, name, axis, before))
            before = before + problem.tensors[name].shape[axis]
        return Implementation(tuple(calls))


def _concat_call(problem: Problem, device: Device, name: str, axis: int, before: Dim) -> KernelCall:
    """Copies one input to its place, `before` steps along the axis."""
    there, out = problem.tensors[name], problem.output()
    b = Builder("concat")
    slots = Slots(b, problem)
    mover = Mover(slots, device.target)
    x, x_pitch = mover.source("x", name), slots.pitch("x_pitch", name)
    columns = slots.size("columns", there.columns)
    last = axis == len(out.shape) - 1
    shift = slots.size("shift", before if last else before * product(out.shape[axis + 1:-1]))

    def rows(source: Value, count: Value, row: Value, column: Number) -> None:
        """Copies `count` rows from `source` to `row`."""
        def one(length: Number, offset: Value, at: Value, place: Value) -> None:
            def body(c: Value, lanes: int, mask: Value | None) -> None:
                value = mover.load(x, offset + c, lanes, mask)
                mover.store(at + c, value, place, c + column, lanes, mask)

            along(b, 0, length, mover.lanes, body, masked=mover.masked)

        dense = x_pitch.eq(columns) & mover.y_pitch.eq(columns)
        if mover.plain:
            with b.branch(dense):
                one(count * columns, source * x_pitch, row * mover.y_pitch + column, row)
            with b.otherwise(), b.loop("row", 0, count) as r:
                one(columns, (source + r) * x_pitch, (row + r) * mover.y_pitch + column, row + r)
        else:
            with b.loop("row", 0, count) as r:
                one(columns, (source + r) * x_pitch, (row + r) * mover.y_pitch + column, row + r)

    if last:
        rows(b.begin, b.end - b.begin, b.begin, shift)
    else:
        block = slots.size("block", product(there.shape[axis:-1]))
        stride = slots.size("stride", product(out.shape[axis:-1]))

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            rows(flat, stop - first, places[0] * stride + (shift + first), 0)

        runs(b, [block], run)
    return KernelCall(b.finish(), slots.arguments, there.rows, grain=_grain(there.columns), bytes=2 * there.bytes)


# --- slice ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cut:
    """One joined dim of a slice: elements taken, and where they begin and lie in the input, in rows."""

    size: Dim
    start: Dim
    stride: Dim


def _cuts(problem: Problem) -> list[_Cut]:
    """The dims but the last, innermost first; a dim that is taken whole is joined with the one around it."""
    shape, out = problem.input(0).shape, problem.output().shape
    starts, steps = problem["starts"], problem["steps"]
    found: list[_Cut] = []
    stride: Dim = 1
    whole = False  # whether the last cut is all of its dims, so that the next one continues it
    for place in range(len(shape) - 2, -1, -1):
        start, step, size = starts[place], steps[place], out[place]
        if found and whole and step == 1:
            found[-1] = _Cut(found[-1].size * size, start * stride, found[-1].stride)
        else:
            found.append(_Cut(size, start * stride, stride * step))
            whole = True
        whole = whole and step == 1 and start == 0 and size == shape[place]
        stride = stride * shape[place]
    return found


class Slice(_Moving):
    """Elements from a start on, by steps of any sign."""

    name = "slice"

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        out, source = problem.output(), problem.layer.inputs[0]
        b = Builder("slice")
        slots = Slots(b, problem)
        mover = Mover(slots, device.target)
        x, x_pitch = mover.source("x", source), slots.pitch("x_pitch", source)
        columns = slots.size("columns", out.columns)
        step = int(problem["steps"][-1]) if out.shape else 1
        start = slots.size("start", problem["starts"][-1] if out.shape else 0)
        cuts = _cuts(problem)
        begin = slots.size("begin", sum((c.start for c in cuts), 0))
        strides = [slots.known("stride", c.stride) for c in cuts]
        reader = _Strided(b, mover, x, step)

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            row = begin
            for place, stride in zip(places, strides[1:], strict=True):
                row = row + place * stride
            with b.loop("row", first, stop) as r:
                offset = (row + r * strides[0]) * x_pitch + start if strides else start
                place = flat + (r - first)
                reader.copy(columns, offset, place)

        runs(b, [slots.size("size", c.size) for c in cuts[:-1]], run)
        call = KernelCall(b.finish(), slots.arguments, out.rows, grain=_grain(out.columns), bytes=2 * out.bytes)
        return Implementation((call,))


class _Strided:
    """Copies rows whose elements lie `step` apart."""

    def __init__(self, b: Builder, mover: Mover, x: Buffer, step: int) -> None:
        self.b, self.mover, self.x, self.step = b, mover, x, step

    def copy(self, columns: Value, offset: Value, row: Value) -> None:
        b, mover, step = self.b, self.mover, self.step
        at = row * mover.y_pitch

        def body(c: Value, lanes: int, mask: Value | None) -> None:
            if step == 1:
                value = mover.load(self.x, offset + c, lanes, mask)
            elif lanes == 1:
                value = mover.load(self.x, offset + c * step)
            else:
                value = mover.gather(self.x, b.iota(lanes) * step + (offset + c * step), mask)
            mover.store(at + c, value, row, c, lanes, mask)

        wide = step == 1 or mover.gathers
        along(b, 0, columns, mover.lanes if wide else 1, body, masked=mover.masked)


# --- pad ------------------------------------------------------------------------------------------------------------------


class Pad(_Moving):
    """The input continued on both sides of each dim, or cut."""

    name = "pad"

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _PadCode(problem, device)
        code.write()
        out = problem.output()
        call = KernelCall(code.b.finish(), code.slots.arguments, out.rows, grain=_grain(out.columns),
                          bytes=out.bytes + problem.input(0).bytes)
        return Implementation((call,))


@dataclass(frozen=True)
class _Side:
    """One joined dim of a padding: sizes in input and output, elements before, and rows of the input between its steps."""

    source: Dim
    size: Dim
    before: Dim
    stride: Dim

    @property
    def padded(self) -> bool:
        return not (isinstance(self.before, int) and self.before == 0 and self.source == self.size)


def _sides(shape: Sequence[Dim], out: Sequence[Dim], before: Sequence[Dim]) -> list[_Side]:
    """The dims but the last, innermost first; neighbours without padding are joined."""
    found: list[_Side] = []
    stride: Dim = 1
    for place in range(len(shape) - 2, -1, -1):
        side = _Side(shape[place], out[place], before[place], stride)
        if found and not side.padded and not found[-1].padded:
            inner = found[-1]
            found[-1] = _Side(inner.source * side.source, inner.size * side.size, 0, inner.stride)
        else:
            found.append(side)
        stride = stride * shape[place]
    return found


class _PadCode:
    """Writes the kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.mode: str = problem["mode"]
        self.b = b = Builder(f"pad_{self.mode}")
        self.slots = slots = Slots(b, problem)
        self.mover = Mover(slots, device.target)
        source, there, out = problem.layer.inputs[0], problem.input(0), problem.output()
        self.x, self.x_pitch = self.mover.source("x", source), slots.pitch("x_pitch", source)
        before = problem["before"]
        self.sides = _sides(there.shape, out.shape, before)
        self.sources = [slots.size("source", s.source) for s in self.sides]
        self.before = [slots.size("before", s.before) for s in self.sides]
        self.strides = [slots.size("stride", s.stride) for s in self.sides]
        self.sizes = [slots.size("size", s.size) for s in self.sides[:-1]]
        self.columns = slots.size("columns", out.columns)
        self.source_columns = slots.size("source_columns", there.columns)
        self.column_before: Value = slots.size("column_before", before[-1] if before else 0)
        value = problem.layer.attributes.get("value", 0.0)
        dtype = there.dtype
        if self.mover.plain:
            kind = Type(working(dtype))
            raw = b.cast(b.constant(value if kind.is_float else bool(value) if dtype == "bool" else int(value), kind), dtype)
            self.fill = b.cast(raw, "u8") if dtype == "bool" else b.bitcast(raw, self.x.scalar)
        else:
            kind = Type(working(dtype))
            self.fill = b.constant(float(value) if kind.is_float else int(value), kind)

    def write(self) -> None:
        """Emits the kernel's loops."""
        runs(self.b, self.sizes, self.run)

    def source_index(self, side: int, place: Value) -> tuple[Value, Value | None]:
        """The input's index for an output's index along one dim, and whether there is one (None: always)."""
        if not self.sides[side].padded:
            return place, None
        index, size = place - self.before[side], self.sources[side]
        if self.mode == "constant":
            return index, (index >= 0) & (index < size)
        return self.continued(index, size), None

    def continued(self, index: Value, size: Value) -> Value:
        """`index` brought into 0...size the way the mode says."""
        b = self.b
        if self.mode == "edge":
            return b.maximum(b.minimum(index, size - 1), 0)
        period = b.maximum(size if self.mode == "wrap" else (size - 1) * 2, 1)
        rest = index % period
        rest = b.select(rest < 0, rest + period, rest)
        return rest if self.mode == "wrap" else b.select(rest < size, rest, period - rest)

    def run(self, places: list[Value], first: Value, stop: Value, flat: Value) -> None:
        """Rows of the output that differ in the innermost dim."""
        b = self.b
        outer, inside = b.constant(0, I64), None
        for side, place in enumerate(places, start=1):
            index, there = self.source_index(side, place)
            outer = outer + index * self.strides[side]
            inside = there if inside is None else inside if there is None else inside & there
        with b.loop("row", first, stop) as place:
            row = flat + (place - first)
            source, found = outer, inside
            if self.sides:
                index, there = self.source_index(0, place)
                source = outer + index * self.strides[0]
                found = there if inside is None else inside if there is None else inside & there
            if found is None:
                self.row(source, row)
                return
            with b.branch(found):
                self.row(source, row)
            with b.otherwise():
                self.filled(row, 0, self.columns)

    def row(self, source: Value, row: Value) -> None:
        """One row that has input: what comes before it, the input, what comes after."""
        b, mover = self.b, self.mover
        base = source * self.x_pitch - self.column_before
        left = b.minimum(b.maximum(self.column_before, 0), self.columns)
        right = b.maximum(b.minimum(self.column_before + self.source_columns, self.columns), left)
        at = row * mover.y_pitch

        def body(c: Value, lanes: int, mask: Value | None) -> None:
            mover.store(at + c, mover.load(self.x, base + c, lanes, mask), row, c, lanes, mask)

        along(b, left, right, mover.lanes, body, masked=mover.masked)
        if self.mode == "constant":
            self.filled(row, 0, left)
            self.filled(row, right, self.columns)
            return
        with b.loop("side", 0, 2) as side:
            begin, end = b.select(side.eq(0), 0, right), b.select(side.eq(0), left, self.columns)
            with b.loop("c", begin, end) as c:
                index = self.continued(c - self.column_before, self.source_columns)
                mover.store(at + c, mover.load(self.x, source * self.x_pitch + index), row, c)

    def filled(self, row: Value, first: Number, stop: Value) -> None:
        """Columns first...stop of a row, all padding."""
        mover, at = self.mover, row * self.mover.y_pitch

        def body(c: Value, lanes: int, mask: Value | None) -> None:
            mover.store(at + c, self.b.broadcast(self.fill, lanes), row, c, lanes, mask)

        along(self.b, first, stop, mover.lanes, body, masked=mover.masked)
