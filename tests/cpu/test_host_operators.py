"""Operators of ai.onnx.ml on words and maps, which the host runs, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, TypeProto

import sartor

ROWS = np.array([[0.2, -1.0], [3.0, 0.5], [-2.0, 4.0]], np.float32)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    return oh.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


def model(nodes: list[NodeProto], inputs: dict[str, TypeProto], outputs: dict[str, TypeProto]) -> ModelProto:
    graph = oh.make_graph(nodes, "g", *([oh.make_value_info(n, t) for n, t in side.items()] for side in (inputs, outputs)))
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17), oh.make_opsetid("ai.onnx.ml", 3)], ir_version=8)


def tensor(kind: int, *shape: int | str) -> TypeProto:
    return oh.make_tensor_type_proto(kind, shape)


def both(network: ModelProto, feeds: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    expected = onnxruntime.InferenceSession(network.SerializeToString()).run(None, feeds)
    return list(sartor.Session(sartor.compile(network)).run(feeds).values()), expected


@pytest.mark.parametrize("labels", [{"classlabels_ints": [3, 7, 9]}, {"classlabels_strings": ["ant", "bee", "cow"]}])
def test_a_classifier_as_scikit_learn_writes_it(labels: dict[str, Any]) -> None:
    words = "classlabels_strings" in labels
    keys = {"classlabels_strings" if words else "classlabels_int64s": next(iter(labels.values()))}
    nodes = [
        node("LinearClassifier", ["x"], ["label", "scores"], coefficients=[1.0, -1.0, 0.5, 0.25, -2.0, 1.0], intercepts=[0.0, 0.1, 0.2],
             multi_class=1, post_transform="LOGISTIC", **labels),
        node("Normalizer", ["scores"], ["shares"], norm="L1"),
        node("ZipMap", ["shares"], ["maps"], **keys),
    ]
    kind = TensorProto.STRING if words else TensorProto.INT64
    maps = oh.make_sequence_type_proto(oh.make_map_type_proto(kind, tensor(TensorProto.FLOAT)))
    network = model(nodes, {"x": tensor(TensorProto.FLOAT, "n", 2)}, {"label": tensor(kind, "n"), "maps": maps})
    (label, found), (expected_label, expected) = both(network, {"x": ROWS})
    assert list(label) == list(expected_label)
    assert [list(row) for row in found] == [list(row) for row in expected]
    np.testing.assert_allclose([list(r.values()) for r in found], [list(r.values()) for r in expected], rtol=1e-5)


def test_words_for_numbers_and_back() -> None:
    table = {"cats_strings": ["ant", "bee"], "cats_int64s": [5, 6]}
    nodes = [node("CategoryMapper", ["x"], ["words"], default_string="none", **table),
             node("CategoryMapper", ["words"], ["numbers"], default_int64=-3, **table)]
    network = model(nodes, {"x": tensor(TensorProto.INT64, "n")},
                    {"words": tensor(TensorProto.STRING, "n"), "numbers": tensor(TensorProto.INT64, "n")})
    found, expected = both(network, {"x": np.array([6, 1, 5])})
    assert [list(v) for v in found] == [list(v) for v in expected] == [["bee", "none", "ant"], [6, -3, 5]]


@pytest.mark.parametrize("attributes", [{}, {"map_form": "SPARSE", "max_map": 6}, {"cast_to": "TO_INT64"}])
def test_a_map_as_a_tensor(attributes: dict[str, Any]) -> None:
    kind = TensorProto.INT64 if attributes.get("cast_to") == "TO_INT64" else TensorProto.FLOAT
    maps = oh.make_map_type_proto(TensorProto.INT64, tensor(TensorProto.FLOAT))
    network = model([node("CastMap", ["x"], ["y"], **attributes)], {"x": maps}, {"y": tensor(kind, 1, "n")})
    (found,), (expected,) = both(network, {"x": {4: 2.0, 1: 7.0}})
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
