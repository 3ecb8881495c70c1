"""Arithmetic of 16-bit floats is done in f32 and rounded once at the end: held to float64, in units of the last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.ops_harness import make_model

import sartor
from sartor.types import to_numpy

UNARY = ["Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish",
         "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
         "Tan", "Tanh"]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"]
REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
HALF = pytest.mark.parametrize("name", ["f16", "bf16"])


def units_off(got, exact):
    """How far each element is from the exact one, in the last place of its type; 0 for the same infinity or NaN."""
    info, exact = ml_dtypes.finfo(got.dtype), np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        rounded, found = exact.astype(got.dtype).astype(np.float64), got.astype(np.float64)
        place = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), float(info.smallest_normal)))) - info.nmant)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        return np.where(same, 0, np.where(np.isfinite(found) & np.isfinite(rounded), np.abs(found - exact) / place, np.inf))


def check(nodes, feeds, constants, units=0.52, opset=22):
    """Outputs of single nodes within `units` of what they are in float64."""
    outputs = [n.output[0] for n in nodes]
    program = sartor.compile(make_model(nodes, feeds, outputs, constants, opset=opset))
    assert not program.fallbacks
    got = sartor.Session(program).run(feeds)
    wide = [{k: v if v.dtype.kind in "iub" else v.astype(np.float64) for k, v in arrays.items()} for arrays in (feeds, constants)]
    with np.errstate(all="ignore"):
        exact = ReferenceEvaluator(make_model(nodes, wide[0], outputs, wide[1], opset=opset)).run(None, wide[0])
    for output, value in zip(outputs, exact, strict=True):
        off = units_off(got[output], value)
        at = np.unravel_index(off.argmax(), off.shape)
        assert off[at] <= units, f"{output}: {got[output][at]} for {np.asarray(value)[at]}, {off[at]:.3f} units off"


@HALF
def test_elements(name):
    """Also a rounding from f64 by way of f32, which LLVM would make a call of a library."""
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.standard_normal(500) * 2, rng.standard_normal(200) * 0.01, [0, 1, -1, 6e4, -6e4, np.inf, -np.inf, np.nan, 11, -17]])
    x = numbers.astype(to_numpy(name))
    z = np.roll(np.where(numbers == 0, 1, numbers), 77).astype(to_numpy(name))
    nodes = [oh.make_node(op, ["x"], [op]) for op in UNARY]
    nodes += [oh.make_node(op, ["Abs" if op == "Pow" else "x", "z"], [op]) for op in BINARY]
    check(nodes, {"x": x, "z": z}, {})


@HALF
def test_reductions_accumulate_in_single_precision(name):
    """Sums of squares pass the largest f16 long before their root does."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((5, 700)) + 0.5).astype(to_numpy(name))
    large = (np.abs(rng.standard_normal((3, 300))) * 300).astype(to_numpy(name))
    nodes = [oh.make_node(op, ["x", f"a{axis}"], [f"{op}{axis}"]) for op in REDUCTIONS for axis in (0, 1)]
    nodes += [oh.make_node(op, ["large", "a1"], [f"{op}.large"]) for op in ("ReduceMean", "ReduceL2", "ReduceLogSumExp")]
    nodes += [oh.make_node("Softmax", ["x"], ["softmax"]), oh.make_node("LpNormalization", ["large"], ["normalised"])]
    check(nodes, {"x": x, "large": large}, {"a0": np.array([0]), "a1": np.array([1])}, units=0.55)


@HALF
@pytest.mark.parametrize("constant", [True, False])
def test_batch_normalisation_keeps_its_scales_in_single_precision(name, constant):
    rng = np.random.default_rng(3)
    x, *parts = (rng.standard_normal(s).astype(to_numpy(name)) for s in ((2, 4, 9, 9), 4, 4, 4, 4))
    parts = dict(zip("sbmv", [*parts[:3], np.abs(parts[3])], strict=True))
    node = oh.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    feeds, constants = ({"x": x}, parts) if constant else ({"x": x, **parts}, {})
    check([node], feeds, constants, units=0.6)


@HALF
def test_recurrent_states_are_rounded_when_all_are_known(name):
    rng = np.random.default_rng(4)
    x, w, r, b = (rng.standard_normal(s).astype(to_numpy(name)) for s in ((9, 3, 16), (1, 15, 16), (1, 15, 5), (1, 30)))
    check([oh.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=5)], {"x": x}, {"w": w, "r": r, "b": b}, units=0.6)
    check([oh.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=5)], {"x": x, "w": w, "r": r, "b": b}, {}, units=0.6)
