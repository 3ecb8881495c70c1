"""Products with one-hot vectors, and element-wise work on rows of a table: both are look-ups."""

from __future__ import annotations

import numpy as np

from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor, merged_source
from sartor.graph.scalars import evaluate_expression
from sartor.types import to_numpy

LARGEST_TABLE = 1 << 24  # elements up to which a table is computed anew


def run(graph: Graph) -> Graph:
    """Turns one-hot products into gathers, and applies what is done to all rows of a constant table to the table
    (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each("matmul"):
        _gather_instead(editor, layer)
    for layer in editor.each("gather"):
        _into_table(editor, layer)
    return editor.finish()


def _gather_instead(editor: Editor, layer: Layer) -> None:
    """The product of a one-hot vector with a constant matrix is a row of it, or zeros where the index is out of range."""
    table, maker = editor.constant(layer.inputs[1]), editor.producer(layer.inputs[0])
    if table is None or table.ndim != 2 or layer.attributes["transpose_a"] or maker is None or maker.kind != "elementwise":
        return
    rows = table.T if layer.attributes["transpose_b"] else table
    count = rows.shape[0]
    index = _index_of(editor, maker, count)
    if index is None:
        return
    dtype, shape = editor.tensors[index].dtype, editor.shape(index)[:-1]
    builder = ExpressionBuilder([dtype])
    place = 0 if dtype == "i64" else builder("cast", 0, dtype="i64")
    inside = builder("and", builder("ge", place, builder.constant(0, "i64")), builder("lt", place, builder.constant(count, "i64")))
    chosen = builder.finish(builder("select", inside, place, builder.constant(count, "i64"), dtype="i64"))
    places = editor.emit("elementwise", [editor.reshape(index, shape, layer)], Tensor("i64", shape), layer, expression=chosen)
    padded = editor.add_constant(np.concatenate([rows, np.zeros_like(rows[:1])]), layer.inputs[1])
    editor.update(layer, kind="gather", inputs=(padded, places), attributes={"axis": 0}, source=merged_source(maker, layer))


def _index_of(editor: Editor, maker: Layer, count: int) -> str | None:
    """The index value [..., 1] where the layer compares it with 0 .. count - 1 along the last dim, as numbers 0 and 1."""
    if len(maker.inputs) != 2 or editor.shape(maker.outputs[0])[-1:] != (count,):
        return None
    types = [editor.tensors[v].dtype for v in maker.inputs]
    for index, steps in ((0, 1), (1, 0)):
        builder = ExpressionBuilder(types)
        expected = builder.finish(builder("cast", builder("eq", 0, 1), dtype=editor.tensors[maker.outputs[0]].dtype))
        array, value = editor.constant(maker.inputs[steps]), maker.inputs[index]
        if (maker.expression == expected and array is not None and array.shape == (count,) and np.array_equal(array, np.arange(count))
                and types[index][0] in "iu" and editor.shape(value)[-1:] == (1,)
                and editor.shape(value)[:-1] == editor.shape(maker.outputs[0])[:-1]):
            return value
    return None


def _into_table(editor: Editor, layer: Layer) -> None:
    """Computes the expression on the table where it reads nothing that differs by row."""
    table = editor.constant(layer.inputs[0])
    if table is None or layer.expression is None or layer.attributes["axis"] != 0 or not 0 < table.size <= LARGEST_TABLE:
        return
    output = editor.tensors[layer.outputs[0]]
    if table.ndim < 2 or any((a := editor.constant(v)) is None or a.ndim >= table.ndim for v in layer.extra):
        return
    elements = output.elements
    if isinstance(elements, int) and elements < table.size // 4:
        return  # few rows are read: computing all of them at compile time only makes the table's copy
    made = evaluate_expression(layer.expression, [table, *(editor.constants[v] for v in layer.extra)])
    computed = np.broadcast_to(made, table.shape).astype(to_numpy(output.dtype))
    editor.update(layer, inputs=(editor.add_constant(computed, layer.inputs[0]), layer.inputs[1]), expression=None, extra=())
