"""Transposed convolution by phases: no multiplication by the zeros between the pixels.

Output pixels whose coordinates have the same remainders by the strides (a phase) meet the same taps, and see the input as an
ordinary convolution of stride 1.  Each phase is a product on register tiles whose left-hand side is a table of addresses, as in
`convolution`, and whose rows are scattered to the output.  Where stride and kernel are the same, a phase has one tap.

For an output coordinate p let q = p + before = phase + stride * u.  The taps k with k * dilation = phase (mod stride) are
k0, k0 + stride / g, ... with g = gcd(stride, dilation); tap j of them meets input u - offset - j * dilation / g, where
offset = (k0 * dilation - phase) / stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as cartesian
from math import gcd, prod
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem, Tensor
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, product
from sartor.templates.base import Config, Implementation, KernelCall, RowTable, Space
from sartor.templates.blocks import Run, chunks, even, runs
from sartor.templates.convolution import chunk_rows, group_blocks
from sartor.templates.expression_code import Epilogue, working
from sartor.templates.microkernel import (
    Accumulators,
    Output,
    Place,
    Tile,
    choose_tile,
    depth_unroll,
    is_narrow,
    may_overwrite,
    multiply,
    parse_tile,
    tile_choices,
)
from sartor.templates.product import chunk_tiles
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, advance, nest, position, window
from sartor.templates.weights import Weights, is_static
from sartor.types import BYTES

Array = np.ndarray[Any, Any]
FOLDED = 8
"""Columns that the taps along the width and the output channels may make together to be folded."""

LARGE = 1 << 24
"""Added before divisions so that their numerators are positive."""


@dataclass(frozen=True)
class AxisPhase:
    """The taps of one axis that meet the outputs of one phase."""

    phase: int
    taps: tuple[int, ...]
    offset: int


def axis_phases(kernel: int, stride: int, dilation: int) -> list[AxisPhase]:
    """The phases of an axis; one may have no taps."""
    found = []
    for phase in range(stride):
        taps = tuple(k for k in range(kernel) if (k * dilation - phase) % stride == 0)
        found.append(AxisPhase(phase, taps, (taps[0] * dilation - phase) // stride if taps else 0))
    return found


@dataclass(frozen=True)
class Phases:
    """All phases of a window, row-major over its axes, as a table for the kernel.

    Attributes
    ----------
    table
        int64 [phases, 3 * axes + 2]: phase, taps and offset of each axis; then taps before this phase's, and taps.
    order
        All taps (flattened), phase by phase.
    """

    table: Array
    order: tuple[int, ...]

    @property
    def most_taps(self) -> int:
        return int(self.table[:, -1].max())


def phases(shape: Window) -> Phases:
    """The phases of a transposed window."""
    rows: list[list[int]] = []
    order: list[int] = []
    for combination in cartesian(*(axis_phases(a.kernel, a.stride, a.dilation) for a in shape.axes)):
        taps = list(cartesian(*(p.taps for p in combination)))
        rows.append([n for p in combination for n in (p.phase, len(p.taps), p.offset)] + [len(order), len(taps)])
        order += [int(np.ravel_multi_index(tap, [a.kernel for a in shape.axes])) for tap in taps]
    return Phases(np.array(rows, np.int64), tuple(order))


@dataclass
class AxisState:
    """One axis inside the kernel, for the phase at hand."""

    size: Value
    out: Value
    before: Value
    stride: int
    step: int
    phase: Value
    taps: Value
    offset: Value
    first: Value  # u of the first output
    count: Value


class DeconvolutionCode:
    """Writes the kernel."""

    def __init__(self, slots: Slots, tile: Tile, config: Config, shape: Window, weights: Weights, table: Phases,
                 dense: bool) -> None:
        self.problem = problem = slots.problem
        self.builder: Builder = slots.builder
        self.tile, self.config, self.shape = tile, config, shape
        scalar, groups, inputs, outputs = problem.input(0).dtype, *deconvolution_channels(problem)
        leading = product((shape.batch, *(axis.size for axis in shape.leading)))
        self.rows = slots.rows("x", RowTable(shape.value, leading, shape.height.size, shape.width.size, 0, 0))
        self.x_pitch = slots.pitch("x_pitch", shape.value)
        self.panels, self.aligned = weights.declare(slots), weights.is_constant
        self.phases = slots.constant("phases", 1, "i64")
        self.zeros = slots.zeros("zeros", max(64, inputs * BYTES[scalar]), scalar)
        result = problem.layer.outputs[0]
        self.y = slots.pointer("y", result)
        # Rows of a folded output are several of the layer's.
        self.y_pitch = slots.size("y_pitch", problem.output().columns) if dense else slots.pitch("y_pitch", result)
        self.sizes = [(slots.size("size", a.size), slots.size("out", a.out), slots.size("before", a.before)) for a in shape.axes]
        self.batch, self.tiles = slots.size("batch", shape.batch), slots.size("tiles", phase_tiles(shape, tile))
        self.groups, self.inputs, self.outputs = slots.size("groups", groups), slots.size("inputs", inputs), slots.size("outputs", outputs)
        self.depth = slots.size("depth", shape.taps * inputs)
        self.blocks = slots.size("panel_blocks", group_blocks(outputs, tile, config))
        self.chunk = slots.size("chunk_tiles", chunk_tiles(tile, config))
        pixels = chunk_tiles(tile, config) * tile.rows
        self.places = self.builder.scratch("i64", tile.bytes)
        self.table = self.builder.scratch_table(scalar, tile.bytes + 8 * pixels)
        self.scratch = tile.bytes + 8 * pixels * (1 + table.most_taps)

    def write(self, epilogue: Epilogue) -> None:
        """Emits the whole body."""
        b, tile = self.builder, self.tile
        output = Output(b, tile, epilogue, self.y, self.y_pitch, is_narrow(self.problem))
        panel_count = (self.outputs + (tile.columns - 1)) // tile.columns
        with runs(b, b.maximum(self.tiles, 1)) as run:
            member = run.outer // self.blocks
            block = even(b, panel_count, self.blocks, run.outer - member * self.blocks)
            phase = member // self.groups
            group = member - phase * self.groups
            self._enter(phase)
            panels = self.panels.at(group * panel_count * (self.depth * tile.columns)).at(self.tap_base * (self.inputs * tile.columns))
            with chunks(b, run, self.chunk) as chunk:
                self._prepare(chunk, group * self.inputs)
                with b.loop("panel", block.start, block.start + block.length, unroll=1) as p:
                    self._panel(output, chunk, panels.at(p * (self.depth * tile.columns)), group * self.outputs, p * tile.columns)

    def _enter(self, phase: Value) -> None:
        """Reads a phase from the table, and finds which outputs belong to it."""
        b, fields = self.builder, 3 * len(self.shape.axes) + 2
        entry = self.phases.at(phase * fields)
        self.axes = []
        for i, (axis, (size, out, before)) in enumerate(zip(self.shape.axes, self.sizes, strict=True)):
            own, taps, offset = (b.load(entry, 3 * i + field) for field in range(3))
            first = self._ceil(before - own, axis.stride)
            count = self._ceil(out + before - own, axis.stride) - first
            step = axis.dilation // gcd(axis.stride, axis.dilation)
            self.axes.append(AxisState(size, out, before, axis.stride, step, own, taps, offset, first, count))
        self.tap_base, self.taps = b.load(entry, fields - 2), b.load(entry, fields - 1)
        self.pixels = self.batch
        for state in self.axes:
            self.pixels = self.pixels * state.count

    def _ceil(self, value: Value, stride: int) -> Value:
        return value if stride == 1 else (value + (stride * LARGE + stride - 1)) // stride - LARGE

    def _prepare(self, chunk: Run, channel: Value) -> None:
        """The rows of the output and the addresses of the input's pixels for a chunk of tiles."""
        b, counts = self.builder, [axis.count for axis in self.axes]
        at = position(b, counts, even(b, self.pixels, self.tiles, chunk.first).start)
        with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
            part, place = even(b, self.pixels, self.tiles, t), (t - chunk.first) * self.tile.rows
            with b.loop("pixel", 0, part.length, unroll=1) as i:
                image, *rest = [v.get() for v in at]
                inner = [axis.first + v for axis, v in zip(self.axes, rest, strict=True)]
                row = image
                for axis, u in zip(self.axes, inner, strict=True):
                    row = row * axis.out + (axis.phase + u * axis.stride - axis.before)
                b.store(self.places, place + i, row)
                self._addresses(image, inner, place * self.taps + i, channel)
                advance(b, counts, at)

    def _addresses(self, image: Value, inner: Sequence[Value], entry: Value, channel: Value) -> None:
        """The address under each tap of one output pixel."""
        b = self.builder
        inside = b.constant(True, Type("bool"))
        with nest(b, [axis.taps for axis in self.axes], "tap") as taps:
            number: Value | None = None
            row, coordinate = image, image
            for axis, u, tap in zip(self.axes, inner, taps, strict=True):
                i = u - axis.offset - tap * axis.step
                valid = (i >= 0) & (i < axis.size)
                inside = inside & valid
                coordinate = b.select(valid, i, 0)
                if axis is not self.axes[-1]:
                    row = row * axis.size + coordinate
                number = tap if number is None else number * axis.taps + tap
            assert number is not None
            pixel = self.rows.row(row).at(coordinate * self.x_pitch + channel)
            b.set_row(self.table, entry + number * self.tile.rows, b.select_buffer(inside, pixel, self.zeros))

    def _panel(self, output: Output, chunk: Run, panel: Buffer, first_column: Value, column: Value) -> None:
        b, tile = self.builder, self.tile
        with b.loop("tile", chunk.first, chunk.last, unroll=1) as t:
            part, index = even(b, self.pixels, self.tiles, t), (t - chunk.first) * tile.rows

            def row(i: Number, index: Value = index) -> Value:
                return b.load(self.places, index + i)

            with b.branch(part.length > 0):
                place = Place(row, first_column + column, part.length, self.outputs - column, scattered=True)
                output.compute(place, b.scratch(tile.scalar), partial(self._accumulate, entry=index * self.taps, panel=panel))

    def _accumulate(self, accumulators: Accumulators, entry: Value, panel: Buffer) -> None:
        b, tile = self.builder, self.tile
        unroll = int(self.config["unroll"]) if accumulators.rows + 1 >= tile.rows else 1
        with b.loop("tap", 0, self.taps, unroll=1) as tap:
            rows = [self.table.row(entry + tap * tile.rows + i) for i in range(accumulators.rows)]
            multiply(accumulators, rows, panel.at(tap * (self.inputs * tile.columns)), self.inputs, unroll=unroll, aligned=self.aligned)


def folded(problem: Problem) -> Problem:
    """The layer with the taps along the width as columns, where few output channels would leave vectors nearly empty.

    Where the width's kernel is its stride, an input pixel makes kernel x outputs neighbouring elements of a row of a dense output.
    """
    weights, outputs = problem.constant(1), problem.output().columns
    if not is_static(problem.input(1)):
        return problem
    *kernel, inputs, count = (int(d) for d in problem.input(1).shape)  # type: ignore[arg-type]
    rank, attributes = len(kernel), dict(problem.layer.attributes)
    taps, stride, dilation = kernel[-1], attributes["strides"][-1], attributes["dilations"][-1]
    image, out, pads = problem.input(0).shape, problem.output().shape, attributes["pads"]
    if (weights is None or attributes["groups"] != 1 or not isinstance(outputs, int) or taps == 1
            or outputs * taps > FOLDED or taps != stride or dilation != 1 or pads[rank - 1] != 0 or pads[-1] != 0
            or out[-2] != image[-2] * taps or any(problem.tensors[e].elements != 1 for e in problem.layer.extra)):
        return problem
    matrix = np.moveaxis(weights, rank - 1, -2).reshape(*weights.shape[:rank - 1], 1, inputs, taps * count)
    name, result = problem.layer.inputs[1], problem.layer.outputs[0]
    layer = replace(problem.layer, attributes={**attributes, "strides": (*attributes["strides"][:-1], 1)})
    tensors = {**problem.tensors, name: Tensor(problem.input(1).dtype, tuple(matrix.shape)),
               result: Tensor(problem.output().dtype, (*out[:-2], image[-2], taps * outputs))}
    return Problem(layer, tensors, {**problem.constants, name: matrix})


def deconvolution_channels(problem: Problem) -> tuple[int, int, int]:
    """Groups, input channels a group, output channels a group."""
    *_, inputs, outputs = problem.input(1).shape
    groups = int(problem["groups"])
    return groups, int(inputs) // groups, int(outputs)  # type: ignore[arg-type]


def phase_tiles(shape: Window, tile: Tile) -> Dim:
    """Row tiles of the largest phase."""
    return ceildiv(product((shape.batch, *(ceildiv(axis.out, axis.stride) for axis in shape.axes))), tile.rows)


class DeconvolutionTemplate:
    """Transposed convolution of any rank, stride, dilation, padding and grouping."""

    name = "deconvolution"

    def applies(self, problem: Problem, device: Device) -> bool:
        return (problem.layer.kind == "deconvolution" and problem.input(0).dtype != "bool"
                and problem.input(0).dtype == problem.input(1).dtype and is_static(problem.input(1)))

    def space(self, problem: Problem, device: Device) -> Space:
        default = self.default(problem, device)
        return Space({"tile": tile_choices(device.target), "panels": sorted({1, 2, 4, 8, 16, default["panels"]}),
                      "mc": (96, 48, 24, 192), "unroll": (4, 2, 8)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        problem = folded(problem)
        scalar = working(problem.input(0).dtype)
        _, inputs, outputs = deconvolution_channels(problem)
        text = choose_tile(outputs, device.target, scalar)
        tile = parse_tile(text, scalar, device.target)
        panel = max(1, tile.columns * BYTES[scalar] * inputs * prod(self._kernel(problem)))
        panels = max(1, min(-(-outputs // tile.columns), device.l2_bytes // 2 // panel))
        most_taps = phases(window(problem, self._kernel(problem))).most_taps
        return {"tile": text, "panels": panels, "mc": chunk_rows(device.l2_bytes // 4, 8 * (1 + most_taps), tile),
                "unroll": depth_unroll(device.target)}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        problem = folded(problem)
        return (*self._weights(problem, config, device).constants(), phases(window(problem, self._kernel(problem))).table)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        dense = self.contiguous(problem, problem.layer.outputs[0])
        problem = folded(problem)
        shape = window(problem, self._kernel(problem))
        table, weights = phases(shape), self._weights(problem, config, device)
        tile, (groups, inputs, outputs) = weights.tile, deconvolution_channels(problem)
        builder = Builder("deconvolution")
        slots = Slots(builder, problem)
        code = DeconvolutionCode(slots, tile, config, shape, weights, table, dense)
        epilogue = Epilogue(builder, problem)
        code.write(epilogue)
        inside = product((shape.batch, *(axis.size for axis in shape.axes)))
        call = KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()), scratch=code.scratch,
            extent=phase_tiles(shape, tile) * (len(table.table) * groups * group_blocks(outputs, tile, config)),
            multiply_adds=product((inside, shape.taps, inputs, outputs, groups)),
            bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes)
        return Implementation((*weights.calls(), call), weights.workspaces())

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value == problem.layer.outputs[0] and (folded(problem) is not problem or is_narrow(problem))

    def in_place(self, problem: Problem, value: str) -> bool:
        return may_overwrite(problem, value)

    def _kernel(self, problem: Problem) -> tuple[int, ...]:
        return tuple(int(k) for k in problem.input(1).shape[:-2])  # type: ignore[arg-type]

    def _weights(self, problem: Problem, config: Config, device: Device) -> Weights:
        """The panels: rows of a group are (tap, channel), taps phase by phase."""
        groups, inputs, outputs = deconvolution_channels(problem)
        taps = np.array(phases(window(problem, self._kernel(problem))).order, np.int64)
        member = np.arange(groups)[:, None, None] * inputs + np.arange(inputs)[None, None, :]
        rows = (taps[None, :, None] * (groups * inputs) + member).reshape(groups, -1)
        return Weights(problem, parse_tile(config["tile"], working(problem.input(0).dtype), device.target), rows, outputs, 0)


DECONVOLUTION = DeconvolutionTemplate()
