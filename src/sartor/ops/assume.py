"""Conditions on sizes as formulas of value 0 or 1, and what follows for sizes where such a condition is known to hold.

In the branch of an `If` that compares a size with a number, that size is the number: shapes there are simpler, and the same
question asked again has an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sartor.sizes import Atom, Dim, Size, floordiv, maximum, minimum, modulo, symbols

Facts: TypeAlias = Mapping[Atom, Dim]
"""What to write for an atom."""


def not_equal(a: Dim, b: Dim) -> Dim:
    """1 where two sizes differ, else 0."""
    difference = a - b
    return minimum(1, maximum(difference, difference * -1))


def less(a: Dim, b: Dim) -> Dim:
    """1 where a < b, else 0."""
    return minimum(1, maximum(b - a, 0))


def is_one(dim: Dim, facts: Facts) -> Dim:
    """1 where a size is 1, else 0; a number where what is known decides it."""
    return assumed(1 - not_equal(dim, 1), facts)


def facts_of(test: Dim, holds: bool) -> dict[Atom, Dim]:
    """What follows from a condition that holds, or does not."""
    facts: dict[Atom, Dim] = {}
    _zero(1 - test if holds else test, facts)
    return facts


def assumed(dim: Dim, facts: Facts) -> Dim:
    """A size with what is known written into it."""
    for _ in range(4 if facts else 0):
        before, dim = dim, _replaced(dim, facts)
        if dim == before:
            break
    return dim


def _zero(dim: Dim, facts: dict[Atom, Dim]) -> None:
    """Notes what follows from `dim` being 0."""
    if not isinstance(dim, Size):
        return
    for term, factor in sorted(dim.terms, key=lambda t: len(t[0])):
        rest = dim - Size(((term, factor),))
        if len(term) != 1 or (isinstance(rest, int) and rest % factor) or (not isinstance(rest, int) and abs(factor) != 1):
            continue
        (atom,) = term
        value = floordiv(rest * -1, factor) if isinstance(rest, int) else rest * -factor
        if not _contains(value, atom):
            facts[atom] = value
            if value == 0 and atom.op in ("min", "max"):
                _zero_extreme(atom, facts)
            return


def _zero_extreme(atom: Atom, facts: dict[Atom, Dim]) -> None:
    a, b = atom.args
    if atom.op == "max" and a == b * -1:
        _zero(a, facts)
    if atom.op == "min" and 1 in (a, b):
        _zero(b if a == 1 else a, facts)


def _contains(dim: Dim, atom: Atom) -> bool:
    if not isinstance(dim, Size):
        return False
    if atom.op == "symbol":
        return atom.args[0] in symbols(dim)
    return any(a == atom or (a.op != "symbol" and any(_contains(x, atom) for x in a.args)) for term, _ in dim.terms for a in term)


def _replaced(dim: Dim, facts: Facts) -> Dim:
    if not isinstance(dim, Size):
        return dim
    out: Dim = 0
    for term, factor in dim.terms:
        value: Dim = factor
        for atom in term:
            value = value * _atom(atom, facts)
        out = out + value
    return out


def _atom(atom: Atom, facts: Facts) -> Dim:
    if atom in facts:
        return facts[atom]
    if atom.op == "symbol":
        return Size((((atom,), 1),))
    a, b = (_replaced(x, facts) for x in atom.args)
    return {"div": floordiv, "mod": modulo, "min": minimum, "max": maximum}[atom.op](a, b)
