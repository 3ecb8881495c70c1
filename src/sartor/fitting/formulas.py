"""All size formulas of a program as one table of integer operations, evaluated in one pass when sizes are bound.

Entry i of the table is `op[i]` of `a[i]` and `b[i]`, which name earlier entries, except for constants (a is the value) and
symbols (a is the symbol's place in `symbols`).  Equal formulas share one entry.  The table is plain data; everything else in a
program refers to sizes by their index in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.errors import UnsupportedError
from sartor.sizes import Atom, Dim, Size

Values: TypeAlias = NDArray[np.int64]

CONSTANT, SYMBOL, ADD, MULTIPLY, DIVIDE, REMAINDER, MINIMUM, MAXIMUM = range(8)
_CALLS = {"div": DIVIDE, "mod": REMAINDER, "min": MINIMUM, "max": MAXIMUM}
_UFUNCS = {
    ADD: np.add,
    MULTIPLY: np.multiply,
    DIVIDE: np.floor_divide,
    REMAINDER: np.remainder,
    MINIMUM: np.minimum,
    MAXIMUM: np.maximum,
}


@dataclass(frozen=True)
class Formulas:
    """The finished table; see the module's text."""

    symbols: tuple[str, ...]
    op: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def _constants(self) -> Values:
        return np.array([a if op == CONSTANT else 0 for op, a in zip(self.op, self.a, strict=True)], np.int64)

    @cached_property
    def symbol_entries(self) -> tuple[tuple[int, str], ...]:
        return tuple((i, self.symbols[a]) for i, (op, a) in enumerate(zip(self.op, self.a, strict=True)) if op == SYMBOL)

    @cached_property
    def _batches(self) -> tuple[tuple[Any, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]], ...]:
        """Entries that may be computed together: equal depth, equal operation."""
        depth: list[int] = []
        groups: dict[tuple[int, int], list[int]] = {}
        for i, op in enumerate(self.op):
            depth.append(0 if op <= SYMBOL else 1 + max(depth[self.a[i]], depth[self.b[i]]))
            if op > SYMBOL:
                groups.setdefault((depth[i], op), []).append(i)
        a, b = np.array(self.a, np.intp), np.array(self.b, np.intp)
        found = [(op, np.array(where, np.intp)) for (_, op), where in sorted(groups.items())]
        return tuple((_UFUNCS[op], where, a[where], b[where]) for op, where in found)

    def evaluate(self, sizes: Mapping[str, int], dtype: type[np.generic] = np.int64) -> NDArray[Any]:
        """The value of every entry; a symbol that `sizes` does not name counts as 0, as does a quotient by 0.

        In float64 nothing overflows, so that sizes too large for any memory can be told.
        """
        values: NDArray[Any] = self._constants.astype(dtype)
        for entry, name in self.symbol_entries:
            values[entry] = sizes.get(name, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            for function, where, a, b in self._batches:
                values[where] = function(values[a], values[b])
        return values

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        return {"symbols": list(self.symbols), "op": list(self.op), "a": list(self.a), "b": list(self.b)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Formulas:
        """The inverse of `to_data`."""
        return Formulas(*(tuple(data[k]) for k in ("symbols", "op", "a", "b")))


class FormulaBuilder:
    """Collects sizes: `builder(dim)` gives the entry of a size, an old one where the same formula was met before."""

    def __init__(self) -> None:
        self._symbols: dict[str, int] = {}
        self._entries: dict[tuple[int, int, int], int] = {}
        self._known: dict[Dim, int] = {}

    def __call__(self, dim: Dim) -> int:
        if (found := self._known.get(dim)) is None:
            found = self._known[dim] = self._size(dim) if isinstance(dim, Size) else self._entry(CONSTANT, int(dim))
        return found

    def _entry(self, op: int, a: int, b: int = 0) -> int:
        if op == CONSTANT and not -(1 << 63) <= a < 1 << 63:
            raise UnsupportedError(f"a size or number of {a} came up, which does not fit 64 bits")
        if op in (ADD, MULTIPLY, MINIMUM, MAXIMUM) and b < a:
            a, b = b, a
        return self._entries.setdefault((op, a, b), len(self._entries))

    def _size(self, size: Size) -> int:
        total = -1
        for term, factor in size.terms:
            product = -1
            for atom in term:
                value = self._atom(atom)
                product = value if product < 0 else self._entry(MULTIPLY, product, value)
            if product < 0:
                product = self(factor)
            elif factor != 1:
                product = self._entry(MULTIPLY, product, self(factor))
            total = product if total < 0 else self._entry(ADD, total, product)
        return total

    def _atom(self, atom: Atom) -> int:
        if atom.op == "symbol":
            return self._entry(SYMBOL, self._symbols.setdefault(atom.args[0], len(self._symbols)))
        return self._entry(_CALLS[atom.op], self(atom.args[0]), self(atom.args[1]))

    def finish(self) -> Formulas:
        """The table of all sizes asked for."""
        columns = zip(*self._entries, strict=True) if self._entries else ((), (), ())
        return Formulas(tuple(self._symbols), *(tuple(c) for c in columns))
