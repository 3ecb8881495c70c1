"""The verbs on models that are out of the ordinary: each does its work, or says in one sentence why not, and never fails inside."""

import json

import ml_dtypes
import numpy as np
import pytest

from sartor import compiler
from sartor.cli import main
from sartor.cli.arrays import load_arrays, save_arrays
from sartor.cli.bench import difference
from sartor.cli.engines import Engine
from sartor.errors import SartorError
from sartor.loops import language
from sartor.loops.language import Value

onnx = pytest.importorskip("onnx")
oh, onh, T = onnx.helper, onnx.numpy_helper, onnx.TensorProto
F = T.FLOAT
N = oh.make_node
W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def value(name, shape=None, dtype=F):
    return oh.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, weights=(), domains=()):
    graph = oh.make_graph(nodes, "g", inputs, outputs, [onh.from_array(np.asarray(a), n) for n, a in weights])
    opsets = [oh.make_opsetid("", 21), *(oh.make_opsetid(d, 1) for d in domains)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def branches():
    then = oh.make_graph([N("MatMul", ["h", "w"], ["t"])], "then", [], [value("t")])
    other = oh.make_graph([N("Neg", ["h"], ["e"])], "else", [], [value("e")])
    nodes = [N("Add", ["x", "x"], ["h"]), N("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    return model(nodes, [value("x", ["b", 4]), value("c", [], T.BOOL)], [value("y")], [("w", W)])


def loop():
    body = oh.make_graph([N("MatMul", ["s", "w"], ["m"]), N("Tanh", ["m"], ["t"]), N("Identity", ["go"], ["on"])], "body",
                         [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", [2, 4])],
                         [value("on", [], T.BOOL), value("t", [2, 4])])
    return model([N("Loop", ["n", "", "x"], ["y"], body=body)], [value("n", [], T.INT64), value("x", [2, 4])], [value("y")], [("w", W)])


def sequence():
    nodes = [N("MatMul", ["x", "w"], ["h"]), N("SplitToSequence", ["h"], ["q"], axis=0)]
    return model(nodes, [value("x", [2, 4])], [oh.make_tensor_sequence_value_info("q", F, None)], [("w", W)])


def maps():
    types = oh.make_sequence_type_proto(oh.make_map_type_proto(T.INT64, oh.make_tensor_type_proto(F, [])))
    nodes = [N("Softmax", ["x"], ["h"]), N("ZipMap", ["h"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[3, 5, 7])]
    return model(nodes, [value("x", ["b", 3])], [oh.make_value_info("z", types), value("h")], [], ["ai.onnx.ml"])


def optional():
    types = oh.make_optional_type_proto(oh.make_tensor_type_proto(F, [4]))
    return model([N("Relu", ["x"], ["h"]), N("Optional", ["h"], ["o"])], [value("x", [4])], [oh.make_value_info("o", types)])


def words():
    return model([N("Gather", ["t", "i"], ["y"])], [value("i", [2], T.INT64)], [value("y", None, T.STRING)],
                 [("t", np.array(["a", "b", "c"], object))])


def small(dtype):
    nodes = [N("Cast", ["x"], ["f"], to=F), N("Add", ["f", "f"], ["s"]), N("Cast", ["s"], ["y"], to=dtype)]
    return model(nodes, [value("x", [3, 5], dtype)], [value("y", None, dtype)])


def empty():
    nodes = [N("MatMul", ["x", "w"], ["h"]), N("ReduceMax", ["h"], ["y"], keepdims=0), N("Concat", ["h", "h"], ["z"], axis=0)]
    return model(nodes, [value("x", [0, 4])], [value("y"), value("z")], [("w", W)])


def not_a_number():
    nodes = [N("Sub", ["x", "x"], ["o"]), N("Div", ["o", "o"], ["y"]), N("Cast", ["y"], ["z"], to=T.FLOAT8E5M2)]
    return model(nodes, [value("x", ["b", 4])], [value("y"), value("z", None, T.FLOAT8E5M2)])


def run_time_sizes():
    nodes = [N("NonZero", ["x"], ["i"]), N("Transpose", ["i"], ["t"]), N("GatherND", ["x", "t"], ["y"])]
    return model(nodes, [value("x", ["a", "b"])], [value("i", None, T.INT64), value("y")])


def foreign():
    nodes = [N("FusedMatMul", ["x", "w"], ["h"], domain="com.microsoft", alpha=0.5), N("Gelu", ["h"], ["y"], domain="com.microsoft")]
    return model(nodes, [value("x", [2, 4])], [value("y")], [("w", W)], ["com.microsoft"])


RIGHT = [branches, loop, sequence, maps, optional, words, empty, not_a_number, run_time_sizes, foreign]
MODELS = {make.__name__: make for make in RIGHT} | {
    name: lambda number=number: small(number) for name, number in [("i4", T.INT4), ("f8", T.FLOAT8E5M2), ("bf16", T.BFLOAT16)]
}


def call(capsys, *arguments):
    """Exit code, the printed JSON, and the last thing said; what is printed is JSON by the book."""
    capsys.readouterr()
    code = main.run([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert "should not happen" not in err
    return code, json.loads(out, parse_constant=lambda text: pytest.fail(text)) if out else None, err.strip().split("\n")[-1]


@pytest.fixture
def file(tmp_path):
    def write(proto):
        onnx.save(proto, tmp_path / "odd.onnx")
        return tmp_path / "odd.onnx"

    return write


@pytest.mark.parametrize("name", MODELS)
def test_every_verb(name, file, capsys, tmp_path):
    path, program, outputs = file(MODELS[name]()), tmp_path / "odd.sartor", tmp_path / "outputs.npz"
    assert call(capsys, "check", path)[0] == 0
    code, found, _ = call(capsys, "diff", path)
    assert (code, found["first"]) == (0, None)
    assert all(difference < 1e-5 for difference in found["outputs"].values())
    assert set(found["outputs"]) == {value.name for value in onnx.load(path).graph.output}
    assert call(capsys, "compile", path, "-o", program)[0] == 0
    for stage in ((), ("--stage", "tasks"), ("--stage", "layers"), ("--stage", "loops")):
        assert call(capsys, "inspect", path, *stage)[0] == 0
    assert call(capsys, "inspect", program)[0] == 0
    code, found, _ = call(capsys, "run", program, "-o", outputs)
    assert code == 0
    assert all(any(n == row["output"] or n.startswith(row["output"] + "/") for n in load_arrays(outputs)) for row in found["outputs"])


@pytest.mark.parametrize("name", ["sequence", "words", "bf16"])
def test_bench_carries_all_kinds_of_values(name, file, capsys):
    code, found, _ = call(capsys, "bench", file(MODELS[name]()), "--seconds", "0.01")
    assert code == 0
    assert found["engines"][0]["median_ms"] > 0


@pytest.mark.parametrize("name", ["sequence", "foreign", "branches"])
def test_beside_onnxruntime(name, file, capsys):
    pytest.importorskip("onnxruntime")
    code, found, _ = call(capsys, "diff", file(MODELS[name]()), "--against", "onnxruntime")
    assert (code, found["first"]) == (0, None)
    assert all(difference < 1e-5 for difference in found["outputs"].values())


def test_an_engine_that_crashes_costs_a_sentence(file, tmp_path, monkeypatch):
    """As ONNX Runtime does on a DFT whose axis is left out by an empty name."""
    feeds = tmp_path / "feeds.npz"
    save_arrays(feeds, {})
    (tmp_path / "sitecustomize.py").write_text("import ctypes\nctypes.string_at(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SartorError, match=r"^onnxruntime failed: signal 11 ended it$"):
        Engine("onnxruntime", file(words()), 1, "fp32", feeds)


@pytest.mark.parametrize(("name", "place", "row"), [("branches", 0, 0), ("branches", 2, 1), ("sequence", 0, 0)])
def test_a_kernel_that_errs_is_named(name, place, row, file, capsys, monkeypatch):
    """Every float is too large by a quarter that is stored by the kernels of one layer, the one built at `place`."""
    honest, layers, current = compiler.Builder.build, {}, []

    def store(self, pointer, index, stored, *rest, **options):
        wrong = isinstance(stored, Value) and stored.type.scalar == "f32" and current[-1] == place
        return honest_store(self, pointer, index, stored * 1.25 if wrong else stored, *rest, **options)

    def build(self, problem, *choice):
        current.append(layers.setdefault(problem.layer.name, len(layers)))
        return honest(self, problem, *choice)

    honest_store = language.Builder.store
    monkeypatch.setattr(language.Builder, "store", store)
    monkeypatch.setattr(compiler.Builder, "build", build)
    code, found, last = call(capsys, "diff", file(MODELS[name]()))
    assert code == 3
    assert found["first"] == found["layers"][row]["layer"]
    assert f"is {found['first']} (" in last


def test_values_survive_a_file(tmp_path):
    values = {"a/b": np.arange(3), "file": np.array(2.5), "q": [np.ones(2), np.zeros((0, 3))], "m": [{3: np.float32(1), "x": None}],
              "none": None, "t": np.array(["ü", ""], object), "h": np.ones(4, ml_dtypes.bfloat16), "e": np.ones(2, ml_dtypes.float8_e5m2)}
    save_arrays(tmp_path / "values.npz", values)
    found = load_arrays(tmp_path / "values.npz")
    assert list(found) == ["a/b", "file", "q/0", "q/1", "m/0/3", "t", "h", "e"]
    for name, wanted in [("a/b", values["a/b"]), ("file", values["file"]), ("q/1", values["q"][1]), ("t", values["t"]), ("h", values["h"]),
                         ("e", values["e"])]:
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(found[name], wanted)


def test_differences_of_all_types():
    half = np.array([1, np.nan], ml_dtypes.bfloat16)
    assert difference([half], [half.copy()]) == 0
    assert difference([half], [half + ml_dtypes.bfloat16(0.5)]) == pytest.approx(0.5)
    assert difference([np.array([1 + 2j])], [np.array([1 + 1j])]) == pytest.approx(0.5)
    assert difference([np.array([1 + 2j])], [np.array([1.0])]) == np.inf
    assert difference([np.array(["a"], object)], [np.array(["b"], object)]) == np.inf
    assert difference([np.zeros((0, 3))], [np.zeros((0, 3))]) == 0


def test_unknown_ranks_are_given_by_options(file, capsys, tmp_path):
    path = file(model([N("Relu", ["x"], ["h"]), N("Add", ["h", "h"], ["y"])], [value("x")], [value("y")]))
    sentence = "sartor: a random value cannot be made for an input that is tensor(float); give its shape by --shape, or it by --input"
    for verb in ("run", "diff"):
        assert call(capsys, verb, path)[::2] == (2, sentence)
    np.save(tmp_path / "x.npy", W)
    for given in (("--shape", "x=2x3"), ("--input", f"x={tmp_path / 'x.npy'}")):
        code, found, _ = call(capsys, "run", path, *given)
        assert code == 0
        assert found["outputs"][0]["shape"] == ([2, 3] if given[0] == "--shape" else [4, 4])
        assert call(capsys, "diff", path, *given)[1]["layers"]  # native, not on the host
    assert call(capsys, "compile", path, "-o", tmp_path / "p.sartor")[0] == 0
    code, found, _ = call(capsys, "run", tmp_path / "p.sartor", "--shape", "x=5")
    assert (code, found["outputs"][0]["shape"]) == (0, [5])


def test_random_numbers_cannot_be_compared(file, capsys):
    path = file(model([N("RandomNormal", [], ["r"], shape=[2, 4], name="noise"), N("Add", ["x", "r"], ["y"])],
                      [value("x", [2, 4])], [value("y")]))
    code, _, last = call(capsys, "diff", path)
    assert code == 4
    assert "node noise (RandomNormal) draws other random numbers each time" in last
    assert call(capsys, "run", path)[0] == 0


def test_a_problem_is_told_once(file, capsys):
    """What follows from taking the node out is no finding of its own."""
    nodes = [N("Concat", ["x", "x"], ["y"], axis=0, name="it")]
    found = call(capsys, "check", file(model(nodes, [value("x", [3], T.FLOAT8E5M2)], [value("y", None, T.FLOAT8E5M2)])))[1]
    assert [f["where"] for f in found["findings"]] == ["node it"]
