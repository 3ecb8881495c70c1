"""Pooling: windows with channels moved last; global pools are reductions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import prod

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.convolution import channels_first, channels_last
from sartor.ops.elementwise import Operator
from sartor.ops.movement import emit_slice
from sartor.ops.windows import Window, output_sizes, window
from sartor.sizes import Dim, product

MOST_COMPARED = 64  # elements of a window whose maximum's place is wanted


def pool(mode: str) -> Operator:
    """Average, max or lp pooling."""
    def lower(context: Context, call: Call) -> None:
        x = call.inputs[0]
        rank = len(context.shape(x))
        if rank < 3:
            raise ModelError(f"{call} needs an input of at least 3 dimensions, it has {context.tensor(x)}")
        batch, channels, *sizes = context.shape(x)
        shape = window(call, call["kernel_shape"], sizes)
        out = output_sizes(shape, sizes, call.get("auto_pad", "NOTSET"), bool(call.get("ceil_mode", 0)))
        if any(isinstance(d, int) and d < 1 for d in out):
            raise ModelError(f"{call} has a window larger than its padded input {sizes}")
        dtype = context.dtype(x)
        if call.output(1):
            _indices(context, call, shape, out)
        moved = context.transpose(x, channels_last(rank), suffix="channels_last")
        result = context.layer("pool", [moved], Tensor(dtype, (batch, *out, channels)), mode=mode, kernel=shape.kernel,
                               strides=shape.strides, dilations=shape.dilations, pads=shape.pads,
                               include_pad=bool(call.get("count_include_pad", 0)), p=float(call.get("p", 2)))
        context.transpose(result, channels_first(rank), output=call.outputs[0])

    return lower


def _indices(context: Context, call: Call, shape: Window, out: Sequence[Dim]) -> None:
    """Where in the flattened input each window's first maximum lies: the window's elements are compared one after another."""
    x = call.inputs[0]
    tensor, rank = context.tensor(x), len(shape.kernel)
    if prod(shape.kernel) > MOST_COMPARED:
        raise DeclinedError(f"{call} gives the indices of maxima in windows of {prod(shape.kernel)} elements")
    batch, channels, *sizes = tensor.shape
    padded = [(n - 1) * stride + extent for n, stride, extent in zip(out, shape.strides, shape.extents, strict=True)]
    before = (0, 0, *shape.pads[:rank])
    whole = context.layer("pad", [x], Tensor(tensor.dtype, (batch, channels, *padded)), suffix="padded", before=before,
                          mode="constant", value=0.0)
    taps = list(cartesian(*(range(k) for k in shape.kernel)))
    views = [emit_slice(context, whole, (0, 0, *(k * d for k, d in zip(tap, shape.dilations, strict=True))), (1, 1, *shape.strides),
                        (batch, channels, *out), suffix="tap") for tap in taps]
    windows = [context.reshape(context.arange(n), (n, *[1] * (rank - 1 - i))) for i, n in enumerate(out)]
    known = [context.size_value(d) for d in (*sizes, *shape.pads[:rank])]
    order = list(range(rank)) if call.get("storage_order", 0) == 0 else list(reversed(range(rank)))

    def build(e: ExpressionBuilder, *operands: int) -> int:
        def number(value: int) -> int:
            return e.constant(value, "i64")

        steps, extents, pads = (operands[i:i + rank] for i in (0, rank, 2 * rank))
        firsts = [e("sub", e("mul", step, number(stride)), pad) for step, stride, pad in zip(steps, shape.strides, pads, strict=True)]
        best, place = operands[3 * rank], number(-1)
        for tap, value in zip(taps, operands[3 * rank:], strict=True):
            at = [e("add", first, number(k * d)) for first, k, d in zip(firsts, tap, shape.dilations, strict=True)]
            wins = e("or", e("gt", value, best), e("lt", place, number(0)))
            linear = number(0)
            for i in order:
                wins = e("and", wins, e("and", e("ge", at[i], number(0)), e("lt", at[i], extents[i])))
                linear = e("add", e("mul", linear, extents[i]), at[i])
            best, place = e("select", wins, value, best), e("select", wins, linear, place)
        return place

    place = context.elementwise([*windows, *known, *views], build, (batch, channels, *out), suffix="place")
    planes = context.reshape(context.arange(batch * channels), (batch, channels, *[1] * rank))
    context.elementwise([place, planes, context.size_value(product(sizes))], lambda e, i, plane, size: e("add", i, e("mul", plane, size)),
                        (batch, channels, *out), output=call.outputs[1], suffix="indices")


def global_pool(op: str) -> Operator:
    """A reduction over all spatial dimensions."""
    def lower(context: Context, call: Call) -> None:
        x = call.inputs[0]
        tensor = context.tensor(x)
        axes = tuple(range(2, len(tensor.shape)))
        result = Tensor(tensor.dtype, (*tensor.shape[:2], *[1] * len(axes)))
        context.layer("reduce", [x], result, output=call.outputs[0], op=op, axes=axes, select_last=False)

    return lower


def _global_lp_pool(context: Context, call: Call) -> None:
    p = float(call.get("p", 2))
    if p in (1.0, 2.0):
        return global_pool("l1" if p == 1 else "l2")(context, call)
    x = call.inputs[0]
    tensor = context.tensor(x)
    axes = tuple(range(2, len(tensor.shape)))
    power = context.elementwise([x], lambda e, v: e("pow", e("abs", v), e.constant(p, tensor.dtype)), tensor.shape,
                                suffix="power")
    e = ExpressionBuilder([tensor.dtype])
    root = e.finish(e("pow", 0, e.constant(1 / p, tensor.dtype)))
    context.layer("reduce", [power], Tensor(tensor.dtype, (*tensor.shape[:2], *[1] * len(axes))), output=call.outputs[0],
                  expression=root, op="sum", axes=axes, select_last=False)
    return None


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "AveragePool"): pool("average"),
    ("", "GlobalAveragePool"): global_pool("mean"),
    ("", "GlobalLpPool"): _global_lp_pool,
    ("", "GlobalMaxPool"): global_pool("max"),
    ("", "LpPool"): pool("lp"),
    ("", "MaxPool"): pool("max"),
}
