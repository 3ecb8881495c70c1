"""Operators of the domain com.microsoft on quantised integers, and products with weights of few bits.

What is added, multiplied or looked up on quantised operands is computed on the reals these stand for and quantised again; products
and means are exact in i32 first.  Weights of few bits are unpacked while the model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops import elementwise, pooling, quantization, reduction
from sartor.ops.context import Array, Call, Context
from sartor.ops.contrib import last_to_first, mask_index, normalized, operators, temporary, unsupported
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import emit_gather
from sartor.ops.matmul import multiply
from sartor.ops.movement import emit_slice
from sartor.ops.numbers import axis_of
from sartor.ops.quantization import INTEGERS, centred, saturated
from sartor.ops.recurrent import recurrent
from sartor.sizes import Dim

Real = Callable[..., int]


def _scalar(context: Context, name: str) -> str:
    return context.reshape(name, ()) if name else ""


def _reals(context: Context, call: Call, parts: Sequence[tuple[str, str, str]], target: tuple[str, str], build: Real,
           shape: Sequence[Dim], output: str) -> None:
    """An element-wise function of dequantised operands, quantised again.

    `parts` are values with their scales and zero points ("" for 0), `target` the result's scale and zero point.
    """
    dtype = context.dtype(parts[0][0])
    if dtype not in INTEGERS:
        raise unsupported(call, f"works on {dtype}")
    if not target[0] or not all(x and scale for x, scale, _ in parts):
        raise ModelError(f"{call} lacks an operand or a scale")
    flat = [v for x, scale, zero in parts for v in (x, _scalar(context, scale), _scalar(context, zero))]
    flat += [_scalar(context, target[0]), _scalar(context, target[1])]
    given = [v for v in flat if v]

    def whole(e: ExpressionBuilder, *operands: int) -> int:
        index = iter(operands)
        slots = [next(index) if v else None for v in flat]
        reals = []
        for place in range(0, len(parts) * 3, 3):
            x, scale, zero = slots[place:place + 3]
            assert x is not None and scale is not None
            wide = e("cast", x, dtype="i32")
            wide = wide if zero is None else e("sub", wide, e("cast", zero, dtype="i32"))
            reals.append(e("mul", e("cast", wide, dtype="f32"), e("cast", scale, dtype="f32")))
        result, by = build(e, *reals), slots[-2]
        assert by is not None
        return saturated(e, e("div", result, e("cast", by, dtype="f32"), value="exact"), slots[-1], dtype)

    context.elementwise(given, whole, shape, output=output)


def _binary(op: str) -> Operator:
    def lower(context: Context, call: Call) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, scale = call.inputs[:7]
        shape = context.broadcast([context.shape(a), context.shape(b)])
        _reals(context, call, [(a, a_scale, a_zero), (b, b_scale, b_zero)], (scale, call.input(7)), lambda e, x, y: e(op, x, y),
               shape, call.outputs[0])

    return lower


def _sigmoid(context: Context, call: Call) -> None:
    x, scale, zero, y_scale = call.inputs[:4]
    _reals(context, call, [(x, scale, zero)], (y_scale, call.input(4)), lambda e, v: e("sigmoid", v), context.shape(x), call.outputs[0])


def _leaky_relu(context: Context, call: Call) -> None:
    x, scale, zero, y_scale = call.inputs[:4]
    alpha = float(call.get("alpha", 0.01))

    def build(e: ExpressionBuilder, v: int) -> int:
        return e("select", e("lt", v, e.constant(0.0, "f32")), e("mul", v, e.constant(alpha, "f32")), v)

    _reals(context, call, [(x, scale, zero)], (y_scale, call.input(4)), build, context.shape(x), call.outputs[0])


def _where(context: Context, call: Call) -> None:
    """Either operand, requantised."""
    condition, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero = call.inputs
    made = []
    for value, by, offset in ((x, x_scale, x_zero), (y, y_scale, y_zero)):
        made.append(temporary(context, call, "requantized"))
        _reals(context, call, [(value, by, offset)], (scale, zero), lambda e, v: v, context.shape(value), made[-1])
    elementwise.OPERATORS["", "Where"](context, replace(call, inputs=(condition, *made)))


def _concat(context: Context, call: Call) -> None:
    """Pieces with scales and zero points of their own, each requantised."""
    y_scale, y_zero, *rest = call.inputs
    if len(rest) % 3:
        raise ModelError(f"{call} has {len(rest)} inputs for its pieces; expected three for each")
    pieces = []
    for x, scale, zero in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        pieces.append(temporary(context, call, "piece"))
        _reals(context, call, [(x, scale, zero)], (y_scale, y_zero), lambda e, v: v, context.shape(x), pieces[-1])
    shapes = [context.shape(v) for v in pieces]
    axis = axis_of(call["axis"], len(shapes[0]), call)
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    result = Tensor(context.dtype(pieces[0]), (*shapes[0][:axis], total, *shapes[0][axis + 1:]))
    context.layer("concat", pieces, result, output=call.outputs[0], axis=axis)


# --- over several elements -------------------------------------------------------------------------------------------------


def _dequantized(context: Context, call: Call, x: str, scale: str, zero: str) -> str:
    """The reals a quantised value stands for, with one scale."""
    operands = [v for v in (x, _scalar(context, scale), _scalar(context, zero)) if v]

    def build(e: ExpressionBuilder, value: int, by: int, offset: int | None = None) -> int:
        out = e("cast", value, dtype="i32")
        out = out if offset is None else e("sub", out, e("cast", offset, dtype="i32"))
        return e("mul", e("cast", out, dtype="f32"), e("cast", by, dtype="f32"))

    return context.elementwise(operands, build, context.shape(x), suffix="reals")


def _quantized(context: Context, real: str, scale: str, zero: str, dtype: str, output: str) -> None:
    """A real value quantised with one scale."""
    operands = [v for v in (real, _scalar(context, scale), _scalar(context, zero)) if v]

    def build(e: ExpressionBuilder, value: int, by: int, offset: int | None = None) -> int:
        return saturated(e, e("div", value, by, value="exact"), offset, dtype)

    context.elementwise(operands, build, context.shape(real), output=output)


def on_reals(operator: Operator) -> Operator:
    """A function of one operand (x, scale, zero, result's scale, result's zero) that is computed on its reals."""
    def lower(context: Context, call: Call) -> None:
        x, scale, zero, y_scale = call.inputs[:4]
        dtype = context.dtype(x)
        if dtype not in INTEGERS:
            raise unsupported(call, f"works on {dtype}")
        made = temporary(context, call, "real")
        operator(context, replace(call, inputs=(_dequantized(context, call, x, scale, zero),), outputs=(made,)))
        _quantized(context, made, y_scale, call.input(4), dtype, call.outputs[0])

    return lower


def _channels(operator: Operator) -> Operator:
    """An operator on images whose attribute `channels_last` may say that channels are last."""
    def lower(context: Context, call: Call) -> None:
        (last_to_first(operator) if call.get("channels_last", 0) else operator)(context, call)

    return lower


def _softmax(context: Context, call: Call) -> None:
    """As of the opset that an attribute names; from 13 on along one axis."""
    version = 13 if call.get("opset", 13) >= 13 else 11
    on_reals(lambda c, inner: reduction.softmax(log=False)(c, replace(inner, version=version)))(context, call)


def _convolution(context: Context, call: Call) -> None:
    quantization.quantized_convolution(context, replace(call, version=10))


def _embed_normalization(context: Context, call: Call) -> None:
    """The sum of rows of quantised tables, as reals, normalised by a quantised scale and bias."""
    names = ("words", "places", "kinds", "gamma", "beta")
    scales = {name: call.input(8 + i) for i, name in enumerate(names)}
    zeros = {name: call.input(13 + i) for i, name in enumerate(names)}
    values = dict(zip(names, (call.input(i) for i in range(2, 7)), strict=True))
    ids, segments, mask = call.input(0), call.input(1), call.input(7)

    def real(name: str, value: str) -> str:
        return _dequantized(context, call, value, scales[name], zeros[name])

    width = context.shape(values["places"])[1]
    places = emit_slice(context, values["places"], [0, 0], [1, 1], (context.shape(ids)[1], width))
    parts = [real("words", emit_gather(context, values["words"], ids, 0, None)), real("places", places)]
    if segments:
        parts.append(real("kinds", emit_gather(context, values["kinds"], segments, 0, None)))

    def build(e: ExpressionBuilder, out: int, *others: int) -> int:
        for other in others:
            out = e("add", out, other)
        return out

    total = context.elementwise(parts, build, context.shape(parts[0]), suffix="sum")
    normalized(context, call, total, real("gamma", values["gamma"]), real("beta", values["beta"]), mode="layer",
               epsilon=float(call.get("epsilon", 1e-12)), output=call.outputs[0])
    if call.output(1):
        mask_index(context, call, ids, mask, call.outputs[1])


# --- products --------------------------------------------------------------------------------------------------------------


def _column(context: Context, name: str) -> str:
    """A scale of one number, or of one for each column, in a shape that broadcasts to products."""
    return _scalar(context, name) if context.tensor(name).elements == 1 else name


def _product(context: Context, call: Call, operands: tuple[str, str], zeros: tuple[str, str]) -> str:
    """The exact product of two quantised matrices, i32."""
    a, b = operands
    left = centred(context, a, zeros[0])
    right = centred(context, b, zeros[1], context.shape(zeros[1]) if zeros[1] else ())
    made = temporary(context, call, "product")
    multiply(context, replace(call, inputs=(left, right), outputs=(made,)))
    return made


def _scaled(context: Context, product: str, a_scale: str, b_scale: str, bias: str, output: str | None) -> str:
    """An exact product as reals, with a bias."""
    operands = [product, _column(context, a_scale), _column(context, b_scale), *([bias] if bias else [])]
    dtype = context.dtype(b_scale)

    def build(e: ExpressionBuilder, value: int, a: int, b: int, added: int | None = None) -> int:
        factor = e("mul", e("cast", a, dtype="f32"), e("cast", b, dtype="f32"))
        out = e("mul", e("cast", value, dtype="f32"), factor)
        out = out if added is None else e("add", out, e("cast", added, dtype="f32"))
        return out if dtype == "f32" else e("cast", out, dtype=dtype)

    return context.elementwise(operands, build, context.shape(product), output=output, suffix="scaled")


def integer_to_float(context: Context, call: Call) -> None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (call.input(i) for i in range(7))
    product = _product(context, call, (a, b), (_scalar(context, a_zero), b_zero))
    _scaled(context, product, a_scale, b_scale, bias, call.outputs[0])


def _dynamic_product(context: Context, call: Call) -> None:
    """The left operand is quantised to u8 by its range first."""
    a, b, b_scale, b_zero, bias = (call.input(i) for i in range(5))
    quantized, scale, zero = (temporary(context, call, part) for part in ("quantized", "scale", "zero"))
    quantization.dynamic_quantize(context, replace(call, inputs=(a,), outputs=(quantized, scale, zero)))
    product = _product(context, call, (quantized, b), (zero, b_zero))
    _scaled(context, product, scale, b_scale, bias, call.outputs[0])


def _gemm(context: Context, call: Call) -> None:
    """alpha * A B + C, C having the product's scale; a real where no scale of the result is given."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (call.input(i) for i in range(9))
    left = centred(context, a, _scalar(context, a_zero))
    columns: tuple[Dim, ...] = context.shape(b_zero) if b_zero else ()
    right = centred(context, b, b_zero, (*columns, 1) if columns and call.get("transB", 0) else columns)
    if call.get("transA", 0):
        left = context.transpose(left, (1, 0), suffix="turned")
    if call.get("transB", 0):
        right = context.transpose(right, (1, 0), suffix="turned")
    made = temporary(context, call, "product")
    multiply(context, replace(call, inputs=(left, right), outputs=(made,)))
    shape, alpha = context.shape(made), float(call.get("alpha", 1.0))
    operands = [made, _column(context, a_scale), _column(context, b_scale), *([c] if c else [])]

    def build(e: ExpressionBuilder, value: int, x: int, y: int, added: int | None = None) -> int:
        out = value if added is None else e("add", value, added)
        factor = e("mul", e("mul", x, y), e.constant(alpha, "f32"))
        return e("cast", e("mul", e("cast", out, dtype="f64"), e("cast", factor, dtype="f64")), dtype="f32")

    real = context.elementwise(operands, build, shape, output=None if y_scale else call.outputs[0], suffix="real" if y_scale else "")
    if y_scale:
        _quantized(context, real, y_scale, y_zero, context.dtype(y_zero) if y_zero else "u8", call.outputs[0])


# --- weights of few bits ---------------------------------------------------------------------------------------------------


def unpacked(packed: Array, bits: int) -> Array:
    """Numbers of a few bits, the lowest first in each byte, along the last dimension."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * bits
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], packed.shape[-1] * each))


def _few_bits(context: Context, call: Call) -> None:
    """A times weights packed in blocks along K, [N, blocks, bytes], with a scale and a zero point a block."""
    a, b, scales, zeros, order, bias = (call.input(i) for i in range(6))
    rows, depth, size, bits = (int(call[n]) if n != "bits" else int(call.get("bits", 4)) for n in ("N", "K", "block_size", "bits"))
    arrays = [context.constant(v) if v else None for v in (b, scales, zeros)]
    if bits not in (2, 4, 8) or order or call.get("weight_prepacked", 0):
        raise unsupported(call, f"has weights of {bits} bits, in an order of their own or already laid out for a device")
    if arrays[0] is None or arrays[1] is None or (zeros and arrays[2] is None):
        raise unsupported(call, "has weights that are not constant")
    blocks = -(-depth // size)
    numbers = unpacked(arrays[0].reshape(rows, blocks, -1), bits).astype(np.float32)
    if arrays[2] is None:
        offset = np.full((1, 1, 1), 1 << (bits - 1), np.float32)
    elif arrays[2].dtype == np.uint8:
        offset = unpacked(arrays[2].reshape(rows, -1), bits)[:, :blocks, None].astype(np.float32)
    else:
        offset = arrays[2].reshape(rows, blocks, 1).astype(np.float32)
    weights = (numbers - offset) * arrays[1].reshape(rows, blocks, 1).astype(np.float32)
    weights = weights.reshape(rows, blocks * size)[:, :depth].T
    _times(context, call, a, weights, bias)


_BNB4 = {
    0: (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25, -0.0, -0.0052083333, -0.66666667, -1.0, -0.33333333, -0.5,
        -0.16666667, -0.25),
    1: (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
}
"""What the sixteen codes of bitsandbytes' FP4 and NF4 stand for (Dettmers et al., QLoRA, 2023, appendix E)."""


def _bits_and_bytes(context: Context, call: Call) -> None:
    """A times weights of 4-bit floats, [N, K] in one row, the high half of each byte first, with a largest number a block."""
    a, b, largest = call.inputs
    rows, depth, size, kind = int(call["N"]), int(call["K"]), int(call["block_size"]), int(call["quant_type"])
    packed, scales = context.constant(b), context.constant(largest)
    if packed is None or scales is None or kind not in _BNB4 or not call.get("transB", 1):
        raise unsupported(call, "has weights that are not constant, of an unknown type or not transposed")
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], -1).reshape(-1)[:rows * depth]
    numbers = np.array(_BNB4[kind], np.float32)[codes]
    weights = numbers * np.repeat(scales.reshape(-1).astype(np.float32), size)[:rows * depth]
    _times(context, call, a, weights.reshape(rows, depth).T, "")


def _times(context: Context, call: Call, a: str, weights: Array, bias: str) -> None:
    """The product with unpacked weights [K, N], and a bias."""
    dtype = context.dtype(a)
    made = context.new_constant(np.ascontiguousarray(weights, np.float32), f"{call.inputs[1]}.unpacked")
    if dtype != "f32":
        made = context.elementwise([made], lambda e, w: e("cast", w, dtype=dtype), weights.shape, suffix="weights")
    product = temporary(context, call, "product") if bias else call.outputs[0]
    multiply(context, replace(call, inputs=(a, made), outputs=(product,)))
    if bias:
        context.elementwise([product, bias], lambda e, x, y: e("add", x, y), context.shape(product), output=call.outputs[0])


def _gather_blocks(context: Context, call: Call) -> None:
    """A gather from a table of quantised blocks, which is unpacked while the model is compiled."""
    data, indices, scales, zeros = (call.input(i) for i in range(4))
    bits, size, dtype = int(call.get("bits", 4)), int(call.get("block_size", 128)), context.dtype(scales)
    arrays = [context.constant(v) if v else None for v in (data, scales, zeros)]
    table, factors, offsets = arrays
    if table is None or factors is None or (zeros and offsets is None) or bits not in (2, 4, 8) or size < 1:
        raise unsupported(call, "has a table that is not constant, or blocks of an unknown form")
    if table.dtype == np.uint8 and bits < 8:
        table = unpacked(table, bits)
        offsets = unpacked(offsets, bits) if offsets is not None else None
    axis = axis_of(call.get("quantize_axis", 1), table.ndim, call)
    wide, extent = table.astype(np.float32), table.shape[axis]

    def spread(array: Array) -> Array:
        return np.asarray(array.astype(np.float32).repeat(size, axis).take(range(extent), axis))

    signed = np.dtype(arrays[0].dtype if arrays[0] is not None else np.uint8).name in ("int4", "int8")
    offset = np.float32(0 if signed else 1 << (bits - 1)) if offsets is None else spread(offsets.take(range(factors.shape[axis]), axis))
    reals = context.new_constant((wide - offset) * spread(factors), f"{data}.unpacked")
    if dtype != "f32":
        reals = context.elementwise([reals], lambda e, w: e("cast", w, dtype=dtype), context.shape(reals), suffix="table")
    emit_gather(context, reals, indices, axis_of(call.get("gather_axis", 0), wide.ndim, call), call.outputs[0])


# --- recurrent -------------------------------------------------------------------------------------------------------------


def _weights(context: Context, call: Call, value: str, scale: str, zero: str) -> str:
    """Weights [D, I, 4 * H] of a cell, quantised as a whole or by column, as reals [D, 4 * H, I]."""
    directions, depth, width = context.shape(value)
    shape: tuple[Dim, ...] = (directions, 1, 1) if len(context.shape(scale)) < 2 else (directions, 1, width)
    operands = [value, context.reshape(scale, shape), *([context.reshape(zero, shape)] if zero else [])]

    def build(e: ExpressionBuilder, w: int, by: int, offset: int | None = None) -> int:
        out = e("cast", w, dtype="i32")
        out = out if offset is None else e("sub", out, e("cast", offset, dtype="i32"))
        return e("mul", e("cast", out, dtype="f32"), by)

    reals = context.elementwise(operands, build, (directions, depth, width), suffix="reals")
    return context.transpose(reals, (0, 2, 1), suffix="weights")


def _lstm(context: Context, call: Call) -> None:
    """With activations as they are: quantising them, which ONNX Runtime does by ranges that depend on its threads, saves time only."""
    w, r = (_weights(context, call, call.inputs[i], call.input(s), call.input(s + 1)) for i, s in ((1, 8), (2, 10)))
    inputs = (call.inputs[0], w, r, *(call.input(i) for i in range(3, 8)))
    while not inputs[-1]:
        inputs = inputs[:-1]
    recurrent("lstm")(context, replace(call, op_type="LSTM", version=14, inputs=inputs))


def _mean(context: Context, call: Call) -> None:
    reduce = reduction.reduction("mean")
    on_reals(lambda c, inner: reduce(c, replace(inner, inputs=inner.inputs[:1])))(context, call)


OPERATORS: dict[tuple[str, str], Operator] = operators([
    ("DequantizeLinear", quantization.OPERATORS["", "DequantizeLinear"]),
    ("DynamicQuantizeLSTM", _lstm),
    ("DynamicQuantizeMatMul", _dynamic_product),
    ("GatherBlockQuantized", _gather_blocks),
    ("MatMulBnb4", _bits_and_bytes),
    ("MatMulInteger16", quantization.OPERATORS["", "MatMulInteger"]),
    ("MatMulIntegerToFloat", integer_to_float),
    ("MatMulNBits", _few_bits),
    ("QEmbedLayerNormalization", _embed_normalization),
    ("QGemm", _gemm),
    ("QLinearAdd", _binary("add")),
    ("QLinearAveragePool", _channels(on_reals(pooling.pool("average")))),
    ("QLinearConcat", _concat),
    ("QLinearConv", _channels(_convolution)),
    ("QLinearGlobalAveragePool", _channels(on_reals(pooling.global_pool("mean")))),
    ("QLinearLeakyRelu", _leaky_relu),
    ("QLinearMul", _binary("mul")),
    ("QLinearReduceMean", _mean),
    ("QLinearSigmoid", _sigmoid),
    ("QLinearSoftmax", _softmax),
    ("QLinearWhere", _where),
    ("QuantizeLinear", quantization.OPERATORS["", "QuantizeLinear"]),
])
