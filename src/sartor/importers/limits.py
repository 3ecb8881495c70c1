"""Limits on what a small model file may unfold into: graphs within graphs, and functions that call functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import onnx

from sartor.errors import ModelError

MOST_NODES = 1 << 18
"""Nodes a model may have once its functions stand where they are called."""

MOST_DEPTH = 30
"""Graphs within graphs; the interchange format itself ends at 32."""

_Key: TypeAlias = tuple[str, str, str]


def check_unfolding(proto: onnx.ModelProto, what: str) -> None:
    """Raises `ModelError` where a model has no end or none within reason.

    Functions that call themselves are refused, directly or through others, and so are those that unfold into more than
    `MOST_NODES` nodes and graphs that lie deeper than `MOST_DEPTH` within one another.
    """
    for nodes in (proto.graph.node, *(f.node for f in proto.functions)):
        _check_depth(nodes, what)
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = {key: _calls(f.node, functions) for key, f in functions.items()}
    own = {key: sum(1 for _ in _nodes(f.node)) for key, f in functions.items()}
    totals: dict[_Key, int] = {}
    for start in functions:
        _count(start, calls, own, totals, what)
    total = sum(1 for _ in _nodes(proto.graph.node))
    total += sum(count * totals[key] for key, count in _calls(proto.graph.node, functions).items())
    if total > MOST_NODES:
        raise ModelError(f"{what} unfolds into {total} nodes once its functions stand where they are called; "
                         f"up to {MOST_NODES} are possible")


def _count(start: _Key, calls: dict[_Key, Counter[_Key]], own: dict[_Key, int], totals: dict[_Key, int], what: str) -> None:
    """Enters into `totals` how many nodes a function and those it calls unfold into; a walk without recursion of ours."""
    path = [start]
    while path:
        key = path[-1]
        waiting = [k for k in calls[key] if k not in totals]
        if again := [k for k in waiting if k in path]:
            raise ModelError(f"the function {again[0][1]!r} of {what} calls itself, directly or through others")
        if waiting:
            path.append(waiting[0])
        else:
            totals[key] = own[key] + sum(count * totals[k] for k, count in calls[key].items())
            path.pop()


def _calls(nodes: Iterable[onnx.NodeProto], functions: dict[_Key, onnx.FunctionProto]) -> Counter[_Key]:
    keys = ((node.domain, node.op_type, node.overload) for node in _nodes(nodes))
    return Counter(key for key in keys if key in functions)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """All nodes, those of inner graphs too."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting.extend(graph.node for graph in _inner(node))


def _inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_depth(nodes: Iterable[onnx.NodeProto], what: str) -> None:
    level = [nodes]
    for _ in range(MOST_DEPTH + 1):
        level = [graph.node for inner in level for node in inner for graph in _inner(node)]
        if not level:
            return
    raise ModelError(f"{what} has graphs within graphs more than {MOST_DEPTH} deep")
