"""Every operation of the element-wise language, in vectors and single elements, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.graph.expression import ExpressionBuilder
from sartor.templates.elementwise import Elementwise

TEMPLATE = Elementwise()
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 2.5, 7.0, np.inf, -np.inf, np.nan]
UNARY = ["neg", "abs", "sqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
         "asinh", "acosh", "atanh", "floor", "ceil", "round", "sign", "reciprocal", "softplus", "relu", "is_nan"]
BINARY = ["add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod", "atan2", "eq", "ne", "lt", "le", "gt", "ge"]
INTEGER = ["add", "sub", "mul", "div", "min", "max", "mod", "fmod", "eq", "lt", "bit_and", "bit_or", "bit_xor", "shift_left",
           "shift_right"]


def single(op, dtypes, arrays, **options):
    builder = ExpressionBuilder(dtypes)
    expression = builder.finish(builder(op, *range(len(dtypes)), **options))
    inputs = {f"x{i}": (t, a.shape) for i, (t, a) in enumerate(zip(dtypes, arrays, strict=True))}
    problem = harness.problem("elementwise", inputs, (expression.dtype, arrays[0].shape), expression=expression)
    return problem, {f"x{i}": a for i, a in enumerate(arrays)}


def numbers(dtype, seed=0):
    array = np.random.default_rng(seed).normal(0, 3, 61)
    array[:len(SPECIAL)] = SPECIAL
    array[40:52] = np.roll(SPECIAL, seed)
    return array.astype(harness.to_numpy(dtype))


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("op", UNARY)
def test_one_argument(op, isa):
    for dtype in ("f32", "f64") if isa == "avx2" else ("f32",):
        problem, inputs = single(op, [dtype], [numbers(dtype)])
        harness.check(TEMPLATE, problem, inputs, on=harness.device(isa), tolerance=1e-6, absolute=1e-37)


@pytest.mark.parametrize("op", BINARY)
def test_two_arguments(op):
    pairs = np.meshgrid(SPECIAL, SPECIAL)
    for dtype in ("f32", "f64", "f16"):
        a, b = (np.concatenate([p.ravel(), numbers("f64", 5 + i)]).astype(harness.to_numpy(dtype)) for i, p in enumerate(pairs))
        problem, inputs = single(op, [dtype, dtype], [a, b])
        harness.check(TEMPLATE, problem, inputs, tolerance=1e-6, absolute=1e-37)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("op", ["add", "mul", "div", "min", "max", "lt", "ge"])
def test_a_constant_of_any_kind_on_either_side(op, first):
    x = numbers("f32")
    for value in SPECIAL:
        builder = ExpressionBuilder(["f32"])
        constant = builder.constant(value, "f32")
        expression = builder.finish(builder(op, *((constant, 0) if first else (0, constant))))
        problem = harness.problem("elementwise", {"x0": ("f32", x.shape)}, (expression.dtype, x.shape), expression=expression)
        harness.check(TEMPLATE, problem, {"x0": x}, tolerance=1e-6, absolute=1e-37)


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8", "u32"])
@pytest.mark.parametrize("op", INTEGER)
def test_integers(op, dtype):
    info = np.iinfo(harness.to_numpy(dtype))
    values = np.array([0, 1, 2, 3, 7, info.max, info.min, 100, max(info.min, -1), max(info.min, -7)], info.dtype)
    a, b = (g.ravel().copy() for g in np.meshgrid(values, values))
    if op in ("div", "mod", "fmod"):
        b[b == 0] = 3
        if info.min < 0:
            a[(a == info.min) & (b == -1)] = 5
    if op.startswith("shift"):
        b = np.abs(b.astype(np.float64)).clip(0, 100).astype(info.dtype)
    problem, inputs = single(op, [dtype, dtype], [a, b])
    harness.check(TEMPLATE, problem, inputs)


@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
def test_division_by_zero_traps_nowhere(op):
    a, b = np.array([5, np.iinfo(np.int32).min, 7], np.int32), np.array([0, -1, 0], np.int32)
    problem, inputs = single(op, ["i32", "i32"], [a, b])
    assert harness.run(TEMPLATE, problem, inputs)["y"][0] == 0


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
def test_integer_power(dtype):
    bases, exponents = np.array([0, 1, 2, 3, 7], dtype=harness.to_numpy(dtype)), np.array([0, 1, 2, 5, 40], harness.to_numpy(dtype))
    a, b = (g.ravel().copy() for g in np.meshgrid(bases, exponents))
    problem, inputs = single("pow", [dtype, dtype], [a, b])
    harness.check(TEMPLATE, problem, inputs)


@pytest.mark.parametrize("op", ["and", "or", "xor", "add", "mul", "min", "max", "eq"])
def test_booleans(op):
    a, b = np.array([False, True, False, True] * 20), np.array([False, False, True, True] * 20)
    problem, inputs = single(op, ["bool", "bool"], [a, b])
    harness.check(TEMPLATE, problem, inputs)
    problem, inputs = single("not", ["bool"], [a])
    harness.check(TEMPLATE, problem, inputs)


@pytest.mark.parametrize("which", ["both", "positive", "negative"])
def test_is_inf(which):
    problem, inputs = single("is_inf", ["f32"], [numbers("f32")], value=which)
    harness.check(TEMPLATE, problem, inputs)


@pytest.mark.parametrize("dtypes", [("f32", "i64"), ("i64", "f32"), ("f32", "bool"), ("bool", "f32"), ("u8", "f16"), ("i8", "i64"),
                                    ("i64", "i8"), ("f64", "f32"), ("f16", "bf16"), ("i32", "bool")], ids=str)
def test_casts(dtypes):
    source, to = dtypes
    array = np.random.default_rng(0).integers(0 if source[0] in "ub" else -100, 100, 70)
    array = array.astype(harness.to_numpy(source))
    problem, inputs = single("cast", [source], [array], dtype=to)
    harness.check(TEMPLATE, problem, inputs)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5, 2.5])
def test_constant_powers(exponent):
    array = np.abs(numbers("f32"))
    expression = harness.chain(["f32"], ("pow", 0, exponent))
    problem = harness.problem("elementwise", {"x": ("f32", array.shape)}, ("f32", array.shape), expression=expression)
    harness.check(TEMPLATE, problem, {"x": array}, tolerance=1e-6)


def test_nan_survives_clipping():
    expression = harness.chain(["f32"], ("max", 0, -1.0), ("min", 1, 1.0))
    array = numbers("f32")
    problem = harness.problem("elementwise", {"x": ("f32", array.shape)}, ("f32", array.shape), expression=expression)
    harness.check(TEMPLATE, problem, {"x": array})
