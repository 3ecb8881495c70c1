"""Recognises layer norm and RMS norm written out in small operators.

Looked for is a product that contains a value, or a value minus its mean, divided by the square root of the mean of its square
(plus an epsilon), in any order and whichever of reciprocal, division and power it is written with; and the form
x * i + (b - mean * i), where i is the reciprocal root times anything.  Other factors and addends become an element-wise layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from sartor.graph.layer import OPAQUE, Graph, Layer, Tensor
from sartor.graph.passes.editor import Editor
from sartor.graph.passes.terms import Term, Terms, factors, with_number
from sartor.sizes import product


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
        for value in layer.outputs if layer.kind not in OPAQUE else ():
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
    """x / sqrt(mean(x^2) + epsilon) or (x - mean) / sqrt(variance + epsilon), among the factors."""
    for root in denominators:
        others = list(denominators)
        others.remove(root)
        for part in numerators:
            rest = list(numerators)
            rest.remove(part)
            if (spread := _spread(terms, root)) is None:
                break
            base, axes, epsilon, centred = spread
            x = _deviation(terms, part, axes)
            if centred and x is base:  # the variance of x, and x minus its mean
                return Found(base, axes, "layer", epsilon, tuple(rest), tuple(others))
            if not centred and part is base:  # the mean square of what stands above
                return Found(base if x is None else x, axes, "rms" if x is None else "layer", epsilon, tuple(rest), tuple(others))
    return None


def _shifted(terms: Terms, scaled: Term, addend: Term) -> Found | None:
    """x * i + (b - mean * i), i being 1 / sqrt(variance + epsilon) times anything."""
    numerators, denominators = factors(scaled)
    for root in denominators:
        if (spread := _spread(terms, root)) is None:
            continue
        base, axes, epsilon, centred = spread
        x = base if centred else _deviation(terms, base, axes)
        if x is None or x not in numerators:
            continue
        rest = list(numerators)
        rest.remove(x)
        others = list(denominators)
        others.remove(root)
        bias, mean = _subtraction(addend)
        if mean is None:
            continue
        mean_numerators, mean_denominators = factors(mean)
        means = [t for t in mean_numerators if _mean(terms, t) == (x, axes)]
        if not means:
            continue
        mean_numerators.remove(means[0])
        if _same(mean_numerators, rest) and _same(mean_denominators, [root, *others]):
            return Found(x, axes, "layer", epsilon, tuple(rest), tuple(others), bias)
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
    """What the term is the mean of, and over which axes: a reduction by mean, or a sum over a known number of elements divided by it."""
    if (scaled := with_number(term, "mul")) is not None and (found := reduced(terms, scaled[0], "sum")) is not None:
        maker = terms.editor.producer(scaled[0].value)
        count = product(terms.editor.shape(maker.inputs[0])[a] for a in found[1]) if maker is not None else 0
        return found if isinstance(count, int) and abs(count * scaled[1] - 1.0) < 1e-6 else None
    return reduced(terms, term, "mean")


def _spread(terms: Terms, root: Term) -> tuple[Term, tuple[int, ...], float, bool] | None:
    """What stands under a root plus an epsilon: the mean square of a term, or (last entry true) the variance of one, taken as
    mean(x^2) - mean(x)^2; with the axes and the epsilon."""
    if root.op != "sqrt":
        return None
    inside, epsilon = with_number(root.args[0], "add") or (root.args[0], 0.0)
    if (square := _mean_square(terms, inside)) is not None:
        return *square, epsilon, False
    clipped = with_number(inside, "max")
    inside = inside.args[0] if inside.op == "relu" else clipped[0] if clipped is not None and clipped[1] == 0.0 else inside
    total, mean_squared = _subtraction(inside)
    if total is None or mean_squared is None or (base := _square(mean_squared)) is None:
        return None
    square, mean = _mean_square(terms, total), _mean(terms, base)
    return (*mean, epsilon, True) if mean is not None and square == mean else None


def _square(term: Term) -> Term | None:
    """d where the term is d squared."""
    if term.op == "mul" and term.args[0] is term.args[1]:
        return term.args[0]
    power = with_number(term, "pow")
    return power[0] if power is not None and power[1] == 2.0 else None


def _mean_square(terms: Terms, term: Term) -> tuple[Term, tuple[int, ...]] | None:
    """d and the axes where the term is the mean of d squared."""
    mean = _mean(terms, term)
    square = _square(mean[0]) if mean is not None else None
    return (square, mean[1]) if mean is not None and square is not None else None


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
