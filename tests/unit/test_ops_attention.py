"""Attention operators in layers, against onnx's reference, with known sizes and with symbols."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.ops_harness import RNG, check, kinds, lower_model, make_model, rand

from sartor.errors import ModelError
from sartor.graph.passes import optimize
from sartor.graph.reference import evaluate_graph

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 3, 5, 8


def operands(queries=QUERIES, keys=KEYS, groups=GROUPS, columns=WIDTH):
    return {"q": rand(BATCH, HEADS, queries, WIDTH), "k": rand(BATCH, groups, keys, WIDTH), "v": rand(BATCH, groups, keys, columns)}




@pytest.mark.parametrize("kind", ["mask", "causal"])
def test_a_query_without_keys_gives_zeros(kind):
    seen = RNG.random((QUERIES, KEYS)) < 0.7
    seen[1] = False
    feeds = operands()
    if kind == "causal":
        feeds = operands(keys=QUERIES)
        seen = np.array([[True, False, False], [False, False, True], [True, True, False]])
    for opset in (23, 24, 26):
        graph = check("Attention", feeds, {"m": seen}, opset=opset, symbolic=False, is_causal=int(kind == "causal"))
        assert not evaluate_graph(graph, feeds)["y0"][:, :, 1].any()


def test_a_query_whose_added_mask_leaves_nothing_gives_zeros():
    mask = rand(QUERIES, KEYS)
    mask[2] = -np.inf
    graph = check("Attention", operands(), {"m": mask}, opset=24, symbolic=False)
    assert kinds(graph).count("attention") == 1
    check("Attention", operands(), {"m": mask}, opset=24, symbolic=False, softcap=3.0)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"softcap": 2.0, "is_causal": 1}, {"left_window_size": 2},
                                        {"left_window_size": 1, "right_window_size": 1}, {"is_causal": 1, "right_window_size": 2}])
@pytest.mark.parametrize("mask", [None, "f32", "bool"])
def test_caches(attributes, mask):
    feeds = {**operands(keys=QUERIES), "pk": rand(BATCH, GROUPS, 4, WIDTH), "pv": rand(BATCH, GROUPS, 4, WIDTH)}
    if mask:
        feeds["m"] = rand(BATCH, 1, QUERIES, 7) if mask == "f32" else RNG.random((BATCH, 1, QUERIES, 7)) < 0.8
    node = oh.make_node("Attention", ["q", "k", "v", "m" if mask else "", "pk", "pv"], ["y", "nk", "nv"], **attributes)
    dims = {"q": ["b", HEADS, "s", WIDTH], "m": ["b", 1, "s", "p+s"]}
    dims.update({n: ["b", GROUPS, "p" if n[0] == "p" else "s", WIDTH] for n in ("k", "v", "pk", "pv")})
    model = make_model([node], feeds, ["y", "nk", "nv"], None, 26, dims)
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    got = evaluate_graph(graph, feeds)
    for name, want in zip(("y", "nk", "nv"), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"left_window_size": 1}])
@pytest.mark.parametrize("columns", [KEYS, KEYS - 1])
def test_keys_that_are_padding(attributes, columns):
    feeds = {**operands(), "n": np.array([4, 2], np.int64), "m": rand(QUERIES, columns)}
    node = oh.make_node("Attention", ["q", "k", "v", "m", "", "", "n"], ["y"], **attributes)
    model = make_model([node], feeds, ["y"], None, 26)
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    want = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(evaluate_graph(graph, feeds)["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_as_an_output(mode):
    seen = np.tril(np.ones((QUERIES, KEYS), bool))
    seen[0] = False
    cap = 2.0 if mode else 0.0  # mode 0 is the raw product, of which the reference gives the capped one
    node = oh.make_node("Attention", ["q", "k", "v", "m"], ["y", "", "", "s"], qk_matmul_output_mode=mode, softcap=cap)
    feeds = {**operands(), "m": seen}
    model = make_model([node], feeds, ["y", "s"], None, 24)
    graph = lower_model(model)
    got = evaluate_graph(graph, feeds)
    for name, want in zip(("y", "s"), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


def test_heads_of_queries_must_be_a_multiple():
    with pytest.raises(ModelError, match="4 heads of queries for 3 of keys"):
        lower_model(make_model([oh.make_node("Attention", ["q", "k", "v"], ["y"])], operands(groups=3), ["y"], None, 23))


def test_keys_alone_repeated_is_no_attention_of_fewer_heads():
    """Keys scaled after they were repeated keep their heads; the values' then must too."""
    feeds = operands()
    node = oh.make_node("Attention", ["q", "k", "v"], ["y"])
    schema = onnx.defs.get_schema("Attention", 23, "")
    types = [oh.make_tensor_type_proto(1, x.shape).SerializeToString() for x in feeds.values()]
    body = onnx.FunctionProto.FromString(schema.get_context_dependent_function_with_opset_version(23, node.SerializeToString(), types))
    model = make_model(list(body.node), {n.upper(): x for n, x in feeds.items()}, ["Y"], None, 23)
    for name in ("is_causal", "qk_matmul_output_mode", "softcap"):
        assert name not in str(body.node)
    graph = optimize(lower_model(model))
    want = ReferenceEvaluator(model).run(None, {n.upper(): x for n, x in feeds.items()})[0]
    got = evaluate_graph(graph, {n.upper(): x for n, x in feeds.items()})["Y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def modifier(op, constant):
    dims = ["B", "H", "L", "S"]
    given, made = (oh.make_tensor_value_info(n, 1, dims) for n in ("in", "out"))
    return oh.make_graph([oh.make_node(op, ["in", "c"], ["out"])], "mod", [given], [made], [oh.make_tensor("c", 1, [], [constant])])


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}, {"score_mod": ("Add", 0.5)}, {"prob_mod": ("Mul", 2.0)},
                                        {"score_mod": ("Mul", 0.5), "prob_mod": ("Add", 0.1)}])
def test_flex_attention(attributes):
    given = {n: modifier(*a) if isinstance(a, tuple) else a for n, a in attributes.items()}
    node = oh.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **given)
    feeds = operands()
    model = make_model([node], feeds, ["y"], None, 26, {"q": ["b", HEADS, "s", WIDTH], "k": ["b", GROUPS, "t", WIDTH],
                                                        "v": ["b", GROUPS, "t", WIDTH]})
    model.opset_import.append(oh.make_opsetid("ai.onnx.preview", 1))
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    want = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(evaluate_graph(graph, feeds)["y"], want, rtol=1e-4, atol=1e-5)


def linear_feeds(rule, heads, groups, past, per_row, dtype=np.float32):
    steps, depth, columns = 4, 3, 5
    feeds = {"q": rand(BATCH, steps, heads * depth), "k": rand(BATCH, steps, groups * depth), "v": rand(BATCH, steps, groups * columns)}
    if past:
        feeds["s"] = rand(BATCH, groups, depth, columns)
    if "gated" in rule:
        feeds["d"] = -np.abs(rand(BATCH, steps, groups * (depth if per_row else 1)))
    if "delta" in rule:
        feeds["b"] = RNG.random((BATCH, steps, 1 if per_row else groups)).astype(np.float32)
    return {name: (x * 0.5).astype(dtype) for name, x in feeds.items()}


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "groups", "past", "per_row"), [(2, 2, False, True), (4, 2, True, False), (3, 1, True, True)])
def test_linear_attention(rule, heads, groups, past, per_row):
    feeds = linear_feeds(rule, heads, groups, past, per_row)
    order = [name if name in feeds else "" for name in "qkvsdb"]
    while not order[-1]:
        order.pop()
    node = oh.make_node("LinearAttention", order, ["y", "n"], q_num_heads=heads, kv_num_heads=groups, update_rule=rule)
    dims = {name: ["b", *(["t"] if name != "s" else [groups]), *x.shape[2:]] for name, x in feeds.items()}
    model = make_model([node], feeds, ["y", "n"], None, 27, dims)
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    got = evaluate_graph(graph, feeds)
    for name, want in zip(("y", "n"), ReferenceEvaluator(model).run(None, feeds), strict=True):
        assert got[name].dtype == want.dtype
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


def test_a_rule_without_its_inputs_is_refused():
    feeds = linear_feeds("linear", 2, 2, False, False)
    node = oh.make_node("LinearAttention", list(feeds), ["y", "n"], q_num_heads=2, kv_num_heads=2, update_rule="delta")
    with pytest.raises(ModelError, match="update rule 'delta'"):
        lower_model(make_model([node], feeds, ["y", "n"], None, 27))
