"""Slices move towards the inputs where only the slice is read, so that nothing is computed that is then left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.permutations import groups
from sartor.graph.passes.transposes import reshaped
from sartor.sizes import Dim

Cuts = dict[int, tuple[Dim, int, Dim]]  # dim -> start, step and count of what is kept


def run(graph: Graph) -> Graph:
    """Moves slices before the work they cut (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    moving = True
    while moving:
        moving = False
        for layer in editor.each("slice"):
            maker = editor.producer(layer.inputs[0])
            if maker is not None and maker.kind in _MOVES and editor.sole_reader(layer.inputs[0]) is layer:
                new = _MOVES[maker.kind](editor, layer, maker, _cuts(editor, layer))
                if new is not None:
                    editor.replace_value(layer, new)
                    editor.remove(maker)
                    moving = True
    return editor.finish()


def _cuts(editor: Editor, layer: Layer) -> Cuts:
    shape, result = editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0])
    starts, steps = layer.attributes["starts"], layer.attributes["steps"]
    return {i: (starts[i], steps[i], result[i]) for i, d in enumerate(shape) if (starts[i], steps[i], result[i]) != (0, 1, d)}


def _cut(editor: Editor, value: str, cuts: Cuts, near: Layer) -> str:
    """The value with these cuts of its dims."""
    tensor = editor.tensors[value]
    if not cuts:
        return value
    starts = tuple(cuts[i][0] if i in cuts else 0 for i in range(len(tensor.shape)))
    steps = tuple(cuts[i][1] if i in cuts else 1 for i in range(len(tensor.shape)))
    shape = tuple(cuts[i][2] if i in cuts else d for i, d in enumerate(tensor.shape))
    for reader in editor.readers(value):
        if reader.kind == "slice" and (reader.attributes["starts"], reader.attributes["steps"]) == (starts, steps):
            if editor.shape(reader.outputs[0]) == shape:
                return reader.outputs[0]
    return editor.emit("slice", [value], Tensor(tensor.dtype, shape), near, attributes={"starts": starts, "steps": steps})


def _cut_operand(editor: Editor, value: str, rank: int, cuts: Cuts, near: Layer) -> str:
    """An operand that broadcasts to `rank` dims, cut where it does not broadcast."""
    shape = editor.shape(value)
    missing = rank - len(shape)
    return _cut(editor, value, {i - missing: c for i, c in cuts.items() if i >= missing and shape[i - missing] != 1}, near)


def _again(editor: Editor, maker: Layer, cut: Layer, inputs: Sequence[str], **attributes: Any) -> str:
    """The maker once more, on cut inputs."""
    rank, cuts = len(editor.shape(maker.outputs[0])), _cuts(editor, cut)
    extra = tuple(_cut_operand(editor, v, rank, cuts, maker) for v in maker.extra)
    return editor.emit(maker.kind, inputs, editor.tensors[cut.outputs[0]], maker, expression=maker.expression, extra=extra,
                       attributes={**maker.attributes, **attributes})


def _elementwise(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    rank = len(editor.shape(maker.outputs[0]))
    return _again(editor, maker, layer, [_cut_operand(editor, v, rank, cuts, maker) for v in maker.inputs])


def _rowwise(axes: Callable[[Layer], Sequence[int]]) -> Callable[[Editor, Layer, Layer, Cuts], str | None]:
    """For kinds that work along some dims and treat all others alike."""

    def move(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
        if any(a in cuts for a in axes(maker)):
            return None
        return _again(editor, maker, layer, [_cut(editor, maker.inputs[0], cuts, maker)])

    return move


def _matmul(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    rank = len(editor.shape(maker.outputs[0]))
    inputs = []
    for value, kept, flag in zip(maker.inputs, (rank - 2, rank - 1), ("transpose_a", "transpose_b"), strict=True):
        shape = editor.shape(value)
        missing = rank - len(shape)
        here = {i - missing: c for i, c in cuts.items() if missing <= i < rank - 2 and shape[i - missing] != 1}
        if kept in cuts:  # rows of the left operand, columns of the right one
            other = rank - 1 if kept == rank - 2 else rank - 2
            here[(other if maker.attributes[flag] else kept) - missing] = cuts[kept]
        inputs.append(_cut(editor, value, here, maker))
    return _again(editor, maker, layer, inputs)


def _attention(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    """Queries may be cut where their place does not matter; their mask is cut with them."""
    if set(cuts) != {1} or maker.attributes["causal"]:
        return None
    mask = maker.inputs[3] if len(maker.inputs) > 3 else ""
    if mask:
        mask = _cut_operand(editor, mask, 4, {2: cuts[1]}, maker)
    return _again(editor, maker, layer, [_cut(editor, maker.inputs[0], cuts, maker), *maker.inputs[1:3], mask])


def _reshape(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    """Only dims that the reshape leaves as they are."""
    before, after = editor.shape(maker.inputs[0]), editor.shape(maker.outputs[0])
    runs = groups(before, after)
    same = {} if runs is None else {b[0]: a[0] for a, b in runs if len(a) == len(b) == 1}
    if any(i not in same for i in cuts):
        return None
    cut = _cut(editor, maker.inputs[0], {same[i]: c for i, c in cuts.items()}, maker)
    return reshaped(editor, cut, editor.shape(layer.outputs[0]), maker)


def _transpose(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    perm = maker.attributes["perm"]
    return editor.transpose(_cut(editor, maker.inputs[0], {perm[i]: c for i, c in cuts.items()}, maker), perm, maker)


def _concat(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    if maker.attributes["axis"] in cuts:
        return None
    return _again(editor, maker, layer, [_cut(editor, v, cuts, maker) for v in maker.inputs])


def _gather(editor: Editor, layer: Layer, maker: Layer, cuts: Cuts) -> str | None:
    """Only cuts of the indices: the table stays."""
    axis, count = maker.attributes["axis"], len(editor.shape(maker.inputs[1]))
    if any(not axis <= i < axis + count for i in cuts):
        return None
    indices = _cut(editor, maker.inputs[1], {i - axis: c for i, c in cuts.items()}, maker)
    return _again(editor, maker, layer, [maker.inputs[0], indices])


_MOVES: dict[str, Callable[[Editor, Layer, Layer, Cuts], str | None]] = {
    "elementwise": _elementwise, "matmul": _matmul, "attention": _attention, "reshape": _reshape, "transpose": _transpose,
    "concat": _concat, "gather": _gather, "softmax": _rowwise(lambda m: (m.attributes["axis"],)),
    "normalize": _rowwise(lambda m: m.attributes["axes"]), "reduce": _rowwise(lambda m: m.attributes["axes"]),
}
