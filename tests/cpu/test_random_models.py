"""Random ONNX models against onnx's reference implementation, and the models on which the two ever differed, each in its smallest form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from tests.cpu.random_models.fills import normal, numpy_type
from tests.cpu.random_models.maker import RandomModel
from tests.cpu.random_models.making import random_model
from tests.cpu.random_models.running import Verdict, check_model, check_seeds
from tests.cpu.random_models.table import LEFT_OUT, OPERATORS

import sartor

SEEDS = range(24)


def test_few_random_models_compute_what_the_reference_does() -> None:
    wrong = [v for v in check_seeds(SEEDS, processes=2) if v.kind != "ok"]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_operator_is_made_or_left_out_for_a_reason() -> None:
    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    known = {*OPERATORS, *LEFT_OUT}
    assert names - known == set()
    assert not set(OPERATORS) & set(LEFT_OUT)


def test_a_model_is_the_same_each_time() -> None:
    assert random_model(7).model == random_model(7).model


# Models that once failed, as text of onnx's parser: what it was -> (body, values that are fed other than at random).
FAILED: dict[str, tuple[str, dict[str, Any]]] = {
    "slice of a symbolic size from far before": (
        '21]> g (float[n,4] x) => (float[?,?] y) <int64[1] s={-9223372036854775807}, int64[1] e={2}, int64[1] a={1}> { y = Slice(x, s, e, a) }',
        {"x": (3, 4)}),
    "slice of a symbolic size to far behind, backwards": (
        '21]> g (float[n,4] x) => (float[?,?] y) <int64[1] s={-1}, int64[1] e={-2147483648}, int64[1] a={0}, int64[1] t={-2}> { y = Slice(x, s, e, a, t) }', {"x": (5, 4)}),
    "softmax of a constant before version 13": (
        '10]> g (float[2] x) => (float[?,?] y, float[?] z) <float[2,3] c={1,2,3,4,5,6}> { y = LogSoftmax<axis=0>(c) z = Neg(x) }',
        {"x": (2,)}),
    "pool of a constant with dilations and padding of its own": (
        '22]> g (float[2] x) => (float[?,?,?] y, float[?] z) <float[1,1,4] c={1,2,3,4}> { y = MaxPool<auto_pad="SAME_LOWER", dilations=[2], kernel_shape=[2], strides=[3]>(c) z = Neg(x) }',
        {"x": (2,)}),
    "inverse sine of f16": ('22]> g (float16[n] x) => (float16[?] y) { y = Asin(x) }', {"x": (37,)}),
    "inverse cosine and tangent of f16": (
        '22]> g (float16[n] x) => (float16[?] y, float16[?] z) { y = Acos(x) z = Atan(x) }', {"x": (37,)}),
    "squares along no axes": (
        '20]> g (float[n,3] x) => (float[?,?] y, float[?,?] z, float[?,?] w) { y = ReduceSumSquare<noop_with_empty_axes=1>(x) z = ReduceL1<noop_with_empty_axes=1>(x) w = ReduceLogSumExp<noop_with_empty_axes=1>(x) }', {"x": (4, 3)}),
    "scale of a dynamic quantization, which is a division": (
        '20]> g (float[n] x) => (uint8[?] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }',
        {"x": np.array([-3, 3, 1.5, -1, -0.5, -2], np.float32)}),
    "quantized weights of a symbolic size": (
        '20]> g (uint8[1,n,5] x, uint8[2,n,3] w) => (uint8[?,?,?] y) <float s={0.1}, uint8 z={3}> { y = QLinearConv(x, s, z, w, s, z, s, z) }', {"x": (1, 4, 5), "w": (2, 4, 3)}),
    "statistics of a layer norm, whose variance is small beside its mean": (
        '20]> g (float[n,6] x, float[6] s) => (float[?,?] y, float[?,?] m, float[?,?] i) { y, m, i = LayerNormalization(x, s) }',
        {"x": np.random.default_rng(0).normal(100, 0.05, (3, 6)).astype(np.float32), "s": (6,)}),
    "shrinking integers": ('20]> g (int8[n] x) => (int8[?] y) { y = Shrink<bias=0.46, lambd=1.5>(x) }', {"x": np.arange(-9, 9, dtype=np.int8)}),
    "epsilon where it is not given, in f64": (
        '20]> g (double[2,3,n] x, double[3] s) => (double[?,?,?] y) { y = InstanceNormalization(x, s, s) }', {"x": (2, 3, 9), "s": (3,)}),
    "sampling in f64, as near as the reference's places in f32 allow": (
        '22]> g (double[1,2,4,n] x, double[1,3,2,2] p) => (double[?,?,?,?] y) { y = GridSample(x, p) }',
        {"x": (1, 2, 4, 5), "p": np.random.default_rng(0).uniform(-1, 1, (1, 3, 2, 2))}),
    "bias of a grouped transposed convolution": (
        '20]> g (float[1,2,n] x) => (float[?,?,?] y) <float[2,1,2] w={1,2,3,4}, float[2] b={1,10}> { y = ConvTranspose<group=2>(x, w, b) }', {"x": (1, 2, 5)}),
    "circular functions of large numbers in f64": (
        '20]> g (double[n] x) => (double[?] y, double[?] z, double[?] w) { y = Sin(x) z = Cos(x) w = Tan(x) }',
        {"x": np.array([1e15, -3e8, 1e300, 1.7976931348623157e308, 1e22, -8.1e8, np.inf, np.nan, 0.5])}),
    "remainders of large quotients": (
        '20]> g (float[n] x, float[n] y) => (float[?] z) { z = Mod<fmod=1>(x, y) }',
        {"x": np.array([3e38, -3e38, 1e20, 7, np.inf], np.float32), "y": np.array([1e-30, 0.7, 3, 1e-7, 2], np.float32)}),
}  # fmt: skip


def test_lengths_for_another_batch_are_refused() -> None:
    """They were read beyond their end."""
    text = '20]> g (float[t,n] x, int64[m] s) => (float[?,?] y) { y = ReverseSequence<time_axis=0, batch_axis=1>(x, s) }'
    right, wrong = (failed_model(text, {"x": (5, 4), "s": np.full(count, 3)}) for count in (4, 2))
    assert check_model(right).kind == "ok"
    session = sartor.Session(sartor.compile(wrong.model))
    with pytest.raises(sartor.FeedError):
        session.run(wrong.feeds[0])


def failed_model(text: str, given: dict[str, Any]) -> RandomModel:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {text}')
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        array = given[value.name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        feeds[value.name] = array if isinstance(array, np.ndarray) else np.asarray(normal(rng, dtype, array), numpy_type(dtype))
    return RandomModel(0, model, {}, (feeds,), model.opset_import[0].version, tuple(n.op_type for n in model.graph.node))


@pytest.mark.parametrize("name", FAILED)
def test_models_that_once_failed(name: str) -> None:
    verdict: Verdict = check_model(failed_model(*FAILED[name]))
    assert verdict.kind == "ok", str(verdict)
