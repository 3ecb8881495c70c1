"""Softmax against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.softmax import Softmax

TEMPLATE = Softmax()
N, H = symbol("n"), symbol("h")


def layer(shape, axis, log=False, dtype="f32", **more):
    return harness.problem("softmax", {"x": (dtype, shape)}, (dtype, shape), axis=axis, log=log, **more)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (3, 64), (2, 5, 100), (2, 3, 1), (1, 1), (7,), (), (4, 1000)], ids=str)
def test_last_dim(shape, log, isa):
    harness.check(TEMPLATE, layer(shape, -1, log), on=harness.device(isa), pitch={"x": 1003, "y": 1001} if len(shape) > 1 else None)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 77), (2, 9, 1), (2, 1, 8), (1, 20, 64)], ids=str)
def test_other_dims(shape, log, axis):
    for isa in ("sse4", "avx2"):
        harness.check(TEMPLATE, layer(shape, axis, log), on=harness.device(isa), pitch={"x": shape[-1] + 2})


@pytest.mark.parametrize("sizes", [{"n": 1, "h": 1}, {"n": 4, "h": 33}, {"n": 0, "h": 3}], ids=str)
def test_symbols(sizes):
    for axis in range(3):
        harness.check(TEMPLATE, layer((N, 5, H), axis), sizes=sizes)
        harness.check(TEMPLATE, layer((5, N, H), axis, True), sizes=sizes)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype):
    harness.check(TEMPLATE, layer((3, 70), 1, dtype=dtype))
    harness.check(TEMPLATE, layer((3, 70), 0, dtype=dtype))


def test_large_and_infinite_numbers():
    x = np.random.default_rng(0).normal(0, 100, (5, 90)).astype(np.float32)
    x[1, 4], x[2, :80], x[3, 7] = 1e38, -np.inf, np.nan
    for axis in (0, 1):
        harness.check(TEMPLATE, layer((5, 90), axis), {"x": x})
    assert np.isnan(harness.run(TEMPLATE, layer((1, 9), 1), {"x": np.full((1, 9), -np.inf, np.float32)})["y"]).all()


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("mul", 0, 1))
    for axis in (0, 1, 2):
        harness.check(TEMPLATE, layer((3, 4, 21), axis, expression=expression, extra={"e": ("f32", (3, 1, 21))}))


def test_in_place():
    for shape in ((5, 7), (3, 200), (4, 9, 33)):
        for axis in (0, -1):
            for log in (False, True):
                harness.check_in_place(TEMPLATE, layer(shape, axis, log), "x")


def test_exponential_of_numbers_that_are_not_positive():
    x = np.linspace(-90, 0, 100001, dtype=np.float32).reshape(-1, 1)
    pairs = np.concatenate([x, np.zeros_like(x)], 1)
    got = harness.run(TEMPLATE, layer(pairs.shape, 1), {"x": pairs})["y"].astype(np.float64)
    wanted = np.exp(x[:, 0].astype(np.float64))
    np.testing.assert_allclose(got[:, 0] / got[:, 1], wanted, rtol=5e-7, atol=2e-38)


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for axis in (1, 2):
        calls = TEMPLATE.build(layer((3, 40, 19), axis), {}, device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
