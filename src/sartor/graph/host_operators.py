"""Operators that onnx's reference implementation lacks or reads in a way of its own, for what runs on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def operators() -> list[type]:
    """The operators, as classes for a `ReferenceEvaluator`'s `new_ops`."""
    from onnx.reference.op_run import OpRun

    class Optional(OpRun):
        """What is there stands for itself, as everything that reads an optional takes it; onnx's own wraps it in a list."""

        op_domain = ""

        def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
            return (x,)

    class ZipMap(OpRun):
        """A map from class to score for each row."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: NDArray[Any], **labels: Any) -> tuple[list[dict[Any, float]]]:
            keys = labels.get("classlabels_strings") or labels.get("classlabels_int64s") or ()
            rows = x.reshape(-1, x.shape[-1] if x.ndim else 1)
            if len(keys) != rows.shape[1]:
                raise ValueError(f"there are {len(keys)} keys for {rows.shape[1]} columns")
            return ([dict(zip(keys, row, strict=True)) for row in rows.tolist()],)

    class CategoryMapper(OpRun):
        """Words for numbers, or numbers for words."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: NDArray[Any], **attributes: Any) -> tuple[NDArray[Any]]:
            words, numbers = attributes.get("cats_strings") or (), attributes.get("cats_int64s") or ()
            if x.dtype.kind in "iu":
                return (_mapped(x, numbers, words, attributes.get("default_string", "_Unused"), np.dtype(object)),)
            return (_mapped(x, words, numbers, attributes.get("default_int64", -1), np.dtype(np.int64)),)

    class CastMap(OpRun):
        """The values of a map in the order of its keys, at the places of the keys where the form is sparse."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: dict[int, Any], **attributes: Any) -> tuple[NDArray[Any]]:
            kinds: dict[str, tuple[Any, Any]] = {"TO_FLOAT": (np.float32, float), "TO_INT64": (np.int64, int), "TO_STRING": (object, str)}
            dtype, cast = kinds[attributes.get("cast_to") or "TO_FLOAT"]
            if (attributes.get("map_form") or "DENSE") == "DENSE":
                return (np.array([[cast(x[key]) for key in sorted(x)]], dtype),)
            out = np.full((1, attributes.get("max_map") or 1), cast(0), dtype)
            for key, value in x.items():
                out[0, key] = cast(value)
            return (out,)

    return [Optional, ZipMap, CategoryMapper, CastMap]


def _mapped(x: NDArray[Any], keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    table = dict(zip(keys, values, strict=True))
    out = np.empty(x.shape, dtype)
    out.reshape(-1)[:] = [table.get(k, default) for k in x.reshape(-1).tolist()]
    return out
