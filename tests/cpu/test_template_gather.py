"""Gather, sizes and iota against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.gather import Gather
from sartor.templates.sizes import Iota, Sizes

N, H = symbol("n"), symbol("h")


def layer(shape, indices, axis, dtype="f32", kind="i64", **more):
    out = (*shape[:axis], *indices, *shape[axis + 1:])
    return harness.problem("gather", {"x": (dtype, shape), "i": (kind, indices)}, (dtype, out), axis=axis, **more)


def feeds(problem, sizes=None, seed=0):
    inputs = harness.random_inputs(problem, sizes, seed)
    size = inputs["x"].shape[problem["axis"]]
    chosen = np.random.default_rng(seed).integers(-size, size, inputs["i"].shape)
    return inputs | {"i": chosen.astype(inputs["i"].dtype)}


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("indices", [(), (4,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(axis, indices, kind, isa):
    problem = layer((5, 6, 19), indices, axis, kind=kind)
    out = problem.output().shape
    harness.check(Gather(), problem, feeds(problem), on=harness.device(isa), pitch={"x": 21, "y": out[-1] + 2})


@pytest.mark.parametrize("dtype", ["bool", "f16", "i64", "u8"])
def test_types(dtype):
    for axis in (0, 1):
        problem = layer((5, 40), (7,), axis, dtype)
        harness.check(Gather(), problem, feeds(problem))


def test_shapes():
    for shape, indices, axis in (((7,), (), 0), ((7,), (3,), 0), ((7,), (2, 3), 0), ((3, 1), (2,), 1), ((2, 3, 4, 5), (2, 2), 1),
                                 ((100, 64), (2, 9), 0)):
        problem = layer(shape, indices, axis)
        harness.check(Gather(), problem, feeds(problem))


def test_symbols():
    for axis in (0, 1, 2):
        problem = layer((N, H, 5), (symbol("k"),), axis)
        sizes = {"n": 3, "h": 4, "k": 6}
        harness.check(Gather(), problem, feeds(problem, sizes), sizes)


def test_indices_outside_read_nothing_outside():
    for axis in (0, 1):
        problem = layer((5, 7), (4,), axis)
        inputs = harness.random_inputs(problem) | {"i": np.array([99, -99, 2**40, -(2**40)])}
        got = harness.run(Gather(), problem, inputs)["y"]
        np.testing.assert_array_equal(got, np.take(inputs["x"], [-1, 0, -1, 0], axis=axis))


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("add", 0, 1))
    for shape, indices, axis in (((9, 12), (2, 3), 0), ((4, 12), (5,), 1), ((4, 6), (), 1)):
        out = layer(shape, indices, axis).output().shape
        problem = layer(shape, indices, axis, expression=expression, extra={"e": ("f32", out[-1:])})
        harness.check(Gather(), problem, feeds(problem))


def test_sizes():
    problem = harness.problem("sizes", {}, ("i64", (3,)), dims=(N, H * 2 + 1, 7))
    np.testing.assert_array_equal(harness.check(Sizes(), problem, sizes={"n": 4, "h": 5})["y"], [4, 11, 7])
    harness.check(Sizes(), harness.problem("sizes", {}, ("i64", ()), dims=(N,)), sizes={"n": 4})
    harness.check(Sizes(), harness.problem("sizes", {}, ("i64", (0,)), dims=()))
    cast = harness.ExpressionBuilder(["i64"])
    expression = cast.finish(cast("mul", cast("cast", 0, dtype="f32"), cast.constant(0.5, "f32")))
    harness.check(Sizes(), harness.problem("sizes", {}, ("f32", (2,)), dims=(N, 3), expression=expression), sizes={"n": 4})


@pytest.mark.parametrize("length", [0, 1, 5, 10000])
def test_iota(length):
    problem = harness.problem("iota", {}, ("i64", (N,)))
    got = harness.run(Iota(), problem, {}, {"n": length}, pieces=2)["y"]
    np.testing.assert_array_equal(got, np.arange(length))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for axis in (0, 1):
        calls = Gather().build(layer((5, 40), (7,), axis), {}, device).calls
        assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
