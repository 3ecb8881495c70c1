"""Reductions, arg-reductions and the softmax family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import FLOATS, Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, product


def reduction(op: str) -> Operator:
    """A Reduce* operator; its axes are an attribute or, in newer opsets, an input."""
    def lower(context: Context, call: Call) -> None:
        x = call.inputs[0]
        if op in _WIDE and context.dtype(x) in _WIDE[op]:
            _emit_wide(context, call, lower)
            return
        rank = len(context.shape(x))
        given = context.ints(call.inputs[1]) if call.input(1) else call.get("axes")
        if given is None and call.input(1):
            _emit_bound(context, call, op)
            return
        if not given and call.get("noop_with_empty_axes", 0):
            _each(context, x, op, call.outputs[0])
            return
        axes = sorted({axis_of(a, rank, call) for a in given}) if given else list(range(rank))
        emit(context, call, op, axes, bool(call.get("keepdims", 1)))

    return lower


INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_WIDE: dict[str, Sequence[str]] = {"l2": INTEGERS, "mean": ("i32", "u32"), "log_sum": INTEGERS}
"""Reductions of integers whose steps may be larger than their results: these are taken in f64."""


def _emit_wide(context: Context, call: Call, lower: Operator) -> None:
    """A reduction of integers in double precision, whose result is an integer again."""
    x, output = call.inputs[0], call.outputs[0]
    narrow = context.dtype(x)
    wide = context.elementwise([x], lambda e, v: e("cast", v, dtype="f64"), context.shape(x), suffix="wide")
    made = context.unique(f"{output}.wide")
    lower(context, replace(call, inputs=(wide, *call.inputs[1:]), outputs=(made,)))
    context.elementwise([made], lambda e, v: e("cast", v, dtype=narrow), context.shape(made), output=output)


def _each(context: Context, x: str, op: str, output: str) -> None:
    """A reduction along no axes: each element by itself."""
    if op not in ("l1", "l2", "sum_square", "log_sum"):
        context.copy(x, output)
        return
    if op == "log_sum" and context.dtype(x) not in (*FLOATS, "bf16"):
        raise DeclinedError(f"{context.call} takes logarithms of {context.dtype(x)}")

    def build(e: ExpressionBuilder, value: int) -> int:
        return e("mul", value, value) if op == "sum_square" else e("log" if op == "log_sum" else "abs", value)

    context.elementwise([x], build, context.shape(x), output=output)


def _emit_bound(context: Context, call: Call, op: str) -> None:
    """A reduction along axes that depend on data: each dimension is seen as two, one kept and one reduced, one of them of size 1."""
    x, keep = call.inputs[0], bool(call.get("keepdims", 1))
    tensor = context.tensor(x)
    rank, (count,) = len(tensor.shape), context.static_shape(call.inputs[1])
    found = context.bind("reduce", [call.inputs[1]], 2 * rank if keep else 3 * rank - count, tensor.shape, keep=keep)
    pairs = context.reshape(x, found[:2 * rank], suffix="pairs")
    kept = tuple(1 if i % 2 else d for i, d in enumerate(found[:2 * rank]))
    made = context.layer("reduce", [pairs], Tensor(tensor.dtype, kept), op=op, axes=tuple(range(1, 2 * rank, 2)), select_last=False)
    context.reshape(made, found[0:2 * rank:2] if keep else found[2 * rank:], output=call.outputs[0])


def emit(context: Context, call: Call, op: str, axes: Sequence[int], keep: bool, dtype: str = "",
         select_last: bool = False) -> None:
    """Emits a reduction of the node's first input, and a reshape where reduced dimensions are dropped."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    kept = tuple(1 if i in axes else d for i, d in enumerate(tensor.shape))
    result = Tensor(dtype or tensor.dtype, kept)
    made = context.layer("reduce", [x], result, output=call.outputs[0] if keep else None, op=op, axes=tuple(axes),
                         select_last=select_last)
    if not keep:
        context.reshape(made, [d for i, d in enumerate(tensor.shape) if i not in axes], output=call.outputs[0])


def arg_reduction(op: str) -> Operator:
    """ArgMax and ArgMin."""
    def lower(context: Context, call: Call) -> None:
        axis = axis_of(call.get("axis", 0), len(context.shape(call.inputs[0])), call)
        emit(context, call, op, [axis], bool(call.get("keepdims", 1)), "i64", bool(call.get("select_last_index", 0)))

    return lower


def softmax(log: bool) -> Operator:
    """Softmax and LogSoftmax; before opset 13 over all dimensions from the axis on."""
    def lower(context: Context, call: Call) -> None:
        x = call.inputs[0]
        tensor = context.tensor(x)
        rank = len(tensor.shape)
        axis = axis_of(call.get("axis", -1 if call.version >= 13 else 1), rank, call)
        if call.version >= 13 or axis == rank - 1 or all(d == 1 for d in tensor.shape[axis + 1:]):
            context.layer("softmax", [x], tensor, output=call.outputs[0], axis=axis, log=log)
            return
        made = context.layer("softmax", [context.reshape(x, _matrix(tensor.shape, axis), suffix="matrix")],
                             Tensor(tensor.dtype, _matrix(tensor.shape, axis)), axis=1, log=log)
        context.reshape(made, tensor.shape, output=call.outputs[0])

    return lower


def _matrix(shape: Sequence[Dim], axis: int) -> tuple[Dim, Dim]:
    return product(shape[:axis]), product(shape[axis:])


def _hardmax(context: Context, call: Call) -> None:
    """One at the first largest element along the axis, zero elsewhere."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    rank = len(tensor.shape)
    if not rank:
        raise DeclinedError(f"{call} has a scalar input")
    axis = axis_of(call.get("axis", -1 if call.version >= 13 else 1), rank, call)
    shape = tensor.shape
    if call.version < 13 and axis != rank - 1:
        shape = _matrix(shape, axis)
        x, axis = context.reshape(x, shape, suffix="matrix"), 1
    kept = tuple(1 if i == axis else d for i, d in enumerate(shape))
    place = context.layer("reduce", [x], Tensor("i64", kept), suffix="place", op="argmax", axes=(axis,), select_last=False)
    iota = context.reshape(context.arange(shape[axis]), [shape[axis], *[1] * (len(shape) - axis - 1)])
    flat = shape != tensor.shape
    made = context.elementwise([place, iota], lambda e, a, b: e("cast", e("eq", a, b), dtype=tensor.dtype), shape,
                               output=None if flat else call.outputs[0], suffix="one_hot" if flat else "")
    if flat:
        context.reshape(made, tensor.shape, output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "ArgMax"): arg_reduction("argmax"),
    ("", "ArgMin"): arg_reduction("argmin"),
    ("", "Hardmax"): _hardmax,
    ("", "LogSoftmax"): softmax(log=True),
    ("", "ReduceL1"): reduction("l1"),
    ("", "ReduceL2"): reduction("l2"),
    ("", "ReduceLogSum"): reduction("log_sum"),
    ("", "ReduceLogSumExp"): reduction("log_sum_exp"),
    ("", "ReduceMax"): reduction("max"),
    ("", "ReduceMean"): reduction("mean"),
    ("", "ReduceMin"): reduction("min"),
    ("", "ReduceProd"): reduction("prod"),
    ("", "ReduceSum"): reduction("sum"),
    ("", "ReduceSumSquare"): reduction("sum_square"),
    ("", "Softmax"): softmax(log=False),
}
