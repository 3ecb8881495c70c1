"""Model files damaged at random: each still means something, or one sentence says what is wrong."""

import re
import time

import numpy as np
import pytest
from tests.unit.damage import byte_damage, explode, model_damage, nest, proto_damage, recurse

from sartor.compiler import prepare
from sartor.errors import SartorError

onnx = pytest.importorskip("onnx")
oh, onh, F = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's and onnx's about numbers the damage made absurd

LIMIT = 10.0
"""Seconds of the process's own time, of which a busy machine lets a step take a few times as much as an idle one; no step takes more
than a second there, and what explodes takes minutes."""


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


DAMAGES = [byte_damage, proto_damage, model_damage]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_ends_in_a_meaning_or_a_sentence(damage):
    assert 30 < len(attempts(damage, range(200))) < 200


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_much_damage_ends_in_a_meaning_or_a_sentence(damage):
    assert attempts(damage, range(1000, 6000))


def refusal(model):
    """The sentence a model is refused with, within the time and without much memory."""
    start = time.process_time()
    with pytest.raises(SartorError) as caught:
        prepare(model)
    assert time.process_time() - start < LIMIT
    assert "\n" not in str(caught.value)
    return str(caught.value)


def one_node(operator, inputs, constants, outputs=1, **attributes):
    """A model of one node; `inputs` are (shape) or (shape, type) by name, `constants` contents by name."""
    names = [*inputs, *constants]
    values = [oh.make_tensor_value_info(n, *(s[1:] or (F,)), s[0]) for n, s in inputs.items()]
    made = [f"y{i}" for i in range(outputs)]
    graph = oh.make_graph([oh.make_node(operator, names, made, name="it", **attributes)], "g", values,
                          [onnx.ValueInfoProto(name=n) for n in made], [onh.from_array(np.array(c), n) for n, c in constants.items()])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (recurse, "the function '[fh]' of the model calls itself, directly or through others"),
        (explode, r"unfolds into \d+ nodes once its functions stand where they are called; up to \d+ are possible"),
    ],
)
def test_functions_without_end(change, sentence):
    for seed in range(4):
        model = small_model()
        change(model, np.random.default_rng(seed))
        assert re.search(sentence, refusal(model))


def test_graphs_within_graphs():
    model, random = small_model(), np.random.default_rng(0)
    for _ in range(31):
        nest(model, random, 1)
    assert "graphs within graphs more than 30 deep" in refusal(model)


@pytest.mark.parametrize(
    "model",
    [
        one_node("ConstantOfShape", {}, {"s": [1 << 62]}),
        one_node("ConstantOfShape", {}, {"s": [1 << 32, 1 << 32]}),
        one_node("ConstantOfShape", {}, {"s": [-1]}),
        one_node("Expand", {"x": [[1]]}, {"s": [1 << 31, 1 << 31]}),
        one_node("Tile", {"x": [[2]]}, {"s": [1 << 62]}),
        one_node("Range", {}, {"a": 0, "b": 1 << 62, "c": 1}),
        one_node("Pad", {"x": [[2]]}, {"s": [1 << 61, 1 << 61]}),
        one_node("Resize", {"x": [[1, 1, 2, 2]]}, {"": [], "s": np.float32([1, 1, 1e15, 1e15])}),
        one_node("Conv", {"x": [[1, 1, 4, 4]], "w": [[1, 1, 1, 1]]}, {}, pads=[1 << 62] * 4),
        one_node("MaxPool", {"x": [[1, 1, 4, 4]]}, {}, kernel_shape=[1 << 62, 1]),
        one_node("OneHot", {"x": [[2], onnx.TensorProto.INT64]}, {"d": 1 << 50, "v": np.float32([0, 1])}),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_values_beyond_all_memory_are_refused(model):
    assert refusal(model)
