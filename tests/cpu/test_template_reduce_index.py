"""argmax and argmin against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates import reduce_index
from sartor.templates.reduce_index import ReduceIndex

TEMPLATE = ReduceIndex()
N, H = symbol("n"), symbol("h")


def layer(shape, axis, op="argmax", last=False, dtype="f32", **more):
    out = tuple(1 if i == axis else d for i, d in enumerate(shape))
    return harness.problem("reduce", {"x": (dtype, shape)}, ("i64", out), op=op, axes=(axis,), select_last=last, **more)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f32", "i64", "u8", "bool", "f16", "f64", "i8"])
def test_ties(dtype, op, last):
    x = np.random.default_rng(0).integers(0, 4, (5, 6, 37)).astype(harness.to_numpy(dtype))
    for axis in range(3):
        for isa in ("sse4", "avx2"):
            harness.check(TEMPLATE, layer((5, 6, 37), axis, op, last, dtype), {"x": x}, on=harness.device(isa), pitch={"x": 40})


@pytest.mark.parametrize("last", [False, True])
def test_nan_and_infinity(last):
    x = np.zeros((6, 33), np.float32)
    x[0, 5], x[0, 20], x[1], x[2], x[3, 30], x[4, 8], x[4, 9] = np.nan, np.nan, -np.inf, np.inf, np.inf, np.nan, np.inf
    for axis in (0, 1):
        for op in ("argmax", "argmin"):
            harness.check(TEMPLATE, layer((6, 33), axis, op, last), {"x": x})


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "i8", "bool"])
def test_long_dimensions_are_taken_in_stretches(dtype, last, monkeypatch):
    monkeypatch.setattr(reduce_index, "_STRETCH", 8)
    x = np.random.default_rng(1).integers(0, 3, (3, 37, 21)).astype(harness.to_numpy(dtype))
    if dtype == "f32":
        x[0, 20:], x[1, 3], x[1, 11], x[2] = np.nan, np.nan, np.nan, -np.inf
    for op in ("argmax", "argmin"):
        for axis in (1, 2):
            harness.check(TEMPLATE, layer((3, 37, 21), axis, op, last, dtype), {"x": x})
            harness.check(TEMPLATE, layer((N, H, 21), axis, op, last, dtype), {"x": x}, sizes={"n": 3, "h": 37}, on=harness.device("sse4"))


def test_shapes_and_symbols():
    for shape, axis in (((1,), 0), ((1000,), 0), ((3, 1), 1), ((3, 1), 0), ((4, 1, 1), 0), ((0, 4), 1)):
        harness.check(TEMPLATE, layer(shape, axis))
    for axis in range(3):
        harness.check(TEMPLATE, layer((N, H, 11), axis), sizes={"n": 3, "h": 4})
        harness.check(TEMPLATE, layer((N, 11, H), axis), sizes={"n": 2, "h": 1})


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for axis in (0, 1):
        calls = TEMPLATE.build(layer((5, 40), axis), {}, device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
