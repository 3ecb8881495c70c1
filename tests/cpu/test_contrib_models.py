"""Models that ONNX Runtime's own tools made of small networks, in native code: optimised, fused and quantised in every format.

The judge is that engine on the same file.  Weights keep one bit in reserve (`reduce_range`): without it the engine's products of bytes
saturate on processors before VNNI, ours do not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import pytest
from tests.cpu.exported_networks import NETWORKS, Net, feeds
from tests.unit.ops_harness import make_model, run_runtime

import sartor


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """ONNX Runtime's tools say much through the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    yield
    root.setLevel(level)


def optimised(path: Path, level: str = "EXTENDED") -> onnx.ModelProto:
    """The file as ONNX Runtime's optimiser leaves it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path.with_name("optimised.onnx"))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options)
    return onnx.load(path.with_name("optimised.onnx"))


def quantised(name: str, path: Path, how: str, activations: str = "QUInt8", **options: Any) -> Path:
    """The file quantised as `dynamic`, `QDQ` or `QOperator`."""
    from onnxruntime import quantization

    target = path.with_name("quantised.onnx")
    if how == "dynamic":
        quantization.quantize_dynamic(path, target, reduce_range=True, **options)
        return target

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter([feeds(name, batch) for batch in (1, 2, 3)])

        def get_next(self) -> Any:
            return next(self.rest, None)

    kinds = quantization.QuantType
    quantization.quantize_static(path, target, Reader(), quant_format=getattr(quantization.QuantFormat, how), reduce_range=True,
                                 activation_type=getattr(kinds, activations), weight_type=kinds.QInt8, **options)
    return target


def fused(path: Path, **options: Any) -> onnx.ModelProto:
    """The file as the transformer optimiser leaves it."""
    from onnxruntime.transformers import fusion_options, optimizer

    given = fusion_options.FusionOptions("bert")
    for option, value in options.items():
        setattr(given, option, value)
    return optimizer.optimize_model(str(path), "bert", 4, 32, optimization_options=given, opt_level=0).model


def agrees(name: str, model: onnx.ModelProto, tolerance: float, contains: str = "") -> None:
    """Compiles natively and compares with ONNX Runtime at two batches; `contains` are operators that the model must have."""
    assert set(contains.split()) <= {node.op_type for node in model.graph.node}
    program = sartor.compile(model, threads=1)
    assert not program.fallbacks
    session = sartor.Session(program)
    for batch in (2, 3):
        inputs = feeds(name, batch)
        got = next(iter(session.run(inputs).values()))
        np.testing.assert_allclose(got, run_runtime(model, inputs)[0], rtol=0, atol=tolerance)


@pytest.fixture
def written(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A network's name and its file."""
    onnx.save(NETWORKS[request.param](), tmp_path / "plain.onnx")
    return request.param, tmp_path / "plain.onnx"


@pytest.mark.parametrize(("written", "contains"), [
    ("convolutions", "FusedConv"),
    pytest.param("transformer", "SkipLayerNormalization BiasGelu FusedMatMul", marks=pytest.mark.slow)], indirect=["written"])
def test_optimised(written, contains):
    name, path = written
    agrees(name, optimised(path), 1e-5, contains)


@pytest.mark.parametrize("written", ["transformer"], indirect=True)
@pytest.mark.parametrize(("options", "contains"), [
    ({}, "Attention SkipLayerNormalization BiasGelu"),
    ({"use_multi_head_attention": True, "enable_gelu_approximation": True}, "MultiHeadAttention FastGelu")])
def test_fused_transformer(written, options, contains):
    name, path = written
    agrees(name, fused(path, **options), 1e-5, contains)


@pytest.mark.parametrize(("written", "contains", "tolerance"), [
    pytest.param("perceptron", "DynamicQuantizeMatMul", 1e-5, marks=pytest.mark.slow), ("recurrent", "DynamicQuantizeLSTM", 2e-2),
    ("transformer", "MatMulIntegerToFloat DynamicQuantizeMatMul", 1e-4)], indirect=["written"])
def test_quantised_as_it_runs(written, contains, tolerance):
    """Of the LSTM ONNX Runtime quantises the states too, to 8 bits."""
    name, path = written
    agrees(name, optimised(quantised(name, path, "dynamic")), tolerance, contains)


@pytest.mark.parametrize(("written", "how", "contains", "steps"), [
    ("convolutions", "QOperator", "QLinearConv QLinearConcat QLinearAveragePool QLinearLeakyRelu QLinearSigmoid QLinearMul QGemm", 1),
    ("transformer", "QOperator", "QLinearSoftmax", 20)],
    indirect=["written"])
def test_quantised_beforehand(written, how, contains, steps):
    """A result between two integers may round to either, and later layers see that; outputs are in steps of 1/256."""
    name, path = written
    agrees(name, optimised(quantised(name, path, how)), steps / 255, contains)


@pytest.mark.slow
@pytest.mark.parametrize("written", ["convolutions", "perceptron", "transformer"], indirect=True)
@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize(("how", "activations"), [
    ("QDQ", "QUInt8"), ("QDQ", "QInt8"), ("QDQ", "QUInt16"), ("QOperator", "QUInt8"), ("QOperator", "QInt8")])
def test_quantised_in_every_format(written, how, activations, optimise):
    """With 16 bits the optimiser puts weights of 8 bits in, whose products ONNX Runtime computes with activations of 8 bits."""
    name, path = written
    target = quantised(name, path, how, activations, per_channel=how == "QDQ")
    agrees(name, optimised(target) if optimise else onnx.load(target), 0.15 if name == "transformer" else 0.02)


def decoder() -> onnx.ModelProto:
    """One layer of grouped attention with a cache and rotation, its lengths taken from the mask as exporters do."""
    net = Net()
    qkv = net("MatMul", "x", net.weight(32, 128))
    total = net("Gather", net("Shape", "mask"), net.constant(np.array(1)), axis=0)
    lengths = net("Sub", net("ReduceSum", "mask", net.constant(np.array([1])), keepdims=0), net.constant(np.array(1)))
    angles = net.random.uniform(-3, 3, (32, 8))
    tables = [net.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    net.nodes.append(oh.make_node(
        "GroupQueryAttention", [qkv, "", "", "pk", "pv", net("Cast", lengths, to=6), net("Cast", total, to=6), *tables],
        ["y", "nk", "nv"], domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1, name="attention"))
    past = ["n", 2, "past", 16]
    return net.model({"x": (1, ["n", "s", 32]), "mask": (7, ["n", "t"]), "pk": (1, past), "pv": (1, past)}, "y", "nk", "nv")


def test_a_decoder_with_its_cache():
    model = decoder()
    program = sartor.compile(model, threads=1)
    assert not program.fallbacks
    session, random = sartor.Session(program), np.random.default_rng(3)
    past = {name: np.zeros((2, 2, 0, 16), np.float32) for name in ("pk", "pv")}
    for step, count in enumerate((5, 1, 1)):
        inputs = {"x": random.standard_normal((2, count, 32)).astype(np.float32), "mask": np.ones((2, 5 + step), np.int64), **past}
        got = session.run(inputs)
        for name, want in zip(("y", "nk", "nv"), run_runtime(model, inputs), strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)
        past = {"pk": got["nk"], "pv": got["nv"]}


def test_a_cache_whose_length_is_an_input():
    """As of some exporters, whose graphs do not take it from a shape: it becomes known when the model runs."""
    random = np.random.default_rng(4)
    inputs = {"x": random.standard_normal((2, 1, 128)).astype(np.float32), "n": np.array([4, 5], np.int32), "t": np.array([6], np.int32)}
    inputs |= {name: random.standard_normal((2, 2, 5, 16)).astype(np.float32) for name in ("pk", "pv")}
    node = oh.make_node("GroupQueryAttention", ["x", "", "", "pk", "pv", "n", "t"], ["y", "nk", "nv"], domain="com.microsoft",
                        num_heads=4, kv_num_heads=2)
    model = make_model([node], inputs, ["y", "nk", "nv"])
    model.opset_import.append(oh.make_opsetid("com.microsoft", 1))
    program = sartor.compile(model, threads=1)
    assert not program.fallbacks
    got, want = sartor.Session(program).run(inputs), run_runtime(model, inputs)
    np.testing.assert_allclose(got["y"], want[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got["nk"][1], want[1][1])
