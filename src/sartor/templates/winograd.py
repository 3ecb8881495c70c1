"""Convolution by Winograd's minimal filtering: windows of stride 1 with fewer multiplications.

The output is covered by tiles of m x m pixels, anchored at its origin.  For a block of tiles, a = m + taps - 1:

1. each tile's a x a input patch is transformed, channel vector by channel vector, into V [a*a][tiles][channels];
2. for a few panels of output channels, a*a products M [a*a][tiles][columns] = V times the transformed weights;
3. each tile of M is transformed back and stored through the layer's expression.

V and M stay in L2; the weights, transformed in double precision when packing, are read once a block.  The parallel extent is
`splits x tiles`: a slice is a run of tiles for a part of the panels, which a thread cuts into blocks of its own; what a tile
computes does not depend on its block.  Fused, every split transforms the patches for itself; else a call of its own does it
for all.

A pixel that is infinite or not a number spoils the whole tiles it meets, as is usual of this algorithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder
from sartor.sizes import product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.blocks import Part, even, runs
from sartor.templates.convolution import kernel_shape
from sartor.templates.expression_code import Epilogue
from sartor.templates.microkernel import parse_tile, tile_choices
from sartor.templates.slots import Slots
from sartor.templates.spatial import Window, window
from sartor.templates.toomcook import PAIRS, filtering
from sartor.templates.winograd_choice import SCALAR, choose
from sartor.templates.winograd_code import LINE, UNROLL, Grid, Patches, Plan, Products

Array = np.ndarray[Any, Any]

VECTORS = 8
"""Vectors of channels in one unit of the extent of the call that only transforms patches."""


def make_plan(problem: Problem, config: Config, device: Device) -> Plan:
    """What `config` fixes for this layer."""
    *_, channels, columns = (int(n) for n in problem.input(1).shape)  # type: ignore[arg-type]
    shape, size = window(problem, kernel_shape(problem)), int(config["size"])
    tile = parse_tile(config["tile"], SCALAR, device.target)
    group, shares = min(int(config["group"]), -(-columns // tile.columns)), int(config["prefetch"])
    lines = -(-UNROLL * tile.columns // (LINE * shares)) if shares else 0
    return Plan(filtering(size, shape.height.kernel), filtering(size, shape.width.kernel), tile, int(config["block"]), group,
                lines, channels, columns)


def transform_weights(weights: Array, plan: Plan) -> Array:
    """G w G^T for weights [height, width, C, O], in double precision: [planes, C, O]."""
    vertical, horizontal = (np.array([[float(x) for x in row] for row in f.weights]) for f in (plan.vertical, plan.horizontal))
    both = np.kron(vertical, horizontal)  # [planes, taps]
    taps = weights.reshape(both.shape[1], plan.channels, plan.columns)
    transformed = np.empty((plan.planes, plan.channels, plan.columns), np.float32)
    for channel in range(plan.channels):  # the matrices in double precision would take much memory all at once
        transformed[:, channel] = both @ taps[:, channel].astype(np.float64)
    return transformed


def pack_groups(matrices: Array, plan: Plan) -> Array:
    """Matrices [planes, C, O] as [groups][planes][panels][C][columns of a panel], flat; the last group may have fewer panels."""
    width = plan.tile.columns
    padded = np.zeros((*matrices.shape[:2], plan.panels * width), np.float32)
    padded[..., :plan.columns] = matrices
    panels = padded.reshape(*matrices.shape[:2], plan.panels, width).transpose(2, 0, 1, 3)  # panel, plane, channel, column
    groups = [panels[start:start + plan.group].swapaxes(0, 1).reshape(-1) for start in range(0, plan.panels, plan.group)]
    return np.concatenate(groups)


# --- the kernels ----------------------------------------------------------------------------------------------------------


def _fused_call(problem: Problem, plan: Plan, shape: Window, splits: int) -> KernelCall:
    """All three steps, block of tiles by block."""
    b = Builder("winograd")
    slots = Slots(b, problem)
    grid = Grid(slots, plan, shape)
    patches, products = Patches(slots, plan, grid, shape), Products(slots, plan, grid, shape)
    plane, split_count = slots.size("v_plane", plan.v_plane(plan.block)), slots.size("splits", splits)
    m_start = slots.size("v_bytes", plan.v_bytes(plan.block))
    v, m = b.scratch(plan.tile.scalar), b.scratch(plan.tile.scalar, m_start)
    epilogue = Epilogue(b, problem)
    with runs(b, b.maximum(grid.tiles, 1)) as run:
        groups = even(b, products.groups, split_count, run.outer)
        length = run.last - run.first
        blocks = (length + (plan.block - 1)) // plan.block
        with b.loop("block", 0, blocks, unroll=1) as i:
            part = even(b, length, blocks, i)
            block = Part(run.first + part.start, part.length)
            patches.write(block, v, plane, Part(b.constant(0, b.begin.type), patches.vectors))
            products.write(epilogue, block, v, plane, m, groups)
    return KernelCall(
        b.finish(), (*slots.arguments, *epilogue.arguments()), extent=plan.tiles(shape) * splits,
        scratch=plan.v_bytes(plan.block) + plan.m_bytes, multiply_adds=_multiply_adds(plan, shape),
        bytes=problem.input(0).bytes + plan.planes * plan.channels * plan.columns * 4 + problem.output().bytes)


def _patches_call(problem: Problem, plan: Plan, shape: Window) -> KernelCall:
    """The transform of all patches to workspace 0."""
    b = Builder("winograd_patches")
    slots = Slots(b, problem)
    grid = Grid(slots, plan, shape)
    patches = Patches(slots, plan, grid, shape)
    v, plane = slots.workspace("v", 0, plan.tile.scalar), slots.size("v_plane", plan.v_plane(plan.tiles(shape)))
    chunks = -(-plan.vectors // VECTORS)
    with runs(b, b.maximum(grid.tiles, 1)) as run:
        first = run.outer * VECTORS
        vectors = Part(first, b.minimum(patches.vectors - first, VECTORS))
        patches.write(Part(run.first, run.last - run.first), v.at(run.first * patches.v_pitch), plane, vectors)
    return KernelCall(b.finish(), slots.arguments, extent=plan.tiles(shape) * chunks,
                      bytes=problem.input(0).bytes + plan.v_bytes(plan.tiles(shape)))


def _products_call(problem: Problem, plan: Plan, shape: Window, splits: int) -> KernelCall:
    """Products and the transform of the output, from workspace 0."""
    b = Builder("winograd_products")
    slots = Slots(b, problem)
    grid = Grid(slots, plan, shape)
    products = Products(slots, plan, grid, shape)
    v, plane = slots.workspace("v", 0, plan.tile.scalar), slots.size("v_plane", plan.v_plane(plan.tiles(shape)))
    split_count, m = slots.size("splits", splits), b.scratch(plan.tile.scalar)
    epilogue = Epilogue(b, problem)
    with runs(b, b.maximum(grid.tiles, 1)) as run:
        groups = even(b, products.groups, split_count, run.outer)
        length = run.last - run.first
        blocks = (length + (plan.block - 1)) // plan.block
        with b.loop("block", 0, blocks, unroll=1) as i:
            part = even(b, length, blocks, i)
            block = Part(run.first + part.start, part.length)
            products.write(epilogue, block, v.at(block.start * products.v_pitch), plane, m, groups)
    return KernelCall(
        b.finish(), (*slots.arguments, *epilogue.arguments()), extent=plan.tiles(shape) * splits, scratch=plan.m_bytes,
        multiply_adds=_multiply_adds(plan, shape),
        bytes=plan.v_bytes(plan.tiles(shape)) + plan.planes * plan.channels * plan.columns * 4 + problem.output().bytes)


def _multiply_adds(plan: Plan, shape: Window) -> Any:
    """Of the direct method, as for every convolution."""
    return product((shape.pixels, shape.taps, plan.channels, plan.columns))


# --- the template ---------------------------------------------------------------------------------------------------------


class WinogradTemplate:
    """Convolutions of stride 1 with fewer multiplications: windows of one or two dimensions, up to 5 taps along each."""

    name = "winograd"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "convolution" or problem.constant(1) is None or problem.input(0).dtype != "f32":
            return False
        taps = kernel_shape(problem)
        return (len(taps) <= 2 and 1 < max(taps) <= 5 and problem.input(1).dtype == "f32" and problem["groups"] == 1
                and all(s == 1 for s in problem["strides"]) and all(d == 1 for d in problem["dilations"]))

    def space(self, problem: Problem, device: Device) -> Space:
        *_, columns = (int(n) for n in problem.input(1).shape)  # type: ignore[arg-type]
        taps = max(kernel_shape(problem))
        default = self.default(problem, device) or {}

        def choices(knob: str, *usual: Any) -> tuple[Any, ...]:
            return tuple(dict.fromkeys((*((default[knob],) if knob in default else ()), *usual)))

        def whole(config: Config) -> bool:
            """Whether every split has panels."""
            panels, group = -(-columns // parse_tile(config["tile"], SCALAR, device.target).columns), int(config["group"])
            return group <= panels and int(config["splits"]) <= -(-panels // group)

        return Space({"size": choices("size", *(size for size in PAIRS if size > taps)),
                      "tile": choices("tile", *tile_choices(device.target)[:3]), "block": choices("block", 24, 12, 48),
                      "group": choices("group", 1, 2, 4), "splits": choices("splits", 1, 2, 4), "fused": (True, False),
                      "prefetch": choices("prefetch", 0, 1, 2, 4)}, whole)

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return choose(problem, window(problem, kernel_shape(problem)), device)

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        weights = problem.constant(1)
        assert weights is not None
        plan = make_plan(problem, config, device)
        return (pack_groups(transform_weights(weights, plan), plan),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        plan, shape = make_plan(problem, config, device), window(problem, kernel_shape(problem))
        splits = min(int(config["splits"]), plan.groups)
        if config["fused"]:
            return Implementation((_fused_call(problem, plan, shape, splits),))
        calls = (_patches_call(problem, plan, shape), _products_call(problem, plan, shape, splits))
        return Implementation(calls, (plan.v_bytes(plan.tiles(shape)),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False


WINOGRAD = WinogradTemplate()
