"""Regions of images: pooling them, and convolution at places moved by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import prod

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Build, Call, Context, DeclinedError
from sartor.ops.convolution import channels_first, channels_last
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import combine, strides_of
from sartor.ops.movement import emit_slice
from sartor.ops.windows import output_sizes, window
from sartor.sizes import Dim, product

FAR = 1e9  # beyond which coordinates are alike


def _pooled(context: Context, call: Call, boxes: str, images: str, grid: Sequence[int], mode: str, offset: float, sampling: int) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    if len(tensor.shape) != 4 or len(context.shape(boxes)) != 2 or len(context.shape(images)) != 1:
        raise ModelError(f"{call} has an input of type {tensor} and boxes of type {context.tensor(boxes)}")
    if len(grid) != 2 or min(grid) < 1 or sampling < 0:
        raise ModelError(f"{call} has a grid of {list(grid)} with {sampling} points; neither may be empty or negative")
    context.same(context.shape(boxes)[1], 4, "a box")
    count = context.same(context.shape(boxes)[0], context.shape(images)[0], "the boxes")
    for size in tensor.shape[2:]:
        context.require_at_least(size, 1)
    moved = context.transpose(x, channels_last(4), suffix="channels_last")
    made = context.layer("regions", [moved, boxes, images], Tensor(tensor.dtype, (count, *grid, tensor.shape[1])), mode=mode,
                         scale=float(call.get("spatial_scale", 1.0)), offset=offset, sampling=sampling)
    context.transpose(made, channels_first(4), output=call.outputs[0])


def _roi_align(context: Context, call: Call) -> None:
    _, boxes, images = call.inputs
    mode = {"avg": "average", "max": "max"}.get(call.get("mode", "avg").lower())
    where = call.get("coordinate_transformation_mode", "half_pixel" if call.version >= 16 else "output_half_pixel")
    if mode is None or where not in ("half_pixel", "output_half_pixel"):
        raise ModelError(f"{call} has the unknown mode {call.get('mode')!r} or coordinates {where!r}")
    grid = (call.get("output_height", 1), call.get("output_width", 1))
    _pooled(context, call, boxes, images, grid, mode, 0.5 if where == "half_pixel" else 0.0, call.get("sampling_ratio", 0))


def _max_roi_pool(context: Context, call: Call) -> None:
    """The first number of each box is its image's."""
    regions = call.inputs[1]
    shape = context.shape(regions)
    if len(shape) != 2:
        raise ModelError(f"{call} has boxes of type {context.tensor(regions)}; expected five numbers each")
    context.same(shape[1], 5, "a box")
    boxes = emit_slice(context, regions, (0, 1), (1, 1), (shape[0], 4), suffix="boxes")
    first = context.reshape(emit_slice(context, regions, (0, 0), (1, 1), (shape[0], 1), suffix="first"), (shape[0],))
    images = context.elementwise([first], lambda e, v: e("cast", v, dtype="i64"), (shape[0],), suffix="images")
    _pooled(context, call, boxes, images, call["pooled_shape"], "bins", 0.0, 0)


# --- convolution at moved places ---------------------------------------------------------------------------------------------


def _deform_conv(context: Context, call: Call) -> None:
    """Pixels are gathered at the corners around each place, weighted and summed, and multiplied by the weights as one matrix."""
    x, w, offset = call.inputs[:3]
    tensor, weights = context.tensor(x), context.shape(w)
    batch, channels, *sizes = tensor.shape
    rank, groups, parts = len(sizes), call.get("group", 1), call.get("offset_group", 1)
    kernel = tuple(call.get("kernel_shape") or weights[2:])
    if not 1 <= rank <= 3 or tensor.dtype not in ("f16", "bf16", "f32", "f64") or any(
            not isinstance(d, int) for d in (channels, *weights)):
        raise DeclinedError(f"{call} has an input of type {tensor} and weights of type {context.tensor(w)}")
    made, inner = int(weights[0]), int(channels)  # type: ignore[arg-type]
    if min(groups, parts) < 1 or inner % groups or made % groups or inner % parts or weights[1:] != (inner // groups, *kernel):
        raise ModelError(f"{call} has weights of type {context.tensor(w)} for {inner} channels in {groups} groups, {parts} of offsets")
    shape = window(call, kernel, sizes)
    out = [context.same(a, b, "the offsets") for a, b in zip(output_sizes(shape, sizes, "NOTSET"), context.shape(offset)[2:], strict=True)]
    context.same(context.shape(offset)[1], parts * prod(kernel) * rank, "the offsets' channels")
    for size in sizes:
        context.require_at_least(size, 1)
    places = _places(context, call, kernel, [parts, prod(kernel)], out)
    columns = _columns(context, call, places, (batch, parts, prod(kernel), *out))
    n = len(out)
    moved = context.transpose(columns, (0, *range(3, 3 + n), 1, 3 + n, 2), suffix="taps_last")
    pixels, depth = product((batch, *out)), inner // groups * prod(kernel)
    rows = context.reshape(moved, (pixels, groups, depth), suffix="rows")
    rows = context.transpose(rows, (1, 0, 2), suffix="groups")
    matrix = context.reshape(w, (groups, made // groups, depth), suffix="matrix")
    result = context.layer("matmul", [rows, matrix], Tensor(tensor.dtype, (groups, pixels, made // groups)), transpose_a=False,
                           transpose_b=True)
    joined = context.reshape(context.transpose(result, (1, 0, 2), suffix="pixels"), (batch, *out, made), suffix="channels")
    if call.input(3):
        joined = context.elementwise([joined, call.inputs[3]], lambda e, v, b: e("add", v, b), (batch, *out, made), suffix="biased")
    context.transpose(joined, channels_first(rank + 2), output=call.outputs[0])


def _places(context: Context, call: Call, kernel: Sequence[int], parts: Sequence[int], out: Sequence[Dim]) -> list[str]:
    """Along each spatial dimension where the taps lie, [N, offset groups, taps, *out], in f32 or wider."""
    x, offset = call.inputs[0], call.inputs[2]
    rank, batch = len(kernel), context.shape(x)[0]
    shape = window(call, kernel, context.shape(x)[2:])
    full = (batch, *parts, *out)
    apart = context.reshape(offset, (batch, *parts, rank, *out), suffix="apart")
    wide = "f64" if context.dtype(x) == "f64" else "f32"
    found = []
    for i in range(rank):
        cut = emit_slice(context, apart, (0, 0, 0, i, *[0] * rank), (1,) * (4 + rank), (batch, *parts, 1, *out), suffix=f"offset_{i}")
        taps = np.indices(kernel)[i].reshape(-1, *[1] * rank) * shape.dilations[i]
        tap = context.new_constant(taps.astype(np.int64), f"{call.outputs[0]}.taps")
        step = context.reshape(context.arange(out[i]), (out[i], *[1] * (rank - 1 - i)))
        operands = [context.reshape(cut, full), tap, step, context.size_value(shape.pads[i])]

        def build(e: ExpressionBuilder, v: int, t: int, s: int, before: int, stride: int = shape.strides[i]) -> int:
            origin = e("sub", e("add", e("mul", s, e.constant(stride, "i64")), t), before)
            return e("add", e("cast", v, dtype=wide), e("cast", origin, dtype=wide))

        found.append(context.elementwise(operands, build, full, suffix=f"place_{i}"))
    return found


def _corner(e: ExpressionBuilder, place: int, size: int, upper: int) -> tuple[int, int]:
    """Along one dimension the pixel below or above a place, inside the image, and what it counts: nothing where it lies outside."""
    kind = e.nodes[place].dtype
    far, near = e.constant(-FAR, kind), e.constant(FAR, kind)
    bounded = e("min", e("max", e("select", e("is_nan", place), far, place), far), near)
    low = e("floor", bounded)
    part = e("sub", bounded, low)
    at = e("add", e("cast", low, dtype="i64"), e.constant(upper, "i64"))
    weight = part if upper else e("sub", e.constant(1.0, kind), part)
    inside = e("and", e("ge", at, e.constant(0, "i64")), e("lt", at, size))
    pixel = e("max", e("min", at, e("sub", size, e.constant(1, "i64"))), e.constant(0, "i64"))
    return pixel, e("select", inside, weight, e.constant(0.0, kind))


def _columns(context: Context, call: Call, places: Sequence[str], shape: Sequence[Dim]) -> str:
    """What each tap of each offset group sees: [N, offset groups, taps, *out, channels of the group]."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    batch, channels, *sizes = tensor.shape
    rank, parts = len(sizes), int(shape[1])  # type: ignore[arg-type]
    each = int(channels) // parts  # type: ignore[arg-type]
    moved = context.transpose(x, channels_last(rank + 2), suffix="channels_last")
    flat = context.reshape(moved, (product((batch, *sizes)) * parts, each), suffix="pixels")
    limits, strides = [context.size_value(d) for d in sizes], strides_of((batch, *sizes, parts))
    outer = [(context.reshape(context.arange(batch), (batch, *[1] * (rank + 2))), strides[0]),
             (context.reshape(context.arange(parts), (parts, *[1] * (rank + 1))), strides[-1])]
    operands: list[str] = []
    for corner in cartesian((0, 1), repeat=rank):
        pixels = [(context.elementwise([p, n], lambda e, v, s, u=u: _corner(e, v, s, u)[0], shape, suffix="pixel"), stride)
                  for p, n, u, stride in zip(places, limits, corner, strides[1:-1], strict=True)]
        linear = combine(context, [*outer, *pixels], shape)
        operands.append(context.layer("gather", [flat, linear], Tensor(tensor.dtype, (*shape, each)), suffix="seen", axis=0))

        def weigh(e: ExpressionBuilder, *values: int, corner: tuple[int, ...] = corner) -> int:
            total = -1
            for v, s, u in zip(values[:rank], values[rank:2 * rank], corner, strict=True):
                weight = _corner(e, v, s, u)[1]
                total = weight if total < 0 else e("mul", total, weight)
            return total if len(values) == 2 * rank else e("mul", total, e("cast", values[-1], dtype=e.nodes[total].dtype))

        reads = [*places, *limits]
        if call.input(4):
            reads.append(context.reshape(call.inputs[4], shape, suffix="mask"))
        weight = context.elementwise(reads, weigh, shape, suffix="weight")
        operands.append(context.reshape(weight, (*shape, 1)))
    return context.elementwise(operands, _weighted_sum(tensor.dtype), (*shape, each), suffix="columns")


def _weighted_sum(dtype: str) -> Build:
    """The sum of values, each times the weight that follows it."""
    def build(e: ExpressionBuilder, *values: int) -> int:
        total, wide = -1, e.nodes[values[1]].dtype
        for value, weight in zip(values[::2], values[1::2], strict=True):
            term = e("mul", e("cast", value, dtype=wide), weight)
            total = term if total < 0 else e("add", total, term)
        return e("cast", total, dtype=dtype)

    return build


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "DeformConv"): _deform_conv,
    ("", "MaxRoiPool"): _max_roi_pool,
    ("", "RoiAlign"): _roi_align,
}
