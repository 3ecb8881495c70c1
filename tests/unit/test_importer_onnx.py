"""Reading ONNX files: every way a model may hold its weights, and every way a file may be broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

import sartor
from sartor.errors import ModelError, UnsupportedError
from sartor.graph.reference import evaluate_graph
from sartor.importers.onnx import load
from sartor.ops.lowering import lower

F = onnx.TensorProto.FLOAT
X = oh.make_tensor_value_info("x", F, [2, 3])
Y = oh.make_tensor_value_info("y", F, [2, 3])
W = np.arange(3, dtype=np.float32)


def model(nodes, inputs=(X,), outputs=(Y,), initializers=(), opset=17, **kwargs):
    graph = oh.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], **kwargs)


def add_weights():
    return model([oh.make_node("Add", ["x", "w"], ["y"])], initializers=[onh.from_array(W, "w")])


def run(source):
    x = np.ones((2, 3), np.float32)
    return evaluate_graph(lower(load(source)), {"x": x})["y"]


def test_path_bytes_and_proto_give_the_same(tmp_path):
    onnx.save(add_weights(), tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", str(tmp_path / "m.onnx"), (tmp_path / "m.onnx").read_bytes(), add_weights()):
        np.testing.assert_array_equal(run(source), np.ones((2, 3)) + W)


def test_the_given_proto_is_not_changed():
    proto = add_weights()
    before = proto.SerializeToString()
    load(proto)
    assert proto.SerializeToString() == before


def external(tmp_path, location="weights.bin", length=None):
    proto = add_weights()
    tensor = proto.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "4", "length": str(length or len(data))}.items():
        tensor.external_data.add(key=key, value=value)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    (folder / "weights.bin").write_bytes(b"xxxx" + data)
    return folder / "m.onnx"


def test_external_data_is_read_from_beside_the_model(tmp_path):
    np.testing.assert_array_equal(run(external(tmp_path)), np.ones((2, 3)) + W)


def test_external_data_must_exist(tmp_path):
    path = external(tmp_path)
    (path.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"needs the external data file .*weights\.bin.*does not exist"):
        load(path)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "inside/../../secret.bin", "link.bin", ""])
def test_external_data_outside_of_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    path = external(tmp_path, location)
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="outside of the model's folder"):
        load(path)


def test_external_data_cut_short(tmp_path):
    path = external(tmp_path)
    (path.parent / "weights.bin").write_bytes(b"xxxxxxxx")
    with pytest.raises(ModelError, match="has only 8 bytes"):
        load(path)


def test_external_data_shorter_than_its_shape(tmp_path):
    with pytest.raises(ModelError, match="should hold 12 bytes"):
        load(external(tmp_path, length=8))


def test_bytes_cannot_have_external_data(tmp_path):
    with pytest.raises(ModelError, match="give the model's path"):
        load(external(tmp_path).read_bytes())


@pytest.mark.parametrize("attribute", [
    {"value": onh.from_array(W, "w")}, {"value_floats": [0.0, 1.0, 2.0]},
    {"sparse_value": oh.make_sparse_tensor(onh.from_array(W[1:], "v"), onh.from_array(np.array([1, 2]), "i"), [3])},
])
def test_weights_in_constant_nodes(attribute):
    nodes = [oh.make_node("Constant", [], ["w"], **attribute), oh.make_node("Add", ["x", "w"], ["y"])]
    np.testing.assert_array_equal(run(model(nodes)), np.ones((2, 3)) + W)


@pytest.mark.parametrize(("attribute", "value"), [({"value_float": 2.5}, 2.5), ({"value_int": 3}, 3), ({"value_ints": [4]}, 4)])
def test_scalar_constant_nodes(attribute, value):
    nodes = [oh.make_node("Constant", [], ["c"], **attribute), oh.make_node("Cast", ["c"], ["f"], to=F),
             oh.make_node("Mul", ["x", "f"], ["y"])]
    np.testing.assert_array_equal(run(model(nodes)), np.full((2, 3), value))


def test_initializers_that_are_inputs_too_are_constants():
    proto = add_weights()
    proto.graph.input.append(oh.make_tensor_value_info("w", F, [3]))
    proto.ir_version = 3
    assert lower(load(proto)).inputs == ("x",)
    np.testing.assert_array_equal(run(proto), np.ones((2, 3)) + W)


def test_sparse_initializers():
    proto = model([oh.make_node("Add", ["x", "w"], ["y"])])
    sparse = oh.make_sparse_tensor(onh.from_array(W[1:], "w"), onh.from_array(np.array([[1], [2]]), "i"), [3])
    proto.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(run(proto), np.ones((2, 3)) + W)


@pytest.mark.parametrize("version", [17, 18])
def test_functions_are_inlined(version):
    """Also where the function is written in another opset than the model."""
    inner = [oh.make_node("Mul", ["a", "b"], ["t"]), oh.make_node("Add", ["t", "b"], ["c"])]
    function = oh.make_function("own", "F", ["a", "b"], ["c"], inner, [oh.make_opsetid("", version)])
    proto = model([oh.make_node("F", ["x", "w"], ["t"], domain="own"), oh.make_node("F", ["t", "w"], ["y"], domain="own")],
                  initializers=[onh.from_array(W, "w")], functions=[function])
    proto.opset_import.append(oh.make_opsetid("own", 1))
    np.testing.assert_array_equal(run(proto), (W + W) * W + W + np.zeros((2, 1)))


def test_nodes_may_come_in_any_order():
    nodes = [oh.make_node("Neg", ["t"], ["y"]), oh.make_node("Add", ["x", "x"], ["t"])]
    np.testing.assert_array_equal(run(model(nodes)), np.full((2, 3), -2))


# --- broken files ----------------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "none.onnx")


def test_folder(tmp_path):
    with pytest.raises(ModelError, match="is a directory"):
        load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"this is a text file about networks\n" * 20, b"\x89PNG\r\n\x1a\n" + bytes(100),
                                  bytes(50)])
def test_not_onnx(tmp_path, data):
    path: Path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"not an ONNX model|is empty"):
        load(path)


def test_cut_short_anywhere():
    data = add_weights().SerializeToString()
    for length in range(len(data)):
        with pytest.raises((ModelError, UnsupportedError)):
            lower(load(data[:length]))


def test_weights_that_do_not_fit_their_shape():
    proto = add_weights()
    proto.graph.initializer[0].dims[0] = 1000
    with pytest.raises(ModelError, match="should hold 4000 bytes"):
        load(proto)
    proto.graph.initializer[0].dims[0] = -3
    with pytest.raises(ModelError, match="negative size"):
        load(proto)
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].dims[0] = 3
    with pytest.raises(ModelError, match="should hold 3 elements"):
        load(proto)


def test_cycle():
    nodes = [oh.make_node("Add", ["x", "b"], ["a"]), oh.make_node("Neg", ["a"], ["b"]), oh.make_node("Neg", ["a"], ["y"])]
    with pytest.raises(ModelError, match="cycle"):
        load(model(nodes))


def test_undefined_and_twice_defined_values():
    with pytest.raises(ModelError, match=r"needs the value 'z', which nothing makes"):
        load(model([oh.make_node("Add", ["x", "z"], ["y"])]))
    with pytest.raises(ModelError, match=r"output 'y' .* is made by nothing"):
        load(model([oh.make_node("Neg", ["x"], ["z"])]))
    with pytest.raises(ModelError, match="defined twice"):
        load(model([oh.make_node("Neg", ["x"], ["y"]), oh.make_node("Abs", ["x"], ["y"])]))


def test_unknown_operators_domains_and_opsets():
    with pytest.raises(ModelError, match="Nonsense"):
        load(model([oh.make_node("Nonsense", ["x"], ["y"])]))
    proto = model([oh.make_node("Magic", ["x"], ["y"], domain="com.example")])
    proto.opset_import.append(oh.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedError, match=r"Magic.*com\.example"):
        load(proto)
    with pytest.raises(UnsupportedError, match="needs opset 9999"):
        load(model([oh.make_node("Neg", ["x"], ["y"])], opset=9999))


def test_attributes_are_held_to_the_operator():
    load(model([oh.make_node("Neg", ["x"], ["y"], axis=3)]))  # which means nothing to it
    with pytest.raises(ModelError, match="has 1 inputs; expected 2"):
        load(model([oh.make_node("Add", ["x"], ["y"])]))


def test_damaged_bytes_end_in_our_own_errors():
    """Whatever byte is changed: the model still means something, or one of our sentences says what is wrong."""
    nodes = [oh.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1], name="conv"), oh.make_node("Reshape", ["c", "s"], ["r"]),
             oh.make_node("Softmax", ["r"], ["y"], axis=-1)]
    weights = [onh.from_array(np.ones((4, 2, 3), np.float32), "k"), onh.from_array(np.array([0, -1]), "s")]
    data = model(nodes, [oh.make_tensor_value_info("x", F, ["n", 2, 8])], [oh.make_tensor_value_info("y", F, None)],
                 weights).SerializeToString()
    random = np.random.default_rng(0)
    outcomes = []
    for _ in range(300):
        damaged = bytearray(data)
        damaged[random.integers(len(data))] = random.integers(256)
        try:
            lower(load(bytes(damaged)))
        except (ModelError, UnsupportedError) as error:
            outcomes.append(str(error))
    assert 50 < len(outcomes) < 300


def test_the_default_domain_may_be_spelled_out():
    both = model([oh.make_node("Add", ["x", "w"], ["y"], domain="ai.onnx")], initializers=[onh.from_array(W, "w")])
    np.testing.assert_array_equal(run(both), np.ones((2, 3)) + W)
    both.opset_import[0].domain = "ai.onnx"
    np.testing.assert_array_equal(run(both), np.ones((2, 3)) + W)


@pytest.mark.parametrize("outputs", [["x"], ["y", "x"], ["x", "y", "x"]])
@pytest.mark.parametrize("shape", [[2, 3], ["b", 3]])
def test_an_input_may_be_an_output(outputs, shape):
    values = {name: oh.make_tensor_value_info(name, F, shape) for name in "xy"}
    source = model([oh.make_node("Neg", ["x"], ["y"])], [values["x"]], [values[name] for name in outputs])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = sartor.Session(sartor.compile(source)).run({"x": x})
    for name in outputs:
        np.testing.assert_array_equal(made[name], x if name == "x" else -x)


@pytest.mark.parametrize("name", ["a/b/c:0", "with space", "ünï-数", "x" * 10_000, "quote\"'\\n", "\n\t", "{0}", "%s", "..", "a\x00b"])
def test_names_are_any_text(name):
    values = [oh.make_tensor_value_info(name + end, F, [name, 3]) for end in ("", "z")]
    source = model([oh.make_node("Add", [name, name + "w"], [name + "y"], name=name), oh.make_node("Relu", [name + "y"], [name + "z"], name=name)],
                   values[:1], values[1:], [onh.from_array(W, name + "w")])
    made = sartor.Session(sartor.compile(source)).run({name: np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(made[name + "z"], np.ones((2, 3)) + W)


def test_functions_of_an_older_opset_with_attributes_inside_others():
    inner = oh.make_function("me", "Inner", ["a"], ["b"], [oh.make_node("LeakyRelu", ["a"], ["t"]), oh.make_node("Add", ["t", "t"], ["b"])],
                             [oh.make_opsetid("", 18)], ["alpha"])
    inner.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    outer = oh.make_function("me", "Outer", ["a"], ["b"], [oh.make_node("Inner", ["a"], ["t"], domain="me", alpha=0.5),
                                                          oh.make_node("Inner", ["t"], ["b"], domain="me", alpha=0.25)],
                             [oh.make_opsetid("", 18), oh.make_opsetid("me", 1)])
    old = oh.make_function("me", "Old", ["a"], ["b"], [oh.make_node("Softmax", ["a"], ["b"], axis=0)], [oh.make_opsetid("", 11)])
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)

    def leaky(v, alpha):
        return 2 * np.where(v < 0, alpha * v, v)

    for op, wanted in (("Outer", leaky(leaky(x, 0.5), 0.25)), ("Old", np.exp(x) / np.exp(x).sum())):
        graph = oh.make_graph([oh.make_node(op, ["x"], ["y"], domain="me")], "g", [X], [Y])
        source = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18), oh.make_opsetid("me", 1)], functions=[outer, inner, old])
        np.testing.assert_allclose(evaluate_graph(lower(load(source)), {"x": x})["y"], wanted, rtol=1e-6)


def test_defaults_of_a_functions_attributes():
    leaky = oh.make_function("me", "Leaky", ["a"], ["b"], [oh.make_node("LeakyRelu", ["a"], ["b"])], [oh.make_opsetid("", 18)], [],
                             attribute_protos=[oh.make_attribute("alpha", 0.25)])
    leaky.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    for given, alpha in (({}, 0.25), ({"alpha": 0.5}, 0.5)):
        graph = oh.make_graph([oh.make_node("Leaky", ["x"], ["y"], domain="me", **given)], "g", [X], [Y])
        source = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18), oh.make_opsetid("me", 1)], functions=[leaky])
        np.testing.assert_array_equal(evaluate_graph(lower(load(source)), {"x": x})["y"], np.where(x < 0, alpha * x, x))
