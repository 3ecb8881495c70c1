"""Concat, slice and pad against the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.movement import Concat, Pad, Slice

N, H = symbol("n"), symbol("h")
SCALE = harness.chain(["f32", "f32"], ("mul", 0, 1))


def concat(shapes, axis, dtype="f32", **more):
    out = tuple(sum((s[axis] for s in shapes), 0) if i == axis % len(shapes[0]) else d for i, d in enumerate(shapes[0]))
    return harness.problem("concat", {f"x{i}": (dtype, s) for i, s in enumerate(shapes)}, (dtype, out), axis=axis, **more)


def sliced(shape, starts, steps, out, dtype="f32", **more):
    return harness.problem("slice", {"x": (dtype, shape)}, (dtype, out), starts=starts, steps=steps, **more)


def padded(shape, before, after, mode="constant", value=0.0, dtype="f32", **more):
    out = tuple(d + a + b for d, a, b in zip(shape, before, after, strict=True))
    return harness.problem("pad", {"x": (dtype, shape)}, (dtype, out), before=before, mode=mode, value=value, **more)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat(axis, isa):
    shapes = [[2, 3, 21] for _ in range(3)]
    for i, s in enumerate(shapes):
        s[axis] += 2 * i
    problem = concat([tuple(s) for s in shapes], axis)
    harness.check(Concat(), problem, on=harness.device(isa))
    harness.check(Concat(), problem, on=harness.device(isa), pitch={"x0": 23, "x1": 28, "x2": 26, "y": 91})


@pytest.mark.parametrize("dtype", ["bool", "i64", "f16", "u8"])
def test_concat_types(dtype):
    for axis in (0, 1):
        harness.check(Concat(), concat([(3, 35), (3, 35)], axis, dtype))


def test_concat_of_one_two_and_empty():
    harness.check(Concat(), concat([(5,)], 0))
    harness.check(Concat(), concat([(5,), (0,), (4,)], 0))
    harness.check(Concat(), concat([(N, 3, H), (N, 2, H)], 1), sizes={"n": 2, "h": 5})
    harness.check(Concat(), concat([(3, N, 4), (3, H, 4)], 1), sizes={"n": 0, "h": 5})


def test_concat_epilogue():
    for axis in (0, 1, 2):
        shapes = [(2, 3, 9), (2, 3, 9)]
        out = concat(shapes, axis).output().shape
        for extra in (out, out[-1:], (out[0], 1, 1)):
            harness.check(Concat(), concat(shapes, axis, expression=SCALE, extra={"e": ("f32", extra)}))


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("starts, steps, out", [
    ((0, 0, 0, 0), (1, 1, 1, 1), (3, 4, 5, 37)),
    ((1, 1, 2, 3), (1, 1, 1, 1), (2, 3, 2, 21)),
    ((0, 3, 0, 0), (1, -1, 1, 1), (3, 4, 5, 37)),
    ((2, 0, 4, 36), (-2, 1, -1, -1), (2, 4, 5, 37)),
    ((0, 0, 1, 1), (1, 2, 2, 3), (3, 2, 2, 12)),
    ((0, 1, 0, 0), (1, 2, 1, 1), (3, 2, 5, 37)),
    ((1, 0, 0, 0), (1, 1, 1, 1), (1, 4, 5, 37)),
    ((0, 0, 0, 36), (1, 1, 1, 1), (3, 4, 5, 1)),
    ((0, 0, 0, 0), (1, 1, 1, 1), (3, 0, 5, 37)),
], ids=str)
def test_slice(starts, steps, out, isa):
    problem = sliced((3, 4, 5, 37), starts, steps, out)
    harness.check(Slice(), problem, on=harness.device(isa))
    harness.check(Slice(), problem, on=harness.device(isa), pitch={"x": 41, "y": 38})


def test_slice_types_symbols_and_scalars():
    for dtype in ("bool", "f16", "i64"):
        for step in (1, -1, 2):
            harness.check(Slice(), sliced((3, 40), (0, 39 if step < 0 else 0), (1, step), (3, 20), dtype))
    harness.check(Slice(), sliced((N, H, 6), (0, H - 3, 2), (1, 1, 1), (N, 3, 4)), sizes={"n": 2, "h": 7})
    harness.check(Slice(), sliced((), (), (), ()))
    for extra in ((3, 5), (5,), (3, 1)):
        harness.check(Slice(), sliced((4, 11), (1, 10), (1, -2), (3, 5), expression=SCALE, extra={"e": ("f32", extra)}))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_slice(data):
    shape, starts, steps, out = [], [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(1, 6))
        step = data.draw(st.sampled_from([1, 1, 1, 2, -1, -2]))
        start = data.draw(st.integers(0, size - 1))
        room = (size - start + step - 1) // step if step > 0 else (start - step) // -step
        shape.append(size)
        starts.append(start)
        steps.append(step)
        out.append(data.draw(st.integers(1, room)))
    harness.check(Slice(), sliced(tuple(shape), tuple(starts), tuple(steps), tuple(out)))


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("before, after", [((0, 1, 2, 0), (0, 2, 1, 0)), ((1, 0, 0, 3), (0, 0, 0, 9)), ((0, 0, 0, 0), (0, 0, 0, 0)),
                                           ((0, -1, 1, -2), (0, 2, -1, 3)), ((0, 3, 0, 0), (0, 3, 0, 0))], ids=str)
def test_pad(before, after, mode, isa):
    problem = padded((2, 4, 5, 19), before, after, mode, 1.5)
    harness.check(Pad(), problem, on=harness.device(isa))
    harness.check(Pad(), problem, on=harness.device(isa), pitch={"x": 20, "y": 40})


def test_pad_types_symbols_and_scalars():
    for dtype in ("bool", "f16", "i64", "u8"):
        harness.check(Pad(), padded((3, 40), (1, 2), (0, 1), "constant", 1.0, dtype))
    harness.check(Pad(), padded((N, H, 6), (0, H, 2), (N, 1, 1)), sizes={"n": 2, "h": 3})
    harness.check(Pad(), padded((N, H), (0, 1), (0, 1), "constant", 2.0), sizes={"n": 2, "h": 0})
    harness.check(Pad(), padded((), (), ()))
    harness.check(Pad(), padded((1, 1), (2, 2), (1, 1), "reflect"))
    for extra in ((4, 8), (8,), (4, 1)):
        harness.check(Pad(), padded((3, 5), (1, 2), (0, 1), "constant", 1.0, expression=SCALE, extra={"e": ("f32", extra)}))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for template, problem in ((Concat(), concat([(3, 35), (3, 35)], 1)), (Slice(), sliced((3, 40), (0, 0), (1, 2), (3, 20))),
                              (Pad(), padded((3, 40), (1, 1), (1, 1), "reflect"))):
        calls = template.build(problem, {}, device).calls
        kernels = {c.kernel for c in calls} if len(calls) == 1 else [calls[0].kernel]
        assert compile_ir(render(list(kernels), device.target), device.target)
