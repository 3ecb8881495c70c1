"""Graphs of thousands of nodes, one after another and side by side: they compile in seconds, not in the square of their size."""

import time

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

import sartor

pytestmark = pytest.mark.slow
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def compiled(nodes, outputs, weights=()):
    graph = oh.make_graph(nodes, "g", [oh.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, ["b", 3])],
                          [oh.make_empty_tensor_value_info(v) for v in outputs], list(weights))
    return sartor.compile(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)]), threads=1)


def chain(op, length, *others):
    return compiled([oh.make_node(op, [f"v{i}", *others], [f"v{i + 1}"]) for i in range(length)], [f"v{length}"],
                    [onh.from_array(np.full(3, 0.5, np.float32), name) for name in others])


def made(program):
    return next(iter(sartor.Session(program).run({"v0": X}).values()))


def test_a_chain_of_five_thousand():
    np.testing.assert_allclose(made(chain("Add", 5000, "w")), X + 2500, rtol=1e-5)


def test_time_grows_with_the_length_of_a_chain():
    def seconds(length):
        begin = time.process_time()
        program = chain("Softmax", length)
        took = time.process_time() - begin
        made_of = made(program)
        np.testing.assert_allclose(made_of, 1 / 3, rtol=1e-3)
        return took

    seconds(10)  # what is done once
    assert seconds(2000) < 6 * seconds(500)


@pytest.mark.parametrize("op", ["Sum", "Concat", "Max"])
def test_a_thousand_side_by_side(op):
    count = 1000
    values = [f"y{i}" for i in range(count)]
    nodes = [oh.make_node("Mul", ["v0", f"k{i}"], [v]) for i, v in enumerate(values)]
    program = compiled([*nodes, oh.make_node(op, values, ["z"], **({"axis": 1} if op == "Concat" else {}))], ["z"],
                       [onh.from_array(np.float32(i), f"k{i}") for i in range(count)])
    wanted = {"Sum": X * (count * (count - 1) // 2), "Concat": np.concatenate([X * i for i in range(count)], 1), "Max": np.maximum(X * (count - 1), 0)}
    np.testing.assert_allclose(made(program), wanted[op], rtol=1e-5)


def test_a_thousand_outputs():
    values = [f"y{i}" for i in range(1000)]
    program = compiled([oh.make_node("Mul", ["v0", f"k{i}"], [v]) for i, v in enumerate(values)], values,
                       [onh.from_array(np.float32(i), f"k{i}") for i in range(1000)])
    outputs = sartor.Session(program).run({"v0": X})
    for i, value in enumerate(values):
        np.testing.assert_array_equal(outputs[value], X * np.float32(i))
