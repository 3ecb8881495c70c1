"""Lowers models with operators of ONNX Runtime's own domain and compares them with what that engine gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
from tests.unit.ops_harness import Arrays, holds, kinds, lower_model, make_model, run_runtime

from sartor.graph.reference import evaluate_graph

DOMAIN = "com.microsoft"


def contrib_model(op: str, feeds: Arrays, constants: Arrays, inputs: Sequence[str], outputs: Sequence[str], *, version: int = 17,
                  domain: str = DOMAIN, dims: Mapping[str, list[Any]] | None = None, **attributes: Any) -> onnx.ModelProto:
    """A model of one node of the domain; names in `outputs` that are "" are left out."""
    node = oh.make_node(op, list(inputs), list(outputs), name="node", domain=domain, **attributes)
    model = make_model([node], feeds, [name for name in outputs if name], constants, version, dims)
    model.opset_import.append(oh.make_opsetid(DOMAIN, 1))
    return model


def check_contrib(op: str, feeds: Arrays, constants: Arrays | None = None, *, inputs: Sequence[str] | None = None,
                  outputs: Sequence[str] = ("y",), symbolic: bool = True, symbol_axes: Sequence[int] = tuple(range(8)), tolerance: float = 1e-5,
                  units: int = 0, expected: Sequence[np.ndarray[Any, Any]] | None = None, domain: str = DOMAIN,
                  **attributes: Any) -> None:
    """Compares one operator with ONNX Runtime (or `expected`), its sizes known and those along `symbol_axes` symbols.

    Integers may differ by `units`.
    """
    constants = constants or {}
    model = contrib_model(op, feeds, constants, inputs or [*feeds, *constants], outputs, domain=domain, **attributes)
    wanted = expected if expected is not None else run_runtime(model, feeds)
    graphs = [(lower_model(model), {})]
    if symbolic:
        shapes = {n: [f"{n}{i}" if i in symbol_axes else d for i, d in enumerate(a.shape)] for n, a in feeds.items()}
        sizes = {f"{n}{i}": d for n, a in feeds.items() for i, d in enumerate(a.shape)}
        graphs.append((lower_model(model, shapes=shapes), sizes))
    for graph, sizes in graphs:
        assert "host" not in kinds(graph)
        assert holds(graph, sizes)
        got = evaluate_graph(graph, feeds)
        for name, want in zip([o for o in outputs if o], wanted, strict=True):
            compare(got[name], want, tolerance, units)


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], tolerance: float, units: int) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind in "iu":
        assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= units
    else:
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
