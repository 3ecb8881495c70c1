"""Models with values that are no numeric tensors of known rank: they run as a whole on the host, and say so."""

import logging
import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_optional_type_proto,
    make_sequence_type_proto,
    make_tensor_sequence_value_info,
    make_tensor_type_proto,
    make_tensor_value_info,
    make_value_info,
)

import sartor
from sartor.cli.feeds import random_array
from sartor.compat.onnxruntime import InferenceSession
from sartor.errors import FeedError, ModelError, OptionError, ProgramError, SartorError, UnsupportedError

F32, I64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL


def model(nodes, inputs, outputs, opset=18, **more):
    domains = [make_opsetid("", opset), make_opsetid("ai.onnx.ml", 3)]
    return make_model(make_graph(nodes, "values", inputs, outputs, **more), opset_imports=domains, ir_version=8)


def tensor(name, kind, shape):
    return make_tensor_value_info(name, kind, shape)


def appended():
    """A sequence and a tensor more, and all of them as one tensor."""
    nodes = [
        make_node("SequenceInsert", ["s", "x"], ["t"], name="insert"),
        make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    inputs = [make_tensor_sequence_value_info("s", F32, None), tensor("x", F32, ["n", 3])]
    return model(nodes, inputs, [make_tensor_sequence_value_info("t", F32, None), tensor("y", F32, ["m", 3])])


def rows(count, value):
    return np.full((count, 3), value, np.float32)


@pytest.fixture(scope="module")
def program():
    return sartor.compile(appended())


def check(session):
    found = session.run({"s": [rows(1, 1), rows(2, 2)], "x": rows(3, 3)})
    assert list(found) == ["t", "y"]
    assert [t.shape for t in found["t"]] == [(1, 3), (2, 3), (3, 3)]
    np.testing.assert_array_equal(found["y"], np.concatenate([rows(1, 1), rows(2, 2), rows(3, 3)]))


def test_sequences_go_in_and_come_out(program):
    given = [rows(1, 1)]
    session = sartor.Session(program)
    check(session)
    session.run({"s": given, "x": rows(1, 2)})
    assert len(given) == 1  # what came in stays as it was


def test_every_operator_is_a_fallback(program):
    assert program.fallbacks == ("insert (SequenceInsert)", "ConcatFromSequence_1 (ConcatFromSequence)")
    assert str(program.inputs["s"]) == "seq(tensor(float))"
    assert str(program.inputs["x"]) == "f32[n, 3]"
    assert "seq(tensor(float))" in repr(program)


def test_compiling_says_why(caplog):
    with caplog.at_level(logging.WARNING, "sartor"):
        sartor.compile(appended())
    assert "runs as a whole on the host: the input 's' is no tensor" in caplog.text


def test_program_files_hold_the_model(program, tmp_path):
    path = tmp_path / "values.sartor"
    program.save(path)
    loaded = sartor.Program.load(path)
    assert (loaded.tail, loaded.fallbacks, loaded.inputs, loaded.outputs) == (
        program.tail, program.fallbacks, program.inputs, program.outputs)
    check(sartor.Session(loaded))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ProgramError, match="damaged"):
        sartor.Program.load(path)


def test_threads_share_a_session(program):
    session, failures = sartor.Session(program), []

    def work(value):
        for _ in range(20):
            found = session.run({"s": [rows(1, value)], "x": rows(1, value)})["y"]
            if not (found == value).all():
                failures.append(value)

    threads = [threading.Thread(target=work, args=(v,)) for v in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"x": rows(1, 1)}, "the input s is missing; expected seq"),
        ({"s": [], "x": rows(1, 1), "z": 1}, "no input z"),
        ({"s": rows(1, 1), "x": rows(1, 1)}, "the input s is a ndarray; expected seq"),
        ({"s": [], "x": [1.0]}, "the input x is a list; expected an array"),
        ({"s": [], "x": np.zeros((1, 3))}, "elements of type float64; expected f32"),
        ({"s": [], "x": np.zeros((1, 4), np.float32)}, "shape .1, 4.; expected f32"),
        ({"s": [], "x": np.zeros(3, np.float32)}, "shape .3.; expected f32"),
        ([1], "as a mapping"),
    ],
)
def test_wrong_inputs_are_refused(program, feeds, words):
    with pytest.raises(FeedError, match=words):
        sartor.Session(program).run(feeds)


def test_what_fails_in_the_model_is_told_in_one_sentence(program):
    with pytest.raises(SartorError, match="the model, which runs on the host, failed") as caught:
        sartor.Session(program).run({"s": [np.zeros((1, 7), np.float32)], "x": rows(1, 1)})
    assert "\n" not in str(caught.value)


def test_arrays_for_outputs(program):
    session, y = sartor.Session(program), rows(2, 0)
    found = session.run({"s": [rows(1, 5)], "x": rows(1, 5)}, out={"y": y})
    assert found["y"] is y
    assert (y == 5).all()
    with pytest.raises(FeedError, match=r"has the shape .2, 3.; expected .3, 3."):
        session.run({"s": [rows(2, 5)], "x": rows(1, 5)}, out={"y": y})
    with pytest.raises(FeedError, match="output t is a list"):
        session.run({"s": [rows(1, 5)], "x": rows(1, 5)}, out={"t": y})
    with pytest.raises(FeedError, match="no output q"):
        session.run({"s": [rows(1, 5)], "x": rows(1, 5)}, out={"q": y})


def test_plans_and_profiles_show_the_nodes_on_the_host(program):
    session = sartor.Session(program)
    names = [layer.name for layer in program.layers]
    plan = session.plan({"x": (1, 3)})
    assert [(task.layer, task.host) for task in plan.tasks] == [(name, True) for name in names]
    with pytest.raises(FeedError, match="the shape of the input x is missing"):
        session.plan({})
    seconds = session.profile({"s": [rows(1, 1)], "x": rows(1, 2)})
    assert list(seconds) == names
    assert all(s > 0 for s in seconds.values())
    session.close()
    with pytest.raises(SartorError, match="closed"):
        session.run({"s": [], "x": rows(1, 1)})


def test_a_head_that_waits_for_the_host_itself_runs_in_kernels():
    nodes = [make_node("Relu", ["x"], ["h"], name="relu"), make_node("RandomUniformLike", ["h"], ["drawn"], name="draw", seed=1.0),
             make_node("Neg", ["h"], ["n"], name="neg"), make_node("SequenceConstruct", ["n", "drawn"], ["t"], name="pair")]
    proto = model(nodes, [tensor("x", F32, ["n", 3])], [make_tensor_sequence_value_info("t", F32, None)])
    program = sartor.compile(proto)
    assert program.fallbacks == ("draw (RandomUniformLike)", "pair (SequenceConstruct)")
    session = sartor.Session(program)
    first, second = session.run({"x": rows(2, 1.5)})["t"]
    np.testing.assert_array_equal(first, rows(2, -1.5))
    assert second.shape == (2, 3)
    assert [task.layer for task in session.plan({"x": (2, 3)}).tasks if task.host] == ["draw", "pair"]
    assert {"draw", "pair"} < set(session.profile({"x": rows(2, 1.5)}))


def test_an_optional_is_what_it_holds():
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["":18]> g (bool c, float[n, 3] x) => (optional(seq(float[n, 3])) o, bool there) {
        o = If (c) < then_branch = t () => (optional(seq(float[n, 3])) a) { s = SequenceConstruct(x) a = Optional(s) },
                     else_branch = e () => (optional(seq(float[n, 3])) b) { b = Optional <type: type_proto = seq(float[n, 3])> () }>
        there = OptionalHasElement(o) }""")
    session = sartor.Session(sartor.compile(proto))
    found = session.run({"c": np.array(True), "x": rows(2, 1.5)})
    assert found["there"]
    (array,) = found["o"]
    np.testing.assert_array_equal(array, rows(2, 1.5))


def test_strings():
    nodes = [make_node("StringConcat", ["a", "b"], ["c"]), make_node("Equal", ["a", "b"], ["same"])]
    words = [tensor(name, STRING, ["n"]) for name in "abc"]
    session = sartor.Session(sartor.compile(model(nodes, words[:2], [words[2], tensor("same", BOOL, ["n"])], opset=20)))
    found = session.run({"a": np.array(["x", "y"], object), "b": np.array(["x", "ž"], object)})
    assert found["c"].tolist() == ["xx", "yž"]
    assert found["same"].tolist() == [True, False]
    with pytest.raises(FeedError, match="expected string"):
        session.run({"a": np.zeros(2), "b": np.array(["x", "ž"], object)})


@pytest.mark.parametrize("given", [None, np.arange(3, dtype=np.float32)])
def test_optionals(given):
    optional = make_value_info("o", make_optional_type_proto(make_tensor_type_proto(F32, [3])))
    nodes = [make_node("OptionalHasElement", ["o"], ["there"])]
    session = sartor.Session(sartor.compile(model(nodes, [optional], [tensor("there", BOOL, [])])))
    assert bool(session.run({"o": given})["there"]) is (given is not None)


def test_optional_sequences_come_out():
    kind = make_optional_type_proto(make_sequence_type_proto(make_tensor_type_proto(F32, [3])))
    value = make_value_info("o", kind)
    made = make_value_info("p", kind)
    session = sartor.Session(sartor.compile(model([make_node("Identity", ["o"], ["p"])], [value], [made])))
    (found,) = session.run({"o": [np.ones(3, np.float32)]})["p"]
    assert (found == 1).all()


def test_labels_from_words():
    node = make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[4, 5],
                     default_int64=-1)
    session = sartor.Session(sartor.compile(model([node], [tensor("x", STRING, ["n"])], [tensor("y", I64, ["n"])])))
    assert session.run({"x": np.array(["b", "a", "q"], object)})["y"].tolist() == [5, 4, -1]


def test_rank_that_depends_on_data():
    nodes = [make_node("Reshape", ["x", "shape"], ["y"]), make_node("Neg", ["y"], ["z"])]
    values = [tensor("x", F32, ["n"]), tensor("shape", I64, ["r"])]
    program = sartor.compile(model(nodes, values, [make_tensor_value_info("z", F32, None)]))
    assert str(program.outputs["z"]) == "tensor(float)"
    session = sartor.Session(program)
    x = np.arange(6, dtype=np.float32)
    for shape in ((6,), (2, 3), (1, 3, 2)):
        np.testing.assert_array_equal(session.run({"x": x, "shape": np.array(shape)})["z"], -x.reshape(shape))


def test_shapes_of_inputs():
    program = sartor.compile(appended(), shapes={"x": (2, 3)})
    assert program.inputs["x"].shape == (2, 3)
    with pytest.raises(FeedError, match=r"expected f32.2, 3."):
        sartor.Session(program).run({"s": [], "x": rows(1, 1)})
    with pytest.raises(OptionError, match="shapes name the input 'q'"):
        sartor.compile(appended(), shapes={"q": (1,)})
    with pytest.raises(OptionError, match="'s', which is seq"):
        sartor.compile(appended(), shapes={"s": (1,)})
    with pytest.raises(OptionError, match="1 sizes, it has 2 dimensions"):
        sartor.compile(appended(), shapes={"x": (1,)})


def test_weights_in_other_files(tmp_path):
    proto = appended()
    proto.graph.node.insert(0, make_node("Add", ["raw", "w"], ["x"]))
    proto.graph.input[1].name = "raw"
    weights = onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    proto.graph.initializer.append(weights)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    program = sartor.compile(tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    found = sartor.Session(program).run({"s": [rows(1, 1)], "raw": rows(1, 1)})["y"]
    np.testing.assert_array_equal(found, [[1, 1, 1], [1, 2, 3]])


def test_what_the_host_cannot_run_is_refused():
    body = make_graph([make_node("Identity", ["a"], ["b"])], "body", [tensor("a", STRING, [2])], [tensor("b", STRING, [2])])
    node = make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    broken = model([node], [tensor("x", STRING, [2, 2])], [tensor("y", STRING, [2, 2])])
    with pytest.raises(UnsupportedError, match="type string"):
        sartor.compile(broken)


def test_outputs_made_by_nothing():
    broken = appended()
    broken.graph.output[0].name = "q"
    with pytest.raises(ModelError, match="'q'"):
        sartor.compile(broken)


def test_layers_before_such_values_stay_native(tmp_path):
    proto = appended()
    proto.graph.input[1].name = "raw"
    proto.graph.node.insert(0, make_node("MatMul", ["raw", "w"], ["product"], name="product"))
    proto.graph.node.insert(1, make_node("Relu", ["product"], ["x"], name="relu"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32) * -2, "w"))
    proto.graph.output.append(tensor("x", F32, ["n", 3]))
    program = sartor.compile(proto)
    assert program.fallbacks == ("insert (SequenceInsert)", "ConcatFromSequence_1 (ConcatFromSequence)")
    path = tmp_path / "split.sartor"
    program.save(path)
    for each in (program, sartor.Program.load(path)):
        session = sartor.Session(each)
        for count in (1, 4):
            found = session.run({"s": [rows(1, 9)], "raw": rows(count, -1)})
            assert list(found) == ["t", "y", "x"]
            np.testing.assert_array_equal(found["x"], rows(count, 2))
            np.testing.assert_array_equal(found["y"], np.concatenate([rows(1, 9), rows(count, 2)]))


def test_subgraphs_of_the_tail_read_what_the_head_made():
    then = make_graph([make_node("SequenceConstruct", ["a", "a"], ["p"])], "then", [], [make_tensor_sequence_value_info("p", F32, None)])
    other = make_graph([make_node("SequenceConstruct", ["a"], ["q"])], "else", [], [make_tensor_sequence_value_info("q", F32, None)])
    nodes = [
        make_node("Neg", ["x"], ["a"]),
        make_node("If", ["c"], ["s"], then_branch=then, else_branch=other),
        make_node("SequenceLength", ["s"], ["n"]),
    ]
    outputs = [make_tensor_sequence_value_info("s", F32, None), tensor("n", I64, [])]
    program = sartor.compile(model(nodes, [tensor("x", F32, [3]), tensor("c", BOOL, [])], outputs))
    assert [f.split()[1] for f in program.fallbacks] == ["(If)", "(SequenceLength)"]
    session = sartor.Session(program)
    for condition, count in ((True, 2), (False, 1)):
        found = session.run({"x": np.ones(3, np.float32), "c": np.array(condition)})
        assert found["n"] == count
        assert len(found["s"]) == count
        assert all((a == -1).all() for a in found["s"])


def test_tuning_has_nothing_to_tune():
    program = sartor.tune(appended(), budget=1)
    assert program.tail
    check(sartor.Session(program))


def test_the_face_of_onnxruntime():
    session = InferenceSession(appended().SerializeToString())
    assert [i.type for i in session.get_inputs()] == ["seq(tensor(float))", "tensor(float)"]
    (found,) = session.run(["y"], {"s": [rows(1, 1)], "x": rows(1, 2)})
    assert found.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_the_command_line_cannot_make_such_inputs():
    with pytest.raises(OptionError, match="seq"):
        random_array(sartor.compile(appended()).inputs["s"], {}, 0)


def test_plain_models_are_not_touched():
    nodes = [make_node("Relu", ["x"], ["y"])]
    program = sartor.compile(model(nodes, [tensor("x", F32, [2])], [tensor("y", F32, [2])]))
    assert program.tail is None
    assert not program.fallbacks
