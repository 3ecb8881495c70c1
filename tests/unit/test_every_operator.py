"""Every version of every operator that computes on tensors becomes layers, and means what the newest version means."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.unit.every_operator import ELSEWHERE, RECIPES
from tests.unit.ops_harness import kinds, lower_model, run_runtime

from sartor.graph.reference import evaluate_graph

HOST = {"TfIdfVectorizer": "its n-grams are searched for on the host"}
RUNTIME = ("GlobalLpPool", "LRN", "MaxRoiPool")  # which onnx's reference lacks, or computes for as many channels as there are images

RENAMED = {"Scatter": "ScatterElements"}


def versions():
    """Operators of ai.onnx and their versions, the deprecated ones included."""
    return sorted({(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if not s.domain})


def model_of(op, version):
    node = RECIPES[op](version)
    given = {n: a for n, a in node.inputs.items() if a is not None}
    feeds = {n: a for n, a in given.items() if n not in node.constants}
    attributes = {n: onh.from_array(a) if isinstance(a, np.ndarray) else a for n, a in node.attributes.items()}
    outputs = [f"y{i}" for i in range(node.outputs)]
    made = oh.make_node(op, [n if a is not None else "" for n, a in node.inputs.items()], outputs, name="node", **attributes)
    inputs = [oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    weights = [onh.from_array(given[n], n) for n in node.constants]
    graph = oh.make_graph([made], "g", inputs, [oh.make_empty_tensor_value_info(n) for n in outputs], weights)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", version)])
    return model, feeds, outputs


@cache
def wanted(op):
    """What the newest version of an operator gives."""
    newest = max(version for name, version in versions() if name == RENAMED.get(op, op))
    model, feeds, _ = model_of(RENAMED.get(op, op), min(newest, 21) if op in RUNTIME else newest)
    return run_runtime(model, feeds) if op in RUNTIME else [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def test_every_operator_has_a_recipe_or_a_reason_to_have_none():
    named = {op for group in ELSEWHERE.values() for op in group}
    assert {op for op, _ in versions()} == named | set(RECIPES)
    assert not named & set(RECIPES)


@pytest.mark.parametrize(("op", "version"), [(op, v) for op, v in versions() if op in RECIPES], ids=lambda p: str(p))
def test_every_version(op, version):
    model, feeds, outputs = model_of(op, version)
    graph = lower_model(model)
    if op not in HOST:
        assert "host" not in kinds(graph)
    got = evaluate_graph(graph, feeds)
    for name, want in zip(outputs, wanted(op), strict=True):
        assert got[name].shape == want.shape
        assert got[name].dtype == want.dtype
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)
