"""Convolutions, pools, resizing and what else works on spatial dimensions, against onnx's reference and plain formulas."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import check, kinds, lower_model, make_model, rand

from sartor.errors import ModelError

X1, X2, X3 = rand(2, 4, 11), rand(1, 4, 9, 8), rand(1, 2, 5, 6, 7)


@pytest.mark.parametrize(("x", "w", "attributes"), [
    (X1, (6, 4, 3), {}),
    (X1, (6, 4, 3), {"strides": [2], "pads": [2, 1], "dilations": [2]}),
    (X2, (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    (X2, (6, 4, 1, 1), {}),
    (X2, (6, 2, 3, 2), {"group": 2, "pads": [0, 1, 2, 0], "strides": [2, 1]}),
    (X2, (8, 1, 3, 3), {"group": 4, "dilations": [1, 2]}),
    (X3, (3, 2, 2, 3, 2), {"strides": [1, 2, 2], "pads": [0, 1, 0, 1, 0, 1]}),
])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(x, w, attributes, bias):
    constants = {"w": rand(*w), **({"b": rand(w[0])} if bias else {})}
    graph = check("Conv", {"x": x}, constants, tolerance=1e-4, **attributes)
    assert kinds(graph) == ["transpose", "convolution", "transpose"]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
@pytest.mark.parametrize("size", [(9, 8), (10, 7)])
def test_convolution_pads_itself(mode, strides, size):
    check("Conv", {"x": rand(1, 2, *size)}, {"w": rand(3, 2, 3, 4)}, tolerance=1e-4, auto_pad=mode, strides=strides)


def test_weights_need_not_be_constant():
    check("Conv", {"x": X2, "w": rand(3, 4, 3, 3), "b": rand(3)}, tolerance=1e-4, symbolic=False)
    check("ConvTranspose", {"x": X2, "w": rand(4, 3, 3, 3)}, tolerance=1e-4, symbolic=False)


@pytest.mark.parametrize(("x", "w", "attributes"), [
    (X1, (4, 3, 3), {"strides": [2]}),
    (X2, (4, 3, 3, 3), {"pads": [1, 0, 0, 1]}),
    (X2, (4, 2, 2, 2), {"strides": [2, 2], "group": 2}),
    (X2, (4, 3, 3, 3), {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 1, 1, 1]}),
    (X2, (4, 3, 3, 3), {"dilations": [2, 1]}),
    (X2, (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    (X2, (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    (X3, (2, 3, 2, 2, 2), {"strides": [2, 1, 2]}),
])
def test_transposed_convolution(x, w, attributes):
    check("ConvTranspose", {"x": x}, {"w": rand(*w), "b": rand(w[1] * attributes.get("group", 1))}, tolerance=1e-4, runtime=True,
          **attributes)


def test_transposed_convolution_of_a_wanted_shape():
    graph = check("ConvTranspose", {"x": X2}, {"w": rand(4, 3, 3, 3)}, symbolic=False, tolerance=1e-4, runtime=True,
                  strides=[3, 2], output_shape=[28, 17])
    assert graph.tensors["y0"].shape == (1, 3, 28, 17)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("attributes", [
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 0, 0, 1]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 2]},
])
def test_pools(attributes, ceil):
    check("MaxPool", {"x": X2}, ceil_mode=ceil, **attributes)
    for include in (0, 1):
        check("AveragePool", {"x": X2}, opset=19, count_include_pad=include, ceil_mode=ceil, **attributes)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pools_pad_themselves(mode):
    check("MaxPool", {"x": X2}, runtime=True, kernel_shape=[3, 3], strides=[2, 2], auto_pad=mode)
    check("MaxPool", {"x": X1}, runtime=True, kernel_shape=[3], auto_pad=mode)
    check("AveragePool", {"x": X2}, runtime=True, kernel_shape=[2, 3], strides=[1, 2], auto_pad=mode)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p):
    windows = np.lib.stride_tricks.sliding_window_view(np.abs(X2).astype(np.float64) ** p, (2, 3), (2, 3))
    check("LpPool", {"x": X2}, kernel_shape=[2, 3], p=p, expected=[(windows.sum((-1, -2)) ** (1 / p)).astype(np.float32)])
    whole = (np.abs(X2).astype(np.float64) ** p).sum((2, 3), keepdims=True) ** (1 / p)
    check("GlobalLpPool", {"x": X2}, p=p, expected=[whole.astype(np.float32)])


@pytest.mark.parametrize("x", [X1, X2, X3])
def test_global_pools(x):
    axes = tuple(range(2, x.ndim))
    check("GlobalAveragePool", {"x": x}, expected=[x.mean(axes, keepdims=True)])
    check("GlobalMaxPool", {"x": x}, expected=[x.max(axes, keepdims=True)])


def test_indices_of_maxima_need_no_host():
    node = oh.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])
    graph = lower_model(make_model([node], {"x": X2}, ["y", "i"]))
    assert "host" not in kinds(graph)
    assert str(graph.tensors["i"]) == "i64[1, 4, 8, 7]"


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="larger than its padded input"):
        lower_model(make_model([oh.make_node("Conv", ["x", "w"], ["y"])], {"x": X2}, ["y"], {"w": rand(1, 4, 10, 1)}))
    with pytest.raises(ModelError, match="join"):
        lower_model(make_model([oh.make_node("Conv", ["x", "w"], ["y"])], {"x": X2}, ["y"], {"w": rand(1, 3, 1, 1)}))


# --- resizing --------------------------------------------------------------------------------------------------------------


def resize(x, *, scales=None, sizes=None, roi=None, symbolic=True, **attributes):
    constants = {}
    order = ["x", "", "", ""]
    for place, (name, values, dtype) in enumerate([("roi", roi, np.float32), ("scales", scales, np.float32),
                                                   ("sizes", sizes, np.int64)]):
        if values is not None:
            constants[name] = np.array(values, dtype)
            order[place + 1] = name
    return check("Resize", {"x": x}, constants, order=order, opset=19, tolerance=1e-4, symbolic=symbolic, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel",
                                        "half_pixel_symmetric"])
@pytest.mark.parametrize("target", [{"scales": [1, 1, 2, 1.5]}, {"scales": [1, 1, 0.6, 0.5]}, {"sizes": [1, 4, 13, 5]}])
def test_resize(mode, coordinate, target):
    resize(X2, mode=mode, coordinate_transformation_mode=coordinate, symbolic="scales" in target, **target)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_rounds(rounding):
    resize(X2, mode="nearest", nearest_mode=rounding, scales=[1, 1, 1.5, 2.5])


@pytest.mark.parametrize("attributes", [
    {"mode": "linear", "antialias": 1, "scales": [1, 1, 0.5, 0.6]},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1, "scales": [1, 1, 0.8, 1.7]},
    {"mode": "linear", "axes": [2, 3], "scales": [2, 3]},
    {"mode": "linear", "axes": [3], "sizes": [3]},
])
def test_resize_options(attributes):
    resize(X2, **attributes)


def test_resize_keeps_the_aspect_ratio():
    for policy in ("not_larger", "not_smaller"):
        resize(X2, mode="nearest", axes=[2, 3], sizes=[20, 9], keep_aspect_ratio_policy=policy, symbolic=False)


def test_resize_crops():
    resize(X2, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", roi=[0, 0, 0.2, 0.3, 1, 1, 0.9, 1.4],
           sizes=[1, 4, 5, 6], extrapolation_value=7.0, symbolic=False)
    resize(X2, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", roi=[0, 0, 0.2, 0.3, 1, 1, 0.9, 1.4],
           scales=[1, 1, 0.5, 2], extrapolation_value=7.0, symbolic=False)  # the crop leaves the sizes alone


def test_resize_to_the_size_of_another():
    nodes = [oh.make_node("Shape", ["x"], ["xs"], end=2), oh.make_node("Shape", ["y"], ["ys"], start=2),
             oh.make_node("Concat", ["xs", "ys"], ["s"], axis=0), oh.make_node("Resize", ["x", "", "", "s"], ["z"])]
    graph = lower_model(make_model(nodes, {"x": X2, "y": X2}, ["z"], dims={"x": ["n", 4, "h", "w"], "y": ["n", 4, "u", "v"]}))
    assert kinds(graph) == ["resize"]
    assert str(graph.tensors["z"]) == "f32[n, 4, u, v]"


def test_upsample():
    expected = X2.repeat(2, 2).repeat(3, 3)
    check("Upsample", {"x": X2}, {"s": np.array([1, 1, 2, 3], np.float32)}, opset=9, expected=[expected])
    check("Upsample", {"x": X2}, opset=7, scales=[1.0, 1.0, 2.0, 3.0], expected=[expected])
    check("Resize", {"x": X2}, {"s": np.array([1, 1, 2, 3], np.float32)}, opset=10, expected=[expected])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode):
    check("DepthToSpace", {"x": rand(2, 12, 2, 3)}, blocksize=2, mode=mode)
    check("SpaceToDepth", {"x": rand(2, 3, 4, 6)}, blocksize=2)
