"""3x3 convolution by Winograd's minimal filtering, F(m x m, 3 x 3), on blocks of tiles.

The output is covered by tiles of m x m pixels, anchored at its origin.  For a block of tiles, a = m + 2:

1. each tile's a x a input patch is transformed, channel vector by channel vector, into V [a*a][tiles][channels];
2. for a few panels of output channels, a*a products M [a*a][tiles][columns] = V times the transformed weights;
3. each tile of M is transformed back and stored through the layer's expression.

V and M stay in L2; the weights, transformed in double precision when packing, are read once a block.  The parallel extent is
`splits x tiles`: a slice is a run of tiles for a part of the panels, which a thread cuts into blocks of its own; what a tile
computes does not depend on its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Buffer, Builder, Number, Value
from sartor.sizes import Dim, ceildiv, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.blocks import Part, even, runs
from sartor.templates.convolution import kernel_shape
from sartor.templates.expression_code import Epilogue
from sartor.templates.microkernel import CHEAP, Accumulators, Tile, by_height, choose_tile, multiply, parse_tile, tile_choices
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, WindowCode, window
from sartor.templates.toomcook import Filtering, apply_input, apply_output, filtering
from sartor.types import BYTES

Array = np.ndarray[Any, Any]

LINE = 16
"""Elements by which planes of V and M are moved apart, so that their cache sets do not collide."""


@dataclass(frozen=True)
class Plan:
    """Sizes a configuration fixes."""

    outputs: int  # m
    tile: Tile
    block: int  # tiles
    group: int  # panels
    channels: int
    columns: int  # output channels

    @property
    def size(self) -> int:
        """Of a patch: a."""
        return self.outputs + 2

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.columns)

    @property
    def groups(self) -> int:
        return -(-self.panels // self.group)

    @property
    def channel_pitch(self) -> int:
        """Elements of a row of V: whole vectors."""
        return -(-self.channels // self.tile.lanes) * self.tile.lanes

    @property
    def v_plane(self) -> int:
        return self.block * self.channel_pitch + LINE

    @property
    def m_pitch(self) -> int:
        return self.group * self.tile.columns

    @property
    def m_plane(self) -> int:
        return self.block * self.m_pitch + LINE

    @property
    def v_bytes(self) -> int:
        return -(-self.size**2 * self.v_plane * BYTES[self.tile.scalar] // 64) * 64

    @property
    def scratch(self) -> int:
        return self.v_bytes + self.size**2 * self.m_plane * BYTES[self.tile.scalar]


class WinogradCode:
    """Writes the kernel."""

    def __init__(self, slots: Slots, plan: Plan, shape: Window, splits: int) -> None:
        problem = slots.problem
        self.plan = plan
        self.builder: Builder = slots.builder
        self.matrices: Filtering = filtering(plan.outputs)
        self.window = WindowCode(slots, shape, compiled=True)
        self.zeros = slots.zeros("zeros", plan.channel_pitch * BYTES[plan.tile.scalar], plan.tile.scalar)
        self.weights = slots.constant("u", 0, plan.tile.scalar)
        self.y = slots.pointer("y", problem.layer.outputs[0])
        self.y_pitch = slots.pitch("y_pitch", problem.layer.outputs[0])
        tiles_y, tiles_x = tile_grid(shape, plan.outputs)
        self.tiles_y, self.tiles_x = slots.size("tiles_y", tiles_y), slots.size("tiles_x", tiles_x)
        self.tiles = slots.size("tiles", product((shape.batch, tiles_y, tiles_x)))
        self.channels = slots.size("channels", plan.channels)
        self.columns = slots.size("columns", plan.columns)
        self.v_plane, self.v_pitch = slots.size("v_plane", plan.v_plane), slots.size("v_pitch", plan.channel_pitch)
        self.splits = slots.size("splits", splits)
        self.v = self.builder.scratch(plan.tile.scalar)
        self.m = self.builder.scratch(plan.tile.scalar, slots.size("v_bytes", plan.v_bytes))

    def write(self, epilogue: Epilogue) -> None:
        """Emits the whole body."""
        b, plan = self.builder, self.plan
        panels = (self.columns + (plan.tile.columns - 1)) // plan.tile.columns
        groups = (panels + (plan.group - 1)) // plan.group
        with runs(b, b.maximum(self.tiles, 1)) as run:
            split = even(b, groups, self.splits, run.outer)
            length = run.last - run.first
            blocks = (length + (plan.block - 1)) // plan.block
            with b.loop("block", 0, blocks, unroll=1) as i:
                part = even(b, length, blocks, i)
                block = Part(run.first + part.start, part.length)
                with b.loop("input_tile", 0, block.length, unroll=1) as t:
                    self.transform_input(block.start + t, self.v.at(t * self.v_pitch))
                with b.loop("group", split.start, split.start + split.length, unroll=1) as g:
                    first = g * plan.group
                    count = b.minimum(panels - first, plan.group)
                    self.products(block, first, count)
                    with b.loop("output_tile", 0, block.length, unroll=1) as t:
                        self.transform_output(epilogue, block.start + t, self.m.at(t * plan.m_pitch), first * plan.tile.columns, count)

    def corner(self, tile: Value) -> tuple[Value, Value, Value]:
        """Image, and the output row and column of the first pixel, of a tile."""
        b, m = self.builder, self.plan.outputs
        tiles_x, tiles_y = b.maximum(self.tiles_x, 1), b.maximum(self.tiles_y, 1)
        row = tile // tiles_x
        image = row // tiles_y
        return image, (row - image * tiles_y) * m, (tile - row * tiles_x) * m

    # --- the input ---

    def transform_input(self, tile: Value, to: Buffer) -> None:
        """One tile's patch, transformed, to row `to` of every plane of V."""
        b, plan = self.builder, self.plan
        table = b.table("patch", plan.size**2, plan.tile.scalar)
        self._patch_addresses(tile, table)
        lanes = plan.tile.lanes
        whole = self.channels // lanes * lanes
        with b.loop("channel", 0, whole, lanes, unroll=1) as c:
            self._transform_vector(table, c, to, None)
        rest = self.channels - whole
        with b.branch(rest > 0):
            self._transform_vector(table, whole, to, b.first_lanes(rest, lanes))

    def _patch_addresses(self, tile: Value, table: Any) -> None:
        """Addresses of the pixels of a patch, column by column; zeros stand for padding and for what lies beyond it."""
        b, size, wide = self.builder, self.plan.size, self.window.width
        image, top, left = self.corner(tile)
        first = left - wide.before
        with b.loop("y", 0, size, unroll=1) as y:
            inside = top + y < self.window.image_rows
            entry = image * self.window.image_rows + b.select(inside, top + y, b.constant(0, I64))
            inside = inside & ~self.window.is_padding(entry)
            row = self.window.rows.row(entry)
            with b.loop("x", 0, size, unroll=1) as x:
                column = first + x
                valid = inside & (column >= 0) & (column < wide.size)
                address = b.select_buffer(valid, row.at(column * self.window.pitch), self.zeros)
                b.set_row(table, x * size + y, address)

    def _transform_vector(self, table: Any, channel: Value, to: Buffer, mask: Value | None) -> None:
        b, size, lanes = self.builder, self.plan.size, self.plan.tile.lanes
        half = b.local("half", self.plan.tile.scalar, size * size * lanes)
        with b.loop("x", 0, size, unroll=1) as x:
            column = [b.load(table.row(x * size + y), channel, lanes, mask) for y in range(size)]
            for y, value in enumerate(apply_input(b, self.matrices.input, column)):
                b.store(half, (x + y * size) * lanes, value)
        with b.loop("y", 0, size, unroll=1) as y:
            row = [b.load(half, (y * size + x) * lanes, lanes) for x in range(size)]
            for x, value in enumerate(apply_input(b, self.matrices.input, row)):
                b.store(to, (y * size + x) * self.v_plane + channel, value)

    # --- the products ---

    def products(self, block: Part, first: Value, count: Value) -> None:
        """M = V times the weights, for `count` panels from `first` on."""
        b, plan, tile = self.builder, self.plan, self.plan.tile
        panel_size = self.channels * tile.columns
        weights = self.weights.at(first * (panel_size * plan.size**2))
        tiles = (block.length + (tile.rows - 1)) // tile.rows
        with b.loop("plane", 0, plan.size**2, unroll=1) as k, b.loop("panel", 0, count, unroll=1) as p:
            panel = weights.at((k * count + p) * panel_size)
            with b.loop("tile", 0, tiles, unroll=1) as t:
                part = even(b, block.length, tiles, t)
                source = self.v.at(k * self.v_plane + part.start * self.v_pitch)
                to = self.m.at(k * plan.m_plane + part.start * plan.m_pitch + p * tile.columns)
                by_height(b, tile, part.length, partial(self._product, source=source, panel=panel, to=to))

    def _product(self, height: int, source: Buffer, panel: Buffer, to: Buffer) -> None:
        accumulators = Accumulators(self.builder, self.plan.tile, height)
        rows = [source.at(self.v_pitch * i) for i in range(height)]
        multiply(accumulators, rows, panel, self.channels, unroll=4 if height + 1 >= self.plan.tile.rows else 1)
        accumulators.save(to, self.plan.m_pitch)

    # --- the output ---

    def transform_output(self, epilogue: Epilogue, tile: Value, source: Buffer, column: Value, count: Value) -> None:
        """One tile of M, transformed, to the output."""
        b, plan = self.builder, self.plan
        lanes, m = plan.tile.lanes, plan.outputs
        image, top, left = self.corner(tile)
        height, width = self.window.height.out, self.window.width.out
        row = (image * height + top) * width + left
        rows, columns = b.minimum(height - top, m), b.minimum(width - left, m)
        exist = b.minimum(self.columns - column, count * plan.tile.columns)
        whole = exist // lanes * lanes
        with b.loop("column", 0, whole, lanes, unroll=1) as c:
            self._output_vector(epilogue, source.at(c), row, rows, columns, column + c, None)
        rest = exist - whole
        with b.branch(rest > 0):
            self._output_vector(epilogue, source.at(whole), row, rows, columns, column + whole, b.first_lanes(rest, lanes))

    def _output_vector(self, epilogue: Epilogue, source: Buffer, row: Value, rows: Value, columns: Value, column: Value,
                       mask: Value | None) -> None:
        b, plan = self.builder, self.plan
        size, m, lanes = plan.size, plan.outputs, plan.tile.lanes
        half = b.local("half", plan.tile.scalar, m * size * lanes)
        with b.loop("x", 0, size, unroll=1) as x:
            values = [b.load(source, (y * size + x) * plan.m_plane, lanes) for y in range(size)]
            for y, value in enumerate(apply_output(b, self.matrices.output, values)):
                b.store(half, (x + y * size) * lanes, value)
        with b.loop("y", 0, rows, unroll=1) as y:
            values = [b.load(half, (y * size + x) * lanes, lanes) for x in range(size)]
            results = apply_output(b, self.matrices.output, values)
            self._store_pixels(epilogue, results, row + y * self.window.width.out, columns, column, mask)

    def _store_pixels(self, epilogue: Epilogue, results: list[Value], row: Value, columns: Value, column: Value, mask: Value | None) -> None:
        """Stores one row of a tile; one piece of code a pixel, or, for long expressions, one in all."""
        b, lanes = self.builder, self.plan.tile.lanes

        def store(value: Value, pixel: Number) -> None:
            finished = epilogue.apply(value, row + pixel, column, lanes, mask)
            b.store(self.y, (row + pixel) * self.y_pitch + column, finished, mask)

        expression = epilogue.expression
        if mask is None and (expression is None or len(expression.nodes) - expression.operands <= CHEAP):
            for x, value in enumerate(results):
                with b.branch(columns > x):
                    store(value, x)
            return
        line = b.local("line", self.plan.tile.scalar, len(results) * lanes)
        for x, value in enumerate(results):
            b.store(line, x * lanes, value)
        with b.loop("x", 0, columns, unroll=1) as pixel:
            store(b.load(line, pixel * lanes, lanes), pixel)


def tile_grid(shape: Window, outputs: int) -> tuple[Dim, Dim]:
    """Tiles along the height and the width of the output."""
    return ceildiv(shape.height.out, outputs), ceildiv(shape.width.out, outputs)


def transform_weights(weights: Array, outputs: int) -> Array:
    """G w G^T for weights [3, 3, C, O], in double precision: [a * a, C, O]."""
    g = np.array([[float(x) for x in row] for row in filtering(outputs).weights])
    transformed = np.einsum("ay,yxco,bx->abco", g, weights.astype(np.float64), g, optimize=True)
    return transformed.reshape(-1, *weights.shape[2:]).astype(np.float32)


# --- the template ---------------------------------------------------------------------------------------------------------


class WinogradTemplate:
    """3x3 convolutions of stride 1 with fewer multiplications."""

    name = "winograd"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "convolution" or problem.constant(1) is None or problem.input(0).dtype != "f32":
            return False
        return (kernel_shape(problem) == (3, 3) and problem["groups"] == 1 and tuple(problem["strides"]) == (1, 1)
                and tuple(problem["dilations"]) == (1, 1))

    def space(self, problem: Problem, device: Device) -> Space:
        *_, columns = problem.input(1).shape
        panels = -(-int(columns) // device.lanes("f32"))  # type: ignore[arg-type]
        return Space({"outputs": (4, 2, 6), "tile": tile_choices(device.target)[:4], "block": (12, 18, 24, 36, 48, 6),
                      "group": (4, 2, 1, 8), "splits": (1, 2, 4)},
                     constraint=lambda config: config["splits"] * config["group"] <= panels)

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        *_, channels, columns = (int(n) for n in problem.input(1).shape)  # type: ignore[arg-type]
        if min(channels, columns) < 16:
            return None
        return {"outputs": 4, "tile": choose_tile(columns, device.target, "f32"), "block": 24, "group": 4, "splits": 1}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        weights = problem.constant(1)
        assert weights is not None
        plan = self._plan(problem, config, device)
        width = plan.tile.columns
        matrices = transform_weights(weights, plan.outputs)
        padded = np.zeros((*matrices.shape[:2], plan.panels * width), np.float32)
        padded[..., :plan.columns] = matrices
        panels = padded.reshape(*matrices.shape[:2], plan.panels, width).transpose(2, 0, 1, 3)  # panel, plane, channel, column
        groups = [panels[start:start + plan.group].swapaxes(0, 1).reshape(-1) for start in range(0, plan.panels, plan.group)]
        return (np.concatenate(groups),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        plan, shape = self._plan(problem, config, device), window(problem, (3, 3))
        splits = min(int(config["splits"]), plan.groups)
        builder = Builder("winograd")
        slots = Slots(builder, problem)
        code = WinogradCode(slots, plan, shape, splits)
        epilogue = Epilogue(builder, problem)
        code.write(epilogue)
        tiles = product((shape.batch, *tile_grid(shape, plan.outputs)))
        return Implementation((KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()), extent=tiles * splits, scratch=plan.scratch,
            multiply_adds=product((shape.pixels, 9, plan.channels, plan.columns)),
            bytes=problem.input(0).bytes + plan.size**2 * plan.channels * plan.columns * 4 + problem.output().bytes),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def _plan(self, problem: Problem, config: Config, device: Device) -> Plan:
        *_, channels, columns = (int(n) for n in problem.input(1).shape)  # type: ignore[arg-type]
        tile = parse_tile(config["tile"], "f32", device.target)
        panels = -(-columns // tile.columns)
        return Plan(int(config["outputs"]), tile, int(config["block"]), min(int(config["group"]), panels), channels, columns)


WINOGRAD = WinogradTemplate()
