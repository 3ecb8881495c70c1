"""Reductions over any dims: along the columns, across rows, or both.

What is left of the rows is the outer loop.  Where the columns are kept, a tile of them is held in registers while the rows go by;
where they are reduced, a row is taken in several vectors of accumulators.  When there are few results of many elements,
the outermost reduced dim is cut into a fixed number of parts whose totals are added by a second kernel, in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops import math as functions
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, evaluate, maximum, symbols
from sartor.templates.base import Config, Implementation, KernelCall, Space
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
from sartor.templates.vectors import can_mask, lanes_for
from sartor.types import BYTES

OPERATIONS = ("sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum", "log_sum_exp")
VECTORS = 4
PARTS = 16


def estimate(dim: Dim, value: int) -> int:
    """`dim` with every symbol taken to be `value`."""
    return evaluate(dim, dict.fromkeys(symbols(dim), value))


class Reduce:
    """See the module; argmax and argmin are in `reduce_index`."""

    name = "reduce"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "reduce" and problem["op"] in OPERATIONS and problem.input(0).dtype in BYTES

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"parts": (1,) if problem["op"] == "log_sum_exp" else (1, 4, PARTS)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        shape = reduction_of(problem.input(0), problem["axes"])
        results = estimate(shape.rows, 1) * (1 if shape.along_columns else -(-estimate(shape.columns, 1) // 64))
        work = estimate(problem.input(0).elements, 48)
        few = results < 2 * device.cores and work >= 1 << 17 and problem["op"] != "log_sum_exp"
        return {"parts": PARTS if few else 1}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        parts = int(config["parts"])
        whole = _Code(problem, device, parts)
        whole.write()
        shape, width = whole.shape, whole.width
        moved = problem.input(0).bytes
        each: Dim = shape.count if shape.along_columns else shape.count * width
        grain = maximum(1, ceildiv(1 << 14, maximum(each, 1)))
        if parts == 1:
            extent = shape.rows * (1 if shape.along_columns else block_count(shape.columns, width))
            call = KernelCall(whole.b.finish(), whole.arguments(), extent, grain=grain, bytes=moved + problem.output().bytes)
            return Implementation((call,))
        first = KernelCall(whole.b.finish(), whole.arguments(), shape.rows * parts, bytes=moved)
        second = _Combine(problem, device, parts)
        second.write()
        columns = 1 if shape.along_columns else shape.columns
        last = KernelCall(second.b.finish(), second.arguments(), shape.rows * block_count(columns, width), grain=16)
        return Implementation((first, last), (shape.rows * parts * columns * BYTES[whole.scalar],))


class _Results:
    """What both kernels share: the output, the epilogue and the last step of an operation."""

    def __init__(self, problem: Problem, device: Device, name: str) -> None:
        self.b = b = Builder(name)
        self.problem = problem
        self.op: str = problem["op"]
        self.shape = reduction_of(problem.input(0), problem["axes"])
        self.scalar = working(problem.input(0).dtype)
        self.how: Accumulator = accumulator(self.op)
        self.slots = Slots(b, problem)
        kinds = [problem.input(0).dtype, self.scalar, problem.output().dtype]
        self.lanes = lanes_for(device.target, kinds)
        self.masked = can_mask(device.target, kinds)
        self.width = 2 * VECTORS * self.lanes

    def declare_output(self) -> None:
        """Declares the output's slots and the epilogue's."""
        output = self.problem.layer.outputs[0]
        self.y = self.slots.pointer("y", output)
        self.y_pitch = self.slots.pitch("y_pitch", output)
        self.count = self.slots.size("count", self.shape.count) if self.op == "mean" else None
        self.epilogue = Epilogue(self.b, self.problem)

    def arguments(self) -> tuple[Any, ...]:
        return (*self.slots.arguments, *self.epilogue.arguments())

    def finish(self, total: Value) -> Value:
        """The result of an operation from its total."""
        b = self.b
        if self.count is not None:
            count = b.cast(self.count, total.type.scalar)
            return total / count if total.type.is_float else total // count
        if self.op == "l2":
            return b.unary("sqrt", total) if total.type.is_float else self.through_double("sqrt", total)
        if self.op == "log_sum":
            return functions.FUNCTIONS["log"](b, total) if total.type.is_float else self.through_double("log", total)
        return total

    def through_double(self, op: str, x: Value) -> Value:
        b, wide = self.b, self.b.cast(x, "f64")
        return b.cast(b.unary("sqrt", wide) if op == "sqrt" else functions.FUNCTIONS["log"](b, wide), x.type.scalar)

    def put(self, total: Value, row: Value, column: Number, lanes: int, mask: Value | None) -> None:
        """Stores results."""
        result = self.epilogue.apply(total, row, column, lanes, mask)
        at = row * self.y_pitch
        self.b.store(self.y, at if isinstance(column, int) and column == 0 else at + column, result, mask)


class _Code(_Results):
    """The kernel that reads the input."""

    def __init__(self, problem: Problem, device: Device, parts: int) -> None:
        super().__init__(problem, device, "reduce" if parts == 1 else "reduce_parts")
        slots, shape, source = self.slots, self.shape, problem.layer.inputs[0]
        self.parts = parts
        self.x = slots.pointer("x", source)
        self.x_pitch = slots.pitch("x_pitch", source)
        self.columns = slots.known("columns", shape.columns)
        self.kept = KeptRows(slots, shape)
        self.loops: Nest = [(0, slots.known("size", g.size), slots.known("stride", g.stride)) for g in reversed(shape.reduced)]
        self.partial: Buffer | None = None
        if parts > 1:
            self.partial = slots.workspace("partial", 0, self.scalar)
        self.declare_output()

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        if self.partial is not None:
            with b.loop("item", b.begin, b.end) as item:
                self.part(item)
        elif self.shape.along_columns:
            with b.loop("row", b.begin, b.end) as row:
                self.put(self.finish(self.row_total(self.kept.start(row), self.loops, 0, self.columns)), row, 0, 1, None)
        else:
            blocks(b, self.columns, self.width, self.some_columns)

    def fetch(self, offset: Number, lanes: int, mask: Value | None) -> Value:
        return widen(self.b, self.b.load(self.x, offset, lanes, mask))

    # --- columns reduced ---

    def row_total(self, start: Number, loops: Nest, first: Number, last: Number) -> Value:
        """The total of everything under one row of the output."""
        if self.op == "log_sum_exp":
            return self.row_log_sum_exp(start)
        return self.row_accumulate(self.how, start, loops, first, last, lambda x: x)

    def row_accumulate(self, how: Accumulator, start: Number, loops: Nest, first: Number, last: Number, change: Any) -> Value:
        total = RowTotal(self.b, how, self.scalar, self.lanes, masked=self.masked, vectors=VECTORS)

        def row(at: Number) -> None:
            base = at * self.x_pitch
            total.take(first, last, lambda column, lanes, mask: change(self.fetch(base + column, lanes, mask)))

        nest(self.b, loops, start, row)
        return total.result()

    def row_log_sum_exp(self, start: Number) -> Value:
        b = self.b
        top = self.anchor(self.row_accumulate(accumulator("max"), start, self.loops, 0, self.columns, lambda x: x))
        total = self.row_accumulate(accumulator("sum"), start, self.loops, 0, self.columns, lambda x: functions.exp(b, x - top))
        return functions.FUNCTIONS["log"](b, total) + top

    def anchor(self, top: Value) -> Value:
        """The maximum, or 0 where it is infinite."""
        b = self.b
        return b.select(b.unary("abs", top) < float("inf"), top, 0.0)

    # --- columns kept ---

    def some_columns(self, row: Value, first: Number, last: Number) -> None:
        """The results of one row of the output for some columns."""
        start = self.kept.start(row)

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            for v, total in enumerate(self.columns_total(start, self.loops, column, vectors, lanes, mask)):
                self.put(self.finish(total), row, column + v * lanes, lanes, mask)

        tiles(self.b, first, last, self.lanes, VECTORS, tile, masked=self.masked)

    def columns_total(self, start: Number, loops: Nest, column: Value, vectors: int, lanes: int, mask: Value | None) -> list[Value]:
        """Totals over the rows for some vectors of columns."""
        b, kind = self.b, Type(self.scalar, lanes)

        def fetch(row: Number, vector: int) -> Value:
            return self.fetch(row * self.x_pitch + (column + vector * lanes), lanes, mask)

        if self.op != "log_sum_exp":
            return tile_totals(b, self.how, kind, vectors, loops, start, fetch)
        tops = [self.anchor(t) for t in tile_totals(b, accumulator("max"), kind, vectors, loops, start, fetch)]
        totals = tile_totals(b, accumulator("sum"), kind, vectors, loops, start,
                             lambda row, v: functions.exp(b, fetch(row, v) - tops[v]))
        return [functions.FUNCTIONS["log"](b, total) + top for total, top in zip(totals, tops, strict=True)]

    # --- in parts ---

    def part(self, item: Value) -> None:
        """One part of the totals of one row of the output, written to the workspace."""
        b, partial = self.b, self.partial
        assert partial is not None
        row = item // self.parts
        place = item - row * self.parts
        start = self.kept.start(row)

        def cut(size: Number) -> tuple[Value, Value]:
            return place * size // self.parts, (place + 1) * size // self.parts

        loops = self.loops
        columns: tuple[Number, Number] = (0, self.columns)
        if loops:
            (_, size, stride), *rest = loops
            loops = [(*cut(size), stride), *rest]
        elif self.shape.along_columns:
            columns = cut(self.columns)
        if self.shape.along_columns:
            b.store(partial, item, self.row_total(start, loops, *columns))
            return

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            for v, total in enumerate(self.columns_total(start, loops, column, vectors, lanes, mask)):
                b.store(partial, item * self.columns + (column + v * lanes), total, mask)

        tiles(b, 0, self.columns, self.lanes, VECTORS, tile, masked=self.masked)


class _Combine(_Results):
    """The kernel that combines parts, in order."""

    def __init__(self, problem: Problem, device: Device, parts: int) -> None:
        super().__init__(problem, device, "reduce_combine")
        self.parts = parts
        self.partial = self.slots.workspace("partial", 0, self.scalar)
        columns = 1 if self.shape.along_columns else self.shape.columns
        self.columns = self.slots.known("columns", columns)
        self.declare_output()

    def write(self) -> None:
        """Emits the kernel's loops."""
        b, partial = self.b, self.partial

        def some(row: Value, first: Number, last: Number) -> None:
            base = row * self.parts

            def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
                total = b.variable("total", self.how.start(b, Type(self.scalar, lanes)))
                with b.loop("part", 0, self.parts) as part:
                    x = b.load(partial, (base + part) * self.columns + column, lanes, mask)
                    total.set(self.how.combine(b, total.get(), x))
                self.put(self.finish(total.get()), row, column, lanes, mask)

            tiles(b, first, last, self.lanes, 1, tile, masked=self.masked)

        blocks(b, self.columns, self.width, some)

