"""Sizes that may be symbols: integers and small formulas over named dimensions.

A `Dim` is an `int` or a `Size`.  A `Size` is a polynomial in canonical form whose atoms are symbols (`batch`, `height`)
or opaque calls of them (floor division, remainder, minimum, maximum), so that two formulas that are the same polynomial
compare equal.  Sizes are plain data: they print, pickle-free, as nested lists (`to_data`, `from_data`) and are evaluated at
binding by `evaluate` or, many at once, by `sartor.fitting.formulas`.

All sizes are integers and all symbols are taken to be at least 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Atom:
    """A symbol (`op == "symbol"`, args = (name,)) or an opaque call: `div`, `mod`, `min`, `max` of two Dims."""

    op: str
    args: tuple[Any, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self.op == "symbol":
            return str(self.args[0])
        if self.op in ("div", "mod"):
            a, b = (f"({x})" if isinstance(x, Size) and (len(x.terms) > 1 or len(x.terms[0][0]) > 1 or x.terms[0][1] != 1)
                    else str(x) for x in self.args)
            return f"({a} {'//' if self.op == 'div' else '%'} {b})"
        return f"{self.op}({self.args[0]}, {self.args[1]})"


Term: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True)
class Size:
    """A sum of products: `terms` maps each product of atoms (sorted by text) to its non-zero integer coefficient."""

    terms: tuple[tuple[Term, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        return _from_terms([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (other * -1)

    def __rsub__(self, other: Dim) -> Dim:
        return (self * -1) + other

    def __mul__(self, other: Dim) -> Dim:
        products = []
        for left, a in self.terms:
            for right, b in _terms(other):
                products.append((tuple(sorted((*left, *right), key=str)), a * b))
        return _from_terms(products)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} is symbolic and has no truth value; compare it or evaluate it first")

    def __str__(self) -> str:
        parts = []
        for term, factor in self.terms:
            text = "*".join(str(a) for a in term)
            parts.append(text if term and factor == 1 else f"{factor}*{text}" if term else str(factor))
        return " + ".join(parts).replace("+ -", "- ") or "0"

    __repr__ = __str__


Dim: TypeAlias = int | Size


def symbol(name: str) -> Size:
    """The size named `name`."""
    return Size((((Atom("symbol", (name,)),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Term, int], ...]:
    if isinstance(dim, Size):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _from_terms(terms: Iterable[tuple[Term, int]]) -> Dim:
    total: dict[Term, int] = {}
    for term, factor in terms:
        total[term] = total.get(term, 0) + factor
    kept = {t: f for t, f in total.items() if f}
    if not kept:
        return 0
    if list(kept) == [()]:
        return kept[()]
    return Size(tuple(sorted(kept.items(), key=lambda item: (-len(item[0]), str(item[0])))))


def _call(op: str, a: Dim, b: Dim) -> Size:
    return Size((((Atom(op, (a, b)),), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """Floor of a / b; exact parts of a polynomial are taken out of the division."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a == b:
        return 1
    if isinstance(b, int) and isinstance(a, Size) and b > 0:
        whole = _from_terms((t, f // b) for t, f in a.terms)
        rest = _from_terms((t, f % b) for t, f in a.terms)
        return whole + (rest // b if isinstance(rest, int) else _division(rest, b))
    if isinstance(a, Size) and isinstance(b, Size) and len(b.terms) == 1:
        if (quotient := _exact_quotient(a, b)) is not None:
            return quotient
    return _call("div", a, b)


def _division(a: Size, b: int) -> Dim:
    """Floor of a / b for b > 1 where no part of `a` is a multiple of b; (x // c + k) // b becomes (x + c * k) // (c * b)."""
    offset = sum(f for t, f in a.terms if not t)
    nested = [(t, f) for t, f in a.terms if t]
    if len(nested) == 1 and nested[0][1] == 1 and len(nested[0][0]) == 1:
        atom = nested[0][0][0]
        if atom.op == "div" and isinstance(atom.args[1], int) and atom.args[1] > 0:
            return floordiv(atom.args[0] + offset * atom.args[1], atom.args[1] * b)
    return _call("div", a, b)


def _exact_quotient(a: Size, b: Size) -> Dim | None:
    (divisor, by), = b.terms
    out = []
    for term, factor in a.terms:
        left = list(term)
        if factor % by:
            return None
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        out.append((tuple(left), factor // by))
    return _from_terms(out)


def modulo(a: Dim, b: Dim) -> Dim:
    """Remainder of a by b, with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int) and isinstance(a, Size) and b:
        rest = _from_terms((t, f % b) for t, f in a.terms)
        return rest % b if isinstance(rest, int) else _call("mod", rest, b)
    if isinstance(a, Size) and isinstance(b, Size) and len(b.terms) == 1 and _exact_quotient(a, b) is not None:
        return 0
    return _call("mod", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Ceiling of a / b."""
    return floordiv(a + b - 1, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of a and b."""
    if at_least(a - b, 0):
        return a
    return b if at_least(b - a, 0) else _call("max", *sorted((a, b), key=str))


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of a and b."""
    if at_least(a - b, 0):
        return b
    return a if at_least(b - a, 0) else _call("min", *sorted((a, b), key=str))


def at_least(dim: Dim, bound: int) -> bool:
    """Whether `dim >= bound` can be told from its form, every symbol being at least 0 (False: not known)."""
    if not isinstance(dim, Size):
        return dim >= bound
    return all(f > 0 and all(map(_is_natural, t)) for t, f in dim.terms if t) and sum(f for t, f in dim.terms if not t) >= bound


def _is_natural(atom: Atom) -> bool:
    if atom.op == "symbol":
        return True
    natural = [at_least(x, 0) for x in atom.args]
    return at_least(atom.args[1], 1) if atom.op == "mod" else any(natural) if atom.op == "max" else all(natural)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    out: Dim = 1
    for dim in dims:
        out = out * dim
    return out


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of `dim` where each symbol has the value given in `sizes`.

    Raises `KeyError` with the name of a symbol that is missing.
    """
    if not isinstance(dim, Size):
        return int(dim)
    return sum(factor * prod(_atom_value(a, sizes) for a in term) for term, factor in dim.terms)


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if atom.op == "symbol":
        return int(sizes[atom.args[0]])
    a, b = (evaluate(x, sizes) for x in atom.args)
    if atom.op == "div":
        return a // b
    if atom.op == "mod":
        return a % b
    return min(a, b) if atom.op == "min" else max(a, b)


def symbols(dim: Dim) -> set[str]:
    """Names of the symbols in `dim`."""
    found: set[str] = set()
    if isinstance(dim, Size):
        for term, _ in dim.terms:
            for atom in term:
                if atom.op == "symbol":
                    found.add(atom.args[0])
                else:
                    found |= symbols(atom.args[0]) | symbols(atom.args[1])
    return found


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with some symbols replaced by sizes or numbers."""
    if not isinstance(dim, Size):
        return dim
    out: Dim = 0
    for term, factor in dim.terms:
        value: Dim = factor
        for atom in term:
            value = value * _atom_substitute(atom, values)
        out = out + value
    return out


def _atom_substitute(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if atom.op == "symbol":
        name = atom.args[0]
        return values[name] if name in values else symbol(name)
    a, b = (substitute(x, values) for x in atom.args)
    return {"div": floordiv, "mod": modulo, "min": minimum, "max": maximum}[atom.op](a, b)


def to_data(dim: Dim) -> Any:
    """`dim` as JSON: an int, or a list of [coefficient, atom...], an atom being a name or [op, a, b]."""
    if not isinstance(dim, Size):
        return int(dim)
    return [[f, *(a.args[0] if a.op == "symbol" else [a.op, *map(to_data, a.args)] for a in t)] for t, f in dim.terms]


def from_data(data: Any) -> Dim:
    """The inverse of `to_data`."""
    if isinstance(data, int):
        return data
    out: Dim = 0
    for factor, *atoms in data:
        value: Dim = int(factor)
        for atom in atoms:
            if isinstance(atom, str):
                value = value * symbol(atom)
            else:
                op, a, b = atom
                call = {"div": floordiv, "mod": modulo, "min": minimum, "max": maximum}[op]
                value = value * call(from_data(a), from_data(b))
        out = out + value
    return out
