"""The kernels that find places: guard pages round their buffers, in slices, against the reference."""

import numpy as np
import pytest
from tests.cpu import harness

from sartor.sizes import symbol
from sartor.templates.places import Nonzero, Order, Suppress

N, K, M = symbol("n"), symbol("k"), symbol("m")
ISAS = ("sse4", "avx2")


@pytest.mark.parametrize("isa", ISAS)
def test_places_of_true_elements(isa):
    problem = harness.problem("nonzero", {"x": ("bool", (N,))}, ("i64", (K,)))
    for length, share in ((0, 0), (1, 1), (70, 0.5), (300, 0.02), (64, 1)):
        flags = np.random.default_rng(length).random(length) < share
        harness.check(Nonzero(), problem, {"x": flags}, sizes={"n": length, "k": int(flags.sum())}, on=harness.device(isa))


def test_more_true_elements_than_room_write_nothing_outside():
    problem = harness.problem("nonzero", {"x": ("bool", (9,))}, ("i64", (4,)))
    made = harness.run(Nonzero(), problem, {"x": np.ones(9, bool)})
    assert next(iter(made.values())).tolist() == [0, 1, 2, 3]
    made = harness.run(Nonzero(), problem, {"x": np.arange(9) == 5})
    assert next(iter(made.values())).tolist() == [5, 0, 0, 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [1, 3, M])
def test_order_of_rows(columns, isa):
    for dtype in ("f32", "i8", "f16", "bf16", "u64", "f64"):
        problem = harness.problem("order", {"x": (dtype, (N, columns))}, ("i64", (N,)))
        for rows in (0, 1, 2, 33):
            sizes = {"n": rows, "m": 2}
            inputs = harness.random_inputs(problem, sizes)
            inputs["x"] = (inputs["x"] > 0).astype(inputs["x"].dtype)  # many equals
            harness.check(Order(), problem, inputs, sizes=sizes, on=harness.device(isa))


def test_order_of_not_a_numbers():
    problem = harness.problem("order", {"x": ("f32", (7, 1))}, ("i64", (7,)))
    x = np.array([[np.nan], [1], [-np.inf], [np.nan], [0.0], [-0.0], [np.inf]], np.float32)
    harness.check(Order(), problem, {"x": x})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("center", [False, True])
def test_suppression(center, isa):
    shapes = {"boxes": ("f32", (2, N, 4)), "scores": ("f32", (2, 3, N)), "most": ("i64", (1,)), "overlap": ("f32", (1,)),
              "least": ("f32", (1,))}  # fmt: skip
    problem = harness.problem("suppress", shapes, ("i64", (2, 3, N)), center=center)
    for count in (0, 1, 20, 65):
        rng = np.random.default_rng(count)
        boxes = rng.random((2, count, 4)).astype(np.float32)
        scores = rng.integers(0, 9, (2, 3, count)).astype(np.float32)
        for most, overlap, least in ((100, 0.2, 1), (2, 0.5, -1), (0, 0.5, 0), (9, 0, 8)):
            limits = {"most": np.array([most]), "overlap": np.array([overlap], np.float32), "least": np.array([least], np.float32)}
            harness.check(Suppress(), problem, {"boxes": boxes, "scores": scores, **limits}, sizes={"n": count}, on=harness.device(isa))
