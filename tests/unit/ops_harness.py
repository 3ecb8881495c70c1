"""Lowers a model of one node, with its sizes known and with all of them symbolic, and compares both with onnx's reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
from onnx.reference import ReferenceEvaluator

from sartor.graph.layer import Graph
from sartor.graph.reference import evaluate_graph
from sartor.graph.verify import verify
from sartor.importers.onnx import load
from sartor.ops.lowering import lower

RNG = np.random.default_rng(7)
Arrays = Mapping[str, np.ndarray[Any, Any]]


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Normal numbers, or small integers."""
    values = RNG.standard_normal(shape)
    return values.astype(dtype) if np.dtype(dtype).kind == "f" else RNG.integers(-5, 6, shape).astype(dtype)


def make_model(nodes: list[onnx.NodeProto], feeds: Arrays, outputs: list[str], constants: Arrays | None = None, opset: int = 18,
               dims: Mapping[str, list[Any]] | None = None) -> onnx.ModelProto:
    """A model of `nodes` whose inputs have the types of `feeds` (and the sizes `dims`, where given)."""
    inputs = [oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), (dims or {}).get(n, list(a.shape)))
              for n, a in feeds.items()]
    results = [oh.make_empty_tensor_value_info(n) for n in outputs]
    weights = [onh.from_array(a, n) for n, a in (constants or {}).items()]
    return oh.make_model(oh.make_graph(nodes, "g", inputs, results, weights), opset_imports=[oh.make_opsetid("", opset)])


def lower_model(model: onnx.ModelProto, **kwargs: Any) -> Graph:
    graph = lower(load(model), **kwargs)
    verify(graph)
    return graph


def kinds(graph: Graph) -> list[str]:
    return [layer.kind for layer in graph.layers]


def holds(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether those of the graph's conditions hold that are about these sizes alone."""
    from sartor.sizes import evaluate, symbols

    known = [(a, b) for a, b in graph.conditions if symbols(a) | symbols(b) <= set(sizes)]
    return all(evaluate(a, sizes) == evaluate(b, sizes) for a, b in known)


def run_runtime(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """The model's outputs by ONNX Runtime, unoptimised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, 10)
    return list(onnxruntime.InferenceSession(copy.SerializeToString(), options).run(None, dict(feeds)))


def check(op: str, feeds: Arrays, constants: Arrays | None = None, *, opset: int = 18, outputs: int = 1, symbolic: bool = True,
          order: list[str] | None = None, expected: list[np.ndarray[Any, Any]] | None = None, tolerance: float = 1e-5,
          runtime: bool = False, fixed: Mapping[str, int] | None = None, **attributes: Any) -> Graph:
    """Compares one operator with onnx's reference, with `expected`, or, where the reference is wrong, with ONNX Runtime.

    Nothing may be left to the host.  `fixed` names one axis of an input that stays a number where all sizes are symbols.
    """
    constants = constants or {}
    names = [f"y{i}" for i in range(outputs)]
    node = oh.make_node(op, order or [*feeds, *constants], names, name="node", **attributes)
    model = make_model([node], feeds, names, constants, opset)
    if runtime:
        expected = run_runtime(model, feeds)
    wanted = expected or [np.asarray(r) for r in ReferenceEvaluator(model).run(None, dict(feeds))]
    graph = lower_model(model)
    sizes = {f"{n}{i}": d for n, a in feeds.items() for i, d in enumerate(a.shape)}
    shapes: dict[str, list[Any]] = {n: [f"{n}{i}" for i in range(a.ndim)] for n, a in feeds.items()}
    for name, axis in (fixed or {}).items():
        shapes[name][axis] = feeds[name].shape[axis]
    graphs = [graph, lower_model(model, shapes=shapes)] if symbolic else [graph]
    for lowered in graphs:
        assert "host" not in kinds(lowered), [layer.name for layer in lowered.layers if layer.kind == "host"]
        assert holds(lowered, sizes if lowered is not graph else {})
        got = evaluate_graph(lowered, feeds)
        for name, want in zip(names, wanted, strict=True):
            assert got[name].shape == want.shape
            assert got[name].dtype == want.dtype
            np.testing.assert_allclose(got[name], want, rtol=tolerance, atol=tolerance)
    return graph
