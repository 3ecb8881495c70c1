"""The graphs that a node has as attributes, as what is left to lower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import onnx_ir

from sartor.errors import ModelError
from sartor.ops.context import Call

if TYPE_CHECKING:
    from sartor.ops.lowering import Item


def graph_of(call: Call, attribute: str) -> onnx_ir.Graph:
    graph = call[attribute]
    if not isinstance(graph, onnx_ir.Graph):
        raise ModelError(f"{call} has an attribute {attribute!r} that is no graph")
    return graph


def output_names(graph: onnx_ir.Graph) -> list[str]:
    return [value.name or "" for value in graph.outputs]


def body_items(graph: onnx_ir.Graph, versions: Mapping[str, int], origin: tuple[str, ...]) -> list[Item]:
    from sartor.ops.lowering import node_items

    return node_items(graph, versions, origin)


def named_outputs(names: Iterable[str], graph: onnx_ir.Graph, call: Call) -> list[Item]:
    """Letting names stand for the outputs of a graph; "" for those that are not wanted."""
    from sartor.ops.lowering import named

    return [named(name, of, call) for name, of in zip(names, output_names(graph), strict=True) if name]
