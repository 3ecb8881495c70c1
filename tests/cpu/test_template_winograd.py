"""Winograd convolution against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sartor.graph.layer import Problem
from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import Dim, symbol
from sartor.templates.toomcook import POINTS, filtering
from sartor.templates.winograd import WINOGRAD
from tests.cpu.harness import chain, check, device, problem, random_inputs, run

RANDOM = np.random.default_rng(5)


def convolution(image: tuple[Dim, ...], outputs: int, pads: tuple[int, int, int, int] = (1, 1, 1, 1), heavy: bool = False) -> Problem:
    """A 3x3 convolution with bias, residual and rectifier."""
    n, h, w, channels = image
    assert isinstance(channels, int)
    weights = RANDOM.standard_normal((3, 3, channels, outputs)).astype(np.float32)
    out = (n, h + pads[0] + pads[2] - 2, w + pads[1] + pads[3] - 2, outputs)
    steps: list[tuple[Any, ...]] = [("add", 0, 1), ("add", 3, 2), ("relu", 4)]
    steps += [("mul", 5, 1.5), ("sub", 6, 0.5), ("mul", 7, 0.25), ("min", 8, 9.0), ("add", 9, 1), ("abs", 10)] if heavy else []
    return problem("convolution", {"x": ("f32", image), "w": ("f32", weights.shape)}, ("f32", out),
                   constants={"w": weights, "bias": RANDOM.standard_normal(outputs).astype(np.float32)},
                   extra={"bias": ("f32", (outputs,)), "other": ("f32", out)}, expression=chain(["f32"] * 3, *steps),
                   strides=(1, 1), dilations=(1, 1), pads=pads, groups=1)


CONFIG = {"outputs": 4, "tile": "6x2", "block": 12, "group": 4, "splits": 1}


@pytest.mark.parametrize("outputs", [2, 4, 6])
@pytest.mark.parametrize(("image", "columns", "pads"), [
    ((2, 9, 13, 16), 24, (1, 1, 1, 1)), ((1, 8, 8, 5), 35, (0, 2, 1, 0)), ((1, 3, 3, 20), 7, (0, 0, 0, 0)),
    ((1, 1, 2, 9), 16, (1, 1, 1, 1)), ((1, 10, 11, 8), 16, (-1, 0, 0, -2)), ((1, 2, 3, 8), 8, (4, 4, 3, 5))])
def test_sizes(outputs: int, image: tuple[int, ...], columns: int, pads: tuple[int, int, int, int]) -> None:
    check(WINOGRAD, convolution(image, columns, pads), config={**CONFIG, "outputs": outputs},
          pitch={"x": image[-1] + 3, "y": columns + 1}, absolute=1e-3 if outputs == 6 else 2e-4)


@pytest.mark.parametrize("config", [{"block": 5, "group": 1, "splits": 3}, {"tile": "4x3", "group": 2, "splits": 2}, {"tile": "12x1"}])
def test_knobs(config: dict[str, Any]) -> None:
    check(WINOGRAD, convolution((1, 17, 15, 24), 50), config={**CONFIG, **config}, absolute=2e-4)


def test_a_long_expression() -> None:
    check(WINOGRAD, convolution((1, 7, 9, 16), 20, heavy=True), config=CONFIG, absolute=2e-4)


def test_without_wide_vectors() -> None:
    check(WINOGRAD, convolution((1, 9, 9, 16), 24), on=device("sse4"), config={**CONFIG, "tile": "4x2"}, absolute=2e-4)


def test_symbolic_sizes() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    p = convolution((n, h, w, 16), 16)
    for sizes in ({"n": 1, "h": 5, "w": 9}, {"n": 3, "h": 4, "w": 1}, {"n": 0, "h": 5, "w": 5}):
        check(WINOGRAD, p, sizes=sizes, absolute=2e-4)


def test_the_same_bits_whatever_the_blocks() -> None:
    p = convolution((1, 20, 20, 16), 40)
    inputs = random_inputs(p)
    want = run(WINOGRAD, p, inputs, config=CONFIG)["y"].tobytes()
    for change in ({"block": 5}, {"group": 1, "splits": 3}, {"tile": "4x3"}):
        assert run(WINOGRAD, p, inputs, config={**CONFIG, **change}, pieces=4)["y"].tobytes() == want


@pytest.mark.parametrize("outputs", POINTS)
def test_the_matrices_compute_a_filter(outputs: int) -> None:
    a, g, b = (np.array([[float(x) for x in row] for row in m]) for m in (
        filtering(outputs).output, filtering(outputs).weights, filtering(outputs).input))
    d, w = RANDOM.standard_normal(outputs + 2), RANDOM.standard_normal(3)
    np.testing.assert_allclose(a @ ((g @ w) * (b @ d)), np.convolve(d, w[::-1], "valid"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
def test_kernels_compile_for_every_target(isa: str) -> None:
    on, p = device(isa), convolution((1, 9, 9, 16), 40)
    config = WINOGRAD.default(p, on)
    assert config is not None
    for call in WINOGRAD.build(p, config, on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))
