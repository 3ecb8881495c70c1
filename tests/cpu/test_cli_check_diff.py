"""`sartor check` finds everything at once; `sartor diff` names the layer at fault."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sartor import compiler
from sartor.cli import findings, main

onnx = pytest.importorskip("onnx")
oh, onh, F = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT


def save(path, nodes, inputs, outputs, weights=(), domains=()):
    values = [[oh.make_tensor_value_info(n, F, shape) for n, shape in side.items()] for side in (inputs, outputs)]
    graph = oh.make_graph(nodes, "g", *values, [onh.from_array(a, n) for n, a in weights])
    opsets = [oh.make_opsetid("", 17), *(oh.make_opsetid(d, 1) for d in domains)]
    onnx.save(oh.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


@pytest.fixture
def good(tmp_path):
    """Two products with a softmax between, so that three nodes stay three layers."""
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        oh.make_node("Softmax", ["h"], ["s"], name="between"),
        oh.make_node("MatMul", ["s", "v"], ["y"], name="second"),
    ]
    return save(tmp_path / "good.onnx", nodes, {"x": ["b", 8]}, {"y": None}, [("w", W), ("v", W[::-1].copy())])


@pytest.fixture
def bad(tmp_path):
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["h"], name="fine"),
        oh.make_node("Magic", ["h"], ["m"], domain="com.example", name="magic"),
        oh.make_node("Relu", ["m"], ["z"], name="after"),
        oh.make_node("Bogus", ["h"], ["q"], name="bogus"),
        oh.make_node("NonZero", ["h"], ["i"], name="indices"),
        oh.make_node("Cast", ["i"], ["f"], name="cast", to=F),
    ]
    broken = W.copy()
    broken[0, :2] = np.nan, np.inf
    weights = [("w", broken), ("left", W)]
    inputs = {"x": ["b", 8], "unused": [1], "rankless": None}
    return save(tmp_path / "bad.onnx", nodes, inputs, {"z": None, "q": None, "f": None}, weights, ["com.example"])


def call(capsys, *arguments):
    """Exit code, the printed JSON, and what was said."""
    capsys.readouterr()
    code = main.run([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


# --- check ----------------------------------------------------------------------------------------------------------------


def test_a_native_model_has_no_findings(good, capsys):
    assert call(capsys, "check", good)[:2] == (
        0,
        {"model": str(good), "unsupported": 0, "host": 0, "suspicious": 0, "findings": []},
    )
    assert main.run(["check", str(good)]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert "native throughout" in err


def test_everything_is_found_at_once(bad, capsys):
    code, found, _ = call(capsys, "check", bad)
    assert code == 4
    texts = [f"{f['level']}: {f['where']}: {f['what']}" for f in found["findings"]]
    for start, end in [
        ("unsupported: node magic", "of the domain 'com.example', whose operators are not known here"),
        ("unsupported: node bogus", "no operator of opset 17 of domain 'ai.onnx'"),
        ("suspicious: input unused", "nothing reads it"),
        ("suspicious: input rankless", "how many dimensions it has is not said; --shape may say it"),
        ("suspicious: tensor left", "nothing reads it"),
        ("suspicious: tensor w", "1 of 64 elements are not a number"),
        ("suspicious: tensor w", "1 of 64 elements are infinite"),
        ("suspicious: model", "1 nodes that need these results could not be examined"),
    ]:
        assert any(t.startswith(start) and t.endswith(end) for t in texts), (start, texts)
    levels = [f["level"] for f in found["findings"]]
    assert levels == sorted(levels, key=findings.LEVELS.index)
    assert {level: levels.count(level) for level in findings.LEVELS} == {level: found[level] for level in findings.LEVELS}
    assert main.run(["check", str(bad)]) == 4
    assert "level" in capsys.readouterr().out.splitlines()[0]


def test_steps_on_the_host_are_named_and_refused_only_if_wanted(tmp_path, capsys):
    nodes = [oh.make_node("Det", ["x"], ["y"], name="determinant")]
    model = save(tmp_path / "host.onnx", nodes, {"x": [3, 3]}, {"y": None})
    code, found, _ = call(capsys, "check", model)
    if not found["findings"]:
        pytest.skip("the operator is native by now")
    assert code == 0
    assert found["findings"][0]["level"] == "host"
    assert found["findings"][0]["where"] == "node determinant"
    assert "Det" in found["findings"][0]["what"]
    assert call(capsys, "check", model, "--native")[0] == 4


def test_huge_constants_are_said(good, monkeypatch, capsys):
    monkeypatch.setattr(findings, "HUGE", 256)
    assert [f["what"] for f in call(capsys, "check", good)[1]["findings"]] == ["holds 256 B"] * 2


def test_check_wants_a_model(tmp_path, good, capsys):
    (tmp_path / "text.onnx").write_bytes(b"no model")
    assert call(capsys, "check", tmp_path / "text.onnx")[0] == 1
    assert main.run(["compile", str(good), "-o", str(tmp_path / "p.sartor")]) == 0
    for verb in ("check", "diff"):
        code, _, err = call(capsys, verb, tmp_path / "p.sartor")
        assert code == 2
        assert "give the model it was made of" in err


# --- diff -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_a_right_model_does_not_differ(good, against, capsys):
    if against == "onnxruntime":
        pytest.importorskip("onnxruntime")
    code, found, err = call(capsys, "diff", good, "--dim", "b=3", "--against", against)
    assert code == 0
    assert found["first"] is None
    assert found["outputs"]["y"] < 1e-5
    assert [row["kind"] for row in found["layers"]] == ["matmul", "softmax", "matmul"]
    assert all(row["alone"] < 1e-5 for row in found["layers"])
    assert not err


@pytest.mark.parametrize(("weights", "place"), [("w", 0), ("v", 2)])
@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_the_first_layer_that_differs_is_named(good, weights, place, against, monkeypatch, capsys):
    """The compiler is given other weights than the model has, as if the kernel that uses them were wrong."""
    if against == "onnxruntime":
        pytest.importorskip("onnxruntime")
    honest = compiler.compile_graph

    def faulty(graph, *args, **kwargs):
        constants = dict(graph.constants)
        constants[weights] = constants[weights] + np.float32(0.1) * np.eye(8, dtype=np.float32)
        return honest(replace(graph, constants=constants), *args, **kwargs)

    monkeypatch.setattr(compiler, "compile_graph", faulty)
    arguments = ["diff", good, "--dim", "b=3", "--against", against]
    code, found, err = call(capsys, *arguments)
    assert code == 3
    assert found["first"] == found["layers"][place]["layer"]
    assert found["outputs"]["y"] > 1e-3
    assert [row["alone"] > 1e-3 for row in found["layers"]] == [i == place for i in range(3)]
    assert f"the first layer that differs from {against} is {found['first']} (matmul), by " in err
    assert call(capsys, *arguments, "--tolerance", "10")[0] == 0
    assert main.run([*map(str, arguments)]) == 3
    assert capsys.readouterr().out.splitlines()[0].split() == ["layer", "kind", "value", "difference", "alone"]
