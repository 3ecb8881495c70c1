"""Operators whose results have as many elements as the data decides, natively, beside NumPy and ONNX Runtime."""

import numpy as np
import pytest
from onnx import parser

import sartor
from sartor.graph.reference import evaluate_graph
from sartor.types import to_numpy

RNG = np.random.default_rng(5)


def model(body, opset=21):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["":{opset}]> g {body}')


def runner(proto, threads=2):
    """A session, after a look that nothing runs on the host; and the graph, which its runs are compared with too."""
    program = sartor.compile(proto, threads=threads)
    assert program.fallbacks == ()
    graph = sartor.compiler.prepare(proto)

    def run(**feeds):
        with sartor.Session(program) as session:
            results = session.run(feeds)
        for name, array in evaluate_graph(graph, feeds).items():
            np.testing.assert_array_equal(results[name], array)
        return results

    return run


# --- elements that are not zero --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16", "int8", "uint64", "bool", "double"])
def test_places_that_are_not_zero(dtype):
    run = runner(model(f"({dtype}[a,b,c] x) => (int64[r,n] y) {{ y = NonZero(x) }}"))
    numpy_type = to_numpy({"float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint64": "u64", "bool": "bool", "double": "f64"}.get(dtype, "f32"))
    for shape, share in (((3, 4, 5), 0.5), ((2, 1, 7), 0.0), ((2, 3, 3), 1.0), ((0, 3, 2), 0.5), ((9, 40, 31), 0.1)):
        x = (RNG.random(shape) < share).astype(numpy_type)
        if x.size and share and dtype == "float":
            x.flat[0], x.flat[-1] = np.nan, -0.0
        np.testing.assert_array_equal(run(x=x)["y"], np.array(np.nonzero(x)).reshape(3, -1))


def test_places_of_a_vector_and_a_scalar():
    run = runner(model("(int32[n] x) => (int64[r,m] y) { y = NonZero(x) }"))
    np.testing.assert_array_equal(run(x=np.array([0, 4, 0, -1], np.int32))["y"], [[1, 3]])
    run = runner(model("(int32 x) => (int64[r,m] y) { y = NonZero(x) }"))
    assert run(x=np.array(3, np.int32))["y"].shape == (0, 1)
    assert run(x=np.array(0, np.int32))["y"].shape == (0, 0)


def test_what_follows_is_bound_once_for_each_count():
    proto = model("""(float[n] x) => (float[m] z) {
        r = Relu(x)  p = NonZero(r)  t = Transpose(p)  g = GatherND(r, t)  z = Neg(g) }""")
    with sartor.Session(sartor.compile(proto, threads=1)) as session:
        bound = 0
        bind = session._binder.bind

        def counted(*args, **kwargs):
            nonlocal bound
            bound += 1
            return bind(*args, **kwargs)

        session._binder.bind = counted
        for turn in range(200):
            x = np.where(np.arange(50) < turn % 40, 1.5, -1).astype(np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["z"], -x[: turn % 40])
        assert bound == 41  # the first stage, and the second for each of 40 counts


# --- compress --------------------------------------------------------------------------------------------------------------


def test_compress_along_axes():
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for axis in (None, 0, -1):
        run = runner(model(f"(float[a,b] x, bool[n] c) => (float[{'p' if axis is None else 'p,q'}] y) "
                           f"{{ y = Compress{'' if axis is None else f'<axis={axis}>'}(x, c) }}"))
        for condition in ([True, False, True], [False], [], [True, True, True]):
            c = np.array(condition, bool)
            np.testing.assert_array_equal(run(x=x, c=c)["y"], np.compress(c, x, axis))


# --- unique ----------------------------------------------------------------------------------------------------------------


def wanted_unique(x, axis, ordered):
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        y = np.take(x.reshape(-1) if axis is None else x, first[order], axis=axis or 0)
        inverse, counts, first = np.argsort(order)[inverse], counts[order], first[order]
    return y, first, inverse, counts


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique_of_all_outputs(axis, ordered):
    shape = "n" if axis is None else "p,q,r"
    option = "" if axis is None else f", axis={axis}"
    run = runner(model(f"(float[a,b,c] x) => (float[{shape}] y, int64[k] i, int64[l] j, int64[m] c) "
                       f"{{ y, i, j, c = Unique<sorted={ordered}{option}>(x) }}"))
    for size in ((4, 3, 2), (7, 2, 1), (1, 5, 2), (30, 1, 3)):
        x = RNG.integers(0, 2, size).astype(np.float32)
        for got, wanted in zip(run(x=x).values(), wanted_unique(x, axis, ordered), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u64", "i64", "bool"])
def test_unique_of_all_types(dtype):
    name = {"f16": "float16", "bf16": "bfloat16", "f64": "double", "i8": "int8", "u64": "uint64", "i64": "int64"}.get(dtype, dtype)
    run = runner(model(f"({name}[n] x) => ({name}[m] y, int64[k] i, int64[l] j, int64[o] c) {{ y, i, j, c = Unique(x) }}", 28))
    x = RNG.integers(0, 2 if dtype == "bool" else 9, 40).astype(to_numpy(dtype))
    if dtype == "u64":
        x[3:5] = (1 << 64) - 1
    for got, wanted in zip(run(x=x).values(), wanted_unique(x.astype(np.float32) if dtype == "bf16" else x, None, True), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_unique_of_not_a_numbers_and_of_nothing():
    run = runner(model("(float[n] x) => (float[m] y, int64[k] i, int64[l] j, int64[o] c) { y, i, j, c = Unique(x) }"))
    x = np.array([np.nan, 1, -np.inf, np.nan, 0.0, -0.0, np.inf, 1], np.float32)
    for got, wanted in zip(run(x=x).values(), wanted_unique(x, None, True), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert [v.shape for v in run(x=x[:0]).values()] == [(0,)] * 4


# --- boxes -----------------------------------------------------------------------------------------------------------------

BOXES = "(float[b,n,4] x, float[b,c,n] s, int64[1] k, float[1] o, float[1] l) => (int64[m,3] y) {{ y = NonMaxSuppression<center_point_box={}>({}) }}"


def boxes(batches, count, seed):
    rng = np.random.default_rng(seed)
    corner, size = rng.random((batches, count, 2)) * 4, rng.random((batches, count, 2)) * 2 - 0.4  # some corners are flipped
    return np.concatenate([corner, corner + size], -1).astype(np.float32)


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_beside_onnxruntime(center):
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = model(BOXES.format(center, "x, s, k, o, l"), 11)
    proto.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    other = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = runner(proto)
    for turn, (batches, classes, count) in enumerate([(1, 1, 6), (2, 3, 40), (1, 2, 200), (3, 1, 1), (2, 2, 30)]):
        x = boxes(batches, count, turn)
        x[..., 2:] = np.abs(x[..., 2:]) / 4 if center else x[..., 2:]
        scores = RNG.integers(0, 20, (batches, classes, count)).astype(np.float32) / 20  # with equals
        for most, overlap, least in ((100, 0.3, 0.2), (3, 0.0, 0.0), (0, 0.5, 0.0), (7, 0.99, 0.9), (50, 0.5, 2.0)):
            feeds = {"x": x, "s": scores, "k": np.array([most], np.int64), "o": np.array([overlap], np.float32),
                     "l": np.array([least], np.float32)}
            np.testing.assert_array_equal(run(**feeds)["y"], other.run(None, feeds)[0])


def test_boxes_without_thresholds():
    run = runner(model(BOXES.format(0, "x, s, k"), 11))
    x, scores = boxes(1, 9, 1), np.full((1, 1, 9), -1, np.float32)
    x[0, 1] = x[0, 2] = x[0, 0]
    feeds = {"x": x, "s": scores, "o": np.zeros(1, np.float32), "l": np.zeros(1, np.float32)}
    kept = run(**feeds, k=np.array([50], np.int64))["y"][:, 2].tolist()
    assert kept[0] == 0
    assert not {1, 2} & set(kept)
    assert run(**feeds, k=np.array([1], np.int64))["y"].tolist() == [[0, 0, 0]]
    assert run(**feeds, k=np.array([-3], np.int64))["y"].shape == (0, 3)
