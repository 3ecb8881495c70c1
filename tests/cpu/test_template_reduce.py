"""Reductions against the reference: operations, dims, types, symbols, parts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.reduce import OPERATIONS, Reduce

TEMPLATE = Reduce()
N, H = symbol("n"), symbol("h")


def layer(shape, axes, op="sum", dtype="f32", expression=None, extra=None):
    out = tuple(1 if i in axes else d for i, d in enumerate(shape))
    return harness.problem("reduce", {"x": (dtype, shape)}, (dtype, out), op=op, axes=tuple(axes), expression=expression, extra=extra)


@pytest.mark.parametrize("axes", [a for n in range(5) for a in combinations(range(4), n)], ids=str)
@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_axes(axes, isa):
    for shape in ((3, 5, 2, 37), (2, 1, 3, 1), (1, 6, 1, 9)):
        harness.check(TEMPLATE, layer(shape, axes, "mean"), on=harness.device(isa), pitch={"x": shape[-1] + 3})


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("op", OPERATIONS)
def test_operations(op, axes):
    problem = layer((9, 45), axes, op)
    inputs = harness.random_inputs(problem)
    if op in ("log_sum", "prod"):
        inputs["x"] = np.abs(inputs["x"]) + np.float32(0.1)
    for parts in (1, 4):
        if op != "log_sum_exp" or parts == 1:
            harness.check(TEMPLATE, problem, inputs, config={"parts": parts})


@pytest.mark.parametrize("dtype", ["f16", "f64", "i32", "i64", "u8", "i8", "bool"])
@pytest.mark.parametrize("op", ["sum", "max", "min", "mean", "prod", "l1"])
def test_types(op, dtype):
    if dtype == "bool" and op not in ("max", "min"):
        return
    for axes in ((0,), (1,)):
        harness.check(TEMPLATE, layer((4, 50), axes, op, dtype), tolerance=1e-4)


@pytest.mark.parametrize("sizes", [{"n": 1, "h": 1}, {"n": 3, "h": 40}, {"n": 2, "h": 0}, {"n": 0, "h": 3}], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (1, 2), (0, 2)], ids=str)
def test_symbols(axes, sizes):
    harness.check(TEMPLATE, layer((N, H, 11), axes), sizes=sizes)
    harness.check(TEMPLATE, layer((N, 11, H), axes, "max"), sizes=sizes)


@pytest.mark.parametrize("shape, axes", [((2, 30, 40, 65), (1, 2)), ((5000,), (0,)), ((70, 300), (0, 1)), ((1, 9, 1100), (2,))], ids=str)
def test_parts(shape, axes):
    for parts in (1, 4, 16):
        harness.check(TEMPLATE, layer(shape, axes, "mean"), config={"parts": parts})


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("add", 0, 1), ("sqrt", 2))
    problem = layer((3, 40, 19), (1,), "sum_square", expression=expression, extra={"e": ("f32", (19,))})
    inputs = harness.random_inputs(problem)
    inputs["e"] = np.abs(inputs["e"])
    for parts in (1, 4):
        harness.check(TEMPLATE, problem, inputs, config={"parts": parts}, pitch={"y": 23})
    problem = layer((3, 40, 19), (1, 2), "sum_square", expression=expression, extra={"e": ("f32", (3, 1, 1))})
    inputs["e"] = np.ones((3, 1, 1), np.float32)
    for parts in (1, 4):
        harness.check(TEMPLATE, problem, inputs, config={"parts": parts})


def test_special_numbers():
    x = np.zeros((4, 33), np.float32)
    x[1, 5], x[2, 7], x[3] = np.nan, np.inf, -np.inf
    for op in ("max", "min", "log_sum_exp", "sum"):
        for axes in ((0,), (1,)):
            harness.check(TEMPLATE, layer((4, 33), axes, op), {"x": x})


def test_long_sums_are_accurate():
    x = np.random.default_rng(0).random((1, 200, 200, 3)).astype(np.float32)
    got = harness.run(TEMPLATE, layer((1, 200, 200, 3), (1, 2), "mean"), {"x": x})["y"]
    np.testing.assert_allclose(got, x.astype(np.float64).mean((1, 2), keepdims=True), rtol=2e-6)


def test_scalar():
    for op in ("sum", "l2", "mean", "max"):
        harness.check(TEMPLATE, layer((), (), op))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for axes in ((1,), (2,), (0, 2)):
        calls = TEMPLATE.build(layer((3, 40, 19), axes), {"parts": 4}, device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
