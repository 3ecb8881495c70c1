"""The NumPy meaning of layers against ONNX's reference implementation and against plain formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sartor.errors import FeedError
from sartor.graph.expression import ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer, Problem, Tensor
from sartor.graph.reference import evaluate_expression, evaluate_graph, evaluate_layer
from sartor.graph.scalars import erf
from sartor.sizes import symbol
from sartor.types import from_numpy

RNG = np.random.default_rng(0)


def run(kind: str, inputs: list[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: str = "f32", wide: bool = False,
        **attributes: Any) -> np.ndarray[Any, Any]:
    names = [f"x{i}" for i in range(len(inputs))]
    tensors = {n: Tensor(from_numpy(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True)} | {"y": Tensor(dtype, shape)}
    problem = Problem(Layer("layer", kind, tuple(names), ("y",), attributes), tensors, {})
    return evaluate_layer(problem, dict(zip(names, inputs, strict=True)), {}, wide)["y"]


def onnx_run(op: str, inputs: list[np.ndarray[Any, Any] | None], **attributes: Any) -> np.ndarray[Any, Any]:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    node = onnx.helper.make_node(op, names, ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in names if n],
                                   [onnx.helper.make_value_info("y", onnx.TypeProto())])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if n}
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


def channels_last(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def test_erf_matches_the_standard_library() -> None:
    x = np.concatenate([np.linspace(-7, 7, 2001), [0.84375, 1.25, 1 / 0.35]])
    assert np.abs(erf(x) - [math.erf(v) for v in x]).max() < 3e-16
    assert np.isnan(erf(np.array([np.nan]))).all()


@pytest.mark.parametrize(("rank", "groups", "strides", "dilations", "pads"), [
    (2, 1, (1, 1), (1, 1), (1, 1, 1, 1)), (2, 2, (2, 1), (1, 2), (0, 1, 2, 3)), (2, 4, (2, 2), (2, 1), (1, 0, 0, 1)),
    (1, 1, (3,), (1,), (2, 0)), (3, 2, (1, 2, 1), (1, 1, 1), (1, 1, 1, 0, 1, 0)),
])
def test_convolution(rank: int, groups: int, strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...]) -> None:
    x, w = draw(2, 4, *(9, 8, 7)[:rank]), draw(8, 4 // groups, *(3, 2, 3)[:rank])
    expected = channels_last(onnx_run("Conv", [x, w], group=groups, strides=strides, dilations=dilations, pads=pads))
    weights = np.ascontiguousarray(np.moveaxis(w, (0, 1), (-1, -2)))
    found = run("convolution", [channels_last(x), weights], expected.shape, strides=strides, dilations=dilations, pads=pads, groups=groups)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "strides", "dilations", "pads", "extra"), [
    (1, (2, 2), (1, 1), (1, 1, 1, 1), (1, 0)), (2, (3, 1), (1, 2), (0, 1, 2, 0), (0, 0)), (4, (1, 2), (2, 1), (0, 0, 0, 0), (0, 1)),
])
def test_deconvolution(groups: int, strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...],
                       extra: tuple[int, ...]) -> None:
    x, w = draw(2, 4, 5, 6), draw(4, 8 // groups, 3, 3)
    expected = np.zeros((2, 8, *((s - 1) * t + 2 * d + 1 - pads[i] - pads[i + 2] + e
                                 for i, (s, t, d, e) in enumerate(zip((5, 6), strides, dilations, extra, strict=True)))))
    for n, i, j, a, b in np.ndindex(2, 5, 6, 3, 3):  # the definition, one tap at a time
        r, c = i * strides[0] + a * dilations[0] - pads[0], j * strides[1] + b * dilations[1] - pads[1]
        if 0 <= r < expected.shape[2] and 0 <= c < expected.shape[3]:
            for g in range(groups):
                cin, cout = slice(g * 4 // groups, (g + 1) * 4 // groups), slice(g * 8 // groups, (g + 1) * 8 // groups)
                expected[n, cout, r, c] += x[n, cin, i, j] @ w[cin, :, a, b]
    weights = np.ascontiguousarray(np.moveaxis(w, (0, 1), (-2, -1)))
    found = run("deconvolution", [channels_last(x), weights], channels_last(expected).shape, strides=strides, dilations=dilations,
                pads=pads, groups=groups)
    np.testing.assert_allclose(found, channels_last(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "mode", "extra"), [
    ("MaxPool", "max", {}), ("MaxPool", "max", {"ceil_mode": 1}), ("AveragePool", "average", {}),
    ("AveragePool", "average", {"count_include_pad": 1}), ("AveragePool", "average", {"ceil_mode": 1}),
    ("AveragePool", "average", {"ceil_mode": 1, "count_include_pad": 1}), ("LpPool", "lp", {"p": 3}),
])
def test_pool(op: str, mode: str, extra: dict[str, int]) -> None:
    x = draw(2, 3, 9, 8)
    expected = channels_last(onnx_run(op, [x], kernel_shape=(3, 2), strides=(2, 2), pads=(1, 0, 1, 1), **extra))
    found = run("pool", [channels_last(x)], expected.shape, mode=mode, kernel=(3, 2), strides=(2, 2), dilations=(1, 1),
                pads=(1, 0, 1, 1), include_pad=bool(extra.get("count_include_pad")), p=extra.get("p", 2))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_reduce(op: str) -> None:
    x = np.abs(draw(3, 4, 5)) + 0.1
    expected = onnx_run(f"Reduce{op}", [x, np.array([0, 2])])
    name = {"SumSquare": "sum_square", "LogSum": "log_sum", "LogSumExp": "log_sum_exp"}.get(op, op.lower())
    np.testing.assert_allclose(run("reduce", [x], (1, 4, 1), op=name, axes=(0, 2)), expected, rtol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_arg_reduce(last: bool) -> None:
    x = RNG.integers(0, 3, (4, 6)).astype(np.float32)
    expected = onnx_run("ArgMax", [x], axis=1, keepdims=1, select_last_index=int(last))
    found = run("reduce", [x], (4, 1), "i64", op="argmax", axes=(1,), select_last=last)
    np.testing.assert_array_equal(found, expected)


def test_softmax_and_its_logarithm() -> None:
    x = draw(3, 5)
    np.testing.assert_allclose(run("softmax", [x], x.shape, axis=0, log=False), onnx_run("Softmax", [x], axis=0), rtol=1e-5)
    np.testing.assert_allclose(run("softmax", [x], x.shape, axis=1, log=True), onnx_run("LogSoftmax", [x], axis=1), rtol=1e-5)


def test_normalize() -> None:
    x, one = draw(2, 3, 4), np.ones(4, np.float32)
    found = run("normalize", [x], x.shape, axes=(2,), mode="layer", epsilon=1e-3)
    np.testing.assert_allclose(found, onnx_run("LayerNormalization", [x, one], epsilon=1e-3), rtol=1e-4, atol=1e-6)
    found = run("normalize", [x], x.shape, axes=(1, 2), mode="rms", epsilon=1e-3)
    np.testing.assert_allclose(found, x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-3), rtol=1e-5)


@pytest.mark.parametrize(("causal", "masked"), [(False, ""), (True, "f32"), (False, "bool")])
def test_attention(causal: bool, masked: str) -> None:
    q, k, v = draw(2, 3, 4, 8), draw(2, 5, 2, 8), draw(2, 5, 2, 6)
    mask = {"f32": draw(3, 5), "bool": np.arange(10).reshape(2, 1, 1, 5) % 4 != 1, "": None}[masked]
    expected = np.zeros((2, 3, 4, 6))
    for b, h in np.ndindex(2, 4):
        s = q[b, :, h] @ k[b, :, h // 2].T * 0.3
        if mask is not None:
            m = np.broadcast_to(mask, (2, 4, 3, 5))[b, h]
            s = np.where(m, s, -np.inf) if mask.dtype == bool else s + m
        if causal:
            s = np.where(np.arange(5)[None] <= np.arange(3)[:, None] + 2, s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        expected[b, :, h] = e / e.sum(-1, keepdims=True) @ v[b, :, h // 2]
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    found = run("attention", inputs, (2, 3, 4, 6), scale=0.3, causal=causal)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    x = draw(4, 5)
    expected = onnx_run("Pad", [x, np.array([2, 1, 3, 4]), np.float32(7)], mode=mode)
    np.testing.assert_array_equal(run("pad", [x], (9, 10), before=(2, 1), mode=mode, value=7.0), expected)


def test_negative_pads_crop() -> None:
    x = draw(4, 5)
    np.testing.assert_array_equal(run("pad", [x], (3, 4), before=(-1, 1), mode="constant", value=0.0), np.pad(x[1:, :3], ((0, 0), (1, 0))))


def test_slice_with_negative_steps() -> None:
    x = draw(5, 6)
    np.testing.assert_array_equal(run("slice", [x], (5, 2), starts=(4, 1), steps=(-1, 3)), x[::-1, 1:5:3])


def test_gather_counts_from_the_end() -> None:
    x = draw(5, 6)
    np.testing.assert_array_equal(run("gather", [x, np.array([[0, -1]])], (5, 1, 2), axis=1), x[:, [[0, -1]]])


MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


@pytest.mark.parametrize("coordinate", MODES)
@pytest.mark.parametrize(("mode", "exclude", "antialias"), [("nearest", 0, 0), ("linear", 0, 0), ("linear", 0, 1), ("cubic", 0, 0),
                                                            ("cubic", 1, 0), ("cubic", 1, 1)])
@pytest.mark.parametrize("scales", [(2.0, 0.5), (0.6, 1.7), (3.0, 1.0)])
def test_resize(coordinate: str, mode: str, exclude: int, antialias: int, scales: tuple[float, float]) -> None:
    x = draw(5, 6)
    expected = onnx_run("Resize", [x, None, np.array(scales, np.float32)], mode=mode, coordinate_transformation_mode=coordinate,
                        exclude_outside=exclude, antialias=antialias, nearest_mode="floor")
    found = run("resize", [x], expected.shape, mode=mode, scales=tuple(map(float, np.float32(scales))), coordinate=coordinate,
                nearest="floor", cubic_a=-0.75, exclude_outside=bool(exclude), antialias=bool(antialias), extrapolation=0.0, roi=None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_rounding(nearest: str) -> None:
    x = draw(4, 6)
    expected = onnx_run("Resize", [x, None, None, np.array([8, 3])], mode="nearest", nearest_mode=nearest)
    found = run("resize", [x], (8, 3), mode="nearest", scales=(None, None), coordinate="half_pixel", nearest=nearest, cubic_a=-0.75,
                exclude_outside=False, antialias=False, extrapolation=0.0, roi=None)
    np.testing.assert_array_equal(found, expected)


def test_resize_extrapolates_outside_a_crop() -> None:
    x, roi = draw(4, 6), np.array([0.2, -0.3, 0.9, 1.1], np.float32)
    expected = onnx_run("Resize", [x, roi, None, np.array([3, 5])], mode="linear", extrapolation_value=9.0,
                        coordinate_transformation_mode="tf_crop_and_resize")
    found = run("resize", [x], (3, 5), mode="linear", scales=(None, None), coordinate="tf_crop_and_resize", nearest="floor", cubic_a=-0.75,
                exclude_outside=False, antialias=False, extrapolation=9.0, roi=tuple(map(float, roi)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found == 9.0).any()


def test_expression_integer_division_truncates_and_mod_follows_the_divisor() -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    for op, expected in [("div", [3, -3, -3, 3]), ("mod", [1, 1, -1, -1]), ("fmod", [1, -1, 1, -1])]:
        e = ExpressionBuilder(["i32", "i32"])
        np.testing.assert_array_equal(evaluate_expression(e.finish(e(op, 0, 1)), [a, b]), expected)


def test_expression_wide_does_not_round() -> None:
    e = ExpressionBuilder(["f32"])
    expression = e.finish(e("cast", e("add", 0, e.constant(1.0, "f32")), dtype="f16"))
    assert evaluate_expression(expression, [np.float32([1e-5])]).dtype == np.float16
    assert evaluate_expression(expression, [np.float64([1e-5])]) == [1.00001]


def test_a_graph_binds_symbols_and_runs_host_layers() -> None:
    n = symbol("n")
    node = onnx.helper.make_node("CumSum", ["a", "b"], ["c"]).SerializeToString()
    layers = [Layer("host", "host", ("x", "axis"), ("s",), {"node": node, "domains": {"": 14}}),
              Layer("sizes", "sizes", (), ("d",), {"dims": (n, n * 2)})]
    graph = Graph(("x",), ("s", "d"), {"x": Tensor("f32", (n, 2)), "axis": Tensor("i64", ()), "s": Tensor("f32", (n, 2)), "d": Tensor("i64", (2,))},
                  {"axis": np.int64(0)}, layers)
    x = draw(3, 2)
    out = evaluate_graph(graph, {"x": x}, wide=True)
    np.testing.assert_allclose(out["s"], np.cumsum(x, 0), rtol=1e-6)
    assert out["s"].dtype == np.float64
    assert out["d"].tolist() == [3, 6]
    with pytest.raises(FeedError, match="shape"):
        evaluate_graph(graph, {"x": draw(3, 3)})


def test_the_expression_follows_the_raw_result() -> None:
    e = ExpressionBuilder(["f32", "f32"])
    layer = Layer("m", "matmul", ("a", "b"), ("y",), {"transpose_b": True}, e.finish(e("relu", e("add", 0, 1))), ("c",))
    tensors = {"a": Tensor("f32", (2, 3)), "b": Tensor("f32", (4, 3)), "c": Tensor("f32", (4,)), "y": Tensor("f32", (2, 4))}
    a, b, c = draw(2, 3), draw(4, 3), draw(4)
    found = evaluate_layer(Problem(layer, tensors, {"c": c}), {"a": a, "b": b}, {})["y"]
    np.testing.assert_allclose(found, np.maximum(a @ b.T + c, 0), rtol=1e-5)
    assert identity("f32").is_identity
