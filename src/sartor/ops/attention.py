"""Attention without caches."""

from __future__ import annotations

import math

from sartor.errors import ModelError
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.sizes import Size, floordiv


def _heads(context: Context, call: Call, value: str, attribute: str) -> str:
    """An operand as [batch, sequence, heads, width]; its 4-D form has heads before the sequence."""
    shape = context.shape(value)
    if len(shape) == 4:
        return context.transpose(value, (0, 2, 1, 3), suffix="heads_inside")
    if len(shape) != 3:
        raise ModelError(f"{call} needs operands of 3 or 4 dimensions, it has {context.tensor(value)}")
    heads = call[attribute]
    batch, sequence, width = shape
    if isinstance(width, int) and (heads < 1 or width % heads):
        raise ModelError(f"{call} has {heads} heads for a width of {width}")
    return context.reshape(value, (batch, sequence, heads, floordiv(width, heads)), suffix="heads")


def _attention(context: Context, call: Call) -> None:
    windows = call.get("left_window_size", -1), call.get("right_window_size", -1)
    if any(call.input(i) for i in (4, 5, 6)) or any(call.outputs[1:]) or call.get("softcap", 0.0) or windows != (-1, -1):
        raise DeclinedError(f"{call} uses a cache, a soft cap, a window or more outputs")
    q, k, v = (_heads(context, call, value, name) for value, name in
               zip(call.inputs[:3], ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True))
    dtype = context.dtype(q)
    batch, queries, heads, width = context.shape(q)
    _, keys, groups, _ = context.shape(k)
    columns = context.shape(v)[3]
    if isinstance(heads, Size) or isinstance(groups, Size) or isinstance(width, Size):
        raise DeclinedError(f"{call} has heads of symbolic number or width")
    if not groups or heads % groups:
        raise ModelError(f"{call} has {heads} heads of queries for {groups} of keys")
    context.same(keys, context.shape(v)[1], "the keys")
    mask = call.input(3)
    causal = bool(call.get("is_causal", 0))
    if mask:
        mask = _mask(context, mask)
    elif causal and queries != keys:
        rows, places = context.reshape(context.arange(queries), (queries, 1)), context.arange(keys)
        mask, causal = context.elementwise([places, rows], lambda e, t, s: e("le", t, s), (queries, keys), suffix="causal"), False
    if causal and queries != keys:
        raise DeclinedError(f"{call} is causal between sequences of different lengths, with a mask")
    if mask:
        context.broadcast([context.shape(mask), (batch, heads, queries, keys)])
    result = Tensor(dtype, (batch, queries, heads, columns))
    scale = float(call.get("scale") or 1 / math.sqrt(width))
    made = context.layer("attention", [q, k, v, mask], result, scale=scale, causal=causal)
    if len(context.shape(call.inputs[0])) == 4:
        context.transpose(made, (0, 2, 1, 3), output=call.outputs[0])
    else:
        context.reshape(made, (batch, queries, heads * columns), output=call.outputs[0])


def _mask(context: Context, mask: str) -> str:
    """A mask in a type the layer takes: bool, or f32 to be added."""
    if context.dtype(mask) in ("bool", "f32"):
        return mask
    return context.elementwise([mask], lambda e, m: e("cast", m, dtype="f32"), context.shape(mask), suffix="mask")


OPERATORS: dict[tuple[str, str], Operator] = {("", "Attention"): _attention}
