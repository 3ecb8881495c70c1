"""Tensors of more than 2^31 elements and of more than 2 GB: no kernel or plan may count in 32 bits."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import sartor

onnx = pytest.importorskip("onnx")
oh, onh = onnx.helper, onnx.numpy_helper

NEEDED = 12 << 30
MANY = (1 << 31) + 12_345
"""Elements of a byte each."""
WIDE = (1 << 29) + 1_237
"""Elements of four bytes each."""


def free_memory():
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def alone():
    """One test at a time, whatever the number of workers, and only where there is the memory for it."""
    fcntl = pytest.importorskip("fcntl")
    with (Path(tempfile.gettempdir()) / f"sartor-large-tensors-{os.getuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if free_memory() < NEEDED:
            pytest.skip("needs 12 GB of free memory")
        yield


def bytes_of(*shape):
    """Elements that follow from their places, with a period that is no power of two."""
    period = np.random.default_rng(0).integers(-100, 100, 9973).astype(np.int8)
    return np.resize(period, shape)


def floats_of(*shape):
    period = np.random.default_rng(0).standard_normal(9973).astype(np.float32)
    return np.resize(period, shape)


def run(operator, feeds, constants=(), symbolic=True, outputs=1, **attributes):
    """Outputs of a model of one node, whose sizes are symbols or numbers."""
    values = [oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), [f"{n}{i}" for i in range(a.ndim)] if symbolic else a.shape)
              for n, a in feeds.items() if n not in constants]
    made = [f"y{i}" for i in range(outputs)]
    graph = oh.make_graph([oh.make_node(operator, list(feeds), made, **attributes)], "g", values, [onnx.ValueInfoProto(name=n) for n in made],
                          [onh.from_array(feeds[n], n) for n in constants])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    program = sartor.compile(model, threads=2)
    assert not program.fallbacks
    with sartor.Session(program) as session:
        found = list(session.run({n: a for n, a in feeds.items() if n not in constants}).values())
    return found[0] if outputs == 1 else found


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    a, b = found.reshape(-1), wanted.reshape(-1)
    for start in range(0, a.size, 1 << 28):
        assert np.array_equal(a[start : start + (1 << 28)], b[start : start + (1 << 28)]), start


SIDES = (65_539, 32_771)  # whose product is just over 2^31


@pytest.mark.parametrize("symbolic", [False, True])
class TestBytes:
    def test_elementwise(self, symbolic):
        x = bytes_of(MANY)
        same(run("Abs", {"x": x}, symbolic=symbolic), np.abs(x))

    def test_broadcast(self, symbolic):
        x, column = bytes_of(*SIDES), bytes_of(SIDES[0], 1)
        found = run("Max", {"x": x, "c": column}, ["c"] if symbolic else [], symbolic=symbolic)
        same(found, np.maximum(x, column))

    def test_tests(self, symbolic):
        x = bytes_of(MANY)
        same(run("Less", {"x": x, "z": np.int8([3])}, ["z"], symbolic=symbolic), x < 3)

    @pytest.mark.parametrize("axis", [0, 1])
    def test_concat(self, symbolic, axis):
        x, z = bytes_of(32_770, 32_771), bytes_of(32_770, 32_771)[::-1].copy()
        same(run("Concat", {"x": x, "z": z}, symbolic=symbolic, axis=axis), np.concatenate([x, z], axis))

    def test_transpose(self, symbolic):
        x = bytes_of(*SIDES)
        same(run("Transpose", {"x": x}, symbolic=symbolic, perm=[1, 0]), x.T)

    def test_transpose_of_four(self, symbolic):
        x = bytes_of(37, 1013, 19, 3019)
        same(run("Transpose", {"x": x}, symbolic=symbolic, perm=[2, 0, 1, 3]), x.transpose(2, 0, 1, 3))

    def test_gather(self, symbolic):
        x, places = bytes_of(MANY), np.array([0, MANY - 1, -1, 1 << 30, (1 << 31) + 5, -MANY])
        same(run("Gather", {"x": x, "i": places}, symbolic=symbolic), x[places])
        rows, columns = np.array([65_535, 3, -1]), np.array([7, -1])
        x = x[: 1 << 31].reshape(-1, 32_768)
        same(run("Gather", {"x": x, "i": rows}, symbolic=symbolic), x[rows])
        same(run("Gather", {"x": x, "i": columns}, symbolic=symbolic, axis=1), x[:, columns])

    def test_gather_to_many(self, symbolic):
        x, places = bytes_of(2, (1 << 30) + 3), np.array([1, 0, -2])
        same(run("Gather", {"x": x, "i": places}, symbolic=symbolic), x[places])

    def test_places(self, symbolic):
        x = bytes_of(*SIDES)
        places = np.array([[0, 1], [65_538, 32_770], [-1, 5], [65_000, -1]])
        same(run("GatherND", {"x": x, "i": places}, ["i"], symbolic=symbolic), x[tuple(places.T)])
        updates = np.int8([1, 2, 3, 4])
        found = run("ScatterND", {"x": x, "i": places, "u": updates}, ["i", "u"], symbolic=symbolic)
        x[tuple(places.T)] = updates
        same(found, x)

    def test_slice(self, symbolic):
        x = bytes_of(MANY)
        for begin, end, step in [(5, MANY - 2, 1), ((1 << 31) + 7, MANY, 3), (-2, 0, -1), (-1, 1, -65_537)]:
            bounds = {k: np.array([v]) for k, v in zip("bes", (begin, end, step), strict=True)}
            feeds = {"x": x, "b": bounds["b"], "e": bounds["e"], "a": np.array([0]), "s": bounds["s"]}
            same(run("Slice", feeds, ["b", "e", "a", "s"], symbolic=symbolic), x[begin:end:step])

    def test_pad(self, symbolic):
        x = bytes_of(*SIDES)
        found = run("Pad", {"x": x, "p": np.array([1, 2, 0, 3])}, ["p"], symbolic=symbolic)
        same(found, np.pad(x, ((1, 0), (2, 3))))

    @pytest.mark.parametrize("axis", [0, 1])
    def test_reduce(self, symbolic, axis):
        x = bytes_of(*SIDES)
        x[-1, -1] = 127
        same(run("ReduceMax", {"x": x, "a": np.array([axis])}, ["a"], symbolic=symbolic, keepdims=0), x.max(axis))
        same(run("ArgMax", {"x": x}, symbolic=symbolic, axis=axis, keepdims=0), x.argmax(axis))

    def test_reduce_all(self, symbolic):
        x = bytes_of(MANY)
        x[-1] = 127
        assert run("ReduceMax", {"x": x}, symbolic=symbolic, keepdims=0) == 127
        assert run("ArgMax", {"x": x}, symbolic=symbolic, keepdims=0) == MANY - 1

    def test_expand_and_reshape(self, symbolic):
        row = bytes_of(1, SIDES[1])
        found = run("Expand", {"x": row, "s": np.array([SIDES[0], 1])}, ["s"], symbolic=False)
        assert found.shape == SIDES
        assert np.array_equal(found[[0, 1, 65_538]], row.repeat(3, 0))
        same(run("Reshape", {"x": found, "s": np.array([-1, SIDES[0]])}, ["s"], symbolic=symbolic), found.reshape(-1, SIDES[0]))


@pytest.mark.parametrize("symbolic", [False, True])
class TestFloats:
    def test_elementwise(self, symbolic):
        x = floats_of(WIDE)
        same(run("Neg", {"x": x}, symbolic=symbolic), -x)

    def test_matmul_of_many_rows(self, symbolic):
        a, b = floats_of(WIDE // 8, 8), floats_of(8, 8)
        found = run("MatMul", {"a": a, "b": b}, ["b"], symbolic=symbolic)
        for rows in (slice(0, 1000), slice(WIDE // 8 - 1000, None)):
            np.testing.assert_allclose(found[rows], a[rows] @ b, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("constant", [False, True])
    def test_matmul_of_many_columns(self, symbolic, constant):
        a, b = floats_of(3, 8), floats_of(8, WIDE // 8)
        if constant:  # of less than the 2 GB that a model's file may have
            b = b[:, : WIDE // 10].copy()
        found = run("MatMul", {"a": a, "b": b}, ["b"] if constant else [], symbolic=symbolic)
        for columns in (slice(0, 1000), slice(b.shape[1] - 1000, None)):
            np.testing.assert_allclose(found[:, columns], a @ b[:, columns], rtol=1e-4, atol=1e-5)

    def test_softmax(self, symbolic):
        x = floats_of(2, WIDE // 2)
        x[1, -1] = 30
        found = run("Softmax", {"x": x}, symbolic=symbolic, axis=1)
        total = np.exp(x[1].astype(np.float64) - 30).sum()
        np.testing.assert_allclose(found[1, -3:], np.exp(x[1, -3:] - 30) / total, rtol=1e-3)

    def test_cumulative_sum(self, symbolic):
        x = np.zeros(WIDE, np.float32)
        x[[0, 1 << 28, WIDE - 1]] = 1
        assert run("CumSum", {"x": x, "a": np.array(0)}, ["a"], symbolic=symbolic)[[0, 1 << 28, WIDE - 1]].tolist() == [1, 2, 3]

    def test_true_places(self, symbolic):
        """Their number is found from counts of eight bytes each."""
        x = np.zeros(WIDE, bool)
        x[[3, 1 << 29, WIDE - 1]] = True
        assert run("NonZero", {"x": x}, symbolic=symbolic).tolist() == [[3, 1 << 29, WIDE - 1]]
