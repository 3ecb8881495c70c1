"""Ensembles of trees against ONNX Runtime, and against onnx's reference for the newest form."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.ops_harness import kinds, lower_model, rand, run_runtime

from sartor.errors import ModelError
from sartor.graph.reference import evaluate_graph

TREES = {
    "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2], "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0], "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0], "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 2, 1, 2], "ids": [0, 1, 2, 2, 1, 0], "weights": [1.0, 2.0, 3.0, -1.0, 4.0, 5.0]}
X = np.concatenate([rand(40, 3), [[np.nan, 0, 0], [0, np.nan, np.nan], [0.1, -0.2, 0.3]]]).astype(np.float32)


def model_of(op, attributes, x=X, opset=3):
    outputs = ["y0", "y1"] if op.endswith("Classifier") else ["y0"]
    node = oh.make_node(op, ["x"], outputs, domain="ai.onnx.ml", **attributes)
    kind = oh.np_dtype_to_tensor_dtype(x.dtype)
    results = [oh.make_tensor_value_info(n, onnx.TensorProto.INT64 if len(outputs) == 2 and n == "y0" else onnx.TensorProto.FLOAT, None)
               for n in outputs]
    if op == "TreeEnsemble":
        results = [oh.make_tensor_value_info("y0", kind, None)]
    graph = oh.make_graph([node], "g", [oh.make_tensor_value_info("x", kind, ["n", x.shape[1]])], results)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 15), oh.make_opsetid("ai.onnx.ml", opset)])


def compare(model, x, wanted):
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    got = evaluate_graph(graph, {"x": x})
    for name, want in zip(graph.outputs, wanted, strict=True):
        assert got[name].dtype == want.dtype
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"])
def test_regressors(mode, op):
    trees = TREES | {"nodes_modes": [mode if m != "LEAF" else m for m in TREES["nodes_modes"]]}
    more = {f"target_{name}": values for name, values in LEAVES.items()}
    model = model_of("TreeEnsembleRegressor", trees | more | {"n_targets": 3, "aggregate_function": op})
    compare(model, X, run_runtime(model, {"x": X}))


@pytest.mark.parametrize("op", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_base_values(op):
    """Every target has a vote; one without any gets its base value too, which ONNX Runtime leaves out."""
    single = {name: [v for place, v in enumerate(values) if place != 3] for name, values in LEAVES.items()}
    more = {f"target_{name}": values for name, values in single.items()} | {"target_ids": [0] * 5}
    model = model_of("TreeEnsembleRegressor", TREES | more | {"n_targets": 1, "aggregate_function": op, "base_values": [0.5]})
    compare(model, X, run_runtime(model, {"x": X}))


def test_regressor_of_other_types():
    more = {f"target_{name}": values for name, values in LEAVES.items()} | {"n_targets": 3}
    for dtype in (np.float64, np.int64):
        x = (X[:40] * 2).astype(dtype)
        single = x.astype(np.float32)
        compare(model_of("TreeEnsembleRegressor", TREES | more, x), x,
                run_runtime(model_of("TreeEnsembleRegressor", TREES | more, single), {"x": single}))


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classifiers(post):
    more = {f"class_{name}": values for name, values in LEAVES.items()}
    model = model_of("TreeEnsembleClassifier", TREES | more | {"classlabels_int64s": [10, 20, 30], "post_transform": post})
    x = X[:40]
    compare(model, x, run_runtime(model, {"x": x}))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", [0, 1, 2, 3])
def test_newest_form(op, dtype):
    attributes = {
        "nodes_featureids": [0, 1, 2], "nodes_modes": onh.from_array(np.array([0, 6, 6], np.uint8)),
        "nodes_splits": onh.from_array(np.array([0.5, 0, 0], dtype)), "nodes_truenodeids": [1, 0, 0], "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 2], "nodes_falseleafs": [1, 1, 1], "tree_roots": [0, 2], "leaf_targetids": [0, 1, 1] if op < 2 else [0, 0, 0],
        "leaf_weights": onh.from_array(np.array([1, 2, -3], dtype)), "n_targets": 2 if op < 2 else 1, "aggregate_function": op,
        "membership_values": onh.from_array(np.array([1, 2, 3, np.nan, 2, np.nan], dtype)),
    }
    x = np.random.default_rng(0).integers(0, 4, (30, 3)).astype(dtype)
    model = model_of("TreeEnsemble", attributes, x, opset=5)
    compare(model, x, [np.asarray(y).astype(dtype) for y in ReferenceEvaluator(model).run(None, {"x": x})])


@pytest.mark.parametrize("change", [
    {"nodes_truenodeids": [0, 3, 0, 0, 0, 1, 0, 0]}, {"nodes_falsenodeids": [2, 0, 0, 0, 0, 2, 0, 0]}, {"nodes_truenodeids": [9, 3, 0, 0, 0, 1, 0, 0]},
    {"nodes_featureids": [0, -1, 0, 0, 0, 2, 0, 0]}, {"nodes_featureids": [0, 9, 0, 0, 0, 2, 0, 0]}, {"nodes_values": [0.5]},
    {"target_ids": [0, 1, 2, 2, 1, 3]}, {"target_nodeids": [2, 3, 4, 2, 1, 7]}, {"n_targets": 0}, {"nodes_modes": ["TWIG"] * 8}], ids=str)
def test_trees_that_are_none(change):
    more = {f"target_{name}": values for name, values in LEAVES.items()} | {"n_targets": 3}
    with pytest.raises(ModelError):
        lower_model(model_of("TreeEnsembleRegressor", TREES | more | change))
