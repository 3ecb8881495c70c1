"""Conversions of the types of 8 bits and fewer, and into 16-bit floats with one rounding, written in the loop language itself.

`Builder.cast` comes here for what no processor converts.  Floats go through f32: all small floats are exact there, and numbers of
more bits are first rounded to odd (the last bit kept says that something was dropped), so that the rounding to fewer bits sees
on which side of a tie they lie (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008).
"""

from __future__ import annotations

from sartor.loops.language import Builder, Value
from sartor.types import CODED, FORMATS, limits, working

_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_SIGN = -(1 << 31)


def converts(source: str, to: str) -> bool:
    """Whether a cast between these types is written here."""
    if source in CODED or to in CODED:
        return True
    return source == "f64" if to == "f16" else to == "bf16" and source in ("f64", "i32", "u32", "i64", "u64")


def converted(b: Builder, x: Value, to: str) -> Value:
    """The value in another type: floats rounded to nearest even, integers cut to their last bits."""
    source = x.type.scalar
    if source in CODED:
        return b.cast(_decoded_integer(b, x) if source[0] in "iu" else _decoded_float(b, x), to)
    if to in CODED and to[0] in "iu":
        whole = b.cast(x, "i32") if x.type.is_float else x
        return b.bitcast(b.cast(whole, "u8") & ((1 << int(to[1:])) - 1), to)
    single = to_odd_single(b, x)
    return _encoded_power(b, single, "up saturate") if to == "f8e8m0" else _encoded(b, single, to) if to in CODED else b.cast(single, to)


def saturated(b: Builder, x: Value, to: str, option: str) -> Value:
    """A float in a small float type by an option of `Cast`: `saturate`, and for f8e8m0 `up`, `down` or `nearest` too."""
    single = to_odd_single(b, x)
    if to == "f8e8m0":
        return _encoded_power(b, single, option)
    most = FORMATS[to].maximum
    return _encoded(b, b.maximum(-most, b.minimum(most, single)), to)  # in this order a NaN stays


def to_odd_single(b: Builder, x: Value) -> Value:
    """A number as an f32 that rounds like the number itself to any type of at most 21 bits of mantissa."""
    kind = x.type.scalar
    if kind in ("i64", "u64"):  # 53 bits are kept; numbers below 2^52 have no more
        low = 0x7FF
        large = (x > 1 << 52) | (x < -(1 << 52)) if kind == "i64" else x > 1 << 52
        odd = b.select((x & low).eq(0), 0, b.constant(low + 1, x.type))
        x = b.select(large, b.bitcast((b.bitcast(x, "i64") & ~low), kind) | odd, x)
    if kind in ("i32", "u32", "i64", "u64"):
        x = b.cast(x, "f64")
    if x.type.scalar != "f64":
        return b.cast(x, "f32")
    low = (1 << 29) - 1
    bits = b.bitcast(x, "i64")
    odd = b.select((bits & low).eq(0), 0, b.constant(low + 1, bits.type))
    return b.cast(b.bitcast((bits & ~low) | odd, "f64"), "f32")


# --- integers --------------------------------------------------------------------------------------------------------------


def _decoded_integer(b: Builder, x: Value) -> Value:
    """A small integer as a byte; the bits above it may hold anything."""
    name, kind = x.type.scalar, working(x.type.scalar)
    byte, bits = b.bitcast(x, kind), int(name[1:])
    if kind == "u8":
        return byte & limits(name)[1]
    return (byte << 8 - bits) >> 8 - bits


# --- floats ----------------------------------------------------------------------------------------------------------------


def _decoded_float(b: Builder, x: Value) -> Value:
    """A small float as f32: the exponent is rebased; subnormal numbers are put right by a subtraction of floats."""
    name = x.type.scalar
    code = b.cast(b.bitcast(x, "u8"), "i32")
    if name == "f8e8m0":
        bits = b.select(code.eq(255), _NAN, code << 23)
        return b.bitcast(b.select(code.eq(0), 1 << 22, bits), "f32")
    f = FORMATS[name]
    magnitude = code & (f.sign - 1)
    placed = magnitude << 23 - f.mantissa
    normal = placed + (127 - f.bias << 23)
    small = b.bitcast(b.bitcast(normal + (1 << 23), "f32") - 2.0 ** (1 - f.bias), "i32")
    bits = b.select(placed < 1 << 23, small, normal)
    if f.overflow != f.largest and f.nan < f.sign:  # what lies above the largest number
        bits = b.select(magnitude > f.largest, _NAN, bits)
        if f.overflow != f.nan:
            bits = b.select(magnitude.eq(f.overflow), _INFINITY, bits)
    sign = (code << 31 - f.exponent - f.mantissa) & _SIGN
    bits = bits | sign
    return b.bitcast(b.select(code.eq(f.nan), _NAN, bits) if not f.signed_zero else bits, "f32")


def _encoded(b: Builder, x: Value, name: str) -> Value:
    """An f32 as a small float: normal numbers rounded by integers, subnormal ones by adding a float whose last place is theirs."""
    f = FORMATS[name]
    bits, shift = b.bitcast(x, "i32"), 23 - f.mantissa
    magnitude = bits & ~_SIGN
    odd = (magnitude >> shift) & 1
    rebased = magnitude + ((1 << shift - 1) - 1 - (127 - f.bias << 23))
    place = 2.0 ** (24 - f.bias - f.mantissa)
    shifted = b.bitcast(b.bitcast(magnitude, "f32") + place, "i32")
    origin = 151 - f.bias - f.mantissa << 23  # the bits of `place`
    code = b.select(magnitude < 128 - f.bias << 23, shifted - origin, rebased + odd >> shift)
    code = b.select(code > f.largest, f.overflow, code)
    signed = code | ((bits >> 31) & f.sign)
    if not f.signed_zero:
        signed = b.select(code.eq(0), 0, signed)
    missing = magnitude > _INFINITY
    signed = b.select(missing, signed & f.sign | f.nan if f.nan else 0, signed)
    return b.bitcast(b.cast(signed, "u8"), name)


def _encoded_power(b: Builder, x: Value, option: str) -> Value:
    """The magnitude of an f32 as f8e8m0."""
    magnitude = b.bitcast(x, "i32") & ~_SIGN
    least = 1 << 22  # 2^-127, a subnormal f32; the next number is the least normal one
    if "down" in option:
        code = magnitude >> 23
    else:
        half, next_from = (1 << 22, least + (1 << 21)) if "nearest" in option else ((1 << 23) - 1, least + 1)
        code = b.select(magnitude < 1 << 23, b.cast(magnitude >= next_from, "i32"), (magnitude + half) >> 23)
    if "saturate" in option:
        code = b.minimum(code, 254)
    else:
        code = b.select((magnitude < least) | (code > 254), 255, code)
    return b.bitcast(b.cast(b.select(magnitude > _INFINITY, 255, code), "u8"), "f8e8m0")
