"""Declares kernel parameters and, in the same breath, the arguments that binding puts into them."""

from __future__ import annotations

from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Rows, Value
from sartor.sizes import Dim
from sartor.templates.base import Argument, Constant, Pitch, Pointer, RowTable, SizeOf, Workspace, Zeros


class Slots:
    """The argument slots of one kernel, declared on `builder`; `arguments` has one entry for each, in order."""

    def __init__(self, builder: Builder, problem: Problem) -> None:
        self.builder = builder
        self.problem = problem
        self.arguments: tuple[Argument, ...] = ()
        self._seen: dict[Argument, Value] = {}

    def _add(self, argument: Argument) -> None:
        self.arguments = (*self.arguments, argument)

    def pointer(self, name: str, value: str, offset: Dim = 0) -> Buffer:
        """The buffer of `value` from element `offset` on."""
        self._add(Pointer(value, offset))
        return self.builder.pointer(name, self.problem.tensors[value].dtype)

    def constant(self, name: str, index: int, scalar: str) -> Buffer:
        """The packed constant number `index`, of `scalar`s."""
        self._add(Constant(index))
        return self.builder.pointer(name, scalar)

    def workspace(self, name: str, index: int, scalar: str) -> Buffer:
        """The shared workspace number `index`, used as an array of `scalar`s."""
        self._add(Workspace(index))
        return self.builder.pointer(name, scalar)

    def zeros(self, name: str, size: Dim, scalar: str) -> Buffer:
        """At least `size` zero bytes."""
        self._add(Zeros(size))
        return self.builder.pointer(name, scalar)

    def rows(self, name: str, table: RowTable) -> Rows:
        """A table of row addresses."""
        self._add(table)
        return self.builder.rows(name, self.problem.tensors[table.value].dtype)

    def pitch(self, name: str, value: str) -> Value:
        """Elements between two rows of `value`; declared once."""
        return self._once(name, Pitch(value))

    def size(self, name: str, dim: Dim) -> Value:
        """A size as an argument; equal sizes share one slot."""
        return self._once(name, SizeOf(dim))

    def known(self, name: str, dim: Dim) -> Value | int:
        """A size as a number where it is known when compiling, else as an argument."""
        return dim if isinstance(dim, int) else self.size(name, dim)

    def _once(self, name: str, argument: Pitch | SizeOf) -> Value:
        if argument not in self._seen:
            self._add(argument)
            self._seen[argument] = self.builder.size(name)
        return self._seen[argument]
