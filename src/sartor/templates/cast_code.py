"""Conversions of expressions as loop code: values are in the types that they are computed in, results in those that are stored."""

from __future__ import annotations

from sartor.graph.expression import Node
from sartor.loops import codes
from sartor.loops.language import Builder, Value
from sartor.types import CODED, limits, working


def cast(b: Builder, x: Value, node: Node, source: str) -> Value:
    """A value of the type `source` in that of a `cast` node."""
    if node.value is not None:
        return codes.saturated(b, x, node.dtype, str(node.value))
    if x.type.is_float and node.dtype[0] in "iu":
        return b.cast(_truncated(b, x, "i32"), node.dtype) if node.dtype in CODED else _truncated(b, x, node.dtype)
    if (source, node.dtype) == ("f8e8m0", "f64"):  # 2^-127 is a subnormal f32, which arithmetic takes for 0
        return b.select(b.bitcast(x, "i32").eq(1 << 22), 2.0**-127, b.cast(x, "f64"))
    return b.cast(x, node.dtype)


def bitcast(b: Builder, x: Value, source: str, to: str) -> Value:
    """The bits of a value of the type `source` as a value of the type `to`; a byte that is not 0 is true."""
    if to == "bool":
        return b.cast(bitcast(b, x, source, "u8"), to)
    stored = b.cast(x, "u8" if source == "bool" else source)
    return b.cast(b.bitcast(stored, to), working(to))


def _truncated(b: Builder, x: Value, dtype: str) -> Value:
    """A float as an integer: the fraction dropped, what lies outside held at the type's ends, 0 for a NaN.

    The bare instruction leaves numbers outside undefined, and gives others for vectors than for single numbers.
    """
    low, high = limits(dtype)[0], limits(dtype)[1] + 1
    kind = x.type.of(dtype)
    inside = b.cast(b.select((x > float(low)) & (x < float(high)), x, 0.0), dtype)
    below = b.select(x <= float(low), b.constant(low, kind), inside)
    return b.select(x >= float(high), b.constant(high - 1, kind), below)
