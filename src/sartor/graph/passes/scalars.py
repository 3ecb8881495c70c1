"""Constant operands of expressions: uniform ones become constants of the expression, leading dims of size 1 go; then simplify."""

from __future__ import annotations

import numpy as np

from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.layer import Graph
from sartor.graph.passes.algebra import RAW, operands, substitute, tidy, with_operands
from sartor.graph.passes.editor import Array, Editor


def run(graph: Graph) -> Graph:
    """Simplifies every expression of the graph (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    stripped: dict[str, str] = {}
    for layer in editor.each():
        if layer.expression is None:
            continue
        first = () if layer.kind == "elementwise" else (RAW,)
        values, renames = operands(layer), {}
        uniform = {v: e for v in values if v != RAW and (e := _uniform(editor.constant(v), editor.tensors[v].dtype)) is not None}
        for value in values:
            if value in uniform or (array := editor.constant(value)) is None or array.ndim == 0 or array.shape[0] != 1:
                continue
            if value not in stripped:
                kept = next((i for i, d in enumerate(array.shape) if d != 1), array.ndim)
                stripped[value] = editor.add_constant(array.reshape(array.shape[kept:]), value)
            renames[value] = stripped[value]
        if uniform and len(uniform) == len(values):
            uniform.pop(values[0])  # an element-wise layer keeps something to read
        names, expression = tidy([renames.get(v, v) for v in values], layer.expression, first)
        if uniform:
            names, expression = substitute(names, expression, {v: ((), e) for v, e in uniform.items()}, first)
        if names != values or expression != layer.expression:
            editor.update(layer, **with_operands(layer, names, expression))
    return editor.finish()


def _uniform(array: Array | None, dtype: str) -> Expression | None:
    """The expression of a constant array whose elements are all the same."""
    if array is None or array.size == 0 or dtype == "string":
        return None
    first = array.reshape(-1)[:1]
    with np.errstate(invalid="ignore"):
        if first[0] != first[0]:  # a NaN as a number would be any NaN
            return None
    elements = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)  # a zero's sign counts
    if not (elements == elements[0]).all():
        return None
    builder = ExpressionBuilder([])
    return builder.finish(builder.constant(first.astype(np.float32).item() if dtype == "bf16" else first.item(), dtype))
