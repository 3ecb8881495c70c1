"""Matrix products whose right-hand side is constant: MatMul and Gemm with weights, and 1x1 convolutions.

The weights are packed in panels when compiling; the left-hand side is read where it lies.  Blocks follow Goto and van de Geijn
("Anatomy of high-performance matrix multiplication", 2008) without packing of A: a slice of a panel stays in L1, a chunk of
rows in L2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem, Tensor
from sartor.loops.language import I64, Buffer, Builder, Number, Value
from sartor.sizes import Dim, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.blocks import Run, chunks, even, runs, tiles_of
from sartor.templates.expression_code import Broadcast, Epilogue, classify, working
from sartor.templates.microkernel import Accumulators, Output, Place, Tile, choose_tile, multiply, parse_tile, tile_choices
from sartor.templates.panels import pack_panels, working_array
from sartor.templates.slots import Slots
from sartor.types import BYTES

Array = np.ndarray[Any, Any]


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


def declare_groups(slots: Slots, groups: tuple[tuple[Dim, Dim], ...]) -> None:
    """Declares the argument slots that `matrix_index` uses (before any loop)."""
    for size, stride in groups:
        slots.known("batch_size", size)
        slots.known("batch_stride", stride)


# --- the kernel -----------------------------------------------------------------------------------------------------------


@dataclass
class GemmCode:
    """Writes the kernel of a product with packed panels."""

    slots: Slots
    product: Product
    tile: Tile
    config: Config
    panels: Buffer
    panels_aligned: bool

    def __post_init__(self) -> None:
        slots, layer = self.slots, self.slots.problem.layer
        self.builder: Builder = slots.builder
        self.a = slots.pointer("a", layer.inputs[0])
        self.a_pitch = slots.pitch("a_pitch", layer.inputs[0])
        self.c = slots.pointer("c", layer.outputs[0])
        self.c_pitch = slots.pitch("c_pitch", layer.outputs[0])
        self.m = slots.size("m", self.product.m)
        self.n = slots.size("n", self.product.n)
        self.k = slots.size("k", self.product.k)
        declare_groups(slots, self.product.a_batch)
        declare_groups(slots, self.product.b_batch)
        self.block_count = slots.size("panel_blocks", panel_blocks(self.product, self.tile, self.config))

    def write(self, epilogue: Epilogue) -> None:
        """Emits the whole body."""
        b, tile = self.builder, self.tile
        self.output = Output(b, tile, epilogue, self.c, self.c_pitch)
        self.tiles = b.maximum((self.m + (tile.rows - 1)) // tile.rows, 1)
        panel_count = (self.n + (tile.columns - 1)) // tile.columns
        panel_size = self.k * tile.columns
        with runs(b, self.tiles) as run:
            q = run.outer // self.block_count
            block = even(b, panel_count, self.block_count, run.outer - q * self.block_count)
            a = self.a.at(matrix_index(self.slots, self.product.a_batch, q) * (self.a_rows() * self.a_pitch))
            matrix = self.panels.at(matrix_index(self.slots, self.product.b_batch, q) * (panel_count * panel_size))
            last_panel = block.start + block.length
            with chunks(b, run, self.chunk_tiles()) as chunk, b.loop("panel", block.start, last_panel, unroll=1) as p:
                self.panel(chunk, a, matrix.at(p * panel_size), q * self.m, p * tile.columns)

    def a_rows(self) -> Value:
        return self.k if self.product.transpose_a else self.m

    def chunk_tiles(self) -> int:
        return max(1, int(self.config["mc"]) // self.tile.rows)

    def panel(self, chunk: Run, a: Buffer, panel: Buffer, first_row: Value, column: Value) -> None:
        """All tiles of a chunk times one panel, slice by slice of the depth."""
        b, depth_block = self.builder, int(self.config["kc"])
        if not depth_block:
            zero = b.constant(0, I64)
            with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
                self.one_tile(t, zero, a, panel, zero, None, first_row, column)
            return
        with b.loop("slice", 0, self.k, depth_block, unroll=1) as start:
            end = b.minimum(start + depth_block, self.k)
            with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
                self.one_tile(t, t - chunk.first, a, panel, start, end, first_row, column)

    def one_tile(self, t: Value, place_in_scratch: Value, a: Buffer, panel: Buffer, start: Value, end: Value | None,
                 first_row: Value, column: Value) -> None:
        """One register tile over the depth `start..end` (end None: all of it)."""
        b, tile = self.builder, self.tile
        part = even(b, self.m, self.tiles, t)
        transposed = self.product.transpose_a
        origin = a.at(part.start if transposed else part.start * self.a_pitch)
        if end is not None:
            origin, panel = origin.at(start * self.a_pitch if transposed else start), panel.at(start * tile.columns)

        def accumulate(accumulators: Accumulators) -> None:
            rows = [origin.at(i if transposed else self.a_pitch * i) for i in range(accumulators.rows)]
            nearly_full = accumulators.rows + 1 >= tile.rows
            multiply(accumulators, rows, panel, self.k if end is None else end - start,
                     unroll=int(self.config["unroll"]) if nearly_full else 1, row_step=self.a_pitch if transposed else 1,
                     aligned=self.panels_aligned, prefetch=int(self.config["prefetch"]))

        place = Place(first_row + part.start, column, part.length, self.n - column)
        copy = b.scratch(tile.scalar, place_in_scratch * tile.bytes)
        if end is None:
            self.output.compute(place, copy, accumulate)
        else:
            self.output.compute(place, copy, accumulate, start > 0, end >= self.k)


def panel_blocks(product: Product, tile: Tile, config: Config) -> Dim:
    """Into how many blocks the panels are cut, by the knob that says how many panels a block has at most."""
    panels = tiles_of(product.n, tile.columns)
    return tiles_of(panels, int(config["panels"]))


# --- the template ---------------------------------------------------------------------------------------------------------


def blocking(product: Product, device: Device, scalar: str, depth: int) -> dict[str, Any]:
    """Tile and blocks by rule: a block of panels fills about half of L2, a chunk of rows the other half."""
    columns = product.n if isinstance(product.n, int) else 1 << 16
    text = choose_tile(columns, device.target, scalar)
    tile = parse_tile(text, scalar, device.target)
    size = BYTES[scalar]
    panel = depth * tile.columns * size
    panels = -(-columns // tile.columns)
    fitting = max(1, device.l2_bytes // 2 // panel)
    mc = max(tile.rows, device.l2_bytes // 2 // max(1, depth * size) // tile.rows * tile.rows)
    mc = min(mc, 960 // tile.rows * tile.rows)
    return {"tile": text, "kc": 0, "mc": mc, "panels": min(panels, fitting), "unroll": 4, "prefetch": 0}


class GemmTemplate:
    """Products with a constant right-hand side, on register tiles with packed weights."""

    name = "gemm"

    def applies(self, problem: Problem, device: Device) -> bool:
        found = as_product(problem)
        return (found is not None and problem.constant(1) is not None and problem.input(0).dtype != "bool"
                and problem.input(0).dtype == problem.input(1).dtype)

    def space(self, problem: Problem, device: Device) -> Space:
        default = self.default(problem, device)
        tiles = tile_choices(device.target)
        panels = sorted({1, 2, 4, 8, 16, 32, default["panels"]})
        mc = sorted({24, 48, 96, 192, 384, default["mc"]})
        return Space({"tile": tiles, "panels": panels, "mc": mc, "kc": (0, 256, 512), "unroll": (4, 2, 8), "prefetch": (0, 16)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        found = self._product(problem)
        depth = problem.input(1).shape[-1 if found.transpose_b else -2]
        return blocking(found, device, working(problem.input(0).dtype), int(depth))  # type: ignore[arg-type]

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        weights = problem.constant(1)
        assert weights is not None
        dtype = problem.input(1).dtype
        matrix = working_array(weights, dtype)
        if problem.layer.kind == "convolution":
            matrix = matrix.reshape(matrix.shape[-2:])
        elif problem["transpose_b"]:
            matrix = np.swapaxes(matrix, -1, -2)
        return (pack_panels(matrix, parse_tile(config["tile"], working(dtype), device.target).columns),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        found = self._product(problem)
        scalar = working(problem.input(0).dtype)
        tile = parse_tile(config["tile"], scalar, device.target)
        builder = Builder("gemm")
        slots = Slots(builder, problem)
        code = GemmCode(slots, found, tile, config, slots.constant("b", 0, scalar), True)
        epilogue = Epilogue(builder, problem)
        code.write(epilogue)
        copies = code.chunk_tiles() if config["kc"] else 1
        return Implementation((KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()),
            extent=product((found.batch, panel_blocks(found, tile, config), tiles_of(found.m, tile.rows))),
            scratch=copies * tile.bytes, multiply_adds=product((found.batch, found.m, found.n, found.k)),
            bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def _product(self, problem: Problem) -> Product:
        found = as_product(problem)
        assert found is not None
        return found


GEMM = GemmTemplate()
