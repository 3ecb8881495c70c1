"""A heap of places, as code of kernels: the one that lies above all others is at its root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sartor.loops.language import I64, Buffer, Builder, Value


@dataclass(frozen=True)
class Heap:
    """`places` holds the heap; `above(i, j)` says whether place i lies above place j, which for i = j is false."""

    b: Builder
    places: Buffer
    above: Callable[[Value, Value], Value]

    def rise(self, i: Value, size: Value) -> None:
        """Adds place i to a heap of `size` places."""
        b, at = self.b, self.b.variable("at", size)
        with b.repeat_while() as test:
            inside = at.get() > 0
            parent = b.load(self.places, b.maximum(at.get() - 1, 0) >> 1)
            b.proceed(test, inside & self.above(i, b.select(inside, parent, i)))
            place = at.get()
            over = (place - 1) >> 1
            b.store(self.places, place, b.load(self.places, over))
            at.set(over)
        b.store(self.places, at.get(), i)

    def sink(self, i: Value, size: Value) -> None:
        """Puts place i where the root of a heap of `size` places is."""
        b = self.b
        at, following = b.variable("at", b.constant(0, I64)), b.variable("following", b.constant(1, I64))
        with b.repeat_while() as test:
            b.proceed(test, following.get() < size)
            left = following.get()
            right = b.minimum(left + 1, size - 1)
            upper = b.select(self.above(b.load(self.places, right), b.load(self.places, left)), right, left)
            child = b.load(self.places, upper)
            with b.branch(self.above(child, i)):
                b.store(self.places, at.get(), child)
                at.set(upper)
                following.set(upper * 2 + 1)
            with b.otherwise():
                following.set(size)
        b.store(self.places, at.get(), i)


def ahead(b: Builder, p: Value, q: Value, largest: bool) -> tuple[Value, Value]:
    """Whether value p comes before q, and whether the two are equal; a NaN counts as larger than all numbers."""
    more, same = (p > q if largest else p < q), p.eq(q)
    if p.type.is_float:
        above, below = (p, q) if largest else (q, p)
        more = more | (above.ne(above) & below.eq(below))
        same = same | (p.ne(p) & q.ne(q))
    return more, same
