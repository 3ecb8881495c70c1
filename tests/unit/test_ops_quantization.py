"""Quantisation, and products of quantised integers, against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.ops_harness import RNG, check, kinds, rand

from sartor.errors import ModelError


def small(*shape, dtype=np.uint8):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scales(*shape, dtype=np.float32):
    return RNG.uniform(0.01, 0.1, shape).astype(dtype)


INTEGERS = (np.uint8, np.int8, np.uint16, np.int16)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("parameters", "axis", "block"), [
    ((), 1, 0), ((3,), 1, 0), ((5,), -1, 0), ((2, 3, 2), 2, 3), ((1, 3, 5), 0, 2),
])
def test_quantize_and_dequantize(dtype, parameters, axis, block):
    x, scale, zero = 3 * rand(2, 3, 5), scales(*parameters), small(*parameters, dtype=dtype)
    check("QuantizeLinear", {"x": x}, {"s": scale, "z": zero}, opset=21, axis=axis, block_size=block)
    check("QuantizeLinear", {"x": x, "s": scale, "z": zero}, opset=21, axis=axis, block_size=block, symbolic=False)
    check("DequantizeLinear", {"x": small(2, 3, 5, dtype=dtype)}, {"s": scale, "z": zero}, opset=21, axis=axis, block_size=block)


def test_quantize_rounds_half_to_even_and_saturates():
    x = np.array([-1e9, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 3e38, np.inf, -np.inf], np.float32)
    expected = np.array([-128, -2, -2, 0, 0, 2, 2, 126, 127, 127, 127, -128], np.int8)
    check("QuantizeLinear", {"x": x}, {"s": np.float32(1), "z": np.int8(0)}, expected=[expected])


def test_quantize_rounds_before_the_zero_point_is_added():
    x = np.array([0.5, 1.5, 2.5], np.float32)
    check("QuantizeLinear", {"x": x}, {"s": np.float32(1), "z": np.uint8(1)}, expected=[np.array([1, 3, 3], np.uint8)])


def test_output_types_without_zero_point():
    x = rand(3, 4)
    check("QuantizeLinear", {"x": x}, {"s": np.float32(0.05)}, opset=19)
    check("QuantizeLinear", {"x": x}, {"s": np.float32(0.05)}, opset=21, output_dtype=5)
    check("DequantizeLinear", {"x": small(3, 4)}, {"s": np.float16(0.05), "z": np.uint8(3)}, opset=21, tolerance=1e-3)
    check("DequantizeLinear", {"x": rand(3, 4, dtype=np.int32)}, {"s": np.float32(0.05)}, opset=21)


@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0])
def test_dynamic_quantize(shift):
    check("DynamicQuantizeLinear", {"x": rand(3, 4) + np.float32(shift)}, outputs=3)


def test_dynamic_quantize_of_zeros():
    expected = [np.zeros((2, 3), np.uint8), np.float32(1), np.uint8(0)]
    check("DynamicQuantizeLinear", {"x": np.zeros((2, 3), np.float32)}, outputs=3, expected=expected)


@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.int8, np.uint8)])
def test_matmul_integer(types):
    a, b = small(3, 7, dtype=types[0]), small(7, 5, dtype=types[1])
    check("MatMulInteger", {"a": a}, {"b": b}, order=["a", "b"])
    check("MatMulInteger", {"a": a, "b": b}, {"az": types[0](3), "bz": types[1](9)}, symbolic=False)
    rows, columns = small(3, dtype=types[0]), small(5, dtype=types[1])
    expected = (a.astype(np.int32) - rows[:, None]) @ (b.astype(np.int32) - columns)
    graph = check("MatMulInteger", {"a": a}, {"b": b, "az": rows, "bz": columns}, expected=[expected], symbolic=False)
    assert kinds(graph) == ["elementwise", "matmul"]  # the weights are centred while compiling


@pytest.mark.parametrize("by_column", [False, True])
def test_quantized_matmul(by_column):
    b_scale, b_zero = (scales(5), small(5, dtype=np.int8)) if by_column else (scales(), np.int8(4))
    constants = {"as": scales(), "az": np.uint8(120), "b": small(7, 5, dtype=np.int8), "bs": b_scale, "bz": b_zero, "ys": np.float32(1.7),
                 "yz": np.uint8(128)}
    check("QLinearMatMul", {"a": small(2, 3, 7)}, constants, order=["a", *constants])


def test_integer_convolution_pads_with_the_zero_point():
    x, w = small(1, 2, 5, 6), small(3, 2, 3, 3)
    check("ConvInteger", {"x": x}, {"w": w, "xz": np.uint8(100), "wz": np.uint8(7)}, pads=[1, 1, 1, 1], runtime=True, symbolic=False)


@pytest.mark.parametrize("groups", [1, 2])
def test_quantized_convolution(groups):
    weights = small(4, 4 // groups, 3, 3, dtype=np.int8) // 2  # ONNX Runtime adds pairs of products in 16 bits, which saturate
    constants = {"xs": scales(), "xz": np.uint8(120), "w": weights, "ws": scales(4), "wz": np.zeros(4, np.int8),
                 "ys": np.float32(1.3), "yz": np.uint8(128), "b": small(4, dtype=np.int16).astype(np.int32)}
    check("QLinearConv", {"x": small(2, 4, 6, 7)}, constants, order=["x", *constants], pads=[1, 1, 1, 1], strides=[2, 1], group=groups,
          runtime=True, symbolic=False)


def test_parameters_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="axis"):
        check("QuantizeLinear", {"x": rand(2, 3)}, {"s": scales(4), "z": small(4)}, axis=1, expected=[small(2, 3)])
