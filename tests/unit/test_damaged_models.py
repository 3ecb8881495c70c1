"""Model files damaged at random: each still means something, or one sentence says what is wrong, within a second."""

import time

import numpy as np
import pytest

from sartor.compiler import prepare
from sartor.errors import SartorError

onnx = pytest.importorskip("onnx")
oh, onh, F = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's and onnx's about numbers the damage made absurd

LIMIT = 1.0
"""Seconds of the process's own time, so that a busy machine does not matter."""


def small_model():
    """A little of everything: a convolution, a pool, shapes followed as formulas, a branch, a host step."""
    def inner(name, value):
        constant = oh.make_node("Constant", [], [f"{name}.c"], value=onh.from_array(np.float32(value)))
        return oh.make_graph([constant], name, [], [oh.make_tensor_value_info(f"{name}.c", F, [])])

    nodes = [
        oh.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1], name="conv"),
        oh.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], name="pool"),
        oh.make_node("Shape", ["p"], ["shape"]),
        oh.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        oh.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        oh.make_node("Reshape", ["p", "target"], ["r"], name="flatten"),
        oh.make_node("Softmax", ["r"], ["s"], axis=-1),
        oh.make_node("If", ["flag"], ["f"], then_branch=inner("yes", 1), else_branch=inner("no", 2)),
        oh.make_node("Mul", ["s", "f"], ["y"]),
        oh.make_node("NonZero", ["y"], ["z"]),
    ]
    weights = [onh.from_array(np.ones((4, 2, 3, 3), np.float32), "k"), onh.from_array(np.array([0]), "zero"),
               onh.from_array(np.array([-1]), "rest"), onh.from_array(np.array(True), "flag")]
    inputs = [oh.make_tensor_value_info("x", F, ["n", 2, 8, 8])]
    outputs = [oh.make_tensor_value_info("y", F, None), oh.make_tensor_value_info("z", onnx.TensorProto.INT64, None)]
    graph = oh.make_graph(nodes, "g", inputs, outputs, weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


def damaged_bytes(data, random):
    """Some bytes changed, left out, doubled or zeroed, or the end cut off."""
    data, place = bytearray(data), int(random.integers(len(data)))
    length = int(random.integers(1, 9))
    match random.integers(5):
        case 0:
            data[place] = random.integers(256)
        case 1:
            del data[place : place + length]
        case 2:
            data[place:place] = data[place : place + length]
        case 3:
            data[place : place + length] = bytes(len(data[place : place + length]))
        case _:
            del data[place:]
    return bytes(data)


def damaged_meaning(data, random):
    """A model that is well-formed, with something in it exchanged: numbers, names, types, operators."""
    proto = onnx.ModelProto.FromString(data)
    graph = proto.graph
    node = graph.node[random.integers(len(graph.node))]
    other = graph.node[random.integers(len(graph.node))]
    number = int(random.choice([-(1 << 63), -2, -1, 0, 1, 3, 7, 1 << 31, (1 << 63) - 1]))
    match random.integers(8):
        case 0:
            node.op_type = other.op_type
        case 1 if node.input and other.output:
            node.input[random.integers(len(node.input))] = other.output[0]
        case 2:
            del node.input[int(random.integers(len(node.input) + 1)) :]
        case 3:
            for attribute in node.attribute:
                attribute.i = number
                attribute.ints[:] = [number] * len(attribute.ints)
        case 4:
            tensor = graph.initializer[random.integers(len(graph.initializer))]
            tensor.data_type = int(random.integers(25))
        case 5:
            tensor = graph.initializer[1 + random.integers(2)]
            tensor.raw_data = number.to_bytes(8, "little", signed=True)
        case 6:
            graph.input[0].type.tensor_type.shape.dim[random.integers(4)].dim_value = number
        case _:
            proto.opset_import[0].version = abs(number) % (1 << 31)
    return proto.SerializeToString()


def attempts(damage, seeds):
    """The sentences with which damaged models were refused."""
    data, sentences = small_model().SerializeToString(), []
    for seed in seeds:
        broken = damage(data, np.random.default_rng(seed))
        start = time.process_time()
        try:
            prepare(broken)
        except SartorError as error:
            assert str(error), seed
            assert "\n" not in str(error), (seed, error)
            sentences.append(str(error))
        except Exception as error:
            raise AssertionError(f"damage {seed} ends in {type(error).__name__}: {error}") from error
        assert time.process_time() - start < LIMIT, seed
    return sentences


def test_the_model_is_whole_before():
    assert prepare(small_model()).outputs == ("y", "z")


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_meaning])
def test_damage_ends_in_a_meaning_or_a_sentence(damage):
    assert 30 < len(attempts(damage, range(300))) < 300


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damaged_bytes, damaged_meaning])
def test_much_damage_ends_in_a_meaning_or_a_sentence(damage):
    assert attempts(damage, range(1000, 6000))
