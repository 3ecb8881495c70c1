"""Scatters, running totals and the best k against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.ops_harness import check, kinds, lower_model, make_model, rand

X = rand(4, 5, 6)
UPDATES = rand(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("op", ["none", "add", "mul", "min", "max"])
def test_scatter_elements(op, axis):
    size = X.shape[axis]
    distinct = np.argsort(rand(*UPDATES.shape), axis).astype(np.int64)  # an order in which equals are written is not defined
    indices = np.where(distinct % 2, distinct, distinct - size)
    check("ScatterElements", {"x": X, "i": indices, "u": UPDATES}, axis=axis, reduction=op)
    check("ScatterElements", {"x": X, "u": UPDATES}, {"i": indices}, order=["x", "i", "u"], axis=axis, reduction=op)


@pytest.mark.parametrize("op", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(op, depth):
    rows = np.stack([[0, 3, 1], [2, -1, 0], [1, -3, 5]], 1).astype(np.int64)[:, :depth]
    updates = rand(3, *X.shape[depth:])
    check("ScatterND", {"x": X, "i": rows, "u": updates}, symbolic=False, reduction=op)
    check("ScatterND", {"x": X, "u": updates}, {"i": rows}, order=["x", "i", "u"], reduction=op)


def test_places_outside_write_nothing():
    import onnx.helper as oh

    from sartor.graph.reference import evaluate_graph

    for wrong in (4, -6, 2**40, -(2**62)):
        node = oh.make_node("ScatterND", ["x", "i", "u"], ["y"])
        feeds = {"x": X, "i": np.array([[wrong, 2], [1, wrong]], np.int64), "u": rand(2, 6)}
        graph = lower_model(make_model([node], feeds, ["y"]))
        assert "scatter" in kinds(graph)
        if wrong == 4:  # inside the second dimension
            feeds["i"][1, 1] = 5
        np.testing.assert_array_equal(evaluate_graph(graph, feeds)["y"], X)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_running_totals(op, exclusive, reverse):
    for axis in (0, 1, -1):
        place = {"axis": np.array(axis, np.int32)}
        options = {"exclusive": exclusive, "reverse": reverse, "opset": 14 if op == "CumSum" else 26, "tolerance": 1e-4}
        check(op, {"x": X}, place, **options)
    check(op, {"x": X, **place}, symbolic=False, **options)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_best_k(axis, largest):
    for x in (X, rand(4, 5, 6, dtype=np.int64)):
        for k in (1, 3):
            check("TopK", {"x": x}, {"k": np.array([k], np.int64)}, outputs=2, axis=axis, largest=largest)


@pytest.mark.parametrize("time", [0, 1])
def test_reversed_sequences(time):
    x = rand(4, 4, 3)
    check("ReverseSequence", {"x": x, "n": np.array([4, 1, 3, 2], np.int64)}, time_axis=time, batch_axis=1 - time)


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_of_a_diagonal_known_when_it_runs(upper):
    for k in (-2, 0, 3):
        check("Trilu", {"x": X, "k": np.array(k, np.int64)}, symbolic=False, upper=upper)


def test_columns_to_an_image():
    image, block = np.array([5, 6], np.int64), np.array([2, 3], np.int64)
    for count, options in ((4 * 4, {}), (3 * 2, {"strides": [2, 2], "pads": [0, 0, 1, 0]}),
                           (5 * 4, {"dilations": [2, 2], "pads": [1, 1, 1, 1]})):
        check("Col2Im", {"x": rand(2, 18, count)}, {"image": image, "block": block}, symbolic=False, **options)


def test_unpooling():
    places = np.array([[[[5, 7], [13, 15]]], [[[16, 18], [24, 31]]]], np.int64)
    check("MaxUnpool", {"x": rand(2, 1, 2, 2), "i": places}, kernel_shape=[2, 2], strides=[2, 2])
    check("MaxUnpool", {"x": rand(2, 1, 2, 2), "i": places}, {"shape": np.array([2, 1, 5, 5], np.int64)}, symbolic=False,
          kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("options", [{}, {"pads": [1, 0, 1, 2]}, {"strides": [2, 1], "dilations": [1, 2]}], ids=str)
def test_col2im_of_sizes_known_in_the_run(options):
    pads, strides, dilations = options.get("pads", [0] * 4), options.get("strides", [1, 1]), options.get("dilations", [1, 1])
    image, block = (6, 7), (2, 3)
    windows = [(s + pads[i] + pads[i + 2] - (k - 1) * dilations[i] - 1) // strides[i] + 1
               for i, (s, k) in enumerate(zip(image, block, strict=True))]
    feeds = {"x": rand(2, 12, int(np.prod(windows))), "image": np.array(image), "block": np.array(block)}
    check("Col2Im", feeds, fixed={"image": 0, "block": 0}, **options)
