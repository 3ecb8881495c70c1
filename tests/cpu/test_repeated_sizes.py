"""Sizes that only some runs have: those with different names that are broadcast, where one is 1, and those shorter than a slice."""

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import sartor

RNG = np.random.default_rng(5)
TABLE = ", ".join(str(i / 100) for i in range(128))


def check(tmp_path, body, *runs):
    """Every run, of one session, gives what onnx's reference gives; returns the program."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["":21]> g {body}')
    sartor.compile(proto, threads=1).save(tmp_path / "p.sartor")
    program, reference = sartor.Program.load(tmp_path / "p.sartor"), ReferenceEvaluator(proto)
    with sartor.Session(program) as session:
        for feeds in (*runs, *runs):
            arrays = {k: RNG.standard_normal(v).astype(np.float32) if isinstance(v, tuple) else v for k, v in feeds.items()}
            for got, wanted in zip(session.run(arrays).values(), reference.run(None, arrays), strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)
    return proto


def refused(proto, **shapes):
    with sartor.Session(sartor.compile(proto, threads=1)) as session, pytest.raises(sartor.FeedError, match="cannot work at the sizes"):
        session.run({k: np.zeros(s, np.float32) for k, s in shapes.items()})


def test_either_of_two_sizes_may_be_one(tmp_path):
    runs = [{"x": (n,), "y": (m,)} for n, m in ((3, 3), (1, 4), (4, 1), (1, 1), (1, 0))]
    proto = check(tmp_path, "(float[n] x, float[m] y) => (float[k] z) { z = Add(x, y) }", *runs)
    refused(proto, x=(2,), y=(4,))
    sizes = ((2, 1, 1), (1, 2, 1), (4, 1, 4), (1, 1, 2))
    runs = [{"x": (n, 3), "y": (m, 3), "c": np.arange(k).reshape(k, 1) % 2 == 0} for n, m, k in sizes]
    check(tmp_path, "(float[n,3] x, float[m,3] y, bool[k,1] c) => (float[p,3] z) { z = Where(c, x, y) }", *runs)


def test_a_size_may_be_one_where_a_constant_has_more(tmp_path):
    proto = check(tmp_path, "(float[n] x) => (float[4] z) <float[4] w = {1,2,3,4}> { z = Mul(x, w) }", {"x": (4,)}, {"x": (1,)})
    refused(proto, x=(2,))


def test_what_is_also_wanted_as_it_is_gets_no_wrong_size(tmp_path):
    """An output or a sum of the input itself keeps the fed size: such runs are refused, never answered wrongly."""
    body = "(float[n] x, float[m] y) => (float[k] z, float[1] u) { a = Exp(x)  z = Add(a, y)  u = ReduceSum(a) }"
    proto = check(tmp_path, body, {"x": (4,), "y": (1,)}, {"x": (4,), "y": (4,)})
    refused(proto, x=(1,), y=(4,))
    body = "(float[n] x, float[m] y, float[k] w) => (float[q] z, float[p] v) { v = Add(x, y)  z = Sub(v, w) }"
    runs = [{"x": (a,), "y": (b,), "w": (c,)} for a, b, c in ((1, 4, 4), (4, 1, 1), (1, 4, 1), (4, 4, 1), (1, 1, 1))]
    proto = check(tmp_path, body, *runs)
    refused(proto, x=(1,), y=(1,), w=(4,))


def test_sizes_that_the_network_asks_for_are_not_changed(tmp_path):
    body = "(float[n] x, float[m] y) => (float[k] z, int64[1] s) { z = Add(x, y)  s = Shape(x) }"
    proto = check(tmp_path, body, {"x": (4,), "y": (1,)}, {"x": (1,), "y": (1,)})
    refused(proto, x=(1,), y=(4,))
    body = "(float[n,2] x, float[m,2] y) => (float[p,2] z) { a = Concat<axis=0>(x, x)  b = Concat<axis=0>(y, y)  z = Add(a, b) }"
    refused(check(tmp_path, body, {"x": (3, 2), "y": (3, 2)}), x=(1, 2), y=(3, 2))


def test_masks_and_places_of_one_sequence_serve_a_batch(tmp_path):
    body = f"""(float[b,s,8] x, float[c,t] m, int64[d,u] p) => (float[k,l,8] z) <int64[1] a = {{1}}, float[16,8] e = {{{TABLE}}}> {{
        o = Gather(e, p)  h = Add(x, o)  q = Transpose<perm=[0,2,1]>(h)  r = MatMul(h, q)  n = Unsqueeze(m, a)  v = Sub(r, n)
        w = Softmax<axis=-1>(v)  z = MatMul(w, h) }}"""
    sizes = ((2, 2, 2, 5), (2, 1, 1, 5), (2, 2, 1, 1), (1, 2, 2, 5), (1, 1, 3, 5), (1, 2, 1, 5))
    check(tmp_path, body, *({"x": (b, 5, 8), "m": (c, t), "p": np.arange(5 * d).reshape(d, 5) % 16} for b, c, d, t in sizes))


def test_matrices_and_their_batches(tmp_path):
    body = "(float[b,m,3] x, float[c,3,n] y, float[p,q,2] z) => (float[i,j,2] o) { a = MatMul(x, y)  o = Mul(a, z) }"
    runs = [((b, m, 3), (c, 3, 2), (p, q, 2)) for b, m, c, p, q in ((2, 4, 1, 1, 4), (1, 4, 2, 2, 1), (1, 1, 1, 3, 4), (1, 1, 2, 1, 3))]
    check(tmp_path, body, *({"x": x, "y": y, "z": z} for x, y, z in runs))


def test_a_plan_and_a_profile_of_repeated_sizes():
    proto = parser.parse_model('<ir_version: 10, opset_import: ["":21]> g (float[n] x, float[m] y) => (float[k] z) { z = Add(x, y) }')
    with sartor.Session(sartor.compile(proto, threads=1)) as session:
        assert session.plan({"x": (1,), "y": (4,)}) == session.plan({"x": (4,), "y": (4,)})
        seconds = session.profile({"x": np.ones(1, np.float32), "y": np.ones(4, np.float32)})
        assert list(seconds) == [task.layer for task in session.plan({"x": (4,), "y": (4,)}).tasks]


@pytest.mark.parametrize("places", ["-3, 9223372036854775807", "-4, -2", "0, -3", "3, 9223372036854775807", "2, -2", "5, 7"])
def test_slices_longer_than_what_there_is(tmp_path, places):
    start, end = places.split(", ")
    body = f"""(float[n,2] x) => (float[p,2] y, float[q,2] z) <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}> {{
        r = Exp(x)  y = Slice(r, s, e, a)  z = Concat<axis=0>(y, r) }}"""
    check(tmp_path, body, *({"x": (n, 2)} for n in (1, 2, 3, 4, 6, 9)))
