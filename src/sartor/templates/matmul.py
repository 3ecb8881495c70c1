"""Matrix products of two values that are known only at run time: batches, broadcasting and transposes of either.

Each thread packs the panel it is about to use into its scratch, a slice of the depth at a time, and runs all rows of its chunk over
it.  Packing turns a transposed right-hand side and fills partial panels, so that the inner loops are those of `gemm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Number, Value
from sartor.sizes import minimum
from sartor.templates.base import Config, Implementation, Space
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.microkernel import Tile, is_narrow, may_overwrite, parse_tile, tile_choices
from sartor.templates.product import ProductCode, as_product, blocking, copies_bytes, product_call
from sartor.templates.slots import Slots
from sartor.types import BYTES

WIDEST_TRANSPOSE = 16
"""Vectors of more lanes are turned element by element."""


def transposed_square(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of as many vectors as lanes, by exchanging ever larger blocks."""
    rows, lanes = list(rows), len(rows)
    step = 1
    while step < lanes:
        low = [lane if not lane & step else lanes + lane - step for lane in range(lanes)]
        high = [lane + step if not lane & step else lanes + lane for lane in range(lanes)]
        for i in range(lanes):
            if not i & step:
                a, c = rows[i], rows[i + step]
                rows[i], rows[i + step] = builder.shuffle(a, c, low), builder.shuffle(a, c, high)
        step *= 2
    return rows


class PanelPacker:
    """Panels packed in the thread's scratch just before they are used."""

    aligned = False

    def __init__(self, code: ProductCode, source: Buffer, pitch: Value, place: Buffer) -> None:
        self.builder = code.builder
        self.tile: Tile = code.tile
        self.transposed = code.product.transpose_b
        self.k, self.n = code.k, code.n
        self.source = source
        self.pitch = pitch
        self.place = place

    def slice(self, matrix: Number, panel: Value, start: Value, end: Value) -> Buffer:
        """Packs the slice."""
        column = panel * self.tile.columns
        left = self.n - column
        if self.transposed:
            origin = self.source.at(self.n * self.pitch * matrix).at(column * self.pitch + start)
            if self.tile.lanes > WIDEST_TRANSPOSE or self.tile.lanes == 1:
                self._turn_elements(origin, left, end - start)
            else:
                self._turn(origin, left, end - start)
        else:
            self._copy(self.source.at(self.k * self.pitch * matrix).at(start * self.pitch + column), left, end - start)
        return self.place

    def _copy(self, origin: Buffer, left: Value, depth: Value) -> None:
        b, lanes, columns = self.builder, self.tile.lanes, self.tile.columns

        def rows(masks: list[Value | None]) -> None:
            with b.loop("pack", 0, depth, unroll=4 if masks[0] is None else 1) as k:
                for j, mask in enumerate(masks):
                    value = widen(b, b.load(origin, k * self.pitch + j * lanes, lanes, mask))
                    b.store(self.place, k * columns + j * lanes, value)

        with b.branch(left >= columns):
            rows([None] * self.tile.vectors)
        with b.otherwise():
            rows([b.first_lanes(left - j * lanes, lanes) for j in range(self.tile.vectors)])

    def _turn(self, origin: Buffer, left: Value, depth: Value) -> None:
        """Squares of the transposed matrix; columns that do not exist are filled with the last that does."""
        b, lanes, columns = self.builder, self.tile.lanes, self.tile.columns
        whole = depth // lanes * lanes
        with b.loop("vector", 0, columns, lanes, unroll=1) as j:
            rows = [origin.at(b.minimum(j + i, left - 1) * self.pitch) for i in range(lanes)]

            def square(k: Value, mask: Value | None, rows: list[Buffer] = rows, j: Value = j) -> None:
                loaded = [widen(b, b.load(row, k, lanes, mask)) for row in rows]
                for i, value in enumerate(transposed_square(b, loaded)):
                    b.store(self.place, (k + i) * columns + j, value)

            with b.loop("pack", 0, whole, lanes, unroll=1) as k:
                square(k, None)
            with b.branch(whole < depth):
                square(whole, b.first_lanes(depth - whole, lanes))

    def _turn_elements(self, origin: Buffer, left: Value, depth: Value) -> None:
        b, columns = self.builder, self.tile.columns
        with b.loop("column", 0, columns, unroll=1) as j:
            row = origin.at(b.minimum(j, left - 1) * self.pitch)
            with b.loop("pack", 0, depth) as k:
                b.store(self.place, k * columns + j, widen(b, b.load(row, k)))


class MatMulTemplate:
    """Products of two values known at run time."""

    name = "matmul"

    def applies(self, problem: Problem, device: Device) -> bool:
        return (problem.layer.kind == "matmul" and as_product(problem) is not None and problem.input(0).dtype != "bool"
                and problem.input(0).dtype == problem.input(1).dtype)

    def space(self, problem: Problem, device: Device) -> Space:
        default = self.default(problem, device)
        return Space({"tile": tile_choices(device.target), "panels": sorted({1, 2, 4, 8, default["panels"]}),
                      "mc": sorted({48, 96, 192, 384, default["mc"]}), "kc": (256, 512, 1024), "unroll": (4, 2, 8), "prefetch": (0,),
                      "rows_ahead": (True, False)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        found = as_product(problem)
        assert found is not None
        rule = blocking(found, device, working(problem.input(0).dtype))
        # Rows of a panel are packed once a chunk, so chunks are large; blocks of panels are small, so that threads share columns.
        return {**rule, "kc": 256, "mc": 384, "panels": 4, "prefetch": 0, "rows_ahead": True}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        found = as_product(problem)
        assert found is not None
        scalar = working(problem.input(0).dtype)
        tile = parse_tile(config["tile"], scalar, device.target)
        builder = Builder("matmul")
        slots = Slots(builder, problem)
        source = slots.pointer("b", problem.layer.inputs[1])
        pitch = slots.pitch("b_pitch", problem.layer.inputs[1])
        code = ProductCode(slots, found, tile, config)
        epilogue = Epilogue(builder, problem)
        copies = -(-copies_bytes(tile, config) // 64) * 64
        code.write(epilogue, PanelPacker(code, source, pitch, builder.scratch(scalar, copies)))
        depth = minimum(found.k, int(config["kc"]))
        room = (depth + tile.lanes) * (tile.columns * BYTES[scalar])
        return Implementation((product_call(code, (*slots.arguments, *epilogue.arguments()), copies + room),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value == problem.layer.outputs[0] and is_narrow(problem)

    def in_place(self, problem: Problem, value: str) -> bool:
        return may_overwrite(problem, value)


MATMUL = MatMulTemplate()
