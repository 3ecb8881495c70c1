"""Operators of ONNX Runtime's domain on reals, against that engine."""

from __future__ import annotations

from math import erf

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.contrib_harness import check_contrib, contrib_model
from tests.unit.ops_harness import RNG, kinds, lower_model, make_model, rand, run_runtime

import sartor
from sartor.errors import UnsupportedError


def positive(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Gelu", "QuickGelu", "FastGelu"])
def test_activations(op):
    check_contrib(op, {"x": 3 * rand(2, 3, 5)})


def test_activations_with_attributes_and_bias():
    check_contrib("QuickGelu", {"x": rand(3, 5)}, alpha=1.3)
    check_contrib("FastGelu", {"x": rand(2, 3, 5)}, {"b": rand(5)})
    check_contrib("BiasGelu", {"x": rand(2, 3, 5)}, {"b": rand(5)})
    check_contrib("BiasGelu", {"x": rand(2, 3, 5), "b": rand(5)})


def test_bias_add_and_split_gelu():
    x, b, skip = rand(2, 3, 8), rand(8), rand(2, 3, 8)
    check_contrib("BiasAdd", {"x": x}, {"b": b, "s": skip}, expected=[x + b + skip], symbolic=False)
    left, right = np.split(x + b, 2, -1)
    gelu = right * np.vectorize(lambda v: 0.5 * (1 + erf(v / 2**0.5)))(right).astype(np.float32)
    check_contrib("BiasSplitGelu", {"x": x}, {"b": b}, expected=[left * gelu])


@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize(("a", "b", "attributes"), [
    ((2, 3, 4), (2, 4, 5), {}), ((2, 4, 3), (2, 4, 5), {"transA": 1, "alpha": 0.5}), ((3, 4), (5, 4), {"transB": 1}),
    ((2, 4, 3), (5, 4), {"transA": 1, "transB": 1, "alpha": -2.0}), ((1, 2, 3, 4), (6, 1, 4, 5), {}),
])
def test_fused_matmul(op, a, b, attributes):
    check_contrib(op, {"a": rand(*a), "b": rand(*b)}, symbolic=1 not in a, **attributes)
    check_contrib(op, {"a": rand(*a)}, {"b": rand(*b)}, symbolic=1 not in a, **attributes)


@pytest.mark.parametrize(("a", "b", "attributes"), [
    ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}), ((4, 2, 3), (2, 4, 5), {"transBatchA": 1, "transA": 1}),
    ((2, 3, 4), (4, 2, 5), {"transBatchB": 1}), ((3, 2, 6, 4), (5, 2, 6, 4), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
])
def test_fused_matmul_with_the_first_dimension_moved(a, b, attributes):
    check_contrib("FusedMatMul", {"a": rand(*a), "b": rand(*b)}, **attributes)


@pytest.mark.parametrize(("activation", "parameters"), [
    ("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Tanh", {}), ("Sigmoid", {}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}), ("Elu", {"activation_alpha": 0.7}), ("Softplus", {}),
    ("Selu", {"activation_alpha": 1.2, "activation_gamma": 0.9}), ("ThresholdedRelu", {"activation_alpha": 0.3}), ("Softsign", {}),
])
def test_fused_gemm(activation, parameters):
    check_contrib("FusedGemm", {"a": rand(3, 4)}, {"b": rand(5, 4), "c": rand(5)}, transB=1, alpha=0.5, beta=2.0, activation=activation,
                  **parameters)
    check_contrib("FusedGemm", {"a": rand(4, 3)}, {"b": rand(4, 5)}, transA=1, activation=activation, **parameters)


@pytest.mark.parametrize(("activation", "parameters"), [
    ("Relu", None), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", None), ("Sigmoid", None)])
@pytest.mark.parametrize("residual", [False, True])
def test_fused_convolution(activation, parameters, residual):
    weights = {"w": rand(6, 4, 3, 3), "b": rand(6)}
    feeds = {"x": rand(2, 4, 7, 6), **({"z": rand(2, 6, 7, 6)} if residual else {})}
    attributes = {"activation_params": parameters} if parameters else {}
    check_contrib("FusedConv", feeds, weights, inputs=["x", "w", "b", "z"][:3 + residual], activation=activation, pads=[1, 1, 1, 1],
                  kernel_shape=[3, 3], symbolic=False, **attributes)


def test_convolution_with_channels_last():
    x, w, b = rand(1, 7, 6, 4), rand(6, 4, 3, 3), rand(6)
    same = {"pads": [1, 0, 1, 0], "strides": [2, 1], "kernel_shape": [3, 3]}
    first = contrib_model("FusedConv", {"x": x.transpose(0, 3, 1, 2)}, {"w": w, "b": b}, ["x", "w", "b"], ["y"], activation="Relu", **same)
    want = run_runtime(first, {"x": x.transpose(0, 3, 1, 2)})[0].transpose(0, 2, 3, 1)
    check_contrib("NhwcFusedConv", {"x": x}, {"w": w, "b": b}, expected=[want], activation="Relu", symbolic=False, **same)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_with_channels_last(dtype):
    x = RNG.integers(0, 100, (1, 7, 6, 4)).astype(dtype)
    check_contrib("NhwcMaxPool", {"x": x}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0], symbolic=False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_normalization(op, bias):
    feeds = {"x": rand(2, 3, 8), "s": rand(2, 3, 8)}
    constants = {"g": positive(8), **({"beta": rand(8)} if op == "SkipLayerNormalization" else {}), **({"b": rand(8)} if bias else {})}
    check_contrib(op, feeds, constants, outputs=["y", "", "", "sum"], epsilon=1e-5)
    check_contrib(op, feeds, constants)


def test_skip_normalization_without_beta_and_with_a_shared_skip():
    check_contrib("SkipLayerNormalization", {"x": rand(2, 3, 8), "s": rand(2, 3, 8)}, {"g": positive(8)})
    check_contrib("SkipLayerNormalization", {"x": rand(2, 3, 8), "s": rand(3, 8)}, {"g": positive(8), "b": rand(8)}, symbolic=False)
    check_contrib("SkipLayerNormalization", {"x": rand(2, 3, 8), "s": rand(1, 3, 8)}, {"g": positive(8), "b": rand(8)}, symbolic=False)
    check_contrib("SkipSimplifiedLayerNormalization", {"x": rand(3, 8), "s": rand(3, 8)}, {"g": positive(8)})


def test_normalizations_that_the_optimiser_puts_in_the_default_domain():
    check_contrib("SimplifiedLayerNormalization", {"x": rand(2, 3, 8)}, {"g": positive(8)}, domain="", epsilon=1e-6, axis=-1)
    check_contrib("LayerNormalization", {"x": rand(2, 3, 8)}, {"g": positive(8), "b": rand(8)}, domain="", version=13)


def test_statistics_are_outputs_too():
    x = rand(2, 3, 8)
    s = rand(2, 3, 8)
    total, g, b = x + s, positive(8), rand(8)
    mean, variance = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    inverse = 1 / np.sqrt(variance + 1e-5)
    want = [(total - mean) * inverse * g + b, mean, inverse]
    check_contrib("SkipLayerNormalization", {"x": x, "s": s}, {"g": g, "b": b}, outputs=["y", "m", "d"], epsilon=1e-5, expected=want)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_embedding(segments, mask, positions):
    feeds = {"ids": RNG.integers(0, 9, (2, 3)).astype(np.int32)}
    if segments:
        feeds["kinds"] = RNG.integers(0, 2, (2, 3)).astype(np.int32)
    if mask:
        feeds["mask"] = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    if positions:
        feeds["places"] = RNG.integers(0, 5, (positions, 3)).astype(np.int32)
    constants = {"w": rand(9, 8), "p": rand(5, 8), "k": rand(2, 8), "g": positive(8), "b": rand(8)}
    inputs = ["ids", "kinds" if segments else "", "w", "p", "k" if segments else "", "g", "b", "mask" if mask else "",
              "places" if positions else ""]
    constants = {n: a for n, a in constants.items() if n in inputs}
    check_contrib("EmbedLayerNormalization", feeds, constants, inputs=inputs, outputs=["y", "m", "s"], symbolic=positions != 1)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", [None, 2, 4])
def test_group_norm(last, activation, skip):
    x, gamma, beta = rand(2, 8, 3, 5), positive(8), rand(8)
    more, bias = (rand(2, 8) if skip == 2 else rand(2, 8, 3, 5)), rand(8)
    total = x if skip is None else x + more.reshape(2, 8, 3 if skip == 4 else 1, -1) + bias[:, None, None]
    grouped = total.reshape(2, 4, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    want = normal.reshape(total.shape) * gamma[:, None, None] + beta[:, None, None]
    want = want / (1 + np.exp(-want)) if activation else want

    def turned(a):
        return np.ascontiguousarray(a.transpose(0, 2, 3, 1)) if last and a.ndim == 4 else a

    feeds = {"x": turned(x), **({} if skip is None else {"s": turned(more)})}
    constants = {"g": gamma, "b": beta, **({} if skip is None else {"c": bias})}
    order = ["x", "g", "b", "s", "c"][:3 if skip is None else 5]
    check_contrib("GroupNorm" if skip is None else "SkipGroupNorm", feeds, constants, inputs=order, groups=4, activation=activation,
                  channels_last=last, outputs=["y"] if skip is None else ["y", "sum"], tolerance=1e-4, symbolic=False,
                  expected=[turned(want)] if skip is None else [turned(want), turned(total)])


def test_others():
    check_contrib("ExpandDims", {"x": rand(2, 3)}, {"a": np.int32(1)})
    check_contrib("ExpandDims", {"x": rand(2, 3)}, {"a": np.int32(-1)})
    check_contrib("Trilu", {"x": rand(2, 3, 4)}, {"k": np.int64(1)}, upper=0)
    check_contrib("Trilu", {"x": rand(2, 3, 4)})
    check_contrib("CDist", {"a": rand(3, 4), "b": rand(5, 4)}, metric="euclidean", tolerance=1e-4)
    check_contrib("CDist", {"a": rand(3, 4), "b": rand(5, 4)}, metric="sqeuclidean", tolerance=1e-4)
    check_contrib("GatherND", {"x": rand(3, 4, 5)}, {"i": np.array([[0, 1], [2, 3]], np.int64)})
    check_contrib("Pad", {"x": rand(3, 4)}, {"p": np.array([0, 1, 2, 0], np.int64), "v": np.array([2.5], np.float32)})
    check_contrib("GridSample", {"x": rand(1, 2, 4, 5), "g": rand(1, 3, 3, 2)}, padding_mode="border", mode="bilinear")


def test_bias_softmax():
    x, bias = rand(2, 3, 4, 5), rand(2, 1, 1, 5)
    e = np.exp(x + bias)
    check_contrib("BiasSoftmax", {"x": x, "b": bias}, axis=3, is_inner_broadcast=1, expected=[e / e.sum(-1, keepdims=True)],
                  symbolic=False)


def branches(op):
    """A model whose condition runs an operator of the domain or Relu."""
    def body(op, domain):
        made = oh.make_tensor_value_info("z", 1, ["n", 4])
        return oh.make_graph([oh.make_node(op, ["x"], ["z"], name="inner", domain=domain)], "branch", [], [made])

    node = oh.make_node("If", ["c"], ["y"], name="outer", then_branch=body(op, "com.microsoft"), else_branch=body("Relu", ""))
    model = make_model([node], {"x": rand(2, 4), "c": np.array(True)}, ["y"])
    model.opset_import.append(oh.make_opsetid("com.microsoft", 1))
    return model


def test_inside_of_branches():
    assert "host" not in kinds(lower_model(branches("QuickGelu")))
    with pytest.raises(UnsupportedError, match=r"'inner' \(Sampling\), inside node 'outer' \(If\).*'com\.microsoft'"):
        sartor.compile(branches("Sampling"))


def test_what_is_not_known_is_refused_by_name():
    model = contrib_model("Sampling", {"x": rand(2, 3)}, {}, ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=r"'node' \(Sampling\).*'com\.microsoft'"):
        lower_model(model)
    model = contrib_model("CDist", {"a": rand(2, 3), "b": rand(2, 3)}, {}, ["a", "b"], ["y"], metric="cosine")
    with pytest.raises(UnsupportedError, match=r"'node' \(CDist\) of the domain 'com\.microsoft' has the metric 'cosine'"):
        lower_model(model)
    model = contrib_model("ExpandDims", {"x": rand(2, 3), "k": np.array(1, np.int32)}, {}, ["x", "k"], ["y"])
    with pytest.raises(UnsupportedError, match=r"ExpandDims.*com\.microsoft"):
        lower_model(model)
