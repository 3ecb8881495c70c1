"""Moves reshapes behind element-wise work, so that the work can join the layer that makes its operand and pairs of reshapes meet."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.permutations import groups
from sartor.graph.passes.transposes import reshaped
from sartor.sizes import Dim


def run(graph: Graph) -> Graph:
    """Moves reshapes towards the outputs (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    for layer in editor.each("elementwise", "reshape"):
        if layer.kind == "reshape":
            _merge(editor, layer)
        else:
            _sink(editor, layer)
    return editor.finish()


def _merge(editor: Editor, layer: Layer) -> None:
    maker = editor.producer(layer.inputs[0])
    if maker is not None and maker.kind == "reshape":
        editor.replace_value(layer, reshaped(editor, maker.inputs[0], editor.shape(layer.outputs[0]), layer))


def _sink(editor: Editor, layer: Layer) -> None:
    """Lets element-wise work run on what its operands were before they were reshaped, and reshapes the result."""
    output = layer.outputs[0]
    shape = editor.shape(output)
    for value in layer.inputs:
        maker = editor.producer(value)
        if maker is None or maker.kind != "reshape" or editor.shape(value) != shape:
            continue
        before = editor.shape(maker.inputs[0])
        aligned = [_shape_before(editor.shape(v), before, shape) for v in layer.inputs]
        free = [a is not None and _is_free(editor, v, a, before) for v, a in zip(layer.inputs, aligned, strict=True)]
        if all(a is not None for a in aligned) and _pays(editor, layer, value, maker, free):
            inputs = tuple(reshaped(editor, v, a, layer) for v, a in zip(layer.inputs, aligned, strict=True) if a is not None)
            result = editor.value(Tensor(editor.tensors[output].dtype, before), output)
            new = editor.update(layer, inputs=inputs, outputs=(result,))
            after = editor.redirect(output, reshaped(editor, result, shape, new))
            for reader in editor.readers(after):
                if reader.kind == "reshape":
                    _merge(editor, reader)
            return


def _pays(editor: Editor, layer: Layer, value: str, reshape: Layer, free: list[bool]) -> bool:
    """Whether the layer may then join what makes the reshaped value, or the reshape meets others."""
    if editor.sole_reader(value) is layer:
        return all(free) or editor.sole_reader(reshape.inputs[0]) is reshape
    readers = editor.readers(layer.outputs[0])
    makers = [editor.producer(v) for v in layer.inputs if editor.shape(v) == editor.shape(value)]
    joined = len(makers) > 1 and all(m is not None and m.kind == "reshape" for m in makers)
    return all(free) and (joined or (bool(readers) and all(r.kind == "reshape" for r in readers)))


def _shape_before(operand: Sequence[Dim], before: Sequence[Dim], after: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The shape in which an operand that broadcasts to `after` broadcasts to `before`; None where there is none."""
    if all(d == 1 for d in operand):
        return ()
    runs = groups(before, after)
    if runs is None:
        return None
    full = (*(1,) * (len(after) - len(operand)), *operand)
    out: list[Dim] = [1] * len(before)
    for run_before, run_after in runs:
        if all(full[i] == after[i] for i in run_after):
            for i in run_before:
                out[i] = before[i]
        elif any(full[i] != 1 for i in run_after):
            return None
    return tuple(out)


def _is_free(editor: Editor, value: str, shape: tuple[Dim, ...], before: tuple[Dim, ...]) -> bool:
    """Whether reading the value in this shape needs no further reshape of a whole tensor."""
    if value in editor.constants or editor.shape(value) == shape or shape != before:
        return True
    maker = editor.producer(value)
    return maker is not None and maker.kind == "reshape"
