"""Clean-up passes: scalars, identities, constants, duplicates, dead layers."""

from __future__ import annotations

import numpy as np
import onnx
from tests.unit.graphs import Build, kinds, only, rewritten

from sartor.graph.layer import Layer, Tensor
from sartor.graph.passes import constants, dead, duplicates, identities, scalars
from sartor.sizes import symbol


def test_uniform_constants_join_the_expression_and_leading_ones_go() -> None:
    b = Build()
    x = b.input(2, 3, 4)
    y = b.op("mul", b.op("add", x, b.constant(np.full((1, 3, 1), 0.5))), b.draw(1, 1, 4))
    after = rewritten(b.finish(y), scalars.run)
    first, second = after.layers
    assert str(first.expression) == "add(x0, 0.5)"
    assert len(first.inputs) == 1
    assert after.tensors[second.inputs[1]].shape == (4,)


def test_a_layer_of_constants_alone_keeps_something_to_read() -> None:
    b = Build()
    y = b.op("add", b.constant(np.ones(3)), b.constant(np.ones((2, 1))), shape=(2, 3))
    after = rewritten(b.finish(y), scalars.run)
    assert len(after.layers[0].inputs) == 1


def test_identities_vanish() -> None:
    b = Build()
    x = b.input(2, 3, 1, 4)
    y = b.copy(b.transpose(x, 0, 1, 2, 3))
    y = b.reshape(b.reshape(b.slice(y, 1, 0, 3), 6, 4), 2, 3, 1, 4)
    y = b.layer("pad", [b.concat([y], 1)], (2, 3, 1, 4), before=(0, 0, 0, 0), mode="constant", value=0.0)
    y = b.reduce(y, "sum", 2)
    y = b.layer("resize", [y], (2, 3, 1, 4), mode="linear", scales=(1.0, 1.0, None, None), coordinate="half_pixel")
    after = rewritten(b.finish(b.op("relu", y)), lambda g: dead.run(identities.run(g)))
    assert kinds(after) == ["elementwise"]
    assert after.layers[0].inputs == (x,)


def test_a_copy_that_names_an_output_stays() -> None:
    b = Build()
    x = b.input(2)
    y = b.op("relu", x)
    after = rewritten(b.finish(b.copy(x), b.copy(y), b.copy(y)), identities.run)
    assert len(after.layers) == 3  # the input's copy, the work under the name of one output, a copy under the other's


def test_a_copy_that_broadcasts_stays() -> None:
    b = Build()
    after = rewritten(b.finish(b.copy(b.input(1, 3), (2, 3))), identities.run)
    assert kinds(after) == ["elementwise"]


def test_constants_fold_but_do_not_grow() -> None:
    b = Build()
    x = b.input(2, 3)
    small = b.transpose(b.op("add", b.draw(3, 2), b.draw(3, 1)), 1, 0)
    large = b.copy(b.draw(1, 1), (2048, 2048))
    sizes = b.layer("sizes", [], (2,), "i64", dims=(3, 4))
    after = rewritten(b.finish(b.op("mul", x, small), b.op("neg", large), b.op("neg", sizes)), constants.run)
    assert kinds(after) == ["elementwise"] * 4
    assert np.array_equal(after.constants[after.layers[-1].inputs[0]], [3, 4])


def test_sizes_with_symbols_stay() -> None:
    b = Build()
    n = symbol("n")
    b.input(n)
    after = rewritten(b.finish(b.op("neg", b.layer("sizes", [], (1,), "i64", dims=(n,)))), constants.run, n=3)
    assert kinds(after) == ["elementwise", "sizes"]


def test_equal_layers_and_constants_merge() -> None:
    b = Build()
    x = b.input(2, 3)
    twice = [b.op("add", b.transpose(x, 1, 0), b.constant(np.arange(2.0))) for _ in range(2)]
    after = rewritten(b.finish(b.op("mul", *twice)), duplicates.run)
    assert kinds(after) == ["elementwise", "elementwise", "transpose"]
    assert len(after.constants) == 1


def test_equal_outputs_keep_their_names() -> None:
    b = Build()
    x = b.input(2)
    rewritten(b.finish(b.op("neg", x), b.op("neg", x), b.op("relu", b.op("neg", x))), duplicates.run)


def test_random_layers_are_not_merged() -> None:
    b = Build()
    node = onnx.helper.make_node("RandomNormal", [], ["y"], shape=[2]).SerializeToString()
    drawn = [b.layer("host", [], (2,), node=node, domains={"": 15}) for _ in range(2)]
    after = duplicates.run(b.finish(b.op("sub", *drawn)))
    assert kinds(after) == ["elementwise", "host", "host"]


def test_dead_layers_go_unless_they_define_a_size_in_use() -> None:
    b = Build()
    x = b.input(4)
    b.op("neg", b.op("relu", x))
    count = symbol("count")
    node = onnx.helper.make_node("NonZero", ["x"], ["y"]).SerializeToString()
    b.graph.tensors["places"] = Tensor("i64", (1, count))
    b.graph.layers.append(Layer("find", "host", (x,), ("places",), {"node": node, "domains": {"": 13}, "defines": [("count", 0, 1)]}))
    y = b.layer("sizes", [], (1,), "i64", dims=(count,))
    after = rewritten(b.finish(y), dead.run)
    assert kinds(after) == ["host", "sizes"]
    assert only(after, "host").outputs == ("places",)
