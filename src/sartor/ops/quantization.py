"""Quantisation: operators that turn reals into small integers and back, and products and convolutions of such integers.

Products of integers are exact: both operands have their zero points taken away and are multiplied as i32, which wraps as ONNX's own
does; those of small floats are computed in f32.
What is scaled back afterwards is computed in f64, so that the rounding sees the exact sum.  Constant weights are made i32 while
the model is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.ops.convolution import convolve
from sartor.ops.elementwise import CASTS, Operator, cast_option
from sartor.ops.matmul import multiply
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim
from sartor.types import FORMATS, limits, to_numpy

INTEGERS = ("u8", "i8", "u16", "i16", "u4", "i4", "u2", "i2")
SMALL_FLOATS = tuple(FORMATS)


def saturated(e: ExpressionBuilder, value: int, zero: int | None, dtype: str) -> int:
    """`value`, a float, rounded half to even, moved by the zero point, and held within `dtype`; a NaN gives its least number."""
    kind, (low, high) = e.nodes[value].dtype, limits(dtype)
    out = e("round", value)
    if zero is not None:
        out = e("add", out, e("cast", zero, dtype=kind))
    out = e("min", e.constant(float(high), kind), out)
    least = e.constant(float(low), kind)
    return e("cast", e("select", e("gt", out, least), out, least), dtype=dtype)


def _small_float(e: ExpressionBuilder, value: int, zero: int | None, dtype: str, option: str | None) -> int:
    """`value`, a float, moved by the zero point and rounded to a small float type; the sign of a zero stays."""
    if zero is not None:
        kind = e.nodes[value].dtype
        moved = e("add", value, e("cast", zero, dtype=kind))
        value = e("select", e("eq", e("cast", zero, dtype=kind), e.constant(0.0, kind)), value, moved)
    return e("cast", value, dtype=dtype, value=option)


def _parameter(context: Context, call: Call, name: str, x: str) -> str:
    """A scale or zero point in a shape that broadcasts to `x`: one number, one for each index of an axis, or one a block."""
    tensor, shape = context.tensor(name), context.shape(x)
    if tensor.elements == 1:
        return context.reshape(name, ())
    axis, block = axis_of(call.get("axis", 1), len(shape), call), call.get("block_size", 0)
    if not block:
        if len(tensor.shape) != 1:
            raise ModelError(f"{call} has the scale or zero point {name!r} of type {tensor}; expected one number or a vector")
        context.same(tensor.shape[0], shape[axis], "the quantised axis")
        return context.reshape(name, (*tensor.shape, *[1] * (len(shape) - axis - 1)))
    if len(tensor.shape) != len(shape) or block < 0:
        raise ModelError(f"{call} has blocks of {block} and the scale or zero point {name!r} of type {tensor}, which does not "
                         f"fit its input's shape {list(map(str, shape))}")
    extent = shape[axis]
    if isinstance(extent, int):
        def repeated(array: Array) -> Array:
            return array.repeat(block, axis).take(range(extent), axis)

        made = context.derived_constant(name, ("blocks", block, axis, extent), repeated, f"{name}.blocks")
        if made is not None:
            return made
    places = context.arange(extent)
    blocks = context.elementwise([places], lambda e, i: e("div", i, e.constant(block, "i64")), (extent,), suffix="block")
    result = Tensor(tensor.dtype, (*tensor.shape[:axis], extent, *tensor.shape[axis + 1:]))
    return context.layer("gather", [name, blocks], result, suffix="blocks", axis=axis)


def _named_type(call: Call, attribute: str, default: str) -> str:
    """The element type that an attribute asks for, or `default` where it asks for none."""
    number = call.get(attribute, 0)
    if number and number not in CASTS:
        raise DeclinedError(f"{call} makes a type without compiled code")
    return CASTS[number] if number else default


def _precision(context: Context, call: Call, x: str, scale: str) -> tuple[str, str]:
    """The type in which a quotient is computed, and that to which it is rounded."""
    asked = _named_type(call, "precision", context.dtype(scale))
    if asked == "i32" or (not call.get("precision", 0) and context.dtype(x) == "i32"):
        return "f64", "f64"
    if asked == "f64":
        return asked, asked
    half = asked in ("f16", "bf16") and (call.get("precision", 0) or context.dtype(x) == asked)
    return "f32", asked if half else "f32"


def _quantize(context: Context, call: Call) -> None:
    x, scale, zero = call.inputs[0], call.inputs[1], call.input(2)
    dtype = context.dtype(zero) if zero else _named_type(call, "output_dtype", "u8")
    if dtype not in (*INTEGERS, *SMALL_FLOATS):
        raise DeclinedError(f"{call} makes {dtype}, which has no compiled code")
    precision, rounded = _precision(context, call, x, scale)
    operands = [x, *(_parameter(context, call, v, x) for v in (scale, zero) if v)]

    def build(e: ExpressionBuilder, value: int, by: int, offset: int | None = None) -> int:
        value, by = (e("cast", e("cast", v, dtype=rounded), dtype=precision) for v in (value, by))
        quotient = e("div", value, by, value="exact")
        if rounded != precision:
            quotient = e("cast", e("cast", quotient, dtype=rounded), dtype=precision)
        if dtype in SMALL_FLOATS:
            return _small_float(e, quotient, offset, dtype, cast_option(call, dtype))
        return saturated(e, quotient, offset, dtype)

    context.elementwise(operands, build, context.shape(x), output=call.outputs[0])


def _dequantize(context: Context, call: Call) -> None:
    x, scale, zero = call.inputs[0], call.inputs[1], call.input(2)
    if (dtype := context.dtype(x)) not in (*INTEGERS, *SMALL_FLOATS, "i32"):
        raise DeclinedError(f"{call} reads {dtype}, which has no compiled code")
    kind = "f32" if dtype in SMALL_FLOATS else "i32"
    result = _named_type(call, "output_dtype", context.dtype(scale))
    operands = [x, *(_parameter(context, call, v, x) for v in (scale, zero) if v)]

    def build(e: ExpressionBuilder, value: int, by: int, offset: int | None = None) -> int:
        out = e("cast", value, dtype=kind)
        if offset is not None:
            out = e("sub", out, e("cast", offset, dtype=kind))
        out = e("mul", e("cast", out, dtype="f32"), e("cast", by, dtype="f32"))
        return out if result == "f32" else e("cast", out, dtype=result)

    context.elementwise(operands, build, context.shape(x), output=call.outputs[0])


def dynamic_quantize(context: Context, call: Call) -> None:
    """The range of the input, widened to hold zero, is laid over 0...255; an input of zeros has the scale 1."""
    x = call.inputs[0]
    shape = context.shape(x)
    ends = []
    for op in ("max", "min"):
        end = x
        if shape:
            kept = Tensor("f32", (1,) * len(shape))
            end = context.reshape(context.layer("reduce", [x], kept, suffix=op, op=op, axes=tuple(range(len(shape)))), ())
        ends.append(end)

    def scale_of(e: ExpressionBuilder, high: int, low: int) -> int:
        zero = e.constant(0.0, "f32")
        span = e("sub", e("max", zero, high), e("min", zero, low))
        return e("select", e("eq", span, zero), e.constant(1.0, "f32"), e("div", span, e.constant(255.0, "f32"), value="exact"))

    def zero_of(e: ExpressionBuilder, low: int, scale: int) -> int:
        zero = e.constant(0.0, "f32")
        return saturated(e, e("div", e("sub", zero, e("min", zero, low)), scale, value="exact"), None, "u8")

    scale = context.elementwise(ends, scale_of, (), output=call.output(1) or None, suffix="scale")
    zero = context.elementwise([ends[1], scale], zero_of, (), output=call.output(2) or None, suffix="zero")
    context.elementwise([x, scale, zero], lambda e, v, s, z: saturated(e, e("div", v, s, value="exact"), z, "u8"), shape,
                        output=call.outputs[0])


# --- products of integers --------------------------------------------------------------------------------------------------


def centred(context: Context, x: str, zero: str, per_index: Sequence[Dim] = (), kind: str = "i32") -> str:
    """`x` as `kind` less its zero point; a zero point of more than one element is given the shape `per_index`."""
    if zero:
        zero = context.reshape(zero, () if context.tensor(zero).elements == 1 else per_index)
    offset: Array | None = context.constant(zero) if zero else np.zeros((), np.int32)
    if context.is_constant(x) and offset is not None:
        wide = to_numpy(kind)
        taken = offset.astype(wide)
        made = context.derived_constant(x, ("centred", zero, kind), lambda a: a.astype(wide) - taken, f"{x}.centred")
        if made is not None:
            return made

    def build(e: ExpressionBuilder, value: int, by: int | None = None) -> int:
        out = e("cast", value, dtype=kind)
        return out if by is None else e("sub", out, e("cast", by, dtype=kind))

    return context.elementwise([x, zero] if zero else [x], build, context.shape(x), suffix="centred")


def _rows(context: Context, name: str, columns: bool = False) -> tuple[Dim, ...]:
    """The shape in which a scale or zero point of a matrix broadcasts to it: a vector has one number a row, or one a column."""
    if not name:
        return ()
    shape = context.shape(name)
    if context.tensor(name).elements == 1:
        return ()
    return (*shape, 1) if len(shape) == 1 and not columns else shape


def _requantize(context: Context, call: Call, product: str, scales: Sequence[str], zero: str, output: str) -> None:
    """`product` (i32 or f32) times the first two scales, over the third, rounded and held within the type of `zero`."""
    dtype = context.dtype(zero)
    if dtype not in (*INTEGERS, *SMALL_FLOATS):
        raise DeclinedError(f"{call} makes {dtype}, which has no compiled code")

    def build(e: ExpressionBuilder, value: int, a: int, b: int, y: int, offset: int) -> int:
        a, b, y = (e("cast", s, dtype="f32") for s in (a, b, y))
        factor = e("cast", e("div", e("mul", a, b), y), dtype="f64")
        scaled = e("mul", e("cast", value, dtype="f64"), factor)
        return _small_float(e, scaled, offset, dtype, "saturate") if dtype in SMALL_FLOATS else saturated(e, scaled, offset, dtype)

    context.elementwise([product, *scales, zero], build, context.shape(product), output=output, suffix="requantized")


def _integer_matmul(context: Context, call: Call) -> None:
    a, b, a_zero, b_zero = (call.input(i) for i in range(4))
    left = centred(context, a, a_zero, _rows(context, a_zero))
    right = centred(context, b, b_zero, _rows(context, b_zero, columns=True))
    multiply(context, replace(call, inputs=(left, right)))


def _quantized_matmul(context: Context, call: Call) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = call.inputs
    if min(len(context.shape(a)), len(context.shape(b))) < 2:  # a vector's scales have no dimension of rows
        for name in (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero):
            if context.tensor(name).elements != 1:
                raise DeclinedError(f"{call} multiplies a vector that has more than one scale")
    kind = "f32" if {context.dtype(a), context.dtype(b)} & set(SMALL_FLOATS) else "i32"
    left = centred(context, a, a_zero, _rows(context, a_zero), kind)
    right = centred(context, b, b_zero, _rows(context, b_zero, columns=True), kind)
    product = context.unique(f"{call.outputs[0]}.product")
    multiply(context, replace(call, inputs=(left, right), outputs=(product,)))
    scales = [context.reshape(a_scale, _rows(context, a_scale)), context.reshape(b_scale, _rows(context, b_scale, columns=True)),
              context.reshape(y_scale, _rows(context, y_scale))]
    _requantize(context, call, product, scales, context.reshape(y_zero, _rows(context, y_zero)), call.outputs[0])


def _integer_convolution(context: Context, call: Call) -> None:
    x, w, x_zero, w_zero = (call.input(i) for i in range(4))
    outputs, rest = context.shape(w)[0], (1,) * (len(context.shape(w)) - 1)
    moved = centred(context, x, x_zero), centred(context, w, w_zero, (outputs, *rest))
    convolve(context, replace(call, inputs=moved))


def quantized_convolution(context: Context, call: Call) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = call.inputs[:8]
    outputs, spatial = context.shape(w)[0], (1,) * (len(context.shape(w)) - 2)
    operands = (centred(context, x, x_zero), centred(context, w, w_zero, (outputs, 1, *spatial)), *call.inputs[8:9])
    product = context.unique(f"{call.outputs[0]}.product")
    convolve(context, replace(call, inputs=operands, outputs=(product,)))
    by_channel = () if context.tensor(w_scale).elements == 1 else (outputs, *spatial)
    scales = [context.reshape(x_scale, ()), context.reshape(w_scale, by_channel), context.reshape(y_scale, ())]
    _requantize(context, call, product, scales, context.reshape(y_zero, ()), call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "ConvInteger"): _integer_convolution,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): dynamic_quantize,
    ("", "MatMulInteger"): _integer_matmul,
    ("", "QLinearConv"): quantized_convolution,
    ("", "QLinearMatMul"): _quantized_matmul,
    ("", "QuantizeLinear"): _quantize,
}
