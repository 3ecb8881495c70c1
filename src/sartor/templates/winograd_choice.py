"""Which way of Winograd's convolution is likely the fastest, where nothing was measured.

Costs are counted in multiply-adds at the peak of one core, so that they need no clock.  The figures were measured on a Zen 3
server: a pass of a transform costs 2.5 cycles a vector and plane, a register tile 40 cycles besides its products, and a byte of
weights, which come from memory in all but the smallest networks, as much time as 2.5 multiply-adds.
"""

from __future__ import annotations

from math import prod
from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.sizes import Dim, evaluate, symbols
from sartor.templates.microkernel import choose_tile, parse_tile
from sartor.templates.spatial import Window
from sartor.templates.toomcook import Filtering, filtering
from sartor.types import BYTES

SCALAR = "f32"
SIZES = (6, 4)
"""Sizes of tiles with transforms that may be chosen unmeasured: of 8, the error is ten times as large."""

LEAST_CHANNELS = 8
WEIGHT_BYTE = 2.5
TRANSFORM = 5
REGISTER_TILE = 40
EFFICIENCY = 0.9
ROWS = 12
"""A thread that has fewer tiles than this takes a part of the output channels instead."""


def typical(dim: Dim, unknown: int) -> int:
    """The value of `dim` with all symbols at `unknown`."""
    return max(1, evaluate(dim, dict.fromkeys(symbols(dim), unknown)))


def typical_pixels(shape: Window) -> tuple[int, int, int]:
    """Batch, height and width of the output; symbols stand for one image of medium size."""
    return typical(shape.batch, 1), typical(shape.height.out, 256), typical(shape.width.out, 256)


def tile_count(shape: Window, vertical: Filtering, horizontal: Filtering) -> int:
    """Tiles of a typical input."""
    batch, height, width = typical_pixels(shape)
    return batch * -(-height // vertical.outputs) * -(-width // horizontal.outputs)


def _cost(shape: Window, size: int, channels: int, columns: int, tile: str, device: Device) -> float:
    """Of Winograd with tiles of `size`."""
    vertical, horizontal = filtering(size, shape.height.kernel), filtering(size, shape.width.kernel)
    registers = parse_tile(tile, SCALAR, device.target)
    planes, tiles = vertical.size * horizontal.size, tile_count(shape, vertical, horizontal)
    panels = -(-columns // registers.columns)
    products = planes * tiles * channels * panels * registers.columns / EFFICIENCY
    overhead = planes * panels * (tiles / registers.rows) * REGISTER_TILE * 2 * registers.lanes
    passes = (vertical.size > 1) + (horizontal.size > 1)
    transforms = planes * tiles * (channels + columns) * passes * TRANSFORM
    return (products + overhead + transforms) / device.cores + planes * channels * columns * BYTES[SCALAR] * WEIGHT_BYTE


def _direct_cost(shape: Window, channels: int, columns: int, tile: str, device: Device) -> float:
    """Of direct convolution."""
    width = parse_tile(tile, SCALAR, device.target).columns
    products = prod(typical_pixels(shape)) * shape.taps * channels * (-(-columns // width) * width) / EFFICIENCY
    return products / device.cores + shape.taps * channels * columns * BYTES[SCALAR] * WEIGHT_BYTE


def choose(problem: Problem, shape: Window, device: Device) -> dict[str, Any] | None:
    """A configuration, or None where direct convolution is likely faster."""
    *_, channels, columns = (int(n) for n in problem.input(1).shape)  # type: ignore[arg-type]
    if min(channels, columns) < LEAST_CHANNELS:
        return None
    tile = choose_tile(columns, device.target, SCALAR)
    taps = max(axis.kernel for axis in shape.axes)
    size = min((s for s in SIZES if s > taps), key=lambda s: _cost(shape, s, channels, columns, tile, device))
    if _cost(shape, size, channels, columns, tile, device) > _direct_cost(shape, channels, columns, tile, device):
        return None
    return {"size": size, "tile": tile} | _blocks(shape, size, channels, columns, tile, device)


def _blocks(shape: Window, size: int, channels: int, columns: int, tile: str, device: Device) -> dict[str, Any]:
    """How the work is cut."""
    vertical, horizontal = filtering(size, shape.height.kernel), filtering(size, shape.width.kernel)
    registers = parse_tile(tile, SCALAR, device.target)
    tiles, panels = tile_count(shape, vertical, horizontal), -(-columns // registers.columns)
    splits = 1
    while splits < min(device.cores, panels) and tiles * splits < ROWS * device.cores:
        splits *= 2
    splits = min(splits, panels)
    weights = vertical.size * horizontal.size * channels * columns * BYTES[SCALAR]
    block = (48 if weights > device.l3_bytes // 2 else 24) // registers.rows * registers.rows
    group = max(1, min(32 // registers.columns, panels // splits))
    row_tiles = -(-min(block, tiles * splits // device.cores + 1) // registers.rows)
    # Repeating the transforms in each split must cost little of what the products cost.
    fused = splits == 1 or splits * 100 <= columns
    return {"block": block, "group": group, "splits": splits, "fused": fused,
            "prefetch": 4 if row_tiles >= 4 else min(row_tiles, 2)}
