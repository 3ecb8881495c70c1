"""Element types: the names used inside Sartor (those of the loop language) and NumPy's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sartor.errors import UnsupportedError

NUMPY: dict[str, type[np.generic]] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bool": np.bool_,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}
ARITHMETIC = (*NUMPY, "bf16")
"""Types that operators compute with; all others are only moved and converted."""

_ML_DTYPES = {
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f6e2m3": "float6_e2m3fn", "f6e3m2": "float6_e3m2fn",
    "f4e2m1": "float4_e2m1fn", "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}
CODED = tuple(name for name in _ML_DTYPES if name != "bf16")
"""Types of 8 bits and fewer that no processor computes with.  Each element takes a byte, of which the lowest bits count."""

BYTES = {name: np.dtype(t).itemsize for name, t in NUMPY.items()} | {"bf16": 2} | dict.fromkeys(CODED, 1)
_NAMES = {np.dtype(t): name for name, t in NUMPY.items()}
_ML_NAMES = {theirs: name for name, theirs in _ML_DTYPES.items()}


class Format(NamedTuple):
    """How a small float is coded: sign, exponent, mantissa, from the highest bit down.

    Codes are magnitudes: `largest` that of the largest finite number, `overflow` what is made of larger ones, `nan` that of a NaN
    (0 where there is none).  Without a `signed_zero` the code of -0 is that of the NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed_zero: bool = True

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << self.exponent + self.mantissa

    @property
    def maximum(self) -> float:
        """The largest finite number."""
        exponent, mantissa = divmod(self.largest, 1 << self.mantissa)
        return float((1 + mantissa / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias))


FORMATS = {
    "f8e4m3fn": Format(4, 3, 7, 0x7E, 0x7F, 0x7F), "f8e4m3fnuz": Format(4, 3, 8, 0x7F, 0x80, 0x80, False),
    "f8e5m2": Format(5, 2, 15, 0x7B, 0x7C, 0x7E), "f8e5m2fnuz": Format(5, 2, 16, 0x7F, 0x80, 0x80, False),
    "f6e2m3": Format(2, 3, 1, 0x1F, 0x1F, 0), "f6e3m2": Format(3, 2, 3, 0x1F, 0x1F, 0), "f4e2m1": Format(2, 1, 1, 0x7, 0x7, 0),
}
"""The small floats, but for f8e8m0, which has neither sign nor mantissa: the code is the exponent of 2, less 127; 255 is the NaN."""


def working(name: str) -> str:
    """The type in which values of the type `name` are held to be computed with: f32 for small floats, a byte for small integers."""
    if name in ("f16", "bf16") or (name in CODED and name[0] == "f"):
        return "f32"
    return f"{name[0]}8" if name in CODED else name


def width(name: str) -> int:
    """How many bits of an element count."""
    return int(name[1]) if name in CODED else 8 * BYTES[name]


def limits(name: str) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    bits = int(name[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if name[0] == "i" else (0, (1 << bits) - 1)


def to_numpy(name: str) -> np.dtype[Any]:
    """The NumPy dtype of the element type `name` (bf16 and the types of 8 bits and fewer that NumPy lacks need ml_dtypes)."""
    if name in _ML_DTYPES:
        import ml_dtypes

        theirs: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return theirs
    if name == "string":
        return np.dtype(object)
    return np.dtype(NUMPY[name])


def from_numpy(dtype: np.dtype[Any]) -> str:
    """The element type of a NumPy dtype; raises `UnsupportedError` for one Sartor does not know."""
    if (name := _NAMES.get(np.dtype(dtype))) is not None:
        return name
    if (name := _ML_NAMES.get(np.dtype(dtype).name)) is not None:
        return name
    if np.dtype(dtype).kind in "OUS":
        return "string"
    known = ", ".join([*map(str, _NAMES), *_ML_NAMES])
    raise UnsupportedError(f"arrays of dtype {dtype} are not supported; supported are {known}")
