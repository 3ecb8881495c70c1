"""Drops layers that no output of the graph needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.editor import Editor
from sartor.sizes import Size, symbols


def run(graph: Graph) -> Graph:
    """Drops dead layers (pure: the graph given stays as it was).

    A host layer that defines a size which a living layer's shapes or attributes use is alive.
    """
    editor = Editor(graph)
    needed, sizes = set(graph.outputs), set()
    for name in graph.outputs:
        sizes |= _symbols(graph.tensors[name].shape)
    for layer in reversed(graph.layers):
        defined = {entry[0] for entry in layer.attributes.get("defines", ())}
        if not needed & set(layer.outputs) and not defined & sizes:
            editor.remove(layer)
            continue
        needed.update(layer.reads)
        sizes |= _layer_symbols(graph, layer)
    return editor.finish()


def _layer_symbols(graph: Graph, layer: Layer) -> set[str]:
    found: set[str] = set()
    for value in (*layer.reads, *(v for v in layer.outputs if v)):
        found |= _symbols(graph.tensors[value].shape)
    for attribute in layer.attributes.values():
        if isinstance(attribute, (tuple, list)):
            found |= _symbols(attribute)
    return found


def _symbols(dims: Iterable[Any]) -> set[str]:
    return {name for dim in dims if isinstance(dim, Size) for name in symbols(dim)}
