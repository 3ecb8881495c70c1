"""Folds scales and shifts of columns into constant weights: batch normalisation and its kin disappear.

Chains of such steps anywhere else become at most one multiplication and one addition.

Behind a convolution, deconvolution or matrix product with constant weights, a chain of multiplications and additions of constants
that differ at most by column becomes part of the weights and one bias.  Before one, an element-wise layer that does the same
becomes part of the weights where that is exact (a shift meets no padding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.graph.expression import Expression, ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.algebra import RAW, expression_of, operands, substitute, tidy, with_operands
from sartor.graph.passes.editor import Array, Editor, merged_source
from sartor.graph.scalars import FLOATS
from sartor.types import to_numpy

KINDS = ("convolution", "deconvolution", "matmul")


@dataclass(frozen=True)
class Affine:
    """x * scale + shift, both float64 scalars or vectors over columns."""

    scale: Array
    shift: Array


def run(graph: Graph) -> Graph:
    """Folds scales and shifts (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each(*KINDS):
        if layer.expression is not None and _has_constant_weights(editor, layer):
            _fold_behind(editor, layer)
    for layer in editor.each("elementwise"):
        _fold_before(editor, layer)
    for layer in editor.each():
        if layer.expression is not None:
            _merge_steps(editor, layer)
    return editor.finish()


def _has_constant_weights(editor: Editor, layer: Layer) -> bool:
    return layer.inputs[1] in editor.constants and editor.tensors[layer.inputs[1]].dtype in FLOATS


# --- affine parts of expressions ---------------------------------------------------------------------------------------------


def column_constant(editor: Editor, value: str) -> Array | None:
    """A constant that differs at most by column, as a float64 scalar or vector; None for any other value."""
    array = editor.constant(value)
    if array is None or array.ndim == 0 or array.size != array.shape[-1]:
        return None if array is None or array.size != 1 else array.astype(np.float64).reshape(())
    return array.astype(np.float64).reshape(-1)


def affine_part(editor: Editor, values: tuple[str, ...], expression: Expression, start: int) -> tuple[int, Affine]:
    """How far the expression only scales and shifts node `start`: the node it comes to, and the scale and shift up to there."""
    node, total = start, Affine(np.asarray(1.0), np.asarray(0.0))
    while node != expression.result:
        users = [i for i, n in enumerate(expression.nodes) if node in n.args]
        if len(users) != 1 or (step := _step(editor, values, expression, node, users[0])) is None:
            break
        total = Affine(total.scale * step.scale, total.shift * step.scale + step.shift)
        node = users[0]
    return node, total


def _step(editor: Editor, values: tuple[str, ...], expression: Expression, node: int, user: int) -> Affine | None:
    """What node `user` does to its argument `node`."""
    op, args, dtype = expression.nodes[user].op, expression.nodes[user].args, expression.nodes[user].dtype
    one, zero = np.asarray(1.0), np.asarray(0.0)
    if dtype not in FLOATS or expression.nodes[node].dtype != dtype:
        return None
    if op == "neg":
        return Affine(-one, zero)
    if op not in ("add", "sub", "mul", "div") or args.count(node) != 1:
        return None
    other = args[1] if args[0] == node else args[0]
    constant: Array | None
    if expression.nodes[other].op == "constant":
        constant = np.asarray(float(expression.nodes[other].value or 0.0))
    else:
        constant = column_constant(editor, values[other]) if other < expression.operands and values[other] != RAW else None
    if constant is None or not np.isfinite(constant).all():
        return None
    if op == "add":
        return Affine(one, constant)
    if op == "mul":
        return Affine(constant, zero)
    if op == "sub":
        return Affine(one, -constant) if args[0] == node else Affine(-one, constant)
    return Affine(1.0 / constant, zero) if args[0] == node and (constant != 0).all() else None


def _merge_steps(editor: Editor, layer: Layer) -> None:
    """Makes chains of scales and shifts in an expression as short as they can be."""
    values = operands(layer)
    if (expression := layer.expression) is None:  # all steps cancelled each other
        return
    for start in range(len(expression.nodes)):
        node, affine = affine_part(editor, values, expression, start)
        if node == start or not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
            continue
        steps = _steps_between(expression, start, node)
        if steps <= int(np.any(affine.scale != 1.0)) + int(np.any(affine.shift != 0.0)):
            continue
        rest, names = _replace_node(expression, values, node)
        dtype = expression.nodes[start].dtype
        before = Expression(expression.operands, expression.nodes[:max(start + 1, expression.operands)], start)
        extra, whole = _scaled_and_shifted(editor, layer, affine, dtype)
        whole_names, inner = substitute(("(start)", *extra), whole, {"(start)": (values, before)})
        first = () if layer.kind == "elementwise" else (RAW,)
        names, merged = substitute(names, rest, {"(affine)": (whole_names, inner)}, first)
        changed = editor.update(layer, **with_operands(layer, names, merged))
        _merge_steps(editor, changed)
        return


def _steps_between(expression: Expression, start: int, end: int) -> int:
    count, node = 0, start
    while node != end:
        node = next(i for i, n in enumerate(expression.nodes) if node in n.args)
        count += 1
    return count


def _scaled_and_shifted(editor: Editor, layer: Layer, affine: Affine, dtype: str) -> tuple[tuple[str, ...], Expression]:
    """x * scale + shift as an expression of x and of new constants, whose names are returned."""
    names: list[str] = []
    parts = [("mul", affine.scale, 1.0), ("add", affine.shift, 0.0)]
    parts = [(op, array, neutral) for op, array, neutral in parts if np.any(array != neutral)]
    vectors = [array for _, array, _ in parts if array.ndim]
    builder = ExpressionBuilder([dtype] * (1 + len(vectors)))
    node = 0
    for op, array, _ in parts:
        if array.ndim:
            names.append(editor.add_constant(array.astype(to_numpy(dtype)), layer.name))
            node = builder(op, node, len(names))
        else:
            node = builder(op, node, builder.constant(float(array), dtype))
    return tuple(names), builder.finish(node)


# --- behind ------------------------------------------------------------------------------------------------------------------


def _fold_behind(editor: Editor, layer: Layer) -> None:
    values = operands(layer)
    assert layer.expression is not None
    node, affine = affine_part(editor, values, layer.expression, 0)
    plain = node == 0 or (np.all(affine.scale == 1.0) and _is_one_addition(layer.expression, node))
    if plain or not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        return
    columns = editor.tensors[layer.outputs[0]].columns
    if affine.scale.ndim and affine.scale.size != columns:
        return
    weights = editor.constants[layer.inputs[1]]
    scaled = layer.inputs[1] if np.all(affine.scale == 1.0) else editor.add_constant(
        _scaled_columns(layer, weights, affine.scale), layer.inputs[1])
    rest, names = _replace_node(layer.expression, values, node)
    shifted = _shift(editor, layer, affine.shift, layer.expression.nodes[0].dtype)
    names, expression = substitute(names, rest, {"(affine)": shifted}, (RAW,))
    editor.update(layer, **with_operands(layer, names, expression, inputs=(layer.inputs[0], scaled)))


def _is_one_addition(expression: Expression, node: int) -> bool:
    return expression.nodes[node].op == "add" and 0 in expression.nodes[node].args


def _replace_node(expression: Expression, values: tuple[str, ...], node: int) -> tuple[Expression, tuple[str, ...]]:
    """The expression with its node made an operand more, named "(affine)"."""
    builder = ExpressionBuilder([*(n.dtype for n in expression.nodes[:expression.operands]), expression.nodes[node].dtype])
    index = list(range(expression.operands))
    for position, n in enumerate(expression.nodes[expression.operands:], expression.operands):
        index.append(expression.operands if position == node
                     else builder(n.op, *(index[a] for a in n.args), dtype=n.dtype, value=n.value))
    whole = builder.finish(index[expression.result] if node != expression.result else expression.operands)
    return whole, (*values, "(affine)")


def _shift(editor: Editor, layer: Layer, shift: Array, dtype: str) -> tuple[tuple[str, ...], Expression]:
    """RAW plus a shift of columns."""
    if np.all(shift == 0.0):
        return (RAW,), identity(dtype)
    if np.all(shift == shift.reshape(-1)[0]):
        builder = ExpressionBuilder([dtype])
        return (RAW,), builder.finish(builder("add", 0, builder.constant(float(shift.reshape(-1)[0]), dtype)))
    numpy_type = editor.constants[layer.inputs[1]].dtype
    builder = ExpressionBuilder([dtype, dtype])
    return (RAW, editor.add_constant(shift.astype(numpy_type), layer.name)), builder.finish(builder("add", 0, 1))


def _scaled_columns(layer: Layer, weights: Array, scale: Array) -> Array:
    """The weights of results multiplied by `scale`, one factor a column."""
    wide = weights.astype(np.float64)
    if layer.kind == "matmul":
        wide = wide * (scale[..., None] if scale.ndim and layer.attributes["transpose_b"] else scale)
    elif layer.kind == "convolution" or scale.ndim == 0:
        wide = wide * scale
    else:
        groups = layer.attributes["groups"]
        split = wide.reshape(*wide.shape[:-2], groups, -1, wide.shape[-1])
        wide = (split * scale.reshape(groups, 1, -1)).reshape(wide.shape)
    return wide.astype(weights.dtype)


# --- before ------------------------------------------------------------------------------------------------------------------


def _fold_before(editor: Editor, layer: Layer) -> None:
    """Lets all readers of an element-wise scale and shift compute on its operand instead."""
    assert layer.expression is not None
    variable = [v for v in layer.inputs if v not in editor.constants]
    output = layer.outputs[0]
    if len(variable) != 1 or output in editor.outputs or editor.tensors[variable[0]] != editor.tensors[output]:
        return
    node, affine = affine_part(editor, layer.inputs, layer.expression, layer.inputs.index(variable[0]))
    readers = editor.readers(output)
    if node != layer.expression.result or not readers or not all(_takes(editor, r, output, affine) for r in readers):
        return
    for reader in readers:
        weights = editor.constants[reader.inputs[1]]
        scaled, shift = _scaled_rows(reader, weights, affine)
        values, raw = operands(reader), editor.tensors[reader.inputs[1]].dtype
        changes: dict[str, Any] = {"inputs": (variable[0], editor.add_constant(scaled, reader.inputs[1])),
                                   "source": merged_source(layer, reader)}
        if np.any(shift != 0.0):
            names, expression = substitute(values, expression_of(reader, raw), {RAW: _shift(editor, reader, shift, raw)}, (RAW,))
            changes = with_operands(reader, *tidy(names, expression, (RAW,)), **changes)
        editor.update(reader, **changes)
    editor.remove(layer)


def _takes(editor: Editor, reader: Layer, value: str, affine: Affine) -> bool:
    """Whether the layer can take over a scale and shift of its first input's columns."""
    if reader.kind not in KINDS or reader.inputs[0] != value or value in (*reader.inputs[1:], *reader.extra):
        return False
    if not _has_constant_weights(editor, reader) or not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        return False
    if reader.kind == "matmul":
        flat = not reader.attributes["transpose_a"] or (affine.scale.ndim == 0 and affine.shift.ndim == 0)
        return flat and (editor.constants[reader.inputs[1]].ndim == 2 or not np.any(affine.shift != 0.0))
    padded = any(not isinstance(p, int) or p != 0 for p in reader.attributes["pads"])
    exact = reader.kind == "convolution" and not padded
    return exact or not np.any(affine.shift != 0.0)


def _scaled_rows(layer: Layer, weights: Array, affine: Affine) -> tuple[Array, Array]:
    """The weights for operands that lack the scale, and what the shift adds to each column of the result."""
    wide = weights.astype(np.float64)
    if layer.kind == "matmul" and layer.attributes["transpose_b"]:
        scaled = wide * affine.scale
        added = (wide * affine.shift).sum(-1)
    elif layer.kind == "matmul":
        scaled = wide * (affine.scale[:, None] if affine.scale.ndim else affine.scale)
        added = (wide * (affine.shift[:, None] if affine.shift.ndim else affine.shift)).sum(-2)
    elif layer.kind == "convolution":
        groups = layer.attributes["groups"]
        split = wide.reshape(*wide.shape[:-1], groups, -1)  # [*k, C/g, groups, O/g]

        def rows(vector: Array) -> Array:
            return vector.reshape(groups, -1).T[:, :, None] if vector.ndim else vector

        scaled = (split * rows(affine.scale)).reshape(wide.shape)
        added = (split * rows(affine.shift)).sum(axis=tuple(range(wide.ndim - 1))).reshape(-1)
    else:
        scaled = wide * (affine.scale[:, None] if affine.scale.ndim else affine.scale)
        added = np.asarray(0.0)
    return scaled.astype(weights.dtype), added if np.any(affine.shift != 0.0) else np.asarray(0.0)
