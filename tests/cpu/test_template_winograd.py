"""Winograd convolution against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import chain, check, device, problem, random_inputs, run

from sartor.graph.layer import Problem
from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import Dim, symbol
from sartor.templates.toomcook import PAIRS, filtering
from sartor.templates.winograd import WINOGRAD

RANDOM = np.random.default_rng(5)
CONFIG = {"size": 6, "tile": "6x2", "block": 12, "group": 4, "splits": 1, "fused": True, "prefetch": 2}
HEAVY = (("mul", 5, 1.5), ("sub", 6, 0.5), ("mul", 7, 0.25), ("min", 8, 9.0), ("add", 9, 1), ("abs", 10))


def convolution(image: tuple[Dim, ...], outputs: int, pads: tuple[int, ...] = (1, 1, 1, 1), taps: tuple[int, ...] = (3, 3),
                heavy: bool = False) -> Problem:
    """A convolution of stride 1 with bias, residual and rectifier."""
    n, *spatial, channels = image
    assert isinstance(channels, int)
    rank = len(taps)
    weights = RANDOM.standard_normal((*taps, channels, outputs)).astype(np.float32)
    out = (n, *(s + pads[i] + pads[rank + i] - taps[i] + 1 for i, s in enumerate(spatial)), outputs)
    steps = (("add", 0, 1), ("add", 3, 2), ("relu", 4), *(HEAVY if heavy else ()))
    return problem("convolution", {"x": ("f32", image), "w": ("f32", weights.shape)}, ("f32", out),
                   constants={"w": weights, "bias": RANDOM.standard_normal(outputs).astype(np.float32)},
                   extra={"bias": ("f32", (outputs,)), "other": ("f32", out)}, expression=chain(["f32"] * 3, *steps),
                   strides=(1,) * rank, dilations=(1,) * rank, pads=pads, groups=1)


CASES: dict[str, dict[str, Any]] = {
    "batch": {"image": (2, 9, 13, 16), "outputs": 24},
    "fewer channels than lanes": {"image": (1, 8, 8, 5), "outputs": 35, "pads": (0, 2, 1, 0)},
    "one pixel": {"image": (1, 3, 3, 20), "outputs": 7, "pads": (0, 0, 0, 0)},
    "image smaller than the window": {"image": (1, 1, 2, 9), "outputs": 16},
    "cropped": {"image": (1, 10, 11, 8), "outputs": 16, "pads": (-1, 0, 0, -2)},
    "pads wider than the image": {"image": (1, 2, 3, 8), "outputs": 8, "pads": (4, 4, 3, 5)},
    "long expression": {"image": (1, 7, 9, 16), "outputs": 20, "heavy": True},
    "horizontal": {"image": (2, 5, 15, 17), "outputs": 24, "taps": (1, 3), "pads": (0, 1, 0, 1)},
    "vertical": {"image": (2, 14, 5, 12), "outputs": 19, "taps": (3, 1), "pads": (2, 0, 0, 0)},
    "five by five": {"image": (1, 9, 11, 12), "outputs": 16, "taps": (5, 5), "pads": (2, 2, 2, 2)},
    "two by five": {"image": (1, 9, 11, 12), "outputs": 16, "taps": (2, 5), "pads": (1, 2, 0, 2)},
    "four by three": {"image": (1, 9, 11, 12), "outputs": 16, "taps": (4, 3), "pads": (1, 0, 2, 1)},
    "one dimension": {"image": (3, 29, 10), "outputs": 16, "taps": (3,), "pads": (1, 1)},
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    p = convolution(**CASES[case])
    config = {**CONFIG, "fused": len(case) % 2 == 0}
    check(WINOGRAD, p, config=config, pitch={"x": CASES[case]["image"][-1] + 3, "y": CASES[case]["outputs"] + 1}, absolute=2e-4)


@pytest.mark.parametrize("config", [
    {"size": 4}, {"size": 8}, {"block": 5, "group": 1, "splits": 3}, {"tile": "4x3", "group": 2, "splits": 2}, {"tile": "12x1"},
    {"fused": False, "splits": 2, "group": 1, "prefetch": 0}])
def test_knobs(config: dict[str, Any]) -> None:
    absolute = 1e-3 if config.get("size") == 8 else 2e-4
    check(WINOGRAD, convolution((1, 17, 15, 24), 50), config={**CONFIG, **config}, absolute=absolute)


def test_many_channels_in_a_call_of_their_own() -> None:
    check(WINOGRAD, convolution((1, 5, 6, 150), 16), config={**CONFIG, "fused": False}, absolute=5e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_without_wide_vectors(fused: bool) -> None:
    config = {**CONFIG, "tile": "4x2", "fused": fused}
    check(WINOGRAD, convolution((1, 9, 9, 18), 23), on=device("sse4"), config=config, absolute=2e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_symbolic_sizes(fused: bool) -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    p = convolution((n, h, w, 16), 16)
    for sizes in ({"n": 1, "h": 5, "w": 9}, {"n": 3, "h": 4, "w": 1}, {"n": 0, "h": 5, "w": 5}):
        check(WINOGRAD, p, sizes=sizes, config={**CONFIG, "fused": fused}, absolute=2e-4)


def test_the_same_bits_whatever_the_blocks() -> None:
    p = convolution((1, 20, 20, 16), 40)
    inputs = random_inputs(p)
    want = run(WINOGRAD, p, inputs, config=CONFIG)["y"].tobytes()
    for change in ({"block": 5}, {"group": 1, "splits": 3}, {"tile": "4x3"}, {"fused": False}):
        assert run(WINOGRAD, p, inputs, config={**CONFIG, **change}, pieces=4)["y"].tobytes() == want


@pytest.mark.parametrize(("size", "bound"), [(4, 1e-6), (6, 1e-5), (8, 4e-5)])
def test_error_relative_to_the_largest_output(size: int, bound: float) -> None:
    p = convolution((1, 24, 24, 64), 16)
    inputs = random_inputs(p)
    exact = np.zeros((24, 24, 16))
    padded = np.pad(inputs["x"][0].astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    for y, x in np.ndindex(3, 3):
        exact += padded[y:y + 24, x:x + 24] @ p.constants["w"][y, x].astype(np.float64)
    exact = np.maximum(exact + p.constants["bias"] + inputs["other"][0], 0)
    error = np.abs(run(WINOGRAD, p, inputs, config={**CONFIG, "size": size})["y"][0] - exact).max() / np.abs(exact).max()
    assert error < bound


@pytest.mark.parametrize(("size", "taps"), [(size, taps) for size in PAIRS for taps in (1, 2, 3, 4, 5) if taps < size])
def test_the_matrices_compute_a_filter(size: int, taps: int) -> None:
    found = filtering(size, taps)
    a, g, b = (np.array([[float(x) for x in row] for row in m]) for m in (found.output, found.weights, found.input))
    d, w = RANDOM.standard_normal(found.outputs + taps - 1), RANDOM.standard_normal(taps)
    np.testing.assert_allclose(a @ ((g @ w) * (b @ d)), np.convolve(d, w[::-1], "valid"), rtol=1e-9, atol=1e-9)


def test_what_it_applies_to() -> None:
    p = convolution((1, 9, 9, 16), 16)
    assert WINOGRAD.applies(p, device())
    inputs = {"x": ("f32", (1, 9, 9, 16)), "w": ("f32", (3, 3, 16, 16))}
    plain: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "groups": 1}
    for attributes in ({"strides": (2, 1)}, {"dilations": (1, 2)}, {"groups": 2}):
        other = problem("convolution", inputs, ("f32", (1, 9, 9, 16)), constants=p.constants, **{**plain, **attributes})
        assert not WINOGRAD.applies(other, device())
    assert not WINOGRAD.applies(convolution((1, 9, 9, 16), 16, (0,) * 4, taps=(1, 1)), device())


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
@pytest.mark.parametrize("fused", [True, False])
def test_kernels_compile_for_every_target(isa: str, fused: bool) -> None:
    on, p = device(isa), convolution((1, 30, 30, 16), 40)
    config = WINOGRAD.default(p, on)
    assert config is not None
    for call in WINOGRAD.build(p, {**config, "fused": fused}, on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))


@pytest.mark.parametrize(("image", "columns"), [
    ((1, 30, 30, 16), 40), ((1, 7, 7, 512), 512), ((1, 14, 14, 64), 24), ((1, 40, 40, 16), 16)])
@pytest.mark.parametrize("isa", ["avx512", "sse4"])
def test_defaults_are_in_the_space(image: tuple[int, ...], columns: int, isa: str) -> None:
    p, on = convolution(image, columns), device(isa)
    space, config = WINOGRAD.space(p, on), WINOGRAD.default(p, on)
    assert config is not None
    assert space.allowed(config)
    assert all(config[knob] in choices for knob, choices in space.knobs.items())


def test_any_configuration_can_be_built() -> None:
    p = convolution((1, 30, 30, 16), 40)
    assert all(WINOGRAD.build(p, config, device()).calls for config in list(WINOGRAD.space(p, device()))[::97])


def test_defaults() -> None:
    def choice(*image: Dim, columns: int = 64, taps: tuple[int, ...] = (3, 3), cores: int = 2) -> dict[str, Any] | None:
        return WINOGRAD.default(convolution(image, columns, tuple(t // 2 for t in taps) * 2, taps), device(cores=cores))

    large = choice(1, 56, 56, 64)
    assert large is not None
    assert (large["size"], large["splits"], large["fused"]) == (6, 1, True)
    assert choice(symbol("n"), symbol("h"), symbol("w"), 64) == large
    assert choice(1, 224, 224, 3) is None
    few_tiles = choice(1, 7, 7, 128, columns=128)
    assert few_tiles is not None
    assert few_tiles["splits"] > 1
    heavy_weights = choice(1, 14, 14, 256, columns=256)
    assert heavy_weights is not None
    assert heavy_weights["size"] == 4
    assert choice(1, 4, 4, 512, columns=512, cores=16) is None
    for taps in ((1, 3), (3, 1), (5, 5), (3,)):
        found = choice(*(8, 400) if len(taps) == 1 else (1, 40, 40), 64, taps=taps)
        assert found is not None
        assert found["size"] == 6
