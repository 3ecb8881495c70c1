"""Every verb on a small model, from the command line to files and figures."""

import json

import numpy as np
import pytest

from sartor.cli import demo, engines, main, picture, reading
from sartor.errors import SartorError

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verbs")


@pytest.fixture(scope="module")
def model(folder):
    """y = tanh(x w + b), x of [batch, 8]."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", s]) for n, s in (("x", 8), ("y", 4)))
    random = np.random.default_rng(0)
    constants = [
        onnx.numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in (("w", (8, 4)), ("b", 4))
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="dense"),
        helper.make_node("Tanh", ["h"], ["y"], name="squash"),
    ]
    path = folder / "dense.onnx"
    graph = helper.make_graph(nodes, "dense", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def program(model, folder):
    path = folder / "dense.sartor"
    assert main.run(["compile", str(model), "-o", str(path), "--threads", "2"]) == 0
    return path


def call(capsys, *arguments, code=0):
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main.run([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_compile_says_what_it_made(model, program, folder, capsys):
    found = call(capsys, "compile", model, "-o", folder / "other.sartor", "--threads", "1")
    assert found["output"] == str(folder / "other.sartor")
    assert found["threads"] == 1
    assert found["inputs"] == {"x": "f32[batch, 8]"}
    assert found["fallbacks"] == []
    assert found["bytes"] == (folder / "other.sartor").stat().st_size


def test_sizes_can_be_fixed_when_compiling(model, folder, capsys):
    assert call(capsys, "compile", model, "-o", folder / "fixed.sartor", "--dim", "batch=3")["inputs"] == {"x": "f32[3, 8]"}
    assert call(capsys, "run", folder / "fixed.sartor")["outputs"][0]["shape"] == [3, 4]


def test_run_computes_the_model(model, program, folder, capsys):
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    np.save(folder / "x.npy", x)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    for source in (model, program):
        found = call(capsys, "run", source, "--input", f"x={folder / 'x.npy'}", "-o", folder / "out.npz")
        assert found["outputs"][0]["shape"] == [5, 4]
        with np.load(folder / "out.npz") as outputs:
            np.testing.assert_allclose(outputs["y"], np.tanh(x @ weights["w"] + weights["b"]), rtol=1e-4, atol=1e-5)


def test_run_on_random_input_is_repeatable_and_says_what_it_assumed(program, folder, capsys):
    first = call(capsys, "run", program, "--seed", "3")
    assert main.run(["run", str(program), "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["outputs"] == first["outputs"]
    assert "batch = 1" in err


def test_inputs_that_do_not_fit_are_refused(program, folder, capsys):
    np.save(folder / "wide.npy", np.ones((2, 9), np.float32))
    assert main.run(["run", str(program), "--input", f"x={folder / 'wide.npy'}"]) == 2
    np.save(folder / "double.npy", np.ones((2, 8)))
    assert main.run(["run", str(program), "--input", f"x={folder / 'double.npy'}"]) == 1
    assert "float64" in capsys.readouterr().err


def test_bench_measures_and_compares(model, program, capsys):
    pytest.importorskip("onnxruntime")
    found = call(capsys, "bench", program, "--model", model, "--against", "onnxruntime", "--seconds", "0.1", "--dim", "batch=2")
    ours, theirs = found["engines"]
    assert (ours["engine"], theirs["engine"]) == ("sartor", "onnxruntime")
    assert 0 < ours["median_ms"] <= ours["p90_ms"] <= ours["p99_ms"]
    assert theirs["difference"] < 1e-4
    assert theirs["ratio"] == pytest.approx(theirs["median_ms"] / ours["median_ms"])


def test_bench_exits_3_when_outputs_differ(model, capsys):
    pytest.importorskip("onnxruntime")
    arguments = ["bench", str(model), "--against", "onnxruntime", "--seconds", "0.1", "--dim", "batch=2", "--tolerance", "0"]
    assert main.run(arguments) in (0, 3)  # equal to the last bit is possible
    other = onnx.load(model)
    other.graph.initializer[1].raw_data = np.ones(4, np.float32).tobytes()
    onnx.save(other, model.with_name("other.onnx"))
    assert main.run([*arguments[:-1], "1e-3", "--model", str(model.with_name("other.onnx"))]) == 3
    assert "differ from those of onnxruntime" in capsys.readouterr().err


def test_bench_refuses_what_it_cannot_compare(program, capsys):
    assert main.run(["bench", str(program), "--against", "onnxruntime"]) == 2
    assert "name its ONNX file by --model" in capsys.readouterr().err


def test_an_engine_that_is_not_installed_is_said_so(model, program, tmp_path, monkeypatch):
    (tmp_path / "openvino.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    np.savez(tmp_path / "feeds.npz", x=np.ones((1, 8), np.float32))
    with pytest.raises(SartorError, match="openvino is not installed"):
        engines.Engine("openvino", model, 1, "fp32", tmp_path / "feeds.npz")


def test_inspect_shows_layers_work_and_memory(model, program, capsys):
    found = call(capsys, "inspect", program, "--dim", "batch=6")
    assert found["sizes"] == {"batch": 6}
    dense = next(row for row in found["layers"] if "dense" in row["source"])
    assert dense["flop"] == 2 * 6 * 8 * 4
    assert dense["template"]
    assert found["memory"]["arena_bytes"] >= found["memory"]["lower_bound"]
    assert sum(t["multiply_adds"] for t in found["tasks"]) == found["memory"]["multiply_adds"]
    assert main.run(["inspect", str(program)]) == 0
    assert "fallbacks  none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("layers", "matmul("),
        ("loops", "kernel "),
        ("llvm", "define "),
        ("asm", ".text"),
    ],
)
def test_inspect_prints_every_stage(stage, words, model, capsys):
    assert main.run(["inspect", str(model), "--stage", stage, "--layer", "dense"]) == 0
    assert words in capsys.readouterr().out
    assert list(call(capsys, "inspect", model, "--stage", stage)["layers"])


def test_inspect_prints_the_tasks_and_layers_of_a_program(program, capsys):
    assert call(capsys, "inspect", program, "--stage", "tasks")["tasks"]
    assert call(capsys, "inspect", program, "--stage", "layers")[0]["kind"] == "matmul"
    assert main.run(["inspect", str(program), "--stage", "asm"]) == 2
    assert "give the model it was made of" in capsys.readouterr().err


def test_layers_that_are_not_there_are_answered_with_similar_names(program, capsys):
    assert main.run(["inspect", str(program), "--layer", "dens"]) == 2
    assert "there is no layer dens" in capsys.readouterr().err


def test_devices_of_this_machine(capsys, monkeypatch):
    assert call(capsys, "devices", "--quick")["measured"] == {}


def test_tune_writes_a_program_that_still_computes_the_model(model, folder, capsys):
    found = call(capsys, "tune", model, "-o", folder / "tuned.sartor", "--budget", "3", "--dim", "batch=2", "--threads", "1")
    assert found["output"] == str(folder / "tuned.sartor")
    outputs = [call(capsys, "run", folder / name, "--dim", "batch=2")["outputs"][0] for name in ("tuned.sartor", "dense.sartor")]
    assert outputs[0]["mean"] == pytest.approx(outputs[1]["mean"], rel=1e-4)


def test_unsupported_models_are_exit_code_4(tmp_path, capsys):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Frobnicate", ["x"], ["y"], domain="org.example")], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "strange.onnx")
    assert main.run(["compile", str(tmp_path / "strange.onnx"), "-o", str(tmp_path / "strange.sartor")]) == 4
    assert "Frobnicate" in capsys.readouterr().err
    assert not (tmp_path / "strange.sartor").exists()


def test_broken_models_are_exit_code_1_and_leave_nothing(tmp_path, capsys):
    (tmp_path / "broken.onnx").write_bytes(b"\xff\xfenot a model")
    assert main.run(["compile", str(tmp_path / "broken.onnx"), "-o", str(tmp_path / "broken.sartor")]) == 1
    assert not (tmp_path / "broken.sartor").exists()
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- demo -----------------------------------------------------------------------------------------------------------------


def test_the_picture_has_lines_of_different_lengths():
    page = picture.draw_text()
    dark = (page < 128).any(axis=2)
    assert page.dtype == np.uint8
    starts = np.flatnonzero(np.diff(dark.any(axis=1).astype(int)) == 1)
    assert len(starts) >= len(picture.LINES)  # dots and descenders may add some
    assert len(set(map(len, picture.LINES))) == len(picture.LINES)


@pytest.mark.parametrize(("theirs", "ours", "code"), [(("a", "b"), ("a", "b"), 0), (("a", "b"), ("a", "c"), 3), (("a",), (), 3)])
def test_the_demo_fails_when_texts_differ(theirs, ours, code, monkeypatch, capsys):
    pytest.importorskip("rapidocr_onnxruntime")
    real = pytest.importorskip("onnxruntime").InferenceSession
    seconds = {name: [0.01] for name in reading.NETWORKS}

    class Fake:
        def __init__(self, lines):
            self.lines = lines

        def read(self, page, passes):
            return reading.Reading(self.lines, seconds)

    monkeypatch.setattr(reading, "reader", lambda session: Fake(theirs if session is real else ours))
    monkeypatch.setattr(demo, "_PAUSE", 0)
    found = call(capsys, "demo", code=code)
    assert found["same"] == (code == 0)
    assert found["networks"]["rec"]["sartor_ms"] == 10
