"""Loop shapes that many templates share: a run of elements in vectors with a remainder, and what a target masks well."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sartor.graph.expression import Expression
from sartor.loops.language import I64, Builder, Number, Value
from sartor.loops.target import Target
from sartor.types import BYTES, working

HEAVY = ("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
         "softplus", "pow", "mod", "fmod", "atan2")
"""Operations of expressions that cost many instructions."""

Body = Callable[[Value, int, "Value | None"], None]
"""Code for `lanes` elements from an index on, of which those exist that the mask (where there is one) chooses."""


def can_mask(target: Target, scalars: Iterable[str]) -> bool:
    """Whether masked loads and stores of these element types are instructions; elsewhere they become a branch a lane."""
    if target.isa == "avx512":
        return True
    return target.isa == "avx2" and all(BYTES[s] >= 4 for s in scalars)


def along(b: Builder, start: Number, stop: Number, lanes: int, body: Body, *, masked: bool, unroll: int = 0) -> None:
    """Emits `body` for all elements of start...stop: whole vectors, then one masked vector or one element at a time.

    Lanes are computed alike in both parts, so that an element's bits depend on neither its place nor the length.
    """
    if lanes == 1:
        with b.loop("i", start, stop, unroll=unroll) as i:
            body(i, 1, None)
        return
    length = stop if isinstance(start, int) and start == 0 else stop - start
    whole: Number = length & -lanes if isinstance(length, Value) else int(length) // lanes * lanes
    edge = whole if isinstance(start, int) and start == 0 else whole + start
    if not isinstance(whole, int) or whole > 0:
        with b.loop("i", start, edge, lanes, unroll=unroll) as i:
            body(i, lanes, None)
    if isinstance(length, int) and length == whole:
        return
    at = edge if isinstance(edge, Value) else b.constant(int(edge), I64)
    if not masked:
        with b.loop("i", edge, stop, unroll=1) as i:
            body(i, 1, None)
    elif isinstance(length, int):
        body(at, lanes, b.first_lanes(length % lanes, lanes))
    else:
        rest = stop - at
        with b.branch(rest > 0):
            body(at, lanes, b.first_lanes(rest, lanes))


def cost(expression: Expression | None) -> int:
    """Instructions a vector, roughly."""
    if expression is None:
        return 1
    return 1 + sum(20 if node.op in HEAVY else 1 for node in expression.nodes[expression.operands:])


def lanes_for(target: Target, scalars: Iterable[str]) -> int:
    """Lanes of the vectors that hold all these element types: those of the widest, what is computed in f32 counting so."""
    widest = max((BYTES[working(s)] for s in scalars), default=4)
    return max(1, target.vector_bytes // widest)
