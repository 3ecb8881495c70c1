"""Pooling against the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.pool import Pool

TEMPLATE = Pool()


def layer(shape, kernel, strides=None, pads=None, dilations=None, mode="max", ceil=False, dtype="f32", **more):
    rank = len(kernel)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    spatial = []
    for i in range(rank):
        room = shape[1 + i] + pads[i] + pads[i + rank] - (dilations[i] * (kernel[i] - 1) + 1)
        spatial.append((-(-room // strides[i]) if ceil else room // strides[i]) + 1)
    out = (shape[0], *spatial, shape[-1])
    attributes = {"mode": mode, "kernel": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads, "include_pad": False,
                  "p": 2} | more
    return harness.problem("pool", {"x": (dtype, shape)}, ("i64" if mode == "argmax" else dtype, out), **attributes)


CASES = [
    {"shape": (2, 11, 13, 37), "kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"shape": (1, 8, 9, 16), "kernel": (2, 2), "strides": (2, 2), "ceil": True},
    {"shape": (2, 9, 10, 5), "kernel": (3, 2), "dilations": (2, 3), "pads": (2, 1, 0, 3)},
    {"shape": (2, 29, 9), "kernel": (5,), "strides": (3,), "pads": (2, 1)},
    {"shape": (1, 40, 8), "kernel": (11,), "strides": (4,), "pads": (5, 5), "ceil": True},
    {"shape": (1, 5, 6, 7, 9), "kernel": (2, 3, 3), "strides": (1, 2, 1), "pads": (1, 1, 1, 0, 1, 1)},
    {"shape": (1, 3, 4, 5, 3, 4), "kernel": (2, 2, 2, 2), "pads": (0, 1, 0, 1, 1, 0, 1, 0)},
    {"shape": (1, 2, 2, 33), "kernel": (5, 5), "pads": (2, 2, 2, 2)},
    {"shape": (0, 5, 5, 8), "kernel": (2, 2)},
]


@pytest.mark.parametrize("mode", ["max", "average", "average_padded", "lp"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['shape']}x{c['kernel']}")
def test_windows(case, mode):
    more = {"mode": mode.removesuffix("_padded"), "include_pad": mode == "average_padded"}
    for isa in ("sse4", "avx2"):
        problem = layer(**case, **more)
        columns = case["shape"][-1]
        harness.check(TEMPLATE, problem, on=harness.device(isa), pitch={"x": columns + 3, "y": columns + 1})


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['shape']}x{c['kernel']}")
def test_places_of_maxima(case, column_major):
    columns = case["shape"][-1]
    for isa, dtype in (("sse4", "f32"), ("avx2", "f32"), ("avx2", "u8"), ("avx2", "f64"), ("avx2", "f16")):
        problem = layer(**case, mode="argmax", column_major=column_major, dtype=dtype)
        harness.check(TEMPLATE, problem, on=harness.device(isa), pitch={"x": columns + 3, "y": columns + 1})


@pytest.mark.parametrize("p", [1, 3])
def test_lp(p):
    harness.check(TEMPLATE, layer((1, 7, 7, 19), (3, 3), mode="lp", p=p), tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "f64", "i8", "u8"])
def test_types(dtype):
    harness.check(TEMPLATE, layer((1, 7, 8, 40), (3, 3), (2, 2), (1, 1, 1, 1), dtype=dtype))


def test_symbols():
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    problem = harness.problem("pool", {"x": ("f32", (n, h, w, 12))}, ("f32", (n, (h + 1) // 2, w - 2, 12)), mode="average", kernel=(3, 3),
                              strides=(2, 1), dilations=(1, 1), pads=(1, 0, 1, 0), include_pad=True, p=2)
    for sizes in ({"n": 1, "h": 5, "w": 5}, {"n": 3, "h": 8, "w": 3}, {"n": 0, "h": 2, "w": 9}):
        harness.check(TEMPLATE, problem, sizes=sizes)


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("mul", 0, 1), ("relu", 2))
    base = layer((2, 6, 6, 20), (3, 3), pads=(1, 1, 1, 1), mode="average")
    problem = harness.problem("pool", {"x": ("f32", (2, 6, 6, 20))}, ("f32", (2, 6, 6, 20)), expression=expression,
                              extra={"e": ("f32", (2, 1, 1, 20))}, **base.layer.attributes)
    harness.check(TEMPLATE, problem)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_window(data):
    rank = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    kernel, strides, dilations, pads = [], [], [], [0] * (2 * rank)
    for i in range(rank):
        kernel.append(data.draw(st.integers(1, 4)))
        strides.append(data.draw(st.integers(1, 3)))
        dilations.append(data.draw(st.integers(1, 2)))
        reach = dilations[i] * (kernel[i] - 1) + 1
        pads[i] = data.draw(st.integers(0, kernel[i] - 1))
        pads[i + rank] = max(data.draw(st.integers(0, kernel[i] - 1)), reach - sizes[i] - pads[i])
    mode = data.draw(st.sampled_from(["max", "average"]))
    shape = (data.draw(st.integers(1, 2)), *sizes, data.draw(st.sampled_from([1, 4, 9])))
    harness.check(TEMPLATE, layer(shape, tuple(kernel), tuple(strides), tuple(pads), tuple(dilations), mode,
                                  include_pad=data.draw(st.booleans())))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    problem = layer((1, 9, 9, 19), (3, 3), mode="average")
    calls = TEMPLATE.build(problem, {"vectors": 4}, device).calls
    assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
