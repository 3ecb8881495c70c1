"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import TypeAlias

import numpy as np

from sartor.errors import ModelError
from sartor.graph.layer import Tensor
from sartor.graph.rules import float_dim
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.numbers import Ratio, axis_of, fraction
from sartor.sizes import Dim, Size, floordiv

Scale: TypeAlias = float | Size
"""A float, or a size that stands for one (`float_dim`)."""


def scaled(dim: Dim, scale: float) -> Dim:
    """floor(dim * scale), in single precision where `dim` is a number, exactly for the simplest such fraction where it is not."""
    if isinstance(dim, int):
        return int(np.floor(np.float32(dim) * np.float32(scale)))
    simple = fraction(scale)
    numerator, denominator = (simple.numerator, simple.denominator) if isinstance(simple, Ratio) else (int(simple), 1)
    return floordiv(dim * numerator, denominator)


def _emit(context: Context, call: Call, x: str, shape: Sequence[Dim], scales: Sequence[Scale | None], *, coordinate: str,
          nearest: str, roi: Sequence[Scale] | None = None) -> None:
    tensor = context.tensor(x)
    unchanged = all(a == b and s in (1.0, None) for a, b, s in zip(tensor.shape, shape, scales, strict=True))
    if unchanged and roi is None:
        context.alias(call.outputs[0], x)
        return
    mode = call.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic", "bilinear", "trilinear"):
        raise ModelError(f"{call} has the unknown mode {mode!r}")
    context.layer("resize", [x], Tensor(tensor.dtype, tuple(shape)), output=call.outputs[0],
                  mode="linear" if mode in ("bilinear", "trilinear") else mode, scales=tuple(scales), coordinate=coordinate,
                  nearest=nearest, cubic_a=float(call.get("cubic_coeff_a", -0.75)),
                  exclude_outside=bool(call.get("exclude_outside", 0)), antialias=bool(call.get("antialias", 0)),
                  extrapolation=float(call.get("extrapolation_value", 0.0)), roi=None if roi is None else tuple(roi))


def _floats(context: Context, name: str) -> list[float]:
    return [float(x) for x in context.require_constant(name).reshape(-1)]


def _upsample(context: Context, call: Call) -> None:
    """Upsample, and Resize of opset 10: positions are scaled from the origin."""
    x = call.inputs[0]
    shape = context.shape(x)
    if call.version >= 9 and context.constant(call.inputs[1]) is None:
        if call.op_type == "Resize" and call.get("mode", "nearest") == "nearest":
            raise DeclinedError(f"{call} rounds in a way that depends on its scales")
        least = 1.0 if call.op_type == "Upsample" else 0.0
        sizes, bound = _bound_scales(context, call, call.inputs[1], list(range(len(shape))), None, least)
        _emit(context, call, x, sizes, bound, coordinate="asymmetric", nearest="floor")
        return
    if call.version >= 9:
        scales = _floats(context, call.inputs[1])
    elif call.get("scales") is not None:
        scales = [float(s) for s in call["scales"]]
    else:  # opset 1
        scales = [1.0, 1.0, float(call["height_scale"]), float(call["width_scale"])]
    if len(scales) != len(shape) or min(scales, default=1.0) <= 0:
        raise ModelError(f"{call} has scales {scales} for an input of {len(shape)} dimensions")
    if min(scales, default=1.0) < 1 < max(scales, default=1.0) and call.get("mode", "nearest") == "nearest":
        raise DeclinedError(f"{call} both shrinks and grows")
    nearest = "ceil" if min(scales, default=1.0) < 1 else "floor"
    _emit(context, call, x, [scaled(d, s) for d, s in zip(shape, scales, strict=True)], scales, coordinate="asymmetric",
          nearest=nearest)


def _resize(context: Context, call: Call) -> None:
    if call.version < 11:
        _upsample(context, call)
        return
    x = call.inputs[0]
    shape = list(context.shape(x))
    rank = len(shape)
    axes = [axis_of(a, rank, call) for a in call.get("axes") or range(rank)]
    coordinate = call.get("coordinate_transformation_mode", "half_pixel")
    scales: list[Scale | None] = [1.0] * rank
    region = call.input(1) if coordinate == "tf_crop_and_resize" else None
    if call.input(3):
        _by_sizes(context, call, axes, shape, scales)
    elif not call.input(2):
        raise ModelError(f"{call} has neither scales nor sizes")
    elif context.constant(call.inputs[2]) is None:
        if region and call.get("antialias", 0):
            raise DeclinedError(f"{call} crops with antialiasing by scales that depend on data")
        sizes, bound = _bound_scales(context, call, call.inputs[2], axes, region, 0.0)
        for place, axis in enumerate(axes):
            shape[axis], scales[axis] = sizes[place], bound[place]
    else:
        _by_scales(context, call, axes, shape, scales)
    roi = None if region is None else _region(context, call, axes, rank)
    _emit(context, call, x, shape, scales, coordinate=coordinate, nearest=call.get("nearest_mode", "round_prefer_floor"), roi=roi)


def _by_scales(context: Context, call: Call, axes: Sequence[int], shape: list[Dim], scales: list[Scale | None]) -> None:
    """Writes output shape and scales for known scales, in place; a region that is cropped leaves sizes as they are (onnx's inference)."""
    given = _floats(context, call.inputs[2])
    if len(given) != len(axes) or min(given, default=1.0) <= 0:
        raise ModelError(f"{call} has scales {given} for {len(axes)} dimensions")
    for axis, scale in zip(axes, given, strict=True):
        scales[axis] = scale
        shape[axis] = scaled(shape[axis], scale)


def _bound_scales(context: Context, call: Call, name: str, axes: Sequence[int], region: str | None,
                  least: float) -> tuple[list[Dim], list[Scale | None]]:
    """Sizes and scales of some dimensions, where these depend on data."""
    count, dims = len(axes), [context.shape(call.inputs[0])[a] for a in axes]
    crop = region or context.new_constant(np.zeros(0, np.float32), f"{call.outputs[0]}.region")
    if context.static_shape(name) != (count,) or context.static_shape(crop) not in ((2 * count,), (0,)):
        raise ModelError(f"{call} has scales or a region that do not fit {count} dimensions")
    found = context.bind("resize_scales", [name, crop], 3 * count, dims, least=least)
    return found[:count], [float_dim(*found[count + 2 * i:count + 2 * i + 2]) for i in range(count)]


def _by_sizes(context: Context, call: Call, axes: Sequence[int], shape: list[Dim], scales: list[Scale | None]) -> None:
    """Writes output shape and scales for wanted sizes, in place."""
    policy, count = call.get("keep_aspect_ratio_policy", "stretch"), len(axes)
    wanted = context.dims(call.inputs[3])
    if context.static_shape(call.inputs[3]) != (count,):
        raise ModelError(f"{call} has sizes for another number of dimensions than {count}")
    if policy == "stretch":
        for axis, size in zip(axes, context.known_sizes(call.inputs[3]), strict=True):
            scales[axis] = 1.0 if size == shape[axis] else None
            shape[axis] = size
        return
    dims = [shape[axis] for axis in axes]
    if wanted is None or any(isinstance(d, Size) for d in (*wanted, *dims)):
        found = context.bind("resize_sizes", [call.inputs[3]], count + 2, dims, policy=policy)
        for axis, size in zip(axes, found[:count], strict=True):
            shape[axis], scales[axis] = size, float_dim(found[count], found[count + 1])
        return
    ratios = [Fraction(int(size), int(dim)) for size, dim in zip(wanted, dims, strict=True)]  # type: ignore[arg-type]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    for axis, dim in zip(axes, dims, strict=True):
        scales[axis] = float(ratio)
        shape[axis] = floor(ratio * int(dim) + Fraction(1, 2))  # type: ignore[arg-type]


def _region(context: Context, call: Call, axes: Sequence[int], rank: int) -> list[Scale]:
    """The region of interest: a start for each dimension, then an end for each."""
    name, count = call.input(1), len(axes)
    given: list[Scale] = []
    if name and context.constant(name) is not None:
        given += _floats(context, name)
    elif name and context.static_shape(name) == (2 * count,):
        found = context.bind("floats", [name], 4 * count)
        given = [float_dim(found[2 * i], found[2 * i + 1]) for i in range(2 * count)]
    if len(given) != 2 * count:
        raise ModelError(f"{call} has a region of {len(given)} numbers for {count} dimensions")
    region: list[Scale] = [*[0.0] * rank, *[1.0] * rank]
    for i, axis in enumerate(axes):
        region[axis], region[rank + axis] = given[i], given[count + i]
    return region


OPERATORS: dict[tuple[str, str], Operator] = {("", "Resize"): _resize, ("", "Upsample"): _upsample}
