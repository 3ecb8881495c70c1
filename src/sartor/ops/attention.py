"""Attention, with caches, windows and masks of every form.

Where nothing but a mask stands between the products the whole is one `attention` layer; with a soft cap, or where the scores
themselves are wanted, it is written out as products and a softmax.  A query that no key is left for gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.sizes import Dim, Size, floordiv

FLOATS = ("f32", "f64", "f16", "bf16")


@dataclass(frozen=True)
class Scores:
    """What happens to the products of queries and keys before the softmax.

    Attributes
    ----------
    scale
        The factor of the products.
    masks
        Values that broadcast to [batch, heads, queries, keys]: floats are added, a False of a bool one leaves the key out.
    causal
        Whether query s sees key t only where t <= s + keys - queries.
    softcap
        Scores become softcap * tanh(score / softcap) before the masks; 0 for none.
    sink
        A value [heads]: a score of each head that takes its share of the weights and is of no key; "" for none.
    """

    scale: float
    masks: tuple[str, ...] = ()
    causal: bool = False
    softcap: float = 0.0
    sink: str = ""


def split_heads(context: Context, call: Call, value: str, heads: int) -> str:
    """An operand as [batch, sequence, heads, width]; its 4-D form has heads before the sequence."""
    shape = context.shape(value)
    if len(shape) == 4:
        return context.transpose(value, (0, 2, 1, 3), suffix="heads_inside")
    if len(shape) != 3:
        raise ModelError(f"{call} needs operands of 3 or 4 dimensions, it has {context.tensor(value)}")
    batch, sequence, width = shape
    if heads < 1 or (isinstance(width, int) and width % heads):
        raise ModelError(f"{call} has {heads} heads for a width of {width}")
    return context.reshape(value, (batch, sequence, heads, floordiv(width, heads)), suffix="heads")


def join_heads(context: Context, value: str, output: str | None) -> str:
    """[batch, sequence, heads, width] as [batch, sequence, heads * width]."""
    batch, sequence, heads, width = context.shape(value)
    return context.reshape(value, (batch, sequence, heads * width), output=output)


def attend(context: Context, call: Call, operands: Sequence[str], scores: Scores, exposed: Sequence[str] = ()) -> str:
    """Attention of queries [B, S, H, D] to keys [B, T, G, D] and values [B, T, G, E]: a new value [B, S, H, E].

    `exposed` names values to make of the raw scores, those after the soft cap, those with masks, and the weights; "" for none.
    """
    q, k, v = operands
    _check(context, call, operands)
    if scores.softcap or scores.sink or any(exposed):
        return _written_out(context, operands, scores, exposed)
    result = Tensor(context.dtype(q), (*context.shape(q)[:3], context.shape(v)[3]))
    mask = _joined(context, q, k, scores.masks)
    return context.layer("attention", [q, k, v, mask], result, scale=scores.scale, causal=scores.causal, zero_unseen=True)


def _check(context: Context, call: Call, operands: Sequence[str]) -> None:
    """Holds the shapes of queries, keys and values to each other."""
    q, k, v = (context.shape(value) for value in operands)
    if isinstance(q[2], Size) or isinstance(k[2], Size) or isinstance(q[3], Size):
        raise DeclinedError(f"{call} has heads of symbolic number or width")
    if not k[2] or q[2] % k[2]:
        raise ModelError(f"{call} has {q[2]} heads of queries for {k[2]} of keys")
    context.same(q[3], k[3], "the width of heads")
    for axis, what in ((0, "the batch"), (1, "the keys"), (2, "the heads")):
        context.same(k[axis], v[axis], what)
    context.same(q[0], k[0], "the batch")


def default_scale(context: Context, call: Call, queries: str) -> float:
    """One over the square root of the heads' width."""
    width = context.shape(queries)[3]
    if isinstance(width, Size):
        raise DeclinedError(f"{call} has heads of symbolic width")
    return 1 / math.sqrt(width) if width > 0 else 1.0


def _joined(context: Context, q: str, k: str, masks: Sequence[str]) -> str:
    """One mask of several, in a type that the layer takes: bool, or f32 or the operands' own to be added."""
    if not masks:
        return ""
    batch, queries, heads, _ = context.shape(q)
    whole = (batch, heads, queries, context.shape(k)[1])
    for mask in masks:
        context.broadcast([context.shape(mask), whole])
    kind = "bool" if all(context.dtype(m) == "bool" for m in masks) else "f64" if context.dtype(q) == "f64" else "f32"
    if len(masks) == 1 and context.dtype(masks[0]) == kind:
        return masks[0]

    def build(e: ExpressionBuilder, *parts: int) -> int:
        seen = [p for p in parts if e.nodes[p].dtype == "bool"]
        added = [e("cast", p, dtype=kind) for p in parts if e.nodes[p].dtype != "bool"]
        all_seen = reduce(lambda a, b: e("and", a, b), seen) if seen else None
        if not added:
            return all_seen or 0
        total = reduce(lambda a, b: e("add", a, b), added)
        return total if all_seen is None else e("select", all_seen, total, e.constant(-math.inf, kind))

    return context.elementwise(masks, build, context.broadcast([context.shape(m) for m in masks]), suffix="mask")


# --- written out ---------------------------------------------------------------------------------------------------------------


def _written_out(context: Context, operands: Sequence[str], scores: Scores, exposed: Sequence[str]) -> str:
    q, k, v = (context.transpose(value, (0, 2, 1, 3), suffix="heads_outside") for value in operands)
    batch, heads, queries, width = context.shape(q)
    _, groups, keys, columns = context.shape(v)
    dtype = context.dtype(q)
    grouped = context.reshape(q, (batch, groups, floordiv(heads, groups), queries, width))
    k, v = (context.reshape(x, (batch, groups, 1, *context.shape(x)[2:])) for x in (k, v))
    e = ExpressionBuilder([dtype])
    product = Tensor(dtype, (*context.shape(grouped)[:4], keys))
    made = context.layer("matmul", [grouped, k], product, suffix="scores", transpose_a=False, transpose_b=True,
                         expression=e.finish(e("mul", 0, e.constant(scores.scale, dtype))))
    shape = (batch, heads, queries, keys)
    made = context.reshape(made, shape)
    steps = [*exposed, *[""] * (4 - len(exposed))]
    _expose(context, made, steps[0])
    if scores.softcap:
        cap = scores.softcap
        made = context.elementwise([made], lambda e, x: e("mul", e.constant(cap, dtype), e("tanh", e("div", x, e.constant(cap, dtype)))),
                                   shape, suffix="capped")
    _expose(context, made, steps[1])
    masks = list(scores.masks)
    if scores.causal:
        masks.append(visible(context, queries, keys, keys - queries, right=0))
    for mask in masks:
        made = context.elementwise([made, mask], _masked, shape, suffix="masked")
    _expose(context, made, steps[2])
    weights = _weights(context, made, scores.sink)
    if masks and not scores.sink:
        best = context.layer("reduce", [made], Tensor(dtype, (*shape[:3], 1)), suffix="best", op="max", axes=(3,), select_last=False)
        weights = context.elementwise([best, weights], _unseen_is_zero, shape, suffix="weights")
    _expose(context, weights, steps[3])
    weights = context.reshape(weights, product.shape)
    out = context.layer("matmul", [weights, v], Tensor(dtype, (*product.shape[:4], columns)), suffix="result", transpose_a=False,
                        transpose_b=False)
    return context.transpose(context.reshape(out, (batch, heads, queries, columns)), (0, 2, 1, 3), suffix="heads_inside")


def _weights(context: Context, scores: str, sink: str) -> str:
    """Scores [B, H, S, T] as weights; the sink is one score more, whose weight is dropped."""
    tensor = context.tensor(scores)
    if not sink:
        return context.layer("softmax", [scores], tensor, axis=3, log=False)
    *outer, keys = tensor.shape
    column = context.elementwise([context.reshape(sink, (outer[1], 1, 1))], lambda e, x: e("cast", x, dtype=tensor.dtype), (*outer, 1),
                                 suffix="sink")
    wider = Tensor(tensor.dtype, (*outer, keys + 1))
    joined = context.layer("concat", [scores, column], wider, axis=3)
    shares = context.layer("softmax", [joined], wider, suffix="shares", axis=3, log=False)
    return context.layer("slice", [shares], tensor, suffix="weights", starts=(0, 0, 0, 0), steps=(1, 1, 1, 1))


def _masked(e: ExpressionBuilder, score: int, mask: int) -> int:
    dtype = e.nodes[score].dtype
    if e.nodes[mask].dtype == "bool":
        return e("select", mask, score, e.constant(-math.inf, dtype))
    return e("add", score, e("cast", mask, dtype=dtype))


def _unseen_is_zero(e: ExpressionBuilder, best: int, weight: int) -> int:
    dtype = e.nodes[weight].dtype
    return e("select", e("eq", best, e.constant(-math.inf, dtype)), e.constant(0.0, dtype), weight)


def _expose(context: Context, value: str, output: str) -> None:
    if output:
        context.copy(value, output)


# --- masks -----------------------------------------------------------------------------------------------------------------


def visible(context: Context, queries: Dim, keys: Dim, offset: Dim | str, *, left: int = -1, right: int = -1) -> str:
    """Which key each query sees: True where the key's place less the query's, less the offset, is at least -left and at most right.

    -1 leaves a side open.  An offset given as a value is an i64 vector with one for each of the batch; the result then is
    [batch, 1, queries, keys], else [queries, keys].
    """
    rows = context.reshape(context.arange(queries), (queries, 1))
    places = context.arange(keys)
    shape: tuple[Dim, ...] = (queries, keys)
    if isinstance(offset, str):
        batch = context.shape(offset)[0]
        offsets, shape = context.reshape(offset, (batch, 1, 1, 1)), (batch, 1, *shape)
    else:
        offsets = context.size_value(offset)

    def build(e: ExpressionBuilder, key: int, query: int, by: int) -> int:
        middle = e("add", query, by)
        out = e("le", key, e("add", middle, e.constant(right, "i64"))) if right >= 0 else None
        if left >= 0:
            near = e("ge", key, e("sub", middle, e.constant(left, "i64")))
            out = near if out is None else e("and", out, near)
        return e.constant(True, "bool") if out is None else out

    return context.elementwise([places, rows, offsets], build, shape, suffix="visible")


def within(context: Context, lengths: str, keys: Dim) -> str:
    """Which keys are no padding, [batch, 1, 1, keys]: those whose place is below the batch's length (an i64 vector)."""
    batch = context.shape(lengths)[0]
    ends = context.reshape(lengths, (batch, 1, 1, 1))
    return context.elementwise([context.arange(keys), ends], lambda e, t, n: e("lt", t, n), (batch, 1, 1, keys), suffix="within")


def _padded_mask(context: Context, mask: str, keys: Dim) -> str:
    """A mask whose last dimension is shorter than the keys, filled up with what leaves keys out."""
    tensor = context.tensor(mask)
    if not tensor.shape or tensor.shape[-1] == keys:
        return mask
    context.require_at_least(keys, tensor.shape[-1])
    result = Tensor(tensor.dtype, (*tensor.shape[:-1], keys))
    fill: float = 0.0 if tensor.dtype == "bool" else -math.inf
    return context.layer("pad", [mask], result, suffix="mask", before=(0,) * len(tensor.shape), mode="constant", value=fill)


def as_i64(context: Context, value: str) -> str:
    """An integer value as i64."""
    if context.dtype(value) == "i64":
        return value
    return context.elementwise([value], lambda e, x: e("cast", x, dtype="i64"), context.shape(value), suffix="wide")


# --- the operators ---------------------------------------------------------------------------------------------------------


def with_past(context: Context, past: str, new: str, output: str) -> str:
    """A cache [batch, heads, past, width] and new keys or values [batch, sequence, heads, width], joined in the latter's order.

    `output` names the joined cache, in the cache's own order, where it is an output.
    """
    if not past and not output:
        return new
    if not output:
        before = context.transpose(past, (0, 2, 1, 3), suffix="past")
        shape, added = context.shape(before), context.shape(new)
        return context.layer("concat", [before, new], Tensor(context.dtype(new), (added[0], shape[1] + added[1], *added[2:])), axis=1)
    outside = context.transpose(new, (0, 2, 1, 3), suffix="heads_outside")
    if not past:
        context.copy(outside, output)
        return new
    shape, added = context.shape(past), context.shape(outside)
    for axis in (0, 1, 3):
        context.same(shape[axis], added[axis], "the cache")
    result = Tensor(context.dtype(new), (*added[:2], shape[2] + added[2], added[3]))
    joined = context.layer("concat", [past, outside], result, output=output, suffix="", axis=2)
    return context.transpose(joined, (0, 2, 1, 3), suffix="present")


def _attention(context: Context, call: Call) -> None:
    past_key, past_value, lengths = call.input(4), call.input(5), call.input(6)
    q, k, v = (split_heads(context, call, value, call[name] if len(context.shape(value)) == 3 else 1) for value, name in
               zip(call.inputs[:3], ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True))
    if bool(past_key) != bool(past_value) or (past_key and lengths):
        raise ModelError(f"{call} has one past without the other, or a past and lengths")
    k, v = with_past(context, past_key, k, call.output(1)), with_past(context, past_value, v, call.output(2))
    queries, keys = context.shape(q)[1], context.shape(k)[1]
    offset: Dim | str = context.shape(past_key)[2] if past_key else 0
    if lengths:
        lengths = as_i64(context, lengths)
        offset = _less(context, lengths, queries)
    masks = [_padded_mask(context, call.inputs[3], keys)] if call.input(3) else []
    causal = bool(call.get("is_causal", 0))
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    if min(left, right) < -1:
        raise ModelError(f"{call} has the window sizes {left} and {right}; expected -1 or more")
    if left >= 0 or right >= 0 or (causal and offset != keys - queries):
        masks.append(visible(context, queries, keys, offset, left=left, right=0 if causal else right))
        causal = False
    if lengths:
        masks.append(within(context, lengths, keys))
    scale = call.get("scale") or default_scale(context, call, q)
    exposed = [""] * 4
    exposed[call.get("qk_matmul_output_mode", 0)] = call.output(3)
    made = attend(context, call, (q, k, v), Scores(float(scale), tuple(masks), causal, float(call.get("softcap", 0.0))), exposed)
    _finish(context, call, made)


def _less(context: Context, lengths: str, queries: Dim) -> str:
    """The batch's offsets: its lengths less the number of queries."""
    return context.elementwise([lengths, context.size_value(queries)], lambda e, n, s: e("sub", n, s), context.shape(lengths),
                               suffix="offset")


def _finish(context: Context, call: Call, made: str) -> None:
    """Gives the result the order of the queries."""
    if len(context.shape(call.inputs[0])) == 4:
        context.transpose(made, (0, 2, 1, 3), output=call.outputs[0])
    else:
        join_heads(context, made, call.outputs[0])


def _flex_attention(context: Context, call: Call) -> None:
    """Without functions of the scores or weights; with them the operator's body is lowered."""
    if call.get("score_mod") is not None or call.get("prob_mod") is not None:
        raise DeclinedError(f"{call} has functions of its scores")
    if any(len(context.shape(v)) != 4 for v in call.inputs):
        raise ModelError(f"{call} needs operands of 4 dimensions")
    operands = tuple(context.transpose(v, (0, 2, 1, 3), suffix="heads_inside") for v in call.inputs)
    scale = call.get("scale")
    scores = Scores(default_scale(context, call, operands[0]) if scale is None else float(scale))
    _finish(context, call, attend(context, call, operands, scores))


# --- linear attention ------------------------------------------------------------------------------------------------------


_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""By the name of an update rule whether the state fades, and whether what it knows of a key is taken off the value."""


def _linear_attention(context: Context, call: Call) -> None:
    query, key, value, past, decay, beta = (call.input(i) for i in range(6))
    rule, heads, groups = call.get("update_rule", "gated_delta"), call["q_num_heads"], call["kv_num_heads"]
    if rule not in _RULES or _RULES[rule] != (bool(decay), bool(beta)):
        raise ModelError(f"{call} has the update rule {rule!r}, which is unknown or does not fit its inputs")
    if heads < 1 or groups < 1 or heads % groups:
        raise ModelError(f"{call} has {heads} heads of queries for {groups} of keys")
    dtype = context.dtype(query)
    kind = "f64" if dtype == "f64" else "f32"
    q, k, v = (split_heads(context, call, _as(context, x, kind), n) for x, n in ((query, heads), (key, groups), (value, groups)))
    batch, steps, _, depth = context.shape(q)
    columns = context.shape(v)[3]
    for x in (k, v):
        context.same(context.shape(x)[0], batch, "the batch")
        context.same(context.shape(x)[1], steps, "the steps")
    context.same(context.shape(k)[3], depth, "the width of heads")
    if isinstance(depth, Size) or isinstance(columns, Size):
        raise DeclinedError(f"{call} has heads of symbolic width")
    if decay:
        fading = context.elementwise([decay], lambda e, x: e("exp", e("cast", x, dtype=kind)), context.shape(decay), suffix="fading")
        decay = context.reshape(fading, (batch, steps, groups, floordiv(context.shape(decay)[2], groups)))
    ratio = heads // groups
    rows = steps * ratio
    state = _as(context, past, kind) if past else ""
    inputs = [q, k, v, state, decay, _as(context, beta, kind) if beta else ""]
    scale = float(call.get("scale", 0.0)) or default_scale(context, call, q)
    whole = context.layer("linear_attention", inputs, Tensor(kind, (batch, groups, rows + depth, columns)), scale=scale)

    def part(first: Dim, count: Dim, suffix: str) -> str:
        return context.layer("slice", [whole], Tensor(kind, (batch, groups, count, columns)), suffix=suffix, starts=(0, 0, first, 0),
                             steps=(1, 1, 1, 1))

    if call.output(1):
        _as(context, part(rows, depth, "present"), context.dtype(past) if past else dtype, call.outputs[1])
    if call.output(0):
        results = context.reshape(part(0, rows, "results"), (batch, groups, steps, ratio, columns))
        turned = context.transpose(results, (0, 2, 1, 3, 4), suffix="steps_outside")
        _as(context, context.reshape(turned, (batch, steps, heads * columns)), dtype, call.outputs[0])


def _as(context: Context, value: str, dtype: str, output: str | None = None) -> str:
    """A value in another element type; itself where it has that one and no name is given."""
    if output is None and context.dtype(value) == dtype:
        return value
    if context.dtype(value) == dtype:
        context.copy(value, output or "")
        return output or value
    return context.elementwise([value], lambda e, x: e("cast", x, dtype=dtype), context.shape(value), output=output, suffix="cast")


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Attention"): _attention,
    ("", "LinearAttention"): _linear_attention,
    ("ai.onnx.preview", "FlexAttention"): _flex_attention,
}
