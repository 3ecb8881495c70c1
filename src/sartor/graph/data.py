"""Layers as JSON, for what a program has to carry of them: the steps no kernel computes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from sartor.graph.expression import Expression, Node
from sartor.graph.layer import Layer, Problem, Tensor
from sartor.sizes import Size, from_data, to_data


def problem_to_data(problem: Problem) -> dict[str, Any]:
    """The layer and the types of its values; contents of constants are left out."""
    layer = problem.layer
    return {
        "name": layer.name,
        "kind": layer.kind,
        "inputs": list(layer.inputs),
        "outputs": list(layer.outputs),
        "extra": list(layer.extra),
        "attributes": _encode(dict(layer.attributes)),
        "expression": _expression_to_data(layer.expression),
        "tensors": {name: [t.dtype, [to_data(d) for d in t.shape]] for name, t in problem.tensors.items()},
    }


def problem_from_data(data: Mapping[str, Any]) -> Problem:
    """The inverse of `problem_to_data`."""
    layer = Layer(
        data["name"],
        data["kind"],
        tuple(data["inputs"]),
        tuple(data["outputs"]),
        _decode(data["attributes"]),
        _expression_from_data(data["expression"]),
        tuple(data["extra"]),
    )
    tensors = {name: Tensor(dtype, tuple(from_data(d) for d in shape)) for name, (dtype, shape) in data["tensors"].items()}
    return Problem(layer, tensors, {})


def _expression_to_data(expression: Expression | None) -> Any:
    if expression is None:
        return None
    return [expression.operands, [[n.op, n.dtype, list(n.args), n.value] for n in expression.nodes], expression.result]


def _expression_from_data(data: Any) -> Expression | None:
    if data is None:
        return None
    operands, nodes, result = data
    return Expression(operands, tuple(Node(op, dtype, tuple(args), value) for op, dtype, args, value in nodes), result)


def _encode(value: Any) -> Any:
    """Attributes as JSON; what JSON has no form for becomes an object of one entry."""
    if isinstance(value, Size):
        return {"size": to_data(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple | list):
        return [_encode(v) for v in value]
    if isinstance(value, Mapping):
        return {"map": [[k, _encode(v)] for k, v in value.items()]}
    return value.item() if hasattr(value, "item") else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "size":
        return from_data(content)
    return base64.b64decode(content) if kind == "bytes" else {k: _decode(v) for k, v in content}
