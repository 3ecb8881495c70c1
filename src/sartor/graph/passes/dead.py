"""Drops layers that no output of the graph needs."""

from __future__ import annotations

from sartor.graph.layer import Graph, Layer, layer_symbols
from sartor.graph.passes.editor import Editor
from sartor.sizes import symbols


def run(graph: Graph) -> Graph:
    """Drops dead layers (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    kept = {layer.name for layer in living(graph)}
    for layer in graph.layers:
        if layer.name not in kept:
            editor.remove(layer)
    return editor.finish()


def living(graph: Graph) -> list[Layer]:
    """The layers that the graph's outputs need, in order: for their values, or for sizes that they make known.

    Sizes that a `bind` layer reads are needed too where a condition holds them to others: it could not be checked without.
    """
    needed, sizes = set(graph.outputs), {s for name in graph.outputs for d in graph.tensors[name].shape for s in symbols(d)}
    held = {s for pair in graph.conditions for d in pair for s in symbols(d)}
    kept: list[Layer] = []
    for layer in reversed(graph.layers):
        defined = {entry[0] for entry in layer.attributes.get("defines", ())}
        if needed & set(layer.outputs) or defined & sizes or (layer.kind == "bind" and defined & held):
            kept.append(layer)
            needed.update(layer.reads)
            sizes |= layer_symbols(graph.tensors, layer)
    return kept[::-1]
