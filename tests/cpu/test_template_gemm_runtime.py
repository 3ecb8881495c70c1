"""Products of two run-time values against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import chain, check, check_in_place, device, problem

from sartor.graph.layer import Problem
from sartor.loops.language import Builder
from sartor.loops.llvm import compile_ir, jit, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import symbol
from sartor.templates.matmul import MATMUL, transposed_square


def matmul(a: tuple[Any, ...], b: tuple[Any, ...], out: tuple[Any, ...], ta: bool = False, tb: bool = False, dtype: str = "f32") -> Problem:
    """A product with a residual added."""
    return problem("matmul", {"a": (dtype, a), "b": (dtype, b)}, (dtype, out), extra={"other": (dtype, out)},
                   expression=chain([dtype] * 2, ("add", 0, 1)), transpose_a=ta, transpose_b=tb)


@pytest.mark.parametrize("isa", ["avx2", "sse4"])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
def test_sizes_and_transposes(isa: str, ta: bool, tb: bool) -> None:
    m, k, n = (symbol(name) for name in "mkn")
    p = matmul((k, m) if ta else (m, k), (n, k) if tb else (k, n), (m, n), ta, tb)
    for sizes in ({"m": 1, "k": 13, "n": 35}, {"m": 26, "k": 64, "n": 32}):
        wide = max(sizes.values())
        check(MATMUL, p, sizes=sizes, on=device(isa), pitch={"a": wide + 3, "b": wide + 2, "y": wide + 5}, absolute=1e-4)


@pytest.mark.parametrize("tb", [False, True])
def test_slices_of_the_depth(tb: bool) -> None:
    p = matmul((37, 50), (70, 50) if tb else (50, 70), (37, 70), tb=tb)
    for change in ({"kc": 16, "mc": 12}, {"kc": 24, "panels": 1, "tile": "4x3"}, {"tile": "12x1", "kc": 50}):
        check(MATMUL, p, config={**MATMUL.default(p, device()), **change}, absolute=1e-4)


@pytest.mark.parametrize(("a", "b", "out", "ta", "tb"), [
    ((3, 5, 9), (3, 9, 20), (3, 5, 20), False, False),
    ((2, 3, 5, 9), (3, 20, 9), (2, 3, 5, 20), False, True),
    ((2, 1, 9, 5), (1, 3, 9, 20), (2, 3, 5, 20), True, False),
    ((5, 9), (4, 9, 20), (4, 5, 20), False, False),
    ((4, 5, 9), (9, 20), (4, 5, 20), False, False),
])
def test_batches(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], ta: bool, tb: bool) -> None:
    check(MATMUL, matmul(a, b, out, ta, tb), pitch={"a": a[-1] + 2, "b": b[-1] + 1, "y": 24}, absolute=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "i64", "u8"])
@pytest.mark.parametrize("tb", [False, True])
def test_types(dtype: str, tb: bool) -> None:
    check(MATMUL, matmul((11, 19), (21, 19) if tb else (19, 21), (11, 21), tb=tb, dtype=dtype), absolute=0.05 if dtype == "f16" else 1e-4)


def test_the_output_may_lie_on_the_residual() -> None:
    check_in_place(MATMUL, matmul((2, 9, 30), (2, 30, 20), (2, 9, 20)), "other")


def test_symbolic_sizes() -> None:
    n, s, t, d = (symbol(name) for name in "nstd")
    p = matmul((n, 2, s, d), (n, 2, t, d), (n, 2, s, t), tb=True)
    for sizes in ({"n": 1, "s": 1, "t": 1, "d": 1}, {"n": 2, "s": 7, "t": 19, "d": 8}, {"n": 1, "s": 3, "t": 4, "d": 0},
                  {"n": 0, "s": 3, "t": 4, "d": 2}, {"n": 1, "s": 3, "t": 0, "d": 2}):
        check(MATMUL, p, sizes=sizes, absolute=1e-4)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_squares_are_turned(lanes: int) -> None:
    b = Builder("turn")
    x = b.pointer("x", "f32")
    for i, row in enumerate(transposed_square(b, [b.load(x, i * lanes, lanes) for i in range(lanes)])):
        b.store(x, i * lanes, row)
    square = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes)
    want = square.T.copy()
    jit([b.finish()], target_for("avx2"))["turn"](np.array([square.ctypes.data]), 0, 0, 1)
    np.testing.assert_array_equal(square, want)


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
def test_kernels_compile_for_every_target(isa: str) -> None:
    on, p = device(isa), matmul((45, 200), (60, 200), (45, 60), tb=True)
    for call in MATMUL.build(p, MATMUL.default(p, on), on).calls:
        verify(call.kernel)
        assert compile_ir(render([call.kernel], target_for(isa)), target_for(isa))
