"""Attention against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.attention import Attention

TEMPLATE = Attention()


def layer(batch, queries, keys, heads, groups, depth, values, mask=None, causal=False, dtype="f32", **more):
    inputs = {"q": (dtype, (batch, queries, heads, depth)), "k": (dtype, (batch, keys, groups, depth)),
              "v": (dtype, (batch, keys, groups, values)), "" if mask is None else "m": mask or ("", ())}
    return harness.problem("attention", inputs, (dtype, (batch, queries, heads, values)), scale=depth**-0.5, causal=causal, **more)


def feeds(problem, sizes=None):
    inputs = harness.random_inputs(problem, sizes)
    if "m" in inputs and inputs["m"].dtype == bool:
        inputs["m"][..., 0] = True
    return inputs


CASES = [(2, 7, 9, 3, 3, 8, 8), (1, 30, 33, 4, 2, 32, 32), (1, 1, 17, 2, 1, 5, 3), (2, 25, 25, 2, 2, 16, 24),
         (1, 50, 16, 1, 1, 64, 48), (1, 3, 1, 2, 2, 4, 16)]


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_sizes(sizes, isa):
    for causal in (False, True):
        if causal and sizes[1] > sizes[2]:
            continue
        problem = layer(*sizes, causal=causal)
        pitch = {"q": sizes[5] + 3, "k": sizes[5] + 2, "v": sizes[6] + 1, "y": sizes[6] + 4}
        harness.check(TEMPLATE, problem, feeds(problem), on=harness.device(isa), pitch=pitch)


@pytest.mark.parametrize("shape", [(2, 3, 20, 21), (2, 1, 1, 21), (1, 3, 20, 1), (20, 21), (21,), (3, 1, 21), (2, 1, 20, 21)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bool"])
def test_masks(shape, dtype):
    for isa in ("sse4", "avx2"):
        problem = layer(2, 20, 21, 3, 1, 16, 16, mask=(dtype, shape), causal=len(shape) == 1)
        harness.check(TEMPLATE, problem, feeds(problem), on=harness.device(isa))


def test_symbols():
    b, s, t = symbol("b"), symbol("s"), symbol("t")
    problem = layer(b, s, t, 2, 2, 16, 16, mask=("f32", (b, 1, 1, t)))
    for sizes in ({"b": 1, "s": 1, "t": 1}, {"b": 2, "s": 40, "t": 19}, {"b": 0, "s": 3, "t": 4}):
        harness.check(TEMPLATE, problem, feeds(problem, sizes), sizes)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype):
    for values in (20, 16):
        problem = layer(1, 20, 21, 3, 1, 15, values, mask=(dtype, (20, 21)), dtype=dtype)
        harness.check(TEMPLATE, problem, feeds(problem))


def test_epilogue_and_configurations():
    expression = harness.chain(["f32", "f32"], ("mul", 0, 1))
    problem = layer(1, 29, 21, 3, 1, 16, 32, expression=expression, extra={"e": ("f32", (32,))})
    for tile in ("6x2", "4x3", "12x1"):
        for tiles in (1, 4):
            harness.check(TEMPLATE, problem, feeds(problem), config={"tile": tile, "tiles": tiles})


def test_a_query_that_sees_nothing_is_nan():
    problem = layer(1, 4, 5, 1, 1, 8, 16, mask=("bool", (4, 5)))
    inputs = feeds(problem)
    inputs["m"][:] = True
    inputs["m"][2] = False
    got = harness.check(TEMPLATE, problem, inputs)["y"]
    assert np.isnan(got[0, 2]).all() and not np.isnan(got[0, [0, 1, 3]]).any()


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    problem = layer(1, 29, 21, 3, 1, 16, 20, causal=True)
    calls = TEMPLATE.build(problem, TEMPLATE.default(problem, device), device).calls
    assert compile_ir(render([c.kernel for c in calls], device.target), device.target)


def test_a_query_that_sees_nothing_is_zero_where_asked():
    for mask in ("bool", "f32"):
        problem = layer(1, 4, 5, 1, 1, 8, 16, mask=(mask, (4, 5)), zero_unseen=True)
        inputs = feeds(problem)
        inputs["m"][:] = mask == "bool"
        inputs["m"][2] = False if mask == "bool" else -np.inf
        got = harness.check(TEMPLATE, problem, inputs)["y"]
        assert not got[0, 2].any()
        assert got[0, [0, 1, 3]].all()
        inputs["q"][0, 0] = np.nan  # what is no number stays none
        assert np.isnan(harness.check(TEMPLATE, problem, inputs)["y"][0, 0]).all()
