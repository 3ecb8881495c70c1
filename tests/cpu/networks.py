"""Small graphs by hand, for tests of programs and sessions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.compiler import compile_graph, device_for
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.runtime.program import Program
from sartor.sizes import Dim, symbol


def operation(op: str, operands: int = 2, dtype: str = "f32") -> Any:
    """The expression of one operation on all operands."""
    e = ExpressionBuilder([dtype] * operands)
    return e.finish(e(op, *range(operands)))


def elementwise(name: str, op: str, inputs: tuple[str, ...], output: str) -> Layer:
    return Layer(name, "elementwise", inputs, (output,), {}, operation(op, len(inputs)), (), (name,))


def graph(
    tensors: dict[str, tuple[Dim, ...]],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    layers: list[Layer],
    constants: dict[str, Any] | None = None,
    dtypes: dict[str, str] | None = None,
    name: str = "small",
) -> Graph:
    types = {k: Tensor((dtypes or {}).get(k, "f32"), tuple(v)) for k, v in tensors.items()}
    return Graph(inputs, outputs, types, dict(constants or {}), layers, name)


def program(graph: Graph, threads: int = 1, isa: str | None = None, **options: Any) -> Program:
    return compile_graph(graph, device_for(isa), threads=threads, **options)


def add(shape: tuple[Dim, ...] = (16,)) -> Graph:
    """z = x + y."""
    return graph(dict.fromkeys("xyz", shape), ("x", "y"), ("z",), [elementwise("add", "add", ("x", "y"), "z")], name="add")


def chain() -> Graph:
    """Symbolic rows, a constant, views, a concatenation and two outputs: c = [relu(x) * k | x - relu(x) * k], y = c + c."""
    n = symbol("n")
    tensors: dict[str, tuple[Dim, ...]] = {
        "x": (n, 6),
        "k": (6,),
        "a": (n, 6),
        "b": (n, 6),
        "d": (n, 6),
        "c": (n, 12),
        "y": (n, 12),
        "part": (n, 3),
    }
    layers = [
        elementwise("relu", "relu", ("x",), "a"),
        elementwise("scale", "mul", ("a", "k"), "b"),
        elementwise("rest", "sub", ("x", "b"), "d"),
        Layer("join", "concat", ("b", "d"), ("c",), {"axis": 1}),
        elementwise("double", "add", ("c", "c"), "y"),
        Layer("cut", "slice", ("c",), ("part",), {"starts": (0, 4), "steps": (1, 1)}),
    ]
    return graph(tensors, ("x",), ("y", "part"), layers, {"k": np.arange(6, dtype=np.float32)}, name="chain")


def chain_reference(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    b = np.maximum(x, 0) * np.arange(6, dtype=np.float32)
    c = np.concatenate([b, x - b], 1)
    return {"y": c + c, "part": c[:, 4:7]}
