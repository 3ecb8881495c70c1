"""The memory planner: buffers with sizes and lifetimes get places in one arena.

A buffer lives from the step that first writes it to the step that last reads it.  Two buffers may share bytes when no step
sees both.  Buffers are placed one after the other at the lowest place where they fit; the order decides how good that is, so
several orders are tried and the best result is kept.  The largest sum of bytes alive at one step is the bound no plan can beat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; every buffer starts at a multiple of it."""

_PAIRS_PER_PLAN = 30_000  # how many pairs of neighbours all orders together may look at, to bound the time a plan takes

_Key: TypeAlias = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True)
class Arena:
    """Places of buffers (bytes from the arena's start), the arena's size and the bound it can not be below."""

    offsets: tuple[int, ...]
    bytes: int
    lower_bound: int


def plan_arena(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> Arena:
    """Places buffers of `sizes` bytes that live from step `first` to step `last`, both included.

    Returns
    -------
    Arena
        The smallest found; the same for the same arguments.
    """
    if not sizes:
        return Arena((), 0, 0)
    rounded = [-(-max(s, 0) // ALIGNMENT) * ALIGNMENT for s in sizes]
    begins, ends = np.asarray(first, np.int64), np.asarray(last, np.int64)
    bound = _lower_bound(np.asarray(rounded, np.int64), begins, ends)
    neighbours = _neighbours(begins, ends)
    pairs = sum(map(len, neighbours)) + len(sizes)
    best: list[int] = []
    best_bytes = -1
    for attempt, key in enumerate(_orders(rounded, first, last)):
        if attempt and attempt * pairs > _PAIRS_PER_PLAN:
            break
        offsets = _place(sorted(range(len(sizes)), key=key), rounded, neighbours)
        total = max(o + s for o, s in zip(offsets, rounded, strict=True))
        if best_bytes < 0 or total < best_bytes:
            best, best_bytes = offsets, total
        if best_bytes == bound:
            break
    return Arena(tuple(best), best_bytes, bound)


def _orders(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> tuple[_Key, ...]:
    return (
        lambda i: (-sizes[i], first[i], i),
        lambda i: (-sizes[i] * (last[i] - first[i] + 1), first[i], i),
        lambda i: (first[i], -sizes[i], i),
        lambda i: (first[i], last[i], -sizes[i], i),
        lambda i: (first[i] - last[i], -sizes[i], i),
        lambda i: (-last[i], -sizes[i], i),
        lambda i: (-sizes[i], -last[i], i),
    )


def _lower_bound(sizes: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> int:
    """The largest sum of bytes alive at one step."""
    change = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return int(change.cumsum().max())


def _neighbours(first: NDArray[np.int64], last: NDArray[np.int64]) -> list[list[int]]:
    """Of each buffer, those alive at a same step."""
    together = (first[:, None] <= last) & (last[:, None] >= first)
    np.fill_diagonal(together, False)
    rows, columns = np.nonzero(together)
    cuts = np.searchsorted(rows, np.arange(1, len(first)))
    return [part.tolist() for part in np.split(columns, cuts)]


def _place(order: Sequence[int], sizes: Sequence[int], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """Offsets, each buffer in turn at the start of the smallest gap it fits in, or else behind all its neighbours."""
    offsets = [-1] * len(sizes)
    for i in order:
        size, end, best, best_gap = sizes[i], 0, -1, -1
        for begin, stop in sorted((offsets[j], offsets[j] + sizes[j]) for j in neighbours[i] if offsets[j] >= 0):
            gap = begin - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[i] = end if best < 0 else best
    return offsets
