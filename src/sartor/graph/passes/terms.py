"""Values as trees of scalar operations, for passes that recognise what was written out in small operators.

A `Term` is what one element of a value is, in terms of elements of values that are no element-wise results.  Equal trees are one
object, whatever layers they were written in, so that comparing terms is comparing identities.  Terms say nothing of
shapes: operands broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.passes.algebra import COMMUTATIVE, Operands, tidy
from sartor.graph.passes.editor import Editor

MOST_NODES = 400  # of one term; values whose terms would be larger are leaves


@dataclass(frozen=True, eq=False)
class Term:
    """One operation on terms; `op` "value" names a value, "constant" a number (both in `value`)."""

    op: str
    dtype: str
    args: tuple[Term, ...] = ()
    value: Any = None
    size: int = 1


class Terms:
    """The terms of a graph's values."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._unique: dict[Any, Term] = {}
        self._of: dict[str, Term] = {}
        self._values: dict[int, list[str]] = {}

    def make(self, op: str, dtype: str, *args: Term, value: Any = None) -> Term:
        """The term of an operation; arguments of commutative ones are put in one order."""
        if op in COMMUTATIVE:
            args = tuple(sorted(args, key=id))
        key = (op, dtype, tuple(map(id, args)), str(value))
        if key not in self._unique:
            self._unique[key] = Term(op, dtype, args, value, 1 + sum(a.size for a in args))
        return self._unique[key]

    def of(self, value: str) -> Term:
        """The term of a value."""
        if value not in self._of:
            maker, dtype = self.editor.producer(value), self.editor.tensors[value].dtype
            term = None
            if maker is not None and maker.kind == "elementwise" and maker.expression is not None:
                term = self._expand(maker.expression, maker.inputs)
            elif (number := self._number(value)) is not None:
                term = self.make("constant", dtype, value=number)
            if term is None or term.size > MOST_NODES:
                term = self.make("value", dtype, value=value)
            self._of[value] = term
            self._values.setdefault(id(term), []).append(value)
        return self._of[value]

    def _number(self, value: str) -> float | None:
        array = self.editor.constant(value)
        if array is None or array.size == 0 or array.size > 4096 or array.dtype.kind != "f" or np.any(array != array.reshape(-1)[0]):
            return None
        return float(array.reshape(-1)[0])

    def _expand(self, expression: Expression, values: tuple[str, ...]) -> Term:
        terms = [self.of(v) for v in values]
        for node in expression.nodes[expression.operands:]:
            terms.append(self.make(node.op, node.dtype, *(terms[a] for a in node.args), value=node.value))
        return terms[expression.result]

    def value_of(self, term: Term, shape: tuple[Any, ...]) -> str | None:
        """A value of this shape that has the term; None where the graph (as seen so far) has none."""
        if term.op == "value" and self.editor.shape(term.value) == shape:
            return str(term.value)
        return next((v for v in self._values.get(id(term), ()) if self.editor.shape(v) == shape), None)

    def expression(self, term: Term) -> tuple[Operands, Expression]:
        """The term as an expression of values."""
        leaves: dict[str, str] = {}
        order: list[Term] = []
        seen: set[int] = set()

        def visit(t: Term) -> None:
            if id(t) in seen:
                return
            seen.add(id(t))
            for a in t.args:
                visit(a)
            if t.op == "value":
                leaves[t.value] = t.dtype
            order.append(t)

        visit(term)
        names = tuple(leaves)
        builder = ExpressionBuilder([leaves[n] for n in names])
        index: dict[int, int] = {}
        for t in order:
            index[id(t)] = (names.index(t.value) if t.op == "value" else builder.constant(t.value, t.dtype) if t.op == "constant"
                            else builder(t.op, *(index[id(a)] for a in t.args), dtype=t.dtype, value=t.value))
        return tidy(names, builder.finish(index[id(term)]))


def factors(term: Term) -> tuple[list[Term], list[Term]]:
    """The term as a quotient of products: numerators and denominators; negations and constants are factors like others."""
    if term.op == "mul":
        (n1, d1), (n2, d2) = (factors(a) for a in term.args)
        return n1 + n2, d1 + d2
    if term.op == "div":
        (n1, d1), (n2, d2) = (factors(a) for a in term.args)
        return n1 + d2, d1 + n2
    if term.op == "reciprocal":
        n, d = factors(term.args[0])
        return d, n
    return ([], []) if is_number(term, 1.0) else ([term], [])


def is_number(term: Term, value: float | None = None) -> bool:
    """Whether the term is a constant (of this value)."""
    return term.op == "constant" and (value is None or term.value == value)


def with_number(term: Term, op: str) -> tuple[Term, float] | None:
    """The other argument and the number where the term is `op` of a term and a constant."""
    if term.op == op and len(term.args) == 2:
        for a, b in (term.args, term.args[::-1]):
            if is_number(b) and not is_number(a):
                return a, float(b.value)
    return None
