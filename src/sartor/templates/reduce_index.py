"""argmax and argmin along one dim.

Every lane keeps its best element and where it was; among equals the first (or, with `select_last`, the last) wins, and a NaN wins over
numbers.  While elements are compared, their places are kept in 32 bits, from the start of a stretch of at most 2^30 on; of a dimension that
may be longer, the stretches' bests are compared in turn, with places in 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Number, Type, Value, Variable
from sartor.sizes import Dim, ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.reduction import KeptRows, accumulator, block_count, blocks, reduction_of, tiles
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

_STRETCH = 1 << 30


class ReduceIndex(Knobless):
    """See the module."""

    name = "reduce_index"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "reduce" and problem["op"] in ("argmax", "argmin") and problem.input(0).dtype in BYTES

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        shape = code.shape
        extent: Dim = shape.rows
        each: Dim = shape.count
        if not shape.along_columns:
            extent, each = extent * block_count(shape.columns, code.width), each * code.width
        call = KernelCall(code.b.finish(), code.slots.arguments, extent, grain=maximum(1, ceildiv(1 << 13, maximum(each, 1))),
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Best:
    """The best elements of some lanes and their places."""

    def __init__(self, code: _Code, lanes: int, places: str = "i32") -> None:
        b = code.b
        how = accumulator("max" if code.largest else "min")
        kind = Type(code.scalar)
        self.code = code
        self.value: Variable = b.variable("best", b.broadcast(how.start(b, kind), lanes))
        self.place: Variable = b.variable("place", b.constant(0, Type(places, lanes)))

    def take(self, x: Value, place: Value, mask: Value | None = None) -> None:
        """Takes in elements at later places than those seen by their lanes."""
        b, best = self.code.b, self.value.get()
        better = self.code.beats(x, best)
        if mask is not None:
            better = better & mask
        self.value.set(b.select(better, x, best))
        self.place.set(b.select(better, place, self.place.get()))


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        layer, x = problem.layer, problem.input(0)
        self.largest, self.last = problem["op"] == "argmax", bool(layer.attributes.get("select_last"))
        self.b = b = Builder(problem["op"])
        self.shape = reduction_of(x, problem["axes"])
        self.scalar = "u8" if x.dtype == "bool" else working(x.dtype)
        kinds = [x.dtype, self.scalar, "i32", problem.output().dtype]
        self.lanes, self.masked = lanes_for(device.target, [x.dtype, self.scalar, "i32"]), can_mask(device.target, kinds)
        self.width = 8 * self.lanes
        self.slots = slots = Slots(b, problem)
        self.x, self.x_pitch = slots.pointer("x", layer.inputs[0]), slots.pitch("x_pitch", layer.inputs[0])
        self.y, self.y_pitch = slots.pointer("y", layer.outputs[0]), slots.pitch("y_pitch", layer.outputs[0])
        self.columns = slots.known("columns", self.shape.columns)
        self.kept = KeptRows(slots, self.shape)
        self.loops = [(0, slots.known("size", g.size), slots.known("stride", g.stride)) for g in reversed(self.shape.reduced)]
        self.epilogue = Epilogue(b, problem, slots)

    def beats(self, x: Value, best: Value) -> Value:
        """Whether a later element takes the place of the best so far."""
        if self.last:
            wins = x >= best if self.largest else x <= best
            return wins | x.ne(x) if x.type.is_float else wins
        wins = x > best if self.largest else x < best
        return wins | (x.ne(x) & best.eq(best)) if x.type.is_float else wins

    def fetch(self, offset: Number, lanes: int, mask: Value | None) -> Value:
        x = widen(self.b, self.b.load(self.x, offset, lanes, mask))
        return self.b.cast(x, "u8") if x.type.scalar == "bool" else x

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        if not self.shape.along_columns:
            blocks(b, self.columns, self.width, self.some_columns)
            return
        with b.loop("row", b.begin, b.end) as row:
            self.row(row, self.kept.start(row))

    def put(self, place: Value, row: Value, column: Number, lanes: int, mask: Value | None) -> None:
        result = self.epilogue.apply(place if place.type.scalar == "i64" else self.b.cast(place, "i64"), row, column, lanes, mask)
        self.b.store(self.y, row * self.y_pitch + column, result, mask)

    # --- along the columns ---

    def row(self, row: Value, start: Number) -> None:
        """One row.  Where the columns are one and rows are reduced, they are taken element by element."""
        b = self.b
        if self.loops:
            self.put(self.over_rows(start, b.constant(0, row.type), 1, None), row, 0, 1, None)
            return
        base = start * self.x_pitch

        def best(first: Number, last: Number) -> tuple[Value, Value]:
            return self.stretch(base, first, last)

        self.put(self.in_stretches(self.columns, 1, best), row, 0, 1, None)

    def in_stretches(self, size: Number, lanes: int, best: Callable[[Number, Number], tuple[Value, Value]]) -> Value:
        """The places of the best elements of a dimension; `best` gives those from one place to another, counted from the first."""
        b = self.b
        if isinstance(size, int) and size <= _STRETCH:
            return best(0, size)[1]
        found = _Best(self, lanes, "i64")
        with b.loop("stretch", 0, size, _STRETCH) as first:
            end = first + _STRETCH
            x, place = best(first, b.minimum(end, size))
            found.take(x, b.cast(place, "i64") + first)
        return found.place.get()

    def stretch(self, base: Value, first: Number, last: Number) -> tuple[Value, Value]:
        """The best of some columns of a row, and its place after the first of them."""
        b = self.b
        rest = _Best(self, 1)
        wide = _Best(self, self.lanes) if self.lanes > 1 else rest

        def body(column: Value, lanes: int, mask: Value | None) -> None:
            taken = wide if lanes > 1 else rest
            place = b.iota(lanes, "i32") + b.cast(column - first, "i32")
            taken.take(self.fetch(base + column, lanes, mask), place, mask)

        along(b, first, last, self.lanes, body, masked=self.masked)
        parts = [(rest.value.get(), rest.place.get())]
        if self.lanes > 1:
            best, place = wide.value.get(), wide.place.get()
            parts.extend((b.extract(best, lane), b.extract(place, lane)) for lane in range(self.lanes))
        while len(parts) > 1:
            parts = [self.better(*parts[i:i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
        return parts[0]

    def better(self, first: tuple[Value, Value], second: tuple[Value, Value]) -> tuple[Value, Value]:
        """The better of two lanes' bests."""
        b = self.b
        (x, i), (y, j) = first, second
        wins = y > x if self.largest else y < x
        ties = y.eq(x)
        if x.type.is_float:
            wins = wins | (y.ne(y) & x.eq(x))
            ties = ties | (y.ne(y) & x.ne(x))
        wins = wins | (ties & (j > i if self.last else j < i))
        return b.select(wins, y, x), b.select(wins, j, i)

    # --- across rows ---

    def over_rows(self, start: Number, column: Value, lanes: int, mask: Value | None) -> Value:
        """The places of the best elements of some columns."""
        b = self.b
        if not self.loops:
            return _Best(self, lanes).place.get()
        (_, size, stride), = self.loops

        def best(first: Number, last: Number) -> tuple[Value, Value]:
            found = _Best(self, lanes)
            with b.loop("r", first, last) as r:
                x = self.fetch((start + r * stride) * self.x_pitch + column, lanes, mask)
                found.take(x, b.broadcast(b.cast(r - first, "i32"), lanes))
            return found.value.get(), found.place.get()

        return self.in_stretches(size, lanes, best)

    def some_columns(self, row: Value, first: Number, last: Number) -> None:
        start = self.kept.start(row)

        def tile(column: Value, _vectors: int, lanes: int, mask: Value | None) -> None:
            self.put(self.over_rows(start, column, lanes, mask), row, column, lanes, mask)

        tiles(self.b, first, last, self.lanes, 1, tile, masked=self.masked)
