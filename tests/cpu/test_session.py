"""Sessions: what comes in and out, sizes, threads, host steps."""

import os
import threading

import numpy as np
import onnx
import pytest
from tests.cpu.networks import add, chain, chain_reference, elementwise, graph, program

from sartor.compiler import compile as compile_model
from sartor.errors import FeedError, OptionError, SartorError
from sartor.graph.layer import Layer
from sartor.runtime.session import KEPT_PLANS, Session
from sartor.sizes import symbol


@pytest.fixture(scope="module")
def added():
    return program(add())


@pytest.fixture(scope="module")
def chained():
    return program(chain(), threads=2)


def x_of(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)


def check(session, x):
    found = session.run({"x": x})
    for name, want in chain_reference(x).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-6)
    return found


def test_one_layer(added):
    a, b = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
    session = Session(added)
    assert (session.run({"x": a, "y": b})["z"] == a + 1).all()
    assert (session(a, b) == a + 1).all()
    assert list(session.run({"y": b, "x": a})) == ["z"]


def test_any_number_of_rows_and_back(chained):
    session = Session(chained)
    for rows in (1, 7, 0, 300, 7, 5000):
        check(session, x_of(rows, rows))


def test_outputs_are_fresh_arrays(added):
    session = Session(added)
    a, b = np.ones(16, np.float32), np.ones(16, np.float32)
    first = session.run({"x": a, "y": b})["z"]
    second = session.run({"x": a * 5, "y": b})["z"]
    assert (first == 2).all()
    assert (second == 6).all()


def test_arrays_that_are_not_contiguous_aligned_or_writable(added):
    session = Session(added)
    wide = np.arange(32, dtype=np.float32)[::2]
    unaligned = np.frombuffer(bytes(1) + np.ones(16, np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    assert (session.run({"x": wide, "y": unaligned})["z"] == wide + 1).all()
    derived = np.ma.masked_array(np.ones(16, np.float32))
    assert (session.run({"x": wide, "y": derived})["z"] == wide + 1).all()
    frozen = np.ones(16, np.float32)
    frozen.flags.writeable = False
    assert (session.run({"x": wide, "y": frozen})["z"] == wide + 1).all()


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"x": np.ones(16, np.float32)}, ["y", "missing", "f32[16]"]),
        ({"x": np.ones(16, np.float32), "y": np.ones(16, np.float32), "w": np.ones(1)}, ["no input w", "x, y"]),
        ({"x": np.ones(16), "y": np.ones(16, np.float32)}, ["x", "float64", "float32"]),
        ({"x": np.ones(16, ">f4"), "y": np.ones(16, np.float32)}, ["x", ">f4", "float32"]),
        ({"x": [1.0] * 16, "y": np.ones(16, np.float32)}, ["x", "list", "f32[16]"]),
        ({"x": np.ones((16, 1), np.float32), "y": np.ones(16, np.float32)}, ["x", "[16, 1]", "[16]"]),
        ({"x": np.ones(17, np.float32), "y": np.ones(16, np.float32)}, ["x", "[17]", "[16]"]),
        (np.ones(16, np.float32), ["mapping", "ndarray"]),
    ],
)
def test_wrong_feeds_are_refused_by_name(added, feeds, words):
    session = Session(added)
    for _ in range(2):  # also after a good run
        with pytest.raises(FeedError) as caught:
            session.run(feeds)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        session(np.ones(16, np.float32), np.ones(16, np.float32))


def test_symbols_must_agree():
    n = symbol("n")
    session = Session(
        program(graph({"x": (n, 2), "y": (n, 2), "z": (n, 2)}, ("x", "y"), ("z",), [elementwise("add", "add", ("x", "y"), "z")]))
    )
    with pytest.raises(FeedError, match=r"the input y has the shape \[4, 2\]; expected \[n, 2\] with n = 3"):
        session.run({"x": np.ones((3, 2), np.float32), "y": np.ones((4, 2), np.float32)})


def test_the_wrong_number_of_arrays_is_refused(added):
    with pytest.raises(FeedError, match="1 arrays came; the network has 2 inputs: x, y"):
        Session(added)(np.ones(16, np.float32))


def test_out_arrays_are_filled(chained):
    session, x = Session(chained), x_of(9)
    want = chain_reference(x)
    out = {"part": np.empty((9, 3), np.float32)}
    found = session.run({"x": x}, out)
    assert found["part"] is out["part"]
    np.testing.assert_allclose(out["part"], want["part"], rtol=1e-6)
    np.testing.assert_allclose(found["y"], want["y"], rtol=1e-6)


def test_out_may_be_an_input(added):
    a = np.arange(16, dtype=np.float32)
    assert (Session(added).run({"x": a, "y": a}, {"z": a})["z"] == 2 * np.arange(16)).all()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ({"w": np.empty(16, np.float32)}, "no output w"),
        ({"z": np.empty(16)}, "expected a contiguous, writable array of float32"),
        ({"z": np.empty(32, np.float32)[::2]}, "contiguous"),
        ({"z": np.empty(15, np.float32)}, r"shape \[15\]; expected \[16\]"),
        ({"z": [0]}, "list"),
    ],
)
def test_wrong_out_arrays_are_refused(added, out, words):
    a = np.ones(16, np.float32)
    with pytest.raises(FeedError, match=words):
        Session(added).run({"x": a, "y": a}, out)


def test_many_sizes_drop_the_oldest_plans(chained):
    session = Session(chained)
    for rows in range(1, KEPT_PLANS + 20):
        check(session, x_of(rows))
    assert len(session._plans) == KEPT_PLANS
    check(session, x_of(1))
    assert all(len(m.contexts) <= 2 * KEPT_PLANS + 1 for m in session._pool)


def test_two_threads_call_one_session(chained):
    session = Session(chained)
    problems = []

    def work(seed):
        try:
            for i in range(60):
                check(session, x_of(1 + (i * seed) % 50, seed))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 7, 13)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems


def test_one_and_two_threads_give_the_same_bits(chained):
    x = x_of(4000)
    one, two = (Session(chained, threads=t).run({"x": x}) for t in (1, 2))
    assert all(one[k].tobytes() == two[k].tobytes() for k in one)


def test_a_forked_child_runs(chained):
    session, x = Session(chained), x_of(3000)
    check(session, x)
    pid = os.fork()
    if pid == 0:
        try:
            check(session, x)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    check(session, x)


def test_the_plan(chained):
    session = Session(chained)
    plan = session.plan({"x": (100, 6)})
    assert [t.layer for t in plan.tasks] == ["relu", "scale", "rest", "double", "copy part/output"]
    assert plan.tasks[-1].kind == "copy"
    assert {t.kind for t in plan.tasks[:-1]} == {"compute"}
    assert plan.arena_bytes == plan.lower_bound >= 100 * 12 * 4
    assert plan.tasks[0].working_set == 2 * 100 * 6 * 4
    assert plan.multiply_adds == sum(t.multiply_adds for t in plan.tasks)
    with pytest.raises(FeedError, match="x"):
        session.plan({})
    with pytest.raises(FeedError, match="no input w"):
        session.plan({"x": (1, 6), "w": (1,)})


def test_the_profile_names_every_layer(chained):
    seconds = Session(chained).profile({"x": x_of(1000)})
    assert list(seconds) == ["relu", "scale", "rest", "double", "copy part/output"]
    assert all(0 <= s < 1 for s in seconds.values())
    assert sum(seconds.values()) > 0


def test_closed_sessions_do_not_run(added):
    with Session(added) as session:
        session(np.ones(16, np.float32), np.ones(16, np.float32))
    with pytest.raises(SartorError, match="closed"):
        session(np.ones(16, np.float32), np.ones(16, np.float32))


def test_impossible_thread_counts_are_refused(added):
    with pytest.raises(OptionError, match="0 threads"):
        Session(added, threads=0)


def test_sizes_that_break_a_condition_are_refused():
    n = symbol("n")
    g = add((n,))
    g.conditions.append((n // 2 * 2, n))
    session = Session(program(g))
    session(np.ones(4, np.float32), np.ones(4, np.float32))
    with pytest.raises(FeedError, match="n = 5"):
        session(np.ones(5, np.float32), np.ones(5, np.float32))


# --- host steps -----------------------------------------------------------------------------------------------------------


def host(name, op, inputs, outputs, defines=(), **attributes):
    node = onnx.helper.make_node(op, list(inputs), list(outputs), **attributes)
    return Layer(
        name,
        "host",
        tuple(inputs),
        tuple(outputs),
        {"node": node.SerializeToString(), "domains": {"": 18}, "captures": (), "defines": list(defines)},
    )


def test_a_host_step_between_native_ones():
    n = symbol("n")
    layers = [
        elementwise("a", "relu", ("x",), "a"),
        host("sort", "TopK", ("a", "k"), ("v", "i"), axis=1),
        elementwise("y", "add", ("v", "v"), "y"),
    ]
    g = graph(
        {"x": (n, 5), "a": (n, 5), "k": (1,), "v": (n, 3), "i": (n, 3), "y": (n, 3)},
        ("x",),
        ("y", "i"),
        layers,
        {"k": np.array([3], np.int64)},
        {"k": "i64", "i": "i64"},
    )
    compiled = program(g)
    assert compiled.fallbacks == ("sort (TopK)",)
    session = Session(compiled)
    for rows in (4, 1, 9):
        x = np.random.default_rng(rows).standard_normal((rows, 5)).astype(np.float32)
        a = np.maximum(x, 0)
        found = session.run({"x": x})
        np.testing.assert_array_equal(found["y"], 2 * -np.sort(-a, axis=1)[:, :3])
        np.testing.assert_array_equal(np.take_along_axis(a, found["i"], 1) * 2, found["y"])
    assert [t.host for t in session.plan({"x": (4, 5)}).tasks] == [False, True, False]
    assert list(session.profile({"x": x})) == ["a", "sort", "y"]


def found_graph():
    """Non-zero elements' places, then native work on as many rows as there were, joined with a value made before."""
    n, m = symbol("n"), symbol("m")
    layers = [
        elementwise("a", "relu", ("x",), "a"),
        host("find", "NonZero", ("a",), ("where",), [("m", 0, 1)]),
        Layer("flat", "reshape", ("where",), ("flat",)),
        Layer("pick", "gather", ("a", "flat"), ("picked",), {"axis": 0}),
        elementwise("twice", "add", ("picked", "picked"), "twice"),
        Layer("join", "concat", ("twice", "a"), ("y",), {"axis": 0}),
    ]
    return graph(
        {"x": (n,), "a": (n,), "where": (1, m), "flat": (m,), "picked": (m,), "twice": (m,), "y": (m + n,)},
        ("x",),
        ("y", "where"),
        layers,
        dtypes={"where": "i64", "flat": "i64"},
    )


def test_sizes_found_in_the_run():
    session = Session(program(found_graph()))
    for rows, seed in ((8, 0), (8, 1), (3, 2), (8, 0)):
        x = np.random.default_rng(seed).standard_normal(rows).astype(np.float32)
        a = np.maximum(x, 0)
        found = session.run({"x": x})
        np.testing.assert_array_equal(found["where"], np.array(np.nonzero(a)))
        np.testing.assert_array_equal(found["y"], np.concatenate([2 * a[a != 0], a]))
    assert session.plan({"x": (8,)}).tasks


def test_a_host_step_at_the_end_makes_outputs_of_unknown_size():
    m = symbol("m")
    layers = [elementwise("a", "relu", ("x",), "a"), host("find", "NonZero", ("a",), ("y",), [("m", 0, 1)])]
    g = graph({"x": (8,), "a": (8,), "y": (1, m)}, ("x",), ("y",), layers, dtypes={"y": "i64"})
    session = Session(program(g))
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
        want = np.array(np.nonzero(x > 0))
        np.testing.assert_array_equal(session(x), want)
        out = {"y": np.empty(want.shape, np.int64)}
        np.testing.assert_array_equal(session.run({"x": x}, out)["y"], want)


def test_a_failing_host_step_names_itself():
    layers = [host("cut", "Reshape", ("x", "s"), ("y",))]
    g = graph({"x": (4,), "s": (1,), "y": (3,)}, ("x",), ("y",), layers, {"s": np.array([3], np.int64)}, {"s": "i64"})
    with pytest.raises(SartorError, match="cut"):
        Session(program(g))(np.ones(4, np.float32))


def test_an_input_may_be_given_out_too():
    value = onnx.helper.make_tensor_value_info
    for names in (["y", "x"], ["x"], ["x", "x", "y"]):
        nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
        graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, ["n", 2])], [value(n, 1, ["n", 2]) for n in names])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
        x = np.float32([[1, -2]])
        got = Session(compile_model(model, threads=1)).run({"x": x})
        wanted = {"x": x, "y": np.maximum(x, 0)}
        assert list(got) == list(dict.fromkeys(names))
        for name, array in got.items():
            np.testing.assert_array_equal(array, wanted[name])
        assert not np.shares_memory(got["x"], x)
