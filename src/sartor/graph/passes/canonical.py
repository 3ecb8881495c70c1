"""Brings layers that several forms of the same model write differently to one form."""

from __future__ import annotations

from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.editor import Editor


def run(graph: Graph) -> Graph:
    """Rewrites layers to their usual form (pure: the graph given stays as it was).

    - A pool over everything is a reduction.
    - A constant right operand of a product whose batch dims are all 1 is a matrix.
    """
    editor = Editor(graph)
    for layer in editor.each("pool", "matmul"):
        if layer.kind == "pool":
            _global_pool(editor, layer)
        else:
            _constant_matrix(editor, layer)
    return editor.finish()


def _global_pool(editor: Editor, layer: Layer) -> None:
    attributes = layer.attributes
    spatial = editor.shape(layer.inputs[0])[1:-1]
    covered = all(d == k or (isinstance(d, int) and d <= k) for d, k in zip(spatial, attributes["kernel"], strict=True))
    whole = covered and all(d == 1 for d in editor.shape(layer.outputs[0])[1:-1])
    op = {"average": "mean", "max": "max"}.get(attributes["mode"])
    if whole and op and all(p == 0 for p in attributes["pads"]) and all(d == 1 for d in attributes["dilations"]):
        editor.update(layer, kind="reduce", attributes={"op": op, "axes": tuple(range(1, len(spatial) + 1)), "select_last": False})


def _constant_matrix(editor: Editor, layer: Layer) -> None:
    weights = editor.constant(layer.inputs[1])
    rank = len(editor.shape(layer.inputs[0]))
    if weights is not None and 2 < weights.ndim <= rank and all(d == 1 for d in weights.shape[:-2]):
        matrix = editor.add_constant(weights.reshape(weights.shape[-2:]), layer.inputs[1])
        editor.update(layer, inputs=(layer.inputs[0], matrix))
