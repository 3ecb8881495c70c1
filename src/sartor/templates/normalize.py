"""Layer and RMS normalisation over any dims: instance and group normalisation are cases of it.

The mean is taken first and the deviations from it are squared in a second pass, so that a large mean costs no accuracy.
"""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.reduction import (
    Accumulator,
    KeptRows,
    Nest,
    RowTotal,
    accumulator,
    block_count,
    blocks,
    nest,
    reduction_of,
    tile_totals,
    tiles,
)
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

VECTORS = 4
WORK = 1 << 13  # elements worth a slice of their own


class Normalize(Knobless):
    """See the module."""

    name = "normalize"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "normalize" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        there, out = problem.tensors[value], problem.output()
        return there.shape == out.shape and BYTES[there.dtype] == BYTES[out.dtype]

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        shape = code.shape
        extent: Dim = shape.rows
        each: Dim = shape.count
        if not shape.along_columns:
            extent = extent * block_count(shape.columns, code.width)
            each = each * code.width
        grain = maximum(1, ceildiv(WORK, maximum(each, 1)))
        call = KernelCall(code.b.finish(), (*code.slots.arguments, *code.epilogue.arguments()), extent, grain=grain,
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        layer, x = problem.layer, problem.input(0)
        self.rms = problem["mode"] == "rms"
        self.b = b = Builder("rms_norm" if self.rms else "layer_norm")
        self.epsilon = float(problem["epsilon"])
        self.shape = reduction_of(x, problem["axes"])
        self.scalar = working(x.dtype)
        kinds = [x.dtype, self.scalar, problem.output().dtype]
        self.lanes, self.masked = lanes_for(device.target, kinds), can_mask(device.target, kinds)
        self.width = 2 * VECTORS * self.lanes
        self.slots = slots = Slots(b, problem)
        self.x, self.x_pitch = slots.pointer("x", layer.inputs[0]), slots.pitch("x_pitch", layer.inputs[0])
        self.y, self.y_pitch = slots.pointer("y", layer.outputs[0]), slots.pitch("y_pitch", layer.outputs[0])
        self.columns = slots.known("columns", self.shape.columns)
        self.count = slots.size("count", self.shape.count)
        self.kept = KeptRows(slots, self.shape)
        self.loops: Nest = [(0, slots.known("size", g.size), slots.known("stride", g.stride)) for g in reversed(self.shape.reduced)]
        self.epilogue = Epilogue(b, problem)

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        self.part = 1.0 / b.cast(self.count, self.scalar)
        if self.shape.along_columns:
            with b.loop("item", b.begin, b.end) as item:
                self.one(self.kept.start(item))
        else:
            blocks(b, self.columns, self.width, self.some_columns)

    def scale(self, squares: Value) -> Value:
        """1 / sqrt(mean of squares + epsilon)."""
        return 1.0 / self.b.unary("sqrt", squares * self.part + self.epsilon)

    def fetch(self, offset: Number, lanes: int, mask: Value | None) -> Value:
        return widen(self.b, self.b.load(self.x, offset, lanes, mask))

    def put(self, result: Value, row: Number, column: Number, lanes: int, mask: Value | None) -> None:
        place = row if isinstance(row, Value) else self.b.constant(row, self.b.begin.type)
        self.b.store(self.y, place * self.y_pitch + column, self.epilogue.apply(result, place, column, lanes, mask), mask)

    # --- columns reduced ---

    def one(self, start: Number) -> None:
        """Everything that is normalised together, from row `start` on."""
        mean = None if self.rms else self.total(accumulator("sum"), start, None) * self.part
        factor = self.scale(self.total(accumulator("sum_square"), start, mean))

        def row(at: Number) -> None:
            base = at * self.x_pitch

            def body(column: Value, lanes: int, mask: Value | None) -> None:
                x = self.fetch(base + column, lanes, mask)
                self.put((x if mean is None else x - mean) * factor, at, column, lanes, mask)

            along(self.b, 0, self.columns, self.lanes, body, masked=self.masked)

        nest(self.b, self.loops, start, row)

    def total(self, how: Accumulator, start: Number, mean: Value | None) -> Value:
        """The sum, or the sum of squares, of the distances from `mean`."""
        total = RowTotal(self.b, how, self.scalar, self.lanes, masked=self.masked, vectors=VECTORS)

        def row(at: Number) -> None:
            base = at * self.x_pitch

            def fetch(column: Value, lanes: int, mask: Value | None) -> Value:
                x = self.fetch(base + column, lanes, mask)
                return x if mean is None else x - mean

            total.take(0, self.columns, fetch)

        nest(self.b, self.loops, start, row)
        return total.result()

    # --- columns kept ---

    def some_columns(self, row: Value, first: Number, last: Number) -> None:
        """Some columns, each normalised by itself over the rows."""
        b, start = self.b, self.kept.start(row)

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            kind = Type(self.scalar, lanes)

            def fetch(at: Number, v: int) -> Value:
                return self.fetch(at * self.x_pitch + (column + v * lanes), lanes, mask)

            def distance(at: Number, v: int) -> Value:
                return fetch(at, v) - means[v]

            means = []
            if not self.rms:
                sums = tile_totals(b, accumulator("sum"), kind, vectors, self.loops, start, fetch)
                means = [s * self.part for s in sums]
            value = fetch if self.rms else distance
            squares = tile_totals(b, accumulator("sum_square"), kind, vectors, self.loops, start, value)
            factors = [self.scale(s) for s in squares]

            def finish(at: Number) -> None:
                for v in range(vectors):
                    self.put(value(at, v) * factors[v], at, column + v * lanes, lanes, mask)

            nest(b, self.loops, start, finish)

        tiles(b, first, last, self.lanes, VECTORS, tile, masked=self.masked)
