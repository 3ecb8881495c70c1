"""All passes together, on random graphs and on the verifier's bad ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.graphs import Build, kinds, random_graph, rewritten

from sartor.errors import GraphError
from sartor.graph.expression import Expression, Node, identity
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.passes import PASSES, optimize
from sartor.graph.passes.editor import Editor
from sartor.graph.verify import verify
from sartor.sizes import symbol


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_meaning_through_every_pass(seed: int) -> None:
    graph = random_graph(seed, 20, symbolic=seed % 2 == 1)
    for _, function in PASSES:
        graph = rewritten(graph, function, 1e-4, n=2, h=3)


def test_passes_keep_what_they_are_told_to_watch() -> None:
    b = Build()
    names: list[str] = []
    optimize(b.finish(b.op("relu", b.input(2))), lambda name, graph: names.append(name))
    assert names == [name for name, _ in PASSES]


def test_optimizing_twice_changes_nothing_more() -> None:
    b = Build()
    y = b.op("relu", b.op("mul", b.convolution_first(b.input(2, 3, 5, 5), 4, 3, 1), b.draw(4, 1, 1)))
    once = optimize(b.finish(b.op("add", b.convolution_first(y, 4, 1), y)))
    assert kinds(optimize(once)) == kinds(once)


def test_the_editor_sorts_and_prunes() -> None:
    b = Build()
    x = b.input(2)
    y = b.op("relu", x)
    graph = b.finish(b.op("neg", y))
    editor = Editor(graph)
    last = editor.layers()[1]
    late = editor.emit("elementwise", [y], Tensor("f32", (2,)), last, expression=identity("f32"))
    editor.update(last, inputs=(late,))
    after = editor.finish()
    verify(after)
    assert [layer.outputs[0] for layer in after.layers] == [y, late, graph.outputs[0]]
    editor.update(editor.layers()[0], inputs=(graph.outputs[0],))
    with pytest.raises(GraphError, match="cycle"):
        editor.finish()


# --- the verifier ----------------------------------------------------------------------------------------------------------------


def valid() -> Graph:
    b = Build()
    n = symbol("n")
    y = b.matmul(b.input(n, 3), b.draw(3, 4))
    return b.finish(b.op("add", y, b.draw(4)))


def changed(graph: Graph, index: int, **changes: object) -> Graph:
    graph.layers[index] = replace(graph.layers[index], **changes)  # type: ignore[arg-type]
    return graph


BAD: dict[str, Callable[[Graph], object]] = {
    "unknown kind": lambda g: changed(g, 0, kind="product"),
    "lacks the attribute transpose_b": lambda g: changed(g, 0, attributes={"transpose_a": False}),
    "not made before": lambda g: g.layers.reverse(),
    "has no type": lambda g: g.tensors.pop(g.layers[0].outputs[0]),
    "two layers are named": lambda g: changed(g, 1, name=g.layers[0].name),
    "exists already": lambda g: changed(g, 1, outputs=g.layers[0].outputs),
    "is made by no layer": lambda g: setattr(g, "outputs", tuple(g.constants)),
    "does not fit": lambda g: changed(g, 0, attributes={"transpose_a": False, "transpose_b": True}),
    "expected 2": lambda g: changed(g, 0, inputs=g.layers[0].inputs[:1]),
    "extra operands but no expression": lambda g: changed(g, 0, extra=g.layers[0].inputs[1:]),
    "but its expression takes": lambda g: changed(g, 1, expression=identity("f32")),
    "expects f64": lambda g: changed(g, 1, expression=Expression(2, (Node("operand", "f64"), Node("operand", "f32"), Node(
        "cast", "f32", (0,))), 2)),
    "uses a later one": lambda g: changed(g, 1, expression=Expression(2, (Node("operand", "f32"), Node("operand", "f32"), Node(
        "add", "f32", (0, 2))), 2)),
    "add of 1 arguments": lambda g: changed(g, 1, expression=Expression(2, (Node("operand", "f32"), Node("operand", "f32"), Node(
        "add", "f32", (0,))), 2)),
    "does not broadcast": lambda g: g.tensors.update({g.outputs[0]: Tensor("f32", (symbol("n"), 5))}),
    "declared is": lambda g: g.constants.update({g.layers[0].inputs[1]: np.zeros((3, 5), np.float32)}),
    "carries an expression": lambda g: g.layers.append(
        Layer("moved", "reshape", g.outputs, ("late",), {}, identity("f32"))) or g.tensors.update({"late": Tensor("f32", (symbol("n"), 4))}),
}


@pytest.mark.parametrize("message", BAD)
def test_the_verifier_names_what_is_wrong(message: str) -> None:
    graph = valid()
    verify(graph)
    BAD[message](graph)
    with pytest.raises(GraphError, match=message):
        verify(graph)


def test_what_was_checked_before_is_not_checked_again() -> None:
    graph = valid()
    other = replace(graph, layers=list(graph.layers), tensors=dict(graph.tensors))
    changed(other, 1, expression=identity("f32"))
    with pytest.raises(GraphError):
        verify(other, graph)
    verify(replace(other, layers=graph.layers), graph)
