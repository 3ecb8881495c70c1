"""Numbers as they meet while a model is lowered: fractions of sizes, contents as plain data, axes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from sartor.errors import ModelError
from sartor.sizes import Dim

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ratio:
    """A fraction of a size, as it arises where a model computes sizes in floating point."""

    numerator: Dim
    denominator: int


def fraction(x: float) -> Any:
    """The simplest number that is `x` in single precision: an int, a `Ratio`, or `x` itself where it is not finite."""
    if not isfinite(x):
        return x
    exact = Fraction(x)
    for limit in (1, 10, 100, 1000, 10000, 100000):
        simple = exact.limit_denominator(limit)
        if np.float32(float(simple)) == np.float32(x):
            exact = simple
            break
    return exact.numerator if exact.denominator == 1 else Ratio(exact.numerator, exact.denominator)


def plain(x: Any) -> Any:
    """A `Ratio` of plain numbers as a float; all else as it is."""
    return x.numerator / x.denominator if isinstance(x, Ratio) and isinstance(x.numerator, int) else x


def decoded(array: Array) -> Array:
    """Strings as an object array of str, whatever form they came in; other arrays as they are."""
    if array.dtype.kind not in "OSU":
        return array
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in array.reshape(-1).tolist()]
    return out


def simpler(a: Dim, b: Dim) -> Dim:
    """Of two equal sizes the one easier to work with: a number, else the shorter formula."""
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    return a if (len(str(a)), str(a)) <= (len(str(b)), str(b)) else b


def axis_of(axis: int, rank: int, call: object) -> int:
    """A non-negative axis; raises `ModelError` where it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ModelError(f"{call} has the axis {axis}, its input has {rank} dimensions")
    return axis % rank if rank else 0
