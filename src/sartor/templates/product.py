"""Products of matrices: what a layer is as a product, and the loops round the register tile.

Blocks follow Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008) without packing of the left-hand
side, which is read where it lies: a panel of the right-hand side stays in L1 or L2, a chunk of rows in L2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sartor.devices.device import Device
from sartor.graph.layer import Problem, Tensor
from sartor.loops.language import I64, Buffer, Builder, Number, Value
from sartor.sizes import Dim, product
from sartor.templates.base import Argument, Config, KernelCall
from sartor.templates.blocks import Run, chunks, even, runs, tiles_of
from sartor.templates.expression_code import Broadcast, Epilogue, classify
from sartor.templates.microkernel import (
    Accumulators,
    Ahead,
    Output,
    Place,
    Tile,
    choose_tile,
    depth_unroll,
    is_narrow,
    multiply,
    parse_tile,
    rows_from,
)
from sartor.templates.slots import Slots
from sartor.types import BYTES


@dataclass(frozen=True)
class Product:
    """A layer seen as products C[q] = A[a(q)] B[b(q)] of matrices M x K and K x N, q over a batch.

    `a_batch` and `b_batch` say which matrix of each operand meets matrix q, as `Broadcast.groups` does.
    """

    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    a_batch: tuple[tuple[Dim, Dim], ...]
    b_batch: tuple[tuple[Dim, Dim], ...]
    transpose_a: bool
    transpose_b: bool


def as_product(problem: Problem) -> Product | None:
    """The layer as a product, or None where it is none."""
    layer = problem.layer
    if layer.kind == "matmul":
        return _matmul_product(problem)
    if layer.kind == "convolution" and _is_pointwise(problem):
        image, (*_, channels, outputs) = problem.input(0), problem.input(1).shape
        return Product(1, image.rows, outputs, channels, (), (), False, False)
    return None


def _is_pointwise(problem: Problem) -> bool:
    kernel = problem.input(1).shape[:-2]
    return (all(k == 1 for k in kernel) and all(s == 1 for s in problem["strides"]) and all(p == 0 for p in problem["pads"])
            and problem["groups"] == 1)


def _matmul_product(problem: Problem) -> Product | None:
    a, b, out = problem.input(0).shape, problem.input(1).shape, problem.output().shape
    if len(a) < 2 or len(b) < 2 or len(out) < 2:
        return None
    transpose_a, transpose_b = bool(problem["transpose_a"]), bool(problem["transpose_b"])
    k = a[-2] if transpose_a else a[-1]
    b_batch = _batch_map(b, out)
    if not transpose_a and not b_batch:
        return Product(1, product(out[:-1]), out[-1], k, (), (), False, transpose_b)
    return Product(product(out[:-2]), out[-2], out[-1], k, _batch_map(a, out), b_batch, transpose_a, transpose_b)


def _batch_map(operand: tuple[Dim, ...], out: tuple[Dim, ...]) -> tuple[tuple[Dim, Dim], ...]:
    found: Broadcast = classify(Tensor("f32", (*operand[:-2], 1)), Tensor("f32", (*out[:-2], 1)))
    return found.groups


def matrix_index(slots: Slots, groups: tuple[tuple[Dim, Dim], ...], q: Value) -> Number:
    """Which matrix of an operand meets matrix `q` of the output."""
    total: Number = 0
    rest = q
    for place, (size, stride) in enumerate(groups):
        last = place + 1 == len(groups)
        quotient = rest if last else rest // slots.known("batch_size", size)
        index = rest if last else rest - quotient * slots.known("batch_size", size)
        if not (isinstance(stride, int) and stride == 0):
            part = index * slots.known("batch_stride", stride)
            total = part if isinstance(total, int) else total + part
        rest = quotient
    return total


# --- the kernel -----------------------------------------------------------------------------------------------------------


class Panels(Protocol):
    """Where the right-hand side comes from."""

    aligned: bool

    def slice(self, matrix: Number, panel: Value, start: Value, end: Value) -> Buffer:
        """Emits what makes rows start..end of a panel of a matrix ready, and returns their address."""


class PackedPanels:
    """Panels that were packed when compiling: [matrix][panel][depth][column]."""

    aligned = True

    def __init__(self, buffer: Buffer, columns: int, depth: Value, count: Value) -> None:
        self.buffer = buffer
        self.columns = columns
        self.size = depth * columns
        self.count = count

    def slice(self, matrix: Number, panel: Value, start: Value, end: Value) -> Buffer:
        """The address of the slice."""
        del end
        return self.buffer.at((self.count * matrix + panel) * self.size).at(start * self.columns)


class ProductCode:
    """Writes the loops of a product; construct it before the epilogue, then `write`."""

    def __init__(self, slots: Slots, found: Product, tile: Tile, config: Config) -> None:
        layer = slots.problem.layer
        self.slots, self.product, self.tile, self.config = slots, found, tile, config
        self.builder: Builder = slots.builder
        self.a = slots.pointer("a", layer.inputs[0])
        self.a_pitch = slots.pitch("a_pitch", layer.inputs[0])
        self.c = slots.pointer("c", layer.outputs[0])
        self.c_pitch = slots.pitch("c_pitch", layer.outputs[0])
        self.m, self.n, self.k = slots.size("m", found.m), slots.size("n", found.n), slots.size("k", found.k)
        for size, stride in (*found.a_batch, *found.b_batch):
            slots.known("batch_size", size)
            slots.known("batch_stride", stride)
        self.block_count = slots.size("panel_blocks", panel_blocks(found, tile, config))
        self.chunk = slots.size("chunk_tiles", chunk_tiles(tile, config))
        self.panel_count = (self.n + (tile.columns - 1)) // tile.columns
        self.tiles = self.builder.maximum((self.m + (tile.rows - 1)) // tile.rows, 1)

    def write(self, epilogue: Epilogue, panels: Panels) -> None:
        """Emits the whole body."""
        b, tile = self.builder, self.tile
        self.panels = panels
        self.output = Output(b, tile, epilogue, self.c, self.c_pitch, is_narrow(self.slots.problem))
        a_rows = self.k if self.product.transpose_a else self.m
        blocks = b.maximum(self.block_count, 1)
        with runs(b, self.tiles) as run:
            q = run.outer // blocks
            block = even(b, self.panel_count, blocks, run.outer - q * blocks)
            a = self.a.at(matrix_index(self.slots, self.product.a_batch, q) * (a_rows * self.a_pitch))
            matrix = matrix_index(self.slots, self.product.b_batch, q)
            last_panel = block.start + block.length
            with chunks(b, run, self.chunk) as chunk, b.loop("panel", block.start, last_panel, unroll=1) as p:
                self._panel(chunk, a, matrix, p, q * self.m)

    def _panel(self, chunk: Run, a: Buffer, matrix: Number, p: Value, first_row: Value) -> None:
        """All tiles of a chunk times one panel, slice by slice of the depth."""
        b, depth_block, column = self.builder, int(self.config["kc"]), p * self.tile.columns
        zero = b.constant(0, I64)
        if not depth_block:
            panel = self.panels.slice(matrix, p, zero, self.k)
            with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
                self._tile(chunk, t, a, panel, zero, None, first_row, column)
            return
        with b.loop("slice", 0, b.maximum(self.k, 1), depth_block, unroll=1) as start:
            end = b.minimum(start + depth_block, self.k)
            panel = self.panels.slice(matrix, p, start, end)
            with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
                self._tile(chunk, t, a, panel, start, end, first_row, column)

    def _tile(self, chunk: Run, t: Value, a: Buffer, panel: Buffer, start: Value, end: Value | None, first_row: Value,
              column: Value) -> None:
        """One register tile over the depth `start..end` (end None: all of it)."""
        b, tile = self.builder, self.tile
        part = even(b, self.m, self.tiles, t)
        transposed = self.product.transpose_a
        origin = a.at(part.start if transposed else part.start * self.a_pitch)
        if end is not None:
            origin = origin.at(start * self.a_pitch if transposed else start)

        depth = self.k if end is None else end - start
        unroll = int(self.config["unroll"])
        meanwhile = self._fetch(chunk, t, origin, panel.at(depth * tile.columns), depth)

        def accumulate(accumulators: Accumulators) -> None:
            rows = [origin.at(i if transposed else self.a_pitch * i) for i in range(accumulators.rows)]
            nearly_full = accumulators.rows + 1 >= tile.rows
            multiply(accumulators, rows, panel, depth, unroll=unroll if nearly_full else 1, aligned=self.panels.aligned,
                     row_step=self.a_pitch if transposed else 1, meanwhile=meanwhile if nearly_full else None)

        place = Place(rows_from(first_row + part.start), column, part.length, self.n - column)
        if end is None:
            self.output.compute(place, b.scratch(tile.scalar), accumulate)
        else:
            copy = b.scratch(tile.scalar, (t - chunk.first) * tile.bytes)
            self.output.compute(place, copy, accumulate, start > 0, end >= self.k)


    def _fetch(self, chunk: Run, t: Value, origin: Buffer, panel_end: Buffer, depth: Value) -> Callable[[Value], None] | None:
        """What a tile fetches while it is computed: a part of the next panel, and the rows of the next tile."""
        b, tile, unroll = self.builder, self.tile, int(self.config["unroll"])
        steps = []
        if self.config["prefetch"]:
            ahead = Ahead(b, tile, int(self.config["prefetch"]))
            steps.append(ahead.fetch(ahead.start(panel_end, depth, t - chunk.first), unroll))
        if self.config["rows_ahead"] and not self.product.transpose_a:
            following = origin.at(self.a_pitch * tile.rows)
            line = 64 // BYTES[following.scalar]

            def rows(k: Value) -> None:
                for offset in range(0, tile.rows * unroll, line):
                    b.prefetch(following, k * tile.rows + offset)

            steps.append(rows)

        def all_steps(k: Value) -> None:
            for step in steps:
                step(k)

        return all_steps if steps else None


def chunk_tiles(tile: Tile, config: Config) -> int:
    """Row tiles in a chunk."""
    return max(1, int(config["mc"]) // tile.rows)


def copies_bytes(tile: Tile, config: Config) -> int:
    """Scratch for copies of tiles: one, or, where the depth is cut, one for each tile of a chunk."""
    return tile.bytes * (chunk_tiles(tile, config) if config["kc"] else 1)


def panel_blocks(found: Product, tile: Tile, config: Config) -> Dim:
    """Into how many blocks the panels are cut, by the knob that says how many panels a block has at most."""
    panels = tiles_of(found.n, tile.columns)
    return tiles_of(panels, int(config["panels"]))


def product_call(code: ProductCode, arguments: tuple[Argument, ...], scratch: Dim) -> KernelCall:
    """The call of a finished kernel."""
    found, problem = code.product, code.slots.problem
    return KernelCall(
        code.builder.finish(), arguments, scratch=scratch,
        extent=product((found.batch, panel_blocks(found, code.tile, code.config), tiles_of(found.m, code.tile.rows))),
        multiply_adds=product((found.batch, found.m, found.n, found.k)),
        bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes)


def blocking(found: Product, device: Device, scalar: str) -> dict[str, Any]:
    """Tile and blocks by rule: a block of panels fills about half of L2, a chunk of rows the other half."""
    columns = found.n if isinstance(found.n, int) else 1 << 16
    depth = max(1, found.k) if isinstance(found.k, int) else 512
    text = choose_tile(columns, device.target, scalar)
    tile = parse_tile(text, scalar, device.target)
    row = depth * BYTES[scalar]
    panels = -(-columns // tile.columns)
    fitting = max(1, device.l2_bytes // 2 // (row * tile.columns))
    mc = min(max(tile.rows, device.l2_bytes // 2 // row // tile.rows * tile.rows), 960 // tile.rows * tile.rows)
    return {"tile": text, "kc": 0, "mc": mc, "panels": max(1, min(panels, fitting)), "unroll": depth_unroll(device.target),
            "prefetch": 4, "rows_ahead": 2 * row * tile.rows <= device.l1_bytes}
