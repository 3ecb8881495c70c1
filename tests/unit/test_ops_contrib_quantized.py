"""Operators of ONNX Runtime's domain on quantised integers, against that engine.

Where it adds or looks up in single precision in an order of its own, a result that lies between two integers may fall to the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.contrib_harness import check_contrib
from tests.unit.ops_harness import RNG, rand

BYTES = (np.uint8, np.int8)


def small(*shape, dtype=np.uint8, least=None, most=None):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min if least is None else least, limits.max if most is None else most, shape, dtype, endpoint=True)


def scale(value):
    return np.float32(value)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((1, 4), (3, 1))])
def test_binary(op, dtype, shapes):
    a, b = (small(*s, dtype=dtype) for s in shapes)
    constants = {"as": scale(0.03), "az": dtype(5), "bs": scale(0.05), "bz": dtype(9), "ys": scale(0.07), "yz": dtype(3)}
    order = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    check_contrib(op, {"a": a, "b": b}, constants, inputs=order, units=1, symbolic=1 not in shapes[0])
    check_contrib(op, {"a": a}, {**constants, "b": b}, inputs=order, units=1, symbolic=1 not in shapes[0])


def test_binary_without_zero_points():
    constants = {"as": scale(0.03), "bs": scale(0.05), "ys": scale(0.07)}
    a, b = small(3, 4), small(3, 4)
    want = np.clip(np.rint((a * 0.03 + b * 0.05) / 0.07), 0, 255).astype(np.uint8)
    check_contrib("QLinearAdd", {"a": a, "b": b}, constants, inputs=["a", "as", "", "b", "bs", "", "ys"], units=1, expected=[want])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("op", "attributes"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}), ("QLinearLeakyRelu", {})])
def test_functions_of_one_operand(op, attributes, dtype):
    constants = {"xs": scale(0.05), "xz": dtype(7), "ys": scale(0.004 if op == "QLinearSigmoid" else 0.05), "yz": dtype(2)}
    check_contrib(op, {"x": np.arange(256).astype(dtype)}, constants, units=1, **attributes)
    x = small(2, 3, dtype=dtype)
    real = x * np.float32(0.05)  # ONNX Runtime falls over absent zero points here
    real = 1 / (1 + np.exp(-real)) if op == "QLinearSigmoid" else np.where(real < 0, real * attributes.get("alpha", 0.01), real)
    limits = np.iinfo(dtype)
    want = np.clip(np.rint(real / constants["ys"]), limits.min, limits.max).astype(dtype)
    check_contrib(op, {"x": x}, constants, inputs=["x", "xs", "", "ys"], units=1, expected=[want], **attributes)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("last", [0, 1])
def test_average_pools(last, dtype):
    x = small(2, 6, 5, 4, dtype=dtype)
    constants = {"xs": scale(0.05), "xz": dtype(7), "ys": scale(0.06), "yz": dtype(2)}
    check_contrib("QLinearGlobalAveragePool", {"x": x}, constants, channels_last=last, units=1)
    for attributes in ({"kernel_shape": [2, 3]}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
                       {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}):
        check_contrib("QLinearAveragePool", {"x": x}, constants, channels_last=last, units=1, symbolic=False, **attributes)


@pytest.mark.parametrize("dtype", BYTES)
def test_concat_and_where(dtype):
    pieces = {"a": small(2, 3, dtype=dtype), "b": small(2, 5, dtype=dtype)}
    constants = {"ys": scale(0.06), "yz": dtype(4), "as": scale(0.05), "az": dtype(7), "bs": scale(0.06), "bz": dtype(4)}
    check_contrib("QLinearConcat", pieces, constants, inputs=["ys", "yz", "a", "as", "az", "b", "bs", "bz"], axis=1, units=1,
                  symbolic=False)
    feeds = {"c": RNG.random((2, 3)) < 0.5, "a": small(2, 3, dtype=dtype), "b": small(2, 3, dtype=dtype)}
    check_contrib("QLinearWhere", feeds, constants, inputs=["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"], units=1)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (12, 1), (12, 2)])
def test_softmax(opset, axis, dtype):
    constants = {"xs": scale(0.1), "xz": dtype(7), "ys": scale(1 / 256), "yz": dtype(0 if dtype == np.uint8 else -128)}
    check_contrib("QLinearSoftmax", {"x": small(2, 3, 6, dtype=dtype)}, constants, opset=opset, axis=axis,
                  units=1, symbolic=False)


def test_mean():
    constants = {"xs": scale(0.05), "xz": np.uint8(7), "ys": scale(0.06), "yz": np.uint8(2)}
    x = small(2, 3, 6)
    want = np.clip(np.rint(((x - 7.0) * 0.05).mean((1, 2)) / 0.06) + 2, 0, 255).astype(np.uint8)
    check_contrib("QLinearReduceMean", {"x": x}, constants, axes=[1, 2], keepdims=0, units=1, expected=[want])


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embedding(segments, mask):
    tables = {"w": small(9, 8), "p": small(5, 8), "k": small(2, 8), "g": small(8), "b": small(8)}
    feeds = {"ids": RNG.integers(0, 9, (2, 3)).astype(np.int32)}
    feeds |= {"kinds": RNG.integers(0, 2, (2, 3)).astype(np.int32)} if segments else {}
    feeds |= {"mask": np.array([[1, 1, 0], [1, 0, 0]], np.int32)} if mask else {}
    constants = {name: table for name, table in tables.items() if segments or name != "k"}
    order = ["ids", "kinds", "w", "p", "k", "g", "b", "mask"]
    for kind, letters in (("s", "wpkgb"), ("z", "wpkgb")):
        constants |= {kind + n: scale(RNG.uniform(0.01, 0.05)) if kind == "s" else small() for n in letters if segments or n != "k"}
        order += [kind + n for n in letters]
    order = [n if n in constants or n in feeds else "" for n in order]
    check_contrib("QEmbedLayerNormalization", feeds, constants, inputs=order, outputs=["y", "m"], tolerance=1e-4)


@pytest.mark.parametrize("columns", [(), (6,)])
@pytest.mark.parametrize("bias", [False, True])
def test_product_as_reals(columns, bias):
    feeds = {"a": small(2, 3, 8)}
    constants = {"b": small(8, 6), "as": scale(0.05), "bs": RNG.uniform(0.01, 0.1, columns).astype(np.float32), "az": np.uint8(9),
                 "bz": small(*columns), **({"c": rand(6)} if bias else {})}
    check_contrib("MatMulIntegerToFloat", feeds, constants, inputs=["a", "b", "as", "bs", "az", "bz", "c"][:6 + bias], tolerance=1e-4)
    check_contrib("MatMulIntegerToFloat", feeds, {n: constants[n] for n in ("b", "as", "bs")}, tolerance=1e-4)


@pytest.mark.parametrize("columns", [(), (6,)])
@pytest.mark.parametrize("dtype", BYTES)
def test_dynamic_product(columns, dtype):
    constants = {"b": small(8, 6, dtype=dtype, most=63, least=0), "bs": RNG.uniform(0.01, 0.1, columns).astype(np.float32),
                 "bz": small(*columns, dtype=dtype, most=9, least=0), "c": rand(6)}
    check_contrib("DynamicQuantizeMatMul", {"a": rand(2, 3, 8)}, constants, tolerance=1e-4)
    check_contrib("DynamicQuantizeMatMul", {"a": rand(5, 8)}, {n: constants[n] for n in ("b", "bs")}, tolerance=1e-4)


@pytest.mark.parametrize("turned", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("columns", [(), (6,)])
def test_gemm(turned, columns):
    a, b = small(*((8, 3) if turned[0] else (3, 8))), small(*((6, 8) if turned[1] else (8, 6)))
    constants = {"as": scale(0.02), "az": np.uint8(9), "b": b, "bs": RNG.uniform(0.01, 0.03, columns).astype(np.float32),
                 "bz": small(*columns), "c": RNG.integers(-900, 900, (6,)).astype(np.int32), "ys": scale(0.5), "yz": np.uint8(100)}
    same = {"transA": turned[0], "transB": turned[1]}
    order = ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"]
    check_contrib("QGemm", {"a": a}, constants, inputs=order, units=1, **same)
    check_contrib("QGemm", {"a": a}, {n: v for n, v in constants.items() if n[0] != "y"}, inputs=order[:7], tolerance=1e-4, **same)
    check_contrib("QGemm", {"a": a}, {n: v for n, v in constants.items() if n != "c"}, inputs=[n if n != "c" else "" for n in order],
                  units=1, **same)


@pytest.mark.parametrize("last", [0, 1])
def test_convolution(last):
    x = small(1, 6, 5, 4) if last else small(1, 4, 6, 5)
    constants = {"xs": scale(0.05), "xz": np.uint8(9), "w": small(6, 4, 3, 3), "ws": scale(0.02), "wz": np.uint8(120), "ys": scale(0.4),
                 "yz": np.uint8(100), "b": RNG.integers(-900, 900, (6,)).astype(np.int32)}
    check_contrib("QLinearConv", {"x": x}, constants, channels_last=last, pads=[1, 1, 1, 1], kernel_shape=[3, 3], units=1, symbolic=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_and_dequantize(dtype):
    check_contrib("QuantizeLinear", {"x": 3 * rand(3, 4)}, {"s": scale(0.05), "z": dtype(7)})
    check_contrib("DequantizeLinear", {"x": small(3, 4, dtype=dtype)}, {"s": scale(0.05), "z": dtype(7)})
    check_contrib("QuantizeLinear", {"x": 3 * rand(3, 4)}, {"s": np.array([0.05, 0.1, 0.2], np.float32), "z": np.array([1, 2, 3], dtype)},
                  axis=0)
    check_contrib("DequantizeLinear", {"x": small(3, 4, dtype=dtype)},
                  {"s": np.array([0.05, 0.1, 0.2], np.float32), "z": np.array([1, 2, 3], dtype)}, axis=0)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 16), (2, 16)])
@pytest.mark.parametrize("zeros", ["none", "packed", "real"])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_few_bits(bits, block, zeros, bias):
    if bits == 8 and zeros == "real":
        pytest.skip("not in ONNX Runtime on processors")
    rows, depth = 6, 48
    blocks = -(-depth // block)
    packed = (blocks * bits + 7) // 8
    constants = {"b": small(rows, blocks, block * bits // 8), "s": RNG.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32)}
    if zeros == "packed":
        constants["z"] = small(rows, packed)
    elif zeros == "real":
        constants["z"] = RNG.uniform(0, 1 << bits, (rows, blocks)).astype(np.float32)
    if bias:
        constants["c"] = rand(rows)
    order = ["a", "b", "s", "z" if zeros != "none" else "", "", "c" if bias else ""]
    while not order[-1]:
        order.pop()
    check_contrib("MatMulNBits", {"a": rand(2, 3, depth)}, constants, inputs=order, N=rows, K=depth, bits=bits, block_size=block,
                  symbolic=False, tolerance=1e-4)


@pytest.mark.parametrize("kind", [0, 1])
def test_four_bit_floats(kind):
    rows, depth, block = 6, 32, 16
    constants = {"b": small(rows * depth // 2), "m": RNG.uniform(0.5, 2, rows * depth // block).astype(np.float32)}
    check_contrib("MatMulBnb4", {"a": rand(2, 3, depth)}, constants, N=rows, K=depth, block_size=block, quant_type=kind, symbolic=False,
                  tolerance=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_from_blocks(bits, zeros):
    constants = {"t": small(7, 32 * bits // 8), "s": RNG.uniform(0.01, 0.1, (7, 2)).astype(np.float32)}
    if zeros:
        constants["z"] = small(7, 2 * bits // 8)
    indices = np.array([[0, 6, 3], [2, 2, 1]], np.int64)
    check_contrib("GatherBlockQuantized", {"i": indices}, constants, inputs=["t", "i", "s", "z"][:3 + zeros], bits=bits, block_size=16,
                  gather_axis=0, quantize_axis=1)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("by_column", [False, True])
def test_lstm(direction, by_column):
    directions, hidden, size = 1 + (direction == "bidirectional"), 8, 6
    shape = (directions, 4 * hidden) if by_column else (directions,)
    constants = {"w": small(directions, size, 4 * hidden, dtype=np.int8, least=-60, most=60),
                 "r": small(directions, hidden, 4 * hidden, dtype=np.int8, least=-60, most=60), "b": rand(directions, 8 * hidden),
                 "ws": RNG.uniform(0.002, 0.005, shape).astype(np.float32), "wz": np.zeros(shape, np.int8),
                 "rs": RNG.uniform(0.002, 0.005, shape).astype(np.float32), "rz": np.zeros(shape, np.int8)}
    order = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    # ONNX Runtime also quantises the activations, to 8 bits
    check_contrib("DynamicQuantizeLSTM", {"x": rand(5, 2, size)}, constants, inputs=order, outputs=["y", "h", "c"], hidden_size=hidden,
                  direction=direction, tolerance=2e-2, symbolic=False)
