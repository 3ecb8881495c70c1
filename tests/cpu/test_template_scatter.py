"""Scatter, running totals and the best k against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.sizes import symbol
from sartor.templates.cumulative import Cumulative
from sartor.templates.scatter import Scatter
from sartor.templates.topk import TopK

N, H, K = symbol("n"), symbol("h"), symbol("k")


def scatter(shape, count, op="none", dtype="f32"):
    return harness.problem("scatter", {"x": (dtype, shape), "i": ("i64", (count,)), "u": (dtype, (count, shape[1]))}, (dtype, shape),
                           op=op)


def placed(problem, sizes=None, low=0):
    inputs = harness.random_inputs(problem, sizes)
    size = inputs["x"].shape[0]
    return inputs | {"i": np.random.default_rng(1).integers(-low, size + low, inputs["i"].shape)}


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("op", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("shape", [(7, 1), (5, 19), (1, 3), (3000, 9)], ids=str)
def test_scatter(shape, op, isa):
    problem = scatter(shape, 11, op)
    harness.check(Scatter(), problem, placed(problem), on=harness.device(isa))


@pytest.mark.parametrize("dtype", ["f16", "f64", "i64", "u8"])
def test_scatter_types(dtype):
    for op in ("none", "add", "max"):
        problem = scatter((6, 5), 9, op, dtype)
        harness.check(Scatter(), problem, placed(problem), absolute=1e-2 if dtype == "f16" else 1e-6)
    problem = scatter((6, 5), 9, "none", "bool")
    harness.check(Scatter(), problem, placed(problem))


def test_scatter_sizes_and_places_outside():
    problem = scatter((N, H), K, "add")
    for sizes in ({"n": 4, "h": 9, "k": 5}, {"n": 0, "h": 3, "k": 2}, {"n": 3, "h": 2, "k": 0}):
        harness.check(Scatter(), problem, placed(problem, sizes, low=4), sizes)
    far = placed(scatter((4, 3), 3)) | {"i": np.array([2**62, -(2**62), -1])}
    harness.check(Scatter(), scatter((4, 3), 3), far)
    harness.check_in_place(Scatter(), scatter((40, 7), 3, "add"), "x")


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_cumulative(axis, op, exclusive, reverse, isa):
    problem = harness.problem("cumulative", {"x": ("f32", (5, N, 21))}, ("f32", (5, N, 21)), axis=axis, op=op, exclusive=exclusive,
                              reverse=reverse)
    harness.check(Cumulative(), problem, sizes={"n": 9}, on=harness.device(isa), tolerance=1e-4)
    harness.check_in_place(Cumulative(), problem, "x", {"n": 4})


@pytest.mark.parametrize("dtype", ["f16", "f64", "i32", "i64", "u8"])
def test_cumulative_types(dtype):
    problem = harness.problem("cumulative", {"x": (dtype, (3, 40))}, (dtype, (3, 40)), axis=1, op="sum", exclusive=False, reverse=False)
    harness.check(Cumulative(), problem, absolute=1e-2 if dtype == "f16" else 1e-6)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("count", [0, 1, 4, 9])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_topk(axis, count, largest):
    shape = [5, 3, 6]
    shape[axis] = 9
    out = [count if i == axis else d for i, d in enumerate(shape)]
    for dtype in ("f32", "i8", "f16", "i64"):  # small integers have many equals
        problem = harness.problem("topk", {"x": (dtype, shape)}, ("i64", out), axis=axis, largest=largest)
        harness.check(TopK(), problem)
    inputs = harness.random_inputs(problem := harness.problem("topk", {"x": ("f32", shape)}, ("i64", out), axis=axis, largest=largest))
    inputs["x"].flat[::4] = np.nan
    inputs["x"].flat[1::7] = -0.0
    inputs["x"].flat[2::5] = 0.0
    harness.check(TopK(), problem, inputs)


@pytest.mark.parametrize("largest", [False, True])
def test_topk_long(largest):
    problem = harness.problem("topk", {"x": ("i32", (3, N))}, ("i64", (3, K)), axis=1, largest=largest)
    for count in (10, 3000):
        harness.check(TopK(), problem, sizes={"n": 3000, "k": count})
