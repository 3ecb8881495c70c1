"""Normalisation against the reference."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.normalize import Normalize

TEMPLATE = Normalize()
N, H = symbol("n"), symbol("h")


def layer(shape, axes, mode="layer", dtype="f32", **more):
    return harness.problem("normalize", {"x": (dtype, shape)}, (dtype, shape), axes=tuple(axes), mode=mode, epsilon=1e-5, **more)


@pytest.mark.parametrize("axes", [a for n in range(1, 5) for a in combinations(range(4), n)], ids=str)
@pytest.mark.parametrize("mode", ["layer", "rms"])
def test_axes(axes, mode):
    problem = layer((3, 4, 2, 45), axes, mode)
    for isa in ("sse4", "avx2"):
        harness.check(TEMPLATE, problem, on=harness.device(isa), pitch={"x": 49, "y": 47}, tolerance=1e-4, absolute=1e-5)


@pytest.mark.parametrize("sizes", [{"n": 1, "h": 5}, {"n": 4, "h": 33}, {"n": 0, "h": 3}], ids=str)
def test_symbols(sizes):
    for axes in ((1,), (2,), (0, 2), (1, 2)):
        harness.check(TEMPLATE, layer((N, 6, H), axes), sizes=sizes, tolerance=1e-4, absolute=1e-5)
        harness.check(TEMPLATE, layer((N, H, 6), axes, "rms"), sizes=sizes, tolerance=1e-4, absolute=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype):
    harness.check(TEMPLATE, layer((3, 70), (1,), dtype=dtype))
    harness.check(TEMPLATE, layer((30, 7), (0,), dtype=dtype), absolute=1e-2 if dtype == "bf16" else 1e-5)


def test_scale_bias_and_residual():
    expression = harness.chain(["f32", "f32", "f32", "f32"], ("mul", 0, 1), ("add", 4, 2), ("add", 5, 3))
    extra = {"s": ("f32", (384,)), "b": ("f32", (384,)), "r": ("f32", (2, 5, 384))}
    harness.check(TEMPLATE, layer((2, 5, 384), (2,), expression=expression, extra=extra), tolerance=1e-4, absolute=1e-5)
    harness.check(TEMPLATE, layer((2, 5, 384), (1,), expression=expression, extra=extra), tolerance=1e-4, absolute=1e-5)


def test_a_large_mean_costs_no_accuracy():
    x = (np.random.default_rng(0).standard_normal((4, 1000)) + 10000).astype(np.float32)
    got = harness.run(TEMPLATE, layer((4, 1000), (1,)), {"x": x})["y"]
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, wanted, atol=2e-3)


def test_in_place():
    for axes in ((2,), (1,), (0, 2)):
        harness.check_in_place(TEMPLATE, layer((4, 9, 33), axes), "x")
    expression = harness.chain(["f32", "f32"], ("add", 0, 1))
    problem = layer((4, 9, 33), (2,), expression=expression, extra={"r": ("f32", (4, 9, 33))})
    harness.check_in_place(TEMPLATE, problem, "r")


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for axes in ((1,), (2,), (0, 2)):
        calls = TEMPLATE.build(layer((3, 40, 19), axes), {}, device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
