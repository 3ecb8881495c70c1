"""The networks that packages on PyPI carry, on ten random inputs of several sizes each, and all of silero-vad's files."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import sartor
from sartor.cli.picture import draw_text

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from models import package_models

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
NETWORKS = package_models()
SHAPES = {
    "det": lambda g: (g.integers(1, 3), 3, 32 * g.integers(2, 6), 32 * g.integers(2, 6)),
    "cls": lambda g: (g.integers(1, 7), 3, 48, 192),
    "rec": lambda g: (g.integers(1, 4), 3, 48, g.integers(100, 500)),
    "opennsfw": lambda g: (g.integers(1, 3), 224, 224, 3),
    "magika": lambda g: (g.integers(1, 5), 2048),
}


def voice_files():
    spec = find_spec("silero_vad")
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    return [path for folder in folders for path in sorted(Path(folder).glob("data/*.onnx"))]


def largest_difference(ours, theirs):
    return max(float(np.abs(a.astype(float) - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_ten_random_inputs(name):
    if name not in NETWORKS:
        pytest.skip(f"the package that carries {name} is not installed")
    generator = np.random.default_rng(1)
    session = sartor.Session(sartor.compile(str(NETWORKS[name]), threads=2))
    reference = onnxruntime.InferenceSession(str(NETWORKS[name]), providers=["CPUExecutionProvider"])
    wide = reference.get_inputs()[0]
    for _ in range(10):
        shape = tuple(int(d) for d in SHAPES[name](generator))
        if "int" in wide.type:
            x = generator.integers(0, 257, shape).astype(np.int32 if "int32" in wide.type else np.int64)
        else:
            x = (generator.standard_normal(shape) * (50 if name == "opennsfw" else 0.02 if name == "det" else 1)).astype(np.float32)
        if name == "det":  # on noise alone it finds nothing, and its outputs are all next to zero
            part = draw_text(size=24)[: shape[2], : shape[3]].astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
            x[:, :, : part.shape[1], : part.shape[2]] += part
        assert largest_difference(session.run({wide.name: x}).values(), reference.run(None, {wide.name: x})) < 1e-4, shape


@pytest.mark.parametrize("path", voice_files(), ids=lambda path: path.stem)
def test_voices(path):
    """Ten steps at each rate and batch, each from the state that the step before left."""
    declared = {v.name: [d.dim_value or None for d in v.type.tensor_type.shape.dim] for v in onnx.load(path).graph.input}
    program = sartor.compile(str(path), threads=2)
    assert program.fallbacks == ()
    session = sartor.Session(program)
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(2)
    rates = {16000: 576} if "16k" in path.stem or "half" in path.stem else {16000: 576, 8000: 288}
    batches = (1,) if "state" not in declared or declared["state"][1] == 1 else (1, 3)
    for rate, length in rates.items():
        for batch in batches:
            feeds = {name: np.zeros([d or batch for d in shape], np.float32) for name, shape in declared.items()}
            if "sr" in feeds:
                feeds["sr"] = np.array(rate, np.int64)
            for _ in range(10):
                rows = 1 + generator.integers(5) if "sequence" in path.stem else batch
                feeds["input"] = (generator.standard_normal((rows, length)) * 0.1).astype(np.float32)
                wanted = reference.run(None, feeds)
                assert largest_difference(session.run(feeds).values(), wanted) < 1e-4
                feeds |= zip([name for name in feeds if name not in ("input", "sr")], wanted[1:], strict=True)
