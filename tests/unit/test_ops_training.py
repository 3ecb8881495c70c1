"""Optimisers, batch statistics, and what is drawn at random."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.ops_harness import check, kinds, lower_model, make_model, rand

from sartor.graph.reference import evaluate_graph

DOMAIN = "ai.onnx.preview.training"


def model_of(op, feeds, outputs, **attributes):
    model = make_model([oh.make_node(op, list(feeds), outputs, domain=DOMAIN, **attributes)], feeds, outputs)
    model.opset_import.append(oh.make_opsetid(DOMAIN, 1))
    return model


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize(("op", "states", "attributes"), [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-3, "decay_factor": 0.1}),
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.02, "alpha": 0.9, "beta": 0.99, "epsilon": 1e-3}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"})])
def test_optimisers(op, states, attributes, tensors, step):
    feeds = {"r": np.array(0.1, np.float32), "t": np.array(step)}
    for k in range(2 + states):
        feeds |= {f"v{k}{i}": np.abs(rand(3, 2 + i)) for i in range(tensors)}
    outputs = [f"y{i}" for i in range(tensors * (1 + states))]
    model = model_of(op, feeds, outputs, **attributes)
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    got = evaluate_graph(graph, feeds)
    for name, want in zip(outputs, ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3), (2, 3, 7)], ids=str)
def test_batch_statistics(shape):
    feeds = {"x": rand(*shape) * 3 + 1, "s": rand(3), "b": rand(3), "m": rand(3), "v": np.abs(rand(3)) + 0.5}
    for opset in (14, 15):
        check("BatchNormalization", feeds, opset=opset, outputs=3, symbolic=False, training_mode=1, momentum=0.7, epsilon=1e-2)


def test_batch_statistics_of_old_opsets_come_with_the_batches_own():
    feeds = {"x": rand(4, 3, 5), "s": rand(3), "b": rand(3), "m": rand(3), "v": np.abs(rand(3)) + 0.5}
    x, s, b, m, v = feeds.values()
    mean, spread = x.mean((0, 2)), x.var((0, 2))
    y = (x - mean[:, None]) / np.sqrt(spread[:, None] + 1e-5) * s[:, None] + b[:, None]
    expected = [y, m * 0.9 + mean * 0.1, v * 0.9 + spread * 0.1, mean, spread]
    check("BatchNormalization", feeds, opset=9, outputs=5, symbolic=False, expected=[e.astype(np.float32) for e in expected])


@pytest.mark.parametrize("constant", [False, True])
def test_one_scale_for_each_element_of_an_image(constant):
    x = {"x": rand(2, 3, 4)}
    more = {"s": rand(3, 4), "b": rand(3, 4), "m": rand(3, 4), "v": np.abs(rand(3, 4)) + 0.5}
    s, b, m, v = more.values()
    expected = [(x["x"] - m) / np.sqrt(v + 1e-5) * s + b]
    feeds, constants = (x, more) if constant else (x | more, {})
    check("BatchNormalization", feeds, constants, opset=7, symbolic=False, expected=expected, spatial=0)


def test_nothing_is_dropped_by_a_ratio_of_zero():
    constants = {"ratio": np.array(0, np.float32), "training": np.array(True)}
    check("Dropout", {"x": rand(3, 4)}, constants, opset=22, outputs=2)


def test_nothing_is_dropped_outside_of_training_whatever_the_ratio():
    check("Dropout", {"x": rand(3, 4), "ratio": np.array(0.3, np.float32)}, opset=22, outputs=2)


@pytest.mark.parametrize("dtype", [6, 7])
def test_samples_follow_their_probabilities(dtype):
    x = np.log(np.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], np.float32) + 1e-30)
    node = oh.make_node("Multinomial", ["x"], ["y"], sample_size=4000, seed=3.0, dtype=dtype)
    graph = lower_model(make_model([node], {"x": x}, ["y"], opset=22))
    y = evaluate_graph(graph, {"x": x})["y"]
    assert y.dtype == (np.int32 if dtype == 6 else np.int64)
    assert y.shape == (2, 4000)
    np.testing.assert_allclose(np.bincount(y[0], minlength=3) / 4000, [0.1, 0.2, 0.7], atol=0.03)
    assert (y[1] == 1).all()
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], y)  # as the seed says


def test_training_before_opset_7_drops_too():
    x = np.ones((50, 60), np.float32)
    node = oh.make_node("Dropout", ["x"], ["y", "mask"], ratio=0.25)
    graph = lower_model(make_model([node], {"x": x}, ["y", "mask"], opset=6))
    got, again = (evaluate_graph(graph, {"x": x}) for _ in range(2))
    assert got["mask"].dtype == np.float32
    np.testing.assert_allclose(got["y"], got["mask"] / 0.75)
    np.testing.assert_allclose(got["mask"].mean(), 0.75, atol=0.05)
    assert (got["mask"] != again["mask"]).any()


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"])
@pytest.mark.parametrize("seed", [None, 4.0])
def test_nothing_random_is_computed_when_compiling(op, seed):
    """Not even from constants; two runs differ unless there is a seed."""
    constants = {"x": np.full((20, 30), 0.5, np.float32)} if op.endswith("Like") or op in ("Bernoulli", "Multinomial") else {}
    attributes = ({} if constants else {"shape": [20, 30]}) | ({} if seed is None else {"seed": seed})
    model = make_model([oh.make_node(op, list(constants), ["y"], **attributes)], {}, ["y"], constants, 22)
    graph = lower_model(model)
    assert "host" in kinds(graph)
    first, second = (evaluate_graph(graph, {})["y"] for _ in range(2))
    assert (first != second).any() == (seed is None)
