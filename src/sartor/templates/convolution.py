"""Direct convolution: a product without the matrix of patches.

Output pixels are the rows of the product, (tap, input channel) its depth.  For a chunk of pixels the addresses of the pixels
under each tap are written to scratch once (the indirection of Dukhan, "The indirect convolution algorithm", 2019), padding being
the address of zeros; then every panel of output channels runs over the chunk.  In images of few channels whole rows of the
window take the place of taps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Number, Value
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
    depth_unroll,
    is_narrow,
    may_overwrite,
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

CHUNK = 96
"""Pixels of a chunk where nothing speaks against it."""

FEW_CHANNELS = 8
"""Images with fewer channels are read by rows of the window."""


def kernel_shape(problem: Problem) -> tuple[int, ...]:
    """Taps of the window along each spatial dimension."""
    return tuple(int(k) for k in problem.input(1).shape[:-2])  # type: ignore[arg-type]


def channels(problem: Problem) -> tuple[int, int, int]:
    """Groups, input channels a group, output channels a group."""
    *_, inputs, outputs = problem.input(1).shape
    groups = int(problem["groups"])
    return groups, int(inputs), int(outputs) // groups  # type: ignore[arg-type]


def has_few_channels(problem: Problem) -> bool:
    """Whether runs of taps and channels are used: few channels, taps of a row side by side."""
    groups, inputs, _ = channels(problem)
    return groups == 1 and inputs < FEW_CHANNELS and problem["dilations"][-1] == 1


class ConvolutionCode:
    """Writes the kernel; `Addresses` say how a chunk's left-hand side is prepared and read."""

    def __init__(self, slots: Slots, tile: Tile, config: Config, shape: Window, weights: Weights) -> None:
        problem = slots.problem
        self.slots = slots
        self.builder: Builder = slots.builder
        self.tile = tile
        self.config = config
        self.window = WindowCode(slots, shape, compiled=has_few_channels(problem))
        scalar = problem.input(0).dtype
        _, inputs, outputs = channels(problem)
        self.panels = weights.declare(slots)
        self.aligned = weights.is_constant
        self.zeros = slots.zeros("zeros", max(64, shape.width.kernel * inputs * BYTES[scalar]), scalar)
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

    def write(self, epilogue: Epilogue, left: Addresses) -> None:
        """Emits the whole body."""
        b, tile = self.builder, self.tile
        output = Output(b, tile, epilogue, self.y, self.y_pitch, is_narrow(self.slots.problem))
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
                        accumulate = partial(left.accumulate, tile_index=t - chunk.first, panel=panel)
                        output.compute(place, b.scratch(tile.scalar), accumulate)

    def ahead(self, panel: Buffer, tile_index: Value) -> Buffer:
        """Where a tile starts to fetch the next panel."""
        if not self.config["prefetch"]:
            return panel
        return self._ahead.start(panel.at(self.depth * self.tile.columns), self.depth, tile_index)

    def fetch(self, unroll: int, start: Buffer, step: Value) -> Callable[[Value], None] | None:
        """What a tile does while it computes, once every `unroll` steps from step `step` of the depth on."""
        if not self.config["prefetch"] or unroll == 1:
            return None
        return self._ahead.fetch(start.at(step * self._ahead.rate), unroll)


class Addresses:
    """The left-hand side as a table in scratch: for each tile of a chunk, tap and row of the tile, the address of a run of elements.

    A run is the channels of one pixel.
    """

    def __init__(self, code: ConvolutionCode, shape: Window) -> None:
        self.code = code
        self.shape = shape
        self.taps: Number = code.taps
        self.run: Number = code.inputs
        self.table = code.builder.scratch_table(code.window.rows.scalar, code.tile.bytes)

    def scratch(self) -> int:
        """Bytes: a copy of a tile, then the table."""
        tile = self.code.tile
        return tile.bytes + chunk_tiles(tile, self.code.config) * self.shape.taps * tile.rows * 8

    def unroll(self, rows: int) -> int:
        """Copies of the innermost body: short tiles, which are few, get one."""
        return int(self.code.config["unroll"]) if rows + 1 >= self.code.tile.rows else 1

    def prepare(self, chunk: Run, channel: Value) -> None:
        """Fills the table for a chunk of tiles."""
        code, b, rows = self.code, self.code.builder, self.code.tile.rows
        position = code.window.position(even(b, code.pixels, code.tiles, chunk.first).start)
        with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
            part = even(b, code.pixels, code.tiles, t)
            entries = (t - chunk.first) * (self.taps * rows)
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

    def accumulate(self, accumulators: Accumulators, tile_index: Value, panel: Buffer) -> None:
        """Adds the products of one tile: taps, then the elements of a run."""
        code, b, tile = self.code, self.code.builder, self.code.tile
        entries, unroll = tile_index * (self.taps * tile.rows), self.unroll(accumulators.rows)
        ahead = code.ahead(panel, tile_index)
        with b.loop("tap", 0, self.taps, unroll=1) as tap:
            rows = [self.table.row(entries + tap * tile.rows + i) for i in range(accumulators.rows)]
            multiply(accumulators, rows, panel.at(tap * (self.run * tile.columns)), self.run, unroll=unroll, aligned=code.aligned,
                     meanwhile=code.fetch(unroll, ahead, tap * self.run))


class RowAddresses(Addresses):
    """The same for few channels: a run is what a row of the window covers of a row of the image.

    The taps of a row lie side by side, so the image must be dense.  Runs that leave the image are copied to scratch.
    """

    def __init__(self, code: ConvolutionCode, shape: Window, inputs: int) -> None:
        super().__init__(code, shape)
        self.inputs = inputs
        self.taps = self.row_taps = shape.taps // shape.width.kernel
        self.run = self.length = shape.width.kernel * inputs
        pixels = chunk_tiles(code.tile, code.config) * code.tile.rows
        self.copies_start = code.tile.bytes + 8 * pixels * self.row_taps
        self.copies = code.builder.scratch(code.window.rows.scalar, self.copies_start)
        self.bytes = self.copies_start + pixels * self.row_taps * self.length * BYTES[code.window.rows.scalar]

    def scratch(self) -> int:
        """Bytes: a copy of a tile, the table, copies of runs."""
        return self.bytes

    def unroll(self, rows: int) -> int:
        """Copies of the innermost body: a number that divides the run, if there is one."""
        unroll = super().unroll(rows)
        return next((n for n in (unroll, 7, 6, 5, 9, 3) if self.length % n == 0), unroll) if unroll > 1 else 1

    def _pixel(self, at: list[Value], entries: Value, channel: Value) -> None:
        code, b, wide = self.code, self.code.builder, self.code.window.width
        first = at[-1] * wide.stride - wide.before
        within = (first >= 0) & (first + wide.kernel <= wide.size)
        with code.window.row_taps(at) as (number, entry, inside):
            row, place = code.window.rows.row(entry), entries + number * code.tile.rows
            with b.branch(within | ~inside):
                b.set_row(self.table, place, b.select_buffer(inside, row.at(first * self.inputs + channel), code.zeros))
            with b.otherwise():
                copy = self.copies.at(place * self.length)
                low, high = b.maximum(-first, 0) * self.inputs, (wide.size - first) * self.inputs
                with b.loop("element", 0, self.length, unroll=1) as i:
                    b.store(copy, i, b.load(row, first * self.inputs + i, 1, (i >= low) & (i < high)))
                b.set_row(self.table, place, copy)


def chunk_rows(room: int, bytes_each: int, tile: Tile) -> int:
    """Pixels of a chunk by rule: 96, or fewer where what is kept for each is large."""
    return max(tile.rows, min(CHUNK, room // bytes_each))


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
        taps = int(np.prod(kernel_shape(problem)))
        text = choose_tile(outputs, device.target, scalar)
        tile = parse_tile(text, scalar, device.target)
        panel = max(1, tile.columns * BYTES[scalar] * inputs * taps)
        panels = max(1, min(-(-outputs // tile.columns), device.l2_bytes // 2 // panel))
        # Addresses of a chunk, and copies of runs, take a quarter of L2 at most.
        place = taps * (8 + (inputs * BYTES[scalar] if has_few_channels(problem) else 0))
        return {"tile": text, "panels": panels, "mc": chunk_rows(device.l2_bytes // 4, place, tile),
                "unroll": depth_unroll(device.target), "prefetch": 4}

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
        left = RowAddresses(code, shape, inputs) if has_few_channels(problem) else Addresses(code, shape)
        code.write(epilogue, left)
        scratch = left.scratch()
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
        if value == problem.layer.outputs[0]:
            return is_narrow(problem)
        return value == problem.layer.inputs[0] and has_few_channels(problem)

    def in_place(self, problem: Problem, value: str) -> bool:
        return may_overwrite(problem, value)


CONVOLUTION = ConvolutionTemplate()
