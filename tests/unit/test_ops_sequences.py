"""Sequences whose making the model spells out: they leave no trace in the graph."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from tests.unit.ops_harness import kinds, lower_model

import sartor
from sartor.errors import ModelError
from sartor.graph.reference import evaluate_graph

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def model(nodes, outputs=("y",), **constants):
    weights = [onh.from_array(np.asarray(v), k) for k, v in constants.items()]
    results = [oh.make_empty_tensor_value_info(v) for v in outputs]
    graph = oh.make_graph([oh.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes], "g",
                          [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["b", 3, 4])], results, weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)])


CASES = {
    "construct and at": ([("Neg", ["x"], ["n"]), ("SequenceConstruct", ["x", "n"], ["s"]), ("SequenceAt", ["s", "k"], ["y"])], {"k": -1}, -X),
    "insert": ([("SequenceEmpty", [], ["e"]), ("SequenceInsert", ["e", "x"], ["s"]), ("Neg", ["x"], ["n"]), ("SequenceInsert", ["s", "n", "k"], ["t"]),
                ("ConcatFromSequence", ["t"], ["y"], {"axis": 1})], {"k": 0}, np.concatenate([-X, X], 1)),
    "erase": ([("Neg", ["x"], ["n"]), ("SequenceConstruct", ["x", "n"], ["s"]), ("SequenceErase", ["s", "k"], ["t"]),
               ("ConcatFromSequence", ["t"], ["y"], {"axis": 0})], {"k": 0}, -X),
    "stack": ([("SequenceConstruct", ["x", "x"], ["s"]), ("ConcatFromSequence", ["s"], ["y"], {"axis": -1, "new_axis": 1})], {}, np.stack([X, X], -1)),
    "length": ([("SequenceConstruct", ["x", "x"], ["s"]), ("Identity", ["s"], ["t"]), ("SequenceLength", ["t"], ["n"]), ("Cast", ["n"], ["f"], {"to": 1}),
                ("Mul", ["x", "f"], ["y"])], {}, X * 2),
    "split into sizes": ([("SplitToSequence", ["x", "k"], ["s"], {"axis": 2}), ("SequenceAt", ["s", "one"], ["y"])], {"k": [1, 3], "one": 1}, X[..., 1:]),
    "split into pieces": ([("SplitToSequence", ["x", "k"], ["s"], {"axis": 2}), ("SequenceAt", ["s", "one"], ["y"])], {"k": 3, "one": 1}, X[..., 3:]),
    "unbind": ([("SplitToSequence", ["x"], ["s"], {"axis": 1, "keepdims": 0}), ("SequenceAt", ["s", "one"], ["y"])], {"one": 1}, X[:, 1]),
    "optional": ([("OptionalGetElement", ["x"], ["e"]), ("OptionalHasElement", ["x"], ["h"]), ("Where", ["h", "e", "z"], ["y"])], {"z": np.float32(0)}, X),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sequence(name):
    nodes, constants, wanted = CASES[name]
    graph = lower_model(model(nodes, **constants))
    assert "host" not in kinds(graph)
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": X})["y"], wanted)


def test_a_sequence_that_leaves_the_model_is_made_by_the_host():
    nodes = [("Neg", ["x"], ["n"]), ("SequenceConstruct", ["x", "n"], ["s"]), ("SequenceAt", ["s", "k"], ["y"])]
    proto = model(nodes, outputs=("y",), k=1)
    proto.graph.output.append(oh.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None))
    made = sartor.Session(sartor.compile(proto)).run({"x": X})
    np.testing.assert_array_equal(made["y"], -X)
    np.testing.assert_array_equal(made["s"], [X, -X])


def test_places_outside_of_a_sequence():
    with pytest.raises(ModelError, match="has the position 2 in a sequence of 2 elements"):
        lower_model(model([("SequenceConstruct", ["x", "x"], ["s"]), ("SequenceAt", ["s", "k"], ["y"])], k=2))
