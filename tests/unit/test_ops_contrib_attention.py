"""Attention of ONNX Runtime's domain, against that engine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.contrib_harness import check_contrib, contrib_model
from tests.unit.ops_harness import RNG, rand, run_runtime

BATCH, QUERIES, HEADS, WIDTH = 2, 4, 3, 8
HIDDEN = HEADS * WIDTH
WIDE = 16


def masks(keys, causal=False):
    """Integer masks in their forms; under a causal one each query must see itself, or what it sees depends on rounding."""
    padded = np.ones((BATCH, keys), np.int32)
    padded[0, keys - 1:] = 0
    padded[1, :1] = 0
    by_query = np.repeat(padded[:, None], QUERIES, 1)
    return {"none": None, "keys": padded, "queries": by_query, "ends": np.array([keys, keys - 2], np.int32),
            "spans": np.array([keys, keys - 1, 1, 0], np.int32)}


@pytest.mark.parametrize("mask", ["none", "keys", "queries", "ends", "spans"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
def test_attention(mask, causal, past):
    if past and mask in ("ends", "spans"):
        pytest.skip("not together")
    keys = QUERIES + (3 if past else 0)
    given = masks(keys)[mask]
    feeds = {"x": rand(BATCH, QUERIES, 10)}
    if given is not None:
        feeds["m"] = given
    if past:
        feeds["p"] = rand(2, BATCH, HEADS, 3, WIDTH)
    constants = {"w": rand(10, 3 * HIDDEN), "b": rand(3 * HIDDEN)}
    inputs = ["x", "w", "b", "m" if given is not None else "", "p" if past else ""]
    check_contrib("Attention", feeds, constants, inputs=inputs, outputs=["y", "n"] if past else ["y"], num_heads=HEADS,
                  unidirectional=causal, symbolic=False, tolerance=1e-4)


def test_attention_with_symbols():
    feeds = {"x": rand(BATCH, QUERIES, HIDDEN)}
    constants = {"w": rand(HIDDEN, 3 * HIDDEN), "b": rand(3 * HIDDEN)}
    check_contrib("Attention", feeds, constants, num_heads=HEADS, tolerance=1e-4)
    check_contrib("Attention", feeds, constants, num_heads=HEADS, scale=0.2, unidirectional=1, tolerance=1e-4)


def test_attention_with_widths_and_a_bias_of_scores():
    widths = [HIDDEN, HIDDEN, 2 * HIDDEN]
    feeds = {"x": rand(BATCH, QUERIES, 10), "s": rand(BATCH, 1, QUERIES, QUERIES)}
    constants = {"w": rand(10, sum(widths)), "b": rand(sum(widths))}
    check_contrib("Attention", feeds, constants, inputs=["x", "w", "b", "", "", "s"], num_heads=HEADS, qkv_hidden_sizes=widths,
                  symbolic=False, tolerance=1e-4)


@pytest.mark.parametrize("past", [False, True])
def test_quantized_attention(past):
    feeds = {"x": RNG.integers(0, 256, (BATCH, QUERIES, 10)).astype(np.uint8)}
    if past:
        feeds["p"] = rand(2, BATCH, HEADS, 3, WIDTH)
    constants = {"w": RNG.integers(0, 256, (10, 3 * HIDDEN)).astype(np.uint8), "b": rand(3 * HIDDEN), "xs": np.float32(0.01),
                 "ws": np.float32(0.01), "m": np.full(BATCH, QUERIES + 3 * past, np.int32), "xz": np.uint8(120), "wz": np.uint8(130)}
    check_contrib("QAttention", feeds, constants, inputs=["x", "w", "b", "xs", "ws", "m", "xz", "wz", "p" if past else ""],
                  outputs=["y", "n"] if past else ["y"], num_heads=HEADS, symbolic=False, tolerance=1e-4)


@pytest.mark.parametrize("mask", ["none", "keys", "queries", "ends"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head(mask, bias, causal):
    keys = QUERIES if causal else 5
    given = masks(keys)[mask]
    feeds = {"q": rand(BATCH, QUERIES, HIDDEN), "k": rand(BATCH, keys, HIDDEN), "v": rand(BATCH, keys, HIDDEN)}
    if given is not None:
        feeds["m"] = given
    constants = {"b": rand(3 * HIDDEN)} if bias else {}
    inputs = ["q", "k", "v", "b" if bias else "", "m" if given is not None else ""]
    check_contrib("MultiHeadAttention", feeds, constants, inputs=inputs, num_heads=HEADS, unidirectional=causal, symbolic=False,
                  tolerance=1e-4)


def test_multi_head_with_symbols():
    feeds = {"q": rand(BATCH, QUERIES, HIDDEN), "k": rand(BATCH, 5, HIDDEN), "v": rand(BATCH, 5, HIDDEN)}
    check_contrib("MultiHeadAttention", feeds, {"b": rand(3 * HIDDEN)}, num_heads=HEADS, tolerance=1e-4, symbol_axes=(0, 1))


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_with_a_cache(causal):
    feeds = {"q": rand(BATCH, QUERIES, HIDDEN), "k": rand(BATCH, QUERIES, HIDDEN), "v": rand(BATCH, QUERIES, HIDDEN),
             "s": rand(1, HEADS, QUERIES, QUERIES + 3), "pk": rand(BATCH, HEADS, 3, WIDTH), "pv": rand(BATCH, HEADS, 3, WIDTH)}
    inputs = ["q", "k", "v", "", "", "s", "pk", "pv"]
    check_contrib("MultiHeadAttention", feeds, inputs=inputs, outputs=["y", "nk", "nv"], num_heads=HEADS, unidirectional=causal,
                  symbolic=False, tolerance=1e-4)
    del feeds["pk"], feeds["pv"], feeds["s"]
    check_contrib("MultiHeadAttention", feeds, outputs=["y", "nk", "nv"], num_heads=HEADS, unidirectional=causal, tolerance=1e-4,
                  symbol_axes=(0, 1))


def test_multi_head_of_packed_and_of_cached_operands():
    packed = rand(BATCH, QUERIES, HEADS, 3, WIDTH)
    parts = [np.ascontiguousarray(packed[:, :, :, i]).reshape(BATCH, QUERIES, HIDDEN) for i in range(3)]
    feeds = dict(zip("qkv", parts, strict=True))
    want = run_runtime(contrib_model("MultiHeadAttention", feeds, {}, ["q", "k", "v"], ["y"], num_heads=HEADS), feeds)
    check_contrib("MultiHeadAttention", {"x": packed}, num_heads=HEADS, symbolic=False, tolerance=1e-4, expected=want)
    check_contrib("MultiHeadAttention", {"q": parts[0], "kv": np.ascontiguousarray(packed[:, :, :, 1:])}, num_heads=HEADS,
                  symbolic=False, tolerance=1e-4, expected=want)
    cached = {n: x.reshape(BATCH, QUERIES, HEADS, WIDTH).transpose(0, 2, 1, 3) for n, x in feeds.items() if n != "q"}
    check_contrib("MultiHeadAttention", {"q": parts[0], **cached}, num_heads=HEADS, symbolic=False, tolerance=1e-4)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary(interleaved, rank, offset):
    x = rand(BATCH, QUERIES, HIDDEN) if rank == 3 else rand(BATCH, HEADS, QUERIES, WIDTH)
    places = np.array([2], np.int64) if offset else RNG.integers(0, 9, (BATCH, QUERIES))
    angles = {"c": rand(9, WIDTH // 2), "s": rand(9, WIDTH // 2)}
    check_contrib("RotaryEmbedding", {"x": x, "p": places}, angles, interleaved=interleaved, symbolic=False)
    if rank == 3:
        angles = {"c": rand(9, WIDTH // 4), "s": rand(9, WIDTH // 4)}
        check_contrib("RotaryEmbedding", {"x": x, "p": places}, angles, interleaved=interleaved, num_heads=HEADS,
                      rotary_embedding_dim=WIDTH // 2, symbolic=False)


def group_feeds(past, new, capacity, lengths=None):
    """A step of two sequences that had `past` keys and get `new` ones; the cache has room for `capacity`."""
    batch = 1 if past and new > 1 else BATCH  # all that ONNX Runtime takes
    lengths = lengths or [past + new] * batch
    feeds = {"q": rand(batch, new, 4 * WIDE), "k": rand(batch, new, 2 * WIDE), "v": rand(batch, new, 2 * WIDE)}
    feeds |= {"pk": rand(batch, 2, capacity, WIDE), "pv": rand(batch, 2, capacity, WIDE)}
    return feeds | {"n": np.array(lengths, np.int32) - 1}


@pytest.mark.parametrize(("past", "new", "capacity", "lengths"), [(0, 5, 0, None), (5, 1, 5, None), (5, 3, 5, None), (5, 1, 5, [4, 6])])
@pytest.mark.parametrize("attributes", [{}, {"softcap": 3.0}, {"local_window_size": 3}, {"scale": 0.2, "smooth_softmax": 1},
                                        {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
def test_group_query(past, new, capacity, lengths, attributes):
    feeds = group_feeds(past, new, capacity, lengths)
    constants = {"t": np.int32(past + new)}
    inputs = ["q", "k", "v", "pk", "pv", "n", "t"]
    if "do_rotary" in attributes:
        constants |= {"c": rand(16, WIDE // 2), "s": rand(16, WIDE // 2)}
        inputs += ["c", "s"]
    outputs, attributes = ["y", "nk", "nv"], {"num_heads": 4, "kv_num_heads": 2, **attributes}
    if lengths is None:
        check_contrib("GroupQueryAttention", feeds, constants, inputs=inputs, outputs=outputs, symbolic=False, tolerance=1e-4, **attributes)
    # what lies behind a shorter sequence in the cache is nothing, and without the caches as outputs ONNX Runtime ignores the past
    want = run_runtime(contrib_model("GroupQueryAttention", feeds, constants, inputs, outputs, **attributes), feeds)[:1]
    check_contrib("GroupQueryAttention", feeds, constants, inputs=inputs, symbolic=False, tolerance=1e-4, expected=want, **attributes)


def test_group_query_of_packed_operands_with_a_bias_and_sinks():
    feeds = group_feeds(0, 5, 0)
    packed = np.concatenate([feeds.pop(n) for n in "qkv"], -1)
    feeds = {"x": packed, "n": feeds["n"], "b": rand(1, 4, 5, 5)}
    constants = {"t": np.int32(5), "h": rand(4)}
    check_contrib("GroupQueryAttention", feeds, constants, inputs=["x", "", "", "", "", "n", "t", "", "", "", "b", "h"],
                  outputs=["y", "nk", "nv"], num_heads=4, kv_num_heads=2, symbolic=False, tolerance=1e-4)
