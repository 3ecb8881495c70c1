"""Inputs of size 1 that meet another size: the shapes to which they are repeated before a run (see `sartor.ops.stretch`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from sartor.fitting.plan import Blueprint

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def repeated(
    blueprint: Blueprint, places: Iterable[tuple[int, int, str]], conditions: Sequence[tuple[int, int]], shapes: Shapes
) -> Shapes | None:
    """The input shapes with sizes of 1 repeated so that all conditions hold; None where that cannot be.

    Parameters
    ----------
    places
        (input, axis, symbol) for each dim of an input that is a symbol alone.
    conditions
        Pairs of formulas that must be equal, of those that the inputs' shapes tell.
    """
    if blueprint.wants is None:
        return None
    sizes: dict[str, int] = {}
    for number, axis, name in places:
        sizes.setdefault(name, shapes[number][axis])
    loose, names, formulas = set(sizes), dict(blueprint.formulas.symbol_entries), blueprint.formulas
    values = formulas.evaluate(sizes)
    forms = [list(blueprint.values[number].shape) for number in blueprint.inputs]
    if any(tuple(values[form].tolist()) != shape for form, shape in zip(forms, shapes, strict=True)):
        return None
    while broken := [(a, b) for a, b in conditions if values[a] != values[b]]:
        ways = [(names[x], y) for a, b in broken[:1] for x, y in ((a, b), (b, a)) if values[x] == 1 and names.get(x) in loose]
        if not ways:
            return None
        name, other = ways[0]
        loose.discard(name)
        sizes[name] = int(values[other])
        values = formulas.evaluate(sizes)
    if any(not loose.intersection(want) for want in blueprint.wants):
        return None
    return tuple(tuple(values[form].tolist()) for form in forms)
