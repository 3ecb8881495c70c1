"""Element-wise fusion and folding of scales into weights; the algebra of expressions below them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.graphs import Build, kinds, only, rewritten

from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.layer import Graph
from sartor.graph.passes import affine, dead, fuse, scalars
from sartor.graph.passes.algebra import cost, simplify, substitute, tidy
from sartor.sizes import symbol


def fused(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: fuse.run(scalars.run(g)), **sizes)


def folded(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: dead.run(affine.run(fuse.run(scalars.run(g)))), **sizes)


# --- expressions -----------------------------------------------------------------------------------------------------------------


def built(make: Callable[[ExpressionBuilder], int], *types: str) -> Expression:
    e = ExpressionBuilder(types or ("f32", "f32"))
    return e.finish(make(e))


@pytest.mark.parametrize(("make", "expected"), [
    (lambda e: e("mul", e.constant(1.0, "f32"), 0), "x0"),
    (lambda e: e("add", e("add", 0, e.constant(1.0, "f32")), e.constant(2.0, "f32")), "add(x0, 3.0)"),
    (lambda e: e("pow", 0, e.constant(2.0, "f32")), "mul(x0, x0)"),
    (lambda e: e("pow", 0, e.constant(-0.5, "f32")), "reciprocal(sqrt(x0))"),
    (lambda e: e("div", 0, e.constant(4.0, "f32")), "mul(x0, 0.25)"),
    (lambda e: e("div", e.constant(1.0, "f32"), e("add", e("exp", e("neg", 0)), e.constant(1.0, "f32"))), "sigmoid(x0)"),
    (lambda e: e("max", e.constant(0.0, "f32"), e("relu", 0)), "relu(x0)"),
    (lambda e: e("sub", 0, e("neg", 1)), "add(x0, x1)"),
    (lambda e: e("mul", 0, e("reciprocal", 1)), "div(x0, x1)"),
    (lambda e: e("cast", e("cast", 0, dtype="f32"), dtype="f32"), "x0"),
    (lambda e: e("sqrt", e.constant(4.0, "f32")), "2.0"),
    (lambda e: e("select", e("not", e("lt", 0, 1)), 0, 1, dtype="f32"), "select(lt(x0, x1), x1, x0)"),
])
def test_simplify(make: Callable[[ExpressionBuilder], int], expected: str) -> None:
    assert str(simplify(built(make))) == expected


def test_integer_division_is_not_made_a_product() -> None:
    assert str(simplify(built(lambda e: e("div", 0, e.constant(2, "i32")), "i32"))) == "div(x0, 2)"


def test_equal_work_has_one_form() -> None:
    one = tidy(("a", "b", "c"), built(lambda e: e("add", 2, e("add", 1, 0)), "f32", "f32", "f32"), ("a",))
    two = tidy(("a", "c", "b"), built(lambda e: e("add", e("add", 0, 2), 1), "f32", "f32", "f32"), ("a",))
    assert one == two


def test_substitute_shares_operands_and_drops_unneeded_ones() -> None:
    inner = ("a", "b"), built(lambda e: e("sub", 0, 1))
    names, expression = substitute(("x", "a", "b"), built(lambda e: e("mul", 0, 1), "f32", "f32", "f32"), {"x": inner})
    assert names == ("a", "b")
    assert str(expression) == "mul(x0, sub(x0, x1))"
    assert cost(expression) == 2


# --- fusion ----------------------------------------------------------------------------------------------------------------------


def test_a_chain_joins_the_layer_that_makes_its_operand() -> None:
    b = Build()
    n = symbol("n")
    y = b.convolution(b.input(n, 5, 5, 3), 4, (3, 3))
    y = b.op("add", y, b.draw(4))
    after = fused(b.finish(b.op("mul", y, b.op("sigmoid", y))), n=2)
    assert kinds(after) == ["convolution"]
    assert str(after.layers[0].expression) == "t0 = add(x0, x1); mul(t0, sigmoid(t0))"
    assert len(after.layers[0].source) == 4


def test_a_sum_ends_in_the_later_branch() -> None:
    b = Build()
    x = b.input(1, 4, 4, 3)
    first, second = b.convolution(x, 4, (1, 1)), b.convolution(x, 4, (1, 1))
    after = fused(b.finish(b.op("relu", b.op("add", first, second))))
    assert after.layers[0].outputs == (first,)
    assert after.layers[1].extra == (first,)


def test_a_layer_moves_behind_the_operands_it_takes_over() -> None:
    b = Build()
    x = b.input(1, 4, 4, 3)
    product = b.convolution(x, 4, (1, 1))
    other = b.softmax(b.op("neg", b.softmax(x, 3)), 3)
    wide = b.layer("gather", [other, b.constant(np.array([0, 1, 2, 0]))], (1, 4, 4, 4), axis=3)
    b.graph.layers.sort(key=lambda layer: layer.kind != "convolution")
    after = fused(b.finish(b.op("mul", product, b.softmax(wide, 3))))
    assert "elementwise" not in kinds(after)


def test_what_is_read_twice_or_an_output_is_not_fused_away() -> None:
    b = Build()
    y = b.convolution(b.input(1, 4, 4, 3), 4, (1, 1))
    after = fused(b.finish(b.op("relu", y), b.softmax(y, 3)))
    assert kinds(after) == ["convolution", "elementwise", "softmax"]
    b = Build()
    y = b.convolution(b.input(1, 4, 4, 3), 4, (1, 1))
    assert kinds(fused(b.finish(y, b.op("relu", y)))) == ["convolution", "elementwise"]


def test_work_on_a_broadcast_result_stays_apart() -> None:
    b = Build()
    x = b.input(2, 4, 4, 3)
    gate = b.op("sigmoid", b.reduce(x, "mean", 1, 2))
    after = fused(b.finish(b.op("mul", x, gate)))
    assert kinds(after) == ["elementwise", "reduce"]
    assert str(only(after, "reduce").expression) == "sigmoid(x0)"


def test_movements_take_no_expression() -> None:
    b = Build()
    x = b.input(2, 3)
    y = b.op("relu", b.transpose(x, 1, 0))
    z = b.op("neg", b.concat([x, x], 0))
    after = fused(b.finish(y, z))
    assert kinds(after) == ["concat", "elementwise", "elementwise", "transpose"]
    assert all(layer.expression is None for layer in after.layers if layer.kind != "elementwise")


def test_cheap_work_is_done_again_and_dear_work_is_not() -> None:
    b = Build()
    x = b.softmax(b.input(2, 3), 1)
    cheap = b.op("add", x, 1.0)
    after = fused(b.finish(x, b.op("relu", cheap), b.op("abs", cheap)))
    assert kinds(after) == ["elementwise", "elementwise", "softmax"]
    b = Build()
    x = b.softmax(b.input(2, 3), 1)
    dear = b.op("erf", b.op("tanh", x))
    assert kinds(fused(b.finish(x, b.op("relu", dear), b.op("abs", dear)))) == ["elementwise"] * 3 + ["softmax"]


def test_readers_take_what_was_expanded() -> None:
    b = Build()
    x, small = b.input(4, 5), b.input(1, 5)
    after = fused(b.finish(b.op("add", x, b.copy(small, (4, 5)))))
    assert [layer.inputs for layer in after.layers] == [(x, small)]


def test_shapes_that_binding_holds_equal_are_one_shape() -> None:
    b = Build()
    h = symbol("h")
    half = (h + 1) // 2
    x, skip = b.input(half, 4), b.input(h, 4)
    wide = b.layer("resize", [x], (half * 2, 4), mode="nearest", scales=(2.0, 1.0), coordinate="asymmetric", nearest="floor")
    y = b.op("add", skip, wide, shape=(h, 4))
    graph = b.finish(y)
    assert kinds(fused(graph, h=6)) == ["elementwise", "resize"]
    graph.conditions.append((half * 2, h))
    after = fused(graph, h=6)
    assert kinds(after) == ["resize"]
    assert after.layers[0].extra == (skip,)


def test_operands_have_a_limit() -> None:
    b = Build()
    y = b.input(4, 5)
    for _ in range(20):
        y = b.op("mul", y, b.input(4, 5))
    after = fused(b.finish(y))
    assert max(len(layer.inputs) for layer in after.layers) <= fuse.MOST_OPERANDS


# --- scales ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["convolution", "grouped", "deconvolution", "matmul", "transposed"])
def test_batch_normalisation_folds_into_weights(kind: str) -> None:
    b = Build()
    if kind in ("matmul", "transposed"):
        y = b.matmul(b.input(2, 3), b.draw(*((4, 3) if kind == "transposed" else (3, 4))), transpose_b=kind == "transposed")
    elif kind == "deconvolution":
        y = b.layer("deconvolution", [b.input(1, 4, 4, 6), b.draw(2, 2, 6, 2)], (1, 8, 8, 4), strides=(2, 2), dilations=(1, 1),
                    pads=(0, 0, 0, 0), groups=2)
    else:
        y = b.convolution(b.input(1, 4, 4, 6), 4, (3, 3), 1, groups=2 if kind == "grouped" else 1)
    y = b.op("div", b.op("sub", b.op("add", y, b.draw(4)), b.draw(4)), b.constant(np.array([1.0, 2.0, 0.5, 4.0])))
    y = b.op("relu", b.op("add", b.op("mul", y, b.draw(4)), b.draw(4)))
    after = folded(b.finish(y))
    assert len(after.layers) == 1
    assert str(after.layers[0].expression) == "relu(add(x0, x1))"


def test_a_scale_behind_other_work_stays() -> None:
    b = Build()
    y = b.op("mul", b.op("relu", b.matmul(b.input(2, 3), b.draw(3, 4))), b.draw(4))
    after = folded(b.finish(y))
    assert str(only(after, "matmul").expression) == "mul(relu(x0), x1)"


def test_a_scale_of_rows_does_not_fold() -> None:
    b = Build()
    after = folded(b.finish(b.op("mul", b.matmul(b.input(2, 3), b.draw(3, 4)), b.draw(2, 1))))
    assert str(only(after, "matmul").expression) == "mul(x0, x1)"


@pytest.mark.parametrize("kind", ["unpadded", "grouped", "matmul"])
def test_a_scale_and_shift_before_a_product_fold(kind: str) -> None:
    b = Build()
    x = b.input(2, 5, 5, 6)
    y = b.op("add", b.op("mul", x, b.draw(6)), b.draw(6))
    y = b.matmul(y, b.draw(6, 4)) if kind == "matmul" else b.convolution(y, 4, (3, 3), groups=2 if kind == "grouped" else 1)
    after = folded(b.finish(b.op("relu", y)))
    assert len(after.layers) == 1
    assert str(after.layers[0].expression) == "relu(add(x0, x1))"


def test_only_a_scale_passes_padding() -> None:
    b = Build()
    y = b.convolution(b.op("mul", b.input(2, 5, 5, 6), b.draw(6)), 4, (3, 3), 1)
    assert kinds(folded(b.finish(y))) == ["convolution"]
    b = Build()
    y = b.convolution(b.op("add", b.input(2, 5, 5, 6), b.draw(6)), 4, (3, 3), 1)
    assert kinds(folded(b.finish(y))) == ["convolution", "elementwise"]


def test_steps_elsewhere_become_one_of_each() -> None:
    b = Build()
    y = b.softmax(b.input(2, 3), 1)
    for op in ("mul", "add", "mul", "add"):
        y = b.op(op, y, b.draw(3))
    after = folded(b.finish(b.op("relu", y)))
    assert str(only(after, "softmax").expression) == "relu(add(mul(x0, x1), x2))"
