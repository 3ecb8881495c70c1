"""Padding that a convolution or pool can do itself."""

from __future__ import annotations

from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.editor import Editor


def run(graph: Graph) -> Graph:
    """Moves constant padding of space into the convolutions and pools that read it (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each("convolution", "pool"):
        maker = editor.producer(layer.inputs[0])
        if maker is not None and maker.kind == "pad" and maker.attributes["mode"] == "constant":
            _absorb(editor, layer, maker)
    return editor.finish()


def _absorb(editor: Editor, layer: Layer, pad: Layer) -> None:
    shape, padded, before = editor.shape(pad.inputs[0]), editor.shape(pad.outputs[0]), pad.attributes["before"]
    after = [p - s - b for s, p, b in zip(shape, padded, before, strict=True)]
    if any(before[i] != 0 or after[i] != 0 for i in (0, len(shape) - 1)):
        return
    if not all(isinstance(n, int) and n >= 0 for n in (*before, *after)):
        return
    attributes, value = dict(layer.attributes), float(pad.attributes.get("value", 0.0))
    own = attributes["pads"]
    if layer.kind == "convolution":
        fits = value == 0.0
    elif attributes["mode"] == "argmax":
        fits = False  # places are counted in the padded plane
    elif attributes["mode"] == "max":
        fits = value == float("-inf") or (value <= -3.4e38 and editor.tensors[layer.inputs[0]].dtype == "f32")
    else:  # zeros count as elements: those of the pad, and any the pool added itself only if they did before
        fits = value == 0.0 and (attributes["mode"] == "lp" or attributes.get("include_pad") or all(p == 0 for p in own))
        attributes["include_pad"] = True
    if fits:
        added = (*before[1:-1], *after[1:-1])
        attributes["pads"] = tuple(p + q for p, q in zip(own, added, strict=True))
        editor.update(layer, inputs=(pad.inputs[0], *layer.inputs[1:]), attributes=attributes)
