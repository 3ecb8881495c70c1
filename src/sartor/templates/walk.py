"""Walks a slice of a flattened index space in runs along the innermost dim, with divisions only at its beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sartor.loops.language import I64, Builder, Number, Value, Variable

Run = Callable[[list[Value], Value, Value, Value], None]
"""Code for one run: indexes of the outer dims, innermost of them first; first and end along the innermost dim; flat index of the first."""


def runs(b: Builder, sizes: Sequence[Number], body: Run) -> None:
    """Emits `body` for the runs that make up begin...end.

    Parameters
    ----------
    sizes
        Sizes of the dims, innermost first, without the outermost one, which needs none.
    """
    if not sizes:
        body([], b.begin, b.end, b.begin)
        return
    with b.branch(b.begin < b.end):
        places = _start(b, sizes)
        at = b.variable("at", b.begin)
        with b.repeat_while() as test:
            b.proceed(test, at.get() < b.end)
            first, flat = places[0].get(), at.get()
            stop = b.minimum(b.end - flat + first, sizes[0])
            body([p.get() for p in places[1:]], first, stop, flat)
            at.set(flat + (stop - first))
            places[0].set(0)
            _carry(b, places, sizes, 1)


def _start(b: Builder, sizes: Sequence[Number]) -> list[Variable]:
    places = [b.variable("place", b.constant(0, I64)) for _ in range(len(sizes) + 1)]
    with b.branch(b.begin.ne(0)):
        rest = b.begin
        for place, size in zip(places, sizes, strict=False):
            quotient = rest // size
            place.set(rest - quotient * size)
            rest = quotient
        places[-1].set(rest)
    return places


def _carry(b: Builder, places: Sequence[Variable], sizes: Sequence[Number], level: int) -> None:
    """Steps the index at `level` and, where it has come to its end, the ones around it."""
    following = places[level].get() + 1
    places[level].set(following)
    if level < len(sizes):
        with b.branch(following.eq(sizes[level])):
            places[level].set(0)
            _carry(b, places, sizes, level + 1)


def split(b: Builder, index: Value, sizes: Sequence[Number]) -> list[Value]:
    """The indexes, innermost first, of a flat index; `sizes` as for `runs`."""
    found, rest = [], index
    for size in sizes:
        quotient = rest // size
        found.append(rest - quotient * size)
        rest = quotient
    return [*found, rest]
