"""Whole networks that packages on PyPI carry: right at every size from one program, and all of it native code."""

import sys
from importlib.util import find_spec
from pathlib import Path

import llvmlite.binding
import numpy as np
import pytest

import sartor
from sartor.cli.picture import draw_text

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from models import package_models

onnxruntime = pytest.importorskip("onnxruntime")
MODELS = package_models()
SIZES = {  # shapes of the input; the first is compiled for, so to speak, and the rest must follow without compiling
    "det": [(1, 3, 96, 160), (2, 3, 160, 96)],
    "cls": [(1, 3, 48, 192), (6, 3, 48, 192)],
    "rec": [(b, 3, 48, w) for w in (320, 321, 480, 777) for b in (1, 6)],
    "opennsfw": [(1, 224, 224, 3), (2, 224, 224, 3)],
    "magika": [(1, 2048), (3, 2048)],
}


def contents(name, shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    if name == "det":  # on noise it finds nothing, and its outputs are all next to zero
        page = draw_text(size=24)[: shape[2], : shape[3]].astype(dtype).transpose(2, 0, 1)
        return np.stack([page / 127.5 - 1] * shape[0])
    if name == "magika":
        return generator.integers(0, 257, shape).astype(dtype)
    return (generator.standard_normal(shape) * (50 if name == "opennsfw" else 1)).astype(dtype)


def difference(ours, theirs):
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", SIZES)
def test_a_network_agrees_with_onnx_runtime_at_every_size(name, monkeypatch):
    if name not in MODELS:
        pytest.skip(f"the package that carries {name} is not installed")
    path = str(MODELS[name])
    program = sartor.compile(path, threads=2)
    assert program.fallbacks == ()
    session, reference = sartor.Session(program), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    monkeypatch.setattr(llvmlite.binding, "parse_assembly", lambda *a, **k: pytest.fail("a new size was compiled for"))
    (key, tensor), = program.inputs.items()
    for shape in SIZES[name]:
        feeds = {key: contents(name, shape, {"f32": np.float32, "i32": np.int32, "i64": np.int64}[tensor.dtype])}
        assert difference(session.run(feeds).values(), reference.run(None, feeds)) < 1e-4, shape


def test_threads_and_files_do_not_change_a_bit(tmp_path):
    name = "cls"
    if name not in MODELS:
        pytest.skip(f"the package that carries {name} is not installed")
    program = sartor.compile(str(MODELS[name]), threads=2)
    program.save(tmp_path / "p.sartor")
    feeds = {"x": contents(name, SIZES[name][1], np.float32)}
    one, two, loaded = (sartor.Session(program, threads=1), sartor.Session(program, threads=2), sartor.load(tmp_path / "p.sartor"))
    wanted = one.run(feeds)
    for other in (two, loaded):
        for key, array in other.run(feeds).items():
            assert array.tobytes() == wanted[key].tobytes()


def test_a_voice_detector_keeps_its_state():
    spec = find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("silero-vad is not installed")
    path = str(Path(spec.submodule_search_locations[0]) / "data" / "silero_vad_half.onnx")
    program = sartor.compile(path, threads=2)
    assert program.fallbacks == ()
    session, reference = sartor.Session(program), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    for batch in (1, 3):
        feeds = {"state": np.zeros((2, batch, 128), np.float32)}
        for _ in range(4):
            feeds["input"] = (generator.standard_normal((batch, 576)) * 0.1).astype(np.float32)
            wanted = reference.run(None, feeds)
            assert difference(session.run(feeds).values(), wanted) < 1e-4
            feeds["state"] = wanted[1]
