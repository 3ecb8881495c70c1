"""Conversions of types in NumPy as expressions mean them, those of 8 bits and fewer (held by ml_dtypes) among them.

Values are held in working types: f32 for floats of 16 bits and fewer, a byte for integers of fewer than 8 bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sartor.types import CODED, FORMATS, limits, to_numpy, working

Array: TypeAlias = np.ndarray[Any, Any]


def cast(x: Array, to: str, option: str | None = None) -> Array:
    """Working values in the working type of `to`, rounded once to what `to` can hold.

    Floats become integers of 8 bits and more without their fraction, what lies outside held at the type's ends and a NaN as 0;
    integers of fewer bits are the last bits of such an i32.  `option` is that of a `cast` node.
    """
    if to == "bool":
        return x != 0  # type: ignore[no-any-return]
    if to[0] in "iu":
        return _cut(_whole(x, "i32" if x.dtype.kind == "f" else "i64"), to) if to in CODED else _whole(x, to)
    if to in ("f32", "f64", "f16"):
        return x.astype(to_numpy(to)).astype(to_numpy(working(to)))
    single = to_odd_single(x)
    if to == "f8e8m0":
        return _power(single, option or "up saturate")
    if option is not None and "saturate" in option:
        most = np.float32(FORMATS[to].maximum)
        single = np.where(np.isnan(single), single, np.clip(single, -most, most))
    if not FORMATS[to].nan if to in FORMATS else False:
        single = np.where(np.isnan(single), np.float32(0), single)
    return np.asarray(single.astype(to_numpy(to)).astype(np.float32))


def bitcast(x: Array, source: str, to: str) -> Array:
    """The bits of working values of the type `source` as working values of the type `to`; a byte that is not 0 is true."""
    stored = x.astype(np.uint8 if source == "bool" else to_numpy(source))
    return stored.view(np.uint8) != 0 if to == "bool" else stored.view(to_numpy(to)).astype(to_numpy(working(to)))


def _whole(x: Array, to: str) -> Array:
    dtype = to_numpy(to)
    if x.dtype.kind != "f":
        return np.asarray(x.astype(dtype))
    low, high = limits(to)
    within = (x > float(low)) & (x < float(high + 1))
    ends = np.where(x >= float(high + 1), np.asarray(high, dtype), np.where(x <= float(low), np.asarray(low, dtype), 0))
    return np.where(within, np.where(within, x, 0).astype(dtype), ends.astype(dtype))


def _cut(x: Array, to: str) -> Array:
    """The last bits of integers."""
    bits = np.asarray(x).astype(np.int64) & limits(f"u{to[1:]}")[1]
    if to[0] == "i":
        bits = np.where(bits > limits(to)[1], bits - (1 << int(to[1:])), bits)
    return bits.astype(to_numpy(working(to)))


def to_odd_single(x: Array) -> Array:
    """Numbers as f32 that round like the numbers themselves to types of at most 21 bits of mantissa: what is inexact ends odd."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        low = x.dtype.type(0x7FF)
        odd = np.where(x & low, x.dtype.type(0x800), x.dtype.type(0))
        large = (x > 1 << 52) | (x < -(1 << 52)) if x.dtype.kind == "i" else x > 1 << 52
        x = np.where(large, (x & ~low) | odd, x)
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4:
        x = x.astype(np.float64)
    if x.dtype != np.float64:
        return x.astype(np.float32)
    bits = np.ascontiguousarray(x).view(np.int64)
    low = np.int64((1 << 29) - 1)
    odd = np.where(bits & low, low + 1, np.int64(0))
    return np.asarray(((bits & ~low) | odd).view(np.float64).astype(np.float32)).reshape(x.shape)


def _power(x: Array, option: str) -> Array:
    """The magnitudes of f32 numbers as powers of two from 2^-127 to 2^127, by the tables of ONNX's Cast."""
    magnitude = np.abs(x).astype(np.float64)
    mantissa, exponent = np.frexp(magnitude)  # magnitude = mantissa * 2^exponent, the mantissa from 1/2 to 1
    power = exponent - 1
    if "nearest" in option:
        power += mantissa >= 0.75
    elif "down" not in option:
        power += mantissa > 0.5
    least, most = -127, 127
    if "saturate" in option:
        power = np.where(magnitude == 0, least, np.where(np.isinf(magnitude), most, np.clip(power, least, most)))
        found = np.exp2(power.astype(np.float64))
    else:
        found = np.where((magnitude < 2.0**least) | (power > most) | np.isinf(magnitude), np.nan, np.exp2(power.astype(np.float64)))
    return np.where(np.isnan(magnitude), np.nan, found).astype(np.float32)
