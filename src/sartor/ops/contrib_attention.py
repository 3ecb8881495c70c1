"""Attention of the domain com.microsoft: with its projection, of packed operands, with caches, rotation and shared heads.

All come down to `attend`.  A mask of integers does not leave keys out: it adds `mask_filter_value`, -10000 unless said otherwise, to
the scores of what it covers, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops import attention
from sartor.ops.attention import Scores, as_i64, attend, default_scale, join_heads, split_heads, visible, with_past
from sartor.ops.context import Call, Context
from sartor.ops.contrib import operators, temporary, unsupported
from sartor.ops.contrib_quantized import integer_to_float
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import emit_gather
from sartor.ops.matmul import multiply
from sartor.ops.movement import emit_slice
from sartor.sizes import Dim, Size, floordiv, maximum


def _part(context: Context, value: str, axis: int, start: Dim, count: Dim) -> str:
    """Some places along one axis."""
    shape = context.shape(value)
    axis %= len(shape)
    if start == 0 and count == shape[axis]:
        return value
    starts = [start if i == axis else 0 for i in range(len(shape))]
    return emit_slice(context, value, starts, [1] * len(shape), [count if i == axis else d for i, d in enumerate(shape)], suffix="part")


def _scale(context: Context, call: Call, q: str) -> float:
    return float(call.get("scale", 0.0)) or default_scale(context, call, q)


# --- masks -----------------------------------------------------------------------------------------------------------------


def _filtered(context: Context, call: Call, keep: str) -> str:
    """A mask to be added: 0 where `keep` holds, else the filter value."""
    value = float(call.get("mask_filter_value", -10000.0))
    return context.elementwise([keep], lambda e, k: e("select", k, e.constant(0.0, "f32"), e.constant(value, "f32")), context.shape(keep),
                               suffix="filter")


def _integer_mask(context: Context, call: Call, mask: str, batch: Dim, keys: Dim) -> str:
    """A mask in any of its forms as one to be added: of each key, of each query and key, or where the keys end and start."""
    shape = context.shape(mask)
    if len(shape) in (2, 3) or (len(shape) == 4 and shape[1] == 1):
        dtype = context.dtype(mask)
        whole = (shape[0], 1, 1, shape[1]) if len(shape) == 2 else (shape[0], 1, *shape[-2:])
        keep = context.elementwise([mask], lambda e, m: e("gt", m, e.constant(0, dtype)), shape, suffix="keep")
        return _filtered(context, call, context.reshape(keep, whole))
    if len(shape) != 1 or (shape[0] not in (batch, 2 * batch)):
        raise unsupported(call, f"has a mask of type {context.tensor(mask)}")
    ends = as_i64(context, mask)
    bounds = [context.reshape(_part(context, ends, 0, start, batch), (batch, 1, 1, 1)) for start in
              ((0,) if shape[0] == batch else (0, batch))]

    def build(e: ExpressionBuilder, key: int, end: int, start: int | None = None) -> int:
        before = e("lt", key, end)
        return before if start is None else e("and", before, e("ge", key, start))

    keep = context.elementwise([context.arange(keys), *bounds], build, (batch, 1, 1, keys), suffix="keep")
    return _filtered(context, call, keep)


# --- Attention and MultiHeadAttention --------------------------------------------------------------------------------------


def _projected(context: Context, call: Call, projection: str, widths: Sequence[Dim], heads: int) -> list[str]:
    """Queries, keys and values out of one product, [batch, sequence, all widths], with their heads."""
    out: list[str] = []
    start: Dim = 0
    for width in widths:
        out.append(split_heads(context, call, _part(context, projection, 2, start, width), heads))
        start = start + width
    return out


def _with_bias(context: Context, value: str, bias: str) -> str:
    if not bias:
        return value
    return context.elementwise([value, bias], lambda e, x, b: e("add", x, b), context.shape(value), suffix="biased")


def _refuse(call: Call, attributes: Sequence[str]) -> None:
    for name in attributes:
        if call.get(name, 0) not in (0, "NONE", b"NONE"):
            raise unsupported(call, f"has {name} = {call.get(name)}")


def _self_attention(context: Context, call: Call, projection: str, inputs: tuple[str, str, str]) -> None:
    """Attention of what one product gave; `inputs` are the mask, the past of keys and values in one, and a bias of the scores."""
    _refuse(call, ("do_rotary", "past_present_share_buffer"))
    mask, past, bias = inputs
    heads, total = call["num_heads"], context.shape(projection)[2]
    third = floordiv(total, 3)
    q, k, v = _projected(context, call, projection, call.get("qkv_hidden_sizes") or (third, third, third), heads)
    batch, queries = context.shape(q)[:2]
    presents = ["", ""]
    pasts = ["", ""]
    if past:
        shape = context.shape(past)
        pasts = [context.reshape(_part(context, past, 0, i, 1), shape[1:]) for i in range(2)]
    if call.output(1):
        presents = [temporary(context, call, name) for name in ("key", "value")]
    k, v = (with_past(context, pasts[i], value, presents[i]) for i, value in enumerate((k, v)))
    keys = context.shape(k)[1]
    if call.output(1):
        shape = (1, *context.shape(presents[0]))
        pieces = [context.reshape(p, shape) for p in presents]
        context.layer("concat", pieces, Tensor(context.dtype(q), (2, *shape[1:])), output=call.outputs[1], axis=0)
    masks = [_integer_mask(context, call, mask, batch, keys)] if mask else []
    masks += [bias] if bias else []
    scores = Scores(_scale(context, call, q), tuple(masks), bool(call.get("unidirectional", 0)))
    if scores.causal and keys - queries != (context.shape(past)[3] if past else 0):
        raise unsupported(call, "has a past of other sizes")
    join_heads(context, attend(context, call, (q, k, v), scores), call.outputs[0])


def _attention(context: Context, call: Call) -> None:
    x, weights, bias = (call.input(i) for i in range(3))
    if call.input(6):
        raise unsupported(call, "shares the buffer of its past")
    projection = temporary(context, call, "projection")
    multiply(context, replace(call, inputs=(x, weights), outputs=(projection,)))
    projection = _with_bias(context, projection, bias)
    _self_attention(context, call, projection, (call.input(3), call.input(4), call.input(5)))


def _quantized_attention(context: Context, call: Call) -> None:
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (call.input(i) for i in range(9))
    inner = replace(call, inputs=(x, weights, x_scale, w_scale, x_zero, w_zero, bias), outputs=(temporary(context, call, "projection"),))
    integer_to_float(context, inner)
    _self_attention(context, call, inner.outputs[0], (mask, past, ""))


def _unpacked(context: Context, value: str, count: int) -> list[str]:
    """[batch, sequence, heads, count, width] as `count` values [batch, sequence, heads, width]."""
    shape = context.shape(value)
    return [context.reshape(_part(context, value, 3, i, 1), (*shape[:3], shape[4])) for i in range(count)]


def _multi_head(context: Context, call: Call) -> None:
    query, key, value, bias, padding, added, past_key, past_value = (call.input(i) for i in range(8))
    heads = call["num_heads"]
    if call.input(8) or call.input(9):
        raise unsupported(call, "shares the buffer of its past")
    if len(context.shape(query)) == 5:
        q, k, v = _unpacked(context, query, 3)
    else:
        q = split_heads(context, call, query, heads)
        k, v = _unpacked(context, key, 2) if len(context.shape(key)) == 5 else (split_heads(context, call, x, heads) for x in (key, value))
    if bias:
        q, k, v = _biased(context, (q, k, v), bias, len(context.shape(key)) == 4 if key else False)
    k, v = (with_past(context, past, x, call.output(i)) for i, (past, x) in enumerate(((past_key, k), (past_value, v)), 1))
    batch, queries = context.shape(q)[:2]
    keys = context.shape(k)[1]
    masks = [_integer_mask(context, call, padding, batch, keys)] if padding else []
    masks += [added] if added else []
    causal = bool(call.get("unidirectional", 0))
    offset = context.shape(past_key)[2] if past_key else 0
    if causal and offset != keys - queries:
        masks.append(visible(context, queries, keys, offset, right=0))
        causal = False
    scores = Scores(_scale(context, call, q), tuple(masks), causal)
    join_heads(context, attend(context, call, (q, k, v), scores, (call.output(3),)), call.outputs[0])


def _biased(context: Context, operands: Sequence[str], bias: str, cross: bool) -> list[str]:
    """Operands [batch, sequence, heads, width] with their parts of the bias; keys that come as a cache have had theirs."""
    out: list[str] = []
    start: Dim = 0
    for number, value in enumerate(operands):
        heads, width = context.shape(value)[2:]
        part = context.reshape(_part(context, bias, 0, start, heads * width), (heads, width))
        out.append(value if cross and number else _with_bias(context, value, part))
        start = start + heads * width
    return out


# --- rotation --------------------------------------------------------------------------------------------------------------


def rotated(context: Context, x: str, angles: tuple[str, str], interleaved: bool) -> str:
    """Pairs of the first elements of each head of x [B, S, H, D] turned by angles.

    Of the angles the cosines and sines are given, [B or 1, S, 1, pairs].
    """
    shape, pairs = context.shape(x), context.shape(angles[0])[3]
    half = (*shape[:3], pairs)
    if interleaved:
        front = context.reshape(_part(context, x, 3, 0, pairs * 2), (*half, 2))
        first, second = (context.reshape(_part(context, front, 4, i, 1), half) for i in range(2))
    else:
        first, second = (_part(context, x, 3, start, pairs) for start in (0, pairs))
    operands = [first, second, *angles]
    a = context.elementwise(operands, lambda e, u, v, c, s: e("sub", e("mul", u, c), e("mul", v, s)), half, suffix="turned")
    b = context.elementwise(operands, lambda e, u, v, c, s: e("add", e("mul", u, s), e("mul", v, c)), half, suffix="turned")
    dtype = context.dtype(x)
    if interleaved:
        pieces = [context.reshape(p, (*half, 1)) for p in (a, b)]
        made = context.reshape(context.layer("concat", pieces, Tensor(dtype, (*half, 2)), axis=4), (*shape[:3], pairs * 2))
    else:
        made = context.layer("concat", [a, b], Tensor(dtype, (*shape[:3], pairs * 2)), axis=3)
    if pairs * 2 == shape[3]:
        return made
    rest = _part(context, x, 3, pairs * 2, shape[3] - pairs * 2)
    return context.layer("concat", [made, rest], Tensor(dtype, shape), axis=3)


def _angles(context: Context, table: str, positions: str, pairs: Dim) -> str:
    """Rows of a table [places, pairs] by positions [batch, sequence], as [batch, sequence, 1, pairs]."""
    rows = emit_gather(context, _part(context, table, 1, 0, pairs), positions, 0, None)
    batch, length, width = context.shape(rows)
    return context.reshape(rows, (batch, length, 1, width))


def _rotary(context: Context, call: Call) -> None:
    x, positions, cosines, sines = call.inputs
    _refuse(call, ("is_packed_batching",))
    shape, dim = context.shape(x), call.get("rotary_embedding_dim", 0)
    width = context.shape(cosines)[1]
    heads = call.get("num_heads", 0)
    if len(shape) == 3:
        if not heads:
            each = floordiv(shape[2], width * 2)
            if isinstance(each, Size):
                raise unsupported(call, "has heads of a number that cannot be told")
            heads = each
        operand = split_heads(context, call, x, heads)
    else:
        operand = context.transpose(x, (0, 2, 1, 3), suffix="heads_inside")
    length = context.shape(operand)[1]
    if context.tensor(positions).elements == 1 and len(context.shape(positions)) == 1:
        steps = context.reshape(context.arange(length), (1, length))
        positions = context.elementwise([as_i64(context, positions), steps], lambda e, p, s: e("add", p, s), (1, length), suffix="places")
    pairs = floordiv(dim, 2) if dim else width
    angles = _angles(context, cosines, positions, pairs), _angles(context, sines, positions, pairs)
    made = rotated(context, operand, angles, bool(call.get("interleaved", 0)))
    if len(shape) == 3:
        join_heads(context, made, call.outputs[0])
    else:
        context.transpose(made, (0, 2, 1, 3), output=call.outputs[0])


# --- GroupQueryAttention ---------------------------------------------------------------------------------------------------


def _group_query(context: Context, call: Call) -> None:
    """Causal attention with a cache whose valid length differs from one of the batch to the next."""
    _refuse(call, ("kv_cache_bit_width", "sliding_window_cache", "qk_output", "k_quant_type", "v_quant_type"))
    if call.input(12) or call.input(13) or call.input(16):
        raise unsupported(call, "has a quantised cache or queries of several lengths")
    heads, groups = call["num_heads"], call["kv_num_heads"]
    q, k, v = _group_operands(context, call, heads, groups)
    batch, queries = context.shape(q)[:2]
    ends = context.elementwise([as_i64(context, context.reshape(call.inputs[5], (batch,)))],
                               lambda e, n: e("add", n, e.constant(1, "i64")), (batch,), suffix="ends")
    total = context.known_sizes(call.inputs[6])[0]
    before = _before(context, ends, queries, total)
    if call.input(14):
        q, k = _normed(context, call, q, 14, "q_norm_epsilon"), _normed(context, call, k, 15, "k_norm_epsilon")
    if call.get("do_rotary", 0):
        q, k = _group_rotated(context, call, (q, k), before)
    keys, values = (_cached(context, call, call.input(3 + i), new, before, total, call.output(1 + i)) for i, new in enumerate((k, v)))
    length = context.shape(keys)[1]
    window = call.get("local_window_size", -1)
    left = window - 1 if window > 0 else -1
    causal = bool(call.get("causal", 1))
    masks = []
    if causal:
        masks.append(visible(context, queries, length, before, left=left, right=0))
    else:
        whole = context.reshape(ends, (batch, 1, 1, 1))
        masks.append(context.elementwise([context.arange(length), whole], lambda e, t, n: e("lt", t, n), (batch, 1, 1, length),
                                         suffix="valid"))
    if call.input(10):
        masks.append(_wide(context, call.inputs[10], length))
    sink = call.input(11)
    if not sink and call.get("smooth_softmax", -1) == 1:
        sink = context.elementwise([context.arange(heads)], lambda e, x: e.constant(0.0, context.dtype(q)), (heads,), suffix="sink")
    scores = Scores(_scale(context, call, q), tuple(masks), False, float(call.get("softcap", 0.0)), sink)
    join_heads(context, attend(context, call, (q, keys, values), scores), call.outputs[0])


def _group_operands(context: Context, call: Call, heads: int, groups: int) -> list[str]:
    """Queries, keys and values with their heads, out of one value where keys are absent."""
    query, key, value = (call.input(i) for i in range(3))
    if groups < 1 or heads < 1 or heads % groups:
        raise ModelError(f"{call} has {heads} heads of queries for {groups} of keys")
    if key:
        return [split_heads(context, call, x, n) for x, n in ((query, heads), (key, groups), (value, groups))]
    width = floordiv(context.shape(query)[2], heads + 2 * groups)
    out, start = [], 0
    for count in (heads, groups, groups):
        out.append(split_heads(context, call, _part(context, query, 2, start * width, count * width), count))
        start += count
    return out


def _before(context: Context, ends: str, queries: Dim, total: Dim) -> str:
    """How many keys each of the batch had before: its length less the new ones; none in the first run, where all are new."""
    operands = [ends, context.size_value(queries), context.size_value(total)]

    def build(e: ExpressionBuilder, end: int, new: int, whole: int) -> int:
        return e("select", e("eq", new, whole), e.constant(0, "i64"), e("sub", end, new))

    return context.elementwise(operands, build, context.shape(ends), suffix="before")


def _normed(context: Context, call: Call, x: str, weight: int, epsilon: str) -> str:
    """RMS normalisation of each head."""
    tensor = context.tensor(x)
    e = ExpressionBuilder([tensor.dtype, context.dtype(call.inputs[weight])])
    return context.layer("normalize", [x], tensor, suffix="normed", expression=e.finish(e("mul", 0, 1)), extra=[call.inputs[weight]],
                         axes=(3,), mode="rms", epsilon=float(call.get(epsilon, call.get("qk_norm_epsilon", 1e-6))))


def _group_rotated(context: Context, call: Call, operands: Sequence[str], before: str) -> list[str]:
    """Queries and keys turned by their places, which go on from those before unless they are given."""
    batch, length = context.shape(operands[0])[:2]
    if call.input(9):
        places = call.inputs[9]
    else:
        steps, first = context.arange(length), context.reshape(before, (batch, 1))
        places = context.elementwise([steps, first], lambda e, s, p: e("add", s, p), (batch, length), suffix="places")
    cosines, sines = call.inputs[7:9]
    pairs = context.shape(cosines)[1]
    angles = _angles(context, cosines, places, pairs), _angles(context, sines, places, pairs)
    return [rotated(context, x, angles, bool(call.get("rotary_interleaved", 0))) for x in operands]


def _cached(context: Context, call: Call, past: str, new: str, before: str, total: Dim, output: str) -> str:
    """The cache with new keys or values written behind the valid ones of each of the batch, [batch, keys, groups, width].

    `output` names the cache in its own order, [batch, groups, keys, width].
    """
    batch, added, groups, width = context.shape(new)
    old = context.shape(past)[2] if past else 0
    length = maximum(old, total)
    pieces = [*([context.transpose(past, (0, 2, 1, 3), suffix="past")] if past else []), new]
    joined = context.layer("concat", pieces, Tensor(context.dtype(new), (batch, old + added, groups, width)), axis=1) if past else new
    rows = context.reshape(joined, (batch * (old + added), groups * width), suffix="rows")
    sizes = [context.size_value(d) for d in (old, old + added)]
    operands = [context.arange(length), context.reshape(before, (batch, 1)), context.reshape(context.arange(batch), (batch, 1)), *sizes]

    def place(e: ExpressionBuilder, key: int, first: int, image: int, kept: int, each: int) -> int:
        """Kept ones stay, new ones follow, and what lies behind stays as it was or repeats the last."""
        one = e.constant(1, "i64")
        fresh = e("add", e("sub", key, first), kept)
        behind = e("select", e("lt", key, kept), key, e("sub", each, one))
        chosen = e("select", e("lt", fresh, each), fresh, behind)
        return e("add", e("mul", image, each), e("select", e("lt", key, first), e("min", key, e("sub", each, one)), chosen))

    places = context.elementwise(operands, place, (batch, length), suffix="places")
    taken = emit_gather(context, rows, places, 0, None)
    made = context.reshape(taken, (batch, length, groups, width))
    if output:
        context.transpose(made, (0, 2, 1, 3), output=output)
    return made


def _wide(context: Context, bias: str, keys: Dim) -> str:
    """A bias of the scores with as many keys as the cache holds."""
    tensor = context.tensor(bias)
    last = tensor.shape[-1]
    if last in (1, keys):
        return bias
    context.require_at_least(keys, last)
    result = Tensor(tensor.dtype, (*tensor.shape[:-1], keys))
    return context.layer("pad", [bias], result, suffix="bias", before=(0,) * len(tensor.shape), mode="constant", value=-math.inf)


def _linear(context: Context, call: Call) -> None:
    _refuse(call, ("state_window",))
    attention.OPERATORS["", "LinearAttention"](context, call)


OPERATORS: dict[tuple[str, str], Operator] = operators([
    ("Attention", _attention),
    ("GroupQueryAttention", _group_query),
    ("LinearAttention", _linear),
    ("MultiHeadAttention", _multi_head),
    ("QAttention", _quantized_attention),
    ("RotaryEmbedding", _rotary),
])
