"""Resize against the reference."""

from __future__ import annotations

import pytest
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.resize import Resize

TEMPLATE = Resize()
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_crop_and_resize"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def layer(shape, out, mode="linear", coordinate="half_pixel", scales=None, dtype="f32", more=None, **attributes):
    given = {"scales": scales or (None,) * len(shape), "nearest": "round_prefer_floor", "cubic_a": -0.75, "exclude_outside": False,
             "antialias": False, "extrapolation": 0.0, "roi": None} | attributes
    return harness.problem("resize", {"x": (dtype, shape)}, (dtype, out), mode=mode, coordinate=coordinate, **given, **(more or {}))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("out", [(2, 12, 14, 19), (2, 3, 9, 19), (2, 1, 1, 19), (2, 6, 7, 8)], ids=str)
def test_coordinates(out, coordinate, mode):
    roi = (0.0, -0.1, 0.2, 0.0, 1.0, 0.9, 1.2, 1.0) if coordinate == "tf_crop_and_resize" else None
    problem = layer((2, 6, 7, 19), out, mode, coordinate, roi=roi, extrapolation=3.5)
    harness.check(TEMPLATE, problem, pitch={"x": 21, "y": 22}, tolerance=1e-4, absolute=1e-5)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_nearest(rounding, isa):
    for coordinate in ("half_pixel", "asymmetric", "align_corners"):
        for dtype in ("f32", "u8", "i64", "f16", "bool") if coordinate == "half_pixel" and rounding == "floor" else ("f32",):
            problem = layer((1, 5, 6, 33), (1, 10, 9, 33), "nearest", coordinate, nearest=rounding, dtype=dtype)
            harness.check(TEMPLATE, problem, on=harness.device(isa))
        harness.check(TEMPLATE, layer((2, 5, 33), (2, 7, 66), "nearest", coordinate, nearest=rounding), on=harness.device(isa))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_options(mode):
    for attributes in ({"antialias": True}, {"exclude_outside": True}, {"antialias": True, "exclude_outside": True}, {"cubic_a": -0.5}):
        for out in ((1, 4, 15, 20), (1, 5, 4, 7)):
            problem = layer((1, 9, 14, 20), out, mode, **attributes)
            harness.check(TEMPLATE, problem, tolerance=1e-4, absolute=1e-5)


def test_scales():
    problem = layer((1, 10, 10, 8), (1, 25, 5, 8), "linear", "asymmetric", scales=(1.0, 2.5, 0.55, 1.0))
    harness.check(TEMPLATE, problem, tolerance=1e-4, absolute=1e-5)
    problem = layer((1, 10, 10, 8), (1, 4, 4, 8), "cubic", antialias=True, scales=(1.0, 0.4, 0.45, 1.0))
    harness.check(TEMPLATE, problem, tolerance=1e-4, absolute=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "f64", "u8", "i32"])
def test_types(dtype):
    for mode in ("linear", "cubic"):
        # Sums that are whole numbers but for their rounding may be cut either way.
        harness.check(TEMPLATE, layer((1, 5, 6, 20), (1, 9, 11, 20), mode, dtype=dtype), off_by=1)
        harness.check(TEMPLATE, layer((3, 7), (5, 20), mode, dtype=dtype), off_by=1)


def test_symbols():
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    sizes = {"n": 2, "h": 5, "w": 7}
    for mode in ("nearest", "linear"):
        antialias = mode == "linear"
        for out, smooth in (((n, h * 2, w * 2, 9), False), ((n, 5, 3, 9), antialias)):
            problem = layer((n, h, w, 9), out, mode, antialias=smooth)
            harness.check(TEMPLATE, problem, sizes=sizes, tolerance=1e-4, absolute=1e-5)
    problem = layer((n, 9, h, w), (n, 9, h * 2, w * 3), "linear")
    harness.check(TEMPLATE, problem, sizes=sizes, tolerance=1e-4, absolute=1e-5)
    harness.check(TEMPLATE, layer((n, h, 9), (n, h, 9)), sizes=sizes)
    harness.check(TEMPLATE, layer((n, h, 9), (n, 4, 9)), sizes={"n": 0, "h": 5})


def test_epilogue():
    expression = harness.chain(["f32", "f32"], ("add", 0, 1))
    for mode in ("nearest", "linear"):
        for out in ((1, 8, 12, 20), (1, 8, 12, 33)):
            problem = layer((1, 4, 6, 20), out, mode, more={"expression": expression, "extra": {"e": ("f32", out[-1:])}})
            harness.check(TEMPLATE, problem, tolerance=1e-4, absolute=1e-5)


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for mode in ("nearest", "linear", "cubic"):
        calls = TEMPLATE.build(layer((1, 4, 6, 20), (1, 4, 12, 40), mode), {}, device).calls
        for call in calls:
            assert compile_ir(render([call.kernel], device.target), device.target)
