"""Element-wise operators: arithmetic, comparison, logic, bits, casts, and the functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.scalars import evaluate_expression
from sartor.ops.context import CONTENT_LIMIT, FLOATS, Build, Call, Context, DeclinedError
from sartor.types import BYTES, width

AT_ONCE = 8  # operands of one expression where a node has any number of them

Operator: TypeAlias = Callable[[Context, Call], None]

CASTS = {1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 12: "u32",
         13: "u64", 16: "bf16", 17: "f8e4m3fn", 18: "f8e4m3fnuz", 19: "f8e5m2", 20: "f8e5m2fnuz", 21: "u4", 22: "i4", 23: "f4e2m1",
         24: "f8e8m0", 25: "u2", 26: "i2", 27: "f6e2m3", 28: "f6e3m2"}


def emit(context: Context, call: Call, operands: Sequence[str], build: Build) -> None:
    """Emits the node's output as an element-wise layer over broadcast operands."""
    if any(context.dtype(v) == "string" for v in operands):
        raise DeclinedError(f"{call} works on strings")
    shape = context.broadcast([context.shape(v) for v in operands], bound=True)
    context.elementwise([context.broadcastable(v, shape) for v in operands], build, shape, output=call.outputs[0])


def _aligned(context: Context, call: Call) -> tuple[str, ...]:
    """Operands of a binary operator; before opset 7 the second one could be aligned to an axis of the first."""
    if call.version >= 7 or not call.get("broadcast", 0) or call.get("axis") is None:
        return call.inputs
    first, second = call.inputs
    rank, shape = len(context.shape(first)), context.shape(second)
    axis = call["axis"] % rank
    return first, context.reshape(second, (*shape, *[1] * (rank - axis - len(shape))))


def unary(op: str) -> Operator:
    """An operator that is one operation of expressions."""
    def lower(context: Context, call: Call) -> None:
        emit(context, call, call.inputs[:1], lambda e, x: e(op, x))

    return lower


def binary(op: str) -> Operator:
    """An operator of two operands that is one operation of expressions."""
    def lower(context: Context, call: Call) -> None:
        emit(context, call, _aligned(context, call), lambda e, a, b: e(op, a, b))

    return lower


def variadic(op: str, mean: bool = False) -> Operator:
    """An operator that folds any number of operands from the left."""
    def lower(context: Context, call: Call) -> None:
        values, count = list(call.inputs), len(call.inputs)

        def build(e: ExpressionBuilder, *operands: int) -> int:
            out = operands[0]
            for other in operands[1:]:
                out = e(op, out, other)
            return e("mul", out, e.constant(1 / count, e.nodes[out].dtype)) if mean and len(values) <= AT_ONCE else out

        while len(values) > AT_ONCE:
            some = values[:AT_ONCE]
            shape = context.broadcast([context.shape(v) for v in some])
            some = [context.broadcastable(v, shape) for v in some]
            values = [context.elementwise(some, build, shape, suffix="some"), *values[AT_ONCE:]]
        emit(context, call, values, build)

    return lower


def _power(context: Context, call: Call) -> None:
    base, exponent = _aligned(context, call)
    base_type, exponent_type = context.dtype(base), context.dtype(exponent)
    constant = context.constant(exponent) if context.tensor(exponent).elements == 1 else None
    known = float(constant.item()) if constant is not None else None
    floating = base_type in ("f32", "f64", "f16", "bf16")

    def build(e: ExpressionBuilder, x: int, y: int) -> int:
        if known in (2.0, 3.0):
            return e("mul", x, x) if known == 2 else e("mul", e("mul", x, x), x)
        if floating and known in _SIMPLE_POWERS:
            return e(_SIMPLE_POWERS[known], x)
        if base_type == exponent_type:
            return e("pow", x, y)
        if floating or exponent_type not in ("f32", "f64", "f16", "bf16"):
            return e("pow", x, e("cast", y, dtype=base_type))
        return e("cast", e("pow", e("cast", x, dtype=exponent_type), y), dtype=base_type)

    emit(context, call, (base, exponent), build)


_SIMPLE_POWERS = {0.5: "sqrt", -1.0: "reciprocal"}


def _modulo(context: Context, call: Call) -> None:
    op = "fmod" if call.get("fmod", 0) else "mod"
    emit(context, call, call.inputs, lambda e, a, b: e(op, a, b))


def _shift(context: Context, call: Call) -> None:
    """A shift by the width or more, or by a negative number, leaves nothing, of negative numbers shifted right all ones."""
    dtype = context.dtype(call.inputs[0])
    width, left = int(dtype[1:]), call["direction"] == "LEFT"

    def build(e: ExpressionBuilder, x: int, by: int) -> int:
        most, none = e.constant(width - 1, dtype), e.constant(0, dtype)
        outside = e("gt", by, most)
        if dtype[0] == "i":
            outside = e("or", e("lt", by, none), outside)
        shifted = e("shift_left" if left else "shift_right", x, e("select", outside, most, by))
        return shifted if dtype[0] == "i" and not left else e("select", outside, none, shifted)

    emit(context, call, call.inputs, build)


def _where(context: Context, call: Call) -> None:
    emit(context, call, call.inputs, lambda e, c, a, b: e("select", c, a, b))


def _is_infinite(context: Context, call: Call) -> None:
    negative, positive = call.get("detect_negative", 1), call.get("detect_positive", 1)
    which = "both" if negative and positive else "negative" if negative else "positive"
    if not negative and not positive:
        emit(context, call, call.inputs, lambda e, x: e.constant(False, "bool"))
    else:
        emit(context, call, call.inputs, lambda e, x: e("is_inf", x, value=which))


def _cast_to(context: Context, call: Call, dtype: str) -> None:
    source = context.dtype(call.inputs[0])
    if "string" in (source, dtype):
        raise DeclinedError(f"{call} casts strings")
    if source == dtype:
        context.alias(call.outputs[0], call.inputs[0])
    elif dtype == "bool":
        emit(context, call, call.inputs[:1], lambda e, x: e("ne", x, e.constant(0, source)))
    else:
        option = cast_option(call, dtype)
        emit(context, call, call.inputs[:1], lambda e, x: e("cast", x, dtype=dtype, value=option))


def cast_option(call: Call, dtype: str) -> str | None:
    """How a node's attributes want values converted to `dtype`: the option of a `cast` node."""
    saturate = ["saturate"] if call.get("saturate", 1) else []
    if dtype == "f8e8m0":
        if (mode := call.get("round_mode", "up")) not in ("up", "down", "nearest"):
            raise ModelError(f"{call} rounds by the mode {mode!r}; modes are up, down and nearest")
        return " ".join([mode, *saturate])
    return "saturate" if saturate and dtype.startswith("f8") else None


def _cast(context: Context, call: Call) -> None:
    to = call["to"]
    if isinstance(to, str):  # before opset 6
        to = {"FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10,
              "DOUBLE": 11, "UINT32": 12, "UINT64": 13}.get(to.upper(), 0)
    if to not in CASTS:
        raise DeclinedError(f"{call} casts to a type without compiled code")
    _cast_to(context, call, CASTS[to])


def _bit_cast(context: Context, call: Call) -> None:
    source, to = context.dtype(call.inputs[0]), CASTS.get(call["to"], "")
    if any(t not in BYTES for t in (source, to)) or width(source) != width(to):
        raise DeclinedError(f"{call} reads {source} as a type without compiled code, or of another width")
    emit(context, call, call.inputs[:1], lambda e, x: x if source == to else e("bitcast", x, dtype=to))


def _cast_like(context: Context, call: Call) -> None:
    """A small constant becomes one of the other type at once, though the value that tells the type is none."""
    x, dtype = call.inputs[0], context.dtype(call.inputs[1])
    elements = context.tensor(x).elements
    if isinstance(elements, int) and elements <= CONTENT_LIMIT and "string" not in (dtype, context.dtype(x)):
        if (array := context.constant(x)) is not None:
            e = ExpressionBuilder([context.dtype(x)])
            context.set_constant(call.outputs[0], evaluate_expression(e.finish(e("cast", 0, dtype=dtype)), [array]))
            return
    _cast_to(context, call, dtype)


def _clip(context: Context, call: Call) -> None:
    x = call.inputs[0]
    dtype = context.dtype(x)
    bounds = [(call.input(1), "max"), (call.input(2), "min")] if call.version >= 11 else []
    fixed = [] if call.version >= 11 else [(call.get("min"), "max"), (call.get("max"), "min")]
    bounds = [(v, op) for v, op in bounds if v]

    def build(e: ExpressionBuilder, out: int, *limits: int) -> int:
        for limit, (_, op) in zip(limits, bounds, strict=True):
            out = e(op, out, limit)
        for value, op in fixed:
            if value is not None:
                out = e(op, out, e.constant(value, dtype))
        return out

    context.elementwise([x, *(v for v, _ in bounds)], build, context.shape(x), output=call.outputs[0])


# --- activations -----------------------------------------------------------------------------------------------------------

Formula: TypeAlias = Callable[[ExpressionBuilder, int, Callable[[float], int], Call], int]


def activation(formula: Formula) -> Operator:
    """A function of one variable; the formula gets the builder, x, a maker of constants of x's type, and the node."""
    def lower(context: Context, call: Call) -> None:
        dtype = context.dtype(call.inputs[0])
        emit(context, call, call.inputs[:1], lambda e, x: formula(e, x, lambda value: e.constant(value, dtype), call))

    return lower


Constant: TypeAlias = Callable[[float], int]


def _leaky_relu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("select", e("lt", x, c(0.0)), e("mul", x, c(call.get("alpha", 0.01))), x)


def _elu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("select", e("lt", x, c(0.0)), e("mul", c(call.get("alpha", 1.0)), e("sub", e("exp", x), c(1.0))), x)


def _selu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    alpha = call.get("alpha", 1.67326319217681884765625 if call.version >= 6 else 1.6732)
    gamma = call.get("gamma", 1.05070102214813232421875 if call.version >= 6 else 1.0507)
    negative = e("mul", c(alpha), e("sub", e("exp", x), c(1.0)))
    return e("mul", c(gamma), e("select", e("le", x, c(0.0)), negative, x))


def _celu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    alpha = call.get("alpha", 1.0)
    negative = e("mul", c(alpha), e("sub", e("exp", e("mul", x, c(1 / alpha))), c(1.0)))
    return e("select", e("lt", x, c(0.0)), negative, x)


def _gelu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    if call.get("approximate", "none") == "tanh":
        cube = e("mul", e("mul", x, x), x)
        inner = e("tanh", e("mul", c(math.sqrt(2 / math.pi)), e("add", x, e("mul", c(0.044715), cube))))
    else:
        inner = e("erf", e("mul", x, c(math.sqrt(0.5))))
    return e("mul", e("mul", c(0.5), x), e("add", inner, c(1.0)))


def _hard_sigmoid_of(e: ExpressionBuilder, x: int, c: Constant, alpha: float, beta: float) -> int:
    return e("max", c(0.0), e("min", c(1.0), e("add", e("mul", x, c(alpha)), c(beta))))


def _hard_sigmoid(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return _hard_sigmoid_of(e, x, c, call.get("alpha", 0.2), call.get("beta", 0.5))


def _hard_swish(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("mul", x, _hard_sigmoid_of(e, x, c, 1 / 6, 0.5))


def _mish(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("mul", x, e("tanh", e("softplus", x)))


def _softsign(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("div", x, e("add", e("abs", x), c(1.0)))


def _swish(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    alpha = call.get("alpha", 1.0)
    return e("mul", x, e("sigmoid", x if alpha == 1 else e("mul", x, c(alpha))))


def _thresholded_relu(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    return e("select", e("gt", x, c(call.get("alpha", 1.0))), x, c(0.0))


def _shrink(e: ExpressionBuilder, x: int, c: Constant, call: Call) -> int:
    bias, limit = call.get("bias", 0.0), call.get("lambd", 0.5)
    dtype = e.nodes[x].dtype
    if dtype not in FLOATS and dtype != "bf16":  # integers too are compared and moved as numbers, then cut
        x, c = e("cast", x, dtype="f64"), lambda value: e.constant(value, "f64")
    high = e("select", e("gt", x, c(limit)), e("sub", x, c(bias)), c(0.0))
    return e("cast", e("select", e("lt", x, c(-limit)), e("add", x, c(bias)), high), dtype=dtype)


def _prelu(context: Context, call: Call) -> None:
    x, slope = call.inputs
    rank, shape = len(context.shape(x)), context.shape(slope)
    if call.version < 7 and len(shape) == 1 and rank > 2:  # one slope a channel
        slope = context.reshape(slope, (*shape, *[1] * (rank - 2)))
    if len(shape) > rank:
        raise ModelError(f"{call} has a slope of {len(shape)} dimensions for an input of {rank}")
    zero: float = 0.0 if context.dtype(x) in ("f32", "f64", "f16", "bf16") else 0

    def build(e: ExpressionBuilder, value: int, factor: int) -> int:
        return e("select", e("lt", value, e.constant(zero, context.dtype(x))), e("mul", value, factor), value)

    emit(context, call, (x, slope), build)


_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "BitwiseNot": "bit_not", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "IsNaN": "is_nan", "Log": "log", "Neg": "neg", "Not": "not", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add", "And": "and", "BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor", "Div": "div",
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Mul": "mul", "Or": "or",
    "Sub": "sub", "Xor": "xor",
}
_ACTIVATIONS: dict[str, Formula] = {
    "Celu": _celu, "Elu": _elu, "Gelu": _gelu, "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu, "Mish": _mish, "Selu": _selu, "Shrink": _shrink,
    "Softsign": _softsign, "Swish": _swish, "ThresholdedRelu": _thresholded_relu,
}

OPERATORS: dict[tuple[str, str], Operator] = {
    **{("", name): unary(op) for name, op in _UNARY.items()},
    **{("", name): binary(op) for name, op in _BINARY.items()},
    **{("", name): activation(formula) for name, formula in _ACTIVATIONS.items()},
    ("", "BitCast"): _bit_cast,
    ("", "BitShift"): _shift,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast_like,
    ("", "Clip"): _clip,
    ("", "IsInf"): _is_infinite,
    ("", "Max"): variadic("max"),
    ("", "Mean"): variadic("add", mean=True),
    ("", "Min"): variadic("min"),
    ("", "Mod"): _modulo,
    ("", "Pow"): _power,
    ("", "PRelu"): _prelu,
    ("", "Sum"): variadic("add"),
    ("", "Where"): _where,
}
