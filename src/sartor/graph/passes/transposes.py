"""Moves transposes towards the outputs until they meet their inverse, become reshapes, or go into flags and constants.

One sweep in order of computation: a layer that can work in the layout its operands had before they were transposed does so, and
the transpose follows it.  Operands that were not transposed get the inverse, which costs nothing for constants and for values
whose moved dims have size 1; a layer is left alone where this would make more transposes than there were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.algebra import RAW
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.permutations import (
    Perm,
    compose,
    extended,
    gathered,
    groups,
    inverse,
    is_trivial,
    permuted_shape,
    swapped_last,
    through_reshape,
)
from sartor.sizes import Dim

LOOK_AHEAD = 12  # layers behind a transpose that are searched for one that would cancel it


def run(graph: Graph) -> Graph:
    """Moves and cancels transposes (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each():
        if layer.kind == "transpose":
            _simplify(editor, layer)
        elif layer.kind == "reshape":
            _sink_reshape(editor, layer)
        elif layer.kind == "matmul":
            _into_flags(editor, layer)
            _sink_matmul(editor, layer)
        elif layer.kind in _ATTRIBUTES:
            _sink(editor, layer)
        elif layer.kind == "gather":
            _sink_gather(editor, layer)
    for layer in editor.each("reshape"):
        _into_weights(editor, layer)
    return editor.finish()


# --- helpers -----------------------------------------------------------------------------------------------------------------


def transposed(editor: Editor, value: str) -> tuple[str, Perm] | None:
    """The value's source and permutation where a transpose makes it."""
    maker = editor.producer(value)
    return None if maker is None or maker.kind != "transpose" else (maker.inputs[0], tuple(maker.attributes["perm"]))


def permuted(editor: Editor, value: str, perm: Sequence[int], near: Layer) -> str:
    """The value with its dims permuted, as simply as possible: through transposes that made it, by a reshape where that does."""
    while (made := transposed(editor, value)) is not None:
        value, perm = made[0], compose(made[1], perm)
    shape = editor.shape(value)
    if is_trivial(shape, perm):
        return reshaped(editor, value, permuted_shape(shape, perm), near)
    return editor.transpose(value, perm, near)


def reshaped(editor: Editor, value: str, shape: Sequence[Dim], near: Layer) -> str:
    """The value in another shape, without a chain of reshapes."""
    maker = editor.producer(value)
    while maker is not None and maker.kind == "reshape":
        value = maker.inputs[0]
        maker = editor.producer(value)
    return editor.reshape(value, shape, near)


def _simplify(editor: Editor, layer: Layer) -> None:
    value, perm = layer.inputs[0], tuple(layer.attributes["perm"])
    simple = transposed(editor, value) is None and value not in editor.constants and not is_trivial(editor.shape(value), perm)
    if not simple:
        editor.replace_value(layer, permuted(editor, value, perm, layer))


def _aligned(editor: Editor, value: str, perm: Perm, near: Layer) -> str:
    """An operand as it must be when the output's dims are no longer permuted by `perm`."""
    rank, shape = len(perm), editor.shape(value)
    if editor.tensors[value].elements == 1 and len(shape) < rank:
        return value
    made = transposed(editor, value)
    if made is not None and extended(made[1], rank) == perm and len(shape) == rank:
        return made[0]
    full = reshaped(editor, value, (*(1,) * (rank - len(shape)), *shape), near)
    return permuted(editor, full, inverse(perm), near)


def _operand_cost(editor: Editor, value: str, perm: Perm) -> int:
    """How many transposes more (1), as many (0) or fewer (-1) there are when the operand is aligned."""
    rank, shape = len(perm), editor.shape(value)
    made = transposed(editor, value)
    if made is not None:
        return -1 if extended(made[1], rank) == perm else 0
    full = (*(1,) * (rank - len(shape)), *shape)
    if value in editor.constants or is_trivial(full, inverse(perm)):
        return 0
    back = inverse(perm)
    exists = any(r.kind == "transpose" and extended(r.attributes["perm"], rank) == back for r in editor.readers(value))
    return 0 if exists else 1


def _worthwhile(editor: Editor, layer: Layer, values: Sequence[str], perm: Perm, out_perm: Perm) -> bool:
    """Whether working on operands before their transpose leaves no more transposes than there were."""
    total = sum(_operand_cost(editor, v, perm) for v in dict.fromkeys(values))
    output = layer.outputs[0]
    shape = permuted_shape(editor.shape(output), inverse(out_perm))
    if is_trivial(shape, out_perm):
        return total <= 0
    return total + 1 <= 0 or (total <= 0 and _meets_inverse(editor, output, out_perm, LOOK_AHEAD))


def _meets_inverse(editor: Editor, value: str, perm: Perm, depth: int) -> bool:
    """Whether a transpose by `perm` of what becomes `value` would cancel further on."""
    shape = permuted_shape(editor.shape(value), inverse(perm))
    for reader in editor.readers(value):
        if reader.kind == "transpose" and is_trivial(shape, compose(perm, reader.attributes["perm"])):
            return True
        same_rank = reader.outputs[0] and len(editor.shape(reader.outputs[0])) == len(perm)
        if depth and same_rank and reader.kind in _ATTRIBUTES and _meets_inverse(editor, reader.outputs[0], perm, depth - 1):
            return True
    return False


# --- layers that work in any layout --------------------------------------------------------------------------------------------


def _no_attributes(layer: Layer, perm: Perm) -> dict[str, Any]:
    return {}


def _axis(layer: Layer, perm: Perm) -> dict[str, Any]:
    return {"axis": perm[layer.attributes["axis"]]}


def _axes(layer: Layer, perm: Perm) -> dict[str, Any]:
    return {"axes": tuple(sorted(perm[a] for a in layer.attributes["axes"]))}


def _lists(*names: str) -> Callable[[Layer, Perm], dict[str, Any]]:
    def change(layer: Layer, perm: Perm) -> dict[str, Any]:
        back = inverse(perm)
        out = {name: tuple(layer.attributes[name][i] for i in back) for name in names}
        roi = layer.attributes.get("roi")
        if roi is not None:
            out["roi"] = tuple(roi[i + half] for half in (0, len(perm)) for i in back)
        return out

    return change


_ATTRIBUTES: dict[str, Callable[[Layer, Perm], dict[str, Any]]] = {
    "elementwise": _no_attributes, "concat": _axis, "softmax": _axis, "reduce": _axes, "normalize": _axes,
    "slice": _lists("starts", "steps"), "pad": _lists("before"), "resize": _lists("scales"),
}


def _sink(editor: Editor, layer: Layer) -> None:
    """Lets the layer work on its operands before they were transposed, and transposes its result."""
    rank = len(editor.shape(layer.outputs[0]))
    values = tuple(v for v in layer.reads if v != RAW)
    main = layer.inputs if layer.kind in ("elementwise", "concat") else layer.inputs[:1]
    found = [extended(made[1], rank) for v in main if (made := transposed(editor, v)) is not None]
    for perm in sorted(set(found), key=found.count, reverse=True):
        if _worthwhile(editor, layer, values, perm, perm):
            attributes = {**layer.attributes, **_ATTRIBUTES[layer.kind](layer, perm)}
            _moved(editor, layer, perm, perm, attributes, len(layer.inputs))
            return


def _moved(editor: Editor, layer: Layer, perm: Perm, out_perm: Perm, attributes: dict[str, Any], count: int) -> None:
    """Aligns the first `count` inputs and the extra operands, and transposes the result."""
    output = layer.outputs[0]
    tensor = editor.tensors[output]
    inputs = (*(_aligned(editor, v, perm, layer) for v in layer.inputs[:count]), *layer.inputs[count:])
    extra = tuple(_aligned(editor, v, out_perm, layer) for v in layer.extra)
    result = editor.value(Tensor(tensor.dtype, permuted_shape(tensor.shape, inverse(out_perm))), output)
    new = editor.update(layer, inputs=inputs, extra=extra, outputs=(result,), attributes=attributes)
    editor.redirect(output, permuted(editor, result, out_perm, new))


def _sink_gather(editor: Editor, layer: Layer) -> None:
    made = transposed(editor, layer.inputs[0])
    if made is None:
        return
    perm, axis, count = made[1], layer.attributes["axis"], len(editor.shape(layer.inputs[1]))
    new_axis = perm[axis]

    def place(i: int) -> int:
        return perm[i] if perm[i] < new_axis else perm[i] - 1 + count

    out_perm = (*(place(i) for i in range(axis)), *(new_axis + k for k in range(count)),
                *(place(i) for i in range(axis + 1, len(perm))))
    _moved(editor, layer, perm, out_perm, {**layer.attributes, "axis": new_axis}, 1)


# --- matrix products -----------------------------------------------------------------------------------------------------------


def _into_flags(editor: Editor, layer: Layer) -> None:
    """Lets the product read operands with their last two dims swapped instead of transposing them."""
    inputs, attributes = list(layer.inputs), dict(layer.attributes)
    for index, flag in enumerate(("transpose_a", "transpose_b")):
        made = transposed(editor, inputs[index])
        if made is None:
            continue
        source, perm = made
        swapped = swapped_last(perm)
        rank = len(perm)
        if swapped == tuple(range(rank)) or (perm[-1] != rank - 1 and swapped[-1] == rank - 1):
            inputs[index] = permuted(editor, source, swapped, layer)
            attributes[flag] = not attributes[flag]
    if tuple(inputs) != layer.inputs:
        editor.update(layer, inputs=tuple(inputs), attributes=attributes)


def _sink_matmul(editor: Editor, layer: Layer) -> None:
    """With a matrix on the right, rows may come in any order: the result is transposed instead of the operand."""
    current = editor.refreshed(layer)
    assert current is not None
    made = transposed(editor, current.inputs[0])
    if made is None or current.attributes["transpose_a"] or len(editor.shape(current.inputs[1])) != 2:
        return
    perm = made[1]
    if perm[-1] == len(perm) - 1 and _meets_inverse(editor, current.outputs[0], perm, LOOK_AHEAD):
        if all(_operand_cost(editor, v, perm) <= 0 for v in current.extra):
            _moved(editor, current, perm, perm, dict(current.attributes), 1)


# --- reshapes --------------------------------------------------------------------------------------------------------------------


def _sink_reshape(editor: Editor, layer: Layer) -> None:
    maker = editor.producer(layer.inputs[0])
    while maker is not None and maker.kind == "reshape":
        layer = editor.update(layer, inputs=maker.inputs)
        maker = editor.producer(layer.inputs[0])
    made = transposed(editor, layer.inputs[0])
    if made is None:
        return
    source, perm = made
    a, b = editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0])
    exchanged = through_reshape(editor.shape(source), perm, a, b)
    if exchanged is not None:
        order, new_perm = exchanged
        result = reshaped(editor, source, tuple(b[axis] for axis in order), layer)
        editor.replace_value(layer, permuted(editor, result, new_perm, layer))
    elif (split := gathered(perm, a, b)) is not None and split[0] != perm:
        first, order, last = split
        if not is_trivial(permuted_shape(b, order), last) and _meets_inverse(editor, layer.outputs[0], last, LOOK_AHEAD):
            together = permuted(editor, source, first, layer)
            result = reshaped(editor, together, tuple(b[axis] for axis in order), layer)
            editor.replace_value(layer, permuted(editor, result, last, layer))


def _into_weights(editor: Editor, layer: Layer) -> None:
    """Where a transposed value is flattened only to be multiplied by constant matrices, their rows are permuted instead."""
    made = transposed(editor, layer.inputs[0])
    readers = editor.readers(layer.outputs[0])
    if made is None or not readers or layer.outputs[0] in editor.outputs:
        return
    source, perm = made
    a, b, z = editor.shape(layer.inputs[0]), editor.shape(layer.outputs[0]), editor.shape(source)
    runs = groups(a, b)
    if not runs or runs[-1][1] != [len(b) - 1] or not all(isinstance(a[i], int) for i in runs[-1][0]):
        return
    last = runs[-1][0]
    before = [perm[i] for run_a, _ in runs[:-1] for i in run_a]
    if before + sorted(perm[i] for i in last) != [i for i, d in enumerate(z) if d != 1]:
        return
    if not all(_flat_product(editor, r, layer.outputs[0]) for r in readers):
        return
    sizes = [int(d) for i in last if isinstance(d := a[i], int)]
    index = np.arange(int(np.prod(sizes))).reshape(sizes)
    rows = np.transpose(index, np.argsort([perm[i] for i in last])).reshape(-1)
    flat = reshaped(editor, source, b, layer)
    for reader in readers:
        weights = editor.constants[reader.inputs[1]]
        moved = np.take(weights, rows, axis=1 if reader.attributes["transpose_b"] else 0)
        editor.update(reader, inputs=(flat, editor.add_constant(moved, reader.inputs[1])))
    editor.remove(layer)


def _flat_product(editor: Editor, reader: Layer, value: str) -> bool:
    return (reader.kind == "matmul" and reader.inputs[0] == value and value not in (reader.inputs[1], *reader.extra)
            and not reader.attributes["transpose_a"] and len(editor.shape(reader.inputs[1])) == 2 and reader.inputs[1] in editor.constants)
