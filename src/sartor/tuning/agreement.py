"""Whether what a candidate computed is what the reference says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.graph.layer import Problem
from sartor.types import from_numpy

TOLERANCE = {"f64": 1e-9, "f32": 5e-5, "f16": 5e-3, "bf16": 4e-2}
"""Largest difference of a float allowed, relative to the largest float of the reference's output."""

STEPS = frozenset({"floor", "ceil", "round", "sign", "mod", "fmod", "eq", "ne", "lt", "le", "gt", "ge"})
"""Operations that turn a difference in the last bit into a large one."""

STEPPED_SHARE = 1e-4
"""The share of elements that may differ where a step lies between, as at `x > 0` for an x that is 0 but for rounding."""

_TINY = 1e-20


def has_steps(problem: Problem) -> bool:
    """Whether rounding may decide an element: the layer computes with floats and takes a step on the way to its result."""
    floats = any(t.dtype in TOLERANCE for t in problem.tensors.values())
    nodes = problem.layer.expression.nodes if problem.layer.expression is not None else ()
    casts = any(n.op == "cast" and n.dtype not in TOLERANCE for n in nodes)
    chooses = problem.layer.kind == "reduce" and problem["op"] in ("argmax", "argmin")
    return floats and (chooses or casts or any(n.op in STEPS for n in nodes))


def disagreement(wanted: NDArray[Any], got: NDArray[Any], steps: bool = False) -> str:
    """Why `got` is not `wanted` (computed in float64) within the rounding of its type, in a few words; "" where it is.

    Parameters
    ----------
    steps
        Whether rounding may decide single elements.
    """
    if wanted.shape != got.shape:
        return f"it has the shape {got.shape} instead of {wanted.shape}"
    if not wanted.size:
        return ""
    kind = from_numpy(got.dtype)
    if kind not in TOLERANCE:
        with np.errstate(invalid="ignore"):
            wrong = (wanted != got) & ((wanted == wanted) | (got == got))  # noqa: PLR0124 -- which is how small floats say that they are no NaN
        worst = f"{got.dtype} values differ"
    else:
        wrong, relative = _floats_apart(wanted, got, TOLERANCE[kind])
        worst = f"off by {relative:.1e} of the largest value" if relative < np.inf else "infinite or not a number in other places"
    count = int(np.count_nonzero(wrong))
    if count <= (STEPPED_SHARE * wanted.size if steps else 0):
        return ""
    return f"{count} of {wanted.size} elements differ from the reference ({worst})"


def _floats_apart(wanted: NDArray[Any], got: NDArray[Any], tolerance: float) -> tuple[NDArray[np.bool_], float]:
    """Where two arrays of floats differ by more than the tolerance, and by how much at most."""
    with np.errstate(all="ignore"):
        a = wanted.astype(got.dtype).astype(np.float64)  # what overflows the type is infinite in it
        b = got.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
        scale = max(float(np.abs(a[finite]).max(initial=0.0)), _TINY)
        apart = np.where(finite, np.abs(a - b), 0.0) / scale
    worst = float(apart.max(initial=0.0)) if same.all() else np.inf
    return ~same | (apart > tolerance), worst


def largest_difference(first: NDArray[Any], second: NDArray[Any]) -> float:
    """The largest difference of two arrays of floats relative to the largest magnitude of the first; 0 for other types.

    Infinity where they are not finite in the same places.
    """
    if from_numpy(first.dtype) not in TOLERANCE or not first.size:
        return 0.0
    return _floats_apart(first.astype(np.float64), second, np.inf)[1]
