"""How LLVM IR spells the loop language's types and constants."""

from __future__ import annotations

import re
import struct
from math import isnan

from sartor.loops.language import Type
from sartor.types import BYTES

_REGISTER = {"bool": "i1", "f16": "i16", "bf16": "i16", "f32": "float", "f64": "double"}


def is_unsigned(scalar: str) -> bool:
    return scalar[0] == "u" or scalar == "bool"


def register(type_: Type) -> str:
    """The LLVM type of a value in registers."""
    return vector(_REGISTER.get(type_.scalar, f"i{8 * BYTES[type_.scalar]}"), type_.lanes)


def memory_type(scalar: str) -> str:
    """The LLVM type of an element in memory."""
    return "i8" if scalar == "bool" else register(Type(scalar))


def vector(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def mangled(llvm_type: str) -> str:
    """How an intrinsic's name spells a type: `<8 x float>` is v8f32."""
    text = llvm_type.replace("float", "f32").replace("double", "f64").replace("half", "f16")
    return re.sub(r"<(\d+) x (\w+)>", r"v\1\2", text)


def float_bits(value: float) -> int:
    """The bits of `value` rounded to f32; beyond the range it is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int.from_bytes(packed, "little")


def _half_bits(value: float) -> int:
    try:
        packed = struct.pack("<e", value)
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00
    return int.from_bytes(packed, "little")


def _bfloat_bits(value: float) -> int:
    bits = float_bits(value)
    if isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def literal(value: float | int | bool, scalar: str) -> str:
    """A constant as LLVM IR spells it."""
    if scalar == "bool":
        return "true" if value else "false"
    if scalar == "f16":
        return str(_half_bits(float(value)))
    if scalar == "bf16":
        return str(_bfloat_bits(float(value)))
    if scalar == "f32":
        value = struct.unpack("<f", float_bits(float(value)).to_bytes(4, "little"))[0]
    if scalar in ("f32", "f64"):
        return f"0x{int.from_bytes(struct.pack('<d', float(value)), 'little'):016X}"
    return str(int(value))


def splat(literal: str, llvm_scalar: str, lanes: int) -> str:
    return literal if lanes == 1 else "<" + ", ".join([f"{llvm_scalar} {literal}"] * lanes) + ">"


def number(value: float, type_: Type) -> str:
    """A constant in all lanes of a type."""
    return splat(literal(value, type_.scalar), register(Type(type_.scalar)), type_.lanes)
