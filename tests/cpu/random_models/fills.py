"""How the elements of random operands are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Fill: TypeAlias = "Callable[[np.random.Generator, str, tuple[int, ...]], np.ndarray[Any, Any]]"


def numpy_type(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def is_float(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16", "float32", "float64")


def _specials(dtype: str) -> list[float]:
    largest = {"float16": 65504.0, "bfloat16": 3.0e38, "float32": 3.0e38, "float64": 1e308}[dtype]
    return [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, largest, -largest, 1e-4]


def normal(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Floats round 0, now and then with ties; integers small, now and then of the whole range; booleans."""
    kind = numpy_type(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not is_float(dtype):
        info = np.iinfo(kind)
        if rng.random() < 0.15:
            array = rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
            return np.where(rng.random(shape) < 0.2, rng.choice(np.array([info.min, info.max], kind), shape), array)
        return rng.integers(0 if info.min == 0 else -9, 10, shape).astype(kind)
    array = rng.standard_normal(shape) * rng.choice([1.0, 1.0, 3.0, 0.3])
    if rng.random() < 0.25:
        array = np.round(array * 2) / 2
    return array.astype(kind)


def special(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """As `normal`, and now and then with NaN, infinities, zeros of both signs and the largest finite numbers."""
    array = normal(rng, dtype, shape)
    if is_float(dtype) and rng.random() < 0.3:
        array = np.where(rng.random(shape) < 0.3, rng.choice(_specials(dtype), shape), array.astype(np.float64)).astype(array.dtype)
    return array


def spread_out(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Floats of many magnitudes, for functions of one number."""
    if rng.random() < 0.5:
        return special(rng, dtype, shape)
    if not is_float(dtype):
        return normal(rng, dtype, shape)
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 2, shape)).astype(numpy_type(dtype))


def small(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Floats within -1...1; integers within -2...2."""
    if is_float(dtype):
        return rng.uniform(-1, 1, shape).astype(numpy_type(dtype))
    return between(-2 if not dtype.startswith("u") else 0, 2)(rng, dtype, shape)


def positive(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Floats within 0.1...2, integers within 1...5."""
    if is_float(dtype):
        return rng.uniform(0.1, 2, shape).astype(numpy_type(dtype))
    return rng.integers(1, 6, shape).astype(numpy_type(dtype))


def divisors(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Anything for floats; integers but 0 and -1 (whose quotient of the smallest integer no integer holds)."""
    if is_float(dtype):
        return special(rng, dtype, shape)
    array = normal(rng, dtype, shape)
    bad = (array == 0) | (array == numpy_type(dtype).type(-1)) if not dtype.startswith("u") else array == 0
    return np.where(bad, np.array(3, numpy_type(dtype)), array)


def distinct(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """No two alike, as far as the type goes."""
    count = int(np.prod(shape, dtype=np.int64))
    return (rng.permutation(count).reshape(shape) - count // 2).astype(numpy_type(dtype))


def between(low: int, high: int) -> Fill:
    """Integers of low...high, both included (as numbers of the asked type)."""

    def fill(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
        return rng.integers(low, high + 1, shape).astype(numpy_type(dtype))

    return fill


def uniform(low: float, high: float) -> Fill:
    def fill(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
        return rng.uniform(low, high, shape).astype(numpy_type(dtype))

    return fill
