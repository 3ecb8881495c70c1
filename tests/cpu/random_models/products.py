"""Random nodes of products, quantisation, recurrences, attention and transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tests.cpu.random_models.elementwise import DATA_TYPES
from tests.cpu.random_models.fills import between, is_float, normal, positive, small, uniform
from tests.cpu.random_models.maker import Entry, Maker, SkipError
from tests.cpu.random_models.spatial import image, kernel_for, window


def matmul(m: Maker, op: str) -> None:
    integer = op == "MatMulInteger"
    a = m.any(m.types(op, 0), low=1, high=5, limit=1500)
    shape, dtype = m.shape_of(a), m.dtype_of(a)
    inner, columns = shape[-1], m.size()
    if m.chance(0.15):
        right: tuple[int, ...] = (inner,)
    else:
        lead = m.broadcasting(shape[:-2]) if m.chance(0.6) else ()
        right = (*lead, inner, columns)
    other = m.one(m.types(op, 1)) if integer else dtype
    inputs = [a, m.tensor(other, right, normal, constant=0.5)]
    if integer and m.chance(0.6):
        inputs.append(m.given(m.number(0, 9), dtype))
        if m.chance(0.6):
            per = len(right) > 1 and len(shape) > 1 and m.chance(0.4)
            inputs.append(m.new(other, (right[-1],), between(0, 9)) if per else m.given(m.number(0, 9), other))
    m.node(op, inputs)


def gemm(m: Maker, op: str) -> None:
    rows, inner, columns = m.size(), m.size(), m.size()
    dtype = m.type(op)
    turn_a, turn_b = m.number(0, 1), m.number(0, 1)
    a = m.tensor(dtype, (inner, rows) if turn_a else (rows, inner))
    b = m.tensor(dtype, (columns, inner) if turn_b else (inner, columns), constant=0.6)
    inputs = [a, b]
    if m.opset < 11 or m.chance(0.7):
        inputs.append(m.tensor(dtype, m.one(((columns,), (1, columns), (rows, 1), (rows, columns), (), (1,))), constant=0.6))
    whole = not is_float(dtype)
    if whole:  # products that the type holds, since the reference computes them in double precision
        inputs = [m.new(dtype, m.shape_of(n), between(0, 9)) for n in inputs]
    m.node(op, inputs, transA=turn_a or None, transB=turn_b or None,
           alpha=float(m.number(1, 3)) if whole else m.one((None, m.real(-2, 2))),
           beta=float(m.number(1, 3)) if whole else m.one((None, 0.0, m.real(-2, 2))))


EQUATIONS = ("ij,jk->ik", "ij,kj", "bij,bjk->bik", "i,i->", "ij->ji", "ii->i", "ii", "ij->", "...ij,...jk->...ik", "bhqd,bhkd->bhqk",
             "abc,cd->abd", "i,j->ij", "ij,ij->i", "iij->j", "a,ab,b->", "ijk->kj", "...i->...", " ij , jk -> ik")


def einsum(m: Maker, op: str) -> None:
    equation = m.one(EQUATIONS)
    dtype = m.type(op)
    sizes: dict[str, int] = {}
    dots = tuple(m.number(1, 3) for _ in range(m.number(0, 2)))
    operands = []
    for term in equation.replace(" ", "").split("->")[0].split(","):
        letters = term.replace("...", "")
        shape = tuple(sizes.setdefault(c, m.number(1, 5)) for c in letters)
        operands.append(m.tensor(dtype, (dots if "..." in term else ()) + shape))
    m.node(op, operands, equation=equation)


def scale_of(m: Maker, dtype: str, shape: tuple[int, ...] = ()) -> str:
    return m.new(dtype, shape, uniform(0.02, 0.3), constant=0.8, hidden=True)


QUANTIZED = ("int8", "uint8", "int16", "uint16")


def quantize(m: Maker, op: str) -> None:
    """Per tensor, per axis, and in blocks."""
    back = op == "DequantizeLinear"
    among = (*QUANTIZED, "int32") if back else ("float32", "float16", "bfloat16", "int32")
    x = m.any(m.types(op, 0, among), low=0, limit=1000)
    shape, dtype = m.shape_of(x), m.dtype_of(x)
    manner = m.one(("tensor", "axis", "block")) if shape and 0 not in shape and m.opset >= 13 else "tensor"
    if manner == "block" and m.opset < 21:
        manner = "axis"
    axis = m.number(0, len(shape) - 1) if manner != "tensor" else 0
    own: tuple[int, ...] = ()
    block = None
    if manner == "axis":
        own = (shape[axis],)
    elif manner == "block":
        block = m.one([b for b in range(1, shape[axis] + 1) if shape[axis] % b == 0])
        own = tuple(d // block if i == axis else d for i, d in enumerate(shape))
    scales = m.types(op, 1, ("float32", "float16", "bfloat16"))
    scale_type = m.one(scales) if back or m.opset >= 23 else dtype if dtype in scales and m.opset >= 19 else "float32"
    if not back and m.opset >= 19 and dtype == "int32":
        scale_type = "float32" if m.opset < 23 else scale_type
    inputs = [x, scale_of(m, scale_type, own)]
    target = dtype if back else m.one(m.types(op, 2, QUANTIZED))
    if m.chance(0.7):
        zero = between(0, 9) if target != "int32" else between(0, 0)
        inputs.append(m.new(target, own, zero, constant=0.8, hidden=True))
    made = None
    if not back and len(inputs) == 2 and m.has(op, "output_dtype") and m.chance(0.4):
        made = DATA_TYPES[target]
    given = m.axis_sign(axis, len(shape)) if manner != "tensor" and m.has(op, "axis") else None
    m.node(op, inputs, axis=given, block_size=block, output_dtype=made)


def not_finite(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """What the reference makes of infinities is left to the processor's conversions."""
    return np.array(not np.isfinite(operands[0].astype(np.float64)).all())


def dynamic_quantize(m: Maker, op: str) -> None:
    x = m.any(["float32"], limit=1000)
    if 0 in m.shape_of(x):
        raise SkipError("the range of nothing")
    m.node(op, [x], 3)


def quantized_matmul(m: Maker, op: str) -> None:
    types = m.types(op, 0, ("int8", "uint8"))
    kinds = [m.one(types) for _ in range(3)]
    lead = m.shape(0, 2, 6)
    rows, inner, columns = m.number(1, 5), m.number(1, 9), m.number(1, 9)
    scale = m.one(m.types(op, 1))
    a = [m.tensor(kinds[0], (*lead, rows, inner)), scale_of(m, scale), m.given(m.number(0, 9), kinds[0])]
    per = m.chance(0.3)
    b = [m.tensor(kinds[1], (inner, columns), constant=0.8), scale_of(m, scale, (columns,) if per else ()),
         m.new(kinds[1], (columns,) if per else (), between(0, 9), constant=0.8, hidden=True)]
    m.node(op, [*a, *b, m.new(scale, (), uniform(0.1, 1), constant=0.8, hidden=True), m.given(m.number(0, 9), kinds[2])])


def quantized_conv(m: Maker, op: str) -> None:
    x, shape = image(m, op, high=2, types=m.types(op, 0, ("int8", "uint8")))
    kernel = kernel_for(m, shape[2:])
    options = window(m, shape[2:], kernel)
    outputs, dtype = m.number(1, 4), m.dtype_of(x)
    w = m.one(m.types(op, 3))
    per = (outputs,) if m.chance(0.4) else ()
    inputs = [x, scale_of(m, "float32"), m.given(m.number(0, 9), dtype),
              m.new(w, (outputs, shape[1], *kernel), normal, constant=0.8), scale_of(m, "float32", per),
              m.new(w, per, between(0, 3), constant=0.8, hidden=True),
              m.new("float32", (), uniform(0.1, 1), constant=0.8, hidden=True), m.given(m.number(0, 9), m.one(m.types(op, 7)))]
    if m.chance(0.5):
        inputs.append(m.new("int32", (outputs,), normal, constant=0.8))
    m.node(op, inputs, kernel_shape=kernel if m.chance(0.7) else None, **options)


ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign", "Softplus", "LeakyRelu", "ThresholdedRelu", "Elu", "Affine",
               "ScaledTanh")


def recurrent(m: Maker, op: str) -> None:
    gates, names = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[op]
    steps, batch, features, hidden = m.number(1, 5), m.number(1, 3), m.number(1, 6), m.number(1, 6)
    direction = m.one(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    plain = m.chance(0.5)  # what the reference knows; the rest ONNX Runtime tells, in single precision
    dtype = m.type(op, 0, ("float32", "float64", "float16") if plain else ("float32",))
    layout = m.number(0, 1) if m.opset >= 14 and m.chance(0.3) else 0
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    inputs = [m.tensor(dtype, (batch, steps, features) if layout else (steps, batch, features)),
              m.new(dtype, (ways, gates * hidden, features), small, constant=0.8),
              m.new(dtype, (ways, gates * hidden, hidden), small, constant=0.8)]
    inputs.append(m.new(dtype, (ways, 2 * gates * hidden), small, constant=0.8) if m.chance(0.6) else "")
    inputs.append(m.new("int32", (batch,), between(1, steps), hidden=True) if not plain and m.chance(0.4) else "")
    inputs.append(m.new(dtype, state, small) if m.chance(0.5) else "")
    if op == "LSTM":
        inputs.append(m.new(dtype, state, small) if m.chance(0.5) else "")
        inputs.append(m.new(dtype, (ways, 3 * hidden), small, constant=0.8) if m.chance(0.3) else "")
    attributes: dict[str, object] = {"hidden_size": hidden, "direction": direction if m.chance(0.8) or ways == 2 else None}
    if direction == "reverse":
        attributes["direction"] = direction
    if not plain and m.chance(0.3):
        attributes["activations"] = [m.one(("Sigmoid", "Tanh", "Softsign", "HardSigmoid")) for _ in range(names * ways)]
    if not plain and m.chance(0.3):
        attributes["clip"] = m.one((0.5, 1.0))
    if op == "GRU":
        attributes["linear_before_reset"] = m.number(0, 1)
    if op == "LSTM" and not plain and m.chance(0.2):
        attributes["input_forget"] = 1
    if layout:
        attributes["layout"] = 1
        for name in ("activations", "clip", "input_forget"):  # see `meanings`: nobody computes them in this layout
            attributes.pop(name, None)
        inputs[4] = ""
    outputs = 3 if op == "LSTM" else 2
    wanted = [m.chance(0.7) for _ in range(outputs)]
    wanted[m.number(0, outputs - 1)] = True
    m.node(op, inputs, outputs, wanted=wanted, **attributes)


def attention(m: Maker, op: str) -> None:
    batch, groups, queries, keys = m.number(1, 2), m.number(1, 2), m.number(1, 5), m.number(1, 6)
    heads, size, values = groups * m.number(1, 2), m.number(1, 5), m.number(1, 5)
    dtype = m.type(op, 0, ("float32", "float64", "float16"))
    flat = m.chance(0.4)
    shapes = [(batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, values)]
    if flat:
        shapes = [(b, s, h * d) for b, h, s, d in shapes]
    inputs = [m.new(dtype, s, normal) for s in shapes]
    past = m.number(1, 3) if m.chance(0.3) else 0
    mask_shape = m.one(((queries, keys + past), (1, 1, queries, keys + past), (batch, heads, queries, keys + past)))
    inputs.append(m.new(m.one((dtype, "bool")), mask_shape, ones_mostly) if m.chance(0.5) else "")
    if past:
        inputs += [m.new(dtype, (batch, groups, past, size)), m.new(dtype, (batch, groups, past, values))]
    heads_given = {"q_num_heads": heads, "kv_num_heads": groups} if flat else {}
    outputs = 3 if past else 1
    m.node(op, inputs, outputs, is_causal=m.one((None, 0, 1)), scale=m.one((None, 0.5)), softcap=m.one((None, 0.0, 2.0)), **heads_given)


def ones_mostly(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A mask that leaves each query its first key."""
    if dtype != "bool":
        return normal(rng, dtype, shape)
    mask = rng.random(shape) < 0.7
    mask[..., 0] = True
    return mask


def rotary(m: Maker, op: str) -> None:
    batch, heads, steps, half = m.number(1, 2), m.number(1, 3), m.number(1, 5), m.number(1, 4)
    size = 2 * half + (m.number(0, 1) * 2)
    rotated = 2 * half if size != 2 * half or m.chance(0.3) else None
    flat = m.chance(0.5)
    dtype = m.type(op)
    x = m.new(dtype, (batch, steps, heads * size) if flat else (batch, heads, steps, size))
    attributes = {"num_heads": heads if flat else None, "interleaved": m.one((None, 0, 1)), "rotary_embedding_dim": rotated}
    if m.chance(0.6):
        caches = [m.new(dtype, (steps + 2, half), small) for _ in range(2)]
        m.node(op, [x, *caches, m.new("int64", (batch, steps), between(0, steps + 1), hidden=True)], **attributes)
    else:
        m.node(op, [x, *(m.new(dtype, (batch, steps, half), small) for _ in range(2))], **attributes)


def linear_attention(m: Maker, op: str) -> None:
    batch, steps, groups, key, value = m.number(1, 2), m.number(1, 4), m.number(1, 2), m.number(1, 4), m.number(1, 4)
    heads = groups * m.number(1, 2)
    rule = m.one(("linear", "gated", "delta", "gated_delta"))
    dtype = m.type(op)
    inputs = [m.new(dtype, (batch, steps, n), small) for n in (heads * key, groups * key, groups * value)]
    inputs.append(m.new(dtype, (batch, groups, key, value), small) if m.chance(0.5) else "")
    inputs.append(m.new(dtype, (batch, steps, m.one((groups, groups * key))), uniform(-1, 0)) if "gated" in rule else "")
    inputs.append(m.new(dtype, (batch, steps, groups), uniform(0, 1)) if "delta" in rule else "")
    m.node(op, inputs, 2, q_num_heads=heads, kv_num_heads=groups, update_rule=rule, scale=m.one((None, 0.5)))


def determinant(m: Maker, op: str) -> None:
    size = m.number(1, 4)
    m.node(op, [m.tensor(m.type(op, 0, ("float32", "float64")), (*m.shape(0, 2, 8), size, size))])


def fourier(m: Maker, op: str) -> None:
    rank = m.number(3, 4)
    shape = (*(m.number(1, 5) for _ in range(rank - 1)), m.one((1, 2)))
    x = m.tensor(m.type(op, 0, ("float32", "float64")), shape)
    axis = m.number(1, rank - 2)
    inverse = m.number(0, 1)
    onesided = m.number(0, 1) if shape[-1] == 1 and not inverse else None
    length = m.given(m.number(1, 7)) if m.chance(0.4) else ""
    if m.opset < 20:
        m.node(op, [x, length], axis=axis, inverse=inverse, onesided=onesided)
    else:
        m.node(op, [x, length, m.given(m.axis_sign(axis, rank))], inverse=inverse, onesided=onesided)


def short_fourier(m: Maker, op: str) -> None:
    batch, length, frame = m.number(1, 2), m.number(8, 20), m.number(2, 6)
    dtype = m.one(("float32", "float64"))
    x = m.tensor(dtype, (batch, length, 1))
    window_ = m.new(dtype, (frame,), positive, constant=0.8) if m.chance(0.7) else ""
    size = m.given(frame) if not window_ or m.chance(0.5) else ""
    m.node(op, [x, m.given(m.number(1, 4)), window_, size], onesided=m.one((None, 0, 1)))


def window_function(m: Maker, op: str) -> None:
    kind = m.one((None, DATA_TYPES["float32"], DATA_TYPES["float64"]))
    m.node(op, [m.given(m.number(1, 9), m.one(("int64", "int32")), constant=0.7)], periodic=m.one((None, 0, 1)), output_datatype=kind)


def mel(m: Maker, op: str) -> None:
    inputs = [m.given(v) for v in (m.number(2, 6), m.one((16, 32)), 8192)]
    m.node(op, [*inputs, m.given(0.0, "float32"), m.given(4096.0, "float32")])


OPERATORS: dict[str, Entry] = {
    "MatMul": Entry(matmul, ulps=4, spread=8, weight=3),
    "Gemm": Entry(gemm, ulps=4, spread=8, weight=2),
    "Einsum": Entry(einsum, ulps=4, spread=8, weight=2),
    "MatMulInteger": Entry(matmul, ulps=0),
    "QuantizeLinear": Entry(quantize, ulps=0, spread=2, unspecified=not_finite),
    "DequantizeLinear": Entry(quantize, ulps=1),
    "DynamicQuantizeLinear": Entry(dynamic_quantize, ulps=2, spread=2, unspecified=not_finite),
    "QLinearMatMul": Entry(quantized_matmul, ulps=0, spread=4),
    "QLinearConv": Entry(quantized_conv, ulps=0, spread=4),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), Entry(recurrent, ulps=8, spread=16)),
    "Attention": Entry(attention, ulps=8, spread=16),
    "RotaryEmbedding": Entry(rotary, ulps=4, spread=4),
    "LinearAttention": Entry(linear_attention, ulps=8, spread=16),
    "Det": Entry(determinant, ulps=4, spread=16),
    "DFT": Entry(fourier, ulps=8, spread=16, within=2),
    "STFT": Entry(short_fourier, ulps=8, spread=16, within=2),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), Entry(window_function, ulps=8, within=1, precision="float32")),
    "MelWeightMatrix": Entry(mel, ulps=8, within=1, precision="float32"),
}
