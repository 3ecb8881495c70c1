"""Normalisations."""

from __future__ import annotations

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import CASTS, Operator
from sartor.ops.numbers import axis_of
from sartor.sizes import floordiv, product
from sartor.types import to_numpy, working

MOST_SLICES = 9  # neighbouring channels that are slices of their own


def _batch(context: Context, call: Call) -> None:
    """y = x * scale + shift with one scale and shift a channel, computed here where the statistics are constant.

    Before opset 9 there may be one for each element of an image instead.  Of 16-bit floats, scale and shift are kept in f32.
    """
    if any(call.outputs[1:]) or call.get("training_mode", 0):
        _batch_training(context, call)
        return
    x, scale, bias, mean, variance = call.inputs
    tensor = context.tensor(x)
    spatial = bool(call.get("spatial", 1)) or len(context.shape(scale)) < 2
    per_channel = (-1, *[1] * (len(tensor.shape) - 2)) if spatial else tensor.shape[1:]
    epsilon = call.get("epsilon", 1e-5)
    arrays = [context.constant(v) for v in (scale, bias, mean, variance)]
    if all(a is not None for a in arrays):
        s, b, m, v = (np.asarray(a, np.float64) for a in arrays)
        factor = s / np.sqrt(v + epsilon)
        numbers = to_numpy(working(context.dtype(scale)))
        factors = context.new_constant(factor.astype(numbers).reshape(per_channel), f"{call.outputs[0]}.scale")
        shifts = context.new_constant((b - m * factor).astype(numbers).reshape(per_channel), f"{call.outputs[0]}.shift")
    else:
        channels = context.shape(scale)
        dtype = working(context.dtype(variance))  # may be wider than that of x

        def factor_of(e: ExpressionBuilder, s: int, v: int) -> int:
            s, v = (e("cast", value, dtype=dtype) for value in (s, v))
            return e("div", s, e("sqrt", e("add", v, e.constant(epsilon, dtype))))

        def shift_of(e: ExpressionBuilder, b: int, m: int, f: int) -> int:
            b, m = (e("cast", value, dtype=dtype) for value in (b, m))
            return e("sub", b, e("mul", m, f))

        made = context.elementwise([scale, variance], factor_of, channels, suffix="scale")
        shift = context.elementwise([bias, mean, made], shift_of, channels, suffix="shift")
        shape = (channels[0], *per_channel[1:]) if spatial else channels
        factors, shifts = context.reshape(made, shape), context.reshape(shift, shape)

    def scaled(e: ExpressionBuilder, value: int, factor: int, shift: int) -> int:
        kind = "f64" if "f64" in (tensor.dtype, context.dtype(factors)) else "f32"
        value, factor, shift = (e("cast", v, dtype=kind) for v in (value, factor, shift))
        return e("cast", e("add", e("mul", value, factor), shift), dtype=tensor.dtype)

    context.elementwise([x, factors, shifts], scaled, tensor.shape, output=call.outputs[0])


def _batch_training(context: Context, call: Call) -> None:
    """Normalised by the batch's own statistics; the further outputs are the running statistics and, before opset 14, the batch's."""
    x, scale, bias, mean, variance = call.inputs
    tensor = context.tensor(x)
    rank, dtype, other = len(tensor.shape), tensor.dtype, context.dtype(mean)
    if rank < 2 or not call.get("spatial", 1):
        raise DeclinedError(f"{call} trains on an input of type {tensor}")
    axes = tuple(i for i in range(rank) if i != 1)
    kept = tuple(d if i == 1 else 1 for i, d in enumerate(tensor.shape))
    own = context.layer("reduce", [x], Tensor(dtype, kept), suffix="mean", op="mean", axes=axes, select_last=False)
    squares = context.elementwise([x, own], lambda e, v, m: e("mul", e("sub", v, m), e("sub", v, m)), tensor.shape, suffix="squares")
    spread = context.layer("reduce", [squares], Tensor(dtype, kept), suffix="variance", op="mean", axes=axes, select_last=False)
    factors, shifts = (context.reshape(v, (*context.shape(v), *[1] * (rank - 2))) for v in (scale, bias))
    epsilon, momentum = float(call.get("epsilon", 1e-5)), float(call.get("momentum", 0.9))

    def build(e: ExpressionBuilder, v: int, m: int, s: int, f: int, t: int) -> int:
        root = e("sqrt", e("add", s, e.constant(epsilon, dtype)))
        scaled = e("mul", e("div", e("sub", v, m), root), e("cast", f, dtype=dtype))
        return e("add", scaled, e("cast", t, dtype=dtype))

    context.elementwise([x, own, spread, factors, shifts], build, tensor.shape, output=call.outputs[0])
    for place, (running, now) in enumerate([(mean, own), (variance, spread)]):
        flat = context.reshape(now, (tensor.shape[1],))
        if call.output(1 + place):
            context.elementwise(
                [running, flat], lambda e, r, n: e("add", e("mul", r, e.constant(momentum, other)),
                                                   e("mul", e("cast", n, dtype=other), e.constant(1 - momentum, other))),
                (tensor.shape[1],), output=call.outputs[1 + place], suffix=f"running_{place}")
        if call.output(3 + place):
            context.elementwise([flat], lambda e, n: e("cast", n, dtype=other), (tensor.shape[1],), output=call.outputs[3 + place],
                                suffix=f"own_{place}")


def _affine(context: Context, dtype: str, scale: str, bias: str) -> tuple[Expression | None, tuple[str, ...]]:
    """raw * scale + bias, either of which may be absent."""
    extra = tuple(v for v in (scale, bias) if v)
    e = ExpressionBuilder([dtype, *(context.dtype(v) for v in extra)])
    out = e("mul", 0, 1) if scale else 0
    out = e("add", out, len(extra)) if bias else out
    return (e.finish(out), extra) if extra else (None, ())


def _layer(mode: str) -> Operator:
    def lower(context: Context, call: Call) -> None:
        tensor = context.tensor(call.inputs[0])
        rank = len(tensor.shape)
        axis = axis_of(call.get("axis", -1), rank, call)
        expression, extra = _affine(context, tensor.dtype, call.input(1), call.input(2))
        context.layer("normalize", call.inputs[:1], tensor, output=call.outputs[0], expression=expression, extra=extra,
                      axes=tuple(range(axis, rank)), mode=mode, epsilon=float(call.get("epsilon", 1e-5)))
        if any(call.outputs[1:]):
            _statistics(context, call, axis)

    return lower


def _statistics(context: Context, call: Call, axis: int) -> None:
    """The mean, and the inverse of the standard deviation, of each row."""
    x, epsilon = call.inputs[0], float(call.get("epsilon", 1e-5))
    tensor = context.tensor(x)
    axes = tuple(range(axis, len(tensor.shape)))
    kind = "f64" if tensor.dtype == "f64" else "f32"
    kept = (*tensor.shape[:axis], *[1] * len(axes))
    wide = context.elementwise([x], lambda e, v: e("cast", v, dtype=kind), tensor.shape, suffix="wide")
    mean = context.layer("reduce", [wide], Tensor(kind, kept), suffix="mean", op="mean", axes=axes, select_last=False)

    def square(e: ExpressionBuilder, v: int, m: int) -> int:
        distance = e("sub", v, m)
        return e("mul", distance, distance)

    squares = context.elementwise([wide, mean], square, tensor.shape, suffix="squares")
    spread = context.layer("reduce", [squares], Tensor(kind, kept), suffix="variance", op="mean", axes=axes, select_last=False)
    made = CASTS.get(call.get("stash_type", 1), kind)
    if call.output(1):
        context.elementwise([mean], lambda e, m: e("cast", m, dtype=made), kept, output=call.outputs[1])
    if call.output(2):
        def inverse(e: ExpressionBuilder, v: int) -> int:
            return e("cast", e("reciprocal", e("sqrt", e("add", v, e.constant(epsilon, kind)))), dtype=made)

        context.elementwise([spread], inverse, kept, output=call.outputs[2])


def _instance(context: Context, call: Call) -> None:
    x, scale, bias = call.inputs
    tensor = context.tensor(x)
    rank = len(tensor.shape)
    shape = (*context.shape(scale), *[1] * (rank - 2))
    expression, extra = _affine(context, tensor.dtype, context.reshape(scale, shape), context.reshape(bias, shape))
    context.layer("normalize", [x], tensor, output=call.outputs[0], expression=expression, extra=extra,
                  axes=tuple(range(2, rank)), mode="layer", epsilon=float(call.get("epsilon", 1e-5)))


def _group(context: Context, call: Call) -> None:
    """Scale and bias have one value a group in opset 18, one a channel from opset 21 on."""
    x, scale, bias = call.inputs
    tensor = context.tensor(x)
    batch, channels, *sizes = tensor.shape
    groups = call["num_groups"]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise ModelError(f"{call} has {groups} groups for {channels} channels")
    each = floordiv(channels, groups)
    context.same(channels, each * groups, "the channels")
    shape = (batch, groups, product(sizes) * each)
    grouped = context.reshape(x, shape, suffix="groups")
    per_group = call.version < 21 and context.shape(scale) == (groups,)
    expression, extra = (_affine(context, tensor.dtype, context.reshape(scale, (groups, 1)), context.reshape(bias, (groups, 1)))
                         if per_group else (None, ()))
    made = context.layer("normalize", [grouped], Tensor(tensor.dtype, shape), expression=expression, extra=extra, axes=(2,),
                         mode="layer", epsilon=float(call.get("epsilon", 1e-5)))
    if per_group:
        context.reshape(made, tensor.shape, output=call.outputs[0])
        return
    back = context.reshape(made, tensor.shape, suffix="channels")
    per_channel = (channels, *[1] * len(sizes))
    operands = [back, context.reshape(scale, per_channel), context.reshape(bias, per_channel)]
    context.elementwise(operands, lambda e, v, s, b: e("add", e("mul", v, s), b), tensor.shape, output=call.outputs[0])


def _lp(context: Context, call: Call) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    axis = axis_of(call.get("axis", -1), len(tensor.shape), call)
    dtype = working(tensor.dtype)
    kept = Tensor(dtype, tuple(1 if i == axis else d for i, d in enumerate(tensor.shape)))
    wide = ExpressionBuilder([tensor.dtype])
    expression = wide.finish(wide("cast", 0, dtype=dtype)) if dtype != tensor.dtype else None
    norm = context.layer("reduce", [x], kept, op="l1" if call.get("p", 2) == 1 else "l2", axes=(axis,), select_last=False,
                         expression=expression)

    def divided(e: ExpressionBuilder, value: int, by: int) -> int:
        zero = e.constant(0.0, dtype)
        out = e("select", e("eq", by, zero), zero, e("div", e("cast", value, dtype=dtype), by))
        return e("cast", out, dtype=tensor.dtype)

    context.elementwise([x, norm], divided, tensor.shape, output=call.outputs[0])


def _mean_variance(context: Context, call: Call) -> None:
    tensor = context.tensor(call.inputs[0])
    rank = len(tensor.shape)
    axes = tuple(sorted(axis_of(a, rank, call) for a in call.get("axes", [0, 2, 3])))
    context.layer("normalize", call.inputs, tensor, output=call.outputs[0], axes=axes, mode="layer", epsilon=1e-18)


def _local_response(context: Context, call: Call) -> None:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta.

    A few neighbours are shifted slices of one expression; many are a pool along the channels.
    """
    x = call.inputs[0]
    tensor = context.tensor(x)
    size, alpha, beta, bias = call["size"], call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    if size < 1 or len(tensor.shape) < 2:
        raise ModelError(f"{call} takes {size} channels of an input of type {tensor}")
    if size > MOST_SLICES:
        _wide_response(context, call, size, alpha, beta, bias)
        return
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    rank, channels = len(tensor.shape), tensor.shape[1]
    shape = (tensor.shape[0], channels + before + after, *tensor.shape[2:])
    padded = context.layer("pad", [x], Tensor(tensor.dtype, shape), before=_at(1, before, rank), mode="constant", value=0.0)
    neighbours = [context.layer("slice", [padded], tensor, suffix=f"neighbour_{i}", starts=_at(1, i, rank), steps=(1,) * rank)
                  for i in range(size) if i != before]

    def build(e: ExpressionBuilder, value: int, *others: int) -> int:
        total = e("mul", value, value)
        for other in others:
            total = e("add", total, e("mul", other, other))
        base = e("add", e.constant(bias, tensor.dtype), e("mul", total, e.constant(alpha / size, tensor.dtype)))
        return e("div", value, _power(e, base, beta, tensor.dtype))

    context.elementwise([x, *neighbours], build, tensor.shape, output=call.outputs[0])


def _wide_response(context: Context, call: Call, size: int, alpha: float, beta: float, bias: float) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    flat = (*tensor.shape[:2], product(tensor.shape[2:]))
    squares = context.elementwise([x], lambda e, v: e("mul", v, v), tensor.shape, suffix="squares")
    means = context.layer("pool", [context.reshape(squares, flat, suffix="lines")], Tensor(tensor.dtype, flat), mode="average",
                          kernel=(size,), strides=(1,), dilations=(1,), pads=((size - 1) // 2, size - 1 - (size - 1) // 2),
                          include_pad=True)

    def build(e: ExpressionBuilder, value: int, mean: int) -> int:
        base = e("add", e.constant(bias, tensor.dtype), e("mul", mean, e.constant(alpha, tensor.dtype)))
        return e("div", value, _power(e, base, beta, tensor.dtype))

    context.elementwise([x, context.reshape(means, tensor.shape, suffix="means")], build, tensor.shape, output=call.outputs[0])


def _power(e: ExpressionBuilder, base: int, exponent: float, dtype: str) -> int:
    if exponent == 1:
        return base
    root = e("sqrt", base)
    if exponent == 0.5:
        return root
    return e("mul", root, e("sqrt", root)) if exponent == 0.75 else e("pow", base, e.constant(exponent, dtype))


def _at(axis: int, value: int, rank: int) -> tuple[int, ...]:
    return tuple(value if i == axis else 0 for i in range(rank))


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "BatchNormalization"): _batch,
    ("", "GroupNormalization"): _group,
    ("", "InstanceNormalization"): _instance,
    ("", "LRN"): _local_response,
    ("", "LayerNormalization"): _layer("layer"),
    ("", "LpNormalization"): _lp,
    ("", "MeanVarianceNormalization"): _mean_variance,
    ("", "RMSNormalization"): _layer("rms"),
}
