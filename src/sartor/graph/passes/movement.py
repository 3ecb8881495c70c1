"""Concatenations, slices and gathers that undo, contain or repeat each other."""

from __future__ import annotations

import numpy as np

from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.permutations import groups
from sartor.graph.passes.transposes import reshaped
from sartor.sizes import Dim, product


def run(graph: Graph) -> Graph:
    """Simplifies movements (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each("gather", "slice", "concat"):
        if layer.kind == "gather":
            _gather_in_steps(editor, layer)
    for layer in editor.each("slice", "concat"):
        if layer.kind == "concat":
            _flatten(editor, layer)
        else:
            _slice_of(editor, layer)
    for layer in editor.each("concat"):
        _rejoin(editor, layer)
    return editor.finish()


# --- gather --------------------------------------------------------------------------------------------------------------------


def _gather_in_steps(editor: Editor, layer: Layer) -> None:
    """A gather of constant indices in even steps is a slice."""
    indices, axis = editor.constant(layer.inputs[1]), layer.attributes["axis"]
    if indices is None or indices.size == 0 or layer.expression is not None:
        return
    flat = indices.reshape(-1).astype(np.int64)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if step == 0 or (np.diff(flat) != step).any() or (flat < 0).any() != (flat < 0).all():
        return
    source = editor.tensors[layer.inputs[0]]
    start: Dim = int(flat[0]) if flat[0] >= 0 else source.shape[axis] + int(flat[0])
    rank, count = len(source.shape), int(flat.size)
    starts = tuple(start if i == axis else 0 for i in range(rank))
    steps = tuple(step if i == axis else 1 for i in range(rank))
    shape = tuple(count if i == axis else d for i, d in enumerate(source.shape))
    cut = editor.emit("slice", layer.inputs[:1], Tensor(source.dtype, shape), layer, attributes={"starts": starts, "steps": steps})
    editor.replace_value(layer, editor.reshape(cut, editor.shape(layer.outputs[0]), layer))


# --- slice ---------------------------------------------------------------------------------------------------------------------


def _slice_of(editor: Editor, layer: Layer) -> None:
    """Looks through the layer that makes what is cut."""
    maker = editor.producer(layer.inputs[0])
    if maker is None:
        return
    if maker.kind == "slice":
        starts, steps = maker.attributes["starts"], maker.attributes["steps"]
        attributes = {
            "starts": tuple(a + b * s for a, b, s in zip(starts, layer.attributes["starts"], steps, strict=True)),
            "steps": tuple(s * t for s, t in zip(steps, layer.attributes["steps"], strict=True)),
        }
        editor.update(layer, inputs=maker.inputs, attributes=attributes)
        _slice_of(editor, editor.refreshed(layer) or layer)
    elif maker.kind == "concat":
        _slice_of_concat(editor, layer, maker)
    elif maker.kind == "reshape":
        _slice_of_reshape(editor, layer, maker)


def _cut_axes(editor: Editor, layer: Layer) -> list[int]:
    """The dims of which the slice leaves something out."""
    shape, result = editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0])
    return [i for i, (d, r) in enumerate(zip(shape, result, strict=True))
            if d != r or layer.attributes["starts"][i] != 0 or layer.attributes["steps"][i] != 1]


def _slice_of_concat(editor: Editor, layer: Layer, concat: Layer) -> None:
    axis = concat.attributes["axis"]
    if _cut_axes(editor, layer) != [axis]:
        return
    start, step = layer.attributes["starts"][axis], layer.attributes["steps"][axis]
    count = editor.shape(layer.outputs[0])[axis]
    offset: Dim = 0
    for value in concat.inputs:
        size = editor.shape(value)[axis]
        if start == offset and count == size and step == 1:
            editor.replace_value(layer, value)
            return
        first, last = start - offset, start - offset + (count - 1) * step
        if isinstance(first, int) and isinstance(last, int) and isinstance(size, int):
            if 0 <= min(first, last) <= max(first, last) < size:
                starts = tuple(first if i == axis else 0 for i in range(len(layer.attributes["starts"])))
                editor.update(layer, inputs=(value,), attributes={**layer.attributes, "starts": starts})
                return
        offset = offset + size


def _slice_of_reshape(editor: Editor, layer: Layer, maker: Layer) -> None:
    """A cut along the outermost of the dims that a reshape made of one is a cut of that one."""
    axes = _cut_axes(editor, layer)
    before, after, result = editor.shape(maker.inputs[0]), editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0])
    runs = groups(before, after)
    if len(axes) != 1 or runs is None or layer.attributes["steps"][axes[0]] != 1:
        return
    run = next((r for r in runs if axes[0] in r[1]), None)
    if run is None or len(run[0]) != 1 or run[1][0] != axes[0] or len(run[1]) < 2:
        return
    inner, axis = product(after[i] for i in run[1][1:]), run[0][0]
    starts = tuple(layer.attributes["starts"][axes[0]] * inner if i == axis else 0 for i in range(len(before)))
    shape = tuple(result[axes[0]] * inner if i == axis else d for i, d in enumerate(before))
    cut = editor.emit("slice", maker.inputs, Tensor(editor.tensors[maker.inputs[0]].dtype, shape), layer,
                      attributes={"starts": starts, "steps": (1,) * len(before)})
    editor.replace_value(layer, reshaped(editor, cut, result, layer))


# --- concat --------------------------------------------------------------------------------------------------------------------


def _flatten(editor: Editor, layer: Layer) -> None:
    """A concatenation that only another one reads along the same dim becomes part of it; empty operands go."""
    axis = layer.attributes["axis"]
    inputs: list[str] = []
    for value in layer.inputs:
        maker = editor.producer(value)
        if maker is not None and maker.kind == "concat" and maker.attributes["axis"] == axis and editor.sole_reader(value) is not None:
            inputs.extend(maker.inputs)
        else:
            inputs.append(value)
    kept = [v for v in inputs if editor.shape(v)[axis] != 0] or inputs[:1]
    if tuple(kept) != layer.inputs:
        editor.update(layer, inputs=tuple(kept))


def _rejoin(editor: Editor, layer: Layer) -> None:
    """Neighbouring operands that are neighbouring slices of one value become one slice, or that value."""
    axis = layer.attributes["axis"]
    inputs: list[str] = []
    for value in layer.inputs:
        if inputs and (joined := _joined(editor, layer, inputs[-1], value, axis)) is not None:
            inputs[-1] = joined
        else:
            inputs.append(value)
    if tuple(inputs) != layer.inputs:
        editor.update(layer, inputs=tuple(inputs))


def _joined(editor: Editor, layer: Layer, left: str, right: str, axis: int) -> str | None:
    a, b = editor.producer(left), editor.producer(right)
    if a is None or b is None or a.kind != "slice" or b.kind != "slice" or a.inputs != b.inputs:
        return None
    if any(s != 1 for s in (*a.attributes["steps"], *b.attributes["steps"])):
        return None
    size = editor.shape(left)[axis]
    expected = tuple(s + size if i == axis else s for i, s in enumerate(a.attributes["starts"]))
    if tuple(b.attributes["starts"]) != expected:
        return None
    tensor = editor.tensors[left]
    shape = tuple(d + editor.shape(right)[axis] if i == axis else d for i, d in enumerate(tensor.shape))
    if shape == editor.shape(a.inputs[0]):
        return a.inputs[0]
    return editor.emit("slice", a.inputs, Tensor(tensor.dtype, shape), layer, attributes=a.attributes)
