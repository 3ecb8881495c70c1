"""Element-wise work as data: what is computed for one output element from one element of each operand.

An `Expression` is a list of nodes in order of computation; node i may use results of earlier nodes.  The first
`len(operand_types)` nodes are the operands.  Element types are those of the loop language (`f32`, `i64`, `bool`, ...).

Operations (`op`, number of arguments):

    constant (0, `value`)     select (3: bool mask, a, b)
    cast (1, to the node's dtype; `value` for the small floats: None, "saturate": what is too large becomes the largest number, and
        for f8e8m0 "up", "down" or "nearest" and maybe " saturate"; None there stands for "up saturate")
    bitcast (1: the same bits as the node's dtype, which is as wide)
    add sub mul div min max pow mod fmod atan2                       (2; div truncates for integers; mod has the divisor's sign)
        (div with the `value` "exact" stays a division: its quotient is rounded, where that of the reciprocal could go the other way)
    neg abs sqrt exp log tanh erf sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh
    floor ceil round (ties to even) sign reciprocal softplus relu    (1)
    eq ne lt le gt ge (2, gives bool)    and or xor not (bool)    bit_and bit_or bit_xor bit_not shift_left shift_right (integers)
    is_nan is_inf (1, gives bool; `value` "both", "positive" or "negative" for is_inf)

Anything else (GELU, hard-swish, clip, SiLU, ...) is written in these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

UNARY = ("neg", "abs", "sqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
         "asinh", "acosh", "atanh", "floor", "ceil", "round", "sign", "reciprocal", "softplus", "relu", "not", "bit_not", "is_nan",
         "is_inf", "cast", "bitcast")
BINARY = ("add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
          "xor", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf", "and", "or", "xor", "not")


@dataclass(frozen=True)
class Node:
    """One scalar operation; `args` are indices of earlier nodes, `value` a constant or an option of the operation."""

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    value: float | int | bool | str | None = None


@dataclass(frozen=True)
class Expression:
    """Nodes in order; the first `operands` of them are `operand` nodes; the result is node `result`."""

    operands: int
    nodes: tuple[Node, ...]
    result: int

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.nodes[self.result].dtype

    @property
    def is_identity(self) -> bool:
        """True where the result is operand 0 unchanged."""
        return self.result == 0 and self.operands >= 1

    @property
    def moved(self) -> int | None:
        """The operand whose bits are the result as they are; None where something is computed."""
        index, node = self.result, self.nodes[self.result]
        if node.op == "bitcast" and "bool" not in (node.dtype, self.nodes[node.args[0]].dtype):
            index = node.args[0]
        return index if index < self.operands else None

    def __str__(self) -> str:
        """As one formula, which tells different expressions of the same operands apart: of types, those that do not follow from them.

        A node that is read more than once is named before it, so that the text stays as short as the nodes.
        """
        reads = Counter(a for node in self.nodes for a in node.args)
        names = [f"x{i}" for i in range(self.operands)]
        named: list[str] = []
        for node in self.nodes[self.operands:]:
            parts = [names[a] for a in node.args] + ([node.dtype] if node.op in ("cast", "bitcast") else [])
            parts += [repr(node.value)] if node.value is not None else []
            text = repr(node.value) if node.op == "constant" else f"{node.op}({', '.join(parts)})"
            if reads[len(names)] > 1 and node.op != "constant":
                named.append(f"t{len(named)} = {text}; ")
                text = f"t{len(named) - 1}"
            names.append(text)
        return "".join(named) + names[self.result]


def identity(dtype: str) -> Expression:
    """x0."""
    return Expression(1, (Node("operand", dtype),), 0)


class ExpressionBuilder:
    """Builds an expression: `e = ExpressionBuilder(["f32", "f32"]); e.finish(e("add", 0, 1))`."""

    def __init__(self, operand_types: Sequence[str]) -> None:
        self.nodes = [Node("operand", t) for t in operand_types]
        self.operands = len(operand_types)

    def __call__(self, op: str, *args: int, dtype: str | None = None, value: float | int | bool | str | None = None) -> int:
        """Appends a node and returns its index.  The dtype defaults to bool for predicates, else to the first argument's."""
        if dtype is None:
            dtype = "bool" if op in PREDICATES else self.nodes[args[1] if op == "select" else args[0]].dtype
        node = Node(op, dtype, args, value)
        if node in self.nodes[self.operands:]:
            return self.nodes.index(node, self.operands)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def constant(self, value: float | int | bool, dtype: str) -> int:
        return self("constant", dtype=dtype, value=value)

    def inline(self, expression: Expression, operands: Sequence[int]) -> int:
        """Appends the nodes of another expression, its operands being existing nodes; returns its result's index."""
        index = list(operands)
        for node in expression.nodes[expression.operands:]:
            index.append(self(node.op, *(index[a] for a in node.args), dtype=node.dtype, value=node.value))
        return index[expression.result]

    def finish(self, result: int) -> Expression:
        """The expression; nodes the result does not need are dropped, operands are kept."""
        needed, stack = set(range(self.operands)), [result]
        while stack:
            if (i := stack.pop()) not in needed or i < self.operands:
                needed.add(i)
                stack.extend(a for a in self.nodes[i].args)
        index = {old: new for new, old in enumerate(sorted(needed))}
        nodes = tuple(Node(n.op, n.dtype, tuple(index[a] for a in n.args), n.value)
                      for i, n in enumerate(self.nodes) if i in needed)
        return Expression(self.operands, nodes, index[result])
