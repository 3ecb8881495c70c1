"""Direct convolution against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import chain, check, check_in_place, device, problem

from sartor.graph.layer import Problem
from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import Dim, symbol
from sartor.templates.convolution import CONVOLUTION

RANDOM = np.random.default_rng(3)


def convolution(image: tuple[Dim, ...], outputs: int, kernel: tuple[int, ...], *, strides: tuple[int, ...] | None = None,
                dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None, groups: int = 1, dtype: str = "f32",
                biased: bool = True, constant: bool = True) -> Problem:
    """A convolution of an image [N, *s, C] with random weights."""
    rank = len(kernel)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank
    channels = image[-1]
    assert isinstance(channels, int)
    out = tuple((image[1 + i] + pads[i] + pads[rank + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank))
    shape = (image[0], *out, outputs)
    numpy_type = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32}[dtype]
    weights = (RANDOM.standard_normal((*kernel, channels // groups, outputs)) * 3).astype(numpy_type)
    extra: dict[str, Any] = {}
    constants = {"w": weights} if constant else {}
    if biased:
        constants["bias"] = RANDOM.standard_normal(outputs).astype(numpy_type)
        extra = {"extra": {"bias": (dtype, (outputs,)), "other": (dtype, shape)},
                 "expression": chain([dtype] * 3, ("add", 0, 1), ("add", 3, 2), ("relu", 4))}
    return problem("convolution", {"x": (dtype, image), "w": (dtype, weights.shape)}, (dtype, shape), constants=constants,
                   strides=strides, dilations=dilations, pads=pads, groups=groups, **extra)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"image": (2, 9, 11, 16), "outputs": 24, "kernel": (3, 3), "pads": (1, 1, 1, 1)},
    "asymmetric": {"image": (1, 8, 13, 12), "outputs": 9, "kernel": (2, 5), "pads": (0, 3, 2, 1), "strides": (2, 3)},
    "dilated": {"image": (1, 12, 12, 9), "outputs": 17, "kernel": (3, 2), "pads": (2, 2, 2, 2), "dilations": (2, 3)},
    "pads wider than the image": {"image": (1, 2, 3, 8), "outputs": 8, "kernel": (3, 3), "pads": (4, 5, 5, 4), "strides": (2, 1)},
    "cropped": {"image": (1, 9, 10, 8), "outputs": 8, "kernel": (3, 3), "pads": (-1, -2, 0, -1)},
    "pointwise, strided": {"image": (2, 9, 9, 20), "outputs": 33, "kernel": (1, 1), "strides": (2, 2)},
    "grouped": {"image": (1, 7, 8, 24), "outputs": 36, "kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 2},
    "many small groups": {"image": (1, 5, 6, 12), "outputs": 8, "kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 4},
    "one dimension": {"image": (3, 29, 10), "outputs": 12, "kernel": (5,), "pads": (2, 2), "strides": (2,)},
    "three dimensions": {"image": (2, 4, 5, 6, 8), "outputs": 10, "kernel": (3, 2, 3), "pads": (1, 0, 2, 1, 1, 0),
                         "strides": (1, 2, 1), "dilations": (1, 1, 2)},
    "four dimensions": {"image": (1, 3, 3, 4, 5, 8), "outputs": 8, "kernel": (2, 2, 2, 3), "pads": (1, 0, 1, 1, 0, 1, 0, 1)},
    "first layer": {"image": (2, 15, 17, 3), "outputs": 20, "kernel": (7, 7), "pads": (3, 3, 3, 3), "strides": (2, 2)},
    "one channel": {"image": (1, 6, 9, 1), "outputs": 16, "kernel": (3, 4), "pads": (1, 2, 1, 1)},
    "few channels in three dimensions": {"image": (1, 4, 5, 6, 2), "outputs": 8, "kernel": (3, 3, 3), "pads": (1, 1, 1, 1, 1, 1)},
    "few channels in one dimension": {"image": (1, 30, 4), "outputs": 8, "kernel": (9,), "pads": (8, 8)},
    "few channels, dilated": {"image": (1, 8, 9, 3), "outputs": 8, "kernel": (3, 3), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    p = convolution(**CASES[case])
    channels = p.input(0).shape[-1]
    assert isinstance(channels, int)
    dense = CONVOLUTION.contiguous(p, "x")
    check(CONVOLUTION, p, pitch={"y": CASES[case]["outputs"] + 3} | ({} if dense else {"x": channels + 5}), absolute=1e-4)


@pytest.mark.parametrize("case", ["plain", "asymmetric", "first layer", "grouped"])
def test_without_wide_vectors(case: str) -> None:
    check(CONVOLUTION, convolution(**CASES[case]), on=device("sse4"), absolute=1e-4)


@pytest.mark.parametrize("case", ["plain", "grouped", "first layer"])
def test_weights_known_at_run_time(case: str) -> None:
    p = convolution(**CASES[case], constant=False)
    check(CONVOLUTION, p, pitch={"w": CASES[case]["outputs"] + 1}, absolute=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "i32", "f16"])
@pytest.mark.parametrize("case", ["plain", "first layer"])
def test_types(case: str, dtype: str) -> None:
    check(CONVOLUTION, convolution(**CASES[case], dtype=dtype, biased=False), absolute=0.3 if dtype == "f16" else 1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("constant", [True, False])
def test_few_outputs_in_groups(groups: int, constant: bool) -> None:
    p = convolution((2, 5, 6, 4), 4, (3, 3), groups=groups, constant=constant, biased=False)
    check(CONVOLUTION, p, absolute=1e-4)


@pytest.mark.parametrize("config", [{"tile": "12x1", "mc": 12}, {"tile": "4x3", "panels": 1, "unroll": 8}, {"prefetch": 0, "mc": 6}])
@pytest.mark.parametrize("case", ["plain", "first layer"])
def test_knobs(case: str, config: dict[str, Any]) -> None:
    p = convolution(**CASES[case])
    check(CONVOLUTION, p, config={**CONVOLUTION.default(p, device()), **config}, absolute=1e-4)


def test_the_output_may_lie_on_the_residual() -> None:
    check_in_place(CONVOLUTION, convolution(**CASES["plain"]), "other")


def test_symbolic_sizes() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    for channels, kernel in ((8, (3, 3)), (3, (5, 5))):
        p = convolution((n, h, w, channels), 18, kernel, pads=(1, 1, 1, 1), strides=(2, 1))
        for sizes in ({"n": 1, "h": 7, "w": 9}, {"n": 3, "h": 4, "w": 21}, {"n": 0, "h": 5, "w": 5}):
            check(CONVOLUTION, p, sizes=sizes, absolute=1e-4)


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
@pytest.mark.parametrize("case", ["plain", "first layer", "three dimensions"])
def test_kernels_compile_for_every_target(case: str, isa: str) -> None:
    on, p = device(isa), convolution(**CASES[case])
    for call in CONVOLUTION.build(p, CONVOLUTION.default(p, on), on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))
