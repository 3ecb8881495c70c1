"""Transposes move to the edges and cancel; reshapes move behind element-wise work."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.graphs import Build, kinds, only, rewritten

from sartor.graph.layer import Graph
from sartor.graph.passes import dead, optimize, reshapes, transposes
from sartor.graph.passes.permutations import compose, groups, inverse, is_trivial, through_reshape
from sartor.sizes import symbol


def moved(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: dead.run(transposes.run(g)), **sizes)


def test_a_residual_network_has_one_transpose_at_each_edge() -> None:
    b = Build()
    n, h = symbol("n"), symbol("h")
    x = b.input(n, 3, h, 5)
    y = b.op("relu", b.op("mul", b.convolution_first(x, 4, 3, 1), b.draw(1, 4, 1, 1)))
    y = b.op("relu", b.op("add", b.convolution_first(y, 4, 3, 1), y))
    y = b.concat([y, b.convolution_first(y, 2, 1)], 1)
    y = b.convolution_first(b.op("sigmoid", y), 3, 1)
    after = moved(b.finish(y), n=2, h=6)
    assert kinds(after).count("transpose") == 2
    assert after.layers[0].kind == after.layers[-1].kind == "transpose"
    assert only_axis(after) == 3


def only_axis(graph: Graph) -> int:
    return int(only(graph, "concat").attributes["axis"])


def test_a_gate_of_single_pixels_needs_no_transpose() -> None:
    b = Build()
    y = b.convolution_first(b.input(2, 3, 4, 4), 4, 1)
    gate = b.op("sigmoid", b.convolution_first(b.reduce(y, "mean", 2, 3), 4, 1))
    z = b.reduce(b.op("mul", y, gate), "mean", 2, 3)
    after = moved(b.finish(b.matmul(b.reshape(z, 2, 4), b.draw(4, 3))))
    assert kinds(after).count("transpose") == 1


def test_no_transpose_at_an_edge_with_one_channel() -> None:
    b = Build()
    after = moved(b.finish(b.convolution_first(b.input(2, 1, 6, 6), 1, 3)))
    assert "transpose" not in kinds(after)


@pytest.mark.parametrize("kind", ["softmax", "normalize", "slice", "pad", "resize", "gather", "reduce"])
def test_layers_work_in_the_layout_they_get(kind: str) -> None:
    b = Build()
    y = b.transpose(b.input(2, 4, 6, 3), 0, 3, 1, 2)
    if kind == "softmax":
        y = b.softmax(y, 1)
    elif kind == "normalize":
        y = b.layer("normalize", [y], (2, 3, 4, 6), axes=(2, 3), mode="layer", epsilon=1e-5)
    elif kind == "slice":
        y = b.slice(y, 3, 1, 2, 2)
    elif kind == "pad":
        y = b.layer("pad", [y], (2, 3, 5, 9), before=(0, 0, 1, 2), mode="reflect", value=0.0)
    elif kind == "resize":
        y = b.layer("resize", [y], (2, 3, 8, 3), mode="linear", scales=(1.0, 1.0, 2.0, 0.5), coordinate="tf_crop_and_resize",
                    roi=(0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.8, 1.2), extrapolation=5.0)
    elif kind == "gather":
        y = b.layer("gather", [y, b.constant(np.array([[2, 0], [1, 1]]))], (2, 3, 4, 2, 2), axis=3)
        y = b.transpose(y, 0, 2, 3, 4, 1)
        assert kinds(moved(b.finish(y))) == ["gather"]
        return
    else:
        y = b.reduce(y, "max", 1)
    after = moved(b.finish(b.op("relu", b.transpose(y, 0, 2, 3, 1))))
    assert kinds(after) == sorted(["elementwise", kind])


def test_an_operand_in_the_other_layout_is_transposed_only_where_that_pays() -> None:
    b = Build()
    x, other = b.input(2, 4, 5, 3), b.input(2, 3, 4, 5)
    y = b.op("add", b.transpose(x, 0, 3, 1, 2), other)
    after = moved(b.finish(y))
    assert kinds(after) == ["elementwise", "transpose"]
    after = moved(b.finish(b.op("neg", b.transpose(b.op("relu", y), 0, 2, 3, 1))))
    assert kinds(after) == ["elementwise", "elementwise", "elementwise", "transpose"]
    assert only(after, "transpose").inputs == (other,)


def test_matrix_products_take_swapped_operands() -> None:
    b = Build()
    x, y = b.input(2, 3, 4), b.input(2, 5, 4)
    after = moved(b.finish(b.matmul(b.transpose(b.transpose(x, 0, 2, 1), 0, 2, 1), b.transpose(y, 0, 2, 1))))
    assert kinds(after) == ["matmul"]
    assert after.layers[0].attributes["transpose_b"]
    assert not after.layers[0].attributes["transpose_a"]


def test_keys_are_not_moved_column_by_column() -> None:
    b = Build()
    q, k = b.input(2, 3, 5, 4), b.input(2, 5, 3, 4)
    after = moved(b.finish(b.matmul(q, b.transpose(k, 0, 2, 3, 1))))
    assert only(after, "transpose").attributes["perm"] == (0, 2, 1, 3)
    assert only(after, "matmul").attributes["transpose_b"]


def test_flattening_permutes_the_weights() -> None:
    b = Build()
    n = symbol("n")
    y = b.reshape(b.transpose(b.input(n, 2, 3, 4), 0, 3, 1, 2), n, 24)
    after = moved(b.finish(b.matmul(y, b.draw(24, 5)), b.matmul(y, b.draw(6, 24), transpose_b=True)), n=3)
    assert kinds(after) == ["matmul", "matmul", "reshape"]


def test_patches_become_tokens_without_a_transpose() -> None:
    b = Build()
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    y = b.reshape(b.transpose(b.input(n, h, w, 4), 0, 3, 1, 2), n, 4, h * w)
    after = moved(b.finish(b.op("relu", b.transpose(y, 0, 2, 1))), n=2, h=3, w=5)
    assert kinds(after) == ["elementwise", "reshape"]


def test_a_channel_shuffle_keeps_one_transpose() -> None:
    b = Build()
    n = symbol("n")
    y = b.reshape(b.convolution_first(b.input(n, 3, 4, 4), 6, 1), n, 2, 3, 4, 4)
    y = b.reshape(b.transpose(y, 0, 2, 1, 3, 4), n, 6, 4, 4)
    after = moved(b.finish(b.convolution_first(y, 2, 3)), n=2)
    assert kinds(after) == ["convolution", "convolution", "reshape", "reshape", "transpose", "transpose", "transpose"]
    assert [len(layer.attributes["perm"]) for layer in after.layers if layer.kind == "transpose"] == [4, 5, 4]


def test_group_norm_keeps_channels_last() -> None:
    b = Build()
    n, h = symbol("n"), symbol("h")
    y = b.reshape(b.convolution_first(b.input(n, 3, h, 4), 6, 1), n, 2, h * 12)
    y = b.layer("normalize", [y], (n, 2, h * 12), axes=(2,), mode="layer", epsilon=1e-3)
    y = b.op("mul", b.reshape(y, n, 6, h, 4), b.draw(6, 1, 1))
    after = rewritten(b.finish(b.convolution_first(y, 2, 3)), optimize, n=2, h=5)
    assert kinds(after) == ["convolution", "convolution", "normalize", "reshape", "reshape", "transpose", "transpose"]


def test_transposes_of_constants_fold() -> None:
    b = Build()
    after = moved(b.finish(b.op("add", b.input(4, 3), b.transpose(b.draw(3, 4), 1, 0))))
    assert kinds(after) == ["elementwise"]


def test_permutations() -> None:
    perm = (2, 0, 3, 1)
    assert compose(perm, inverse(perm)) == (0, 1, 2, 3)
    assert is_trivial((1, 5, 1, 2), (1, 0, 2, 3))
    assert not is_trivial((2, 5), (1, 0))


def test_groups_of_a_reshape() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    assert groups((n, 4, h, w), (n, 4, h * w)) == [([0], [0]), ([1], [1]), ([2, 3], [2])]
    assert groups((n, 1, 12), (n, 3, 4)) == [([0], [0]), ([2], [1, 2])]
    assert groups((6, 4), (4, 6)) == [([0, 1], [0, 1])]
    assert groups((2, 3), (6, 2)) is None
    assert through_reshape((n, h, w, 4), (0, 3, 1, 2), (n, 4, h, w), (n, 4, h * w)) == ([0, 2, 1], (0, 2, 1))
    assert through_reshape((n, h, w, 4), (0, 3, 1, 2), (n, 4, h, w), (n, 4 * h, w)) is None


def test_elementwise_work_moves_before_a_reshape() -> None:
    b = Build()
    n = symbol("n")
    y = b.reshape(b.matmul(b.input(n, 3), b.draw(3, 8)), n, 2, 4)
    y = b.op("mul", b.op("add", y, b.draw(2, 4)), 2.0)
    after = rewritten(b.finish(y), lambda g: dead.run(reshapes.run(g)), n=3)
    assert [layer.kind for layer in after.layers] == ["matmul", "elementwise", "elementwise", "reshape"]


def test_work_that_needs_the_new_shape_stays_behind_the_reshape() -> None:
    b = Build()
    y = b.reshape(b.op("relu", b.input(6, 8)), 6, 2, 4)
    after = rewritten(b.finish(b.op("mul", y, b.draw(2, 1))), reshapes.run)
    assert [layer.kind for layer in after.layers] == ["elementwise", "reshape", "elementwise"]


def test_reshapes_meet() -> None:
    b = Build()
    x, y = b.input(6, 8), b.input(6, 8)
    z = b.op("add", b.reshape(x, 6, 2, 4), b.reshape(y, 6, 2, 4))
    after = rewritten(b.finish(b.op("relu", b.reshape(z, 6, 8))), lambda g: dead.run(reshapes.run(g)))
    assert kinds(after) == ["elementwise", "elementwise"]
