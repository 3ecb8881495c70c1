"""Element types: the names used inside Sartor (those of the loop language) and NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.errors import UnsupportedError

NUMPY: dict[str, type[np.generic]] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bool": np.bool_,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}
BYTES = {name: np.dtype(t).itemsize for name, t in NUMPY.items()} | {"bf16": 2}
_NAMES = {np.dtype(t): name for name, t in NUMPY.items()}


def to_numpy(name: str) -> np.dtype[Any]:
    """The NumPy dtype of the element type `name` (bf16 needs ml_dtypes)."""
    if name == "bf16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    if name == "string":
        return np.dtype(object)
    return np.dtype(NUMPY[name])


def from_numpy(dtype: np.dtype[Any]) -> str:
    """The element type of a NumPy dtype; raises `UnsupportedError` for one Sartor does not know."""
    if (name := _NAMES.get(np.dtype(dtype))) is not None:
        return name
    if np.dtype(dtype).name == "bfloat16":
        return "bf16"
    if np.dtype(dtype).kind in "OUS":
        return "string"
    raise UnsupportedError(f"arrays of dtype {dtype} are not supported; supported are {', '.join(map(str, _NAMES))} and bfloat16")
