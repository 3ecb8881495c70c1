"""Pooling: windows with channels moved last; global pools are reductions."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context
from sartor.ops.convolution import channels_first, channels_last
from sartor.ops.elementwise import Operator
from sartor.ops.windows import Window, output_sizes, window
from sartor.sizes import Dim, product


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
        moved = context.transpose(x, channels_last(rank), suffix="channels_last")
        if call.output(1):
            _indices(context, call, moved, shape, out)
            if not call.output(0):
                return
        result = context.layer("pool", [moved], Tensor(dtype, (batch, *out, channels)), mode=mode, kernel=shape.kernel,
                               strides=shape.strides, dilations=shape.dilations, pads=shape.pads,
                               include_pad=bool(call.get("count_include_pad", 0)), p=float(call.get("p", 2)))
        context.transpose(result, channels_first(rank), output=call.outputs[0])

    return lower


def _indices(context: Context, call: Call, moved: str, shape: Window, out: Sequence[Dim]) -> None:
    """Where in the flattened input each window's first maximum lies: its place in its plane, and the planes before it."""
    batch, *sizes, channels = context.shape(moved)
    rank = len(sizes)
    places = context.layer("pool", [moved], Tensor("i64", (batch, *out, channels)), suffix="places", mode="argmax",
                           kernel=shape.kernel, strides=shape.strides, dilations=shape.dilations, pads=shape.pads,
                           column_major=bool(call.get("storage_order", 0)))
    planes = context.reshape(context.arange(batch * channels), (batch, *[1] * rank, channels), suffix="planes")
    linear = context.elementwise([places, planes, context.size_value(product(sizes))],
                                 lambda e, i, plane, size: e("add", i, e("mul", plane, size)), (batch, *out, channels), suffix="linear")
    context.layer("transpose", [linear], Tensor("i64", (batch, channels, *out)), output=call.outputs[1], suffix="indices",
                  perm=channels_first(rank + 2))


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
