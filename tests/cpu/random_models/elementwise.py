"""Random nodes of element-wise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tests.cpu.random_models.fills import Fill, between, divisors, is_float, normal, positive, small, special, spread_out
from tests.cpu.random_models.maker import FLOATS, INTS, NAMES, Entry, Make, Maker, SkipError

DATA_TYPES = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in NAMES.values() if name != "bfloat16"}
DATA_TYPES["bfloat16"] = onnx.TensorProto.BFLOAT16


def unary(fill: Fill = spread_out, **attributes: Any) -> Make:
    """One operand; `attributes` maps names to functions of the maker, drawn half of the time."""

    def make(m: Maker, op: str) -> None:
        x = m.any(m.types(op, 0), fill=fill)
        m.node(op, [x], **{k: draw(m) for k, draw in attributes.items() if m.chance(0.6)})

    return make


def binary(second: Fill = special, among: Sequence[str] | None = None, first: Fill = special, *, reuse: bool = True) -> Make:
    """Two operands that broadcast (which one has the larger shape is open)."""

    def make(m: Maker, op: str) -> None:
        a = m.any(m.types(op, 0, among), fill=first)
        dtype = m.dtype_of(a)
        shape = m.broadcasting(m.shape_of(a))
        reusable = reuse or is_float(dtype)
        b = a if reusable and m.chance(0.05) else m.tensor(dtype, shape, second) if reusable else m.new(dtype, shape, second)
        m.node(op, [b, a] if reusable and m.chance(0.5) else [a, b])

    return make


def variadic(m: Maker, op: str) -> None:
    """One to four operands that broadcast."""
    a = m.any(m.types(op, 0), fill=special)
    shape = m.shape_of(a)
    m.node(op, [a, *(m.tensor(m.dtype_of(a), m.broadcasting(shape), special) for _ in range(m.number(0, 3)))])


def shift(m: Maker, op: str) -> None:
    low = 0 if m.opset < 28 else -2
    a = m.any(m.types(op, 0), fill=normal)
    bits = np.iinfo(m.dtype_of(a)).bits
    signed = not m.dtype_of(a).startswith("u")
    b = m.new(m.dtype_of(a), m.broadcasting(m.shape_of(a)), between(low if signed else 0, bits - 1 if m.opset < 28 else bits + 2))
    m.node(op, [a, b], direction=m.one(("LEFT", "RIGHT")))


def power(m: Maker, op: str) -> None:
    """A power; integers to small exponents that are not negative, since ONNX does not say what others give."""
    a = m.any(m.types(op, 0), fill=special)
    other = m.dtype_of(a) if m.opset < 12 else m.type(op, 1)
    whole = not is_float(m.dtype_of(a))
    fill = between(0, 3) if whole or not is_float(other) else small if m.chance(0.5) else between(-2, 3)
    if whole and is_float(other):  # a float's power as an integer: only what is exact and in range is told
        a = m.new(m.dtype_of(a), m.shape_of(a), between(0, 5))
    shape = m.broadcasting(m.shape_of(a)) if m.opset >= 7 else m.shape_of(a)
    m.node(op, [a, m.new(other, shape, fill, constant=0.5)])


def modulo(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), fill=normal)
    dtype = m.dtype_of(a)
    b = m.new(dtype, m.broadcasting(m.shape_of(a)), positive if is_float(dtype) else divisors)
    m.node(op, [a, b], fmod=1 if is_float(dtype) or m.chance(0.4) else 0)


def prelu(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), fill=special)
    shape = m.shape_of(a)
    slope = tuple(1 if m.chance(0.4) else d for d in shape)
    slope = slope[m.number(0, len(shape)) if m.chance(0.4) else 0 :]
    m.node(op, [a, m.new(m.dtype_of(a), slope, normal)])


def where(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 1), fill=special)
    shape = m.shape_of(a)
    m.node(op, [m.tensor("bool", m.broadcasting(shape)), a, m.tensor(m.dtype_of(a), m.broadcasting(shape), special)])


def clip(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), fill=special)
    dtype = m.dtype_of(a)
    low, high = sorted((m.number(-4 if not dtype.startswith("u") else 0, 5), m.number(0, 5)))
    if m.opset < 11:
        m.node(op, [a], min=float(low) if m.chance(0.7) else None, max=float(high) if m.chance(0.7) else None)
        return
    bounds = [m.given(b, dtype, constant=0.6) if m.chance(0.75) else "" for b in (low, high)]
    m.node(op, [a, *bounds])


def cast(m: Maker, op: str) -> None:
    """A cast to any type; from floats to integers what the integer can hold."""
    to = m.type(op, 0) if m.chance(0.2) else m.one([n for n in NAMES.values() if NAMES_ALLOWED(m, op, n)])
    types = m.types(op, 0)
    if to in INTS:
        a = m.any([t for t in types if t not in FLOATS] or types, fill=normal) if m.chance(0.5) else m.new(
            m.one([t for t in types if t in FLOATS]), m.shape(), castable(to))
    else:
        a = m.any(types, fill=special)
    if op == "Cast":
        m.node(op, [a], to=DATA_TYPES[to])
    else:
        m.node(op, [a, m.tensor(to, m.shape(0, 3))])


def NAMES_ALLOWED(m: Maker, op: str, name: str) -> bool:
    return name in m.types(op, 0)


def castable(to: str) -> Fill:
    def fill(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
        low = 0 if to.startswith("u") else -100
        return (rng.uniform(low, 120, shape) if rng.random() < 0.5 else rng.uniform(low and -2, 3, shape)).astype(
            small(rng, dtype, ()).dtype)

    return fill


def unspecified_cast(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """Floats that no element of the integer type equals after truncation."""
    x = operands[0]
    to = operands[1].dtype if node.op_type == "CastLike" else onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
    if to.kind not in "iu" or x.dtype.kind in "iub":
        return np.zeros(x.shape, bool)
    wide, info = np.trunc(x.astype(np.float64)), np.iinfo(to)
    return ~(np.isfinite(wide) & (wide >= float(info.min)) & (wide < float(info.max) + (0 if info.bits == 64 else 1)))


def bit_cast(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), fill=normal)
    width = m.values[a].dtype.itemsize
    same = [n for n in m.types(op, 0) if np.zeros(0, small(m.rng, n, ()).dtype if n != "bool" else bool).itemsize == width
            and (n == "bool") == (m.dtype_of(a) == "bool")]
    m.node(op, [a], to=DATA_TYPES[m.one(same)])


def softmax(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), low=1, fill=normal)
    rank = len(m.shape_of(a))
    if 0 in m.shape_of(a):
        raise SkipError("a softmax of nothing")
    if m.opset >= 11:
        m.node(op, [a], axis=m.axis(rank))
    else:  # without an axis it is 1, which a single dimension does not have
        m.node(op, [a], axis=m.number(0, rank - 1) if rank < 2 or m.chance(0.8) else None)


def dropout(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0), fill=special)
    if m.opset < 12:
        m.node(op, [a], 1, ratio=m.real(0, 0.9) if m.chance(0.5) else None)
        return
    ratio = m.given(m.real(0, 0.9), m.one([t for t in m.types(op, 1) if t != "bfloat16"])) if m.chance(0.6) else ""
    mode = m.given(False, "bool") if m.chance(0.4) else ""
    m.node(op, [a, ratio, mode], 2, wanted=(True, m.chance(0.3)))


def swiglu(m: Maker, op: str) -> None:
    a = m.any(m.types(op, 0))
    m.node(op, [a, m.tensor(m.dtype_of(a), m.shape_of(a))], alpha=m.real(-2, 2) if m.chance(0.5) else None)


def beyond_small(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """Integers near the ends of their type, which a bias may carry over."""
    x = operands[0]
    return abs(x.astype(np.float64)) > 100 if x.dtype.kind in "iu" else np.zeros(x.shape, bool)


def real(low: float, high: float) -> Any:
    return lambda m: m.real(low, high)


EXACT = Entry(unary(), ulps=0)
FUNCTION = Entry(unary(), ulps=4)
LOGIC = Entry(binary(), ulps=0)

OPERATORS: dict[str, Entry] = {
    **dict.fromkeys(("Abs", "Ceil", "Floor", "Identity", "IsNaN", "Neg", "Not", "BitwiseNot", "Relu", "Round", "Sign"), EXACT),
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Log", "Sigmoid", "Sin", "Sinh",
                     "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Reciprocal", "Mish"), FUNCTION),
    "IsInf": Entry(unary(detect_negative=lambda m: m.number(0, 1), detect_positive=lambda m: m.number(0, 1)), ulps=0),
    "Celu": Entry(unary(alpha=real(0.1, 3)), ulps=4, within=3),
    "Elu": Entry(unary(alpha=real(-1, 3)), ulps=4, within=3),
    "HardSigmoid": Entry(unary(alpha=real(-1, 1), beta=real(-1, 1)), ulps=4, spread=2),
    "LeakyRelu": Entry(unary(alpha=real(-1, 1))),
    "Selu": Entry(unary(alpha=real(0, 3), gamma=real(0, 3)), ulps=4, within=9),
    "Shrink": Entry(unary(lambd=real(0, 1), bias=real(-1, 1)), unspecified=beyond_small),
    "ThresholdedRelu": Entry(unary(alpha=real(-1, 1)), ulps=0),
    "Gelu": Entry(unary(approximate=lambda m: m.one(("none", "tanh"))), ulps=6, spread=2, within=2, precision="float32"),
    "HardSwish": Entry(unary(), ulps=4, precision="float32"),
    "Swish": Entry(unary(alpha=real(-2, 2)), ulps=6, spread=1),
    "SwiGLU": Entry(swiglu, ulps=6, spread=1),
    **dict.fromkeys(("Add", "Sub", "Mul"), Entry(binary(), ulps=1)),
    "Div": Entry(binary(divisors, reuse=False), ulps=1),
    "Mod": Entry(modulo, ulps=1),
    "Pow": Entry(power, ulps=8),
    "PRelu": Entry(prelu, ulps=1),
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "BitwiseAnd", "BitwiseOr",
                     "BitwiseXor"), LOGIC),
    "BitShift": Entry(shift, ulps=0),
    **dict.fromkeys(("Max", "Min"), Entry(variadic, ulps=0)),
    **dict.fromkeys(("Sum", "Mean"), Entry(variadic, ulps=2, spread=2)),
    "Where": Entry(where, ulps=0),
    "Clip": Entry(clip, ulps=0),
    "Cast": Entry(cast, ulps=1, unspecified=unspecified_cast, weight=3),
    "CastLike": Entry(cast, ulps=1, unspecified=unspecified_cast),
    "BitCast": Entry(bit_cast, ulps=0, wide=False),
    "Softmax": Entry(softmax, ulps=8, spread=2),
    "LogSoftmax": Entry(softmax, ulps=8, spread=2, within=2),
    "Hardmax": Entry(softmax, ulps=0),
    "Dropout": Entry(dropout, ulps=0),
}
