"""Pooled regions and convolution at moved places, against onnx's reference, and ONNX Runtime where that has none."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import check, lower_model, make_model, rand

from sartor.errors import ModelError

BOXES = np.array([[0, 0, 6, 9], [1.5, 2.5, 8, 7.25], [-3, -2, 20, 30], [4, 4, 4, 4]], np.float32)
IMAGES = np.array([0, 1, 1, 0])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("opset", "options"), [
    (10, {}), (10, {"sampling_ratio": 2}), (16, {}), (16, {"coordinate_transformation_mode": "output_half_pixel"}),
    (22, {"sampling_ratio": 3, "spatial_scale": 0.5}), (22, {"output_height": 3, "output_width": 2, "spatial_scale": 1.5})], ids=str)
def test_roi_align(mode, opset, options):
    extra = {} if opset >= 16 else {"runtime": True}  # the reference takes opset 16's default for opset 10 too
    if opset == 10 and mode == "max":
        return  # ONNX Runtime interpolates otherwise there
    feeds = {"x": rand(2, 3, 10, 9), "boxes": BOXES, "images": IMAGES}
    check("RoiAlign", feeds, opset=opset, mode=mode, tolerance=1e-4, **extra, **options)


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_max_roi_pool(scale):
    boxes = np.concatenate([IMAGES[:, None].astype(np.float32), np.maximum(BOXES, 0)], axis=1)
    check("MaxRoiPool", {"x": rand(2, 3, 10, 9), "boxes": boxes}, runtime=True, pooled_shape=[3, 2], spatial_scale=scale)


def test_regions_that_fit_nothing():
    feeds = {"x": rand(2, 3, 10, 9), "boxes": BOXES, "images": IMAGES}
    for options in ({"output_height": 0}, {"sampling_ratio": -1}, {"mode": "median"}):
        with pytest.raises(ModelError):
            lower_model(make_model([oh.make_node("RoiAlign", list(feeds), ["y"], **options)], feeds, ["y"]))


@pytest.mark.parametrize("options", [
    {}, {"pads": [1, 0, 1, 2]}, {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 1, 1, 1]}, {"group": 2}, {"offset_group": 2},
    {"group": 2, "offset_group": 4}], ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_deformable_convolution(options, full):
    group, parts = options.get("group", 1), options.get("offset_group", 1)
    pads, strides, dilations = options.get("pads", [0] * 4), options.get("strides", [1, 1]), options.get("dilations", [1, 1])
    kernel, sizes = (2, 3), (6, 7)
    out = [(s + pads[i] + pads[i + 2] - (k - 1) * dilations[i] - 1) // strides[i] + 1
           for i, (s, k) in enumerate(zip(sizes, kernel, strict=True))]
    feeds = {"x": rand(2, 4, *sizes), "w": rand(2, 4 // group, *kernel), "o": rand(2, parts * 12, *out) * 2}
    if full:
        feeds |= {"b": rand(2), "m": rand(2, parts * 6, *out)}
    check("DeformConv", feeds, opset=19, symbolic=False, tolerance=1e-4, **options)


def test_deformable_convolution_of_unknown_sizes():
    feeds = {"x": rand(1, 2, 5, 6), "o": rand(1, 8, 4, 5)}
    node = oh.make_node("DeformConv", ["x", "w", "o"], ["y"])
    weights = {"w": rand(3, 2, 2, 2)}
    check("DeformConv", feeds, weights, order=["x", "w", "o"], opset=22, symbolic=False, tolerance=1e-4)
    graph = lower_model(make_model([node], feeds, ["y"], weights, 22), shapes={"x": ["n", 2, "h", "w"], "o": ["n", 8, "p", "q"]})
    assert len(graph.conditions) >= 2


def test_deformable_convolution_of_one_and_three_dimensions_moves_nothing_by_no_offsets():
    for rank in (1, 3):
        sizes, kernel = (5, 4, 6)[:rank], (2, 3, 2)[:rank]
        out = [s - k + 1 for s, k in zip(sizes, kernel, strict=True)]
        x, w = rand(2, 3, *sizes), rand(4, 3, *kernel)
        wanted = np.zeros((2, 4, *out), np.float32)
        for place in np.ndindex(*out):
            window = x[(slice(None), slice(None), *(slice(p, p + k) for p, k in zip(place, kernel, strict=True)))]
            wanted[(slice(None), slice(None), *place)] = np.tensordot(window, w, (range(1, rank + 2), range(1, rank + 2)))
        offsets = np.zeros((2, int(np.prod(kernel)) * rank, *out), np.float32)
        check("DeformConv", {"x": x, "w": w, "o": offsets}, opset=19, symbolic=False, expected=[wanted], tolerance=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 1, 5, 5), (3, 0, 0), (2, 1, 1)], ids=str)
def test_determinants(shape):
    for dtype in (np.float32, np.float64):
        x = rand(*shape, dtype=dtype)
        check("Det", {"x": x}, opset=22, expected=[np.asarray(np.linalg.det(x)).astype(dtype)], tolerance=1e-4)
