"""Quantised models in native code: what the compiled program gives is what exact integers give."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import make_model

import sartor

RNG = np.random.default_rng(3)


def run(op, feeds, constants, opset=21, **attributes):
    """Outputs of one operator's native code."""
    node = oh.make_node(op, [*feeds, *constants], ["y"], **attributes)
    program = sartor.compile(make_model([node], feeds, ["y"], constants, opset=opset))
    assert not program.fallbacks
    return next(iter(sartor.Session(program).run(feeds).values()))


def small(*shape, dtype=np.uint8):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("sizes", [(1, 300, 17), (13, 1031, 40), (5, 3, 1)])
def test_matmul_integer_is_exact(sizes, constant):
    m, k, n = sizes
    a, b, zeros = small(m, k), small(k, n, dtype=np.int8), {"az": np.uint8(255), "bz": np.int8(-128)}
    feeds, constants = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    got = run("MatMulInteger", feeds, {**constants, **zeros})
    np.testing.assert_array_equal(got, (a.astype(np.int32) - 255) @ (b.astype(np.int32) + 128))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_integer_convolution_is_exact(groups):
    x, w = small(1, 8, 9, 11), small(16, 8 // groups, 3, 3)
    got = run("ConvInteger", {"x": x}, {"w": w, "xz": np.uint8(7), "wz": np.uint8(130)}, pads=[1, 1, 1, 1], group=groups)
    padded = np.pad(x.astype(np.int32) - 7, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[0].reshape(groups, 8 // groups, 9, 11, 3, 3)
    weights = (w.astype(np.int32) - 130).reshape(groups, 16 // groups, 8 // groups, 3, 3)
    np.testing.assert_array_equal(got[0], np.einsum("gchwij,gocij->gohw", windows, weights).reshape(16, 9, 11))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_rounds_half_to_even_and_saturates(dtype):
    x = np.concatenate([np.arange(-40, 40) / 2, [3e38, -3e38, np.inf, -np.inf, np.nan]]).astype(np.float32)
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(np.nan_to_num(x, nan=-np.inf)) + 5, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(run("QuantizeLinear", {"x": x}, {"s": np.float32(1), "z": dtype(5)}), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64])
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
def test_casts_of_reals_saturate_wherever_they_stand(source, dtype):
    limits = np.iinfo(dtype)
    reals = [0.5, 1.75, -0.5, 99.9, 6e4, -6e4, np.inf, -np.inf, np.nan]
    expected = [0 if r != r else limits.max if r > limits.max else limits.min if r < limits.min else int(r) for r in reals]
    for count in (9, 17, 20):
        x, want = np.resize(reals, count).astype(source), np.resize(np.array(expected, dtype), count)
        np.testing.assert_array_equal(run("Cast", {"x": x}, {}, to=int(oh.np_dtype_to_tensor_dtype(np.dtype(dtype)))), want)


@pytest.mark.parametrize(("source", "to"), [(np.float32, np.int32), (np.uint32, np.float32), (np.float64, np.uint64), (np.int64, np.float64),
                                            (np.int8, np.uint8), (np.uint16, np.int16), (np.int32, np.int32)])
def test_bit_casts(source, to):
    x = small(13 * np.dtype(source).itemsize).view(source)
    got = run("BitCast", {"x": x}, {}, opset=26, to=int(oh.np_dtype_to_tensor_dtype(np.dtype(to))))
    assert got.dtype == to
    assert got.tobytes() == x.tobytes()
