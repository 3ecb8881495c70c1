"""Recognises softmax and its logarithm written out in small operators."""

from __future__ import annotations

from sartor.graph.layer import OPAQUE, Graph, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.norms import reduced
from sartor.graph.passes.terms import Term, Terms, factors


def run(graph: Graph) -> Graph:
    """Replaces exp(x - max) / sum(exp(x - max)), with or without the maximum, by `softmax` layers, and x - max - log(sum(exp(x - max)))
    by its logarithm (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    terms = Terms(editor)
    for layer in editor.each():
        for value in layer.outputs if layer.kind not in OPAQUE else ():
            terms.of(value)
        if layer.kind != "elementwise":
            continue
        tensor = editor.tensors[layer.outputs[0]]
        found = _find(terms, terms.of(layer.outputs[0]))
        if found is None:
            continue
        x, axis, log = found
        source = terms.value_of(x, tensor.shape)
        if source is not None and editor.tensors[source].dtype == tensor.dtype:
            made = editor.emit("softmax", [source], Tensor(tensor.dtype, tensor.shape), layer, attributes={"axis": axis, "log": log})
            editor.replace_value(layer, made)
    return editor.finish()


def _find(terms: Terms, term: Term) -> tuple[Term, int, bool] | None:
    """What a softmax is taken of, the axis, and whether its logarithm is taken."""
    if term.op == "sub" and term.args[1].op == "log":
        axis = _sum_of(terms, term.args[1].args[0], terms.make("exp", term.dtype, term.args[0]))
        return None if axis is None else (_unshifted(terms, term.args[0], axis), axis, True)
    numerators, denominators = factors(term)
    if len(numerators) == len(denominators) == 1 and numerators[0].op == "exp":
        axis = _sum_of(terms, denominators[0], numerators[0])
        if axis is not None:
            return _unshifted(terms, numerators[0].args[0], axis), axis, False
    return None


def _sum_of(terms: Terms, total: Term, exponential: Term) -> int | None:
    """The axis where `total` is the sum of the exponential along one axis."""
    found = reduced(terms, total, "sum")
    return found[1][0] if found is not None and found[0] is exponential and len(found[1]) == 1 else None


def _unshifted(terms: Terms, term: Term, axis: int) -> Term:
    """x where the term is x - max(x) along the axis, else the term itself."""
    if term.op == "sub" and (found := reduced(terms, term.args[1], "max")) is not None and found == (term.args[0], (axis,)):
        return term.args[0]
    return term
