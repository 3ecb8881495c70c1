"""How If, Loop and Scan are lowered, what their layers mean, and what is said of models that have them wrong."""

import numpy as np
import pytest
from onnx import parser

from sartor.errors import ModelError, UnsupportedError
from sartor.graph.passes import optimize
from sartor.graph.reference import evaluate_graph
from sartor.graph.verify import verify
from sartor.importers.onnx import load
from sartor.ops.assume import assumed, facts_of, less, not_equal
from sartor.ops.lowering import lower
from sartor.sizes import evaluate, floordiv, symbol

RNG = np.random.default_rng(2)


def lowered(body, opset=17, **kwargs):
    graph = lower(load(parser.parse_model(f'<ir_version: 8, opset_import: ["":{opset}]> g {body}')), **kwargs)
    verify(graph)
    return graph


def kinds(graph):
    return [layer.kind for layer in graph.layers]


def evaluated(graph, **feeds):
    """The first output, which the optimised graph must have too."""
    (first, *_), (second, *_) = (list(evaluate_graph(g, feeds).values()) for g in (graph, optimize(graph)))
    np.testing.assert_allclose(first, second, 1e-6, 1e-6)
    wide = next(iter(evaluate_graph(graph, feeds, wide=True).values()))
    np.testing.assert_allclose(first, wide, 1e-5, 1e-5)
    return first


# --- conditions on sizes ---------------------------------------------------------------------------------------------------


def test_conditions_are_formulas_of_value_0_or_1():
    n, m = symbol("n"), symbol("m")
    for a in range(4):
        for b in range(4):
            sizes = {"n": a, "m": b}
            assert evaluate(not_equal(n, m), sizes) == (a != b)
            assert evaluate(less(n, m), sizes) == (a < b)


@pytest.mark.parametrize("dim", [symbol("n"), symbol("n") * 2 - 3, floordiv(symbol("n") + 5, 4), symbol("n") - symbol("m")])
def test_an_equality_that_holds_is_written_into_sizes(dim):
    facts = facts_of(1 - not_equal(dim, 1), True)
    assert assumed(dim, facts) == 1
    assert assumed(dim * dim + 2, facts) == 3
    assert assumed(not_equal(dim, 1), facts) == 0


def test_an_equality_that_does_not_hold_is_decided_afterwards():
    n = symbol("n")
    test = 1 - not_equal(n, 1)
    assert assumed(test, facts_of(test, False)) == 0
    assert assumed(n + 1, facts_of(test, False)) == n + 1


# --- layers ----------------------------------------------------------------------------------------------------------------

IF = """(float[n] x, float[n] z, bool c) => (float[n] y) {{
    a = Exp(x)
    y = If (c) < then_branch = t () => (float[n] ty) {{ ty = Add(a, z) }}, else_branch = e () => (float[n] ey) {{ {} }}> }}"""


def test_a_body_takes_what_it_needs_from_around_as_inputs():
    graph = lowered(IF.format("ey = Neg(x)"))
    assert kinds(graph) == ["elementwise", "if"]
    layer = graph.layers[-1]
    assert layer.inputs == ("c", "a", "z", "x")
    assert [body.inputs for body in layer.bodies] == [("a", "z", "x")] * 2
    assert graph.tensors["y"].shape == (symbol("n"),)
    assert layer.attributes["defines"] == []
    x, z = RNG.standard_normal((2, 5)).astype(np.float32)
    np.testing.assert_allclose(evaluated(graph, x=x, z=z, c=np.array(True)), np.exp(x) + z, 1e-6)
    np.testing.assert_allclose(evaluated(graph, x=x, z=z, c=np.array(False)), -x)


def test_a_constant_condition_is_its_branch():
    graph = lowered("""(float[n] x) => (float[n] y) {
        zero = Constant <value_int = 0> ()  c = Cast <to = 9> (zero)
        y = If (c) < then_branch = t () => (float[n] a) { a = Exp(x) }, else_branch = e () => (float[n] b) { b = Neg(x) }> }""")
    assert kinds(graph) == ["elementwise"]
    assert str(graph.layers[0].expression) == "neg(x0)"


def test_constants_of_the_graph_are_constants_of_the_body():
    graph = lowered(IF.format("k = Constant <value_float = 2.0> () ey = Mul(x, k)").replace(
        "a = Exp(x)", "a = Exp(x) w = Constant <value_floats = [1.0, 2.0, 3.0]> ()").replace("Add(a, z)", "Add(a, w)").replace(
        "[n]", "[3]"))
    layer = graph.layers[-1]
    assert "w" not in layer.inputs
    assert "w" in layer.bodies[0].constants


def test_a_size_that_a_branch_decides_is_a_symbol_of_its_own():
    graph = lowered(IF.format("ey = Concat <axis = 0> (x, z)").replace("(float[n] y)", "(float[m] y)"))
    (entry,) = graph.layers[-1].attributes["defines"]
    assert entry[1:] == (0, 0)
    assert graph.tensors["y"].shape == (symbol(entry[0]),)


def test_sizes_that_all_branches_agree_on_are_no_work():
    graph = lowered("""(float[n, m] x, bool c) => (float[n] y) {
        s = Shape(x)  zero = Constant <value_int = 0> ()
        k = If (c) < then_branch = t () => (int64 a) { a = Gather(s, zero) },
                     else_branch = e () => (int64 b) { u = Neg(x)  v = Shape(u) b = Gather(v, zero) }>
        one = Constant <value_ints = [1]> ()  q = Reshape(k, one)  f = Constant <value_float = 1.5> ()  y = Expand(f, q) }""")
    assert kinds(graph) == ["elementwise"]
    assert graph.tensors["y"].shape == (symbol("n"),)


def test_the_rest_goes_into_branches_of_different_ranks():
    graph = lowered("""(float[b, n] x) => (float y) {
        one = Constant <value_int = 1> ()  axis = Constant <value_ints = [1]> ()  s = Shape(x)  n = Gather(s, one)  c = Equal(n, one)
        z = If (c) < then_branch = t () => (float tz) { tz = Squeeze(x, axis) }, else_branch = e () => (float ez) { ez = Exp(x) }>
        y = ReduceSum <keepdims = 0> (z) }""")
    assert kinds(graph) == ["if"]
    then, _ = graph.layers[0].bodies
    assert then.tensors["x"].shape == (symbol("b"), 1)
    assert kinds(then) == ["reshape", "reduce", "reshape"]
    for n in (1, 3):
        x = RNG.standard_normal((4, n)).astype(np.float32)
        np.testing.assert_allclose(evaluated(graph, x=x), x.sum() if n == 1 else np.exp(x).sum(), 1e-5)


LOOP = """(int64 n, float[k, 2] x) => (float[m, 2] y, float[q, 2] rows) {{
    y, rows = Loop (n, , x) <body = b (int64 i, bool go, float[j, 2] v) => (bool on, float[l, 2] w, float[2] r) {{
        {}  axis = Constant <value_ints = [0]> ()  r = ReduceSum <keepdims = 0> (v, axis)  on = Identity(go) }}> }}"""


def test_what_an_iteration_leaves_as_it_is_keeps_its_size():
    graph = lowered(LOOP.format("w = Exp(v)"))
    (layer,) = graph.layers
    assert (layer.kind, layer.attributes["carried"], layer.attributes["while"]) == ("loop", 1, False)
    assert graph.tensors["y"].shape == (symbol("k"), 2)
    assert [entry[1:] for entry in layer.attributes["defines"]] == [(1, 0)]


def test_what_an_iteration_changes_is_a_symbol():
    graph = lowered(LOOP.format("w = Concat <axis = 0> (v, x)"))
    (layer,) = graph.layers
    assert [entry[1:] for entry in layer.attributes["defines"]] == [(0, 0), (1, 0)]
    (body,) = layer.bodies
    grown, start = body.tensors[body.inputs[2]].shape[0], symbol("k")
    assert grown != start
    assert body.tensors[body.outputs[1]].shape[0] == grown + start
    x = RNG.standard_normal((2, 2)).astype(np.float32)
    assert evaluated(graph, n=np.array(3), x=x).shape == (8, 2)


def test_a_scan_has_as_many_results_as_elements():
    graph = lowered("""(float[k] s, float[k, t] x) => (float[k] y, float[t, k] all) {
        y, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = g (float[k] v, float[k] p) => (float[k] w, float[k] u) {
            w = Add(v, p)  u = Mul(w, w) }> (s, x) }""")
    assert kinds(graph) == ["transpose", "scan"]
    assert graph.tensors["all"].shape == (symbol("t"), symbol("k"))
    assert graph.layers[-1].attributes["defines"] == []
    s, x = RNG.standard_normal(3).astype(np.float32), RNG.standard_normal((3, 6)).astype(np.float32)
    np.testing.assert_allclose(evaluated(graph, s=s, x=x), s + x.sum(1), 1e-5)


def test_pads_as_torch_exports_them_are_constant():
    graph = lowered("""(float[b, n] x) => (float[b, m] y) {
        p = Constant <value_ints = [0, 3, 0, 0]> ()  two = Constant <value_ints = [-1, 2]> ()  r = Reshape(p, two)
        last = Constant <value_ints = [-1]> ()  end = Constant <value_ints = [-9223372036854775807]> ()  axis = Constant <value_ints = [0]> ()
        s = Slice(r, last, end, axis, last)  t = Transpose <perm = [1, 0]> (s)  q = Reshape(t, last)  y = Pad(x, q) }""")
    assert kinds(graph) == ["pad"]
    assert graph.tensors["y"].shape == (symbol("b"), symbol("n") + 3)


def test_branches_that_lead_to_too_many_networks_are_left_to_the_host(monkeypatch):
    monkeypatch.setattr("sartor.ops.lowering.MOST_NODES", 200)
    every = range(1, 11)
    branch = ("y{0} = If (c{0}) <then_branch = t{0} () => (float[] a{0}) {{ a{0} = Squeeze(x, axis) }}, "
              "else_branch = e{0} () => (float[] b{0}) {{ b{0} = Identity(x) }}>  r{0} = ReduceSum <keepdims = 0> (y{0})  ")
    inputs = ", ".join(f"bool c{i}" for i in every)
    total = f"s = Sum({', '.join(f'r{i}' for i in every)})  y = Exp(s)"
    with pytest.raises(UnsupportedError, match="cannot be told before it runs"):
        lowered(f"(float[b, 1] x, {inputs}) => (float y) {{ axis = Constant <value_ints = [1]> ()  "
                + "".join(map(branch.format, every)) + total + " }")


# --- what is wrong ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "words"), [
    (IF.format("ey = Neg(x)").replace("bool c", "float c"), ["'c'", "f32"]),
    (IF.format("ey = Neg(x)").replace("bool c", "bool[2] c"), ["the condition 'c'", "expected one element"]),
    (IF.format("ey = Neg(x)").replace("(float[n] ey)", "(float[n] ey, float[n] x)"), ["1 outputs", "else branch makes 2"]),
    (IF.format("ey = Neg(x)").replace("(float[n] ey)", "(float[n] gone)"), ["gone"]),
    (IF.format("ey = Cast <to = 7> (x)"), ["f32", "i64"]),
    (LOOP.format("w = Cast <to = 11> (v)"), ["carries the value 'v'", "f64"]),
    (LOOP.format("w = Exp(v)").replace("(n, , x)", "(n, , x, x)"), ["carries 2 values", "3 inputs, expected 4"]),
    (LOOP.format("w = Exp(v)").replace("bool on, float[l, 2] w, float[2] r", "bool on, float[l, 2] w"), ["2 outputs", "expected 3"]),
    (LOOP.format("w = Exp(v)").replace("on = Identity(go)", "on = Cast <to = 1> (go)"), ["the condition", "expected one bool"]),
    (LOOP.format("w = Exp(v)").replace("int64 n,", "float n,"), ["'n'", "f32"]),
    (LOOP.format("w = Exp(v)").replace("(n, , x)", "(, , x)"), ["never ends"]),
])
def test_what_is_wrong_is_said_of_the_node(body, words):
    with pytest.raises(ModelError) as problem:
        lowered(body)
    text = str(problem.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
