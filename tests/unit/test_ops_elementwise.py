"""Element-wise operators against onnx's reference."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import RNG, check, kinds, lower_model, make_model, rand

from sartor.graph.reference import evaluate_graph

X = rand(2, 3, 4)
POSITIVE = np.abs(X) + 0.5


@pytest.mark.parametrize("op", ["Abs", "Atan", "Asinh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Neg", "Relu", "Round",
                                "Sigmoid",
                                "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh", "HardSwish", "Mish", "Identity"])
def test_functions_of_one_variable(op):
    check(op, {"x": X})


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal", "Acosh"])
def test_functions_of_positive_numbers(op):
    check(op, {"x": POSITIVE + 0.6})


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atanh"])
def test_functions_of_fractions(op):
    check(op, {"x": np.tanh(X) * 0.9})


@pytest.mark.parametrize(("op", "attributes"), [
    ("LeakyRelu", {}), ("LeakyRelu", {"alpha": 0.3}), ("Elu", {}), ("Elu", {"alpha": 2.0}), ("Selu", {}),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}), ("Celu", {}), ("Celu", {"alpha": 0.5}), ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("ThresholdedRelu", {"alpha": 0.5}), ("Shrink", {"bias": 0.2, "lambd": 0.6}),
])
def test_activations(op, attributes):
    check(op, {"x": X}, **attributes)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check("Gelu", {"x": X}, opset=20, approximate=approximate)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swish(alpha):
    check("Swish", {"x": X}, opset=24, alpha=alpha, expected=[X / (1 + np.exp(-alpha * X))])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (3, 1), (1, 1, 1), (), (5, 2, 3, 4)])
def test_arithmetic_broadcasts(op, shape):
    check(op, {"x": X, "y": rand(*shape) + 3}, symbolic=False)
    check(op, {"x": X}, {"c": rand(*shape) + 3})


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float64, np.float16])
def test_arithmetic_keeps_the_type(dtype):
    a, b = np.array([7, 9, 30], dtype), np.array([2, 4, 7], dtype)
    for op in ("Add", "Sub", "Mul", "Div"):
        check(op, {"a": a, "b": b})


def test_integer_division_goes_toward_zero():
    check("Div", {"a": np.array([-7, 7, -7], np.int32), "b": np.array([2, -2, -2], np.int32)},
          expected=[np.array([-3, -3, 3], np.int32)])


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_operands(op, count):
    check(op, {f"x{i}": rand(2, 3) for i in range(count)}, symbolic=False)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 1.7])
def test_powers(exponent):
    check("Pow", {"x": POSITIVE}, {"e": np.array(exponent, np.float32)})


def test_powers_of_other_types():
    check("Pow", {"x": POSITIVE}, {"e": np.array([2, 3, 1, 0], np.int64)})
    check("Pow", {"x": np.array([2, 3, 5], np.int64)}, {"e": np.array([3, 2, 1], np.int64)})
    check("Pow", {"x": POSITIVE, "e": rand(3, 1)}, symbolic=False)


@pytest.mark.parametrize(("dtype", "fmod"), [(np.int32, 0), (np.int64, 1), (np.float32, 1)])
def test_remainders(dtype, fmod):
    check("Mod", {"a": np.array([-7, 7, -7, 7]).astype(dtype), "b": np.array([3, -3, -3, 3]).astype(dtype)}, fmod=fmod)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op):
    check(op, {"a": rand(2, 3, dtype=np.int64), "b": rand(2, 3, dtype=np.int64)})


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(op):
    check(op, {"a": X > 0, "b": rand(3, 4) > 0}, symbolic=False)
    check("Not", {"a": X > 0})


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits(op):
    check(op, {"a": rand(5, dtype=np.int32), "b": rand(5, dtype=np.int32)})
    check("BitwiseNot", {"a": rand(5, dtype=np.uint8)})


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(direction):
    by = np.array([0, 1, 7, 8, 31], np.uint32)
    check("BitShift", {"a": np.array([255, 3, 1 << 20, 99, 1 << 31], np.uint32), "b": by}, direction=direction)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_outside_of_the_width_leave_the_sign(direction, dtype):
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, info.max - 3, 5, info.min, 0], dtype)[:, None]
    b = np.array([0, 1, info.bits - 1, info.bits, info.max, max(info.min, -1), info.min], dtype)
    check("BitShift", {"a": a, "b": b}, opset=28, symbolic=False, direction=direction)


def test_shifts_by_the_width_leave_nothing():
    a, b = np.array([255, 3, 128], np.uint8), np.array([8, 200, 7], np.uint8)
    check("BitShift", {"a": a, "b": b}, direction="RIGHT", expected=[np.array([0, 0, 1], np.uint8)])
    check("BitShift", {"a": a, "b": b}, direction="LEFT", expected=[np.array([0, 0, 0], np.uint8)])


def test_where_and_special_numbers():
    check("Where", {"c": X > 0, "a": X, "b": rand(4)}, symbolic=False)
    odd = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    check("IsNaN", {"x": odd})
    for negative in (0, 1):
        for positive in (0, 1):
            check("IsInf", {"x": odd}, detect_negative=negative, detect_positive=positive)


@pytest.mark.parametrize(("source", "target", "number"), [
    (np.float32, np.int64, 7), (np.int64, np.float32, 1), (np.float32, np.float16, 10), (np.int32, np.bool_, 9),
    (np.bool_, np.float32, 1), (np.uint8, np.int32, 6), (np.float32, np.float32, 1),
])
def test_casts(source, target, number):
    x = (X * 3).astype(source)
    check("Cast", {"x": x}, to=number)
    check("CastLike", {"x": x}, {"like": np.zeros(1, target)}, opset=19)


@pytest.mark.parametrize("names", [["x", "low", "high"], ["x", "low"], ["x", "", "high"], ["x"]])
def test_clip(names):
    bounds = {"low": np.array(-0.5, np.float32), "high": np.array(0.7, np.float32)}
    constants = {n: bounds[n] for n in names if n in bounds}
    check("Clip", {"x": X}, constants, order=names)
    check("Clip", {"x": X, **constants}, order=names)


def test_clip_of_older_opsets():
    check("Clip", {"x": X}, opset=6, min=-0.5, max=0.5, expected=[np.clip(X, -0.5, 0.5)])
    check("Clip", {"x": X}, opset=10, max=0.5, expected=[np.minimum(X, 0.5)])


@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 4)])
def test_prelu(shape):
    check("PRelu", {"x": X}, {"slope": rand(*shape)})


def test_alignment_of_opset_6():
    y = rand(3)
    check("Add", {"x": X}, {"y": y}, opset=6, broadcast=1, axis=1, expected=[X + y[:, None]])


def test_scalars_go_into_the_expression():
    graph = check("Mul", {"x": X}, {"c": np.array([[2.5]], np.float32)})
    layer, = graph.layers
    assert layer.inputs == ("x",)
    assert str(layer.expression) == "mul(x0, 2.5)"
    assert kinds(graph) == ["elementwise"]


def test_one_operand_twice_is_read_once():
    graph = check("Mul", {"x": X}, order=["x", "x"])
    assert graph.layers[0].inputs == ("x",)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_a_thousand_operands_are_taken_a_few_at_a_time(op):
    rows = RNG.integers(-9, 9, (1000, 3)).astype(np.float32)
    nodes = [oh.make_node("Mul", ["x", f"k{i}"], [f"v{i}"]) for i in range(1000)] + [oh.make_node(op, [f"v{i}" for i in range(1000)], ["y"])]
    model = make_model(nodes, {"x": np.ones((2, 3), np.float32)}, ["y"], {f"k{i}": row for i, row in enumerate(rows)})
    wanted = {"Sum": rows.sum(0), "Mean": rows.mean(0), "Max": rows.max(0), "Min": rows.min(0)}[op]
    graph = lower_model(model)
    assert max(len(layer.inputs) for layer in graph.layers) <= 8
    np.testing.assert_allclose(evaluate_graph(graph, {"x": np.ones((2, 3), np.float32)})["y"], [wanted, wanted], rtol=1e-5)
