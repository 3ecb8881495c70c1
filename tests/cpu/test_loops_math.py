"""Vector mathematics against higher precision, over all exponents, with the same bits for any number of lanes."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from tests.cpu.loops_running import elementwise, host_targets

from sartor.loops import math as vector_math
from sartor.loops.language import Builder

TARGETS = pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.isa)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, 88.72283, 88.7229, -87.33654, -87.3366, -104.0,
           1e30, -1e30]
_erf = np.vectorize(math.erf, otypes=[np.float64])

# function, exact in f64, bound in f32, bound in f64, range of arguments that matters
CASES = {
    "exp": (np.exp, 2, 2, (-120, 120)),
    "exp2": (np.exp2, 2, 2, (-160, 160)),
    "log": (np.log, 2, 2, (0, 100)),
    "log1p": (np.log1p, 4, 4, (-1, 100)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 4, 4, (-120, 40)),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 4, 4, (-90, 40)),
    "tanh": (np.tanh, 3, 3, (-12, 12)),
    "erf": (_erf, 3, 4, (-6, 6)),
    "sin": (np.sin, 2, 2, (-1e5, 1e5)),
    "cos": (np.cos, 2, 2, (-1e5, 1e5)),
    "tan": (np.tan, 4, 4, (-1e5, 1e5)),
    "asin": (np.arcsin, 2, 6, (-1, 1)),
    "acos": (np.arccos, 2, 6, (-1, 1)),
    "atan": (np.arctan, 3, 3, (-10, 10)),
    "sinh": (np.sinh, 1, 6, (-90, 90)),
    "cosh": (np.cosh, 1, 4, (-90, 90)),
    "asinh": (np.arcsinh, 1, 4, (-100, 100)),
    "acosh": (np.arccosh, 1, 4, (1, 100)),
    "atanh": (np.arctanh, 1, 4, (-1, 1)),
}


def samples(dtype: np.dtype, span: tuple[float, float], exponents: tuple[int, int]) -> np.ndarray:
    """All exponents of both signs, the span that matters, and the special numbers."""
    rng = np.random.default_rng(0)
    wide = np.ldexp(rng.uniform(1, 2, 40_000), rng.integers(*exponents, 40_000)) * rng.choice([-1, 1], 40_000)
    near = rng.uniform(*span, 60_000)
    narrow = rng.uniform(-2, 2, 20_000)
    return np.concatenate([wide, near, narrow, SPECIAL]).astype(dtype)


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the exact result; results below the normal numbers may be zero."""
    info = np.finfo(got.dtype)
    with np.errstate(over="ignore"):
        rounded = exact.astype(got.dtype)
    wide = got.astype(exact.dtype)
    unit = np.maximum(np.abs(np.spacing(rounded)).astype(exact.dtype), exact.dtype.type(info.smallest_normal) * info.eps)
    with np.errstate(all="ignore"):
        distance = np.abs(wide - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    flushed = (np.abs(rounded) < info.smallest_normal) & (np.abs(got) <= info.smallest_normal)
    edge = np.isinf(rounded) & (np.abs(got) >= info.max * (1 - 4 * info.eps))
    distance = np.where(same | flushed | edge, 0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


@TARGETS
@pytest.mark.parametrize("name", CASES)
def test_single_precision(target, name):
    exact, bound, _, span = CASES[name]
    x = samples(np.float32, span, (-126, 128))
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
    got = elementwise(vector_math.FUNCTIONS[name], [x], "f32", target.lanes("f32"), target)
    distance = ulps(got, want)
    worst = int(distance.argmax())
    assert distance[worst] <= bound, f"{name}({x[worst]!r}) = {got[worst]!r}, exact {want[worst]!r}, {distance[worst]:.2f} ULP"
    one = elementwise(vector_math.FUNCTIONS[name], [x[::7]], "f32", 1, target)
    np.testing.assert_array_equal(one.view(np.int32)[~np.isnan(one)], got[::7].view(np.int32)[~np.isnan(one)])
    np.testing.assert_array_equal(np.isnan(one), np.isnan(got[::7]))


@TARGETS
@pytest.mark.parametrize("name", CASES)
def test_double_precision(target, name):
    exact, _, bound, span = CASES[name]
    x = samples(np.float64, span, (-900, 29) if name in ("sin", "cos", "tan") else (-900, 1023))
    x = x[~((name in ("sin", "cos", "tan")) & (np.abs(x) > 8e8) & np.isfinite(x))]
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.longdouble)) if name != "erf" else _erf(x)
    got = elementwise(vector_math.FUNCTIONS[name], [x], "f64", target.lanes("f64"), target)
    distance = ulps(got, want)
    worst = int(distance.argmax())
    assert distance[worst] <= bound, f"{name}({x[worst]!r}) = {got[worst]!r}, exact {want[worst]!r}, {distance[worst]:.2f} ULP"
    one = elementwise(vector_math.FUNCTIONS[name], [x[::7]], "f64", 1, target)
    np.testing.assert_array_equal(one.view(np.int64)[~np.isnan(one)], got[::7].view(np.int64)[~np.isnan(one)])


@TARGETS
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_arguments(target, name):
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.uniform(1, 2, 2000), rng.integers(20, 128, 2000)).astype(np.float32)
    hard = np.array([16367173.0 * 2.0**72, 2.0**127, 8e8, 3.4e38], np.float32)  # the first is nearly a multiple of pi / 2
    x = np.concatenate([x, -x, hard])
    with mpmath.workdps(80):
        want = np.array([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x])
    for lanes in (1, target.lanes("f32")):
        got = elementwise(vector_math.FUNCTIONS[name], [x], "f32", lanes, target)
        assert ulps(got, want).max() <= 2


@TARGETS
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1), (np.float64, 8)])
def test_power(target, dtype, bound):
    rng = np.random.default_rng(2)
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 4.0, np.inf, -np.inf, np.nan, 1e10, -1e10], dtype)
    xs, ys = (v.ravel() for v in np.meshgrid(special, special))
    spread = 120 if dtype == np.float32 else 1000
    x = np.exp2(rng.uniform(-spread, spread, 20_000))
    y = rng.uniform(-1, 1, 20_000) * spread / np.abs(np.log2(x))
    near_one = rng.uniform(0.5, 2, 20_000)
    whole = rng.integers(-20, 20, 5_000).astype(float)
    x = np.concatenate([xs, x, near_one, -near_one[:5_000]]).astype(dtype)
    y = np.concatenate([ys, y, rng.uniform(-80, 80, 20_000), whole]).astype(dtype)
    with np.errstate(all="ignore"):
        want = x.astype(np.longdouble) ** y.astype(np.longdouble)
    scalar = "f32" if dtype == np.float32 else "f64"
    got = elementwise(vector_math.pow_, [x, y], scalar, target.lanes(scalar), target)
    distance = ulps(got, want)
    worst = int(distance.argmax())
    assert distance[worst] <= bound, f"{x[worst]!r} ** {y[worst]!r} = {got[worst]!r}, exact {want[worst]!r}"
    one = elementwise(vector_math.pow_, [x[::7], y[::7]], scalar, 1, target)
    np.testing.assert_array_equal(one, got[::7])


def test_half_precision_must_be_cast():
    b = Builder("half")
    x = b.load(b.pointer("x", "f16"))
    with pytest.raises(vector_math.LoopError, match="cast it to f32"):
        vector_math.exp(b, x)
