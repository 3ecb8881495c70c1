"""Recognises attention written out: product of queries and keys, scale, mask, softmax, product with the values.

The operands of the `attention` kind are [batch, tokens, heads, size].  Where the written-out operands were transposed from that
order, the transposes added here meet them and vanish; else the heads become part of the batch, which is only a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sartor.graph.expression import Expression, ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.algebra import Operands, substitute, tidy
from sartor.graph.passes.editor import Editor, merged_source
from sartor.graph.passes.permutations import Perm, compose, groups, is_trivial
from sartor.graph.passes.terms import Terms, is_number
from sartor.graph.passes.transposes import permuted, reshaped, transposed
from sartor.sizes import Dim

NEVER = -1e12  # a score this low, added or chosen, has no weight beside any other: f32 keeps nothing of what it is added to
LOW = -1e4  # the same where every query is known to see a key


@dataclass
class Scores:
    """What happens to the raw product of queries and keys before the softmax: scale * raw + mask, or a choice by a bool mask."""

    scale: float = 1.0
    added: list[int] = field(default_factory=list)  # nodes that are added
    chosen: list[tuple[int, bool, float]] = field(default_factory=list)  # bool nodes, the value that keeps the score, the other score


def run(graph: Graph) -> Graph:
    """Replaces written-out attention by `attention` layers (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    terms = Terms(editor)
    for second in editor.each("matmul"):
        weights = _weights(editor, terms, second)
        if weights is not None:
            _recognise(editor, terms, second, *weights)
    return editor.finish()


def _weights(editor: Editor, terms: Terms, second: Layer) -> tuple[Layer, bool] | None:
    """The softmax whose result a product takes as its left operand, and whether results that are no number become 0 on the way."""
    term, guard = terms.of(second.inputs[0]), False
    if term.op == "select" and term.args[0].op == "is_nan" and term.args[0].args[0] is term.args[2] and is_number(term.args[1], 0.0):
        term, guard = term.args[2], True
    softmax = editor.producer(term.value) if term.op == "value" else None
    if softmax is None or softmax.kind != "softmax" or softmax.expression is not None or softmax.attributes.get("log"):
        return None
    rank = len(editor.shape(term.value))
    fits = (softmax.attributes["axis"] == rank - 1 and rank in (3, 4) and not second.attributes["transpose_a"]
            and second.expression is None and second.inputs[1] != second.inputs[0])
    return (softmax, guard) if fits and _only_for(editor, softmax.outputs[0], second) else None


def _only_for(editor: Editor, value: str, layer: Layer) -> bool:
    """Whether a value is read only by the layer, directly or through element-wise work."""
    readers = editor.readers(value)
    return value not in editor.outputs and all(
        r is layer or (r.kind == "elementwise" and _only_for(editor, r.outputs[0], layer)) for r in readers)


def _recognise(editor: Editor, terms: Terms, second: Layer, softmax: Layer, guard: bool) -> None:
    path = _first_product(editor, softmax.inputs[0])
    if path is None:
        return
    first, names, expression = path
    scores = _analyse(editor, names, expression, names.index(first.outputs[0]))
    if scores is None or not _batches_agree(editor, first, second):
        return
    causal = _is_causal(editor, names, expression, scores)
    mask = "" if causal else _mask(editor, terms, softmax, names, expression, scores)
    if mask is not None:
        _replace(editor, first, second, softmax, scores.scale, mask, causal, guard)


def _first_product(editor: Editor, value: str) -> tuple[Layer, Operands, Expression] | None:
    """The product that the scores come from, and the scores as an expression of its result."""
    dtype = editor.tensors[value].dtype
    names: Operands = (value,)
    expression = identity(dtype)
    shape = editor.shape(value)
    while True:
        grown = False
        for name in names:
            maker = editor.producer(name)
            if maker is None or editor.shape(name) != shape or editor.sole_reader(name) is None:
                continue
            if maker.kind == "matmul" and maker.expression is None:
                return maker, names, expression
            if maker.kind == "elementwise" and maker.expression is not None and editor.tensors[name].dtype == dtype:
                names, expression = substitute(names, expression, {name: (maker.inputs, maker.expression)})
                grown = True
                break
        if not grown:
            return None


def _batches_agree(editor: Editor, first: Layer, second: Layer) -> bool:
    """Whether queries, keys and values have the scores' batch dims, so that no operand is broadcast."""
    shape = editor.shape(first.outputs[0])
    operands = (*first.inputs, second.inputs[1])
    return all(len(editor.shape(v)) == len(shape) and editor.shape(v)[:-2] == shape[:-2] for v in operands)


# --- scale and mask ------------------------------------------------------------------------------------------------------------


def _analyse(editor: Editor, names: Operands, expression: Expression, raw: int) -> Scores | None:
    """Takes the expression of the scores apart, from the result inwards; None where it does anything else."""
    scores, nodes, node = Scores(), expression.nodes, expression.result
    depends = _dependents(expression, raw)
    while node != raw:
        op, args = nodes[node].op, nodes[node].args
        inner = [a for a in args if a in depends]
        if len(inner) != 1:
            return None
        others = [a for a in args if a not in depends]
        if op == "mul" and nodes[others[0]].op == "constant":
            scores.scale *= float(nodes[others[0]].value or 0.0)
        elif op == "add" and scores.scale == 1.0:
            scores.added.append(others[0])
        elif op == "select" and scores.scale == 1.0 and args[0] not in depends:
            low = args[2] if args[1] in depends else args[1]
            if nodes[low].op != "constant":
                return None
            scores.chosen.append((args[0], args[1] in depends, float(nodes[low].value or 0.0)))
        else:
            return None
        node = inner[0]
    causal = _is_causal(editor, names, expression, scores)
    for mask, keep, score in scores.chosen:
        array = editor.constant(names[mask]) if mask < expression.operands else None
        always_sees = causal or (array is not None and array.ndim > 0 and bool(np.any(array == keep, axis=-1).all()))
        if score > (LOW if always_sees else NEVER):
            return None
    return scores


def _dependents(expression: Expression, start: int) -> set[int]:
    found = {start}
    for index, node in enumerate(expression.nodes):
        if any(a in found for a in node.args):
            found.add(index)
    return found


def _mask(editor: Editor, terms: Terms, near: Layer, names: Operands, expression: Expression, scores: Scores) -> str | None:
    """The mask operand ("" for none); None where it does not fit."""
    if not scores.added and not scores.chosen:
        return ""
    builder = ExpressionBuilder([n.dtype for n in expression.nodes[:expression.operands]])
    builder.nodes = list(expression.nodes)  # so that its nodes keep their numbers
    dtype = expression.dtype
    if not scores.added and len(scores.chosen) == 1 and scores.chosen[0][2] == -np.inf:
        node, keep, _ = scores.chosen[0]
        result = node if keep else builder("not", node)
    else:
        parts = list(scores.added)
        for node, keep, low in scores.chosen:
            chosen = (builder.constant(0.0, dtype), builder.constant(low, dtype))
            parts.append(builder("select", node, *(chosen if keep else chosen[::-1]), dtype=dtype))
        result = parts[0]
        for part in parts[1:]:
            result = builder("add", result, part)
    values, whole = tidy(names, builder.finish(result))
    values, whole = substitute(values, whole, {v: terms.expression(terms.of(v)) for v in values})  # before it was expanded
    if len(values) == 1 and whole.is_identity:
        return values[0]
    shape = _broadcast([editor.shape(v) for v in values])
    return None if shape is None else editor.emit("elementwise", values, Tensor(whole.dtype, shape), near, expression=whole)


def _broadcast(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...] | None:
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for axis in range(rank):
        dims = {s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0} - {1}
        if len(dims) > 1:
            return None
        out.append(dims.pop() if dims else 1)
    return tuple(out)


# --- the layer -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A written-out operand, [*batch, tokens, size], or [*batch, size, tokens] where `swapped`."""

    value: str
    swapped: bool


def _replace(editor: Editor, first: Layer, second: Layer, softmax: Layer, scale: float, mask: str, causal: bool,
             guard: bool) -> None:
    query = Operand(first.inputs[0], bool(first.attributes["transpose_a"]))
    key = Operand(first.inputs[1], not first.attributes["transpose_b"])
    value = Operand(second.inputs[1], bool(second.attributes["transpose_b"]))
    output = second.outputs[0]
    operands = [query, key, value]
    if len(editor.shape(output)) == 3 and (split := _split_batches(editor, operands)) is not None:
        operands = split
        batch = editor.shape(operands[0].value)[:2]
        if mask and len(editor.shape(mask)) == 3 and editor.shape(mask)[0] != 1:
            mask = reshaped(editor, mask, (*batch, *editor.shape(mask)[1:]), softmax)
    fewer = [_unrepeated(editor, o, softmax) for o in operands[1:]]
    if fewer != operands[1:] and _grouped(editor, *fewer):
        form, operands = "transposed", [operands[0], *fewer]
    else:
        form = _form(editor, operands, mask)
    arranged = [_arranged(editor, o, form, softmax) for o in operands]
    if mask and form == "batch" and len(editor.shape(mask)) == 3:
        shape = editor.shape(mask)
        mask = reshaped(editor, mask, (shape[0], 1, *shape[1:]), softmax)
    q, v = editor.shape(arranged[0]), editor.shape(arranged[2])
    tensor = Tensor(editor.tensors[output].dtype, (*q[:3], v[3]))
    made = editor.emit("attention", [*arranged, mask], tensor, second, attributes={"scale": scale, "causal": causal},
                       expression=_guarded(tensor.dtype) if guard else None, source=merged_source(first, softmax, second))
    if form == "transposed":
        made = permuted(editor, made, (0, 2, 1, 3), second)
    elif form == "heads":
        made = permuted(editor, reshaped(editor, made, editor.shape(made)[1:], second), (1, 0, 2), second)
    editor.replace_value(second, reshaped(editor, made, editor.shape(output), second))


def _split_batches(editor: Editor, operands: list[Operand]) -> list[Operand] | None:
    """Operands as they were before a reshape joined batch and heads, where all three were made so."""
    found: list[Operand] = []
    for operand in operands:
        maker = editor.producer(operand.value)
        if maker is None or maker.kind != "reshape":
            return None
        before, after = editor.shape(maker.inputs[0]), editor.shape(operand.value)
        if len(before) != 4 or before[2:] != after[1:] or before[0] * before[1] != after[0]:
            return None
        found.append(Operand(maker.inputs[0], operand.swapped))
    return found if len({editor.shape(o.value)[:2] for o in found}) == 1 else None


def _grouped(editor: Editor, key: Operand, value: Operand) -> bool:
    """Whether keys and values, [batch, heads, tokens, size] or with the last two swapped, have the same number of heads."""
    return editor.shape(key.value)[:2] == editor.shape(value.value)[:2]


def _unrepeated(editor: Editor, operand: Operand, near: Layer) -> Operand:
    """The operand with as many heads as it had before each was repeated for several heads of the queries."""
    value, perm = operand.value, tuple(range(len(editor.shape(operand.value))))
    while (made := transposed(editor, value)) is not None:
        value, perm = made[0], compose(made[1], perm)
    joined = editor.producer(value)
    expanded = editor.producer(joined.inputs[0]) if joined is not None and joined.kind == "reshape" else None
    if len(perm) != 4 or joined is None or expanded is None or expanded.kind != "elementwise" or expanded.expression is None:
        return operand
    if not expanded.expression.is_identity or len(expanded.inputs) != 1:
        return operand
    few, many, whole = editor.shape(expanded.inputs[0]), editor.shape(expanded.outputs[0]), editor.shape(value)
    repeats = [i for i, (a, b) in enumerate(zip(few, many, strict=False)) if a != b]
    runs, heads = groups(many, whole), perm[1]
    run = next((r for r in runs or () if r[1] == [heads]), None)
    if len(few) != len(many) or len(repeats) != 1 or few[repeats[0]] != 1 or run is None or run[0][1:] != repeats:
        return operand
    shape = tuple(many[run[0][0]] if i == heads else d for i, d in enumerate(whole))
    return Operand(permuted(editor, reshaped(editor, expanded.inputs[0], shape, near), perm, near), operand.swapped)


def _form(editor: Editor, operands: list[Operand], mask: str) -> str:
    """How the operands become [batch, tokens, heads, size].

    "transposed": [batch, heads, tokens, size], transposed; "merged": the same, heads becoming part of the batch;
    "heads": [heads, tokens, size], transposed, the batch being 1; "batch": [batch, tokens, size], the heads being 1.
    """
    if len(editor.shape(operands[0].value)) == 3:
        return "heads" if all(_is_free(editor, o, "heads") for o in operands) else "batch"
    if sum(_is_free(editor, o, "transposed") for o in operands) >= 2:
        return "transposed"
    shared = not mask or all(d == 1 for d in editor.shape(mask)[:-2])
    return "merged" if shared else "transposed"


_PERMS: dict[tuple[str, bool], Perm] = {
    ("transposed", False): (0, 2, 1, 3), ("transposed", True): (0, 3, 1, 2), ("merged", False): (0, 1, 2, 3),
    ("merged", True): (0, 1, 3, 2), ("heads", False): (1, 0, 2), ("heads", True): (2, 0, 1), ("batch", False): (0, 1, 2),
    ("batch", True): (0, 2, 1),
}


def _is_free(editor: Editor, operand: Operand, form: str) -> bool:
    """Whether the operand takes this form without a copy."""
    value, perm = operand.value, _PERMS[form, operand.swapped]
    while value not in editor.constants:
        maker = editor.producer(value)
        if (made := transposed(editor, value)) is not None:
            value, perm = made[0], compose(made[1], perm)
        elif maker is not None and maker.kind == "elementwise" and len(whole := _variable(editor, maker)) == 1:
            value = whole[0]  # the transpose will pass it
        else:
            return is_trivial(editor.shape(value), perm)
    return True


def _variable(editor: Editor, layer: Layer) -> list[str]:
    """Operands that are neither constant nor smaller than the result."""
    shape = editor.shape(layer.outputs[0])
    return [v for v in layer.inputs if v not in editor.constants and editor.shape(v) == shape]


def _arranged(editor: Editor, operand: Operand, form: str, near: Layer) -> str:
    value = permuted(editor, operand.value, _PERMS[form, operand.swapped], near)
    shape = editor.shape(value)
    target = {"transposed": shape, "merged": (shape[0] * shape[1], shape[2], 1, *shape[3:]), "heads": (1, *shape),
              "batch": (*shape[:2], 1, *shape[2:])}[form]
    return reshaped(editor, value, target, near)


def _is_causal(editor: Editor, names: Operands, expression: Expression, scores: Scores) -> bool:
    """Whether the mask is the causal one and nothing else: each query sees the keys up to its own place, counted from the end."""
    if len(scores.added) + len(scores.chosen) != 1:
        return False
    node, keep = (scores.added[0], None) if scores.added else scores.chosen[0][:2]
    if node >= expression.operands:
        return False
    value, start = names[node], None
    rows, columns = editor.shape(value)[-2:] if len(editor.shape(value)) > 1 else (1, 1)
    maker = editor.producer(value)
    if maker is not None and maker.kind == "slice" and all(s == 1 for s in maker.attributes["steps"]):  # cut from a larger one
        value, start = maker.inputs[0], maker.attributes["starts"]
    array = editor.constant(value)
    if array is None or array.ndim < 2 or any(d != 1 for d in array.shape[:-2]):
        return False
    matrix = array.reshape(array.shape[-2:])
    if start is None:
        offset = matrix.shape[1] - matrix.shape[0]
    elif matrix.shape[0] == matrix.shape[1] and start[-1] == 0 and start[-2] == columns - rows:
        offset = 0
    else:
        return False
    seen = np.tril(np.ones(matrix.shape, bool), offset)
    if keep is not None:
        return offset >= 0 and np.array_equal(matrix == keep, seen)
    return offset >= 0 and bool((matrix[seen] == 0).all() and (matrix[~seen] <= LOW).all())


def _guarded(dtype: str) -> Expression:
    """0 where the operand is no number."""
    builder = ExpressionBuilder([dtype])
    return builder.finish(builder("select", builder("is_nan", 0), builder.constant(0.0, dtype), 0, dtype=dtype))
