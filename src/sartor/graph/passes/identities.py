"""Removes layers that change nothing: copies, casts to the same type, no-op movements, windows and reductions of size 1."""

from __future__ import annotations

from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.editor import Editor


def run(graph: Graph) -> Graph:
    """Removes identities and merges chains of reshapes (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each():
        current = _merge_reshapes(editor, layer) if layer.kind == "reshape" else layer
        if is_identity(editor, current) and not _is_copy_to_output(editor, current):
            editor.replace_value(current, current.inputs[0])
    return editor.finish()


def _merge_reshapes(editor: Editor, layer: Layer) -> Layer:
    maker = editor.producer(layer.inputs[0])
    while maker is not None and maker.kind == "reshape":
        layer = editor.update(layer, inputs=maker.inputs)
        maker = editor.producer(layer.inputs[0])
    return layer


def _is_copy_to_output(editor: Editor, layer: Layer) -> bool:
    """Whether the layer gives an output its name, which the layer's input cannot take over."""
    source = layer.inputs[0]
    return layer.outputs[0] in editor.outputs and (editor.producer(source) is None or source in editor.outputs)


def is_identity(editor: Editor, layer: Layer) -> bool:
    """Whether the output is the first input, unchanged in type, shape and contents."""
    if not layer.inputs or len(layer.outputs) != 1 or editor.tensors.get(layer.inputs[0]) != editor.tensors[layer.outputs[0]]:
        return False
    attributes = layer.attributes
    shape = editor.shape(layer.inputs[0])
    if layer.kind == "elementwise":
        return len(layer.inputs) == 1 and layer.expression is not None and layer.expression.is_identity
    if layer.expression is not None or layer.extra:
        return False
    if layer.kind == "reshape" or (layer.kind == "concat" and len(layer.inputs) == 1):
        return True
    if layer.kind == "transpose":
        return tuple(attributes["perm"]) == tuple(range(len(shape)))
    if layer.kind == "slice":
        return all(s == 0 or d == 1 for s, d in zip(attributes["starts"], shape, strict=True)) and all(
            s == 1 or d == 1 for s, d in zip(attributes["steps"], shape, strict=True))
    if layer.kind == "pad":
        return all(b == 0 for b in attributes["before"])
    if layer.kind == "reduce":
        return attributes["op"] in ("sum", "mean", "max", "min", "prod") and all(shape[a] == 1 for a in attributes["axes"])
    if layer.kind == "pool":
        return attributes["mode"] in ("max", "average") and all(
            n == 1 for n in (*attributes["kernel"], *attributes["strides"])) and all(p == 0 for p in attributes["pads"])
    if layer.kind == "resize":
        return attributes["coordinate"] != "tf_crop_and_resize" and all(s is None or s == 1.0 for s in attributes["scales"])
    return False
