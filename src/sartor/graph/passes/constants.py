"""Computes layers whose inputs are all constant."""

from __future__ import annotations

from sartor.graph.layer import OPAQUE, Graph, Layer, Problem
from sartor.graph.passes.editor import Editor
from sartor.graph.reference import evaluate_layer
from sartor.sizes import Size

LIMIT = 1 << 20  # elements a folded constant may have even where its operands are smaller


def run(graph: Graph) -> Graph:
    """Folds constants (pure: the graph given stays as it was).

    Layers that run on the host, that make outputs of the graph, or whose result is much larger than what it is computed from
    (an expanded scalar) stay.
    """
    editor = Editor(graph)
    for layer in editor.each():
        if layer.kind in OPAQUE or layer.outputs[0] in editor.outputs or not _foldable(editor, layer):
            continue
        tensors = {name: editor.tensors[name] for name in (*layer.reads, *layer.outputs)}
        contents = {name: editor.constants[name] for name in layer.reads}
        try:
            result = evaluate_layer(Problem(layer, tensors, contents), {}, {})[layer.outputs[0]]
        except (ArithmeticError, LookupError, MemoryError, ValueError):  # indices out of range, and the like: a run's matter
            continue
        editor.replace_value(layer, editor.add_constant(result, layer.outputs[0]))
    return editor.finish()


def _foldable(editor: Editor, layer: Layer) -> bool:
    shape = editor.shape(layer.outputs[0])
    dims = [d for value in (*layer.attributes.values(), shape) if isinstance(value, (tuple, list)) for d in value]
    if any(isinstance(d, Size) for d in dims) or any(name not in editor.constants for name in layer.reads):
        return False
    elements = editor.tensors[layer.outputs[0]].elements
    given = sum(editor.constants[name].size for name in layer.reads)
    return isinstance(elements, int) and elements <= max(LIMIT, 2 * given)
