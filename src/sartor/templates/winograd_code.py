"""The kernels of Winograd convolution: patches to V, V times weights to M, M to the output.

V is [planes][tiles][channels], M is [planes][tiles][columns of some panels], the weights are [panel groups][planes][panels of a
group][channels][columns of a panel].  There is a plane for each of the products of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sartor.loops.language import I64, Buffer, Builder, Number, Rows, Value, Variable
from sartor.sizes import Dim, ceildiv, product
from sartor.templates.blocks import Part
from sartor.templates.expression_code import Epilogue
from sartor.templates.microkernel import Accumulators, Tile, by_height, store_pixels
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, WindowCode
from sartor.templates.toomcook import Filtering, apply_input, apply_output
from sartor.types import BYTES

LINE = 16
"""Elements of a cache line.  Planes lie an odd number of lines apart, so that those of one tile meet in different cache sets."""

UNROLL = 4
"""Steps along the input channels in one go."""


@dataclass(frozen=True)
class Plan:
    """What a configuration fixes.

    Attributes
    ----------
    vertical, horizontal
        The filtering along the height and the width.
    tile
        Register tile of the products: rows are tiles of the image, columns output channels.
    block
        Tiles of the image that are transformed, multiplied and transformed back together, at most.
    group
        Panels of output channels whose products are transformed back together, at most.
    prefetch
        Lines of the next panel of weights that are fetched for every `UNROLL` steps along the channels.
    channels, columns
        Input and output channels.
    """

    vertical: Filtering
    horizontal: Filtering
    tile: Tile
    block: int
    group: int
    prefetch: int
    channels: int
    columns: int

    @property
    def planes(self) -> int:
        """Products of a tile, for one pair of channels."""
        return self.vertical.size * self.horizontal.size

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.columns)

    @property
    def groups(self) -> int:
        return -(-self.panels // self.group)

    @property
    def vectors(self) -> int:
        """Vectors that the input channels fill."""
        return -(-self.channels // self.tile.lanes)

    @property
    def v_pitch(self) -> int:
        """Elements of a row of V: whole vectors, and not a multiple of a page, where rows would meet in few cache sets."""
        pitch = self.vectors * self.tile.lanes
        return pitch + LINE if pitch % 512 == 0 else pitch

    def v_plane(self, tiles: Dim) -> Dim:
        """Elements of a plane of V with so many tiles."""
        return apart(tiles * self.v_pitch)

    @property
    def m_pitch(self) -> int:
        return self.group * self.tile.columns

    @property
    def m_plane(self) -> int:
        plane = apart(self.block * self.m_pitch)
        assert isinstance(plane, int)
        return plane

    def v_bytes(self, tiles: Dim) -> Dim:
        return self.planes * self.v_plane(tiles) * BYTES[self.tile.scalar]

    @property
    def m_bytes(self) -> int:
        return self.planes * self.m_plane * BYTES[self.tile.scalar]

    def grid(self, shape: Window) -> tuple[Dim, Dim]:
        """Tiles along the height and the width of the output."""
        return ceildiv(shape.height.out, self.vertical.outputs), ceildiv(shape.width.out, self.horizontal.outputs)

    def tiles(self, shape: Window) -> Dim:
        """Tiles of all images."""
        return product((shape.batch, *self.grid(shape)))


def apart(length: Dim) -> Dim:
    """`length` elements, rounded up to an odd number of cache lines."""
    return ceildiv(length, 2 * LINE) * (2 * LINE) + LINE


@dataclass(frozen=True)
class Corner:
    """A tile's image, and the output's row and column of its first pixel."""

    image: Value
    top: Value
    left: Value


class Grid:
    """The grid of tiles inside a kernel."""

    def __init__(self, slots: Slots, plan: Plan, shape: Window) -> None:
        self.builder = slots.builder
        self.plan = plan
        rows, columns = plan.grid(shape)
        self.rows, self.columns = slots.size("grid_rows", rows), slots.size("grid_columns", columns)
        self.tiles = slots.size("tiles", plan.tiles(shape))

    @contextmanager
    def walk(self, name: str, tiles: Part) -> Iterator[tuple[Value, Corner]]:
        """Loops over tiles: (number within `tiles`, corner)."""
        b, plan = self.builder, self.plan
        row = tiles.start // b.maximum(self.columns, 1)
        image = row // b.maximum(self.rows, 1)
        x = b.variable("grid_x", tiles.start - row * self.columns)
        y = b.variable("grid_y", row - image * self.rows)
        n = b.variable("image", image)
        with b.loop(name, 0, tiles.length, unroll=1) as i:
            yield i, Corner(n.get(), y.get() * plan.vertical.outputs, x.get() * plan.horizontal.outputs)
            x.set(x.get() + 1)
            with b.branch(x.get() >= self.columns):
                self._next_row(x, y, n)

    def _next_row(self, x: Variable, y: Variable, image: Variable) -> None:
        b = self.builder
        x.set(0)
        y.set(y.get() + 1)
        with b.branch(y.get() >= self.rows):
            y.set(0)
            image.set(image.get() + 1)


class Patches:
    """Writes the transform of the input."""

    def __init__(self, slots: Slots, plan: Plan, grid: Grid, shape: Window) -> None:
        self.builder: Builder = slots.builder
        self.plan = plan
        self.grid = grid
        self.window = WindowCode(slots, shape, compiled=True)
        self.zeros = slots.zeros("zeros", plan.channels * BYTES[plan.tile.scalar], plan.tile.scalar)
        self.channels = slots.size("channels", plan.channels)
        self.vectors = slots.size("vectors", plan.vectors)
        self.v_pitch = slots.size("v_pitch", plan.v_pitch)

    def write(self, tiles: Part, to: Buffer, plane: Value, vectors: Part) -> None:
        """Transforms the patches of tiles, for some vectors of channels, to the first rows of the planes at `to`."""
        b, lanes, scalar = self.builder, self.plan.tile.lanes, self.plan.tile.scalar
        few = self.plan.channels < lanes
        table = b.table("patch", self.plan.planes, scalar)
        half = b.local("half", scalar, self.plan.planes * lanes)
        mask = b.first_lanes(self.channels, lanes) if few else None
        with self.grid.walk("patch_tile", tiles) as (i, corner):
            self._addresses(corner, table)
            row = to.at(i * self.v_pitch)
            with b.loop("vector", vectors.start, vectors.start + vectors.length, unroll=1) as v:
                # The last vector ends with the last channel; what it shares with the one before is computed twice.
                channel = v * lanes if few else b.minimum(v * lanes, self.channels - lanes)
                self._vector(table, channel, mask, half, row.at(channel), plane)

    def _addresses(self, corner: Corner, table: Rows) -> None:
        """Addresses of the pixels of a patch, column by column; zeros stand for padding and for what lies beyond it."""
        b, window, wide = self.builder, self.window, self.window.width
        height, width = self.plan.vertical.size, self.plan.horizontal.size
        first = corner.left - wide.before
        columns = [first + x for x in range(width)]
        valid = [(c >= 0) & (c < wide.size) for c in columns]
        offsets = [c * window.pitch for c in columns]
        with b.loop("patch_row", 0, height, unroll=1) as y:
            exists = corner.top + y < window.image_rows
            entry = corner.image * window.image_rows + b.select(exists, corner.top + y, b.constant(0, I64))
            inside = exists & ~window.is_padding(entry)
            row = window.rows.row(entry)
            for x in range(width):
                address = b.select_buffer(inside & valid[x], row.at(offsets[x]), self.zeros)
                b.set_row(table, y + x * height, address)

    def _vector(self, table: Rows, channel: Value, mask: Value | None, half: Buffer, to: Buffer, plane: Value) -> None:
        """One vector of channels of one patch, to its place in each plane."""
        b, plan, lanes = self.builder, self.plan, self.plan.tile.lanes
        height, width = plan.vertical.size, plan.horizontal.size

        def finish(y: Number, row: list[Value]) -> None:
            first = y * width * plane
            for x, value in enumerate(apply_input(b, plan.horizontal.input, row)):
                b.store(to, first + plane * x, value)

        if height == 1:
            finish(0, [b.load(table.row(x), channel, lanes, mask) for x in range(width)])
            return
        with b.loop("x", 0, width, unroll=1) as at_x:
            column = [b.load(table.row(at_x * height + y), channel, lanes, mask) for y in range(height)]
            for y, value in enumerate(apply_input(b, plan.vertical.input, column)):
                b.store(half, (at_x + y * width) * lanes, value)
        with b.loop("y", 0, height, unroll=1) as at_y:
            finish(at_y, [b.load(half, (at_y * width + x) * lanes, lanes) for x in range(width)])


class Products:
    """Writes the products of V and the weights, and the transform of the output."""

    def __init__(self, slots: Slots, plan: Plan, grid: Grid, shape: Window) -> None:
        layer = slots.problem.layer
        self.builder: Builder = slots.builder
        self.plan = plan
        self.grid = grid
        self.weights = slots.constant("u", 0, plan.tile.scalar)
        self.y = slots.pointer("y", layer.outputs[0])
        self.y_pitch = slots.pitch("y_pitch", layer.outputs[0])
        self.height, self.width = slots.size("height_out", shape.height.out), slots.size("width_out", shape.width.out)
        self.channels = slots.size("channels", plan.channels)
        self.columns = slots.size("columns", plan.columns)
        self.v_pitch = slots.size("v_pitch", plan.v_pitch)
        self.panels = slots.size("panels", plan.panels)
        self.groups = slots.size("groups", plan.groups)

    def write(self, epilogue: Epilogue, tiles: Part, v: Buffer, plane: Value, m: Buffer, groups: Part) -> None:
        """Computes the output pixels of tiles, whose first row of V is at `v`, for some groups of panels."""
        b, plan = self.builder, self.plan
        with b.loop("group", groups.start, groups.start + groups.length, unroll=1) as g:
            first = g * plan.group
            count = b.minimum(self.panels - first, plan.group)
            self._multiply(tiles, v, plane, m, first, count)
            self._finish(epilogue, tiles, m, first * plan.tile.columns, count)

    # --- the products ---

    def _multiply(self, tiles: Part, v: Buffer, plane: Value, m: Buffer, first: Value, count: Value) -> None:
        """M = V times the weights, for `count` panels from `first` on."""
        b, plan, tile = self.builder, self.plan, self.plan.tile
        panel_size = self.channels * tile.columns
        weights = self.weights.at(first * (panel_size * plan.planes))
        parts = (tiles.length + (tile.rows - 1)) // tile.rows
        base = tiles.length // parts
        longer = tiles.length - base * parts  # so many of the row tiles have a row more
        with (b.loop("plane", 0, plan.planes, unroll=1) as k, b.loop("panel", 0, count, unroll=1) as p,
              b.loop("tile", 0, parts, unroll=1) as t):
            start, height = t * base + b.minimum(t, longer), base + b.cast(t < longer, "i64")
            source = v.at(k * plane + start * self.v_pitch)
            to = m.at(k * plan.m_plane + start * plan.m_pitch + p * tile.columns)
            panel = weights.at((k * count + p) * panel_size)
            ahead = panel.at(panel_size + t * (self.channels // UNROLL * (plan.prefetch * LINE)))
            by_height(b, tile, height, partial(self._product, source=source, panel=panel, ahead=ahead, to=to))

    def _product(self, height: int, source: Buffer, panel: Buffer, ahead: Buffer, to: Buffer) -> None:
        """One register tile.  Each row tile of a panel fetches its share of the next panel, which comes from far."""
        b, tile = self.builder, self.plan.tile
        accumulators = Accumulators(b, tile, height)
        rows = [source.at(self.v_pitch * i) for i in range(height)]
        whole = self.channels // UNROLL * UNROLL
        with b.loop("k", 0, whole, UNROLL, unroll=1) as k:
            for line in range(self.plan.prefetch):
                b.prefetch(ahead, k // UNROLL * (self.plan.prefetch * LINE) + line * LINE)
            for copy in range(UNROLL):
                accumulators.step(rows, panel, k + copy, (k + copy) * tile.columns, tile.type.bytes)
        if self.plan.channels % UNROLL:
            with b.loop("k", whole, self.channels, unroll=1) as k:
                accumulators.step(rows, panel, k, k * tile.columns, tile.type.bytes)
        accumulators.save(to, self.plan.m_pitch)

    # --- the output ---

    def _finish(self, epilogue: Epilogue, tiles: Part, m: Buffer, column: Value, count: Value) -> None:
        """Transforms M, which holds `count` panels from `column` on, to the output."""
        b, plan = self.builder, self.plan
        lanes, vertical, horizontal = plan.tile.lanes, plan.vertical, plan.horizontal
        half = b.local("half", plan.tile.scalar, vertical.outputs * horizontal.size * lanes)
        exist = b.minimum(self.columns - column, count * plan.tile.columns)
        whole = exist // lanes * lanes
        with self.grid.walk("output_tile", tiles) as (i, corner):
            row = (corner.image * self.height + corner.top) * self.width + corner.left
            rows = b.minimum(self.height - corner.top, vertical.outputs)
            pixels = b.minimum(self.width - corner.left, horizontal.outputs)
            source = m.at(i * plan.m_pitch)
            with b.loop("column", 0, whole, lanes, unroll=1) as c:
                self._vector(epilogue, source.at(c), half, row, rows, pixels, column + c, None)
            if plan.columns % lanes:
                rest = exist - whole
                with b.branch(rest > 0):
                    self._vector(epilogue, source.at(whole), half, row, rows, pixels, column + whole, b.first_lanes(rest, lanes))

    def _vector(self, epilogue: Epilogue, source: Buffer, half: Buffer, row: Value, rows: Value, pixels: Value, column: Value,
                mask: Value | None) -> None:
        """One vector of output channels of one tile: the `rows` x `pixels` of its pixels that exist."""
        b, plan, lanes = self.builder, self.plan, self.plan.tile.lanes
        vertical, horizontal = plan.vertical, plan.horizontal
        if vertical.size == 1:
            values = [b.load(source, x * plan.m_plane, lanes) for x in range(horizontal.size)]
            store_pixels(b, epilogue, self.y, self.y_pitch, apply_output(b, horizontal.output, values), row, pixels, column, mask)
            return
        with b.loop("x", 0, horizontal.size, unroll=1) as at_x:
            values = [b.load(source, (y * horizontal.size + at_x) * plan.m_plane, lanes) for y in range(vertical.size)]
            for y, value in enumerate(apply_output(b, vertical.output, values)):
                b.store(half, (at_x + y * horizontal.size) * lanes, value)
        with b.loop("y", 0, rows, unroll=1) as at_y:
            values = [b.load(half, (at_y * horizontal.size + x) * lanes, lanes) for x in range(horizontal.size)]
            results = apply_output(b, horizontal.output, values)
            place = row + at_y * self.width
            for x in range(horizontal.outputs):  # of the tile to the right
                b.prefetch(self.y, (place + (horizontal.outputs + x)) * self.y_pitch + column)
            store_pixels(b, epilogue, self.y, self.y_pitch, results, place, pixels, column, mask)
