"""Recognises layer norm and RMS norm written out in small operators.

Looked for is a product that contains a value, or a value minus its mean, divided by the square root of the mean of its square
(plus an epsilon), in any order and whichever of reciprocal, division and power it is written with; and the form
x * i + (b - mean * i), where i is the reciprocal root times anything.  Other factors and addends become an element-wise layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.terms import Term, Terms, factors, with_number


@dataclass(frozen=True)
class Found:
    """A normalisation of the term `x` over `axes`, times `numerators` over `denominators`, plus `addend`."""

    x: Term
    axes: tuple[int, ...]
    mode: str
    epsilon: float
    numerators: tuple[Term, ...]
    denominators: tuple[Term, ...]
    addend: Term | None = None


def run(graph: Graph) -> Graph:
    """Replaces written-out normalisations by `normalize` layers (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    terms = Terms(editor)
    for layer in editor.each():
        for value in layer.outputs if layer.kind != "host" else ():
            terms.of(value)
        if layer.kind == "elementwise" and editor.tensors[layer.outputs[0]].dtype in ("f32", "f64", "f16", "bf16"):
            found = _find(terms, terms.of(layer.outputs[0]))
            if found is not None:
                _replace(editor, terms, layer, found)
    return editor.finish()


def _find(terms: Terms, term: Term) -> Found | None:
    if term.op == "add":
        for scaled, addend in (term.args, term.args[::-1]):
            if (found := _shifted(terms, scaled, addend)) is not None:
                return found
        return None
    numerators, denominators = factors(term)
    return _product(terms, numerators, denominators)


def _product(terms: Terms, numerators: list[Term], denominators: list[Term]) -> Found | None:
    """x / sqrt(mean(x^2) + epsilon) or (x - mean) / ..., among the factors."""
    for root in denominators:
        inside = _variance(terms, root)
        if inside is None:
            continue
        deviation, axes, epsilon = inside
        if deviation not in numerators:
            continue
        rest = list(numerators)
        rest.remove(deviation)
        others = list(denominators)
        others.remove(root)
        x = _deviation(terms, deviation, axes)
        mode = "rms" if x is None else "layer"
        return Found(x if x is not None else deviation, axes, mode, epsilon, tuple(rest), tuple(others))
    return None


def _shifted(terms: Terms, scaled: Term, addend: Term) -> Found | None:
    """x * i + (b - mean * i), i being 1 / sqrt(mean((x - mean)^2) + epsilon) times anything."""
    numerators, denominators = factors(scaled)
    for root in denominators:
        inside = _variance(terms, root)
        if inside is None or (x := _deviation(terms, inside[0], inside[1])) is None or x not in numerators:
            continue
        rest = list(numerators)
        rest.remove(x)
        others = list(denominators)
        others.remove(root)
        bias, mean = _subtraction(addend)
        if mean is None:
            continue
        mean_numerators, mean_denominators = factors(mean)
        means = [t for t in mean_numerators if (m := _mean(terms, t)) is not None and m == (x, inside[1])]
        if not means:
            continue
        mean_numerators.remove(means[0])
        if _same(mean_numerators, rest) and _same(mean_denominators, [root, *others]):
            return Found(x, inside[1], "layer", inside[2], tuple(rest), tuple(others), bias)
    return None


def _same(a: list[Term], b: list[Term]) -> bool:
    return sorted(map(id, a)) == sorted(map(id, b))


def _subtraction(term: Term) -> tuple[Term | None, Term | None]:
    """b and m where the term is b - m (b is None for -m)."""
    if term.op == "sub":
        return term.args[0], term.args[1]
    if term.op == "neg":
        return None, term.args[0]
    if term.op == "add":
        for a, b in (term.args, term.args[::-1]):
            if b.op == "neg":
                return a, b.args[0]
    return None, None


def reduced(terms: Terms, term: Term, op: str) -> tuple[Term, tuple[int, ...]] | None:
    """What is reduced and over which axes, where the term is a plain reduction by `op`."""
    if term.op != "value":
        return None
    maker = terms.editor.producer(term.value)
    if maker is None or maker.kind != "reduce" or maker.attributes["op"] != op or maker.expression is not None:
        return None
    return terms.of(maker.inputs[0]), tuple(maker.attributes["axes"])


def _mean(terms: Terms, term: Term) -> tuple[Term, tuple[int, ...]] | None:
    return reduced(terms, term, "mean")


def _variance(terms: Terms, root: Term) -> tuple[Term, tuple[int, ...], float] | None:
    """d, axes and epsilon where the term is sqrt(mean(d^2) + epsilon)."""
    if root.op != "sqrt":
        return None
    inside, epsilon = with_number(root.args[0], "add") or (root.args[0], 0.0)
    mean = _mean(terms, inside)
    if mean is None:
        return None
    square, axes = mean
    if square.op == "mul" and square.args[0] is square.args[1]:
        return square.args[0], axes, epsilon
    if (power := with_number(square, "pow")) is not None and power[1] == 2.0:
        return power[0], axes, epsilon
    return None


def _deviation(terms: Terms, term: Term, axes: tuple[int, ...]) -> Term | None:
    """x where the term is x - mean(x) over the axes."""
    x, mean = _subtraction(term)
    if x is None or mean is None or _mean(terms, mean) != (x, axes):
        return None
    return x


def _replace(editor: Editor, terms: Terms, layer: Layer, found: Found) -> None:
    output = layer.outputs[0]
    tensor = editor.tensors[output]
    x = terms.value_of(found.x, tensor.shape)
    if x is None or editor.tensors[x].dtype != tensor.dtype:
        return
    attributes = {"axes": found.axes, "mode": found.mode, "epsilon": found.epsilon}
    made = editor.emit("normalize", [x], Tensor(tensor.dtype, tensor.shape), layer, attributes=attributes)
    result = terms.of(made)
    for op, others in (("mul", found.numerators), ("div", found.denominators)):
        for other in others:
            result = terms.make(op, tensor.dtype, result, other)
    if found.addend is not None:
        result = terms.make("add", tensor.dtype, result, found.addend)
    if result.op != "value":
        names, expression = terms.expression(result)
        made = editor.emit("elementwise", names, tensor, layer, expression=expression)
    editor.replace_value(layer, made)
