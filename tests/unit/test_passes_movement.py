"""Movements, canonical forms, padding, parallel products and look-ups."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.graphs import Build, kinds, only, rewritten

from sartor.graph.layer import Graph
from sartor.graph.passes import canonical, dead, fuse, identities, movement, narrow, onehot, optimize, pads, parallel, scalars
from sartor.sizes import symbol


def moved(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: dead.run(identities.run(movement.run(g))), **sizes)


# --- movement --------------------------------------------------------------------------------------------------------------------


def test_a_slice_of_a_concatenation_is_its_operand_or_a_slice_of_it() -> None:
    b = Build()
    n = symbol("n")
    x, y = b.input(n, 3), b.input(n, 5)
    joined = b.concat([x, y], 1)
    after = moved(b.finish(b.op("relu", b.slice(joined, 1, 3, 5)), b.op("neg", b.slice(joined, 1, 4, 2))), n=2)
    assert kinds(after) == ["elementwise", "elementwise", "slice"]
    assert only(after, "slice").attributes["starts"] == (0, 1)


def test_a_slice_across_operands_stays() -> None:
    b = Build()
    after = moved(b.finish(b.op("relu", b.slice(b.concat([b.input(2, 3), b.input(2, 5)], 1), 1, 2, 3))))
    assert kinds(after) == ["concat", "elementwise", "slice"]


def test_symbolic_operands_are_told_apart() -> None:
    b = Build()
    n, m = symbol("n"), symbol("m")
    x, y = b.input(n, 2), b.input(m, 2)
    joined = b.concat([x, y], 0)
    after = moved(b.finish(b.op("relu", b.slice(joined, 0, n, m))), n=2, m=3)
    assert kinds(after) == ["elementwise"]


def test_slices_of_slices() -> None:
    b = Build()
    y = b.slice(b.slice(b.input(2, 20), 1, 2, 9, 2), 1, 1, 3, 3)
    after = moved(b.finish(b.op("relu", y)))
    assert only(after, "slice").attributes == {"starts": (0, 4), "steps": (1, 6)}


def test_a_split_that_is_joined_again_vanishes() -> None:
    b = Build()
    n = symbol("n")
    x = b.input(2, n, 4)
    y = b.concat([b.slice(x, 1, 0, 2), b.slice(x, 1, 2, n - 2)], 1)
    after = moved(b.finish(b.op("relu", y)), n=5)
    assert kinds(after) == ["elementwise"]


def test_concatenations_of_concatenations() -> None:
    b = Build()
    x, y, empty = b.input(2, 3), b.input(2, 5), b.input(2, 0)
    after = moved(b.finish(b.concat([b.concat([x, empty], 1), b.concat([y, x], 1)], 1)))
    assert kinds(after) == ["concat"]
    assert after.layers[0].inputs == (x, y, x)


@pytest.mark.parametrize(("indices", "expected"), [(np.array(-1), ["slice"]), (np.array([[3, 1]]), ["slice"]), (np.array([0, 2, 3]), ["gather"])])
def test_gathers_in_even_steps_are_slices(indices: np.ndarray, expected: list[str]) -> None:  # type: ignore[type-arg]
    b = Build()
    x = b.input(2, 4, 3)
    y = b.layer("gather", [x, b.constant(indices.astype(np.int64))], (2, *indices.shape, 3), axis=1)
    after = moved(b.finish(b.op("relu", y)))
    assert [k for k in kinds(after) if k not in ("elementwise", "reshape")] == expected


def test_a_cut_of_the_outer_of_split_columns_is_a_cut_of_columns() -> None:
    b = Build()
    n = symbol("n")
    y = b.reshape(b.slice(b.reshape(b.input(n, 24), n, 3, 2, 4), 1, 1, 1), n, 2, 4)
    after = moved(b.finish(b.op("relu", y)), n=3)
    assert only(after, "slice").attributes["starts"] == (0, 8)
    assert after.tensors[only(after, "slice").outputs[0]].shape == (n, 8)


# --- canonical forms -------------------------------------------------------------------------------------------------------------


def test_a_pool_over_everything_is_a_reduction() -> None:
    b = Build()
    attributes = {"strides": (7, 7), "dilations": (1, 1), "pads": (0, 0, 0, 0), "include_pad": False}
    x = b.input(2, 4, 5, 3)
    y = b.layer("pool", [x], (2, 1, 1, 3), mode="average", kernel=(4, 5), **attributes)
    z = b.layer("pool", [x], (2, 1, 2, 3), mode="max", kernel=(4, 4), **{**attributes, "strides": (1, 1)})
    after = rewritten(b.finish(y, z), canonical.run)
    assert kinds(after) == ["pool", "reduce"]


def test_sums_of_squares_are_one_reduction() -> None:
    b = Build()
    n = symbol("n")
    x = b.input(n, 4)
    square = b.op("mul", x, x)
    after = rewritten(b.finish(b.reduce(square, "mean", 1), b.reduce(square, "mean", 0)), lambda g: dead.run(canonical.run(g)), n=3)
    assert [layer.attributes["op"] for layer in after.layers if layer.kind == "reduce"] == ["sum_square", "mean"]


def test_a_constant_with_batch_dims_of_one_is_a_matrix() -> None:
    b = Build()
    after = rewritten(b.finish(b.matmul(b.input(2, 3, 4), b.draw(1, 4, 5))), canonical.run)
    assert after.tensors[after.layers[0].inputs[1]].shape == (4, 5)


def test_padding_joins_convolutions_and_pools() -> None:
    b = Build()
    n, h = symbol("n"), symbol("h")
    padded = b.layer("pad", [b.input(n, h, 6, 3)], (n, h + 3, 7, 3), before=(0, 1, 0, 0), mode="constant", value=0.0)
    common = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    y = b.convolution(padded, 4, (3, 3))
    z = b.layer("pool", [padded], (n, h + 1, 5, 3), mode="average", kernel=(3, 3), include_pad=False, **common)
    low = b.layer("pool", [padded], (n, h + 1, 5, 3), mode="max", kernel=(3, 3), **common)
    after = rewritten(b.finish(y, z, low), lambda g: dead.run(pads.run(g)), n=2, h=5)
    assert kinds(after) == ["convolution", "pad", "pool", "pool"]  # zeros count for a maximum
    assert only(after, "convolution").attributes["pads"] == (1, 0, 2, 1)


def test_padding_that_cannot_be_absorbed_stays() -> None:
    b = Build()
    x = b.input(2, 6, 6, 3)
    for before, shape, mode, value in [((0, 1, 1, 0), (2, 8, 8, 3), "reflect", 0.0), ((0, 1, 1, 0), (2, 8, 8, 3), "constant", 1.0),
                                       ((0, -1, 0, 0), (2, 5, 6, 3), "constant", 0.0), ((0, 0, 0, 1), (2, 6, 6, 4), "constant", 0.0)]:
        y = b.convolution(b.layer("pad", [x], shape, before=before, mode=mode, value=value), 4, (3, 3))
        b.graph.outputs = (*b.graph.outputs, y)
    after = rewritten(b.finish(*b.graph.outputs), pads.run)
    assert kinds(after).count("pad") == 4


# --- parallel products -----------------------------------------------------------------------------------------------------------


def prepared(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: dead.run(parallel.run(fuse.run(scalars.run(g)))), **sizes)


@pytest.mark.parametrize("swapped", [False, True])
def test_parallel_products_become_one(swapped: bool) -> None:
    b = Build()
    n = symbol("n")
    x = b.input(n, 6)
    up, gate = (b.op("add", b.matmul(x, b.draw(*((k, 6) if swapped else (6, k))), transpose_b=swapped), b.draw(k)) for k in (4, 4))
    after = prepared(b.finish(b.softmax(up, 1), b.softmax(gate, 1)), n=3)
    assert kinds(after) == ["matmul", "slice", "slice", "softmax", "softmax"]


def test_parallel_convolutions_become_one_unless_they_are_joined() -> None:
    b = Build()
    x = b.input(1, 5, 5, 3)
    a, c, d = (b.op("relu", b.convolution(x, k, (1, 1))) for k in (2, 3, 4))
    wide = b.convolution(x, 5, (3, 3), 1)
    after = prepared(b.finish(b.concat([a, b.convolution(c, 2, (3, 3), 1), b.softmax(d, 3), wide], 3)))
    assert kinds(after).count("convolution") == 4
    assert kinds(after).count("slice") == 2


def test_products_with_other_work_stay_apart() -> None:
    b = Build()
    x = b.input(3, 6)
    y, z = b.op("relu", b.matmul(x, b.draw(6, 4))), b.op("tanh", b.matmul(x, b.draw(6, 4)))
    after = prepared(b.finish(b.softmax(y, 1), b.softmax(z, 1)))
    assert kinds(after).count("matmul") == 2


def test_a_product_cut_into_heads_becomes_several() -> None:
    b = Build()
    n, s = symbol("n"), symbol("s")
    x = b.input(n, s, 8)
    joined = b.reshape(b.op("add", b.matmul(x, b.draw(8, 24)), b.draw(24)), n, s, 3, 2, 4)
    parts = b.transpose(joined, 2, 0, 3, 1, 4)
    q, k, v = (b.layer("gather", [parts, b.constant(np.array(i))], (n, 2, s, 4), axis=0) for i in range(3))
    weights = b.softmax(b.matmul(b.op("mul", q, 0.5), k, transpose_b=True), 3)
    y = b.reshape(b.transpose(b.matmul(weights, v), 0, 2, 1, 3), n, s, 8)
    after = rewritten(b.finish(b.op("relu", y)), optimize, n=2, s=3)
    assert sorted(set(kinds(after))) == ["attention", "matmul", "reshape"] or kinds(after).count("elementwise") == 1
    assert kinds(after).count("matmul") == 3
    assert "slice" not in kinds(after)
    assert "transpose" not in kinds(after)


# --- narrowing -------------------------------------------------------------------------------------------------------------------


def narrowed(graph: Graph, **sizes: int) -> Graph:
    return rewritten(graph, lambda g: dead.run(narrow.run(fuse.run(scalars.run(g)))), **sizes)


def test_only_the_first_token_of_the_last_block_is_computed() -> None:
    b = Build()
    n, s = symbol("n"), symbol("s")
    x = b.input(n, s, 4)
    q, k, v = (b.reshape(b.matmul(x, b.draw(4, 4)), n, s, 2, 2) for _ in range(3))
    mask = b.input(s, s)
    y = b.layer("attention", [q, k, v, mask], (n, s, 2, 2), scale=1.0, causal=False)
    y = b.op("add", b.matmul(b.reshape(y, n, s, 4), b.draw(4, 4)), x)
    y = b.layer("normalize", [b.op("add", y, b.draw(4))], (n, s, 4), axes=(2,), mode="layer", epsilon=1e-5)
    y = b.slice(b.op("mul", y, b.draw(4)), 1, 0, 1)
    after = narrowed(b.finish(b.matmul(b.reshape(y, n, 4), b.draw(4, 3))), n=2, s=3)
    sizes = [after.tensors[layer.outputs[0]].shape[1] for layer in after.layers if layer.kind in ("matmul", "attention", "normalize")]
    assert sizes.count(s) == 2  # keys and values
    assert {layer.inputs[0] for layer in after.layers if layer.kind == "slice"} == {x, mask}


@pytest.mark.parametrize("kind", ["rows", "columns", "batch", "transposed", "softmax", "reduce", "concat", "gather", "transpose", "cast"])
def test_slices_pass_work_they_do_not_touch(kind: str) -> None:
    b = Build()
    x = b.input(3, 4, 6)
    y, axis = x, 1
    if kind == "rows":
        y = b.op("add", b.matmul(x, b.draw(6, 5)), b.draw(4, 1))
    elif kind == "columns":
        y, axis = b.op("add", b.matmul(x, b.input(5, 6), transpose_b=True), b.draw(5)), 2
    elif kind == "batch":
        y, axis = b.matmul(x, b.input(1, 6, 5)), 0
    elif kind == "transposed":
        y = b.matmul(x, b.input(3, 4, 5), transpose_a=True)
    elif kind == "softmax":
        y = b.softmax(x, 2)
    elif kind == "reduce":
        y = b.reduce(x, "sum", 2)
    elif kind == "concat":
        y = b.concat([x, b.draw(3, 4, 2)], 2)
    elif kind == "gather":
        y = b.layer("gather", [b.input(3, 5, 6), b.input(4, dtype="i64")], (3, 4, 6), axis=1)
    elif kind == "transpose":
        y = b.transpose(x, 2, 1, 0)
    else:
        y = b.op("mul", b.op("add", x, b.input(4, 1)), b.input(1, 1, 6))
    after = narrowed(b.finish(b.op("relu", b.slice(y, axis, 1, 2))))
    made = {layer.outputs[0] for layer in after.layers}
    assert all(layer.inputs[0] not in made for layer in after.layers if layer.kind == "slice")
    assert "slice" in kinds(after)


def test_slices_stay_behind_what_needs_the_whole_or_is_read_again() -> None:
    b = Build()
    x = b.input(3, 4)
    soft, wide = b.softmax(x, 1), b.op("sin", x)
    after = narrowed(b.finish(b.op("relu", b.slice(soft, 1, 1, 2)), b.op("relu", b.slice(wide, 0, 1, 2)), b.op("exp", b.op("tan", wide))))
    assert all(layer.inputs[0] in (soft, wide) for layer in after.layers if layer.kind == "slice")


# --- look-ups --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_a_product_with_one_hot_vectors_is_a_look_up(dtype: str) -> None:
    b = Build()
    n = symbol("n")
    index = b.input(n, 7, 1, dtype=dtype)
    steps = b.constant(np.arange(4, dtype=np.int64 if dtype == "i64" else np.int32))
    hot = b.op("eq", index, steps)
    float_hot = b.copy(hot)
    b.graph.tensors[float_hot] = b.graph.tensors[float_hot].__class__("f32", b.shape(hot))
    from sartor.graph.expression import ExpressionBuilder

    e = ExpressionBuilder(["bool"])
    b._set(expression=e.finish(e("cast", 0, dtype="f32")))
    y = b.op("tanh", b.op("add", b.matmul(float_hot, b.draw(4, 3)), b.draw(3)))
    after = rewritten(b.finish(y), lambda g: dead.run(onehot.run(fuse.run(scalars.run(g)))), n=2)  # indices go up to 4: out of range
    assert sorted(set(kinds(after))) == ["elementwise", "gather", "reshape"]
    assert only(after, "gather").expression is None
