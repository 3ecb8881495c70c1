"""Convolution and transposed convolution, with channels moved last."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.errors import ModelError, UnsupportedError
from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.windows import output_sizes, split_padding, window
from sartor.sizes import Dim, maximum


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation from [N, C, spatial...] to [N, spatial..., C]."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The permutation from [N, spatial..., C] to [N, C, spatial...]."""
    return (0, rank - 1, *range(1, rank - 1))


def _bias(context: Context, call: Call, dtype: str) -> tuple[Expression | None, tuple[str, ...]]:
    if not call.input(2):
        return None, ()
    e = ExpressionBuilder([dtype, context.dtype(call.inputs[2])])
    return e.finish(e("add", 0, 1)), (call.inputs[2],)


def _ranks(context: Context, call: Call) -> int:
    rank = len(context.shape(call.inputs[0]))
    if rank < 3 or len(context.shape(call.inputs[1])) != rank:
        raise ModelError(f"{call} needs an input and weights of the same number of dimensions, at least 3; it has "
                         f"{context.tensor(call.inputs[0])} and {context.tensor(call.inputs[1])}")
    return rank


def _weight_sizes(context: Context, call: Call) -> tuple[int, ...]:
    sizes = tuple(d for d in context.shape(call.inputs[1]) if isinstance(d, int))
    if len(sizes) != len(context.shape(call.inputs[1])):
        if call.op_type == "ConvTranspose" and call.get("group", 1) > 1 and call.input(2):  # the reference adds the wrong bias
            raise UnsupportedError(f"{call} has groups, a bias, and weights of symbolic size, {context.tensor(call.inputs[1])}")
        raise DeclinedError(f"{call} has weights of symbolic size, {context.tensor(call.inputs[1])}")
    return sizes


def convolve(context: Context, call: Call) -> None:
    rank = _ranks(context, call)
    x, w = call.inputs[:2]
    batch, channels, *sizes = context.shape(x)
    outputs, group_channels, *kernel = _weight_sizes(context, call)
    groups = call.get("group", 1)
    if groups < 1 or outputs % groups:
        raise ModelError(f"{call} has {groups} groups for {outputs} output channels")
    context.same(channels, group_channels * groups, "the channels")
    shape = window(call, kernel, sizes)
    out = output_sizes(shape, sizes, call.get("auto_pad", "NOTSET"))
    _require_positive(call, out)
    dtype = context.dtype(x)
    expression, extra = _bias(context, call, dtype)
    moved = context.transpose(x, channels_last(rank), suffix="channels_last")
    weights = context.transpose(w, (*range(2, rank), 1, 0), suffix="weights")
    result = context.layer("convolution", [moved, weights], Tensor(dtype, (batch, *out, outputs)), expression=expression,
                           extra=extra, strides=shape.strides, dilations=shape.dilations, pads=shape.pads, groups=groups)
    context.transpose(result, channels_first(rank), output=call.outputs[0])


def _require_positive(call: Call, sizes: Sequence[Dim]) -> None:
    if any(isinstance(d, int) and d < 1 for d in sizes):
        raise ModelError(f"{call} has a window larger than its padded input: its output would have the sizes {list(sizes)}")


def deconvolve(context: Context, call: Call) -> None:
    rank = _ranks(context, call)
    x, w = call.inputs[:2]
    batch, channels, *sizes = context.shape(x)
    inputs, group_outputs, *kernel = _weight_sizes(context, call)
    groups = call.get("group", 1)
    if groups < 1 or inputs % groups:
        raise ModelError(f"{call} has {groups} groups for {inputs} input channels")
    context.same(channels, inputs, "the channels")
    mode = call.get("auto_pad", "NOTSET")
    fixed = Call(call.op_type, call.domain, call.version, call.name, call.inputs, call.outputs,
                 {k: v for k, v in call.attributes.items() if k != "auto_pad"})
    shape = window(fixed, kernel, sizes)
    extra_sizes = call.get("output_padding") or [0] * len(sizes)
    wanted = call.get("output_shape")
    wanted = wanted[-len(sizes):] if wanted else None
    begins, ends, out = list(shape.pads[:len(sizes)]), list(shape.pads[len(sizes):]), []
    for i, size in enumerate(sizes):
        full = (size - 1) * shape.strides[i] + shape.extents[i] + extra_sizes[i]
        if wanted or mode in ("SAME_UPPER", "SAME_LOWER"):
            out.append(wanted[i] if wanted else size * shape.strides[i])
            # unlike convolution, the odd one goes after for SAME_UPPER and before otherwise
            total = maximum(full - out[-1], 0)
            begins[i], ends[i] = split_padding(total, "SAME_UPPER" if mode == "SAME_UPPER" else "SAME_LOWER")
        else:
            begins[i], ends[i] = (0, 0) if mode == "VALID" else (begins[i], ends[i])
            out.append(full - begins[i] - ends[i])
    _require_positive(call, out)
    dtype = context.dtype(x)
    expression, extra = _bias(context, call, dtype)
    moved = context.transpose(x, channels_last(rank), suffix="channels_last")
    weights = context.transpose(w, (*range(2, rank), 0, 1), suffix="weights")
    result = context.layer("deconvolution", [moved, weights], Tensor(dtype, (batch, *out, group_outputs * groups)),
                           expression=expression, extra=extra, strides=shape.strides, dilations=shape.dilations,
                           pads=(*begins, *ends), groups=groups)
    context.transpose(result, channels_first(rank), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {("", "Conv"): convolve, ("", "ConvTranspose"): deconvolve}
