"""Holds the element types of a node's inputs to the operator's declaration, before it is lowered."""

from __future__ import annotations

from functools import cache

import onnx

from sartor.errors import ModelError
from sartor.ops.context import Call, Context
from sartor.ops.host import type_words


def check_types(context: Context, call: Call) -> None:
    """Raises `ModelError` where an input has an element type that the operator does not take, or inputs differ that may not.

    Operators without a declaration in onnx, and types it has no name for, are not looked at.
    """
    formals = _formals(call.op_type, call.version, call.domain)
    if not formals:
        return
    bound: dict[str, tuple[str, str]] = {}
    for place, value in enumerate(call.inputs):
        name, variable, allowed = formals[min(place, len(formals) - 1)]
        if not value or context.sequence(value) is not None or (words := type_words(context.dtype(value))) is None:
            continue
        if words not in allowed:
            raise ModelError(f"{call} does not take elements of type {context.dtype(value)} as {name!r}, as which it is given {value!r}")
        if variable:
            first, other = bound.setdefault(variable, (words, value))
            if first != words:
                raise ModelError(f"{call} takes inputs of one type, it is given {other!r} of {context.dtype(other)} and "
                                 f"{value!r} of {context.dtype(value)}")


@cache
def _formals(operator: str, version: int, domain: str) -> tuple[tuple[str, str, frozenset[str]], ...]:
    """Of each declared input its name, its type variable where all that share it must agree, and the types it may have.

    It may have those of the operator's newest version too: exporters write bf16 into models of opsets that do not have it yet.
    """
    if not onnx.defs.has(operator, version, domain):
        return ()
    schema = onnx.defs.get_schema(operator, version, domain)
    variables = _variables(schema)
    newest = onnx.defs.get_schema(operator, domain)
    later = {formal.name: _variables(newest).get(formal.type_str, frozenset[str]()) for formal in newest.inputs}
    found = []
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    for formal in schema.inputs:
        shared = formal.type_str in variables and (formal.is_homogeneous or formal.option != variadic)
        types = variables.get(formal.type_str, frozenset((formal.type_str,)))
        found.append((formal.name, formal.type_str if shared else "", types | later.get(formal.name, frozenset())))
    return tuple(found)


def _variables(schema: onnx.defs.OpSchema) -> dict[str, frozenset[str]]:
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
