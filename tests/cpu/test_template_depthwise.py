"""Depth-wise convolution against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import chain, check, device, problem

from sartor.graph.layer import Problem
from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import Dim, symbol
from sartor.templates.depthwise import DEPTHWISE, GROUPED

RANDOM = np.random.default_rng(4)


def depthwise(image: tuple[Dim, ...], kernel: tuple[int, ...], *, strides: tuple[int, ...] | None = None,
              dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None, dtype: str = "f32",
              heavy: bool = False, groups: int | None = None, outputs: int | None = None) -> Problem:
    """A depth-wise convolution of an image [N, *s, C] with random weights, or one of `groups` groups."""
    rank = len(kernel)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank
    channels = image[-1]
    assert isinstance(channels, int)
    out = tuple((image[1 + i] + pads[i] + pads[rank + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank))
    groups, outputs = groups or channels, outputs or channels
    shape = (image[0], *out, outputs)
    numpy_type = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32}[dtype]
    weights = (RANDOM.standard_normal((*kernel, channels // groups, outputs)) * 3).astype(numpy_type)
    steps: list[tuple[Any, ...]] = [("add", 0, 1), ("add", 3, 2), ("relu", 4)]
    steps += [("mul", 5, 2), ("sub", 6, 1), ("min", 7, 2), ("add", 8, 1), ("abs", 9), ("max", 10, 2)] if heavy else []
    return problem("convolution", {"x": (dtype, image), "w": (dtype, weights.shape)}, (dtype, shape),
                   constants={"w": weights, "bias": RANDOM.standard_normal(outputs).astype(numpy_type)},
                   extra={"bias": (dtype, (outputs,)), "other": (dtype, shape)}, expression=chain([dtype] * 3, *steps),
                   strides=strides, dilations=dilations, pads=pads, groups=groups)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"image": (2, 9, 13, 24), "kernel": (3, 3), "pads": (1, 1, 1, 1)},
    "odd channels": {"image": (1, 6, 17, 19), "kernel": (3, 3), "pads": (1, 1, 1, 1)},
    "few channels": {"image": (1, 6, 17, 3), "kernel": (3, 3), "pads": (1, 1, 1, 1)},
    "strided": {"image": (1, 11, 23, 16), "kernel": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)},
    "large": {"image": (1, 9, 20, 17), "kernel": (5, 7), "pads": (2, 3, 2, 3)},
    "huge": {"image": (1, 10, 14, 9), "kernel": (9, 9), "pads": (4, 4, 4, 4), "strides": (1, 2)},
    "dilated": {"image": (1, 12, 22, 8), "kernel": (3, 3), "pads": (2, 3, 2, 3), "dilations": (2, 3)},
    "asymmetric": {"image": (1, 8, 15, 12), "kernel": (2, 3), "pads": (0, 2, 1, 0), "strides": (2, 1)},
    "cropped": {"image": (1, 9, 16, 8), "kernel": (3, 3), "pads": (-1, 1, 0, -2)},
    "pads wider than the image": {"image": (1, 2, 3, 8), "kernel": (3, 3), "pads": (4, 5, 5, 4), "strides": (2, 1)},
    "one dimension": {"image": (2, 40, 10), "kernel": (7,), "pads": (3, 3)},
    "three dimensions": {"image": (1, 4, 5, 12, 8), "kernel": (3, 2, 3), "pads": (1, 0, 2, 1, 1, 0), "strides": (1, 2, 1)},
    "one tap": {"image": (1, 4, 5, 12), "kernel": (1, 1)},
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    p = depthwise(**CASES[case])
    channels = CASES[case]["image"][-1]
    check(DEPTHWISE, p, pitch={"x": channels + 5, "y": channels + 3}, absolute=1e-4)


GROUPED_CASES: dict[str, dict[str, Any]] = {
    "four in, four out": {"image": (1, 7, 13, 32), "kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 8},
    "two in, four out": {"image": (1, 7, 9, 10), "kernel": (3, 3), "pads": (1, 0, 1, 2), "groups": 5, "outputs": 20},
    "four in, one out": {"image": (1, 7, 9, 40), "kernel": (3, 2), "groups": 10, "outputs": 10},
    "one in, two out": {"image": (1, 7, 9, 6), "kernel": (3, 3), "strides": (2, 1), "groups": 6, "outputs": 12},
    "three in, two out": {"image": (1, 5, 9, 27), "kernel": (2, 2), "groups": 9, "outputs": 18},
    "many taps": {"image": (1, 9, 12, 16), "kernel": (5, 5), "pads": (2, 2, 2, 2), "groups": 4, "outputs": 16},
    "fewer outputs than lanes": {"image": (1, 5, 9, 4), "kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 2, "outputs": 2},
}


@pytest.mark.parametrize("case", GROUPED_CASES)
def test_narrow_groups(case: str) -> None:
    p = depthwise(**GROUPED_CASES[case])
    check(GROUPED, p, pitch={"x": GROUPED_CASES[case]["image"][-1] + 5, "y": p.output().shape[-1] + 3}, absolute=1e-4)


def test_narrow_groups_without_wide_vectors() -> None:
    check(GROUPED, depthwise(**GROUPED_CASES["two in, four out"]), on=device("sse4"), absolute=1e-4)


@pytest.mark.parametrize("case", ["plain", "few channels", "strided"])
def test_without_wide_vectors(case: str) -> None:
    check(DEPTHWISE, depthwise(**CASES[case]), on=device("sse4"), absolute=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "i32", "f16"])
def test_types(dtype: str) -> None:
    check(DEPTHWISE, depthwise(**CASES["odd channels"], dtype=dtype), absolute=0.3 if dtype == "f16" else 1e-4)


@pytest.mark.parametrize("config", [
    {"pixels": 1, "channels": 32, "keep_weights": True}, {"pixels": 6, "channels": 0, "keep_weights": False},
    {"pixels": 3, "channels": 8, "keep_weights": True}])
@pytest.mark.parametrize("case", ["plain", "strided"])
def test_knobs(case: str, config: dict[str, Any]) -> None:
    check(DEPTHWISE, depthwise(**CASES[case]), config=config, absolute=1e-4)


@pytest.mark.parametrize("case", ["plain", "few channels"])
def test_a_long_expression(case: str) -> None:
    check(DEPTHWISE, depthwise(**CASES[case], heavy=True), absolute=1e-4)


def test_symbolic_sizes() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    p = depthwise((n, h, w, 12), (3, 3), pads=(1, 1, 1, 1), strides=(2, 1))
    for sizes in ({"n": 1, "h": 7, "w": 9}, {"n": 3, "h": 4, "w": 1}, {"n": 0, "h": 5, "w": 5}):
        check(DEPTHWISE, p, sizes=sizes, absolute=1e-4)


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
def test_kernels_compile_for_every_target(isa: str) -> None:
    on, p = device(isa), depthwise(**CASES["plain"])
    for call in DEPTHWISE.build(p, DEPTHWISE.default(p, on), on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))
