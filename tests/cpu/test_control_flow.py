"""If, Loop and Scan in native code, beside ONNX Runtime: branches, iterations, nesting, sizes that change."""

import time

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import sartor
from sartor.errors import FeedError, SartorError

RNG = np.random.default_rng(5)


def model(body, opset=17):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["":{opset}]> g {body}')


def rand(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def bools(value):
    return np.array(value, np.bool_)


def runtime(proto, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, feed)


def check(proto, feeds, tmp_path, fallbacks=(), wanted=runtime):
    """Compares runs on one thread and on two, before and after a file, with what ONNX Runtime computes; returns the program."""
    program = sartor.compile(proto, threads=1)
    assert program.fallbacks == fallbacks
    program.save(tmp_path / "p.sartor")
    programs = [program, sartor.compile(proto, threads=2), sartor.Program.load(tmp_path / "p.sartor")]
    for each in programs:
        with sartor.Session(each) as session:
            for feed in (*feeds, *feeds):
                for (name, got), want in zip(session.run(feed).items(), wanted(proto, feed), strict=True):
                    assert got.dtype == want.dtype, name
                    assert got.shape == want.shape or got.size == want.size == 0, name  # of nothing ONNX Runtime forgets the shape
                    if not got.size:
                        continue
                    np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=name)
    return program


# --- If --------------------------------------------------------------------------------------------------------------------

IF = """(float[n, 4] x, float[4, 3] w, bool c) => (float[m, k] y, float[p] s) {
  h = Relu(x)
  y, s = If (c) <
    then_branch = t () => (float[a, b] ty, float[p] ts) { ty = MatMul(h, w)  one = Constant <value_ints = [1]> ()
                                                         ts = ReduceSum <keepdims = 0> (ty, one) },
    else_branch = e () => (float[a, b] ey, float[p] es) { ey = Concat <axis = 0> (h, x)  one = Constant <value_ints = [1]> ()
                                                         es = ReduceMax <axes = [1], keepdims = 0> (x) }>
}"""


def test_a_branch_is_chosen_in_the_run_and_its_sizes_with_it(tmp_path):
    w = rand(4, 3)
    feeds = [{"x": rand(n, 4), "w": w, "c": bools(c)} for n in (3, 1, 0) for c in (True, False)]
    program = check(model(IF), feeds, tmp_path)
    assert [layer.kind for layer in program.layers if "/" not in layer.name].count("if") == 1
    assert {layer.name.split("/")[1] for layer in program.layers if "/" in layer.name} == {"then", "else"}


def test_a_condition_on_sizes_has_a_shape_known_before_the_run(tmp_path):
    proto = model("""(float[n, 4] x) => (float[m, 4] y) {
        shape = Shape(x)  zero = Constant <value_int = 0> ()  n = Gather(shape, zero)
        two = Constant <value_int = 2> ()  c = Less(n, two)
        z = If (c) < then_branch = t () => (float[a, 4] ty) { ty = Concat <axis = 0> (x, x) },
                     else_branch = e () => (float[a, 4] ey) { ey = Neg(x) }>
        y = Exp(z) }""")
    program = check(proto, [{"x": rand(n, 4)} for n in (1, 2, 5)], tmp_path)
    with sartor.Session(program) as session:
        kinds = [task.kind for task in session.plan({"x": (5, 4)}).tasks]
    assert kinds.count("control") == 1
    assert len(program.blueprint.stages) == 1


SQUEEZE = """(float[b, n] x, float[4] v) => (float[b] y) {
  one = Constant <value_int = 1> ()  axis = Constant <value_ints = [1]> ()  s = Shape(x)  n = Gather(s, one)  c = Equal(n, one)
  z = If (c) < then_branch = t () => (float tz) { tz = Squeeze(x, axis) },
               else_branch = e () => (float ez) { ez = Identity(x) }>
  r = Relu(z)  w = Sum(r, v)  last = Constant <value_ints = [-1]> ()
  q = ReduceSum <keepdims = 0> (w, last)  t = Shape(z)  rank = Size(t)  f = Cast <to = 1> (rank)  m = Mul(q, f)
  flat = Constant <value_ints = [-1]> ()  y = Reshape(m, flat) }"""


def test_branches_of_different_ranks_take_the_rest_of_the_graph_along(tmp_path):
    feeds = [{"x": x, "v": rand(4)} for x in (rand(4, 1), rand(2, 4), rand(5, 4), rand(1, 4))]
    check(model(SQUEEZE), feeds, tmp_path)


def test_a_branch_that_makes_no_sense_is_refused_by_its_sizes(tmp_path):
    proto = model("""(float[b, n] x, float[3, 2] w) => (float[b, 2] y) {
        one = Constant <value_int = 1> ()  axis = Constant <value_ints = [1]> ()  s = Shape(x)  n = Gather(s, one)
        three = Constant <value_int = 3> ()  c = Equal(n, three)
        z = If (c) < then_branch = t () => (float[b, 3] tz) { tz = Identity(x) },
                     else_branch = e () => (float ez) { k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0]> ()  h = MatMul(k, k)
                                                        q = MatMul(w, k)  ez = Add(h, q) }>
        y = MatMul(z, w) }""")
    program = sartor.compile(proto, threads=1)
    assert [layer.kind for layer in program.layers] == ["matmul"]
    w = rand(3, 2)
    with sartor.Session(program) as session:
        x = rand(4, 3)
        np.testing.assert_allclose(session.run({"x": x, "w": w})["y"], x @ w, 1e-5, 1e-5)
        with pytest.raises(FeedError, match="expected"):
            session.run({"x": rand(4, 5), "w": w})


SQUEEZED = """(float[n, 1, m, 4] x, float[4, 3] w) => (float[k] y) {
  h = Relu(x)
  s = Squeeze(h)
  t = MatMul(s, w)
  flat = Constant <value_ints = [-1]> ()
  y = Reshape(t, flat)
}"""


def test_dropping_every_size_of_one_takes_the_rest_of_the_graph_along(tmp_path):
    check(model(SQUEEZED), [{"x": rand(n, 1, m, 4), "w": rand(4, 3)} for n in (1, 2, 3) for m in (1, 2, 5)], tmp_path)


def test_sizes_whose_squeeze_makes_no_sense_are_refused(tmp_path):
    proto = model("(float[n, 1, 4] x) => (float[a, b] y) { s = Squeeze(x)  t = Transpose <perm = [1, 0]> (s)  y = Concat <axis = 1> (t, t) }")
    program = check(proto, [{"x": rand(n, 1, 4)} for n in (2, 3)], tmp_path)
    with sartor.Session(program) as session, pytest.raises(FeedError, match="sizes n = 1"):
        session.run({"x": rand(1, 1, 4)})


def test_a_squeeze_whose_rank_the_model_gives_away_runs_on_the_host(tmp_path):
    proto = model("(float[n, 1, 4] x) => (float s) { h = Relu(x)  s = Squeeze(h) }")
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    check(proto, [{"x": rand(n, 1, 4)} for n in (1, 3)], tmp_path, fallbacks=("Squeeze_0 (Squeeze)",))


def test_a_branch_may_hand_on_what_it_is_given(tmp_path):
    proto = model("""(float[n] x, float[n] z, bool c) => (float[n] y, float[n] u, float[2] k) {
        a = Abs(x)
        y, u, k = If (c) <
          then_branch = t () => (float[n] ty, float[n] tu, float[2] tk) { ty = Identity(a) tu = Identity(a)
                                                                        tk = Constant <value_floats = [1.0, 2.0]> () },
          else_branch = e () => (float[n] ey, float[n] eu, float[2] ek) { ey = Identity(z) eu = Neg(z)
                                                                        ek = Constant <value_floats = [3.0, 4.0]> () }> }""")
    check(proto, [{"x": rand(n), "z": rand(n), "c": bools(c)} for n in (3, 70) for c in (True, False)], tmp_path)


# --- Loop ------------------------------------------------------------------------------------------------------------------

SUMS = """(int64 n, bool c, float[k] x) => (float[k] last, float[m, k] all) {
  last, all = Loop (n, c, x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w, float[k] each) {
    f = Cast <to = 1> (i)  w = Add(v, f)  each = Mul(w, x)  on = Identity(go) }> }"""

WHILE = """(float[k] x, float limit) => (float[k] last, int64[m] steps) {
  trip = Constant <value_int = 100> ()  begin = ReduceSum <keepdims = 0> (x)  yes = Less(begin, limit)
  last, steps = Loop (trip, yes, x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w, int64 s) {
    w = Add(v, v)  t = ReduceSum <keepdims = 0> (w)  on = Less(t, limit)  s = Add(i, i) }> }"""

GROWING = """(int64 n, float[k, 2] x) => (float[m, 2] y, float[q] sums) {
  yes = Constant <value_int = 1> ()  flag = Cast <to = 9> (yes)
  y, sums = Loop (n, flag, x) <body = b (int64 i, bool go, float[j, 2] v) => (bool on, float[l, 2] w, float s) {
    w = Concat <axis = 0> (v, x)  s = ReduceSum <keepdims = 0> (w)  on = Identity(go) }> }"""


def test_a_loop_of_a_known_number_of_iterations(tmp_path):
    feeds = [{"n": np.array(n), "c": bools(c), "x": rand(k)} for n, c, k in ((3, True, 5), (0, True, 5), (4, False, 5), (40, True, 1))]
    check(model(SUMS), feeds, tmp_path)


def test_a_loop_ends_by_its_condition(tmp_path):
    feeds = [{"x": np.full(3, 0.1, np.float32), "limit": np.float32(limit)} for limit in (0.0, 1.0, 300.0, 1e30)]
    feeds = [{k: np.asarray(v) for k, v in feed.items()} for feed in feeds]
    check(model(WHILE), feeds, tmp_path)


def test_what_a_loop_carries_may_grow(tmp_path):
    check(model(GROWING), [{"n": np.array(n), "x": rand(k, 2)} for n, k in ((3, 2), (1, 4), (0, 3), (5, 1))], tmp_path)


def test_a_loop_of_shape_arithmetic_makes_one_stage(tmp_path):
    proto = model("""(float[n, k] x) => (float[k] last, float[n, k] all) {
        s = Shape(x)  zero = Constant <value_int = 0> ()  n = Gather(s, zero)  none = Gather(x, zero)  start = Sub(none, none)
        none2 = Identity(start)
        last, all = Loop (n, , none2) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w, float[k] each) {
            row = Gather <axis = 0> (x, i)  w = Add(v, row)  each = Identity(w)  on = Identity(go) }> }""")
    program = check(proto, [{"x": rand(n, 3)} for n in (1, 4, 9)], tmp_path, wanted=lambda _, f: [f["x"].sum(0), f["x"].cumsum(0)])
    assert len(program.blueprint.stages) == 1


def test_control_flow_nests(tmp_path):
    proto = model("""(int64 n, float[k] x) => (float[k] y, float[m, 2, k] all) {
        yes = Constant <value_int = 1> ()  flag = Cast <to = 9> (yes)  two = Constant <value_int = 2> ()
        y, all = Loop (n, flag, x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w, float[2, k] each) {
            r = Mod(i, two)  zero = Sub(two, two)  even = Equal(r, zero)
            h = If (even) < then_branch = t () => (float[k] a) { a = Add(v, x) }, else_branch = e () => (float[k] c) { c = Mul(v, x) }>
            w, each = Loop (two, go, h) <body = d (int64 j, bool keep, float[k] u) => (bool still, float[k] o, float[k] p) {
                o = Sub(u, v)  p = Add(o, h)  still = Identity(keep) }>
            on = Identity(go) }> }""")
    check(proto, [{"n": np.array(n), "x": rand(k)} for n, k in ((4, 3), (1, 2), (0, 2), (7, 33))], tmp_path)


def test_a_body_may_have_steps_on_the_host(tmp_path):
    proto = model("""(int64 n, float[2, 2] x) => (float[2, 2] y) {
        yes = Constant <value_int = 1> ()  flag = Cast <to = 9> (yes)
        y = Loop (n, flag, x) <body = b (int64 i, bool go, float[2, 2] v) => (bool on, float[2, 2] w) {
            d = Det(v)  w = Add(v, d)  on = Identity(go) }> }""")
    program = sartor.compile(proto, threads=1)
    if program.fallbacks:  # until determinants are native
        assert program.fallbacks[0].endswith("(Det)")
        assert "/body/" in program.fallbacks[0]
    x, want = rand(2, 2), None
    with sartor.Session(program) as session:
        want = x
        for _ in range(3):
            want = want + np.linalg.det(want)
        np.testing.assert_allclose(session.run({"n": np.array(3), "x": x})["y"], want, 1e-4, 1e-4)


def test_an_iteration_costs_microseconds():
    with sartor.Session(sartor.compile(model(SUMS), threads=1)) as session:
        feed = {"n": np.array(2000), "c": bools(True), "x": rand(8)}
        session.run(feed)
        best = min(_seconds(session, feed) for _ in range(5))
    assert best / 2000 < 100e-6


def _seconds(session, feed):
    start = time.perf_counter()
    session.run(feed)
    return time.perf_counter() - start


def test_iterations_compile_nothing_and_share_memory():
    with sartor.Session(sartor.compile(model(SUMS), threads=1)) as session:
        for n in (3, 50, 1000):
            session.run({"n": np.array(n), "c": bools(True), "x": rand(8)})
        (memory,) = session._pool
        assert len(memory.inner.contexts) == 1


def test_results_too_large_for_any_memory_end_in_a_sentence():
    with sartor.Session(sartor.compile(model(SUMS), threads=1)) as session, pytest.raises(SartorError, match="memory"):
        session.run({"n": np.array(1 << 50), "c": bools(True), "x": rand(8)})


# --- Scan ------------------------------------------------------------------------------------------------------------------

SCAN = """(float[k] s, float[t, k] a, float[k, t] b) => (float[k] last, float[k, t] all, float[t] sums) {
  last, all, sums = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
                          scan_output_axes = [1, 0], scan_output_directions = [0, 1],
    body = g (float[k] v, float[k] p, float[k] q) => (float[k] w, float[k] each, float total) {
      d = Mul(p, q)  w = Add(v, d)  each = Sub(w, s)  total = ReduceSum <keepdims = 0> (w) }> (s, a, b) }"""


def test_scans_take_any_axis_and_direction(tmp_path):
    check(model(SCAN), [{"s": rand(k), "a": rand(t, k), "b": rand(k, t)} for t, k in ((5, 3), (1, 2), (17, 40))], tmp_path)


def test_a_scan_of_nothing_makes_nothing(tmp_path):
    with sartor.Session(sartor.compile(model(SCAN), threads=1)) as session:
        s = rand(3)
        got = session.run({"s": s, "a": rand(0, 3), "b": rand(3, 0)})
    np.testing.assert_array_equal(got["last"], s)
    assert got["all"].shape == (3, 0)
    assert got["sums"].shape == (0,)


def test_scans_of_opset_8_have_batches_and_lengths(tmp_path):
    text = """({}float[b, k] s, float[b, t, k] a) => (float[b, k] last, float[b, t, k] all) {{
      last, all = Scan <num_scan_inputs = 1, directions = [{}], body = g (float[k] v, float[k] p) => (float[k] w, float[k] each) {{
        w = Add(v, p)  each = Mul(w, w) }}> ({}, s, a) }}"""
    s, a = rand(3, 4), rand(3, 5, 4)
    sums = s[:, None] + np.cumsum(a, 1)
    check(model(text.format("", 0, ""), 8), [{"s": s, "a": a}], tmp_path, wanted=lambda *_: [sums[:, -1], sums**2])
    back = s[:, None] + np.cumsum(a[:, ::-1], 1)
    check(model(text.format("", 1, ""), 8), [{"s": s, "a": a}], tmp_path, wanted=lambda *_: [back[:, -1], back**2])
    lengths = ints(2, 5, 0)
    inside = np.arange(5)[None, :, None] < lengths[:, None, None]
    last = np.stack([sums[0, 1], sums[1, 4], s[2]])
    check(model(text.format("int64[b] n, ", 0, "n"), 8), [{"n": lengths, "s": s, "a": a}], tmp_path,
          wanted=lambda *_: [last, np.where(inside, sums**2, 0)])


# --- what is wrong ---------------------------------------------------------------------------------------------------------


def test_elements_of_different_shapes_are_no_stack():
    proto = model("""(int64 n, float[k] x) => (float[k] last, float[m, j] all) {
        yes = Constant <value_int = 1> ()  flag = Cast <to = 9> (yes)
        last, all = Loop (n, flag, x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w, float[j] each) {
            one = Constant <value_ints = [1]> ()  m = Reshape(i, one)  u = Constant <value_floats = [1.0]> ()  each = Expand(u, m)
            w = Identity(v)  on = Identity(go) }> }""")
    with sartor.Session(sartor.compile(proto, threads=1)) as session:
        assert session.run({"n": np.array(1), "x": rand(2)})["all"].shape == (1, 0)
        with pytest.raises(SartorError, match="an element of shape"):
            session.run({"n": np.array(2), "x": rand(2)})
