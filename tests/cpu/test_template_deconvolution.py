"""Transposed convolution against the reference."""

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
from sartor.templates.deconvolution import DECONVOLUTION, axis_phases


def deconvolution(image: tuple[Dim, ...], outputs: int, kernel: tuple[int, ...], *, strides: tuple[int, ...] | None = None,
                  dilations: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None, groups: int = 1,
                  more: tuple[int, ...] | None = None, dtype: str = "f32", constant: bool = True,
                  scalars: bool = False) -> Problem:
    """A transposed convolution of an image [N, *s, C] with random weights; `more` adds to the output's size."""
    rank, random = len(kernel), np.random.default_rng(8)
    strides, dilations, pads, more = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank, more or (0,) * rank
    channels = image[-1]
    assert isinstance(channels, int)
    out = tuple((image[1 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[rank + i] + more[i]
                for i in range(rank))
    shape = (image[0], *out, outputs)
    numpy_type = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32}[dtype]
    weights = (random.standard_normal((*kernel, channels, outputs // groups)) * 3).astype(numpy_type)
    constants = {"bias": random.standard_normal(outputs).astype(numpy_type)} | ({"w": weights} if constant else {})
    if scalars:
        constants["bias"] = constants["bias"][:1]
        extra: dict[str, Any] = {"bias": (dtype, (1,))}
        expression = chain([dtype] * 2, ("add", 0, 1), ("sigmoid", 2))
    else:
        extra = {"bias": (dtype, (outputs,)), "other": (dtype, shape)}
        expression = chain([dtype] * 3, ("add", 0, 1), ("add", 3, 2), ("relu", 4))
    return problem("deconvolution", {"x": (dtype, image), "w": (dtype, weights.shape)}, (dtype, shape), constants=constants,
                   extra=extra, expression=expression, strides=strides, dilations=dilations, pads=pads, groups=groups)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"image": (2, 5, 7, 16), "outputs": 24, "kernel": (3, 3)},
    "kernel is stride": {"image": (1, 5, 6, 20), "outputs": 17, "kernel": (2, 2), "strides": (2, 2)},
    "doubling": {"image": (1, 6, 5, 8), "outputs": 12, "kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "more": (1, 1)},
    "asymmetric": {"image": (1, 5, 4, 9), "outputs": 10, "kernel": (4, 3), "strides": (3, 2), "pads": (2, 0, 1, 3)},
    "kernel smaller than stride": {"image": (1, 4, 5, 8), "outputs": 8, "kernel": (2, 1), "strides": (3, 3), "more": (0, 2)},
    "dilated": {"image": (1, 5, 6, 8), "outputs": 9, "kernel": (3, 3), "strides": (2, 3), "dilations": (3, 2), "pads": (1, 2, 0, 1)},
    "stride and dilation share a factor": {"image": (1, 5, 5, 8), "outputs": 8, "kernel": (3, 4), "strides": (2, 4), "dilations": (2, 2)},
    "cropped and grown": {"image": (1, 5, 6, 8), "outputs": 8, "kernel": (3, 3), "strides": (2, 2), "pads": (-1, -2, 3, 0)},
    "grouped": {"image": (1, 4, 5, 12), "outputs": 20, "kernel": (3, 2), "strides": (2, 1), "groups": 2},
    "depth-wise": {"image": (1, 4, 5, 6), "outputs": 6, "kernel": (4, 4), "strides": (2, 2), "pads": (1, 1, 1, 1), "groups": 6},
    "one dimension": {"image": (2, 13, 10), "outputs": 12, "kernel": (5,), "strides": (2,), "pads": (2, 2)},
    "three dimensions": {"image": (1, 3, 4, 3, 8), "outputs": 10, "kernel": (2, 3, 2), "strides": (2, 1, 2), "pads": (0, 1, 1, 1, 0, 0)},
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    p = deconvolution(**CASES[case])
    check(DECONVOLUTION, p, pitch={"x": CASES[case]["image"][-1] + 5, "y": CASES[case]["outputs"] + 3}, absolute=1e-4)


@pytest.mark.parametrize("case", ["doubling", "grouped"])
def test_weights_known_at_run_time(case: str) -> None:
    p = deconvolution(**CASES[case], constant=False)
    check(DECONVOLUTION, p, pitch={"w": CASES[case]["outputs"] + 1}, absolute=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_few_outputs_in_groups(groups: int) -> None:
    check(DECONVOLUTION, deconvolution((2, 4, 5, 4), 4, (3, 3), strides=(2, 2), groups=groups, scalars=True), absolute=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "i32", "f16"])
def test_types(dtype: str) -> None:
    check(DECONVOLUTION, deconvolution(**CASES["doubling"], dtype=dtype), absolute=0.3 if dtype == "f16" else 1e-4)


@pytest.mark.parametrize(("outputs", "kernel", "strides", "more", "isa"), [
    (1, (2, 2), (2, 2), (0, 0), "avx2"), (2, (3, 2), (2, 2), (1, 0), "avx2"), (3, (3, 3), (2, 2), (0, 0), "avx2"), (4, (2, 2), (2, 2), (0, 0), "avx2"),
    (1, (2, 2), (2, 2), (0, 0), "sse4"), (1, (4,), (4,), (0,), "avx2"), (1, (2, 3, 2), (2, 1, 2), (0, 0, 0), "avx2")])
def test_few_outputs(outputs: int, kernel: tuple[int, ...], strides: tuple[int, ...], more: tuple[int, ...], isa: str) -> None:
    image = (2, *(3, 5, 7)[-len(kernel):], 12)
    p = deconvolution(image, outputs, kernel, strides=strides, more=more, scalars=True)
    check(DECONVOLUTION, p, on=device(isa), absolute=1e-4)


def test_without_wide_vectors() -> None:
    check(DECONVOLUTION, deconvolution(**CASES["doubling"]), on=device("sse4"), absolute=1e-4)


def test_the_output_may_lie_on_the_residual() -> None:
    check_in_place(DECONVOLUTION, deconvolution(**CASES["doubling"]), "other")


def test_symbolic_sizes() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    p = deconvolution((n, h, w, 8), 18, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for sizes in ({"n": 1, "h": 7, "w": 9}, {"n": 3, "h": 4, "w": 1}, {"n": 0, "h": 5, "w": 5}):
        check(DECONVOLUTION, p, sizes=sizes, absolute=1e-4)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (4, 3, 2), (5, 4, 6), (1, 3, 1)])
def test_each_tap_belongs_to_one_phase(kernel: int, stride: int, dilation: int) -> None:
    taps = [tap for phase in axis_phases(kernel, stride, dilation) for tap in phase.taps]
    assert sorted(taps) == list(range(kernel))


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
def test_kernels_compile_for_every_target(isa: str) -> None:
    on, p = device(isa), deconvolution(**CASES["doubling"], constant=False)
    for call in DECONVOLUTION.build(p, DECONVOLUTION.default(p, on), on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))
