"""Depth-wise convolution and others of narrow groups: vectors along channels, several pixels of a row at once.

A vector of output channels covers whole groups.  Its inputs are a run of channels, from which shuffles make, for each input
channel of a group, the vector that meets the weights; with one channel a group there is nothing to shuffle.

Inside the image the pixels under the windows of neighbouring outputs are loaded once for all of them, at constant distances.
At borders the addresses of the pixels are collected first, padding being the address of zeros, and the same arithmetic runs
over the addresses.  The last vector of channels is moved back so that it ends with the last channel.  The parallel extent is
`channel blocks x output rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Type, Value
from sartor.sizes import product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.blocks import even, runs
from sartor.templates.convolution import channels, kernel_shape
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.microkernel import store_pixels
from sartor.templates.panels import working_array
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, WindowCode, window
from sartor.types import BYTES

Array = np.ndarray[Any, Any]

MOST_PRODUCTS = 64
"""Windows with more taps, times inputs of a group, run in loops over addresses instead of straight code."""

FEW_ROWS, WIDE_CHANNELS = 64, 64
"""Images of fewer rows are divided by channels, if each core gets that many."""

WIDEST_GROUP = 16
"""Input channels of a group for which the shuffles are written out."""


class DepthwiseCode:
    """Writes the kernel for `pixels` outputs at once."""

    def __init__(self, slots: Slots, shape: Window, pixels: int, blocks: int, lanes: int, keep_weights: bool) -> None:
        problem = slots.problem
        groups, self.inputs, self.outputs = channels(problem)
        channel_count = groups * self.outputs
        self.pixels, self.lanes, self.few = pixels, lanes, channel_count < lanes
        self.keep_weights = keep_weights
        self.input_lanes = lanes // self.outputs * self.inputs
        self.builder: Builder = slots.builder
        self.window = WindowCode(slots, shape, compiled=True)
        self.width_out = slots.size("width_out", shape.width.out)
        self.width_before = slots.size("width_before", shape.width.before)
        self.scalar = problem.input(0).dtype
        self.zeros = slots.zeros("zeros", (groups * self.inputs + self.input_lanes) * BYTES[self.scalar], self.scalar)
        self.weights = slots.constant("w", 0, working(self.scalar))
        self.align = lanes * BYTES[self.weights.scalar]
        self.y = slots.pointer("y", problem.layer.outputs[0])
        self.y_pitch = slots.pitch("y_pitch", problem.layer.outputs[0])
        self.channels, self.input_channels = slots.size("channels", channel_count), slots.size("inputs", groups * self.inputs)
        self.blocks = slots.size("blocks", blocks)
        self.rows = slots.size("rows", output_rows(shape))
        self.taps, self.wide = shape.taps, shape.width
        self.row_taps = shape.taps // shape.width.kernel
        steps = {t * shape.width.stride + k * shape.width.dilation for t in range(pixels) for k in range(shape.width.kernel)}
        self.columns = sorted(steps) if shape.taps * self.inputs <= MOST_PRODUCTS else []
        self.row_table = self.builder.scratch_table(self.scalar)
        self.insides = self.builder.scratch("i64", self.row_taps * 8)
        self.addresses = self.builder.scratch_table(self.scalar, self.row_taps * 16)

    @property
    def scratch(self) -> int:
        """Bytes: addresses of the input's rows, whether each is inside, and addresses of pixels."""
        return 8 * (2 * self.row_taps + (self.row_taps * len(self.columns) or self.taps * self.pixels))

    def write(self, epilogue: Epilogue) -> None:
        """Emits the whole body."""
        b = self.builder
        self.epilogue = epilogue
        vectors = (self.channels + (self.lanes - 1)) // self.lanes
        with runs(b, b.maximum(self.rows, 1)) as run:
            self.vectors = even(b, vectors, self.blocks, run.outer)
            with b.loop("row", run.first, run.last, unroll=1) as row:
                self._row(row * self.window.width.out)

    def _row(self, first_pixel: Value) -> None:
        """One row of output pixels: runs that meet the border, then those inside."""
        b = self.builder
        at = [v.get() for v in self.window.position(first_pixel)]
        missing = b.variable("missing", b.constant(0, first_pixel.type))
        with self.window.row_taps(at) as (number, entry, inside):
            b.set_row(self.row_table, number, self.window.rows.row(entry))
            b.store(self.insides, number, b.cast(inside, "i64"))
            missing.set(missing.get() + b.cast(~inside, "i64"))
        out = self.width_out
        total = (out + (self.pixels - 1)) // self.pixels
        first, last = self._inside(total, missing.get().eq(0))
        with b.loop("border_run", 0, total - (last - first), unroll=1) as i:
            pixel = b.select(i < first, i, i + (last - first)) * self.pixels
            column = pixel * self.wide.stride - self.window.width.before
            self._border(first_pixel + pixel, b.minimum(out - pixel, self.pixels), column)
        if not self.columns:
            return
        if self.keep_weights:
            with self._each_vector() as (channel, packed):
                weights = [b.load(packed, i * self.lanes, self.lanes, align=self.align) for i in range(self.taps * self.inputs)]
                with b.loop("run", first, last, unroll=1) as i:
                    self._whole(first_pixel, i, channel, weights)
            return
        with b.loop("run", first, last, unroll=1) as i, self._each_vector() as (channel, packed):
            self._whole(first_pixel, i, channel, packed)

    def _inside(self, total: Value, all_rows: Value) -> tuple[Value, Value]:
        """The runs that lie inside the image with all their pixels' windows: first and end."""
        b, wide, step = self.builder, self.window.width, self.pixels * self.wide.stride
        before = self.width_before
        if not self.columns:
            return b.constant(0, total.type), b.constant(0, total.type)
        first = b.minimum((b.maximum(before, 0) + (step - 1)) // step, total)
        room = before + wide.size - (self.columns[-1] + 1)
        last = b.select(room < 0, 0, b.maximum(room, 0) // step + 1)
        last = b.select(all_rows, b.minimum(last, wide.out // self.pixels), 0)
        return first, b.maximum(last, first)

    @contextmanager
    def _each_vector(self) -> Iterator[tuple[Value, Buffer]]:
        """A loop over the vectors of channels: first channel and weights."""
        b = self.builder
        with b.loop("vector", self.vectors.start, self.vectors.start + self.vectors.length, unroll=1) as v:
            channel = v * self.lanes
            channel = channel if self.few else b.minimum(channel, self.channels - self.lanes)
            yield channel, self.weights.at(v * (self.taps * self.inputs * self.lanes))

    def _whole(self, first_pixel: Value, run: Value, channel: Value, weights: Buffer | list[Value]) -> None:
        """A run inside the image, for one vector of channels."""
        pitch = self.window.pitch
        pixel = run * self.pixels
        column = pixel * self.wide.stride - self.window.width.before
        rows = [self.row_table.row(r).at(column * pitch) for r in range(self.row_taps)]
        results = self._straight(lambda r, i: rows[r].at(pitch * self.columns[i]), channel, weights)
        self._store(results, first_pixel + pixel, None, channel)

    def _border(self, place: Value, count: Value, column: Value) -> None:
        """A run of `count` pixels of which some see padding."""
        if self.columns:
            self._collect(column)
        else:
            self._collect_all(column)
        with self._each_vector() as (channel, weights):
            if self.columns:
                results = self._straight(lambda r, i: self.addresses.row(r * len(self.columns) + i), channel, weights)
            else:
                results = self._loop(channel, weights)
            self._store(results, place, count, channel)

    def _store(self, results: list[Value], place: Value, count: Value | None, channel: Value) -> None:
        mask = self.builder.first_lanes(self.channels, self.lanes) if self.few else None
        store_pixels(self.builder, self.epilogue, self.y, self.y_pitch, results, place, count, channel, mask)

    # --- addresses at borders ---

    def _collect(self, first: Value) -> None:
        """The addresses of all columns under the windows, in all rows."""
        b = self.builder
        with b.loop("row_tap", 0, self.row_taps, unroll=1) as r:
            row, inside = self.row_table.row(r), b.load(self.insides, r).ne(0)
            for i, step in enumerate(self.columns):
                b.set_row(self.addresses, r * len(self.columns) + i, self._pixel(row, inside, first + step))

    def _collect_all(self, first: Value) -> None:
        """The address of each tap of each pixel."""
        b, wide = self.builder, self.wide
        with b.loop("row_tap", 0, self.row_taps, unroll=1) as r:
            row, inside = self.row_table.row(r), b.load(self.insides, r).ne(0)
            with b.loop("tap", 0, wide.kernel, unroll=1) as k:
                for t in range(self.pixels):
                    address = self._pixel(row, inside, first + k * wide.dilation + t * wide.stride)
                    b.set_row(self.addresses, (r * wide.kernel + k) * self.pixels + t, address)

    def _pixel(self, row: Buffer, inside: Value, column: Value) -> Buffer:
        valid = inside & (column >= 0) & (column < self.window.width.size)
        return self.builder.select_buffer(valid, row.at(column * self.window.pitch), self.zeros)

    # --- arithmetic ---

    def _pixels(self, address: Buffer, channel: Value) -> list[Value]:
        """What a pixel brings to a vector of output channels: one vector for each input channel of a group."""
        b, lanes, wide = self.builder, self.lanes, self.input_lanes
        first = channel if self.inputs == self.outputs else channel // self.outputs * self.inputs
        mask = b.first_lanes(self.input_channels, wide) if self.few else None
        loaded = widen(b, b.load(address, first, wide, mask))
        if self.inputs == self.outputs == 1:
            return [loaded]
        return [b.shuffle(loaded, loaded, [lane // self.outputs * self.inputs + c for lane in range(lanes)]) for c in range(self.inputs)]

    def _straight(self, address: Callable[[int, int], Buffer], channel: Value, weights: Buffer | list[Value]) -> list[Value]:
        b, wide = self.builder, self.wide
        sums = [b.constant(0, Type(self.weights.scalar, self.lanes))] * self.pixels
        for r in range(self.row_taps):
            pixels = {step: self._pixels(address(r, i), channel) for i, step in enumerate(self.columns)}
            for k in range(wide.kernel):
                for c in range(self.inputs):
                    i = (r * wide.kernel + k) * self.inputs + c
                    weight = weights[i] if isinstance(weights, list) else b.load(weights, i * self.lanes, self.lanes, align=self.align)
                    sums = [b.fma(pixels[t * wide.stride + k * wide.dilation][c], weight, total) for t, total in enumerate(sums)]
        return sums

    def _loop(self, channel: Value, weights: Buffer) -> list[Value]:
        b = self.builder
        sums = [b.variable("sum", b.constant(0, Type(self.weights.scalar, self.lanes))) for _ in range(self.pixels)]
        with b.loop("tap", 0, self.taps, unroll=1) as tap:
            row = weights.at(tap * (self.inputs * self.lanes))
            loaded = [b.load(row, c * self.lanes, self.lanes, align=self.align) for c in range(self.inputs)]
            for t, total in enumerate(sums):
                for pixel, weight in zip(self._pixels(self.addresses.row(tap * self.pixels + t), channel), loaded, strict=True):
                    total.set(b.fma(pixel, weight, total.get()))
        return [total.get() for total in sums]


def output_rows(shape: Window) -> Any:
    """Rows of output pixels over the whole batch."""
    return product((shape.batch, *(axis.out for axis in shape.leading), shape.height.out))


def pack_vectors(matrix: Array, lanes: int) -> Array:
    """[rows, channels] as [vectors, rows, lanes]; the last vector ends with the last channel, a single one is filled with zeros."""
    rows, count = matrix.shape
    if count < lanes:
        packed = np.zeros((1, rows, lanes), matrix.dtype)
        packed[0, :, :count] = matrix
        return packed
    starts = [min(v * lanes, count - lanes) for v in range(-(-count // lanes))]
    return np.stack([matrix[:, start:start + lanes] for start in starts])


@dataclass(frozen=True)
class NarrowGroupsTemplate:
    """Convolutions whose groups fit into vectors; depth-wise ones, or all others."""

    name: str
    depthwise: bool

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "convolution" or problem.constant(1) is None or problem.input(0).dtype == "bool":
            return False
        groups, inputs, outputs = channels(problem)
        lanes = device.lanes(working(problem.input(0).dtype))
        if problem.input(0).dtype != problem.input(1).dtype or groups == 1 or (inputs == outputs == 1) != self.depthwise:
            return False
        return lanes % outputs == 0 and inputs <= WIDEST_GROUP and lanes // outputs * inputs <= 4 * lanes

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"pixels": (4, 2, 3, 6, 8, 1), "channels": (0, 32, 64, 128, 256), "keep_weights": (False, True)},
                     constraint=lambda config: not config["keep_weights"] or self._fits(problem, device))

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        rows, count = output_rows(window(problem, kernel_shape(problem))), int(problem.output().columns)  # type: ignore[arg-type]
        # Few rows are hard to divide evenly: then each core gets channels of its own.
        own = count // device.cores if isinstance(rows, int) and rows < FEW_ROWS and count >= WIDE_CHANNELS * device.cores else 0
        return {"pixels": 4, "channels": own, "keep_weights": False}

    def _fits(self, problem: Problem, device: Device) -> bool:
        """Whether the weights of a vector of channels and some sums fit into registers."""
        products = channels(problem)[1] * int(np.prod(kernel_shape(problem)))
        return products <= device.target.vector_registers - 6

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        weights = problem.constant(1)
        assert weights is not None
        dtype = problem.input(1).dtype
        matrix = working_array(weights, dtype).reshape(-1, weights.shape[-1])  # rows are (tap, input of the group)
        return (pack_vectors(matrix, device.lanes(working(dtype))),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        shape = window(problem, kernel_shape(problem))
        groups, inputs, outputs = channels(problem)
        lanes = device.lanes(working(problem.input(0).dtype))
        vectors = -(-groups * outputs // lanes)
        blocks = -(-vectors * lanes // int(config["channels"])) if config["channels"] else 1
        blocks = min(blocks, vectors)
        builder = Builder(self.name)
        slots = Slots(builder, problem)
        code = DepthwiseCode(slots, shape, int(config["pixels"]), blocks, lanes, bool(config["keep_weights"]))
        epilogue = Epilogue(builder, problem)
        code.write(epilogue)
        return Implementation((KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()), extent=output_rows(shape) * blocks, scratch=code.scratch,
            multiply_adds=product((shape.pixels, shape.taps, groups, inputs, outputs)),
            bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False


DEPTHWISE = NarrowGroupsTemplate("depthwise", depthwise=True)
GROUPED = NarrowGroupsTemplate("grouped", depthwise=False)
