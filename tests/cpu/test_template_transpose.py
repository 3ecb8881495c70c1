"""Transposition against the reference."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.transpose import Transpose

TEMPLATE = Transpose()


def layer(shape, perm, dtype="f32", **more):
    return harness.problem("transpose", {"x": (dtype, shape)}, (dtype, tuple(shape[p] for p in perm)), perm=perm, **more)


def pitches(problem):
    found = {}
    for name, tensor in problem.tensors.items():
        if tensor.shape and not TEMPLATE.contiguous(problem, name):
            found[name] = harness.evaluate(tensor.shape[-1], {}) + 3
    return found


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("perm", list(permutations(range(4))), ids=str)
def test_permutations(perm, isa):
    for shape in ((2, 3, 19, 37), (1, 9, 1, 17)) if isa == "avx2" else ((3, 1, 9, 1),):
        problem = layer(shape, perm)
        harness.check(TEMPLATE, problem, on=harness.device(isa), pitch=pitches(problem))


@pytest.mark.parametrize("dtype", ["bool", "u8", "f16", "bf16", "i64", "f64"])
@pytest.mark.parametrize("perm", [(0, 2, 1), (1, 0, 2), (2, 1, 0)], ids=str)
def test_types(perm, dtype):
    for isa in ("sse4", "avx2"):
        harness.check(TEMPLATE, layer((3, 37, 70), perm, dtype), on=harness.device(isa))


@pytest.mark.parametrize("shape, perm", [
    ((2, 3, 50, 61), (0, 2, 3, 1)),
    ((2, 50, 61, 3), (0, 3, 1, 2)),
    ((1, 300, 20), (0, 2, 1)),
    ((70, 600), (1, 0)),
    ((2, 5, 12, 32), (0, 2, 1, 3)),
    ((0, 4, 5), (2, 1, 0)),
    ((), ()),
    ((5,), (0,)),
    ((2, 1, 3, 1, 4, 2, 1, 5), (7, 0, 6, 3, 2, 5, 1, 4)),
], ids=str)
def test_shapes(shape, perm):
    for isa in ("sse4", "avx2"):
        problem = layer(shape, perm)
        harness.check(TEMPLATE, problem, on=harness.device(isa))


def test_symbols():
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    for sizes in ({"n": 1, "h": 1, "w": 1}, {"n": 2, "h": 9, "w": 11}, {"n": 0, "h": 2, "w": 3}, {"n": 3, "h": 1, "w": 40}):
        for shape, perm in (((n, 3, h, w), (0, 2, 3, 1)), ((n, h, w, 18), (0, 3, 1, 2)), ((n, h, 12, w), (0, 2, 1, 3)), ((h, w), (1, 0))):
            harness.check(TEMPLATE, layer(shape, perm), sizes=sizes)


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("mul", 0, 1), ("relu", 2))
    for perm in ((0, 2, 1), (2, 1, 0), (1, 0, 2), (0, 1, 2)):
        base = layer((4, 19, 13), perm)
        out = base.output().shape
        for extra in (out[-1:], (out[0], 1, 1), out):
            problem = layer((4, 19, 13), perm, expression=expression, extra={"e": ("f32", extra)})
            harness.check(TEMPLATE, problem, pitch=pitches(problem) | {"e": extra[-1]})
    for extra in ((3,), (), (1, 9, 5, 3)):
        problem = layer((1, 3, 9, 5), (0, 2, 3, 1), expression=expression, extra={"e": ("f32", extra)})
        harness.check(TEMPLATE, problem)
    half = harness.chain(["f16"], ("relu", 0))
    harness.check(TEMPLATE, layer((4, 19, 33), (0, 2, 1), "f16", expression=half))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any(data):
    rank = data.draw(st.integers(1, 5))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 9, 17]), min_size=rank, max_size=rank)))
    perm = tuple(data.draw(st.permutations(range(rank))))
    if np.prod(shape) < 50000:
        problem = layer(shape, perm)
        harness.check(TEMPLATE, problem, pitch=pitches(problem))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for dtype in ("f32", "u8"):
        problem = layer((1, 9, 40), (0, 2, 1), dtype)
        calls = TEMPLATE.build(problem, TEMPLATE.default(problem, device), device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
