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
    whole, panels = width // columns, -(-width // columns)
    packed = np.empty((*batch, panels, depth, columns), matrix.dtype)
    split = matrix[..., : whole * columns].reshape(*batch, depth, whole, columns)
    packed[..., :whole, :, :] = np.moveaxis(split, -2, -3)
    if panels > whole:
        packed[..., -1, :, : width - whole * columns] = matrix[..., whole * columns :]
        packed[..., -1, :, width - whole * columns :] = 0
    return packed
