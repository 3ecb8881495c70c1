"""Expressions as passes handle them: substitution of operands, simplification, and views as trees.

Passes speak of a layer's *operands*: for an element-wise layer its inputs, for any other kind `RAW` (its raw result) followed by
its extra values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from sartor.errors import SartorError
from sartor.graph.expression import Expression, ExpressionBuilder, Node, identity
from sartor.graph.layer import Layer
from sartor.graph.scalars import FLOATS, evaluate_expression
from sartor.types import to_numpy, working

RAW = ""  # stands for the raw result among a layer's operands
Operands: TypeAlias = tuple[str, ...]

COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne", "and", "or", "xor", "bit_and", "bit_or", "bit_xor")
_COSTS = {"exp": 6, "log": 8, "tanh": 8, "erf": 10, "sigmoid": 8, "softplus": 14, "pow": 16, "div": 3, "sqrt": 3, "reciprocal": 3, "mod": 6,
          "fmod": 6, **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2"), 14)}


def operands(layer: Layer) -> Operands:
    """What the layer's expression is computed from (see the module's docstring)."""
    return layer.inputs if layer.kind == "elementwise" else (RAW, *layer.extra)


def expression_of(layer: Layer, raw_dtype: str) -> Expression:
    """The layer's expression; the identity where it has none."""
    return layer.expression if layer.expression is not None else identity(raw_dtype)


def with_operands(layer: Layer, values: Sequence[str], expression: Expression, **changes: Any) -> dict[str, Any]:
    """The fields of the layer to change so that it computes `expression` of `values`; RAW must come first where it is not element-wise."""
    if layer.kind == "elementwise":
        return {"inputs": tuple(values), "expression": expression, **changes}
    plain = len(values) == 1 and expression.is_identity
    return {"extra": tuple(values[1:]), "expression": None if plain else expression, **changes}


def substitute(values: Sequence[str], expression: Expression, replacements: Mapping[str, tuple[Sequence[str], Expression]],
               first: Sequence[str] = ()) -> tuple[Operands, Expression]:
    """An expression with some operands replaced by expressions of other values.

    Parameters
    ----------
    values, expression
        The expression and the names of its operands.
    replacements
        For the name of an operand: the operands and the expression to put in its place.
    first
        Names that come first among the operands of the result.

    Returns
    -------
    The names of the result's operands, each once, and the result, simplified; operands it does not need are dropped, except `first`.
    """
    types: dict[str, str] = {}
    for name, node in zip(values, expression.nodes, strict=False):
        parts = replacements.get(name, ((name,), identity(node.dtype)))
        for part, operand in zip(parts[0], parts[1].nodes, strict=False):
            types.setdefault(part, operand.dtype)
    names = [*(n for n in first if n in types), *(n for n in types if n not in first)]
    builder = ExpressionBuilder([types[n] for n in names])
    index = []
    for name, node in zip(values, expression.nodes, strict=False):
        parts = replacements.get(name, ((name,), identity(node.dtype)))
        index.append(builder.inline(parts[1], [names.index(p) for p in parts[0]]))
    return tidy(names, builder.finish(builder.inline(expression, index)), first)


def tidy(values: Sequence[str], expression: Expression, first: Sequence[str] = ()) -> tuple[Operands, Expression]:
    """The simplified expression and its operands in the order in which it meets them, each once.

    Operands it does not need are dropped, except `first`, which come first.  So equal work has one form, whatever it was made from.
    """
    expression = simplify(expression)
    places = {name: values.index(name) for name in first if name in values}
    for index in _met(expression):
        places.setdefault(values[index], index)
    if not places and values:  # a layer needs something to read
        places[values[0]] = 0
    names = tuple(places)
    if names == tuple(values):
        return names, expression
    builder = ExpressionBuilder([expression.nodes[i].dtype for i in places.values()])
    nodes = [names.index(n) if n in places else -1 for n in values]
    for node in expression.nodes[expression.operands:]:
        nodes.append(builder(node.op, *(nodes[a] for a in node.args), dtype=node.dtype, value=node.value))
    return names, simplify(builder.finish(nodes[expression.result]))


def _met(expression: Expression) -> list[int]:
    """Operands in the order in which a walk from the result, arguments from left to right, meets them."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [expression.result]
    while stack:
        index = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        if index < expression.operands:
            order.append(index)
        stack.extend(reversed(expression.nodes[index].args))
    return order


def cost(expression: Expression) -> int:
    """Roughly how many vector instructions the expression takes for one vector of results."""
    return sum(_COSTS.get(node.op, 1) for node in expression.nodes[expression.operands:] if node.op != "constant")


# --- simplification ----------------------------------------------------------------------------------------------------------


def simplify(expression: Expression) -> Expression:
    """An equal expression (up to the rounding of constants) with constants folded, and the forms below made simple and uniform.

    Constants stand second in commutative operations; powers with small exponents become products and roots; division by a
    constant becomes multiplication; the logistic function written out becomes `sigmoid`.
    """
    builder = ExpressionBuilder([n.dtype for n in expression.nodes[:expression.operands]])
    index = list(range(expression.operands))
    for node in expression.nodes[expression.operands:]:
        index.append(_add(builder, node.op, tuple(index[a] for a in node.args), node.dtype, node.value))
    return builder.finish(index[expression.result])


def _constant(builder: ExpressionBuilder, index: int) -> Any:
    """The value of a constant node; None for others."""
    node = builder.nodes[index]
    return node.value if node.op == "constant" else None


def _add(builder: ExpressionBuilder, op: str, args: tuple[int, ...], dtype: str, value: Any) -> int:
    """Appends a node in its simplest form."""
    nodes = builder.nodes
    if op == "constant":
        return builder.constant(value, dtype)
    if args and all(nodes[a].op == "constant" for a in args) and (folded := _fold(builder, op, args, dtype, value)) is not None:
        return folded
    if op in COMMUTATIVE and _rank(builder, args[1]) < _rank(builder, args[0]):
        args = (args[1], args[0])
    rule = _RULES.get(op)
    if rule is not None and value != "exact" and (found := rule(builder, args, dtype)) is not None:
        return found
    return builder(op, *args, dtype=dtype, value=value)


def _rank(builder: ExpressionBuilder, index: int) -> tuple[int, int]:
    """Where an argument stands in a commutative operation: what depends on operand 0 first, constants last."""
    if builder.nodes[index].op == "constant":
        return 2, 0
    stack, seen = [index], {index}
    while stack:
        if (current := stack.pop()) == 0 and builder.operands:
            return 0, index
        fresh = [a for a in builder.nodes[current].args if a not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return 1, -index if index >= builder.operands else index


def _fold(builder: ExpressionBuilder, op: str, args: tuple[int, ...], dtype: str, value: Any) -> int | None:
    constants = tuple(replace(builder.nodes[a], args=()) for a in args)
    whole = Expression(0, (*constants, Node(op, dtype, tuple(range(len(args))), value)), len(args))
    try:
        result = evaluate_expression(whole, []).item()
    except (SartorError, ArithmeticError, ValueError, TypeError):
        return None
    return builder.constant(result, dtype)


def _number(builder: ExpressionBuilder, value: float, dtype: str) -> int:
    """A constant node of a float type, its value rounded to the type that is computed in."""
    with np.errstate(over="ignore"):
        return builder.constant(float(np.asarray(value).astype(to_numpy(working(dtype)))), dtype)


def _cast(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    return args[0] if b.nodes[args[0]].dtype == dtype else None


def _chain(op: str, combine: Callable[[float, float], float], neutral: float) -> Callable[..., int | None]:
    """x op neutral = x, and (x op c1) op c2 = x op (c1 op c2) for floats."""

    def rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
        x, c = args[0], _constant(b, args[1])
        if c is None:
            return None
        if c == neutral and not isinstance(c, bool):
            return x
        inner = b.nodes[x]
        if dtype in FLOATS and inner.op == op and (c0 := _constant(b, inner.args[1])) is not None:
            both = _number(b, combine(float(c0), float(c)), dtype)
            if isfinite(float(b.nodes[both].value or 0.0)):
                return _add(b, op, (inner.args[0], both), dtype, None)
        return None

    return rule


_ADD_CONSTANTS = _chain("add", lambda a, b: a + b, 0)
_MUL_CONSTANTS = _chain("mul", lambda a, b: a * b, 1)


def _add_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    for x, y in (args, args[::-1]):
        if b.nodes[y].op == "neg" and dtype in FLOATS:
            return _add(b, "sub", (x, b.nodes[y].args[0]), dtype, None)
    return _ADD_CONSTANTS(b, args, dtype)


def _sub_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    c = _constant(b, args[1])
    if c is not None and dtype in FLOATS:
        return _add(b, "add", (args[0], _number(b, -c, dtype)), dtype, None)
    if c == 0 and c is not None:
        return args[0]
    if b.nodes[args[1]].op == "neg" and dtype in FLOATS:
        return _add(b, "add", (args[0], b.nodes[args[1]].args[0]), dtype, None)
    return None


def _mul_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    c = _constant(b, args[1])
    if c == -1 and dtype in FLOATS:
        return _add(b, "neg", (args[0],), dtype, None)
    if c is None and dtype in FLOATS:
        for x, y in (args, args[::-1]):
            if b.nodes[y].op == "reciprocal":
                return _add(b, "div", (x, b.nodes[y].args[0]), dtype, None)
    return _MUL_CONSTANTS(b, args, dtype)


def _div_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    x, y = args
    c = _constant(b, y)
    if c == 1 and not isinstance(c, bool):
        return x
    if dtype not in FLOATS:
        return None
    if c is not None and c != 0 and isfinite(c) and isfinite(1.0 / c) and abs(1.0 / c) > 1e-37:
        return _add(b, "mul", (x, _number(b, 1.0 / c, dtype)), dtype, None)
    if _constant(b, x) == 1:
        return _add(b, "reciprocal", (y,), dtype, None)
    return None


def _pow_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    x, exponent = args[0], _constant(b, args[1])
    if exponent is None or dtype not in FLOATS:
        return None
    if exponent == 1:
        return x
    if exponent == 0.5:
        return _add(b, "sqrt", (x,), dtype, None)
    if exponent == -0.5:
        return _add(b, "reciprocal", (_add(b, "sqrt", (x,), dtype, None),), dtype, None)
    if abs(exponent) in (0.25, 0.75):
        root = _add(b, "sqrt", (x,), dtype, None)
        power = _add(b, "sqrt", (root,), dtype, None)
        if abs(exponent) == 0.75:
            power = _add(b, "mul", (root, power), dtype, None)
        return power if exponent > 0 else _add(b, "reciprocal", (power,), dtype, None)
    if exponent == 1.5:
        return _add(b, "mul", (x, _add(b, "sqrt", (x,), dtype, None)), dtype, None)
    if exponent in (2, 3, 4, -1, -2):
        power = x if abs(exponent) == 1 else _add(b, "mul", (x, x), dtype, None)
        if exponent == 3:
            power = _add(b, "mul", (power, x), dtype, None)
        if exponent == 4:
            power = _add(b, "mul", (power, power), dtype, None)
        return power if exponent > 0 else _add(b, "reciprocal", (power,), dtype, None)
    return None


def _neg_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    inner = b.nodes[args[0]]
    if inner.op == "neg":
        return inner.args[0]
    if inner.op == "mul" and dtype in FLOATS and (c := _constant(b, inner.args[1])) is not None:
        return _add(b, "mul", (inner.args[0], _number(b, -c, dtype)), dtype, None)
    return None


def _reciprocal_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    """1 / (exp(-x) + 1) is the logistic function of x."""
    inner = b.nodes[args[0]]
    if inner.op == "reciprocal":
        return inner.args[0]
    if inner.op == "add" and _constant(b, inner.args[1]) == 1 and b.nodes[inner.args[0]].op == "exp":
        exponent = b.nodes[inner.args[0]].args[0]
        return _add(b, "sigmoid", (_add(b, "neg", (exponent,), dtype, None),), dtype, None)
    return None


def _select_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    mask, x, y = args
    if x == y:
        return x
    if (c := _constant(b, mask)) is not None:
        return x if c else y
    if b.nodes[mask].op == "not":
        return _add(b, "select", (b.nodes[mask].args[0], y, x), dtype, None)
    return None


def _max_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    if args[0] == args[1]:
        return args[0]
    c = _constant(b, args[1])
    if c == 0 and c is not None and dtype in FLOATS:
        return _add(b, "relu", (args[0],), dtype, None)
    return args[0] if c == -np.inf and dtype in FLOATS else None


def _min_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    c = _constant(b, args[1])
    return args[0] if args[0] == args[1] or (c == np.inf and dtype in FLOATS) else None


def _idempotent(op: str) -> Callable[..., int | None]:
    def rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
        return args[0] if b.nodes[args[0]].op == op else None

    return rule


def _logic(neutral: bool) -> Callable[..., int | None]:
    """x and True = x, x or False = x; x and False, x or True are constants."""

    def rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
        c = _constant(b, args[1])
        if c is None or args[0] == args[1]:
            return args[0] if args[0] == args[1] else None
        return args[0] if bool(c) == neutral else b.constant(not neutral, "bool")

    return rule


def _not_rule(b: ExpressionBuilder, args: tuple[int, ...], dtype: str) -> int | None:
    return b.nodes[args[0]].args[0] if b.nodes[args[0]].op == "not" else None


_RULES: dict[str, Callable[[ExpressionBuilder, tuple[int, ...], str], int | None]] = {
    "cast": _cast, "add": _add_rule, "sub": _sub_rule, "mul": _mul_rule, "div": _div_rule, "pow": _pow_rule, "neg": _neg_rule,
    "reciprocal": _reciprocal_rule, "select": _select_rule, "max": _max_rule, "min": _min_rule, "not": _not_rule,
    "and": _logic(True), "or": _logic(False),
    "relu": _idempotent("relu"), "abs": _idempotent("abs"), "floor": _idempotent("floor"), "ceil": _idempotent("ceil"),
    "round": _idempotent("round"), "sign": _idempotent("sign"),
}
