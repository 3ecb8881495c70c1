"""Packing of the right-hand sides of products: panels as wide as a register tile, the depth running inside a panel."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.templates.expression_code import working
from sartor.types import to_numpy

Array = np.ndarray[Any, Any]


def working_array(array: Array, dtype: str) -> Array:
    """`array`, whose element type is `dtype`, in the type it is computed in."""
    return np.ascontiguousarray(array, to_numpy(working(dtype)))


def pack_panels(matrix: Array, columns: int) -> Array:
    """[..., K, N] as [..., panels, K, columns], the last panel filled up with zeros."""
    *batch, depth, width = matrix.shape
    panels = -(-width // columns)
    padded = np.zeros((*batch, depth, panels * columns), matrix.dtype)
    padded[..., :width] = matrix
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, depth, panels, columns), -2, -3))
