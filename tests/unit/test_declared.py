"""Nodes are held to their operators' declarations: numbers of inputs, attributes and their types, element types."""

import numpy as np
import pytest
from tests.unit.test_damaged_models import F, oh, one_node, onh, onnx, refusal

from sartor.compiler import prepare
from sartor.importers.onnx import load

I64 = onnx.TensorProto.INT64


def with_attribute(model, name, value):
    model.graph.node[0].attribute.append(oh.make_attribute(name, value))
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (one_node("Relu", {"x": [[2]], "y": [[2]]}, {}), r"node 'it' \(Relu\) of the model has 2 inputs; expected 1$"),
        (one_node("Add", {"x": [[2]]}, {}), r"has 1 inputs; expected 2$"),
        (one_node("Conv", {"x": [[1, 1, 4, 4]]}, {}), r"has 1 inputs; expected 2 to 3$"),
        (one_node("Relu", {"x": [[2]]}, {}, outputs=2), r"has 2 outputs; expected 1$"),
        (one_node("LRN", {"x": [[1, 1, 4, 4]]}, {}), r"lacks the attribute 'size'$"),
        (one_node("Concat", {"x": [[2]]}, {}), r"lacks the attribute 'axis'$"),
        (one_node("Softmax", {"x": [[2]]}, {}, axis=1.0), r"has the attribute 'axis' of type float; expected is int$"),
        (one_node("Conv", {"x": [[1, 1, 4, 4]], "w": [[1, 1, 3, 3]]}, {}, pads="SAME"), r"'pads' of type string; expected is ints$"),
        (with_attribute(one_node("Softmax", {"x": [[2]]}, {}, axis=0), "axis", 0), r"has an attribute twice$"),
        (one_node("ConstantOfShape", {"x": [[2], I64]}, {}, value=3.0), r"has the attribute 'value' of type float; expected is tensor$"),
        (one_node("Sqrt", {"x": [[2], I64]}, {}), r"node 'it' \(Sqrt\) does not take elements of type i64 as 'X', as which it is given 'x'$"),
        (one_node("Add", {"x": [[2]], "y": [[2], I64]}, {}), r"takes inputs of one type, it is given 'x' of f32 and 'y' of i64$"),
        (one_node("Concat", {"x": [[2]], "y": [[2], I64]}, {}, axis=0), r"takes inputs of one type"),
        (one_node("Gather", {"x": [[2]], "y": [[2]]}, {}), r"does not take elements of type f32 as 'indices'"),
        (one_node("Reshape", {"x": [[2]]}, {"s": np.float32([2])}), r"does not take elements of type f32 as 'shape'"),
        (one_node("Where", {"c": [[2]], "x": [[2]], "y": [[2]]}, {}), r"does not take elements of type f32 as 'condition'"),
        (one_node("Nothing", {"x": [[2]]}, {}), r"is no operator of opset 21"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.graph.node[0].op_type,
)
def test_what_is_not_as_declared_is_named(model, sentence):
    import re

    assert re.search(sentence, refusal(model))


def test_attributes_nobody_knows_are_passed_over():
    model = with_attribute(one_node("Relu", {"x": [[2]]}, {}), "mode", "fast")
    assert [layer.kind for layer in prepare(model).layers] == ["elementwise"]


def test_inputs_that_may_differ_are_not_held_to_one_type():
    model = one_node("OneHot", {"x": [[2], I64]}, {"depth": np.float32(3), "values": np.float32([0, 1])})
    assert prepare(model).outputs == ("y0",)
    loop = one_node("If", {"c": [[], onnx.TensorProto.BOOL]}, {}, then_branch=branch(1.0), else_branch=branch(2.0))
    assert prepare(loop).outputs == ("y0",)


def branch(value):
    constant = oh.make_node("Constant", [], ["v"], value=onh.from_array(np.float32(value)))
    return oh.make_graph([constant], "b", [], [oh.make_tensor_value_info("v", F, [])])


def test_attributes_nobody_knows_do_not_reach_the_host():
    model = with_attribute(one_node("StringNormalizer", {"x": [[2], onnx.TensorProto.STRING]}, {}), "mode", "fast")
    node = load(model).graph.node(0)
    assert list(node.attributes) == []


def test_sizes_of_zero_beside_symbols_stop_no_pass():
    nodes = [oh.make_node("Reshape", ["x", "s"], ["r"]), oh.make_node("Add", ["r", "r"], ["a"]), oh.make_node("Relu", ["a"], ["y"])]
    graph = oh.make_graph(nodes, "g", [oh.make_tensor_value_info("x", F, ["n", 0, 4])], [onnx.ValueInfoProto(name="y")],
                          [onh.from_array(np.array([-1, 4]), "s")])
    assert prepare(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)).outputs == ("y",)
