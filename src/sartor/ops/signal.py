"""Signal processing: Fourier transforms of whole signals and of windows of them."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import CASTS, Operator
from sartor.ops.indexing import combine
from sartor.ops.movement import emit_slice
from sartor.ops.numbers import axis_of
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
    _parts(context, call)
    x, rank = call.inputs[0], len(context.shape(call.inputs[0]))
    inverse, one_sided = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    given = call.input(2) if call.version >= 20 else ""
    known = context.ints(given) if given else None
    *dims, parts = context.shape(x)
    if given and known is None:
        reads = [given, *filter(None, [call.input(1)])]
        found = context.bind("transform", reads, 4 + rank, dims, inverse=inverse, one_sided=one_sided)
        (before, length, after, points, kept), shape = found[:5], found[5:]
    else:
        axis = axis_of(known[0] if known else call.get("axis", 1) if call.version < 20 else -2, rank, call)
        if axis == rank - 1:
            raise ModelError(f"{call} has the axis {axis}, which holds the parts of numbers")
        before, length, after = product(dims[:axis]), dims[axis], product(dims[axis + 1:])
        points = 2 * (length - 1) if inverse and one_sided else length
        points = context.known_sizes(call.inputs[1])[0] if call.input(1) else points
        if isinstance(points, int) and points < 1:
            raise ModelError(f"{call} transforms {points} points")
        context.require_at_least(points, 1)
        kept = floordiv(points, 2) + 1 if one_sided and not inverse else points
        shape = [kept if i == axis else d for i, d in enumerate(dims)]
    real = inverse and one_sided
    flat = context.reshape(x, (before, length, after, parts), suffix="lines")
    made = emit_fourier(context, flat, points, kept, inverse=inverse, real=real)
    context.reshape(made, (*shape, 1 if real else 2), output=call.outputs[0])


def _stft(context: Context, call: Call) -> None:
    """The windows are gathered, weighted, and transformed as lines of their own."""
    x, window = call.inputs[0], call.input(2)
    if len(context.shape(x)) == 2:  # as exporters write real signals
        x = context.reshape(x, (*context.shape(x), 1))
    else:
        _parts(context, call)
    shape = context.shape(x)
    if len(shape) != 3:
        raise ModelError(f"{call} has a signal of {len(shape)} dimensions; expected 3")
    batch, length, parts = shape
    step = context.known_sizes(call.inputs[1])[0]
    points: Dim = context.shape(window)[0] if window else length
    if call.input(3):
        wanted = context.known_sizes(call.inputs[3])[0]
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


def _mel_weights(context: Context, call: Call) -> None:
    """Triangles over the points of half a spectrum, whose corners are equally far apart on the mel scale; computed in f64."""
    bands, points, (low, high), rate = (context.known_sizes(call.inputs[0])[0], context.known_sizes(call.inputs[1])[0], call.inputs[3:5],
                                        call.inputs[2])
    dtype = CASTS.get(call.get("output_datatype", 1), "")
    if not dtype:
        raise DeclinedError(f"{call} makes a type without compiled code")
    corners = bands + 2
    operands = [context.arange(corners), *(context.reshape(v, ()) for v in (low, high, rate)), context.size_value(corners),
                context.size_value(points)]

    def corner(e: ExpressionBuilder, place: int, *scalars: int) -> int:
        def c(value: float) -> int:
            return e.constant(value, "f64")

        def mel(hertz: int) -> int:
            return e("mul", c(2595 / log(10)), e("log", e("add", e("div", hertz, c(700.0)), c(1.0))))

        i, lowest, highest, sampled, count, length = (e("cast", v, dtype="f64") for v in (place, *scalars))
        start = mel(lowest)
        step = e("div", e("sub", mel(highest), start), count)
        at = e("add", e("mul", i, step), start)
        hertz = e("mul", c(700.0), e("sub", e("exp", e("mul", at, c(log(10) / 2595))), c(1.0)))
        return e("cast", e("floor", e("div", e("mul", e("add", length, c(1.0)), hertz), sampled)), dtype="i64")

    bins = context.elementwise(operands, corner, (corners,), suffix="corners")
    left, middle, right = (emit_slice(context, bins, (k,), (1,), (bands,), suffix=f"corner_{k}") for k in range(3))
    size = floordiv(points, 2) + 1
    rows = context.reshape(context.arange(size), (size, 1))

    def weight(e: ExpressionBuilder, j: int, a: int, b: int, c: int) -> int:
        def ratio(part: int, whole: int) -> int:
            return e("div", *(e("cast", v, dtype="f64") for v in (part, whole)))

        zero, one = e.constant(0.0, "f64"), e.constant(1.0, "f64")
        rising = e("select", e("and", e("ge", j, a), e("le", j, b)), ratio(e("sub", j, a), e("sub", b, a)), zero)
        rising = e("select", e("eq", a, b), e("select", e("eq", j, b), one, zero), rising)
        falls = e("and", e("ge", j, b), e("lt", j, c))
        return e("cast", e("select", falls, ratio(e("sub", c, j), e("sub", c, b)), rising), dtype=dtype)

    context.elementwise([rows, left, middle, right], weight, (size, bands), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "DFT"): _dft,
    ("", "MelWeightMatrix"): _mel_weights,
    ("", "STFT"): _stft,
}
