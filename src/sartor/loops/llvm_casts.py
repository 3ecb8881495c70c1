"""Conversions of values in LLVM IR, those of 16-bit floats by integers where the processor has no instruction.

f16 and bf16 are held as i16, so that no target needs a library call or passes them in its own way.
"""

from __future__ import annotations

from typing import Protocol

from sartor.loops.language import Type
from sartor.loops.llvm_values import float_bits, is_unsigned, mangled, number, register, vector
from sartor.loops.target import Target
from sartor.types import BYTES


class Emitter(Protocol):
    """Where instructions go."""

    target: Target

    def new(self, text: str) -> str:
        """Emits an instruction and returns its result's name."""

    def call(self, intrinsic: str, result: str, *operands: tuple[str, str]) -> str:
        """The text of a call of an intrinsic; operands are (type, value)."""


def converted(emit: Emitter, a: str, source: Type, to: Type) -> str:
    """Value conversion; f16 and bf16 go through f32."""
    single = source.of("f32")
    if source.scalar == to.scalar:
        return a
    if source.scalar in ("f16", "bf16"):
        wide = _half_to_single(emit, a, source) if source.scalar == "f16" else _bfloat_to_single(emit, a, source)
        return converted(emit, wide, single, to)
    if to.scalar in ("f16", "bf16"):
        narrow = converted(emit, a, source, single)  # what has more bits comes by way of `codes`
        return _single_to_half(emit, narrow, single) if to.scalar == "f16" else _single_to_bfloat(emit, narrow, single)
    have, want = register(source), register(to)
    if to.scalar == "bool":
        test = "fcmp une" if source.is_float else "icmp ne"
        return emit.new(f"{test} {have} {a}, {number(0, source)}")
    if source.is_float and to.is_float:
        return emit.new(f"{'fpext' if to.scalar == 'f64' else 'fptrunc'} {have} {a} to {want}")
    if source.is_float:
        return emit.new(f"{'fptoui' if is_unsigned(to.scalar) else 'fptosi'} {have} {a} to {want}")
    if to.is_float:
        return emit.new(f"{'uitofp' if is_unsigned(source.scalar) else 'sitofp'} {have} {a} to {want}")
    if have == want:
        return a
    wider = source.scalar == "bool" or BYTES[to.scalar] > BYTES[source.scalar]
    extend = "zext" if is_unsigned(source.scalar) else "sext"
    return emit.new(f"{extend if wider else 'trunc'} {have} {a} to {want}")


def _integer(emit: Emitter, text: str, type_: Type, a: str, constant: int) -> str:
    """`text` of `a` and a constant, both unsigned `type_`."""
    return emit.new(f"{text} {register(type_)} {a}, {number(constant, type_)}")


def _bfloat_to_single(emit: Emitter, a: str, source: Type) -> str:
    bits, single = source.of("u32"), source.of("f32")
    wide = emit.new(f"zext {register(source)} {a} to {register(bits)}")
    high = _integer(emit, "shl", bits, wide, 16)
    return emit.new(f"bitcast {register(bits)} {high} to {register(single)}")


def _single_to_bfloat(emit: Emitter, a: str, single: Type) -> str:
    """Round to nearest even by adding just under half; a NaN keeps its sign and stays a NaN."""
    bits, mask = single.of("u32"), register(single.of("bool"))
    kind = register(bits)
    x = emit.new(f"bitcast {register(single)} {a} to {kind}")
    high = _integer(emit, "lshr", bits, x, 16)
    odd = _integer(emit, "and", bits, high, 1)
    half = _integer(emit, "add", bits, odd, 0x7FFF)
    rounded = _integer(emit, "lshr", bits, emit.new(f"add {kind} {x}, {half}"), 16)
    quiet = _integer(emit, "or", bits, high, 0x40)
    nan = emit.new(f"fcmp uno {register(single)} {a}, {a}")
    chosen = emit.new(f"select {mask} {nan}, {kind} {quiet}, {kind} {rounded}")
    return emit.new(f"trunc {kind} {chosen} to {register(single.of('bf16'))}")


def _half_to_single(emit: Emitter, a: str, source: Type) -> str:
    bits, single, lanes = source.of("u32"), source.of("f32"), source.lanes
    kind, floats, mask = register(bits), register(single), register(source.of("bool"))
    if emit.target.has_half:
        half = emit.new(f"bitcast {register(source)} {a} to {vector('half', lanes)}")
        return emit.new(f"fpext {vector('half', lanes)} {half} to {floats}")
    # Exponents are rebased; infinities and NaNs once more; subnormals are normalised by a subtraction of floats.
    wide = emit.new(f"zext {register(source)} {a} to {kind}")
    magnitude = _integer(emit, "shl", bits, _integer(emit, "and", bits, wide, 0x7FFF), 13)
    exponent = _integer(emit, "and", bits, magnitude, 0x7C00 << 13)
    normal = _integer(emit, "add", bits, magnitude, 112 << 23)
    special = _integer(emit, "add", bits, normal, 112 << 23)
    shifted = emit.new(f"bitcast {kind} {_integer(emit, 'add', bits, normal, 1 << 23)} to {floats}")
    small = emit.new(f"fsub {floats} {shifted}, {number(2.0**-14, single)}")
    small = emit.new(f"bitcast {floats} {small} to {kind}")
    is_special = _integer(emit, "icmp eq", bits, exponent, 0x7C00 << 13)
    is_small = _integer(emit, "icmp eq", bits, exponent, 0)
    value = emit.new(f"select {mask} {is_special}, {kind} {special}, {kind} {normal}")
    value = emit.new(f"select {mask} {is_small}, {kind} {small}, {kind} {value}")
    sign = _integer(emit, "shl", bits, _integer(emit, "and", bits, wide, 0x8000), 16)
    value = emit.new(f"or {kind} {value}, {sign}")
    return emit.new(f"bitcast {kind} {value} to {floats}")


def _single_to_half(emit: Emitter, a: str, single: Type) -> str:
    bits, lanes, half = single.of("u32"), single.lanes, register(single.of("f16"))
    kind, floats, mask = register(bits), register(single), register(single.of("bool"))
    if emit.target.has_half:
        # LLVM would join this with a rounding from f64 before it, for which there is no instruction but a library.
        fenced = emit.new(emit.call(f"llvm.arithmetic.fence.{mangled(floats)}", floats, (floats, a)))
        narrow = emit.new(f"fptrunc {floats} {fenced} to {vector('half', lanes)}")
        return emit.new(f"bitcast {vector('half', lanes)} {narrow} to {half}")
    # Round to nearest even: normal numbers by integers, subnormal ones by adding a float whose last place is 2^-24.
    x = emit.new(f"bitcast {floats} {a} to {kind}")
    sign = _integer(emit, "and", bits, x, 0x80000000)
    magnitude = emit.new(f"xor {kind} {x}, {sign}")
    odd = _integer(emit, "and", bits, _integer(emit, "lshr", bits, magnitude, 13), 1)
    biased = _integer(emit, "add", bits, magnitude, (0xFFF - (112 << 23)) & 0xFFFFFFFF)
    normal = _integer(emit, "lshr", bits, emit.new(f"add {kind} {biased}, {odd}"), 13)
    as_float = emit.new(f"bitcast {kind} {magnitude} to {floats}")
    shifted = emit.new(f"fadd {floats} {as_float}, {number(0.5, single)}")
    small = _integer(emit, "sub", bits, emit.new(f"bitcast {floats} {shifted} to {kind}"), float_bits(0.5))
    is_small = _integer(emit, "icmp ult", bits, magnitude, 113 << 23)
    is_large = _integer(emit, "icmp uge", bits, magnitude, 0x47800000)
    is_nan = _integer(emit, "icmp ugt", bits, magnitude, 0x7F800000)
    large = emit.new(f"select {mask} {is_nan}, {kind} {number(0x7E00, bits)}, {kind} {number(0x7C00, bits)}")
    value = emit.new(f"select {mask} {is_small}, {kind} {small}, {kind} {normal}")
    value = emit.new(f"select {mask} {is_large}, {kind} {large}, {kind} {value}")
    value = emit.new(f"or {kind} {value}, {_integer(emit, 'lshr', bits, sign, 16)}")
    return emit.new(f"trunc {kind} {value} to {half}")
