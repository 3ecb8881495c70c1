"""GEMM with constant weights and 1x1 convolution against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import Array, chain, check, check_in_place, device, problem, random_inputs, run

from sartor.graph.layer import Problem
from sartor.loops.language import Kernel
from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.loops.verify import verify
from sartor.sizes import symbol
from sartor.templates.gemm import GEMM
from sartor.templates.matvec import MATVEC

RANDOM = np.random.default_rng(7)


def weights(*shape: int, dtype: str = "float32") -> Array:
    if dtype.startswith("float"):
        return RANDOM.standard_normal(shape).astype(dtype)
    return RANDOM.integers(-5, 6, shape).astype(dtype)


def matmul(a: tuple[Any, ...], b: tuple[int, ...], out: tuple[Any, ...], dtype: str = "f32", ta: bool = False, tb: bool = False,
           biased: bool = False, heavy: bool = False) -> Problem:
    numpy_type = {"f32": "float32", "f64": "float64", "f16": "float16"}.get(dtype, dtype.replace("i", "int"))
    constants = {"b": weights(*b, dtype=numpy_type)}
    if not biased and not heavy:
        return problem("matmul", {"a": (dtype, a), "b": (dtype, b)}, (dtype, out), constants=constants, transpose_a=ta, transpose_b=tb)
    constants["bias"] = weights(out[-1], dtype=numpy_type)
    steps: list[tuple[Any, ...]] = [("add", 0, 1)]
    steps += [("mul", 3, 2), ("sigmoid", 4), ("mul", 5, 4), ("erf", 6), ("add", 7, 0.5), ("tanh", 8), ("abs", 9), ("sqrt", 10),
              ("add", 11, 2)] if heavy else [("relu", 3)]
    return problem("matmul", {"a": (dtype, a), "b": (dtype, b)}, (dtype, out), constants=constants,
                   extra={"bias": (dtype, (out[-1],)), "residual": (dtype, out)}, expression=chain([dtype] * 3, *steps),
                   transpose_a=ta, transpose_b=tb)


@pytest.mark.parametrize(("isa", "k", "n", "biased"), [
    ("avx2", 1, 1, False), ("avx2", 7, 33, True), ("avx2", 16, 32, False), ("avx2", 33, 100, True), ("sse4", 5, 47, True), ("sse4", 8, 16, False)])
def test_sizes(isa: str, k: int, n: int, biased: bool) -> None:
    rows = symbol("rows")
    p = matmul((rows, k), (k, n), (rows, n), biased=biased)
    for m in (1, 5, 13):
        check(GEMM, p, sizes={"rows": m}, on=device(isa), pitch={"a": k + 3} | ({"y": n + 5} if n > 4 else {}), absolute=1e-4)


@pytest.mark.parametrize("config", [
    {"tile": "4x3", "kc": 16}, {"tile": "12x1", "kc": 5, "mc": 12}, {"tile": "6x2", "panels": 2, "mc": 6, "kc": 32},
    {"tile": "3x4", "unroll": 8, "prefetch": 2}, {"tile": "2x4", "unroll": 1}, {"tile": "5x2", "unroll": 2}])
def test_knobs(config: dict[str, Any]) -> None:
    p = matmul((37, 50), (50, 70), (37, 70), biased=True)
    check(GEMM, p, config={**GEMM.default(p, device()), **config}, pitch={"a": 64, "y": 71}, absolute=1e-4)


def test_a_long_expression_goes_through_a_copy_of_the_tile() -> None:
    check(GEMM, matmul((23, 20), (20, 43), (23, 43), heavy=True), pitch={"y": 48, "residual": 50}, absolute=1e-4)


@pytest.mark.parametrize(("n", "isa", "kc"), [(1, "avx2", 0), (3, "avx2", 8), (4, "sse4", 0)])
def test_narrow_outputs_are_stored_as_a_line(n: int, isa: str, kc: int) -> None:
    rows, on = symbol("rows"), device(isa)
    p = problem("matmul", {"a": ("f32", (rows, 19)), "b": ("f32", (19, n))}, ("f32", (rows, n)), extra={"bias": ("f32", (1,))},
                constants={"b": weights(19, n), "bias": weights(1)}, expression=chain(["f32"] * 2, ("add", 0, 1), ("sigmoid", 2)),
                transpose_a=False, transpose_b=False)
    for m in (1, 7, 38):
        check(GEMM, p, sizes={"rows": m}, on=on, config={**GEMM.default(p, on), "kc": kc}, pitch={"a": 23}, absolute=1e-4)


@pytest.mark.parametrize(("a", "b", "out", "ta", "tb"), [
    ((3, 5, 9), (9, 20), (3, 5, 20), False, False),
    ((3, 5, 9), (20, 9), (3, 5, 20), False, True),
    ((3, 9, 5), (9, 20), (3, 5, 20), True, False),
    ((5, 9), (4, 9, 20), (4, 5, 20), False, False),
    ((2, 1, 5, 9), (3, 9, 20), (2, 3, 5, 20), False, False),
    ((2, 3, 9, 5), (2, 1, 20, 9), (2, 3, 5, 20), True, True),
    ((1, 5, 9), (1, 1, 9, 20), (1, 1, 5, 20), False, False),
])
def test_batches_and_transposes(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], ta: bool, tb: bool) -> None:
    check(GEMM, matmul(a, b, out, ta=ta, tb=tb, biased=True), pitch={"a": a[-1] + 2, "y": 24}, absolute=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "i64"])
def test_types(dtype: str) -> None:
    check(GEMM, matmul((11, 19), (19, 21), (11, 21), dtype=dtype), pitch={"a": 20}, absolute=1e-4)


def test_symbolic_sizes() -> None:
    batch, length = symbol("batch"), symbol("length")
    p = matmul((batch, length, 12), (12, 18), (batch, length, 18), biased=True)
    for sizes in ({"batch": 1, "length": 1}, {"batch": 2, "length": 11}, {"batch": 3, "length": 0}):
        check(GEMM, p, sizes=sizes, absolute=1e-4)
    p = matmul((batch, length, 12), (3, 12, 18), (3, length, 18))
    for sizes in ({"batch": 1, "length": 5}, {"batch": 3, "length": 4}):
        check(GEMM, p, sizes=sizes, absolute=1e-4)


@pytest.mark.parametrize("spatial", [(7,), (5, 6), (2, 3, 4)])
def test_pointwise_convolution(spatial: tuple[int, ...]) -> None:
    rank = len(spatial)
    p = problem("convolution", {"x": ("f32", (2, *spatial, 10)), "w": ("f32", (*[1] * rank, 10, 26))}, ("f32", (2, *spatial, 26)),
                constants={"w": weights(*[1] * rank, 10, 26)}, strides=(1,) * rank, dilations=(1,) * rank, pads=(0,) * 2 * rank, groups=1)
    check(GEMM, p, pitch={"x": 13, "y": 30}, absolute=1e-4)


def test_the_output_may_lie_on_the_residual() -> None:
    p = matmul((29, 20), (20, 43), (29, 43), biased=True)
    check_in_place(GEMM, p, "residual", pitch={"residual": 50, "y": 50})
    assert not GEMM.in_place(p, "a")


def test_the_same_bits_however_it_is_cut() -> None:
    p = matmul((45, 200), (200, 60), (45, 60), biased=True)
    inputs = random_inputs(p)
    want = run(GEMM, p, inputs)["y"]
    default = GEMM.default(p, device())
    for pieces in (2, 5, 8):
        for change in ({}, {"kc": 64}, {"mc": 12, "panels": 1}):
            got = run(GEMM, p, inputs, pieces=pieces, config={**default, **change})["y"]
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", ["avx512", "neon", "sse4", "avx2"])
def test_kernels_compile_for_every_target(isa: str) -> None:
    on = device(isa)
    p = matmul((45, 200), (200, 60), (45, 60), biased=True)
    for call in GEMM.build(p, GEMM.default(p, on), on).calls:
        kernel: Kernel = call.kernel
        verify(kernel)
        assert compile_ir(render([kernel], target_for(isa)), target_for(isa))


def test_every_configuration_of_the_space_builds() -> None:
    p = matmul((45, 20), (20, 60), (45, 60))
    space = GEMM.space(p, device())
    assert all(len(choices) for choices in space.knobs.values())
    for name, choices in space.knobs.items():
        for choice in choices:
            config = {**GEMM.default(p, device()), name: choice}
            for call in GEMM.build(p, config, device()).calls:
                verify(call.kernel)
            assert GEMM.pack(p, config, device())


@pytest.mark.parametrize(("isa", "k", "n", "ta"), [
    ("avx2", 1, 1, False), ("avx2", 50, 33, True), ("avx2", 129, 200, False), ("sse4", 7, 9, False)])
def test_one_row(isa: str, k: int, n: int, ta: bool) -> None:
    p = matmul((k, 1) if ta else (1, k), (k, n), (1, n), ta=ta, biased=True)
    check(MATVEC, p, on=device(isa), pitch={"a": 4} if ta else {"a": k + 3}, absolute=1e-4)


def test_one_row_with_every_shape_of_sums() -> None:
    p = matmul((1, 37), (50, 37), (1, 50), tb=True)
    for config in MATVEC.space(p, device()):
        check(MATVEC, p, config=config, absolute=1e-4)
