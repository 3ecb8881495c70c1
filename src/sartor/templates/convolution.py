"""Direct convolution: a product without the matrix of patches.

Output pixels are the rows of the product, (tap, input channel) its depth.  For a chunk of pixels the addresses of the pixels
under each tap are written to scratch once (the indirection of Dukhan, "The indirect convolution algorithm", 2019), padding being
the address of zeros; then every panel of output channels runs over the chunk.  Images of few channels are gathered
instead: the patches of a chunk are copied to scratch, row of the window by row of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Value
from sartor.sizes import ceildiv, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.blocks import Run, chunks, even, runs, tiles_of
from sartor.templates.expression_code import Epilogue, working
from sartor.templates.microkernel import (
    Accumulators,
    Ahead,
    Output,
    Place,
    Tile,
    choose_tile,
    multiply,
    parse_tile,
    rows_from,
    tile_choices,
)
from sartor.templates.product import chunk_tiles
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, WindowCode, window
from sartor.templates.weights import Weights, is_static
from sartor.types import BYTES

Array = np.ndarray[Any, Any]

FEW_CHANNELS = 8
"""Images with fewer channels are gathered."""


def kernel_shape(problem: Problem) -> tuple[int, ...]:
    """Taps of the window along each spatial dimension."""
    return tuple(int(k) for k in problem.input(1).shape[:-2])  # type: ignore[arg-type]


def channels(problem: Problem) -> tuple[int, int, int]:
    """Groups, input channels a group, output channels a group."""
    *_, inputs, outputs = problem.input(1).shape
    groups = int(problem["groups"])
    return groups, int(inputs), int(outputs) // groups  # type: ignore[arg-type]


def is_gathered(problem: Problem) -> bool:
    """Whether patches are copied: few channels, taps of a row side by side."""
    groups, inputs, _ = channels(problem)
    return groups == 1 and inputs < FEW_CHANNELS and problem["dilations"][-1] == 1


class ConvolutionCode:
    """Writes the kernel; `Addresses` and `Patches` say how a chunk's left-hand side is prepared and read."""

    def __init__(self, slots: Slots, tile: Tile, config: Config, shape: Window, weights: Weights) -> None:
        problem = slots.problem
        self.slots = slots
        self.builder: Builder = slots.builder
        self.tile = tile
        self.config = config
        self.window = WindowCode(slots, shape, compiled=is_gathered(problem))
        scalar = problem.input(0).dtype
        _, inputs, outputs = channels(problem)
        self.panels = weights.declare(slots)
        self.aligned = weights.is_constant
        self.zeros = slots.zeros("zeros", max(64, inputs * BYTES[scalar]), scalar)
        self.y = slots.pointer("y", problem.layer.outputs[0])
        self.y_pitch = slots.pitch("y_pitch", problem.layer.outputs[0])
        self.pixels = slots.size("pixels", shape.pixels)
        self.inputs = slots.size("inputs", inputs)
        self.outputs = slots.size("outputs", outputs)
        self.depth = slots.size("depth", shape.taps * inputs)
        self.taps = slots.size("taps", shape.taps)
        self.block_count = slots.size("panel_blocks", group_blocks(outputs, tile, config))
        self.chunk = slots.size("chunk_tiles", chunk_tiles(tile, config))
        self._ahead = Ahead(self.builder, tile, max(1, int(config["prefetch"])))

    def write(self, epilogue: Epilogue, left: Addresses | Patches) -> None:
        """Emits the whole body."""
        b, tile = self.builder, self.tile
        output = Output(b, tile, epilogue, self.y, self.y_pitch)
        self.tiles = b.maximum((self.pixels + (tile.rows - 1)) // tile.rows, 1)
        panel_count = (self.outputs + (tile.columns - 1)) // tile.columns
        panel_size = self.depth * tile.columns
        with runs(b, self.tiles) as run:
            group = run.outer // self.block_count
            block = even(b, panel_count, self.block_count, run.outer - group * self.block_count)
            panels = self.panels.at((group * panel_count) * panel_size)
            first_column = group * self.outputs
            with chunks(b, run, self.chunk) as chunk:
                left.prepare(chunk, group * self.inputs)
                last_panel = block.start + block.length
                with b.loop("panel", block.start, last_panel, unroll=1) as p:
                    column = p * tile.columns
                    panel = panels.at(p * panel_size)
                    with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
                        part = even(b, self.pixels, self.tiles, t)
                        place = Place(rows_from(part.start), first_column + column, part.length, self.outputs - column)
                        accumulate = partial(left.accumulate, tile_index=t - chunk.first, start=part.start, panel=panel)
                        output.compute(place, b.scratch(tile.scalar), accumulate)

    def unroll(self, rows: int) -> int:
        """Copies of the innermost body: short tiles, which are few, get one."""
        return int(self.config["unroll"]) if rows + 1 >= self.tile.rows else 1


    def ahead(self, panel: Buffer, tile_index: Value) -> Buffer:
        """Where a tile starts to fetch the next panel."""
        if not self.config["prefetch"]:
            return panel
        return self._ahead.start(panel.at(self.depth * self.tile.columns), self.depth, tile_index)

    def fetch(self, rows: int, start: Buffer, step: Value | None) -> Callable[[Value], None] | None:
        """What a tile of `rows` rows does while it computes, from step `step` of the depth on."""
        unroll = self.unroll(rows)
        if not self.config["prefetch"] or unroll == 1:
            return None
        return self._ahead.fetch(start if step is None else start.at(step * self._ahead.rate), unroll)


class Addresses:
    """The left-hand side as a table in scratch: for each tile of a chunk, tap and row of the tile, the address of a pixel."""

    def __init__(self, code: ConvolutionCode) -> None:
        self.code = code
        self.table = code.builder.scratch_table(code.window.rows.scalar, code.tile.bytes)

    @staticmethod
    def scratch(tile: Tile, config: Config, shape: Window) -> int:
        """Bytes: a copy of a tile, then the table."""
        return tile.bytes + chunk_tiles(tile, config) * shape.taps * tile.rows * 8

    def prepare(self, chunk: Run, channel: Value) -> None:
        """Fills the table for a chunk of tiles."""
        code, b, rows = self.code, self.code.builder, self.code.tile.rows
        position = code.window.position(even(b, code.pixels, code.tiles, chunk.first).start)
        with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
            part = even(b, code.pixels, code.tiles, t)
            entries = (t - chunk.first) * (code.taps * rows)
            with b.loop("pixel", 0, part.length, unroll=1) as i:
                self._pixel([v.get() for v in position], entries + i, channel)
                code.window.advance(position)

    def _pixel(self, at: list[Value], entries: Value, channel: Value) -> None:
        """The addresses under all taps of one output pixel."""
        code, b, wide = self.code, self.code.builder, self.code.window.width
        first = at[-1] * wide.stride - wide.before
        with code.window.row_taps(at) as (number, entry, inside):
            row = code.window.rows.row(entry)
            with b.loop("tap_x", 0, wide.kernel, unroll=1) as x:
                column = first + x * wide.dilation
                valid = inside & (column >= 0) & (column < wide.size)
                address = b.select_buffer(valid, row.at(column * code.window.pitch + channel), code.zeros)
                b.set_row(self.table, entries + (number * wide.kernel + x) * code.tile.rows, address)

    def accumulate(self, accumulators: Accumulators, tile_index: Value, start: Value, panel: Buffer) -> None:
        """Adds the products of one tile, which begins at pixel `start`: taps, then channels."""
        del start
        code, b, tile = self.code, self.code.builder, self.code.tile
        entries = tile_index * (code.taps * tile.rows)
        ahead = code.ahead(panel, tile_index)
        with b.loop("tap", 0, code.taps, unroll=1) as tap:
            rows = [self.table.row(entries + tap * tile.rows + i) for i in range(accumulators.rows)]
            multiply(accumulators, rows, panel.at(tap * (code.inputs * tile.columns)), code.inputs,
                     unroll=code.unroll(accumulators.rows), aligned=code.aligned,
                     meanwhile=code.fetch(accumulators.rows, ahead, tap * code.inputs))


class Patches:
    """The left-hand side as a matrix in scratch: one row of (tap, channel) a pixel."""

    def __init__(self, code: ConvolutionCode, shape: Window, inputs: int) -> None:
        self.code = code
        self.run = shape.width.kernel * inputs
        self.inputs = inputs
        self.scalar = code.window.rows.scalar
        self.first_pixel = code.pixels
        self.lanes = code.tile.lanes
        self.row = self.row_length(code.tile, shape, inputs)
        self.matrix = code.builder.scratch(self.scalar, code.tile.bytes)

    @staticmethod
    def row_length(tile: Tile, shape: Window, inputs: int) -> int:
        """Elements between two rows: the depth and a vector to spare, since runs are stored in whole vectors."""
        return (shape.taps * inputs + 2 * tile.lanes - 1) // tile.lanes * tile.lanes

    @staticmethod
    def scratch(tile: Tile, config: Config, shape: Window, inputs: int, scalar: str) -> int:
        """Bytes: a copy of a tile, then the matrix."""
        return tile.bytes + chunk_tiles(tile, config) * tile.rows * Patches.row_length(tile, shape, inputs) * BYTES[scalar]

    def prepare(self, chunk: Run, channel: Value) -> None:
        """Copies the patches of a chunk of tiles (`channel` is 0: there is one group)."""
        del channel
        code, b = self.code, self.code.builder
        first = even(b, code.pixels, code.tiles, chunk.first).start
        last = even(b, code.pixels, code.tiles, chunk.last - 1)
        position = code.window.position(first)
        self.first_pixel = first
        with b.loop("pixel", 0, last.start + last.length - first, unroll=1) as i:
            self._pixel([v.get() for v in position], i * self.row)
            code.window.advance(position)

    def _pixel(self, at: list[Value], offset: Value) -> None:
        code, b, wide = self.code, self.code.builder, self.code.window.width
        first = at[-1] * wide.stride - wide.before
        within = (first >= 0) & (first + wide.kernel <= wide.size)
        with code.window.row_taps(at) as (number, entry, inside):
            to = self.matrix.at(offset + number * self.run)
            row = code.window.rows.row(entry)
            with b.branch(inside & within):
                self._copy_run(to, row.at(first * self.inputs))
            with b.otherwise():
                self._copy_part(to, row, first, inside)

    def _copy_run(self, to: Buffer, source: Buffer) -> None:
        """A row of the window that lies inside the image."""
        b = self.code.builder
        for start in range(0, self.run, self.lanes):
            left = self.run - start
            mask = None if left >= self.lanes else b.first_lanes(left, self.lanes)
            b.store(to, start, b.load(source, start, self.lanes, mask))

    def _copy_part(self, to: Buffer, row: Buffer, first: Value, inside: Value) -> None:
        """A row of the window that leaves the image: element by element."""
        b, wide = self.code.builder, self.code.window.width
        low, high = b.maximum(-first, 0) * self.inputs, (wide.size - first) * self.inputs
        with b.loop("element", 0, self.run, unroll=1) as i:
            valid = inside & (i >= low) & (i < high)
            b.store(to, i, b.load(row, first * self.inputs + i, 1, valid))

    def accumulate(self, accumulators: Accumulators, tile_index: Value, start: Value, panel: Buffer) -> None:
        """Adds the products of one tile."""
        code = self.code
        first = self.matrix.at((start - self.first_pixel) * self.row)
        rows = [first.at(i * self.row) for i in range(accumulators.rows)]
        multiply(accumulators, rows, panel, code.depth, unroll=code.unroll(accumulators.rows), aligned=code.aligned,
                 meanwhile=code.fetch(accumulators.rows, code.ahead(panel, tile_index), None))


def group_blocks(outputs: int, tile: Tile, config: Config) -> int:
    """Into how many blocks the panels of a group are cut."""
    return int(ceildiv(ceildiv(outputs, tile.columns), int(config["panels"])))  # type: ignore[arg-type]


# --- the template ---------------------------------------------------------------------------------------------------------


class ConvolutionTemplate:
    """Convolution of any rank, stride, dilation, padding and grouping, on register tiles."""

    name = "convolution"

    def applies(self, problem: Problem, device: Device) -> bool:
        return (problem.layer.kind == "convolution" and problem.input(0).dtype != "bool"
                and problem.input(0).dtype == problem.input(1).dtype and is_static(problem.input(1)))

    def space(self, problem: Problem, device: Device) -> Space:
        default = self.default(problem, device)
        return Space({
            "tile": tile_choices(device.target), "panels": sorted({1, 2, 4, 8, 16, default["panels"]}),
            "mc": sorted({12, 24, 48, 96, 192, default["mc"]}), "unroll": (4, 2, 8), "prefetch": (4, 0, 2, 8)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        scalar = working(problem.input(0).dtype)
        _, inputs, outputs = channels(problem)
        tile = choose_tile(outputs, device.target, scalar)
        columns = parse_tile(tile, scalar, device.target).columns
        panel = columns * BYTES[scalar] * inputs * int(np.prod(kernel_shape(problem)))
        panels = max(1, min(-(-outputs // columns), device.l2_bytes // 2 // panel))
        return {"tile": tile, "panels": panels, "mc": 96, "unroll": 4, "prefetch": 4}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        return self._weights(problem, config, device).constants()

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        shape = window(problem, kernel_shape(problem))
        groups, inputs, outputs = channels(problem)
        weights = self._weights(problem, config, device)
        tile = weights.tile
        builder = Builder("convolution")
        slots = Slots(builder, problem)
        code = ConvolutionCode(slots, tile, config, shape, weights)
        epilogue = Epilogue(builder, problem)
        if is_gathered(problem):
            code.write(epilogue, Patches(code, shape, inputs))
            scratch = Patches.scratch(tile, config, shape, inputs, problem.input(0).dtype)
        else:
            code.write(epilogue, Addresses(code))
            scratch = Addresses.scratch(tile, config, shape)
        blocks = groups * group_blocks(outputs, tile, config)
        call = KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()), extent=tiles_of(shape.pixels, tile.rows) * blocks,
            scratch=scratch, multiply_adds=product((shape.pixels, shape.taps, inputs, outputs, groups)),
            bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes)
        return Implementation((*weights.calls(), call), weights.workspaces())

    def _weights(self, problem: Problem, config: Config, device: Device) -> Weights:
        """The panels: rows of a group are (tap, channel), the same for all groups, whose columns stand side by side."""
        scalar = working(problem.input(0).dtype)
        groups, inputs, outputs = channels(problem)
        depth = inputs * int(np.prod(kernel_shape(problem)))
        rows = np.broadcast_to(np.arange(depth), (groups, depth))
        return Weights(problem, parse_tile(config["tile"], scalar, device.target), rows, outputs, outputs)

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value == problem.layer.inputs[0] and is_gathered(problem)

    def in_place(self, problem: Problem, value: str) -> bool:
        return False


CONVOLUTION = ConvolutionTemplate()
