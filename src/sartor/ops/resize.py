"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

import numpy as np

from sartor.errors import ModelError
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError, Ratio, axis_of, fraction
from sartor.ops.elementwise import Operator
from sartor.sizes import Dim, Size, floordiv


def scaled(dim: Dim, scale: float) -> Dim:
    """floor(dim * scale), in single precision where `dim` is a number, exactly for the simplest such fraction where it is not."""
    if isinstance(dim, int):
        return int(np.floor(np.float32(dim) * np.float32(scale)))
    simple = fraction(scale)
    numerator, denominator = (simple.numerator, simple.denominator) if isinstance(simple, Ratio) else (int(simple), 1)
    return floordiv(dim * numerator, denominator)


def _emit(context: Context, call: Call, x: str, shape: Sequence[Dim], scales: Sequence[float | None], *, coordinate: str,
          nearest: str, roi: Sequence[float] | None = None) -> None:
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
    roi = _region(context, call, axes, rank) if coordinate == "tf_crop_and_resize" else None
    scales: list[float | None] = [1.0] * rank
    if call.input(3):
        _by_sizes(context, call, axes, shape, scales)
    elif call.input(2):
        given = _floats(context, call.inputs[2])
        if len(given) != len(axes) or min(given, default=1.0) <= 0:
            raise ModelError(f"{call} has scales {given} for {len(axes)} dimensions")
        for axis, scale in zip(axes, given, strict=True):
            scales[axis] = scale
            cropped = roi[rank + axis] - roi[axis] if roi is not None else 1.0
            dim = shape[axis]
            if cropped == 1:
                shape[axis] = scaled(dim, scale)
            elif isinstance(dim, int):
                shape[axis] = floor(dim * cropped * scale)
            else:
                raise DeclinedError(f"{call} crops a size that is not known")
    else:
        raise ModelError(f"{call} has neither scales nor sizes")
    _emit(context, call, x, shape, scales, coordinate=coordinate, nearest=call.get("nearest_mode", "round_prefer_floor"), roi=roi)


def _by_sizes(context: Context, call: Call, axes: Sequence[int], shape: list[Dim], scales: list[float | None]) -> None:
    """Writes output shape and scales for wanted sizes, in place."""
    wanted = context.require_dims(call.inputs[3])
    if len(wanted) != len(axes):
        raise ModelError(f"{call} has {len(wanted)} sizes for {len(axes)} dimensions")
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for axis, size in zip(axes, wanted, strict=True):
            scales[axis] = 1.0 if size == shape[axis] else None
            shape[axis] = size
        return
    sizes: dict[int, int] = {}
    ratios = []
    for axis, size in zip(axes, wanted, strict=True):
        dim = shape[axis]
        if isinstance(size, Size) or isinstance(dim, Size) or not dim:
            raise DeclinedError(f"{call} keeps the aspect ratio of sizes that are not known")
        sizes[axis] = dim
        ratios.append(Fraction(size, dim))
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        scales[axis] = float(ratio)
        shape[axis] = floor(ratio * sizes[axis] + Fraction(1, 2))


def _region(context: Context, call: Call, axes: Sequence[int], rank: int) -> list[float]:
    """The region of interest: a start for each dimension, then an end for each."""
    given = _floats(context, call.inputs[1]) if call.input(1) else []
    if len(given) != 2 * len(axes):
        raise ModelError(f"{call} has a region of {len(given)} numbers for {len(axes)} dimensions")
    region = [0.0] * rank + [1.0] * rank
    for i, axis in enumerate(axes):
        region[axis], region[rank + axis] = given[i], given[len(axes) + i]
    return region


OPERATORS: dict[tuple[str, str], Operator] = {("", "Resize"): _resize, ("", "Upsample"): _upsample}
