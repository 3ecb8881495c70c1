"""Scaling, encoding and linear models against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import kinds, lower_model, rand, run_runtime

from sartor.errors import ModelError
from sartor.graph.reference import evaluate_graph

X = rand(7, 3)
HOLES = np.where(np.arange(21).reshape(7, 3) % 5 == 0, np.float32(np.nan), X)
NUMBERS = np.array([[1, 2], [7, 3], [2, 2]])
CASES = [
    ("Binarizer", [X], {"threshold": 0.2}), ("Binarizer", [X[0]], {}),
    ("Scaler", [X], {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 3.0, 4.0]}), ("Scaler", [X], {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", [NUMBERS], {"offset": [0.5], "scale": [2.0]}), ("Scaler", [X.astype(np.float64)], {"offset": [0.5], "scale": [2.0]}),
    *[("Normalizer", [x], {"norm": norm}) for norm in ("MAX", "L1", "L2") for x in (X, X[0], X * [[1], [0], [1], [1], [1], [1], [1]])],
    ("Imputer", [HOLES], {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
    ("Imputer", [NUMBERS], {"imputed_value_int64s": [9], "replaced_value_int64": 2}),
    ("ArrayFeatureExtractor", [X, np.array([2, 0])], {}), ("ArrayFeatureExtractor", [NUMBERS, np.array([[1]])], {}),
    ("LinearRegressor", [X], {"coefficients": [1.0, 2, 3, 4, 5, 6], "intercepts": [0.5, 0.25], "targets": 2}),
    ("LinearRegressor", [X], {"coefficients": [1.0, 2, 3]}),
    *[("LinearClassifier", [X], {"coefficients": [1.0, -2, 3, -4, 5, -6, 7, 8, -9], "intercepts": [0.5, 0.25, 0.1], "classlabels_ints": [3, 5, 9],
                                 "post_transform": post}) for post in ("NONE", "LOGISTIC", "SOFTMAX")],
    ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [3, 2]}), ("OneHotEncoder", [NUMBERS], {"cats_int64s": [1, 2, 3]}),
    ("LabelEncoder", [NUMBERS], {"keys_int64s": [1, 2, 3], "values_floats": [0.5, 0.6, 0.7], "default_float": -1.0}),
    ("LabelEncoder", [NUMBERS.astype(np.float32)], {"keys_floats": [1.0, 2.0], "values_int64s": [5, 6]}),
    ("LabelEncoder", [HOLES], {"keys_floats": [float("nan"), float(X[1, 0])], "values_floats": [5.0, 6.0], "default_float": 1.5}),
]


def model_of(op, arrays, attributes, dims=None):
    feeds = {f"x{i}": np.asarray(a) if a.dtype != np.float64 or op == "Scaler" else a.astype(np.float32) for i, a in enumerate(arrays)}
    outputs = ["y0", "y1"] if op.endswith("Classifier") else ["y0"]
    node = oh.make_node(op, list(feeds), outputs, domain="ai.onnx.ml", **attributes)
    inputs = [oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), (dims or a.shape)[:a.ndim]) for n, a in feeds.items()]
    whole = (op == "LabelEncoder" and "values_int64s" in attributes) or op == "LinearClassifier"
    integers = [oh.make_tensor_value_info(outputs[0], onnx.TensorProto.INT64, None)] if whole else [oh.make_empty_tensor_value_info("y0")]
    results = integers + [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs[1:]]
    opsets = [oh.make_opsetid("", 15), oh.make_opsetid("ai.onnx.ml", 3)]
    return oh.make_model(oh.make_graph([node], "g", inputs, results), opset_imports=opsets), feeds, outputs


@pytest.mark.parametrize(("op", "arrays", "attributes"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_numbers(op, arrays, attributes):
    model, feeds, outputs = model_of(op, arrays, attributes)
    wanted = run_runtime(model, feeds)
    graphs = [lower_model(model)]
    if op != "FeatureVectorizer":
        graphs.append(lower_model(model, shapes={"x0": ["n", "m"][:feeds["x0"].ndim]}))
    for graph in graphs:
        assert "host" not in kinds(graph)
        got = evaluate_graph(graph, feeds)
        for name, want in zip(outputs, wanted, strict=True):
            assert got[name].shape == want.shape
            assert got[name].dtype == want.dtype
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "arrays", "attributes"), [
    ("Scaler", [X], {"offset": [0.1, 0.2], "scale": [1.0]}), ("Normalizer", [X], {"norm": "L3"}), ("Imputer", [X], {}),
    ("LinearRegressor", [X], {"coefficients": [1.0, 2.0], "targets": 1}),
    ("LabelEncoder", [X], {"keys_floats": [1.0], "values_int64s": [5, 6]})], ids=str)
def test_attributes_that_do_not_fit(op, arrays, attributes):
    with pytest.raises(ModelError):
        lower_model(model_of(op, arrays, attributes)[0])
