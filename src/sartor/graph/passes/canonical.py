"""Brings layers that several forms of the same model write differently to one form."""

from __future__ import annotations

from typing import Any

from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.algebra import RAW, expression_of, operands, substitute, with_operands
from sartor.graph.passes.editor import Editor, merged_source
from sartor.graph.passes.permutations import groups
from sartor.graph.passes.transposes import reshaped
from sartor.graph.scalars import FLOATS
from sartor.sizes import product


def run(graph: Graph) -> Graph:
    """Rewrites layers to their usual form (pure: the graph given stays as it was).

    - A pool over everything is a reduction.
    - A constant right operand of a product whose batch dims are all 1 is a matrix.
    - A sum of squares, or their mean over a known number of elements, is one reduction.
    - A normalisation of channels and space flattened to groups works on channels and space themselves, which may then be
      in any layout.
    """
    editor = Editor(graph)
    rules = {"pool": _global_pool, "matmul": _constant_matrix, "reduce": _sum_of_squares, "normalize": _ungrouped}
    for layer in editor.each(*rules):
        rules[layer.kind](editor, layer)
    return editor.finish()


def _global_pool(editor: Editor, layer: Layer) -> None:
    attributes = layer.attributes
    spatial = editor.shape(layer.inputs[0])[1:-1]
    covered = all(d == k or (isinstance(d, int) and d <= k) for d, k in zip(spatial, attributes["kernel"], strict=True))
    whole = covered and all(d == 1 for d in editor.shape(layer.outputs[0])[1:-1])
    op = {"average": "mean", "max": "max"}.get(attributes["mode"])
    if whole and op and all(p == 0 for p in attributes["pads"]) and all(d == 1 for d in attributes["dilations"]):
        editor.update(layer, kind="reduce", attributes={"op": op, "axes": tuple(range(1, len(spatial) + 1)), "select_last": False})


def _constant_matrix(editor: Editor, layer: Layer) -> None:
    weights = editor.constant(layer.inputs[1])
    rank = len(editor.shape(layer.inputs[0]))
    if weights is not None and 2 < weights.ndim <= rank and all(d == 1 for d in weights.shape[:-2]):
        matrix = editor.add_constant(weights.reshape(weights.shape[-2:]), layer.inputs[1])
        editor.update(layer, inputs=(layer.inputs[0], matrix))


def _sum_of_squares(editor: Editor, layer: Layer) -> None:
    maker, op = editor.producer(layer.inputs[0]), layer.attributes["op"]
    if op not in ("sum", "mean") or maker is None or maker.kind != "elementwise" or len(maker.inputs) != 1:
        return
    dtype = editor.tensors[maker.inputs[0]].dtype
    builder = ExpressionBuilder([dtype])
    square = builder.finish(builder("mul", 0, 0))
    if maker.expression != square or editor.tensors[maker.inputs[0]] != editor.tensors[maker.outputs[0]] or dtype not in FLOATS:
        return
    attributes = {**layer.attributes, "op": "sum_square"}
    changes: dict[str, Any] = {"inputs": maker.inputs, "attributes": attributes, "source": merged_source(maker, layer)}
    if op == "mean":
        count = product(editor.shape(layer.inputs[0])[a] for a in layer.attributes["axes"])
        if not isinstance(count, int) or count == 0:
            return
        builder = ExpressionBuilder([dtype])
        scaled = builder.finish(builder("mul", 0, builder.constant(1.0 / count, dtype)))
        values, expression = substitute(operands(layer), expression_of(layer, dtype), {RAW: ((RAW,), scaled)}, (RAW,))
        changes = with_operands(layer, values, expression, **changes)
    editor.update(layer, **changes)


def _ungrouped(editor: Editor, layer: Layer) -> None:
    maker, axes = editor.producer(layer.inputs[0]), tuple(layer.attributes["axes"])
    if maker is None or maker.kind != "reshape":
        return
    before, after = editor.shape(maker.inputs[0]), editor.shape(layer.inputs[0])
    run = next((r for r in groups(before, after) or () if axes[0] in r[1]), None)
    if run is None or len(run[0]) < 2 or tuple(run[1][-len(axes):]) != axes or axes[-1] != len(after) - 1:
        return
    kept, channels = [i for i in run[1] if i not in axes], before[run[0][0]]
    count = product(after[i] for i in kept)
    if not kept or not isinstance(channels, int) or not isinstance(count, int) or channels % count:
        return
    outer = (*(after[i] for i in range(kept[0])), *(after[i] for i in kept))
    if run[0] != list(range(run[0][0], len(before))) or kept[-1] + 1 != axes[0] or len(outer) != axes[0]:
        return
    shape = (*outer, channels // count, *before[run[0][0] + 1:])
    inner, rank = len(shape) - axes[0], len(after)
    extra = []
    for value in layer.extra:
        own = editor.shape(value)
        if any(d != 1 for d in own[len(own) - min(len(own), rank - axes[0]):]):
            return
        extra.append((value, (*own[:max(0, len(own) - (rank - axes[0]))], *(1,) * inner)))
    split = reshaped(editor, maker.inputs[0], shape, layer)
    tensor = editor.tensors[layer.outputs[0]]
    made = editor.emit("normalize", [split], Tensor(tensor.dtype, shape), layer, expression=layer.expression,
                       extra=[reshaped(editor, v, s, layer) for v, s in extra],
                       attributes={**layer.attributes, "axes": tuple(range(axes[0], len(shape)))})
    editor.replace_value(layer, reshaped(editor, made, tensor.shape, layer))
