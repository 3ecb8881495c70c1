"""Signal processing: Fourier transforms of whole signals and of windows of them."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError, axis_of
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import combine
from sartor.sizes import Dim, floordiv, product

MOST_KEPT = 1 << 16  # points whose powers of the root are constants; for more they are computed in each run


def _powers(context: Context, points: Dim) -> tuple[str, str]:
    """Cosines and sines of 2 pi k / points, in f64."""
    if isinstance(points, int) and points <= MOST_KEPT:
        angle = 2 * pi * np.arange(points) / max(points, 1)
        return (context.new_constant(np.cos(angle), f"{context.call.outputs[0]}.cosines"),
                context.new_constant(np.sin(angle), f"{context.call.outputs[0]}.sines"))
    operands = [context.layer("iota", [], Tensor("i64", (points,)), suffix="points"), context.size_value(points)]

    def build(op: str) -> Callable[[ExpressionBuilder, int, int], int]:
        def angle(e: ExpressionBuilder, i: int, count: int) -> int:
            turn = e("div", e.constant(2 * pi, "f64"), e("cast", count, dtype="f64"))
            return e(op, e("mul", e("cast", i, dtype="f64"), turn))

        return angle

    return (context.elementwise(operands, build("cos"), (points,), suffix="cosines"),
            context.elementwise(operands, build("sin"), (points,), suffix="sines"))


def emit_fourier(context: Context, x: str, points: Dim, kept: Dim, *, inverse: bool = False, real: bool = False) -> str:
    """Emits the transform of `points` points along the second of four dims; `real` takes half a spectrum and gives a real signal."""
    tensor = context.tensor(x)
    cosines, sines = _powers(context, points)
    shape = (tensor.shape[0], kept, tensor.shape[2], 1 if real else 2)
    return context.layer("fourier", [x, cosines, sines], Tensor(tensor.dtype, shape), inverse=inverse, half=real)


def _parts(context: Context, call: Call) -> None:
    tensor = context.tensor(call.inputs[0])
    if len(tensor.shape) > 1 and not isinstance(tensor.shape[-1], int):
        raise DeclinedError(f"{call} has numbers of an unknown number of parts")
    if len(tensor.shape) < 2 or tensor.shape[-1] not in (1, 2):
        raise ModelError(f"{call} has an input of type {tensor}; the last of its dimensions must hold 1 or 2 parts of a number")
    if tensor.dtype not in ("f16", "bf16", "f32", "f64"):
        raise DeclinedError(f"{call} transforms {tensor.dtype}")


def _dft(context: Context, call: Call) -> None:
    """Where the axis is known only when the model runs, the transforms along all axes are made and one is taken."""
    _parts(context, call)
    x, rank = call.inputs[0], len(context.shape(call.inputs[0]))
    inverse, one_sided = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    given = call.input(2) if call.version >= 20 else ""
    if given and (known := context.ints(given)) is None:
        if call.input(1) or one_sided:
            raise DeclinedError(f"{call} has an output whose shape depends on its axis")
        _along_each(context, call, given, inverse)
        return
    axis = axis_of(known[0] if given and known else call.get("axis", 1) if call.version < 20 else -2, rank, call)
    if axis == rank - 1:
        raise ModelError(f"{call} has the axis {axis}, which holds the parts of numbers")
    length = context.shape(x)[axis]
    points = 2 * (length - 1) if inverse and one_sided else length
    if call.input(1):
        points = context.require_dims(call.inputs[1])[0]
    if isinstance(points, int) and points < 1:
        raise ModelError(f"{call} transforms {points} points")
    context.require_at_least(points, 1)
    kept = floordiv(points, 2) + 1 if one_sided and not inverse else points
    _transform(context, x, axis, points, kept, inverse, inverse and one_sided, call.outputs[0])


def _transform(context: Context, x: str, axis: int, points: Dim, kept: Dim, inverse: bool, real: bool, output: str | None) -> str:
    shape = context.shape(x)
    before, after = product(shape[:axis]), product(shape[axis + 1:-1])
    flat = context.reshape(x, (before, shape[axis], after, shape[-1]), suffix="lines")
    made = emit_fourier(context, flat, points, kept, inverse=inverse, real=real)
    return context.reshape(made, (*shape[:axis], kept, *shape[axis + 1:-1], 1 if real else 2), output=output)


def _along_each(context: Context, call: Call, given: str, inverse: bool) -> None:
    x, kind = call.inputs[0], context.dtype(given)
    shape = context.shape(x)
    rank = len(shape)
    made = [_transform(context, x, axis, shape[axis], shape[axis], inverse, False, None) for axis in range(rank - 1)]

    def build(e: ExpressionBuilder, axis: int, *values: int) -> int:
        chosen = values[-1]
        for place, value in enumerate(values[:-1]):
            here = e("or", e("eq", axis, e.constant(place, kind)), e("eq", axis, e.constant(place - rank, kind)))
            chosen = e("select", here, value, chosen)
        return chosen

    context.elementwise([context.reshape(given, ()), *made], build, (*shape[:-1], 2), output=call.outputs[0], suffix="chosen")


def _stft(context: Context, call: Call) -> None:
    """The windows are gathered, weighted, and transformed as lines of their own."""
    _parts(context, call)
    x, window = call.inputs[0], call.input(2)
    shape = context.shape(x)
    if len(shape) != 3:
        raise ModelError(f"{call} has a signal of {len(shape)} dimensions; expected 3")
    batch, length, parts = shape
    step = context.require_dims(call.inputs[1])[0]
    points: Dim = context.shape(window)[0] if window else length
    if call.input(3):
        wanted = context.require_dims(call.inputs[3])[0]
        points = context.same(wanted, points, "the window") if window else wanted
    if any(isinstance(d, int) and d < 1 for d in (step, points)):
        raise ModelError(f"{call} has windows of {points} points, {step} apart")
    for dim, least in ((step, 1), (points, 1), (length, points)):
        context.require_at_least(dim, least)
    frames = floordiv(length - points, step) + 1
    places = combine(context, [(context.reshape(context.arange(frames), (frames, 1)), step), (context.arange(points), 1)],
                     (frames, points))
    cut = context.layer("gather", [x, places], Tensor(context.dtype(x), (batch, frames, points, parts)), suffix="frames", axis=1)
    if window:
        cut = context.elementwise([cut, context.reshape(window, (points, 1))], lambda e, v, w: e("mul", v, w),
                                  (batch, frames, points, parts), suffix="weighted")
    kept = floordiv(points, 2) + 1 if call.get("onesided", 1) else points
    lines = context.reshape(cut, (batch * frames, points, 1, parts), suffix="lines")
    context.reshape(emit_fourier(context, lines, points, kept), (batch, frames, kept, 2), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "DFT"): _dft,
    ("", "STFT"): _stft,
}
