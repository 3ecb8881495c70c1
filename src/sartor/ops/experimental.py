"""Operators that the first releases of ONNX had on trial and later dropped; old models from CoreML, Caffe2 and CNTK still use them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import CASTS, Constant, Operator, activation
from sartor.ops.movement import emit_slice, slice_axis
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, Size
from sartor.types import to_numpy


def _affine(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("add", e("mul", x, c(call.get("alpha", 1.0))), c(call.get("beta", 0.0)))


def _scaled_tanh(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("mul", c(call.get("alpha", 1.0)), e("tanh", e("mul", x, c(call.get("beta", 1.0)))))


def _parametric_softplus(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("mul", c(call.get("alpha", 1.0)), e("softplus", e("mul", x, c(call.get("beta", 1.0)))))


def _scale(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("mul", x, c(call.get("scale", 1.0)))


def _image_scaler(context: Context, call: Call) -> None:
    """x * scale + a bias for each channel of [N, C, H, W]."""
    x = call.inputs[0]
    tensor, biases = context.tensor(x), call.get("bias", [])
    if len(tensor.shape) != 4 or context.same(tensor.shape[1], len(biases), "the channels") != len(biases):
        raise ModelError(f"{call} has {len(biases)} biases for the input {tensor}")
    shifts = context.new_constant(np.array(biases, to_numpy(tensor.dtype)).reshape(-1, 1, 1), f"{call.outputs[0]}.bias")
    scale = call.get("scale", 1.0)
    context.elementwise([x, shifts], lambda e, v, b: e("add", e("mul", v, e.constant(scale, tensor.dtype)), b), tensor.shape,
                        output=call.outputs[0])


def _crop(context: Context, call: Call) -> None:
    """Cuts (left, top, right, bottom) off images; `scale`, where given, is the height and width that stay instead."""
    x = call.inputs[0]
    *outer, height, width = context.shape(x)
    left, top, right, bottom = call["border"]
    sizes: Sequence[Dim] = call.get("scale") or (height - top - bottom, width - left - right)
    for whole, first, size in ((height, top, sizes[0]), (width, left, sizes[1])):
        rest = whole - first - size
        if isinstance(rest, int) and rest < 0:
            raise ModelError(f"{call} crops more than its input {context.tensor(x)} has")
        if isinstance(rest, Size):
            context.require_at_least(rest, 0)
    starts = (*[0] * len(outer), top, left)
    emit_slice(context, x, starts, [1] * len(starts), (*outer, *sizes), output=call.outputs[0])


def _constant_fill(context: Context, call: Call) -> None:
    shape: list[Dim] = list(call.get("shape") or [])
    if call.input(0):
        given = context.require_dims(call.inputs[0]) if call.get("input_as_shape", 0) else list(context.shape(call.inputs[0]))
        shape = [*given, *call.get("extra_shape", [])]
    dtype = CASTS.get(call.get("dtype", 1))
    if dtype is None:
        raise DeclinedError(f"{call} fills with a type without compiled code")
    value = context.new_constant(np.array(call.get("value", 0.0)).astype(to_numpy(dtype)), f"{call.outputs[0]}.value")
    context.elementwise([value], lambda e, v: v, shape, output=call.outputs[0])


def _given_tensor_fill(context: Context, call: Call) -> None:
    values = np.array(call.get("values", []), np.float32)
    shape = list(call.get("shape") or [])
    if call.input(0):
        shape = [*context.require_ints(call.inputs[0]), *call.get("extra_shape", [])] if call.get("input_as_shape", 0) else \
            [*(context.ints(call.inputs[0]) or []), *call.get("extra_shape", [])]
    context.set_constant(call.outputs[0], values.reshape(shape or values.shape))


def _dynamic_slice(context: Context, call: Call) -> None:
    """A slice of step 1, its axes where they are not given the first ones."""
    x, starts, ends = call.inputs[:3]
    shape = list(context.shape(x))
    first, last = context.require_dims(starts), context.require_dims(ends)
    axes = context.require_ints(call.inputs[3]) if call.input(3) else list(range(len(first)))
    if not len(first) == len(last) == len(axes):
        raise ModelError(f"{call} has starts, ends and axes that do not fit each other")
    begins: list[Dim] = [0] * len(shape)
    for start, end, axis in zip(first, last, axes, strict=True):
        place = axis_of(axis, len(shape), call)
        begins[place], shape[place] = slice_axis(context, shape[place], start, end, 1)
    emit_slice(context, x, begins, [1] * len(shape), shape, output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Affine"): activation(_affine),
    ("", "ConstantFill"): _constant_fill,
    ("", "Crop"): _crop,
    ("", "DynamicSlice"): _dynamic_slice,
    ("", "GivenTensorFill"): _given_tensor_fill,
    ("", "ImageScaler"): _image_scaler,
    ("", "ParametricSoftplus"): activation(_parametric_softplus),
    ("", "Scale"): activation(_scale),
    ("", "ScaledTanh"): activation(_scaled_tanh),
}
