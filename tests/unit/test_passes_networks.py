"""What passes leave of networks that come with Python packages."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sartor.graph.passes import optimize
from sartor.graph.reference import evaluate_graph
from sartor.importers.onnx import load
from sartor.ops.lowering import lower

NETWORKS = {
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": (
        (1, 3, 48, 96), {"convolution": 53, "reduce": 10, "elementwise": 9, "transpose": 1, "pool": 1, "reshape": 1, "matmul": 1, "softmax": 1}),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": (
        (2, 3, 48, 40), {"convolution": 38, "matmul": 13, "reshape": 11, "normalize": 5, "reduce": 2, "elementwise": 2, "attention": 2,
                         "transpose": 1, "pool": 1, "concat": 1, "softmax": 1}),
    "magika/models/standard_v3_3/model.onnx": (
        (2, 2048), {"reshape": 4, "normalize": 2, "elementwise": 1, "gather": 1, "convolution": 1, "reduce": 1, "matmul": 1, "softmax": 1}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_few_layers_are_left_and_they_compute_the_same(name: str) -> None:
    package, *rest = name.split("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(next(iter(spec.submodule_search_locations))).joinpath(*rest)
    graph = lower(load(path))
    after = optimize(graph)
    shape, expected = NETWORKS[name]
    assert Counter(layer.kind for layer in after.layers) == expected
    rng = np.random.default_rng(0)
    tensor = graph.tensors[graph.inputs[0]]
    x = rng.standard_normal(shape).astype(np.float32) if tensor.dtype == "f32" else rng.integers(0, 257, shape).astype(np.int32)
    before, found = (evaluate_graph(g, {graph.inputs[0]: x}) for g in (graph, after))
    for output in graph.outputs:
        np.testing.assert_allclose(found[output], before[output], rtol=1e-3, atol=1e-4 * float(np.abs(before[output]).max()))
