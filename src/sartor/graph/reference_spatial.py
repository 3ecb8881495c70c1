"""The meaning in NumPy of the kinds that move a window over space: convolution, deconvolution, pool, pad, resize.

Activations are [N, *spatial, C].  Windows are computed tap by tap, each tap one matrix product or one element-wise step, so
that real layers take milliseconds to seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from sartor.graph.layer import Layer
from sartor.graph.rules import float_of
from sartor.graph.scalars import Array
from sartor.sizes import Size, evaluate


def _pads(layer: Layer, rank: int, sizes: Mapping[str, int]) -> tuple[list[int], list[int]]:
    pads = [evaluate(p, sizes) for p in layer.attributes["pads"]]
    return pads[:rank], pads[rank:]


def _windows(x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], before: list[int],
             output: tuple[int, ...], value: Any) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each tap of the kernel: its index and the view of the padded input [N, *output, C] it meets."""
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(output, strides, kernel, dilations, strict=True)]
    padded = np.full((x.shape[0], *reach, x.shape[-1]), value, x.dtype)
    source, target = [slice(None)], [slice(None)]
    for size, first, length in zip(x.shape[1:-1], before, reach, strict=True):
        begin, end = max(first, 0), max(min(first + size, length), 0)
        target.append(slice(begin, max(end, begin)))
        source.append(slice(begin - first, max(end, begin) - first))
    padded[tuple(target)] = x[tuple(source)]
    for tap in product(*map(range, kernel)):
        cut = [slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, output, strides, strict=True)]
        yield tap, padded[(slice(None), *cut)]


def convolution(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `convolution`: X [N, *s, C], W [*k, C/g, O] -> [N, *out, O]."""
    x, w = inputs
    rank, groups = x.ndim - 2, layer.attributes["groups"]
    out = np.zeros((groups, int(np.prod(shape[:-1])), shape[-1] // groups), x.dtype)
    if out.size == 0:
        return out.reshape(shape)
    before, _ = _pads(layer, rank, sizes)
    taps = _windows(x, w.shape[:rank], layer.attributes["strides"], layer.attributes["dilations"], before, shape[1:-1], 0)
    for tap, view in taps:
        rows = view.reshape(-1, groups, x.shape[-1] // groups).swapaxes(0, 1)
        weights = w[tap].reshape(w.shape[-2], groups, -1).swapaxes(0, 1)
        out += rows * weights if w.shape[-2] == 1 else np.matmul(rows, weights)
    return out.swapaxes(0, 1).reshape(shape)


def deconvolution(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `deconvolution`: X [N, *s, C], W [*k, C, O/g] -> [N, *out, O]; see the table in `layer`."""
    x, w = inputs
    rank, groups = x.ndim - 2, layer.attributes["groups"]
    strides, dilations = layer.attributes["strides"], layer.attributes["dilations"]
    before, _ = _pads(layer, rank, sizes)
    out = np.zeros(shape, x.dtype)
    if out.size == 0 or x.size == 0:
        return out
    rows = x.reshape(-1, groups, x.shape[-1] // groups).swapaxes(0, 1)
    for tap in product(*map(range, w.shape[:rank])):
        weights = w[tap].reshape(groups, -1, w.shape[-1])
        result = np.matmul(rows, weights).swapaxes(0, 1).reshape(*x.shape[:-1], shape[-1])
        source, target = [slice(None)], [slice(None)]
        for axis in range(rank):
            first, step, size, length = tap[axis] * dilations[axis] - before[axis], strides[axis], x.shape[axis + 1], shape[axis + 1]
            begin = max(0, ceil(-first / step))
            end = max(begin, min(size, floor((length - 1 - first) / step) + 1))
            source.append(slice(begin, end))
            target.append(slice(first + begin * step, first + (end - 1) * step + 1, step) if end > begin else slice(0, 0))
        out[tuple(target)] += result[tuple(source)]
    return out


def pool(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `pool`: X [N, *s, C] -> [N, *out, C]."""
    (x,), attributes = inputs, layer.attributes
    kernel, strides, dilations, mode = attributes["kernel"], attributes["strides"], attributes["dilations"], attributes["mode"]
    before, after = _pads(layer, x.ndim - 2, sizes)
    if mode == "argmax":
        return _places_of_maxima(layer, x, shape, before)
    if mode == "max":
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min if x.dtype.kind in "iu" else False
        out = np.full(shape, lowest, x.dtype)
        for _, view in _windows(x, kernel, strides, dilations, before, shape[1:-1], lowest):
            np.maximum(out, view, out=out)
        return out
    p = attributes.get("p", 2)
    out = np.zeros(shape, x.dtype)
    for _, view in _windows(x, kernel, strides, dilations, before, shape[1:-1], 0):
        out += view if mode == "average" else np.abs(view) ** p
    if mode == "lp":
        return out ** (1.0 / p)  # type: ignore[no-any-return]
    counted = np.ones((1, *x.shape[1:-1], 1), x.dtype)
    if attributes.get("include_pad"):
        counted = np.ones((1, *(s + b + a for s, b, a in zip(x.shape[1:-1], before, after, strict=True)), 1), x.dtype)
        before = [0] * len(before)
    divisor = np.zeros((1, *shape[1:-1], 1), x.dtype)
    for _, view in _windows(counted, kernel, strides, dilations, before, shape[1:-1], 0):
        divisor += view
    return out / divisor


def _places_of_maxima(layer: Layer, x: Array, shape: tuple[int, ...], before: list[int]) -> Array:
    """The place of the first maximum of each window in the plane of its image; -1 where the window has no element."""
    attributes, spatial = layer.attributes, x.shape[1:-1]
    geometry = (attributes["kernel"], attributes["strides"], attributes["dilations"], before, shape[1:-1])
    numbers = np.arange(int(np.prod(spatial)), dtype=np.int64).reshape(spatial, order="F" if attributes.get("column_major") else "C")
    best, places = np.zeros(shape, x.dtype), np.full(shape, -1, np.int64)
    taps = zip(_windows(x, *geometry, 0), _windows(numbers[None, ..., None], *geometry, -1), strict=True)
    for (_, value), (_, place) in taps:
        wins = (place >= 0) & ((value > best) | (places < 0))
        best, places = np.where(wins, value, best), np.where(wins, place, places)
    return places


def pad(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `pad`: element i of a dim is element i - before of the input, continued by the mode."""
    (x,), mode = inputs, layer.attributes["mode"]
    before = [evaluate(b, sizes) for b in layer.attributes["before"]]
    if mode == "constant":
        out = np.full(shape, layer.attributes.get("value", 0.0), x.dtype)
        source, target = [], []
        for size, first, length in zip(x.shape, before, shape, strict=True):
            begin, end = max(first, 0), min(first + size, length)
            target.append(slice(begin, max(begin, end)))
            source.append(slice(begin - first, max(begin, end) - first))
        out[tuple(target)] = x[tuple(source)]
        return out
    for axis, (first, length) in enumerate(zip(before, shape, strict=True)):
        index, size = np.arange(length) - first, x.shape[axis]
        if first == 0 and length == size:
            continue
        if mode == "edge":
            index = np.clip(index, 0, size - 1)
        elif mode == "wrap":
            index = index % size
        else:
            period = max(1, 2 * (size - 1))
            index = index % period
            index = np.where(index < size, index, period - index)
        x = np.take(x, index, axis=axis)
    return x


# --- resize ------------------------------------------------------------------------------------------------------------------


def resize_coordinates(mode: str, size: int, out: int, scale: float, roi: tuple[float, float] | None) -> Array:
    """Position in the input (elements, float64) that each of `out` output elements of one dim looks at (ONNX Resize)."""
    x, length = np.arange(out, dtype=np.float64), scale * size
    if mode == "align_corners":
        return x * 0 if length == 1 else x * (size - 1) / (length - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        begin, end = roi if roi is not None else (0.0, 1.0)
        if length == 1:
            return x * 0 + (begin + end) * (size - 1) / 2
        return begin * (size - 1) + x * (end - begin) * (size - 1) / (length - 1)
    centre = (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return x * 0 - 0.5 if out == 1 else centre
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - out / length) + centre
    return centre


def _kernel(mode: str, distance: Array, a: float) -> Array:
    d = np.abs(distance)
    if mode == "linear":
        return np.asarray(np.clip(1 - d, 0, 1))
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def resize_weights(attributes: Mapping[str, Any], axis: int, size: int, out: int) -> tuple[Array, Array]:
    """The taps of one dim: input indices [out, taps] (clamped to the input) and their float64 weights [out, taps]."""
    mode, scale = attributes["mode"], attributes["scales"][axis]
    scale = float(scale) if scale is not None else out / size
    roi = attributes.get("roi")
    region = (float(roi[axis]), float(roi[axis + len(roi) // 2])) if roi is not None and len(roi) else None
    x = resize_coordinates(attributes["coordinate"], size, out, scale, region)
    if mode == "nearest":
        rounding = attributes["nearest"]
        if rounding == "round_prefer_floor":
            index = np.ceil(x - 0.5)
        elif rounding == "round_prefer_ceil":
            index = np.floor(x + 0.5)
        else:
            index = np.floor(x) if rounding == "floor" else np.ceil(x)
        return np.clip(index, 0, size - 1).astype(np.int64)[:, None], np.ones((out, 1))
    shrink = min(scale, 1.0) if attributes.get("antialias") else 1.0
    support = 1 if mode == "linear" else 2
    first = floor(-support / shrink) + 1
    index = (np.ceil(x) - 1).astype(np.int64)[:, None] + np.arange(first, 2 - first)
    weights = _kernel(mode, (index - x[:, None]) * shrink, attributes.get("cubic_a", -0.75))
    if attributes.get("exclude_outside"):
        weights = np.where((index < 0) | (index >= size), 0.0, weights)
    if attributes.get("exclude_outside") or shrink < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(index, 0, size - 1), weights


def resize(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `resize`: one dim after the other, each output element a weighted sum of input elements."""
    x, original = inputs[0], inputs[0].dtype
    attributes = dict(layer.attributes)
    for name in ("scales", "roi"):
        numbers = [float_of(evaluate(s, sizes)) if isinstance(s, Size) else s for s in attributes.get(name) or ()]
        attributes[name] = numbers or None
    outside = np.zeros(shape, bool)
    for axis, (size, out) in enumerate(zip(x.shape, shape, strict=True)):
        scale = attributes["scales"][axis]
        cropped = attributes["coordinate"] == "tf_crop_and_resize"
        if size == out and (scale is None or scale == 1.0) and not cropped:
            continue
        index, weights = resize_weights(attributes, axis, size, out)
        column = [1] * x.ndim
        column[axis] = out
        if cropped and attributes.get("roi") is not None:
            roi = attributes["roi"]
            at = resize_coordinates(attributes["coordinate"], size, out, float(scale) if scale is not None else out / size,
                                    (float(roi[axis]), float(roi[axis + len(roi) // 2])))
            outside |= ((at < 0) | (at > size - 1)).reshape(column)
        if attributes["mode"] == "nearest":
            x = np.take(x, index[:, 0], axis=axis)
            continue
        wide = x.astype(np.float64 if x.dtype.kind != "f" else x.dtype, copy=False)
        total = np.zeros((*x.shape[:axis], out, *x.shape[axis + 1:]), wide.dtype)
        for tap in range(index.shape[1]):
            total += np.take(wide, index[:, tap], axis=axis) * weights[:, tap].reshape(column).astype(wide.dtype)
        x = total
    if outside.any():
        x = np.where(outside, np.asarray(attributes.get("extrapolation", 0.0), x.dtype), x)
    if original.kind in "iu" and x.dtype.kind == "f":
        info = np.iinfo(original)
        x = np.clip(np.trunc(x), info.min, info.max)
    return x.astype(original, copy=False)
