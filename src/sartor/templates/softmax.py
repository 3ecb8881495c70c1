"""Softmax and its logarithm along any dim.

A row is read for its maximum, then its exponentials go to scratch while they are summed, then they are scaled.  Short rows
of known length stay in registers.  Along another dim than the last, a tile of columns is treated at once.  The maximum passes
over NaNs, which turn the sum and so the whole row into NaNs.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops import math as functions
from sartor.loops.language import Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.reduction import (
    KeptRows,
    RowTotal,
    accumulator,
    block_count,
    blocks,
    lane_reduce,
    reduction_of,
    tile_totals,
    tiles,
)
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

VECTORS = 4
WORK = 1 << 12  # elements worth a slice of their own


class Softmax(Knobless):
    """See the module."""

    name = "softmax"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "softmax" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

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
        each: Dim = shape.columns
        scratch: Dim = shape.columns * BYTES[code.scalar]
        if not shape.along_columns:
            extent = extent * block_count(shape.columns, code.width)
            each = code.axis * code.width
            scratch = code.axis * VECTORS * code.lanes * BYTES[code.scalar]
        if code.small or code.log:
            scratch = 0
        grain = maximum(1, ceildiv(WORK, maximum(each, 1)))
        call = KernelCall(code.b.finish(), (*code.slots.arguments, *code.epilogue.arguments()), extent, grain=grain, scratch=scratch,
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        layer, x = problem.layer, problem.input(0)
        self.b = b = Builder("log_softmax" if problem["log"] else "softmax")
        self.log = bool(problem["log"])
        rank = max(1, len(x.shape))
        axis = problem["axis"] % rank
        self.shape = replace(reduction_of(x, (axis,)), along_columns=axis == rank - 1)
        self.axis: Dim = self.shape.reduced[0].size if self.shape.reduced else 1
        self.scalar = working(x.dtype)
        kinds = [x.dtype, self.scalar, problem.output().dtype]
        self.lanes, self.masked = lanes_for(device.target, kinds), can_mask(device.target, kinds)
        self.width = 2 * VECTORS * self.lanes
        self.heavy = VECTORS if device.target.vector_registers >= 32 else 2  # exponentials at once, with their constants in registers
        self.slots = slots = Slots(b, problem)
        self.x, self.x_pitch = slots.pointer("x", layer.inputs[0]), slots.pitch("x_pitch", layer.inputs[0])
        self.y, self.y_pitch = slots.pointer("y", layer.outputs[0]), slots.pitch("y_pitch", layer.outputs[0])
        self.columns = slots.known("columns", self.shape.columns)
        self.kept = KeptRows(slots, self.shape)
        self.size: Number = 1
        self.stride: Number = 1
        if self.shape.reduced:
            self.size = slots.known("axis", self.shape.reduced[0].size)
            self.stride = slots.known("axis_stride", self.shape.reduced[0].stride)
        self.epilogue = Epilogue(b, problem)
        self.small = (self.shape.along_columns and isinstance(self.columns, int) and 0 < self.columns <= 8 * self.lanes
                      and (self.masked or self.columns % self.lanes == 0))
        self.store = None if self.small or self.log else b.scratch(self.scalar)

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        if not self.shape.along_columns:
            blocks(b, self.columns, self.width, self.some_columns)
            return
        with b.loop("row", b.begin, b.end) as row:
            if self.small:
                self.short_row(row)
            else:
                self.row(row)

    def exp(self, x: Value) -> Value:
        return functions.exp_not_positive(self.b, x)

    def logarithm(self, x: Value) -> Value:
        return functions.FUNCTIONS["log"](self.b, x)

    def put(self, result: Value, row: Value, column: Number, lanes: int, mask: Value | None) -> None:
        value = self.epilogue.apply(result, row, column, lanes, mask)
        self.b.store(self.y, row * self.y_pitch + column, value, mask)

    # --- along the columns ---

    def row(self, row: Value) -> None:
        """One row of any length."""
        b, columns = self.b, self.columns
        base = row * self.x_pitch
        best = RowTotal(b, accumulator("peak"), self.scalar, self.lanes, masked=self.masked, vectors=VECTORS)
        best.take(0, columns, lambda column, lanes, mask: self.fetch(base + column, lanes, mask))
        top = best.result()

        def exponential(column: Value, lanes: int, mask: Value | None) -> Value:
            e = self.exp(self.fetch(base + column, lanes, mask) - top)
            if self.store is not None:
                b.store(self.store, column, e, mask)
            return e

        sums = RowTotal(b, accumulator("sum"), self.scalar, self.lanes, masked=self.masked, vectors=self.heavy)
        sums.take(0, columns, exponential)
        total = sums.result()
        rest = self.logarithm(total) if self.log else 1.0 / total

        def finish(column: Value, lanes: int, mask: Value | None) -> None:
            if self.store is not None:
                result = b.load(self.store, column, lanes, mask) * rest
            else:
                result = (self.fetch(base + column, lanes, mask) - top) - rest
            self.put(result, row, column, lanes, mask)

        along(b, 0, columns, self.lanes, finish, masked=self.masked)

    def fetch(self, offset: Number, lanes: int, mask: Value | None) -> Value:
        return widen(self.b, self.b.load(self.x, offset, lanes, mask))

    def short_row(self, row: Value) -> None:
        """One row that fits in registers."""
        b, lanes, columns = self.b, self.lanes, int(self.columns)  # type: ignore[arg-type]
        base = row * self.x_pitch
        count = -(-columns // lanes)
        masks = [b.first_lanes(columns - i * lanes, lanes) if columns < (i + 1) * lanes else None for i in range(count)]
        x = [self.fetch(base + i * lanes, lanes, mask) for i, mask in enumerate(masks)]
        low = [v if mask is None else b.select(mask, v, float("-inf")) for v, mask in zip(x, masks, strict=True)]
        top = self.combine("peak", low)
        shifted = [v - top for v in low]
        e = [self.exp(v) for v in shifted]
        total = self.combine("sum", [v if mask is None else b.select(mask, v, 0.0) for v, mask in zip(e, masks, strict=True)])
        rest = self.logarithm(total) if self.log else 1.0 / total
        for i, mask in enumerate(masks):
            self.put(shifted[i] - rest if self.log else e[i] * rest, row, i * lanes, lanes, mask)

    def combine(self, op: str, vectors: list[Value]) -> Value:
        how = accumulator(op)
        while len(vectors) > 1:
            vectors = [how.combine(self.b, *vectors[i:i + 2]) if i + 1 < len(vectors) else vectors[i] for i in range(0, len(vectors), 2)]
        return lane_reduce(self.b, how, vectors[0])

    # --- along another dim ---

    def some_columns(self, row: Value, first: Number, last: Number) -> None:
        """All elements along the axis for some columns of one outer row."""
        b, start = self.b, self.kept.start(row)

        def at(step: Number) -> Value:
            place = step * self.stride + start
            return place if isinstance(place, Value) else b.constant(place, b.begin.type)

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            kind = Type(self.scalar, lanes)

            def fetch(place: Number, v: int) -> Value:
                return self.fetch(place * self.x_pitch + (column + v * lanes), lanes, mask)

            tops = tile_totals(b, accumulator("peak"), kind, vectors, [(0, self.size, self.stride)], start, fetch)
            sums = [b.variable("sum", b.constant(0, kind)) for _ in range(vectors)]
            with b.loop("step", 0, self.size) as step:
                for v in range(vectors):
                    e = self.exp(fetch(at(step), v) - tops[v])
                    sums[v].set(sums[v].get() + e)
                    if self.store is not None:
                        b.store(self.store, step * (vectors * lanes) + v * lanes, e)
            rest = [self.logarithm(s.get()) if self.log else 1.0 / s.get() for s in sums]
            with b.loop("step", 0, self.size) as step:
                place = at(step)
                for v in range(vectors):
                    if self.store is not None:
                        result = b.load(self.store, step * (vectors * lanes) + v * lanes, lanes) * rest[v]
                    else:
                        result = fetch(place, v) - tops[v] - rest[v]
                    self.put(result, place, column + v * lanes, lanes, mask)

        tiles(b, first, last, self.lanes, self.heavy, tile, masked=self.masked)
