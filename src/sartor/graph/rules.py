"""Rules by which `bind` layers turn small vectors, read during a run, into sizes.

A rule is given the vectors' contents, as lists of numbers, the sizes it needs that are known by then, and the layer's options.
It returns one size for each symbol that the layer defines.  Sizes are at least 0; what makes no sense raises `ValueError` with the
second half of a sentence whose first half names the model's node.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, isfinite, prod
from typing import Any, TypeAlias

import numpy as np

from sartor.sizes import Dim

Numbers: TypeAlias = "Sequence[int | float]"
Rule: TypeAlias = Callable[[Sequence[Numbers], Sequence[int], Mapping[str, Any]], list[int]]

LARGEST = 1 << 60  # what is beyond no array can have


def known(rule: str, inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """The sizes that a rule finds.

    Raises
    ------
    ValueError
        The numbers make no sense for the node; the text says why.
    """
    found = RULES[rule](inputs, dims, options)
    for size in found:
        if size < 0:
            raise ValueError(f"is given the size {size}")
        if size > LARGEST:
            raise ValueError(f"is given the size {size}, more than any memory holds")
    return found


def _integers(numbers: Numbers) -> list[int]:
    for number in numbers:
        if isinstance(number, float) and (not isfinite(number) or number != int(number)):
            raise ValueError(f"is given {number} where it needs a whole number")
    return [int(number) for number in numbers]


def _axes(numbers: Numbers, rank: int) -> list[int]:
    """Axes counted from the start, each given once."""
    axes = _integers(numbers)
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(f"is given the axis {axis} for {rank} dimensions")
    counted = [axis % rank for axis in axes]
    if len(set(counted)) < len(counted):
        raise ValueError(f"is given an axis twice: {axes}")
    return counted


def _sizes(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """The numbers themselves."""
    return [size for numbers in inputs for size in _integers(numbers)]


def _parts(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Sizes of the pieces of an axis."""
    sizes = _integers(inputs[0])
    if sum(sizes) != dims[0]:
        raise ValueError(f"is to cut {dims[0]} elements into pieces of {sizes}")
    return sizes


def _at_most(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """A count of elements out of so many."""
    count, = _integers(inputs[0])
    if count > dims[0]:
        raise ValueError(f"is to take {count} of {dims[0]} elements")
    return [count]


def _reshape(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """A shape in which 0 copies a dimension and -1 takes what is left."""
    wanted, elements = _integers(inputs[0]), prod(dims)
    out = list(wanted)
    for place, size in enumerate(wanted):
        if size == 0 and not options["allow_zero"]:
            if place >= len(dims):
                raise ValueError(f"copies dimension {place} of an input of {len(dims)} dimensions")
            out[place] = dims[place]
    if out.count(-1) > 1:
        raise ValueError(f"leaves two dimensions open: {wanted}")
    if -1 in out:
        others = prod(d for d in out if d != -1)
        if others == 0 or elements % others:
            raise ValueError(f"cannot turn the shape {list(dims)} into {wanted}")
        out[out.index(-1)] = elements // others
    if min(out, default=0) >= 0 and prod(out) != elements:
        raise ValueError(f"cannot turn the shape {list(dims)} into {wanted}")
    return out


def _expand(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """The shape that a tensor and a wanted shape broadcast to."""
    wanted = _integers(inputs[0])
    rank = max(len(wanted), len(dims))
    a, b = ([1] * (rank - len(shape)) + list(shape) for shape in (dims, wanted))
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise ValueError(f"cannot expand the shape {list(dims)} to {wanted}")
    return [y if x == 1 else x for x, y in zip(a, b, strict=True)]


def _squeeze(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """The shape without the dimensions at these axes."""
    axes = _axes(inputs[0], len(dims))
    for axis in axes:
        if dims[axis] != 1:
            raise ValueError(f"drops dimension {axis}, which has {dims[axis]} elements")
    return [d for i, d in enumerate(dims) if i not in axes]


def _unsqueeze(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """The shape with dimensions of one element at these axes."""
    rank, rest = len(dims) + len(inputs[0]), iter(dims)
    axes = _axes(inputs[0], rank)
    return [1 if i in axes else next(rest) for i in range(rank)]


def _reduce(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """For each dimension what is kept and what is reduced of it; then, where reduced ones are dropped, the others."""
    axes = {a % len(dims) for a in _axes(inputs[0], len(dims))}
    pairs = [part for i, d in enumerate(dims) for part in ((1, d) if i in axes else (d, 1))]
    return pairs if options["keep"] else pairs + [d for i, d in enumerate(dims) if i not in axes]


def _slice(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """For each dimension where it starts and how many elements it keeps; then the steps where these are inputs.

    NumPy's rules, but that a start before the first element is the first one whichever way it goes.

    A step is given as two sizes: how far it goes up and how far down.
    """
    starts, ends, axes, steps = (_integers(numbers) for numbers in inputs)
    rank = len(dims)
    begins, counts, strides = [0] * rank, list(dims), [1] * rank
    if 0 in steps:
        raise ValueError("is given a step of 0")
    for axis, start, end, step in zip(_axes(axes, rank), starts, ends, steps, strict=True):
        taken = range(*slice(max(start, -dims[axis]), end, step).indices(dims[axis]))
        begins[axis], counts[axis], strides[axis] = (taken.start if taken else 0), len(taken), step
    return [*begins, *counts, *(max(s, 0) for s in strides), *(max(-s, 0) for s in strides)]


def _pad(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """For each dimension how much comes before it, how much of it is cut off there, and its size afterwards."""
    pads, axes = _integers(inputs[0]), _axes(inputs[1], len(dims))
    before, after = [0] * len(dims), [0] * len(dims)
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[place + len(axes)]
    sizes = [d + b + a for d, b, a in zip(dims, before, after, strict=True)]
    for d, b, a, size in zip(dims, before, after, sizes, strict=True):
        if size < 0 or -b > d or -a > d:
            raise ValueError(f"cuts {-min(b, 0)} elements before and {-min(a, 0)} after off a dimension of {d}")
        empty = d + min(b, 0) + min(a, 0) <= 0
        if options["mode"] != "constant" and size > 0 and empty:
            raise ValueError(f"fills a dimension of {size} elements from none")
    return [*(max(b, 0) for b in before), *(max(-b, 0) for b in before), *sizes]


def _range(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """How many numbers there are from start to limit."""
    (start,), (limit,), (step,) = inputs
    if step == 0 or not all(map(isfinite, (start, limit, step))):
        raise ValueError(f"is to count from {start} to {limit} by {step}")
    if isinstance(step, int):
        return [max(-((int(start) - int(limit)) // step), 0)]
    kind: type[Any] = {"f32": np.float32, "f16": np.float16}.get(options["dtype"], np.float64)
    with np.errstate(over="ignore"):
        count = float((kind(limit) - kind(start)) / kind(step))
    return [max(ceil(count), 0) if isfinite(count) else -1]


def _transform(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Of a transform along an axis: elements before it, its own, those after it, how many points it has and keeps; then the shape."""
    if dims and len(inputs[0]) != 1:
        raise ValueError(f"is given {len(inputs[0])} axes; expected one")
    axis, = _axes(inputs[0], len(dims) + 1)
    if axis == len(dims):
        raise ValueError(f"is given the axis {axis}, which holds the parts of numbers")
    inverse, one_sided = options["inverse"], options["one_sided"]
    points = 2 * (dims[axis] - 1) if inverse and one_sided else dims[axis]
    if len(inputs) > 1:
        points, = _integers(inputs[1])
    if points < 1:
        raise ValueError(f"is to transform {points} points")
    kept = points // 2 + 1 if one_sided and not inverse else points
    shape = [kept if i == axis else d for i, d in enumerate(dims)]
    return [prod(dims[:axis]), dims[axis], prod(dims[axis + 1:]), points, kept, *shape]


def _resize_sizes(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Sizes that keep the aspect ratio, and the one scale by which they do."""
    wanted = _integers(inputs[0])
    if min((*wanted, *dims), default=1) < 1:
        raise ValueError(f"is to resize {list(dims)} to {wanted}")
    ratios = [Fraction(size, dim) for size, dim in zip(wanted, dims, strict=True)]
    ratio = min(ratios) if options["policy"] == "not_larger" else max(ratios)
    return [*(floor(ratio * dim + Fraction(1, 2)) for dim in dims), *_bits([float(ratio)])]


def _resize_scales(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Sizes after scaling, which a region that is cropped leaves alone; then the scales."""
    scales, region = ([float(x) for x in numbers] for numbers in inputs)
    if not all(options["least"] <= s < 1e9 and s > 0 for s in scales) or not all(map(isfinite, region)):
        raise ValueError(f"is given the scales {scales}" + (f" and the region {region}" if region else ""))
    sizes = [floor(np.float32(d) * np.float32(s)) for d, s in zip(dims, scales, strict=True)]
    return [*sizes, *_bits(scales)]


def _floats(inputs: Sequence[Numbers], dims: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Numbers that are no sizes, as `float_dim` puts them together."""
    return _bits([float(x) for x in inputs[0]])


def _bits(numbers: Sequence[float]) -> list[int]:
    """The bits of each number in double precision, as two sizes."""
    return [part for x in numbers for part in divmod(int.from_bytes(struct.pack(">d", x)), 1 << 32)]


def float_dim(high: Dim, low: Dim) -> Dim:
    """A size that stands for a float that depends on data: the float's bits."""
    return high * (1 << 32) + low


def float_of(bits: int) -> float:
    """The float that a size stands for."""
    return float(struct.unpack(">d", (bits % (1 << 64)).to_bytes(8))[0])


RULES: dict[str, Rule] = {
    "sizes": _sizes, "parts": _parts, "at_most": _at_most, "reshape": _reshape, "expand": _expand, "squeeze": _squeeze,
    "unsqueeze": _unsqueeze, "reduce": _reduce, "slice": _slice, "pad": _pad, "range": _range,
    "transform": _transform, "resize_sizes": _resize_sizes, "resize_scales": _resize_scales, "floats": _floats,
}
