"""Tuning as a whole: what wins is right, what fails is noted and never tried again, what was measured is not measured again."""

import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.cpu.networks import elementwise, graph, operation

import sartor
from sartor.cache import cache_folder
from sartor.compiler import device_for
from sartor.devices.processor import host_isas, usable_cores
from sartor.errors import OptionError
from sartor.graph.layer import Layer
from sartor.graph.reference import evaluate_graph
from sartor.runtime.session import Session
from sartor.sizes import symbol
from sartor.tuning import trials
from sartor.tuning.records import FILE, Records
from sartor.tuning.tuner import tune_graph

HERE = "tuning_templates"  # as children find it


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder without records, with the compiled kernels of the others."""
    kernels = cache_folder() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "kernels").symlink_to(kernels)
    monkeypatch.setenv("SARTOR_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path


def rows(cache):
    """All records: (template, status, reason, sizes)."""
    with Records(cache / FILE) as records:
        return list(records._connection.execute("SELECT template, status, reason, sizes FROM records ORDER BY id"))


def candidates(cache):
    """How many candidates there are records of: the best so far is measured again when another seems to win."""
    with Records(cache / FILE) as records:
        return len(set(records._connection.execute("SELECT template, source, config FROM records")))


def relu(shape=(64, 1024)):
    return graph({"x": shape, "y": shape}, ("x",), ("y",), [elementwise("relu", "relu", ("x",), "y")])


def children():
    """The measuring children of this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = folder.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"sartor.tuning.child" in command:
            found.append(folder.name)
    return found


def agrees(program, graph, feeds):
    with Session(program) as session:
        got, wanted = session.run(feeds), evaluate_graph(graph, feeds, wide=True)
    return all(np.abs(got[n] - wanted[n]).max() <= 1e-5 * np.abs(wanted[n]).max() for n in wanted)


def test_faults_cost_their_candidate_alone(cache, caplog):
    model, steps = relu(), []
    threads = min(2, usable_cores())
    options = {"threads": threads, "library": f"{HERE}:FAULTY", "timeout": 4.0}
    with caplog.at_level(logging.INFO, "sartor"):
        program = tune_graph(model, device_for(), 200.0, progress=steps.append, **options)
    found = {template: (status, reason) for template, status, reason, _ in rows(cache)}
    statuses = {template: status for template, (status, _) in found.items()}
    assert statuses == {
        "elementwise": "ok", "right": "ok", "wrong": "wrong", "by slices": "wrong" if threads > 1 else "ok", "before": "wrong",
        "beyond": "crash", "away": "crash", "leaves": "crash", "raises": "error", "hangs": "timeout",
    }
    assert "differ from the reference (off by 1.0e-03" in found["wrong"][1]
    assert threads == 1 or "other bits on one thread" in found["by slices"][1]
    assert "SIGSEGV" in found["beyond"][1]
    assert "SIGSEGV" in found["away"][1]
    assert "exit code 3: no more of this" in found["leaves"][1]
    assert "ValueError: such a template cannot be built" in found["raises"][1]
    assert "no result within 4 s" in found["hangs"][1]
    assert "candidates for relu were refused" in caplog.text
    assert agrees(program, model, {"x": np.random.default_rng(0).standard_normal((64, 1024), np.float32)})
    assert not children()
    before = len(rows(cache))
    again = []
    start = time.monotonic()
    tune_graph(model, device_for(), 200.0, progress=again.append, **options)
    assert len(rows(cache)) == before
    assert again[-1].trials == 0 < steps[-1].trials
    assert time.monotonic() - start < 60  # it ends when nothing is left


def test_where_nothing_is_right_the_default_stays_and_is_named(cache, caplog):
    model = relu((8, 16))
    program = tune_graph(model, device_for(), 60.0, library=f"{HERE}:ONLY_FAULTY")
    assert program.layers[0].template == "elementwise"
    assert not program.layers[0].tuned
    assert "no measured candidate for relu can be used; it keeps its default" in caplog.text


def test_a_stored_measurement_counts_only_for_the_same_source(cache, monkeypatch):
    model, library = relu((8, 16)), f"{HERE}:RIGHT"
    counts = []
    for source in ("", "", "another"):
        if source:
            monkeypatch.setattr(trials, "source_hash", lambda module: source)  # noqa: B023
        program = tune_graph(model, device_for(), 60.0, library=library)
        counts.append(candidates(cache))
        assert program.layers[0].tuned
    assert counts == [5, 5, 10]


def test_symbols_stay_symbols_and_every_size_is_measured(cache):
    n, m = symbol("n"), symbol("m")
    half = (m + 1) // 2
    layers = [
        Layer("pool", "pool", ("x",), ("p",), {
            "mode": "max", "kernel": (2,), "strides": (2,), "dilations": (1,), "pads": (0, 1), "include_pad": False, "p": 2}),
        Layer("act", "elementwise", ("p", "k"), ("y",), {}, operation("mul")),
    ]
    model = graph({"x": (n, m, 24), "p": (n, half, 24), "k": (24,), "y": (n, half, 24)}, ("x",), ("y",), layers,
                  {"k": np.arange(24, dtype=np.float32)})
    shapes = [{"x": (1, 7, 24)}, {"x": (3, 40, 24)}]
    program = tune_graph(model, device_for(), 60.0, shapes=shapes, library=f"{HERE}:FEW")
    assert {sizes for *_, sizes in rows(cache)} == {'{"m": 7, "n": 1}', '{"m": 40, "n": 3}'}
    assert {status for _, status, _, _ in rows(cache)} == {"ok"}
    assert all(layer.tuned for layer in program.layers)
    for shape in ((2, 9, 24), (1, 7, 24)):
        assert agrees(program, model, {"x": np.random.default_rng(1).standard_normal(shape, np.float32)})
    with pytest.raises(OptionError, match="no input z; it has x"):
        tune_graph(model, device_for(), 1.0, shapes=[{"z": (1, 2)}])
    with pytest.raises(OptionError, match="expected 3"):
        tune_graph(model, device_for(), 1.0, shapes=[{"x": (1, 2)}])


def test_an_interrupt_loses_nothing_and_leaves_nothing_behind(cache):
    class Interrupted(KeyboardInterrupt):
        pass

    def progress(step):
        if step.trials == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        tune_graph(relu((8, 16)), device_for(), 60.0, library=f"{HERE}:RIGHT", progress=progress)
    assert candidates(cache) == 2
    assert not children()
    program = tune_graph(relu((8, 16)), device_for(), 60.0, library=f"{HERE}:RIGHT")
    assert candidates(cache) == 5
    assert program.layers[0].tuned


def small_model():
    """A convolution with bias and relu, a pool, and a matrix product."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((24, 8, 3, 3)), "b": rng.standard_normal(24), "m": rng.standard_normal((24, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, 14, 14])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    weights = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()]
    body = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("isa", [None, "sse4"])
def test_a_model_within_its_budget(cache, isa):
    if isa and isa not in host_isas():
        pytest.skip(f"needs {isa}")
    model = small_model()
    start, steps = time.monotonic(), []
    program = sartor.tune(model.SerializeToString(), budget=8, shapes=[{"x": (2, 8, 14, 14)}], isa=isa, progress=steps.append)
    assert time.monotonic() - start < 8 * 1.1 + 15
    assert program.isa == isa or not isa
    assert steps[-1].budget == 8
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 14, 14), np.float32)}
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    with Session(program) as session:
        assert np.abs(session.run(feeds)["y"] - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert steps[-1].trials == 0 or any(layer.tuned for layer in program.layers)
    assert len({(r[0], r[3]) for r in rows(cache)}) == 0 or {r[1] for r in rows(cache)} <= {"ok", "wrong", "crash", "timeout", "error"}


def test_options_are_checked_first():
    with pytest.raises(OptionError, match="precision"):
        sartor.tune(b"", precision="int3")
    with pytest.raises(OptionError, match="list"):
        sartor.tune(b"", shapes={"x": (1, 2)})
    foreign = next(isa for isa in ("neon", "avx512", "sse4") if isa not in host_isas())
    with pytest.raises(OptionError, match=f"cannot measure {foreign} code"):
        sartor.tune(b"", isa=foreign)


def test_the_default_sizes_may_be_impossible(cache):
    n = symbol("n")
    layer = Layer("act", "elementwise", ("x",), ("y",), {}, operation("relu", 1))
    model = graph({"x": (n,), "y": (n,)}, ("x",), ("y",), [layer])
    model.conditions.append((n, 4 * (n // 4)))
    with pytest.raises(OptionError, match="with n taken as 1; give shapes to tune for"):
        tune_graph(model, device_for(), 20.0)
