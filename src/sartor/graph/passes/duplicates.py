"""Common sub-expressions: of layers that compute the same from the same values one stays; of equal constants too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sartor.graph.layer import OPAQUE, Graph, Layer
from sartor.graph.passes.editor import Editor

LIMIT = 1 << 20  # bytes of the largest constants that are compared


def run(graph: Graph) -> Graph:
    """Merges equal layers and equal constants (pure: the graph given stays as it was).

    Layers that run on the host stay, as they may be random, and so do those that make sizes known and control layers.
    """
    editor = Editor(graph)
    contents: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    for name, array in graph.constants.items():
        if array.dtype == object or array.nbytes > LIMIT:
            continue
        key = (array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).digest())
        if (first := contents.setdefault(key, name)) != name:
            editor.redirect(name, first)
    seen: dict[Any, Layer] = {}
    for layer in editor.each():
        if layer.kind in OPAQUE:
            continue
        output = editor.tensors[layer.outputs[0]]
        key_of_layer = (layer.kind, layer.inputs, layer.extra, layer.expression, frozen(layer.attributes), output)
        first_layer = seen.get(key_of_layer)
        if first_layer is None:
            seen[key_of_layer] = layer
        elif layer.outputs[0] not in editor.outputs:
            editor.replace_value(layer, first_layer.outputs[0])
        elif first_layer.outputs[0] not in editor.outputs:
            merged = editor.replace_value(first_layer, layer.outputs[0])
            seen[key_of_layer] = editor.producer(merged) or layer
    return editor.finish()


def frozen(value: Any) -> Any:
    """The value as something hashable that is equal for equal attributes."""
    if isinstance(value, Mapping):
        return tuple(sorted((k, frozen(v)) for k, v in value.items()))
    if isinstance(value, (tuple, list)):
        return tuple(frozen(v) for v in value)
    return (type(value).__name__, value) if isinstance(value, (bool, int, float)) else value
