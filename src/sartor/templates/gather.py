"""Gather: slices of a tensor along one axis, chosen by indices.

Negative indices count from the end; indices outside are brought to the nearest end, so that nothing outside is ever read.
"""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Number, Value
from sartor.sizes import Dim, ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.movement_code import Mover
from sartor.templates.slots import Slots
from sartor.templates.vectors import along
from sartor.templates.walk import runs
from sartor.types import BYTES

WORK = 1 << 12  # elements worth a slice of their own


class Gather(Knobless):
    """See the module."""

    name = "gather"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "gather" and problem.input(0).dtype in BYTES and problem.input(1).dtype in ("i32", "i64")

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value == problem.layer.inputs[1]

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        out = problem.output()
        grain = maximum(1, ceildiv(WORK, maximum(out.columns, 1)))
        call = KernelCall(code.b.finish(), code.slots.arguments, out.rows, grain=grain, bytes=2 * out.bytes + problem.input(1).bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel: x is [before, size, after, columns], or [before, size] where the last dim is gathered."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.b = b = Builder("gather")
        self.slots = slots = Slots(b, problem)
        self.mover = Mover(slots, device.target)
        source, chosen = problem.layer.inputs
        self.shape, self.chosen = problem.input(0).shape, problem.input(1)
        self.axis: int = problem["axis"] % len(self.shape)
        self.x, self.x_pitch = self.mover.source("x", source), slots.pitch("x_pitch", source)
        self.indices = slots.pointer("indices", chosen)
        self.size = slots.size("size", self.shape[self.axis])
        self.columns = slots.size("columns", problem.output().columns)

    def write(self) -> None:
        """Emits the kernel's loops."""
        if self.axis < len(self.shape) - 1:
            self.rows()
        elif self.chosen.shape:
            self.elements()
        else:
            self.one_column()

    def index(self, place: Number) -> Value:
        """The index at `place`, inside the axis."""
        b = self.b
        index = b.cast(b.load(self.indices, place), "i64")
        index = b.select(index < 0, index + self.size, index)
        return b.maximum(b.minimum(index, self.size - 1), 0)

    def rows(self) -> None:
        """Whole rows are copied: output rows are (before, index, after)."""
        b, slots = self.b, self.slots
        after: Dim = product(self.shape[self.axis + 1:-1])
        inner = slots.size("after", after)
        count = slots.size("count", self.chosen.elements)

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            place, before = places
            source = (before * self.size + self.index(place)) * inner
            with b.loop("row", first, stop) as r:
                self.copy((source + r) * self.x_pitch, flat + (r - first))

        def single(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            base = places[0] * self.size
            with b.loop("row", first, stop) as place:
                self.copy((base + self.index(place)) * self.x_pitch, flat + (place - first))

        if after == 1:
            runs(b, [count], single)
        else:
            runs(b, [inner, count], run)

    def copy(self, source: Value, row: Value) -> None:
        mover, at = self.mover, row * self.mover.y_pitch

        def body(c: Value, lanes: int, mask: Value | None) -> None:
            mover.store(at + c, mover.load(self.x, source + c, lanes, mask), row, c, lanes, mask)

        along(self.b, 0, self.columns, mover.lanes, body, masked=mover.masked)

    def elements(self) -> None:
        """The last dim is gathered: output rows are (before, all dims of the indices but their last)."""
        b, mover = self.b, self.mover

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            source = places[0] * self.x_pitch
            with b.loop("row", first, stop) as part:
                row = flat + (part - first)
                at, begin = row * mover.y_pitch, part * self.columns
                with b.loop("c", 0, self.columns) as c:
                    mover.store(at + c, mover.load(self.x, source + self.index(begin + c)), row, c)

        runs(b, [self.slots.size("parts", product(self.chosen.shape[:-1]))], run)

    def one_column(self) -> None:
        """A single index of the last dim, which disappears: the output's columns are the input's rows."""
        b, mover = self.b, self.mover
        column = self.index(0)
        with b.loop("row", b.begin, b.end) as row:
            at, begin = row * mover.y_pitch, row * self.columns
            with b.loop("c", 0, self.columns) as c:
                mover.store(at + c, mover.load(self.x, (begin + c) * self.x_pitch + column), row, c)
