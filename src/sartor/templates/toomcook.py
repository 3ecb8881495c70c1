"""Minimal filtering: the matrices of Winograd's algorithms, and code for products with small constant matrices.

F(m, r) computes m outputs of a filter of r taps with m + r - 1 multiplications: y = A^T [(G g) * (B^T d)] (Winograd, "Arithmetic
complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016).  The matrices come
from interpolation at chosen points and infinity (Toom and Cook).  The points decide the error: 0, +-3/4, +-3/2 give F(4, 3) a
quarter of the error of the usual 0, +-1, +-2, and all entries of B^T and A^T stay exact in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from sartor.loops.language import Builder, Value

Matrix = tuple[tuple[Fraction, ...], ...]

PAIRS = {
    4: (Fraction(1),),
    6: (Fraction(3, 4), Fraction(3, 2)),
    8: (Fraction(1), Fraction(2), Fraction(1, 2)),
}
"""The finite points other than 0, by how many multiplications there are: each stands for itself and its opposite."""


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m, r), a = m + r - 1: `output` is A^T (m x a), `weights` G (a x r), `input` B^T (a x a)."""

    output: Matrix
    weights: Matrix
    input: Matrix

    @property
    def outputs(self) -> int:
        """m."""
        return len(self.output)

    @property
    def taps(self) -> int:
        """r."""
        return len(self.weights[0])

    @property
    def size(self) -> int:
        """a: how many inputs are read, and multiplications made."""
        return len(self.input)


@cache
def filtering(size: int, taps: int) -> Filtering:
    """The matrices with `size` multiplications for a filter of `taps` taps; one tap needs none and has one output."""
    if taps == 1:
        one: Matrix = ((Fraction(1),),)
        return Filtering(one, one, one)
    points = [Fraction(0), *(sign * point for point in PAIRS[size] for sign in (1, -1))]
    outputs = size - taps + 1
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
            base = _scaled(*_sum(builder, even, values))
            out += [_add(builder, base, scale, inner), _add(builder, base, -scale, inner)]
            i += 2
        else:
            out.append(_scaled(*_sum(builder, row, values)))
            i += 1
    return out


def apply_output(builder: Builder, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """A^T times a column of vectors.  The columns of opposite points meet as sums and differences."""
    if len(values) == 1:
        return list(values)
    halves = [(values[j] + values[j + 1], values[j] - values[j + 1]) for j in range(1, len(values) - 1, 2)]
    out = []
    for i, row in enumerate(matrix):
        terms = [half[i % 2] for half in halves]
        coefficients = [row[j] for j in range(1, len(values) - 1, 2)]
        out.append(_scaled(*_sum(builder, [row[-1], row[0], *coefficients], [values[-1], values[0], *terms])))
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


def _scaled(scale: Fraction, value: Value) -> Value:
    return value if scale == 1 else value * float(scale)
