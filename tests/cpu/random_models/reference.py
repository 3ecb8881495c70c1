"""What a node computes, by onnx's reference implementation or what `meanings` names instead."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.cpu.random_models.meanings import instead


class Evaluator:
    """Runs one node on arrays of any types, as often as wanted."""

    def __init__(self, node: onnx.NodeProto, opset: int, plain: bool = False) -> None:
        self.node = node
        self.other = None if plain else instead(node, opset)
        if self.other is not None:
            return
        given = [helper.make_empty_tensor_value_info(n) for n in dict.fromkeys(node.input) if n]
        made = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = helper.make_graph([node], "one", given, made)
        self.evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """The results, None for outputs without a name."""
        feeds = {n: a for n, a in zip(self.node.input, operands, strict=False) if n}
        if self.other is not None:
            return [None if o is None else np.asarray(o) for o in self.other(operands)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = iter(self.evaluator.run(None, feeds))
        return [np.asarray(next(found)) if n else None for n in self.node.output]
