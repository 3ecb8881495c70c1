"""Permutations of dims, and how reshapes group dims: the arithmetic behind moving transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sartor.sizes import Dim, modulo

Perm: TypeAlias = tuple[int, ...]


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes `perm`."""
    out = [0] * len(perm)
    for new, old in enumerate(perm):
        out[old] = new
    return tuple(out)


def compose(first: Sequence[int], second: Sequence[int]) -> Perm:
    """The permutation of a transpose by `first` followed by one by `second`."""
    return tuple(first[i] for i in second)


def extended(perm: Sequence[int], rank: int) -> Perm:
    """The permutation for `rank` dims, the new leading ones staying where they are."""
    more = rank - len(perm)
    return (*range(more), *(p + more for p in perm))


def permuted_shape(shape: Sequence[Dim], perm: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(shape[p] for p in perm)


def is_trivial(shape: Sequence[Dim], perm: Sequence[int]) -> bool:
    """Whether a transpose of this shape moves only dims of size 1, so that a reshape does the same."""
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved)


def swapped_last(perm: Sequence[int]) -> Perm:
    """The permutation with its last two entries exchanged."""
    return (*perm[:-2], perm[-1], perm[-2])


def _divides(a: Dim, b: Dim) -> bool:
    return modulo(b, a) == 0


def groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """How a reshape from shape `a` to shape `b` maps dims: pairs of runs of dims of `a` and of `b` with equal products, as many as
    can be told; dims of size 1 are left out.  None where the shapes cannot be matched."""
    left, right = [i for i, d in enumerate(a) if d != 1], [i for i, d in enumerate(b) if d != 1]
    out: list[tuple[list[int], list[int]]] = []
    while left and right:
        run_a, run_b = [left.pop(0)], [right.pop(0)]
        size_a, size_b = a[run_a[0]], b[run_b[0]]
        while size_a != size_b:
            numbers = isinstance(size_a, int) and isinstance(size_b, int)
            smaller_a = size_a < size_b if numbers else _divides(size_a, size_b)  # type: ignore[operator]
            if left and smaller_a:
                size_a = size_a * a[left[0]]
                run_a.append(left.pop(0))
            elif right and (not smaller_a if numbers else _divides(size_b, size_a)):
                size_b = size_b * b[right[0]]
                run_b.append(right.pop(0))
            elif numbers:
                return None
            else:  # formulas that cannot be compared: one run of all that is left
                run_a, run_b, left, right = run_a + left, run_b + right, [], []
                break
        out.append((run_a, run_b))
    return None if left or right else out


def through_reshape(z: Sequence[Dim], perm: Sequence[int], a: Sequence[Dim], b: Sequence[Dim]) -> tuple[list[int], Perm] | None:
    """Exchanges a transpose with the reshape behind it.

    The transpose takes shape `z` by `perm` to shape `a`, which the reshape makes `b`.  Returned is the order in which dims of `b`
    stand when `z` is reshaped first, and the permutation that then leads to `b`; None where the reshape joins dims that do not
    lie side by side in `z`.
    """
    runs = groups(a, b)
    if runs is None:
        return None
    if not runs:
        return list(range(len(b))), tuple(range(len(b)))
    runs = sorted(runs, key=lambda run: perm[run[0][0]])
    if [perm[i] for run, _ in runs for i in run] != [i for i, d in enumerate(z) if d != 1]:
        return None
    return _order_behind(runs, len(b))


def gathered(perm: Sequence[int], a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Perm, list[int], Perm] | None:
    """Splits the transpose before a reshape that joins dims which do not lie side by side, or in another order.

    Returned are a permutation that only brings together what the reshape joins, the order in which dims of `b` stand when its
    result is reshaped, and the permutation that then leads to `b`.
    """
    runs = groups(a, b)
    if not runs:
        return None
    runs = sorted(runs, key=lambda run: min(perm[i] for i in run[0]))
    used = [perm[i] for run, _ in runs for i in run]
    ones = [i for i in range(len(perm)) if i not in used]
    return ((*ones, *used), *_order_behind(runs, len(b)))


def _order_behind(runs: list[tuple[list[int], list[int]]], rank: int) -> tuple[list[int], Perm]:
    """The order of the dims behind a reshape whose runs stand in this order, and the permutation that undoes it."""
    owner: dict[int, int] = {}
    for number, (_, run) in enumerate(runs):
        owner.update(dict.fromkeys(run, number))
    last = owner[min(owner)]
    for axis in range(rank):  # dims of size 1 go with the dim before them
        last = owner.setdefault(axis, last)
    order = sorted(range(rank), key=lambda axis: (owner[axis], axis))
    return order, tuple(order.index(axis) for axis in range(rank))
