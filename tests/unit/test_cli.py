"""The command line without running a model: help, usage, exit codes, inputs and printing."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sartor.cli import common, feeds, main, models
from sartor.cli.bench import difference
from sartor.errors import ModelError, OptionError, SartorError, UnsupportedError
from sartor.graph.layer import Tensor
from sartor.sizes import symbol

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path):
    """y = relu(x) for x of [batch, 3], as a file."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 3]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# --- help and usage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_shows_help_with_an_example(verb, capsys):
    assert main.run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example:" in text
    assert f"sartor {verb}" in text
    assert "--json" in text


def test_help_lists_the_verbs_and_exit_codes(capsys):
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in main.VERBS)
    assert "3 outputs differ" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compil"], "did you mean compile?"),
        (["frobnicate"], "there are compile"),
        (["compile"], "Missing argument"),
        (["compile", "missing.onnx"], "does not exist"),
        (["devices", "--fast"], "No such option"),
        (["bench", "MODEL", "--against", "tensorrt"], "tensorrt is not an engine"),
        (["run", "MODEL", "--shape", "x=1x-2"], "x=1x-2 is not of the form"),
        (["run", "MODEL", "--dim", "batch"], "batch is not of the form"),
        (["compile", "MODEL", "-o", "nowhere/y.sartor"], "there is no folder nowhere"),
        (["compile", "MODEL", "--threads", "0"], "Invalid value for '--threads'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(arguments, words, model, capsys):
    arguments = [str(model) if a == "MODEL" else a for a in arguments]
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert not out


def test_a_program_is_never_written_over_its_model(model, capsys):
    before = model.read_bytes()
    assert main.run(["compile", str(model), "-o", str(model)]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [
        (SartorError("it broke"), 1, "sartor: it broke"),
        (UnsupportedError("no such thing"), 4, "sartor: no such thing"),
        (OptionError("not that"), 2, "sartor: not that"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (FileNotFoundError(2, "No such file", "x.npy"), 1, "sartor: x.npy: No such file"),
        (ValueError("first\nsecond"), 1, "an error inside Sartor"),
    ],
)
def test_errors_become_one_sentence_and_an_exit_code(problem, code, words, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise problem

    monkeypatch.setattr("sartor.devices.probe.host_device", fail)
    assert main.run(["devices", "--quick"]) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    if code == 1:
        main.run(["devices", "--quick", "--debug"])
        assert "Traceback" in capsys.readouterr().err


def test_the_module_runs_as_a_command():
    environment = dict(os.environ, PYTHONPATH=":".join(p for p in sys.path if p))
    done = subprocess.run(
        [sys.executable, "-m", "sartor.cli.main", "devices", "--quick", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert json.loads(done.stdout)["cores"] >= 1
    assert not done.stderr


# --- inputs ---------------------------------------------------------------------------------------------------------------

BATCH, WIDTH = symbol("batch"), symbol("width")
INPUTS = {"x": Tensor("f32", (BATCH, 3, WIDTH)), "lengths": Tensor("i64", (BATCH,))}


def test_sizes_come_from_dims_shapes_and_default_to_one():
    assert feeds.settle_sizes(INPUTS, {}, {"width": 5}) == ({"width": 5, "batch": 1}, ["batch"])
    assert feeds.settle_sizes(INPUTS, {"x": (2, 3, 4)}, {}) == ({"batch": 2, "width": 4}, [])


@pytest.mark.parametrize(
    ("shapes", "dims", "words"),
    [
        ({"x": (2, 3)}, {}, "has 3 dimensions"),
        ({"x": (2, 4, 4)}, {}, "does not fit"),
        ({"x": (2, 3, 4), "lengths": (3,)}, {}, "batch is 3 in shape 3, but 2 elsewhere"),
        ({}, {"height": 4}, "no symbolic dimension height; it has batch, width"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes, dims, words):
    with pytest.raises(OptionError, match=words):
        feeds.settle_sizes(INPUTS, shapes, dims)


def test_feeds_are_seeded_files_win_and_defaults_are_said(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 4), np.float32))
    made = common.make_feeds(INPUTS, [("x", str(tmp_path / "x.npy"))], (), (), 0)
    assert made["x"].shape == (2, 3, 4)
    assert made["lengths"].shape == (2,)
    assert made["lengths"].dtype == np.int64
    assert not capsys.readouterr().err
    first, again, other = (common.make_feeds(INPUTS, (), (), (), seed)["x"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert "batch = 1, width = 1" in capsys.readouterr().err


@pytest.mark.parametrize(("contents", "words"), [(None, "there is no file"), (b"text", "is not a .npy or .npz")])
def test_bad_input_files_are_refused(tmp_path, contents, words):
    path = tmp_path / "x.npy"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(OptionError, match=words):
        common.make_feeds(INPUTS, [("x", str(path))], (), (), 0)


def test_archives_give_the_array_of_the_inputs_name(tmp_path):
    np.savez(tmp_path / "one.npz", other=np.ones(2))
    assert feeds.load_file("x", str(tmp_path / "one.npz")).shape == (2,)
    np.savez(tmp_path / "two.npz", x=np.ones(3), y=np.ones(4))
    assert feeds.load_file("x", str(tmp_path / "two.npz")).shape == (3,)
    with pytest.raises(OptionError, match="holds x, y, but no z"):
        feeds.load_file("z", str(tmp_path / "two.npz"))


# --- models ---------------------------------------------------------------------------------------------------------------


def test_sizes_of_a_model_file_can_be_fixed(model):
    assert models.settle_shapes(model, {}, {}) == {"x": ["batch", 3]}
    assert models.settle_shapes(model, {"x": (5, 3)}, {}) == {"x": [5, 3]}
    assert models.concrete_shapes(model, {}, {}) == {"x": (1, 3)}
    assert models.concrete_shapes(model, {}, {"batch": 4}) == {"x": (4, 3)}


def test_dimensions_without_a_name_are_called_by_their_place(tmp_path):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, "?", -1, 3])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    assert models.settle_shapes(tmp_path / "m.onnx", {}, {"x.1": 7}) == {"x": ["x.0", 7, "x.2", 3]}


@pytest.mark.parametrize(
    ("shapes", "dims", "words"),
    [
        ({"x": (1, 4)}, {}, "dimension 1 of input x is 3, not 4"),
        ({"x": (1,)}, {}, "has 2 dimensions"),
        ({"z": (1,)}, {}, "no input z"),
        ({}, {"b": 1}, "no symbolic dimension b"),
    ],
)
def test_sizes_a_model_does_not_have_are_refused(model, shapes, dims, words):
    with pytest.raises(OptionError, match=words):
        models.settle_shapes(model, shapes, dims)


def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\xff\xfe this is not protobuf")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        models.read_model(path)


# --- comparing and printing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.0], 0.5),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([1.0, np.inf], [1.0, 2.0], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], np.inf),
    ],
)
def test_differences_are_relative_to_the_largest_element(a, b, expected):
    assert difference([np.array(a)], [np.array(b)]) == expected


def test_outputs_that_are_missing_are_a_difference():
    assert difference([np.ones(1)], []) == np.inf


def test_tables_are_aligned_text(capsys):
    common.print_table(("name", "n"), [("a", 1), ("long", 22)], right=("n",))
    assert capsys.readouterr().out == "name   n\na      1\nlong  22\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")]
)
def test_bytes_are_readable(count, text):
    assert common.bytes_text(count) == text
