"""The face like ONNX Runtime's, beside ONNX Runtime itself where that is installed."""

import numpy as np
import pytest

import sartor
from sartor.compat import onnxruntime as face
from sartor.errors import ModelError, OptionError, SartorError

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto


def make_model():
    """sum = x + y, twice = 2 sum; batches of three."""
    x, y, total, twice = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in ("x", "y", "sum", "twice"))
    two = onnx.numpy_helper.from_array(np.float32(2), "two")
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Mul", ["sum", "two"], ["twice"])]
    graph = helper.make_graph(nodes, "adder", [x, y], [total, twice], [two], doc_string="adds")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests", domain="d")
    model.model_version = 7
    helper.set_model_props(model, {"character": "a\nb"})
    return model


@pytest.fixture(scope="module")
def contents():
    return make_model().SerializeToString()


@pytest.fixture(scope="module")
def session(contents):
    return face.InferenceSession(contents, providers=["CPUExecutionProvider"])


FEEDS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones((2, 3), np.float32)}


def test_a_session_says_the_same_of_a_model_as_onnx_runtime(contents, session):
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
    for ours, real in zip(
        [*session.get_inputs(), *session.get_outputs()], [*theirs.get_inputs(), *theirs.get_outputs()], strict=True
    ):
        assert (ours.name, ours.type, ours.shape) == (real.name, real.type, real.shape)
    ours, real = session.get_modelmeta(), theirs.get_modelmeta()
    for key in ("producer_name", "graph_name", "graph_description", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(ours, key) == getattr(real, key)
    assert session.get_providers() == theirs.get_providers()
    assert [v.name for v in session.get_overridable_initializers()] == [v.name for v in theirs.get_overridable_initializers()]
    for names in (None, [], ["twice"], ["twice", "sum"]):
        for a, b in zip(session.run(names, FEEDS), theirs.run(names, FEEDS), strict=True):
            np.testing.assert_array_equal(a, b)


def test_options_have_the_attributes_that_callers_set():
    onnxruntime = pytest.importorskip("onnxruntime")
    for ours, real in ((face.SessionOptions(), onnxruntime.SessionOptions()), (face.RunOptions(), onnxruntime.RunOptions())):
        missing = [n for n in dir(real) if not n.startswith("_") and not hasattr(ours, n)]
        # Those that hand over objects of ONNX Runtime's own can have no meaning here.
        assert set(missing) <= {
            "add_external_initializers",
            "add_external_initializers_from_files_in_memory",
            "add_initializer",
            "add_provider",
            "add_provider_for_devices",
            "clear_ep_context_data_read_func",
            "set_ep_context_data_read_func",
            "has_providers",
            "set_load_cancellation_flag",
            "set_provider_selection_policy",
            "set_provider_selection_policy_delegate",
            "add_active_adapter",
            "enable_profiling",
            "profile_file_prefix",
            "sync_stream",
        }, missing
    for name in face.GraphOptimizationLevel.__members__:
        assert int(getattr(onnxruntime.GraphOptimizationLevel, name)) == face.GraphOptimizationLevel[name]


def test_the_thread_count_is_followed(contents):
    options = face.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = face.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = face.InferenceSession(contents, options)
    assert session.program.threads == 1
    assert session.get_session_options() is options
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(OptionError, match="no session configuration entry"):
        options.get_session_config_entry("session.other")


def test_the_same_model_is_compiled_once(contents, session, monkeypatch):
    monkeypatch.setattr(sartor, "compile", lambda *a, **k: pytest.fail("compiled twice"), raising=False)
    again = face.InferenceSession(contents)
    assert again.program is session.program
    np.testing.assert_array_equal(again.run(["sum"], FEEDS)[0], session.run(["sum"], FEEDS)[0])


def test_files_and_program_files_can_be_opened(contents, session, tmp_path):
    (tmp_path / "model.onnx").write_bytes(contents)
    from_file = face.InferenceSession(tmp_path / "model.onnx")
    from_file.program.save(tmp_path / "model.sartor")
    from_program = face.InferenceSession(str(tmp_path / "model.sartor"))
    assert from_program.get_inputs()[0] == session.get_inputs()[0]
    for other in (from_file, from_program):
        np.testing.assert_array_equal(other.run(None, FEEDS)[1], session.run(None, FEEDS)[1])


def test_new_sizes_need_no_new_program(session):
    program = session.program
    for batch in (1, 5):
        x = np.ones((batch, 3), np.float32)
        assert session.run(["sum"], {"x": x, "y": x})[0].shape == (batch, 3)
    assert session.program is program


@pytest.mark.parametrize(
    ("names", "feeds", "words"),
    [
        (None, {"x": FEEDS["x"]}, "input y is missing"),
        (None, {**FEEDS, "z": FEEDS["x"]}, "no input z"),
        (None, {"x": FEEDS["x"].astype(np.float64), "y": FEEDS["y"]}, "float64"),
        (["product"], FEEDS, "no output product; it has sum, twice"),
    ],
)
def test_wrong_calls_are_refused_by_name(session, names, feeds, words):
    with pytest.raises(face.InvalidArgument, match=words):
        session.run(names, feeds)


def test_what_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(face.NoSuchFile, match="no model file"):
        face.InferenceSession(tmp_path / "missing.onnx")
    with pytest.raises(ModelError):
        face.InferenceSession(b"\xff not a model")


def test_providers_there_are_not_are_passed_over_with_a_warning(contents):
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session = face.InferenceSession(contents, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"] == face.get_available_providers()
    assert face.get_device() == "CPU"


def test_binding_inputs_and_outputs(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", FEEDS["x"])
    binding.bind_ortvalue_input("y", face.OrtValue.ortvalue_from_numpy(FEEDS["y"]))
    mine = np.zeros((2, 3), np.float32)
    binding.bind_ortvalue_output("twice", face.OrtValue.ortvalue_from_numpy(mine))
    binding.bind_output("sum")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(mine, 2 * (FEEDS["x"] + 1))
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], FEEDS["x"] + 1)
    value = binding.get_outputs()[0]
    assert (value.shape(), value.data_type(), value.device_name()) == ([2, 3], "tensor(float)", "cpu")
    binding.clear_binding_outputs()
    binding.run()
    assert len(binding.get_outputs()) == 2
    with pytest.raises(OptionError, match="not on cuda"):
        binding.bind_output("sum", "cuda")


def test_a_run_that_is_to_terminate_does(session):
    options = face.RunOptions()
    options.terminate = True
    with pytest.raises(SartorError, match="terminate"):
        session.run(None, FEEDS, options)


def test_lists_take_the_type_that_is_expected(session):
    assert session.run(["sum"], {"x": [[1, 2, 3]], "y": [[1.0, 1.0, 1.0]]})[0].tolist() == [[2, 3, 4]]


def test_what_a_model_leaves_open_is_said_as_onnx_runtime_says_it():
    onnxruntime = pytest.importorskip("onnxruntime")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [-1, None, "?", 2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [x], [y])
    contents = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    ours, theirs = face.InferenceSession(contents), onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
    assert ours.get_inputs()[0].shape == theirs.get_inputs()[0].shape
    assert ours.get_outputs()[0].shape == theirs.get_outputs()[0].shape
    assert ours.get_modelmeta().version == theirs.get_modelmeta().version
