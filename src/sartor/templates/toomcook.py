"""Minimal filtering: the matrices of Winograd's algorithms, and code for products with small constant matrices.

F(m, r) computes m outputs of a filter of r taps with m + r - 1 multiplications: y = A^T [(G g) * (B^T d)] (Winograd, "Arithmetic
complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016).  The matrices come
from interpolation at chosen points and infinity (Toom and Cook).  The points decide the error: 0, +-3/4, +-3/2 give F(4, 3) a third
of the error of the usual 0, +-1, +-2, and all entries of B^T and A^T stay exact in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from sartor.loops.language import Builder, Value

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
    6: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2), Fraction(1, 2), Fraction(-1, 2)),
}
"""Finite points by number of outputs, for three taps; pairs of opposite points stand side by side."""


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m, 3): `output` is A^T (m x a), `weights` G (a x 3), `input` B^T (a x a), a = m + 2."""

    output: Matrix
    weights: Matrix
    input: Matrix


@cache
def filtering(outputs: int) -> Filtering:
    """The matrices for `outputs` outputs of a filter of three taps."""
    points, taps = POINTS[outputs], 3
    size = outputs + taps - 1
    a_rows = [[p**i for p in points] + [Fraction(int(i == outputs - 1))] for i in range(outputs)]
    g_rows, b_rows = [], []
    for i, point in enumerate(points):
        others = [p for j, p in enumerate(points) if j != i]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        g_rows.append([point**k / scale for k in range(taps)])
        b_rows.append(_with_roots(others, size))
    g_rows.append([Fraction(int(k == taps - 1)) for k in range(taps)])
    b_rows.append(_with_roots(points, size))
    return Filtering(*(tuple(tuple(row) for row in rows) for rows in (a_rows, g_rows, b_rows)))


def _with_roots(roots: Sequence[Fraction], length: int) -> list[Fraction]:
    """Coefficients of the monic polynomial with these roots, lowest first, filled up with zeros."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found + [Fraction(0)] * (length - len(found))


# --- code -----------------------------------------------------------------------------------------------------------------


def apply_input(builder: Builder, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """B^T times a column of vectors.  The rows of opposite points share their even and odd halves."""
    out: list[Value] = []
    i = 0
    while i < len(matrix):
        row = matrix[i]
        if i and i + 2 < len(matrix):
            mirror = matrix[i + 1]
            even = [c if c == d else Fraction(0) for c, d in zip(row, mirror, strict=True)]
            odd = [c if c == -d else Fraction(0) for c, d in zip(row, mirror, strict=True)]
            scale, inner = _sum(builder, odd, values)
            base = _scaled(builder, *_sum(builder, even, values))
            out += [_add(builder, base, scale, inner), _add(builder, base, -scale, inner)]
            i += 2
        else:
            out.append(_scaled(builder, *_sum(builder, row, values)))
            i += 1
    return out


def apply_output(builder: Builder, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """A^T times a column of vectors.  The columns of opposite points meet as sums and differences."""
    halves = [(values[j] + values[j + 1], values[j] - values[j + 1]) for j in range(1, len(values) - 1, 2)]
    out = []
    for i, row in enumerate(matrix):
        terms = [half[i % 2] for half in halves]
        coefficients = [row[j] for j in range(1, len(values) - 1, 2)]
        out.append(_scaled(builder, *_sum(builder, [row[-1], row[0], *coefficients], [values[-1], values[0], *terms])))
    return out


def _sum(builder: Builder, coefficients: Sequence[Fraction], values: Sequence[Value]) -> tuple[Fraction, Value]:
    """(s, v) with s * v = sum of coefficients times values; a value whose coefficient is 1 comes first, if there is one."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c]
    first = next((i for i, (c, _) in enumerate(terms) if c == 1), len(terms) - 1)
    scale, total = terms.pop(first)
    for coefficient, value in terms:
        total = _add(builder, total, coefficient / scale, value)
    return scale, total


def _add(builder: Builder, total: Value, coefficient: Fraction, value: Value) -> Value:
    if coefficient == 1:
        return total + value
    if coefficient == -1:
        return total - value
    return builder.fma(value, float(coefficient), total)


def _scaled(builder: Builder, scale: Fraction, value: Value) -> Value:
    del builder
    return value if scale == 1 else value * float(scale)
