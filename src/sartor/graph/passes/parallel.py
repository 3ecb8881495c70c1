"""Products of one operand with several constant matrices, and one product that is cut into columns.

Convolutions or matrix products that read the same value in the same way become one with more columns, and column slices of its
result, which are views.  The opposite where the slices could not stay views, because what reads them (attention, through a
reshape that splits the columns into heads) wants its rows dense: then one wide product becomes several.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.graph.layer import OPAQUE, Graph, Layer, Tensor
from sartor.graph.passes.duplicates import frozen
from sartor.graph.passes.editor import Editor, merged_source


def run(graph: Graph) -> Graph:
    """Merges parallel products and splits those whose slices must be dense (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each("matmul"):
        _split(editor, layer)
    groups: dict[Any, list[Layer]] = {}
    for layer in editor.each("matmul", "convolution"):
        if (key := _likeness(editor, layer)) is not None:
            groups.setdefault(key, []).append(layer)
    for group in groups.values():
        if len(group) > 1:
            _merge(editor, group)
    return editor.finish()


def _is_column_operand(editor: Editor, value: str, columns: Any) -> bool:
    array = editor.constant(value)
    return array is not None and array.shape == (columns,)


def _weights_axis(layer: Layer) -> int:
    """The axis of the weights that runs over columns of the result."""
    return -2 if layer.attributes.get("transpose_b") else -1


def _plain_product(editor: Editor, layer: Layer) -> bool:
    """Whether the layer multiplies by constant weights and its expression reads nothing but vectors of columns."""
    weights = editor.constant(layer.inputs[1])
    columns = editor.tensors[layer.outputs[0]].columns
    if weights is None or layer.inputs[0] in editor.constants or (layer.kind == "matmul" and weights.ndim != 2):
        return False
    if layer.attributes.get("groups", 1) != 1 or layer.attributes.get("transpose_a"):
        return False
    return all(_is_column_operand(editor, v, columns) for v in layer.extra)


# --- merging -------------------------------------------------------------------------------------------------------------------


def _likeness(editor: Editor, layer: Layer) -> Any:
    """What layers that can be merged have in common; None for a layer that cannot be."""
    output = layer.outputs[0]
    if not _plain_product(editor, layer) or output in editor.outputs:
        return None
    if any(r.kind in ("concat", "reshape", "attention", "transpose", *OPAQUE) for r in editor.readers(output)):
        return None  # these copy a slice, or would write into it
    weights = list(editor.shape(layer.inputs[1]))
    weights[_weights_axis(layer)] = 0
    result = editor.tensors[output]
    return layer.kind, layer.inputs[0], tuple(weights), frozen(layer.attributes), layer.expression, result.dtype, result.shape[:-1]


def _merge(editor: Editor, group: list[Layer]) -> None:
    first = group[0]
    outputs = [editor.tensors[layer.outputs[0]] for layer in group]
    widths = [int(t.columns) for t in outputs if isinstance(t.columns, int)]
    weights = np.concatenate([editor.constants[layer.inputs[1]] for layer in group], axis=_weights_axis(first))
    extra = [editor.add_constant(np.concatenate([editor.constants[layer.extra[k]] for layer in group]), first.extra[k])
             for k in range(len(first.extra))]
    tensor = Tensor(outputs[0].dtype, (*outputs[0].shape[:-1], sum(widths)))
    wide = editor.emit(first.kind, (first.inputs[0], editor.add_constant(weights, first.inputs[1])), tensor, first,
                       expression=first.expression, extra=extra, attributes=first.attributes, source=merged_source(*group))
    offset, rank = 0, len(tensor.shape)
    for layer, width, output in zip(group, widths, outputs, strict=True):
        attributes = {"starts": (*(0,) * (rank - 1), offset), "steps": (1,) * rank}
        editor.replace_value(layer, editor.emit("slice", [wide], output, layer, attributes=attributes))
        offset += width


# --- splitting -----------------------------------------------------------------------------------------------------------------


def _split(editor: Editor, layer: Layer) -> None:
    output = layer.outputs[0]
    readers = editor.readers(output)
    if not readers or output in editor.outputs or not _plain_product(editor, layer):
        return
    if not all(_cuts_columns(editor, r) for r in readers) or not any(_wanted_dense(editor, r.outputs[0]) for r in readers):
        return
    for cut in readers:
        start, width = cut.attributes["starts"][-1], editor.shape(cut.outputs[0])[-1]
        columns = slice(start, start + width)
        weights = editor.constants[layer.inputs[1]]
        part = weights[columns] if layer.attributes["transpose_b"] else weights[:, columns]
        extra = [editor.add_constant(editor.constants[v][columns], v) for v in layer.extra]
        narrow = editor.emit("matmul", (layer.inputs[0], editor.add_constant(part, layer.inputs[1])), editor.tensors[cut.outputs[0]],
                             layer, expression=layer.expression, extra=extra, attributes=layer.attributes)
        editor.replace_value(cut, narrow)
    editor.remove(layer)


def _cuts_columns(editor: Editor, layer: Layer) -> bool:
    """Whether the layer is a slice that leaves out nothing but columns."""
    if layer.kind != "slice":
        return False
    starts, steps = layer.attributes["starts"], layer.attributes["steps"]
    whole, cut = editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0])
    return (all(s == 0 for s in starts[:-1]) and all(s == 1 for s in steps) and whole[:-1] == cut[:-1]
            and isinstance(starts[-1], int) and isinstance(cut[-1], int))


def _wanted_dense(editor: Editor, value: str) -> bool:
    """Whether a reader splits the value's columns, directly or behind element-wise work."""
    for reader in editor.readers(value):
        if reader.kind == "reshape" and editor.shape(reader.outputs[0])[-1:] != editor.shape(value)[-1:]:
            return True
        if reader.kind == "elementwise" and _wanted_dense(editor, reader.outputs[0]):
            return True
    return False
