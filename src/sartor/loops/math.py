"""Vector mathematics written in the loop language: `f(builder, x) -> Value`, lane by lane, for f32 and f64.

A lane's result depends on that lane alone, so that any number of lanes gives the same bits.  Bounds are in units in the last
place (ULP) of the exact result and hold with and without a fused multiply-add.  Subnormal results may be flushed to zero
and subnormal arguments count as zero, as they do while a program runs.  NaN gives NaN.

Polynomials without another source are Chebyshev interpolants (`mpmath.chebyfit` at 60 digits) of the function and the
interval that the comment beside them states, rounded; coefficients stand in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf, log, nan

from sartor.errors import LoopError
from sartor.loops.language import Builder, Number, Value

_LOG2_E = 1.4426950408889634
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = 1.5707963267948966
_HALF_PI_REST = 6.123233995736766e-17

# (e^r - 1 - r) / r^2 for |r| <= log(2) / 2
_EXP32 = (0.5, 0.166665768946066, 0.0416665544984137, 0.008363194882419041, 0.0013926203361634337)
_EXP64 = (
    0.5000000000000001, 0.16666666666666669, 0.04166666666662404, 0.008333333333330055, 0.0013888888917258759,
    0.00019841269863088255, 2.4801521225986432e-05, 2.7557268406190795e-06, 2.7620121717381933e-07, 2.51004110820149e-08,
)
# (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f between the roots of 1/2 and 2
_LOG32 = (
    0.33333331180030046, -0.24999996957950882, 0.200007157488921, -0.16667802319501254, 0.1424905764569748, -0.12425687331451106,
    0.1168541992348674, -0.11479733846637635, 0.06971611471451178,
)
# (2 atanh(s) / s - 2) / s^2 of s^2, for s = f / (2 + f), f as above
_LOG64 = (
    0.6666666666666666, 0.4000000000000088, 0.28571428570801954, 0.22222222392089008, 0.18181795600060793, 0.15386241881938595,
    0.13268714792348096, 0.1308723619665962,
)
# (tanh(x) / x - 1) / x^2 of x^2, for x <= 0.625
_TANH32 = (-0.33333328940217805, 0.1333276934202809, -0.05385084952031017, 0.020996894037127373, -0.0060962995228861)
_TANH64 = (
    -0.3333333333333332, 0.13333333333326647, -0.053968253961384736, 0.021869488260176276, -0.008863229824094,
    0.003592058907770886, -0.0014553088663318695, 0.0005874356408905726, -0.00023077238182345804, 7.959476025492855e-05,
    -1.724229434740653e-05,
)
# erf(x) / x - 1 of x^2, for x <= 1
_ERF64 = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
    1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)
# erfc(x) exp(x^2) of (x - 3) / (x + 3), for 1 <= x <= 6
_ERFC64 = (
    0.17900115118138996, -0.3262335600430372, 0.2456038017123309, -0.15011593650077742, 0.07166583719797347,
    -0.024392499318655416, 0.004269136333148302, 0.0007077464385177353, -0.0005970619586158305, 4.5255298034073955e-05,
    6.405673342206844e-05, -1.2860318447907675e-05, -7.979817704348727e-06, 2.1169509641489688e-06, 1.2598817267482604e-06,
    -2.7269500546476834e-07, -2.389387463474792e-07, -2.5925894581233316e-08,
)
# erf: coefficients of Norbert Juffa (https://stackoverflow.com/a/35148199), small and large arguments
_ERF32_SMALL = (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4)
_ERF32_LARGE = (-1.28717512e-1, -6.34846687e-1, -1.06777877e-1, 2.42546219e-2, -3.88396438e-3, 3.83197126e-4, -1.72853470e-5)
# (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 of r^2, for |r| <= pi / 4
_SIN32 = (-0.16666664656312208, 0.00833274710466453, -0.0001958763909873762)
_COS32 = (0.04166666465348879, -0.001388830186756237, 2.454768977246003e-05)
_SIN64 = (
    -0.16666666666666666, 0.008333333333330936, -0.00019841269836740532, 2.7557316093198404e-06, -2.5051129896450185e-08,
    1.5917988979397435e-10,
)
_COS64 = (
    0.041666666666666664, -0.0013888888888887389, 2.48015872987544e-05, -2.755731726587808e-07, 2.087614504941318e-09,
    -1.138254464534925e-11,
)
# (atan(t) / t - 1) / t^2 of t^2, for t <= 1
_ATAN32 = (
    -0.3333333173306352, 0.1999973932983558, -0.14278568748210602, 0.11033764115313455, -0.08656880430154522,
    0.06250169444749563, -0.03587153898204336, 0.013507771427020535, -0.002386997316724113,
)
_ATAN64 = (
    -0.3333333333333333, 0.1999999999999753, -0.14285714285384132, 0.11111111093490827, -0.09090908590891934,
    0.07692298971033217, -0.06666564699289104, 0.05881506877793656, -0.052579733342841106, 0.04737749579527779,
    -0.04260356632601652, 0.03749486812535247, -0.031277189066996385, 0.023696731580048622, -0.015535152475414177,
    0.008368931178450162, -0.0034958859739163094, 0.0010496035084968515, -0.00019996189377901382, 1.806195461861215e-05,
)
# pi / 2 in pieces of 24 bits, whose products with quadrant numbers below 2^29 are exact, and the rest
_HALF_PI_PARTS32 = (1.570796251296997, 7.549789415861596e-08, 5.390302858158119e-15)
_HALF_PI_PARTS64 = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820035428735005e-22)
_LARGE = 8.0e8  # below it, quadrant numbers are below 2^29
_TWO_OVER_PI_BITS = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561  # 2 / pi * 2^256


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x^2 + ... by Horner's rule; at least two coefficients."""
    *rest, last = coefficients
    value: Number = last
    for coefficient in reversed(rest):
        value = b.fma(value, x, coefficient)
    return b.unify(value, x)[0]


def _absolute(b: Builder, x: Value) -> Value:
    return b.unary("abs", x)


def _is_nan(x: Value) -> Value:
    return x.ne(x)


def _is_double(b: Builder, x: Value, name: str) -> bool:
    if x.type.scalar not in ("f32", "f64"):
        raise LoopError(f"kernel {b.name}: {name} is defined for f32 and f64, not {x.type}; cast it to f32 first")
    return x.type.scalar == "f64"


def _through_double(b: Builder, x: Value, function: Callable[[Builder, Value], Value]) -> Value:
    return b.cast(function(b, b.cast(x, "f64")), x.type.scalar)


# --- exp, log and what is made of them ------------------------------------------------------------------------------------


def _exp_finite(b: Builder, x: Value) -> Value:
    """e^x where the result is a normal number; anything elsewhere (Cody and Waite's reduction; a NaN may turn into a number)."""
    double = x.type.scalar == "f64"
    magic, bits, width = (1.5 * 2.0**52, "i64", 52) if double else (1.5 * 2.0**23, "i32", 23)
    high, low = (0.6931471803691238, 1.9082149292705877e-10) if double else (0.693359375, -2.12194440e-4)
    shifted = b.fma(x, _LOG2_E, magic)  # its last bits are the exponent
    n = shifted - magic
    r = b.fma(n, -low, b.fma(n, -high, x))
    p = b.fma(polynomial(b, r, _EXP64 if double else _EXP32), r * r, r) + 1.0
    return b.bitcast(b.bitcast(p, bits) + (b.bitcast(shifted, bits) << width), x.type.scalar)


def exp(b: Builder, x: Value) -> Value:
    """e^x, within 2 ULP; 0 below log of the smallest normal number."""
    double = _is_double(b, x, "exp")
    lowest, highest = (-708.3964185322641, 709.782712893384) if double else (-87.33654, 88.72283)
    r = b.select(x < lowest, 0.0, _exp_finite(b, x))
    return b.select(x <= highest, r, x * inf)


def exp_not_positive(b: Builder, x: Value) -> Value:
    """e^x for x <= 0 (softmax), within 2 ULP, in fewer steps than `exp`; 0 below the logarithm of the smallest normal number."""
    if _is_double(b, x, "exp_not_positive"):
        return exp(b, x)
    x = b.maximum(-88.0, x)  # where the power below is 0; in this order a NaN stays
    biased = 1.5 * 2.0**23 + 127.0
    shifted = b.fma(x, _LOG2_E, biased)  # its last bits are the exponent with its bias
    n = shifted - biased
    r = b.fma(n, 2.12194440e-4, b.fma(n, -0.693359375, x))
    p = b.fma(polynomial(b, r, _EXP32), r * r, r) + 1.0
    return p * b.bitcast(b.bitcast(shifted, "i32") << 23, "f32")


def exp2(b: Builder, x: Value) -> Value:
    """2^x, within 2 ULP."""
    double = _is_double(b, x, "exp2")
    lowest, highest = (-1022.0, 1024.0) if double else (-126.0, 128.0)
    magic, bits, width = (1.5 * 2.0**52, "i64", 52) if double else (1.5 * 2.0**23, "i32", 23)
    shifted = x + magic
    r = (x - (shifted - magic)) * log(2.0)
    p = b.fma(polynomial(b, r, _EXP64 if double else _EXP32), r * r, r) + 1.0
    scaled = b.bitcast(b.bitcast(p, bits) + (b.bitcast(shifted, bits) << width), x.type.scalar)
    return b.select(x < highest, b.select(x < lowest, 0.0, scaled), x * inf)


def _mantissa_exponent(b: Builder, x: Value) -> tuple[Value, Value]:
    """m between the roots of 1/2 and 2, and e as a float, with x = m 2^e, for normal positive x."""
    double = x.type.scalar == "f64"
    bits, root, width = ("i64", 0x3FE6A09E667F3BCD, 52) if double else ("i32", 0x3F3504F3, 23)
    i = b.bitcast(x, bits)
    e = (i - root) >> width
    m = b.bitcast(i - (e << width), x.type.scalar)
    if double:  # exponents fit in 32 bits, whose conversion every processor has
        return m, b.cast(b.cast(e, "i32"), "f64")
    return m, b.cast(e, "f32")


def _log_positive(b: Builder, x: Value) -> Value:
    """log(x) of normal positive x (Cephes' logf; fdlibm's form in f64)."""
    m, e = _mantissa_exponent(b, x)
    f = m - 1.0
    if x.type.scalar == "f64":
        high, low = 0.6931471803691238, 1.9082149292705877e-10
        s, half_square = f / (f + 2.0), f * f * 0.5
        z = s * s
        r = polynomial(b, z, _LOG64) * z
        return b.fma(e, high, f - (half_square - (s * (half_square + r) + e * low)))
    high, low = 0.693359375, -2.12194440e-4
    z = f * f
    y = b.fma(e, low, polynomial(b, f, _LOG32) * z * f)
    return b.fma(e, high, f + b.fma(z, -0.5, y))


def log_(b: Builder, x: Value) -> Value:
    """The natural logarithm, within 2 ULP; -inf for 0, NaN below it."""
    smallest = 2.0**-1022 if _is_double(b, x, "log") else 2.0**-126
    special = b.select(x < 0.0, b.constant(nan, x.type), -inf)
    return b.select(x < inf, b.select(x < smallest, special, _log_positive(b, x)), x)


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x), within 4 ULP; the rounding of 1 + x is put right (Higham, Accuracy and Stability, 1.14.1)."""
    w = x + 1.0
    lost = x - (w - 1.0)
    r = log_(b, w)
    return b.select(_absolute(b, r) < inf, r + lost / w, r)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e^-x), within 4 ULP."""
    _is_double(b, x, "sigmoid")
    return 1.0 / (exp(b, -x) + 1.0)


def softplus(b: Builder, x: Value) -> Value:
    """log(1 + e^x) as max(x, 0) + log1p(e^-|x|), within 4 ULP."""
    _is_double(b, x, "softplus")
    u = exp(b, -_absolute(b, x))
    w = u + 1.0
    tail = _log_positive(b, w) + (u - (w - 1.0)) / w
    return b.select(_is_nan(x), x, b.maximum(x, 0.0) + tail)


def tanh(b: Builder, x: Value) -> Value:
    """The hyperbolic tangent, within 3 ULP: a polynomial up to 0.625, then 1 - 2 / (e^2x + 1) (Cephes)."""
    double = _is_double(b, x, "tanh")
    a = _absolute(b, x)
    z = x * x
    small = b.fma(polynomial(b, z, _TANH64 if double else _TANH32) * z, x, x)
    grown = _exp_finite(b, b.minimum(a, 20.0 if double else 10.0) * 2.0)
    large = b.binary("copysign", 1.0 - 2.0 / (grown + 1.0), x)
    return b.select(a > 0.625, large, small)


def erf(b: Builder, x: Value) -> Value:
    """The error function, within 3 ULP in f32 and 4 in f64: polynomials, and 1 - e^-... above 0.93 (f32) or 1 (f64)."""
    double = _is_double(b, x, "erf")
    a, z = _absolute(b, x), x * x
    if double:
        small = b.fma(polynomial(b, z, _ERF64), x, x)
        t = b.minimum(a, 6.0)
        rest = _exp_finite(b, -(t * t)) * polynomial(b, (t - 3.0) / (t + 3.0), _ERFC64)
        return b.select(a > 1.0, b.binary("copysign", 1.0 - rest, x), small)
    small = b.fma(polynomial(b, z, _ERF32_SMALL), x, x)
    t = b.minimum(a, 4.0)
    rest = _exp_finite(b, b.fma(polynomial(b, t, _ERF32_LARGE), t, -t))
    return b.select(a > 0.927734375, b.binary("copysign", 1.0 - rest, x), small)


def sinh(b: Builder, x: Value) -> Value:
    """The hyperbolic sine, within 1 ULP in f32 (computed in f64) and 6 in f64."""
    if not _is_double(b, x, "sinh"):
        return _through_double(b, x, sinh)
    z = x * x
    small = b.fma(polynomial(b, z, [1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800, 1 / 6227020800]) * z, x, x)
    half = _half_exp(b, _absolute(b, x))
    large = b.binary("copysign", half - 0.25 / half, x)
    return b.select(_absolute(b, x) > 0.5, large, small)


def _half_exp(b: Builder, x: Value) -> Value:
    """e^x / 2, which may be in range where e^x is not."""
    root = exp(b, x * 0.5)
    return root * 0.5 * root


def cosh(b: Builder, x: Value) -> Value:
    """The hyperbolic cosine, within 1 ULP in f32 (computed in f64) and 4 in f64."""
    if not _is_double(b, x, "cosh"):
        return _through_double(b, x, cosh)
    half = _half_exp(b, _absolute(b, x))
    return half + 0.25 / half


def asinh(b: Builder, x: Value) -> Value:
    """The inverse hyperbolic sine, within 1 ULP in f32 (computed in f64) and 4 in f64: log1p(x + x^2 / (1 + sqrt(1 + x^2)))."""
    if not _is_double(b, x, "asinh"):
        return _through_double(b, x, asinh)
    a = _absolute(b, x)
    z = a * a
    near = log1p(b, a + z / (b.unary("sqrt", z + 1.0) + 1.0))
    far = log_(b, a) + log(2.0)
    return b.binary("copysign", b.select(a > 1e9, far, near), x)


def acosh(b: Builder, x: Value) -> Value:
    """The inverse hyperbolic cosine, within 1 ULP in f32 (computed in f64) and 4 in f64; NaN below 1."""
    if not _is_double(b, x, "acosh"):
        return _through_double(b, x, acosh)
    t = x - 1.0
    near = log1p(b, t + b.unary("sqrt", t * 2.0 + t * t))
    value = b.select(x > 1e9, log_(b, x) + log(2.0), near)
    return b.select(x < 1.0, nan, value)


def atanh(b: Builder, x: Value) -> Value:
    """The inverse hyperbolic tangent, within 1 ULP in f32 (computed in f64) and 4 in f64: log1p(2 x / (1 - x)) / 2."""
    if not _is_double(b, x, "atanh"):
        return _through_double(b, x, atanh)
    a = _absolute(b, x)
    return b.binary("copysign", log1p(b, (a + a) / (1.0 - a)) * 0.5, x)


# --- powers ---------------------------------------------------------------------------------------------------------------


def pow_(b: Builder, x: Value, y: Value) -> Value:
    """x^y with C's special cases, within 1 ULP in f32 (computed in f64) and 8 in f64 (logarithm in two parts)."""
    x, y = b.unify(x, y)
    if not _is_double(b, x, "pow"):
        return b.cast(pow_(b, b.cast(x, "f64"), b.cast(y, "f64")), "f32")
    a = _absolute(b, x)
    power = _power_of_positive(b, a, y)
    whole = b.unary("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & b.unary("trunc", half).ne(half) & (_absolute(b, y) < 2.0**53)
    signed = b.select(odd, b.binary("copysign", power, x), power)
    undefined = (x < 0.0) & (a < inf) & ~whole & (_absolute(b, y) < inf)
    result = b.select(undefined, nan, signed)
    one = y.eq(0.0) | x.eq(1.0) | (a.eq(1.0) & _absolute(b, y).eq(inf))
    return b.select(one, 1.0, b.select(_is_nan(x) | _is_nan(y), x + y, result))


def _power_of_positive(b: Builder, a: Value, y: Value) -> Value:
    """e^(y log a) of f64 values, the exponent kept in two parts; a is not negative."""
    m, e = _mantissa_exponent(b, b.minimum(b.maximum(a, 2.0**-1022), 1.7976931348623157e308))
    f, w = m - 1.0, m + 1.0
    s = f / w
    # The remainder of the division, from exact products, and of w = m + 1.
    product, product_low = _two_product(s, w)
    w_low = m - (w - 1.0)
    s_low = ((f - product) - product_low - s * w_low) / w
    z = s * s
    tail = b.fma(polynomial(b, z, _LOG64) * z, s, s_low * 2.0)
    high, low = _two_sum(e * 0.6931471803691238, s * 2.0)
    low = low + (tail + e * 1.9082149292705877e-10)
    high, low = _two_sum(high, low)
    y_cut = b.minimum(b.maximum(y, -1e30), 1e30)
    total, rest = _two_product(high, y_cut)
    rest = b.fma(low, y_cut, rest)
    grown = exp(b, total)
    value = b.select(grown < inf, b.fma(grown, rest, grown), grown)
    outer = b.select((a > 1.0) & (y > 0.0) | ((a < 1.0) & (y < 0.0)), b.constant(inf, y.type), 0.0)
    return b.select(a.eq(0.0) | a.eq(inf) | _absolute(b, y).eq(inf), outer, value)


def _two_sum(x: Value, y: Value) -> tuple[Value, Value]:
    """The rounded sum and its error (Knuth)."""
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def _two_product(x: Value, y: Value) -> tuple[Value, Value]:
    """The rounded product and its error (Dekker, Veltkamp's splitting; right without fused multiply-add too)."""
    product = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    return product, x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _split(x: Value) -> tuple[Value, Value]:
    wide = x * (2.0**27 + 1.0)
    high = wide - (wide - x)
    return high, x - high


# --- circular functions ---------------------------------------------------------------------------------------------------


def _windows() -> list[tuple[float, float, float]]:
    """For w = 0, 1, ...: 2^(8 w) 2 / pi modulo 4, in pieces of 20, 20 and 53 bits (Payne and Hanek)."""
    out = []
    for w in range(14):
        fraction = (_TWO_OVER_PI_BITS << 8 * w) % (4 << 256)
        parts = []
        for keep in (18, 38):
            piece = fraction >> 256 - keep << 256 - keep
            parts.append(piece / 2.0**256)
            fraction -= piece
        out.append((parts[0], parts[1], fraction / 2.0**256))
    return out


def _reduce_large(b: Builder, x: Value) -> tuple[Value, Value]:
    """The quadrant and the remainder of large f32 values held in f64."""
    exponent = (b.bitcast(_absolute(b, x), "i64") >> 52) - (1023 + 23)  # x is a 24-bit integer times 2^exponent
    parts = [b.constant(p, x.type) for p in _windows()[0]]
    scaled = x
    for w, pieces in enumerate(_windows()[1:], 1):
        beyond = exponent >= 8 * w
        parts = [b.select(beyond, piece, part) for piece, part in zip(pieces, parts, strict=True)]
        scaled = b.select(beyond, x * 2.0 ** (-8 * w), scaled)
    first, second, third = (scaled * part for part in parts)
    first = first - b.unary("nearbyint", first * 0.25) * 4.0
    second = second - b.unary("nearbyint", second * 0.25) * 4.0
    turns = first + second
    n = b.unary("nearbyint", turns)
    return n, ((turns - n) + third) * _HALF_PI


@cache
def _digits() -> tuple[int, ...]:
    """2 / pi in digits of 24 bits after the point, by Machin's formula in integers."""
    bits = 24 * 52

    def arctan_of_inverse(n: int) -> int:
        total, term, k = 0, (1 << bits) // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    quotient = (2 << 2 * bits) // pi
    return tuple(quotient >> bits - 24 * (k + 1) & 0xFFFFFF for k in range(48))


def _reduce_large64(b: Builder, x: Value) -> tuple[Value, Value]:
    """The quadrant and the remainder of large f64 values, from the digits of 2 / pi that count (Payne and Hanek)."""
    exponent = (b.bitcast(_absolute(b, x), "i64") >> 52) - (1023 + 52)  # x is a 53-bit integer times 2^exponent
    places = range(-1, 7)

    def digit(window: int, place: int) -> float:
        return float(_digits()[window + place]) * 2.0 ** (-24 * (place + 1)) if window + place >= 0 else 0.0

    parts = [b.constant(digit(0, place), x.type) for place in places]
    scale = b.constant(1.0, x.type)
    for window in range(1, 41):
        beyond = exponent >= 24 * window
        scale = b.select(beyond, 2.0 ** (-24 * window), scale)
        parts = [b.select(beyond, digit(window, place), part) for place, part in zip(places, parts, strict=True)]
    total, rest = b.constant(0.0, x.type), b.constant(0.0, x.type)
    for half in _split(x * scale):  # products of 26 and 24 bits are exact
        for part in parts:
            term = half * part
            total, error = _two_sum(total, term - b.unary("nearbyint", term * 0.25) * 4.0)
            rest = rest + error
    n = b.unary("nearbyint", total)
    turns, low = _two_sum(total - n, rest)
    product, product_low = _two_product(turns, b.constant(_HALF_PI, x.type))
    return n, product + (product_low + (turns * _HALF_PI_REST + low * _HALF_PI))


def _quadrant(b: Builder, x: Value) -> tuple[Value, Value]:
    """How many quarter turns are nearest to x (an i32 or i64, its last two bits count), and what is left, of x's type."""
    double = x.type.scalar == "f64"
    wide = b.cast(x, "f64")
    magic = 1.5 * 2.0**52
    n = b.fma(wide, _TWO_OVER_PI, magic) - magic
    r = wide
    for part in _HALF_PI_PARTS64 if double else _HALF_PI_PARTS32:
        r = r - n * part
    large = _absolute(b, wide) >= _LARGE
    turns, rest = b.variable("turns", n), b.variable("rest", r)
    with b.branch(b.reduce("or", large)):
        far, left = _reduce_large64(b, wide) if double else _reduce_large(b, wide)
        turns.set(b.select(large, far, n))
        rest.set(b.select(large, left, r))
    n, r = turns.get(), rest.get()
    return b.cast(b.bitcast(n + magic, "i64"), "i64" if double else "i32"), b.cast(r, x.type.scalar)


def _sine_cosine(b: Builder, r: Value) -> tuple[Value, Value]:
    """Sine and cosine of |r| <= pi / 4."""
    double = r.type.scalar == "f64"
    z = r * r
    sine = b.fma(polynomial(b, z, _SIN64 if double else _SIN32) * z, r, r)
    half = z * 0.5
    w = 1.0 - half  # what its rounding loses is put back
    cosine = w + b.fma(polynomial(b, z, _COS64 if double else _COS32), z * z, (1.0 - w) - half)
    return sine, cosine


def _turned(b: Builder, x: Value, quarter: int) -> Value:
    n, r = _quadrant(b, x)
    n = n + quarter
    sine, cosine = _sine_cosine(b, r)
    value = b.select((n & 1).ne(0), cosine, sine)
    return b.select((n & 2).ne(0), -value, value)


def sin(b: Builder, x: Value) -> Value:
    """The sine, within 2 ULP over all of f32 (reduced in f64); in f64 2 ULP of arguments up to 8e8, and
    beyond but where it lies within 2^-30 of a multiple of pi / 2."""
    _is_double(b, x, "sin")
    return _turned(b, x, 0)


def cos(b: Builder, x: Value) -> Value:
    """The cosine; see `sin`."""
    _is_double(b, x, "cos")
    return _turned(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    """The tangent, within 4 ULP; see `sin`."""
    _is_double(b, x, "tan")
    n, r = _quadrant(b, x)
    sine, cosine = _sine_cosine(b, r)
    odd = (n & 1).ne(0)
    return b.select(odd, -cosine, sine) / b.select(odd, sine, cosine)


def _atan_of(b: Builder, a: Value, coefficients: Sequence[float]) -> Value:
    """The inverse tangent of a number that is not negative."""
    inverted = a > 1.0
    t = b.select(inverted, 1.0, a) / b.select(inverted, a, 1.0)
    z = t * t
    p = b.fma(polynomial(b, z, coefficients) * z, t, t)
    return b.select(inverted, _HALF_PI - p, p)


def atan(b: Builder, x: Value) -> Value:
    """The inverse tangent, within 3 ULP: a polynomial of x or 1 / x."""
    return b.binary("copysign", _atan_of(b, _absolute(b, x), _ATAN64 if _is_double(b, x, "atan") else _ATAN32), x)


def _asin_with(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    return _atan_of(b, _absolute(b, x / b.unary("sqrt", (1.0 - x) * (x + 1.0))), coefficients)


def _acos_with(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    return _atan_of(b, b.unary("sqrt", (1.0 - x) / (x + 1.0)), coefficients) * 2.0


def asin(b: Builder, x: Value) -> Value:
    """The inverse sine as atan(x / sqrt(1 - x^2)), within 2 ULP in f32 (computed in f64) and 6 in f64; NaN beyond 1."""
    if _is_double(b, x, "asin"):
        value = _asin_with(b, x, _ATAN64)
    else:  # the sign is put on in f32: LLVM would narrow that of an f64 to f16 by a call where the result is
        value = b.cast(_asin_with(b, b.cast(x, "f64"), _ATAN32), "f32")
    return b.binary("copysign", value, x)


def acos(b: Builder, x: Value) -> Value:
    """The inverse cosine as 2 atan(sqrt((1 - x) / (1 + x))), within 2 ULP in f32 (computed in f64) and 6 in f64."""
    if _is_double(b, x, "acos"):
        return _acos_with(b, x, _ATAN64)
    return b.cast(_acos_with(b, b.cast(x, "f64"), _ATAN32), "f32")


FUNCTIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "exp": exp, "exp2": exp2, "log": log_, "log1p": log1p, "sigmoid": sigmoid, "softplus": softplus, "tanh": tanh, "erf": erf,
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "sinh": sinh, "cosh": cosh, "asinh": asinh,
    "acosh": acosh, "atanh": atanh,
}
"""The functions of one argument by name."""
