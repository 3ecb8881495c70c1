"""Recognition of norms, softmax and attention written out in small operators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.unit.graphs import Build, kinds, only, rewritten

from sartor.graph.layer import Graph
from sartor.graph.passes import attention, dead, norms, optimize, scalars, softmaxes
from sartor.sizes import symbol


def recognised(graph: Graph, **sizes: int) -> Graph:
    def run(g: Graph) -> Graph:
        for step in (scalars, norms, softmaxes, attention, dead):
            g = step.run(g)
        return g

    return rewritten(graph, run, **sizes)


# --- norms -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("root", "square", "swap"), list(itertools.product(["div", "reciprocal", "pow", "one over"], ["pow", "mul"], [0, 1])))
def test_layer_norm_in_any_spelling(root: str, square: str, swap: int) -> None:
    b = Build()
    n = symbol("n")
    x = b.input(n, 6)
    d = b.op("sub", x, b.reduce(x, "mean", 1))
    v = b.op("add", b.reduce(b.op("pow", d, 2.0) if square == "pow" else b.op("mul", d, d), "mean", 1), 1e-3)
    if root == "div":
        y = b.op("div", d, b.op("sqrt", v))
    else:
        r = {"reciprocal": lambda: b.op("reciprocal", b.op("sqrt", v)), "pow": lambda: b.op("pow", v, -0.5),
             "one over": lambda: b.op("div", 1.0, b.op("sqrt", v))}[root]()
        y = b.op("mul", *((d, r), (r, d))[swap])
    gamma, beta = b.draw(6), b.draw(6)
    y = b.op("add", beta, b.op("mul", *((y, gamma), (gamma, y))[swap]))
    after = recognised(b.finish(y), n=3)
    assert kinds(after) == ["elementwise", "elementwise", "normalize"]
    layer = only(after, "normalize")
    assert layer.attributes == {"axes": (1,), "mode": "layer", "epsilon": pytest.approx(1e-3)}
    assert kinds(optimize(after)) == ["normalize"]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_rms_norm_in_any_order(order: int) -> None:
    b = Build()
    x, gamma = b.input(4, 6), b.draw(6)
    r = b.op("reciprocal", b.op("sqrt", b.op("add", b.reduce(b.op("mul", x, x), "mean", 1), 1e-3)))
    y = [lambda: b.op("mul", b.op("mul", x, r), gamma), lambda: b.op("mul", gamma, b.op("mul", r, x)),
         lambda: b.op("mul", x, b.op("mul", r, gamma))][order]()
    after = recognised(b.finish(y))
    assert only(after, "normalize").attributes["mode"] == "rms"
    assert "reduce" not in kinds(after)


def test_scale_joined_to_the_root_and_mean_taken_off_the_bias() -> None:
    b = Build()
    x, gamma, beta = b.input(4, 5, 6), b.draw(6), b.draw(6)
    mean = b.reduce(x, "mean", 2)
    d = b.op("sub", x, mean)
    i = b.op("mul", b.op("reciprocal", b.op("sqrt", b.op("add", b.reduce(b.op("mul", d, d), "mean", 2), 1e-3))), gamma)
    y = b.op("add", b.op("mul", x, i), b.op("sub", beta, b.op("mul", mean, i)))
    after = recognised(b.finish(y))
    assert kinds(after) == ["elementwise", "normalize"]


def test_variance_by_squares_and_means_by_sums() -> None:
    b = Build()
    x, gamma = b.input(4, 5, 6), b.draw(5, 1)
    mean = b.op("mul", b.reduce(x, "sum", 1), 0.2)
    v = b.op("relu", b.op("sub", b.op("mul", b.reduce(b.op("mul", x, x), "sum", 1), 0.2), b.op("mul", mean, mean)))
    y = b.op("mul", b.op("sub", x, mean), b.op("mul", b.op("reciprocal", b.op("sqrt", b.op("add", v, 1e-3))), gamma))
    after = recognised(b.finish(y))
    assert only(after, "normalize").attributes["axes"] == (1,)
    assert "reduce" not in kinds(after)


def test_what_only_looks_like_a_norm_is_left_alone() -> None:
    b = Build()
    x, other = b.input(4, 6), b.input(4, 6)
    d = b.op("sub", x, b.reduce(x, "mean", 1))
    far = b.op("sub", x, b.reduce(x, "mean", 0))  # another axis
    third = b.op("mul", b.reduce(x, "sum", 1), 0.3)  # not the mean
    cases = [b.op("div", d, b.op("sqrt", b.op("add", b.reduce(b.op("mul", far, far), "mean", 1), 1e-3))),
             b.op("div", other, b.op("sqrt", b.op("add", b.reduce(b.op("mul", d, d), "mean", 1), 1e-3))),
             b.op("div", d, b.op("add", b.reduce(b.op("mul", d, d), "mean", 1), 1e-3)),
             b.op("div", b.op("sub", x, third), b.op("sqrt", b.op("add", b.reduce(b.op("mul", d, d), "mean", 1), 1e-3)))]
    after = recognised(b.finish(*cases))
    assert "normalize" not in kinds(after)


# --- softmax ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_softmax(shifted: bool, log: bool) -> None:
    b = Build()
    x = b.input(4, 6)
    t = b.op("sub", x, b.reduce(x, "max", 1)) if shifted else x
    e = b.op("exp", t)
    total = b.reduce(e, "sum", 1)
    after = recognised(b.finish(b.op("sub", t, b.op("log", total)) if log else b.op("div", e, total)))
    assert kinds(after) == ["softmax"]
    assert after.layers[0].inputs == (x,)
    assert after.layers[0].attributes == {"axis": 1, "log": log}


# --- attention -------------------------------------------------------------------------------------------------------------------


def heads(b: Build, x: str, count: int, columns: int, *perm: int) -> str:
    """A projection of x [n, s, k], split into heads and transposed."""
    n, s, k = b.shape(x)
    y = b.op("add", b.matmul(x, b.draw(int(str(k)), count * columns)), b.draw(count * columns))
    return b.transpose(b.reshape(y, n, s, count, columns), *perm)


@pytest.mark.parametrize(("scale", "mask"), list(itertools.product(["after", "both", "none"], ["none", "added", "chosen", "infinite", "causal"])))
def test_transformer_attention_has_no_transposes(scale: str, mask: str) -> None:
    b = Build()
    n, s = symbol("n"), symbol("s")
    x = b.input(n, s, 6)
    q, k, v = heads(b, x, 2, 4, 0, 2, 1, 3), heads(b, x, 2, 4, 0, 2, 3, 1), heads(b, x, 2, 5, 0, 2, 1, 3)
    if scale == "both":
        q, k = b.op("mul", q, 0.7), b.op("mul", k, 0.7)
    scores = b.matmul(q, k)
    if scale == "after":
        scores = b.op("div", scores, 2.0)
    seen = b.input(n, 1, 1, s, dtype="bool")
    if mask == "added":
        scores = b.op("add", scores, b.input(n, 1, s, s))
    elif mask == "chosen":
        scores = b.op("select", seen, scores, -3e38, shape=b.shape(scores))
    elif mask == "infinite":
        scores = b.op("select", b.constant(np.arange(4) != 2), scores, -np.inf, shape=b.shape(scores))
    elif mask == "causal":
        scores = b.op("select", b.constant(np.tril(np.ones((1, 1, 4, 4), bool))), scores, -1e9, shape=b.shape(scores))
    y = b.reshape(b.transpose(b.matmul(b.softmax(scores, 3), v), 0, 2, 1, 3), n, s, 10)
    graph = b.finish(b.matmul(y, b.draw(10, 6)))
    after = rewritten(graph, optimize, n=2, s=4)
    assert set(kinds(after)) <= {"attention", "matmul", "reshape", "elementwise"}
    assert kinds(after).count("matmul") == 4
    layer = only(after, "attention")
    assert layer.attributes["scale"] == (0.5 if scale == "after" else 1.0)
    assert layer.attributes["causal"] == (mask == "causal")
    assert (layer.inputs[3] == "") == (mask in ("none", "causal"))


def test_heads_joined_to_the_batch() -> None:
    b = Build()
    n, s = symbol("n"), symbol("s")
    x = b.input(n, s, 6)
    q, k, v = (b.reshape(heads(b, x, 2, 4, 0, 2, 1, 3), n * 2, s, 4) for _ in range(3))
    weights = b.softmax(b.op("add", b.matmul(q, k, transpose_b=True), b.input(n * 2, s, s)), 2)
    y = b.reshape(b.matmul(weights, v), n, 2, s, 4)
    graph = b.finish(b.op("relu", b.reshape(b.transpose(y, 0, 2, 1, 3), n, s, 8)))
    after = rewritten(graph, optimize, n=2, s=3)
    assert "transpose" not in kinds(after)
    assert after.tensors[only(after, "attention").inputs[0]].shape == (n, s, 2, 4)


def test_tokens_before_heads() -> None:
    b = Build()
    s = symbol("s")
    x = b.input(s, 1, 8)
    q, k, v = (b.transpose(b.reshape(b.matmul(x, b.draw(8, 8)), s, 2, 4), 1, 0, 2) for _ in range(3))
    weights = b.softmax(b.matmul(b.op("mul", q, 0.5), b.transpose(k, 0, 2, 1)), 2)
    graph = b.finish(b.op("relu", b.reshape(b.transpose(b.matmul(weights, v), 1, 0, 2), s, 1, 8)))
    after = rewritten(graph, optimize, s=3)
    assert "transpose" not in kinds(after)
    assert after.tensors[only(after, "attention").outputs[0]].shape == (1, s, 2, 4)


def test_heads_that_were_never_transposed_join_the_batch() -> None:
    b = Build()
    q, k, v = b.input(2, 3, 5, 4), b.input(2, 3, 6, 4), b.input(2, 3, 6, 4)
    after = rewritten(b.finish(b.matmul(b.softmax(b.matmul(q, k, transpose_b=True), 3), v)), optimize)
    assert kinds(after) == ["attention", "reshape", "reshape", "reshape", "reshape"]


def test_one_head_alone() -> None:
    b = Build()
    q, k, v = b.input(2, 5, 4), b.input(2, 6, 4), b.input(2, 6, 3)
    scores = b.op("add", b.matmul(q, k, transpose_b=True), b.input(2, 1, 6))
    after = rewritten(b.finish(b.matmul(b.softmax(scores, 2), v)), optimize)
    assert "attention" in kinds(after)
    assert "transpose" not in kinds(after)


def test_a_causal_mask_cut_from_a_larger_one() -> None:
    b = Build()
    s, t = symbol("s"), symbol("t")
    q, k, v = b.input(2, 3, s, 4), b.input(2, 3, t, 4), b.input(2, 3, t, 4)
    whole = b.constant(np.tril(np.ones((1, 1, 9, 9), bool)))
    seen = b.layer("slice", [whole], (1, 1, s, t), "bool", starts=(0, 0, t - s, 0), steps=(1, 1, 1, 1))
    scores = b.op("select", seen, b.matmul(q, k, transpose_b=True), -1e4, shape=(2, 3, s, t))
    after = rewritten(b.finish(b.matmul(b.softmax(scores, 3), v)), optimize, s=3, t=5)
    assert only(after, "attention").attributes["causal"]


@pytest.mark.parametrize("early", [False, True])
def test_heads_shared_by_several_queries_are_not_repeated(early: bool) -> None:
    b = Build()
    n, s = symbol("n"), symbol("s")
    x = b.input(n, s, 6)

    def repeated(y: str) -> str:
        if early:  # before heads and tokens change places
            return b.transpose(b.reshape(b.copy(b.reshape(y, n, s, 2, 1, 4), (n, s, 2, 3, 4)), n, s, 6, 4), 0, 2, 1, 3)
        return b.reshape(b.copy(b.reshape(b.transpose(y, 0, 2, 1, 3), n, 2, 1, s, 4), (n, 2, 3, s, 4)), n, 6, s, 4)

    q = heads(b, x, 6, 4, 0, 2, 1, 3)
    k, v = (repeated(heads(b, x, 2, 4, 0, 1, 2, 3)) for _ in range(2))
    weights = b.softmax(b.matmul(q, b.transpose(k, 0, 1, 3, 2)), 3)
    y = b.reshape(b.transpose(b.matmul(weights, v), 0, 2, 1, 3), n, s, 24)
    after = rewritten(b.finish(b.matmul(y, b.draw(24, 3))), optimize, n=2, s=3)
    assert [after.tensors[v].shape[2] for v in only(after, "attention").inputs[:3]] == [6, 2, 2]
    assert set(kinds(after)) == {"attention", "matmul", "reshape"}


@pytest.mark.parametrize(("keys", "values", "scaled"), [(2, 3, ""), (1, 2, ""), (2, 2, "k"), (3, 3, "v"), (6, 2, ""), (2, 6, "")])
def test_keys_and_values_repeated_unlike_each_other_keep_their_heads(keys: int, values: int, scaled: str) -> None:
    b = Build()
    n, s, heads, size = symbol("n"), symbol("s"), 6, 4

    def repeated(groups: int) -> str:
        y = b.reshape(b.transpose(b.reshape(b.input(n, s, groups * size), n, s, groups, size), 0, 2, 1, 3), n, groups, 1, s, size)
        return b.reshape(b.copy(y, (n, groups, heads // groups, s, size)), n, heads, s, size)

    q = b.transpose(b.reshape(b.input(n, s, heads * size), n, s, heads, size), 0, 2, 1, 3)
    k, v = repeated(keys), repeated(values)
    k, v = b.op("mul", k, 0.5) if scaled == "k" else k, b.op("mul", v, 0.5) if scaled == "v" else v
    after = rewritten(b.finish(b.matmul(b.softmax(b.matmul(q, k, transpose_b=True), 3), v)), optimize, n=2, s=3)
    assert len({after.tensors[v].shape[2] for v in only(after, "attention").inputs[:3]}) == 1


def test_weights_that_are_no_number_become_zero() -> None:
    b = Build()
    q, k, v = b.input(1, 1, 5, 4), b.input(1, 1, 6, 4), b.input(1, 1, 6, 4)
    seen = b.constant(np.arange(30).reshape(5, 6) >= 6)  # the first query sees nothing
    scores = b.op("select", seen, b.matmul(q, k, transpose_b=True), -np.inf, shape=(1, 1, 5, 6))
    weights = b.softmax(scores, 3)
    weights = b.op("select", b.op("is_nan", weights), 0.0, weights)
    after = rewritten(b.finish(b.matmul(weights, v)), optimize)
    assert str(only(after, "attention").expression) == "select(is_nan(x0), 0.0, x0)"


def test_other_work_on_scores_is_left_alone() -> None:
    b = Build()
    q, k, v = b.input(2, 3, 5, 4), b.input(2, 3, 6, 4), b.input(2, 3, 6, 4)
    soft = b.op("tanh", b.matmul(q, k, transpose_b=True))
    few = b.op("select", b.input(5, 6, dtype="bool"), b.matmul(q, k, transpose_b=True), -1e4, shape=(2, 3, 5, 6))
    scaled = b.op("mul", b.op("add", b.matmul(q, k, transpose_b=True), b.input(5, 6)), 0.5)
    outputs = [b.matmul(b.softmax(s, 3), v) for s in (soft, few, scaled)]
    after = recognised(b.finish(*outputs))
    assert "attention" not in kinds(after)


def test_scores_that_are_an_output_stay() -> None:
    b = Build()
    q, k, v = b.input(2, 3, 5, 4), b.input(2, 3, 6, 4), b.input(2, 3, 6, 4)
    weights = b.softmax(b.matmul(q, k, transpose_b=True), 3)
    after = recognised(b.finish(b.matmul(weights, v), weights))
    assert "attention" not in kinds(after)
