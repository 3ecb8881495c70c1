"""Nodes of com.microsoft with inputs or attributes that make no sense: each ends in one sentence that names the node."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.contrib_harness import contrib_model
from tests.unit.ops_harness import lower_model, rand

from sartor.errors import ModelError, UnsupportedError

SMALL = np.zeros((2, 3), np.uint8)


@pytest.mark.parametrize(("op", "feeds", "inputs", "attributes"), [
    ("QLinearAdd", {"a": SMALL, "b": SMALL}, ["a", "", "", "b", "", "", ""], {}),
    ("QLinearAdd", {"a": SMALL, "b": SMALL, "s": rand(2)}, ["a", "s", "", "b", "s", "", "s"], {}),
    ("QLinearMul", {"a": rand(2, 3), "s": rand()}, ["a", "s", "", "a", "s", "", "s"], {}),
    ("EmbedLayerNormalization", {"i": SMALL, "w": rand(9, 8)}, ["i", "", "w", "w", "", "w", "w"], {}),
    ("SkipLayerNormalization", {"x": rand(2, 3, 8), "s": rand(2, 4, 8)}, ["x", "s", "s"], {}),
    ("DynamicQuantizeMatMul", {"a": SMALL, "b": SMALL}, ["a", "b", "b"], {}),
    ("FusedMatMul", {"a": rand(2, 3), "b": rand(4, 5)}, ["a", "b"], {}),
    ("FusedMatMul", {"a": rand(2, 3)}, ["a"], {}),
    ("FusedConv", {"x": rand(1, 2, 3, 3), "w": rand(2, 2, 3, 3)}, ["x", "w"], {"activation": "Nonsense"}),
    ("MultiHeadAttention", {"q": rand(2, 3, 8), "k": rand(2, 3, 9)}, ["q", "k", "k"], {"num_heads": 3}),
    ("MultiHeadAttention", {"q": rand(2, 3, 8)}, ["q", "q", "q"], {}),
    ("Attention", {"x": rand(2, 3, 8), "w": rand(8, 24), "m": rand(2, 3, 8)}, ["x", "w", "", "", "m"], {"num_heads": 2}),
    ("GroupQueryAttention", {"q": rand(2, 3, 8)}, ["q", "q", "q"], {"num_heads": 2, "kv_num_heads": 0}),
    ("MatMulNBits", {"a": rand(2, 8), "b": SMALL, "s": rand(2)}, ["a", "b", "s"], {"N": 2, "K": 8, "block_size": 16, "bits": 4}),
    ("LayerNormalization", {"x": rand(2, 3), "g": rand(8)}, ["x", "g"], {"domain": "", "version": 13}),
], ids=lambda x: x if isinstance(x, str) else "")
def test_one_sentence(op, feeds, inputs, attributes):
    with pytest.raises((ModelError, UnsupportedError), match=rf"node 'node' \({op}\)") as caught:
        lower_model(contrib_model(op, feeds, {}, inputs, ["y"], **attributes))
    assert len(str(caught.value).splitlines()) == 1
