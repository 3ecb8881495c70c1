"""Conversions of element types, bit for bit: every code of the small types, every f16, ties and ends of f32 and of wider types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.cpu import harness

from sartor.graph.expression import ExpressionBuilder
from sartor.graph.reference import evaluate_layer
from sartor.templates.elementwise import Elementwise
from sartor.types import CODED, FORMATS, limits, to_numpy, width

TEMPLATE = Elementwise()
SMALL_INTEGERS = [t for t in CODED if t[0] in "iu"]


def run(x, source, to, isa="avx2", option=None):
    """What the kernel of a cast makes of an array; the reference must make the same bits of it."""
    builder = ExpressionBuilder([source])
    expression = builder.finish(builder("cast", 0, dtype=to, value=option))
    problem = harness.problem("elementwise", {"x": (source, x.shape)}, (to, x.shape), expression=expression)
    bound = harness.Bound(TEMPLATE, problem, {"x": x}, None, harness.device(isa))
    bound.run(1)
    got, wanted = bound.outputs()["y"], evaluate_layer(problem, {"x": x}, {})["y"]
    assert_bits(got, wanted, x)
    return got


def assert_bits(got, wanted, x):
    """Equal bits; of NaNs only that they are."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    with np.errstate(invalid="ignore"):
        nan = wanted != wanted if wanted.dtype.kind not in "biu" else np.zeros(wanted.shape, bool)
        assert np.array_equal(nan, got != got if wanted.dtype.kind not in "biu" else nan)
    kind = f"u{wanted.dtype.itemsize}"
    bad = np.flatnonzero((got.view(kind) != wanted.view(kind)) & ~nan)
    assert not bad.size, f"{bad.size} of {got.size}: {x[bad[0]]!r} becomes {got[bad[0]]!r}, not {wanted[bad[0]]!r}"


def codes(name):
    """Every value of a small type."""
    return np.arange(1 << width(name), dtype=np.uint8).view(to_numpy(name))


def values(name):
    """The finite values of a float type in order."""
    if name in ("f16", "bf16"):
        found = finite_halves(name)
    else:
        found = codes(name).astype(np.float64)
    return np.unique(found[np.isfinite(found)]) + 0.0


def finite_halves(name):
    """Every finite value of a 16-bit float type."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    exponent = 0x7C00 if name == "f16" else 0x7F80
    return bits[bits & exponent != exponent].view(to_numpy(name)).astype(np.float64)


def midpoints(name):
    """The numbers between which nothing is nearer to another value, the first that overflows among them."""
    known = values(name)
    return np.append((known[1:] + known[:-1]) / 2, known[-1] + (known[-1] - known[-2]) / 2)


def near(points, dtype):
    """Points with the numbers next to them, of both signs."""
    points = np.asarray(points).astype(dtype)
    points = np.concatenate([points, np.nextafter(points, dtype(-np.inf)), np.nextafter(points, dtype(np.inf))])
    return np.concatenate([points, -points, np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 3e38, -3e38], dtype)])


def singles(name):
    """f32 numbers that decide how to round to `name`, and all f16 numbers."""
    return np.concatenate([near(midpoints(name), np.float32), near(values(name), np.float32), finite_halves("f16").astype(np.float32)])


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("name", CODED)
def test_every_code_is_read(name, isa):
    x = codes(name)
    wide = "f32" if name[0] == "f" else "i32"
    got = run(x, name, wide, isa)
    assert_bits(got, x.astype(to_numpy(wide)), x)
    if name[0] in "iu":  # bits above the code mean nothing
        dirty = np.arange(256, dtype=np.uint8)
        assert_bits(run(dirty.view(to_numpy(name)), name, wide, isa), dirty.view(to_numpy(name)).astype(np.int32), dirty)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("name", FORMATS)
def test_rounding_to_small_floats(name, isa):
    x, kind = singles(name), to_numpy(name)
    with np.errstate(invalid="ignore"):
        assert_bits(run(x, "f32", name, isa), np.where(np.isnan(x) & (not FORMATS[name].nan), 0, x).astype(np.float32).astype(kind), x)
    most = np.float32(ml_dtypes.finfo(kind).max)
    held = np.where(np.isnan(x), x if FORMATS[name].nan else 0, np.clip(x, -most, most)).astype(kind)
    assert_bits(run(x, "f32", name, isa, "saturate"), held, x)
    assert np.array_equal(held.astype(np.float32)[np.isinf(x)], np.where(x > 0, most, -most)[np.isinf(x)])


@pytest.mark.parametrize("name", FORMATS)
def test_codes_of_small_floats_are_those_of_ml_dtypes(name):
    """NaNs and zeros have signs that comparing values does not show."""
    x = np.array([np.nan, -np.nan, 0.0, -0.0, 1e-12, -1e-12, np.inf, -np.inf], np.float32)
    if not FORMATS[name].nan:  # nothing says what a NaN becomes
        assert run(x[:2], "f32", name).view(np.uint8).tolist() == [0, 0]
        x = x[2:]
    assert run(x, "f32", name).tobytes() == x.astype(to_numpy(name)).tobytes()


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_powers_of_two(isa):
    """By the tables of ONNX's Cast; where they say nothing, by the definition of the rounding."""
    tiny = np.float32(2.0**-127)
    x = np.array([0, np.nan, np.inf, 1, 1.1, 1.5, 1.6, 2, 3.0, 0.124, 3.4e38, 1.8e38, tiny, tiny / 4, tiny * 1.25, tiny * 1.5], np.float32)
    up = [0, 255, 254, 127, 128, 128, 128, 128, 129, 124, 254, 254, 0, 0, 1, 1]
    nearest = [0, 255, 254, 127, 127, 128, 128, 128, 129, 124, 254, 254, 0, 0, 0, 1]
    down = [0, 255, 254, 127, 127, 127, 127, 128, 128, 123, 254, 254, 0, 0, 0, 0]
    for option, wanted in (("up", up), ("nearest", nearest), ("down", down)):
        held = run(x, "f32", "f8e8m0", isa, f"{option} saturate").view(np.uint8)
        assert held.tolist() == wanted
        loose = run(x, "f32", "f8e8m0", isa, option).view(np.uint8)
        out = np.isin(np.arange(16), [0, 2, 13] + ([10, 11] if option == "up" else [10] if option == "nearest" else []))
        assert loose.tolist() == np.where(out, 255, wanted).tolist()
    every = np.concatenate([singles("f16"), near(2.0 ** np.arange(-127, 128), np.float32)])
    for option in ("up saturate", "nearest"):
        run(every, "f32", "f8e8m0", isa, option)


def exactly(x, name):
    """Numbers of any type rounded once to the nearest value, ties to the even one: by the values alone."""
    kind, known, between = to_numpy(name), values(name), midpoints(name)
    exact = x.astype(np.longdouble)
    place = np.searchsorted(between.astype(np.longdouble), exact)
    tie = np.isin(exact, between.astype(np.longdouble))
    even = np.append(known, np.inf).astype(kind).view("u1" if kind.itemsize == 1 else "u2") & 1
    place = np.where(tie & (even[np.minimum(place, len(known) - 1)] == 1), place + 1, place)
    return np.append(known, np.inf)[np.minimum(place, len(known))].astype(kind)


@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3fn", "f8e5m2", "f4e2m1"])
def test_one_rounding_from_wide_types(name):
    """Rounding by way of f32 would go wrong beside ties."""
    points = midpoints(name)
    points = points[(points > 2.0**-14) & (points < values(name)[-1])]
    points = points[:: max(1, len(points) // 4000)]
    x = np.concatenate([points, points * (1 + 2.0**-40), points * (1 - 2.0**-40), points * (1 + 2.0**-52)])
    got = run(x, "f64", name)
    assert_bits(got, exactly(x, name), x)
    if name in ("f16", "bf16"):
        assert not np.array_equal(got, x.astype(np.float32).astype(to_numpy(name))), "f32 in between would do as well"
    whole = points[(points == np.rint(points)) & (points > 1)]
    big = np.array([2.0**33 + 2.0**25, 2.0**40 + 2.0**32, 2.0**60 + 2.0**52, 2.0**62 + 2.0**54])
    for kind in ("i32", "u32", "i64", "u64"):
        least, most = limits(kind)
        ends = np.array([least, most, 0, 1], to_numpy(kind))
        inside = np.concatenate([whole, big if name == "bf16" else []])
        inside = inside[inside < most / 2].astype(to_numpy(kind))
        x = np.concatenate([ends, inside, inside + to_numpy(kind).type(1), inside - to_numpy(kind).type(1)])
        got = run(x, kind, name)
        assert_bits(np.abs(got), exactly(np.abs(x.astype(np.longdouble)), name), x)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_integers_as_floats(isa):
    """Each rounds once, whatever the number of bits."""
    for kind in ("i64", "u64", "i32", "u32"):
        least, most = limits(kind)
        powers = [1 << k for k in range(width(kind) - 1)]
        numbers = {p + d for p in powers for d in (-1, 0, 1)} | {p + (p >> 24) + d for p in powers for d in (-1, 0, 1)}
        numbers |= {p + (p >> 53) + d for p in powers for d in (-1, 0, 1)} | {most - d for d in range(5)} | {least + d for d in range(3)}
        if least < 0:
            numbers |= {-n for n in numbers}
        x = np.array([n for n in numbers if least <= n <= most], to_numpy(kind))
        for to in ("f32", "f64"):
            assert_bits(run(x, kind, to, isa), x.astype(to_numpy(to)), x)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("name", SMALL_INTEGERS)
def test_integers_keep_their_last_bits(name, isa):
    wide = np.arange(-300, 300, dtype=np.int32)
    assert_bits(run(wide, "i32", name, isa), wide.astype(to_numpy(name)), wide)
    x = np.concatenate([wide.astype(np.float32), wide.astype(np.float32) + 0.75])
    assert_bits(run(x, "f32", name, isa), np.trunc(x).astype(np.int32).astype(to_numpy(name)), x)
    for source in ("bool", "u8", "i64", "u64", "f64", "f16", "f8e5m2"):
        if source[0] in "iu":
            run(np.arange(200).astype(to_numpy(source)), source, name, isa)
        else:
            run((np.arange(40) % 2 if source == "bool" else np.arange(40) - 20.5).astype(to_numpy(source)), source, name, isa)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_floats_out_of_range_of_integers(isa):
    for source in ("f32", "f64", "f16") if isa == "avx2" else ("f32",):
        for to in ("i8", "u8", "u16", "i32", "u32", "i64", "u64"):
            least, most = limits(to)
            ends = [float(least), float(most), float(least) - 1, float(most) + 1, float(least) * 2 - 1, float(most) * 2 + 2]
            with np.errstate(over="ignore"):
                x = np.array([*ends, np.nan, np.inf, -np.inf, 0.99, -0.99, 1.5, 2.5, 1e30, -1e30], to_numpy(source))
            got = run(x, source, to, isa)
            assert got[6] == 0 and got[7] == most and got[8] == least


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_sixteen_bits(isa):
    every = np.arange(1 << 16, dtype=np.uint16)
    for name in ("f16", "bf16"):
        x = every.view(to_numpy(name))
        wide = run(x, name, "f32", isa)
        with np.errstate(invalid="ignore"):
            assert_bits(wide, x.astype(np.float32), x)
        assert_bits(run(wide, "f32", name, isa), x, x)
        ties = near(midpoints(name), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            assert_bits(run(ties, "f32", name, isa), ties.astype(to_numpy(name)), ties)


def test_between_small_types():
    """By f32, which holds all of them."""
    for place, source in enumerate(CODED):
        for step in (1, 5):
            run(codes(source), source, CODED[(place + step) % len(CODED)])
