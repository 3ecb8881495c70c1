"""What the verifier refuses, and how it names the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_loops_text import tour

from sartor.errors import LoopError
from sartor.loops.language import Builder, Kernel, Loop, Op, Type
from sartor.loops.verify import verify

F32, I64 = Type("f32"), Type("i64")


def refused(kernel: Kernel, *words: str) -> None:
    with pytest.raises(LoopError) as caught:
        verify(kernel)
    for word in (kernel.name, *words):
        assert word in str(caught.value)


def test_a_sound_kernel_passes():
    verify(tour())


def test_names():
    b = Builder("scopes")
    x = b.pointer("x", "f32")
    with b.loop("i", 0, 4) as i:
        inner = b.load(x, i)
    b.store(x, 0, inner)
    refused(b.finish(), inner.name, "outside the block")
    x = Op("t", "load", F32, ("missing", 0))
    refused(Kernel("names", (), (x,)), "missing", "not defined")
    one = Op("t", "constant", F32, (1.0,))
    refused(Kernel("twice", (), (one, one)), "t is defined twice")
    refused(Kernel("odd name", (), ()), "not a name")
    refused(Kernel("odd", (), (replace(one, result="a b"),)), "a b")
    refused(Kernel("kinds", (), (Op("", "store", F32, ("begin", 0, 1.0)),)), "begin is a value, but a buffer is wanted")


def test_types():
    one, whole = Op("one", "constant", F32, (1.0,)), Op("whole", "constant", I64, (1,))
    cases = [
        (Op("t", "add", F32, ("one", "whole"), (F32, F32)), "whole is i64"),
        (Op("t", "and", F32, ("one", "one"), (F32, F32)), "not defined for f32"),
        (Op("t", "bitcast", Type("f64"), ("one",), (F32,)), "cannot be read as f64"),
        (Op("t", "extract", F32, ("one",), (F32,), (("lane", 0),)), "needs a vector"),
        (Op("t", "compare", F32, ("one", "one"), (F32, F32), (("predicate", "lt"),)), "cannot give f32"),
        (Op("t", "reduce", F32, ("one",), (F32,), (("kind", "xor"),)), "xor is not defined"),
        (Op("t", "magic", F32, ()), "not an operation"),
        (Op("", "add", F32, ("one", "one"), (F32, F32)), "needs a result"),
        (Op("t", "load", Type("f32", 4), ("x", 0, "bit"), (Type("bool"),)), "the mask bit is bool, but boolx4 is wanted"),
        (Op("t", "load", F32, ("x", 0), (), (("align", 3),)), "alignment 3"),
    ]
    for op, message in cases:
        b = Builder("types")
        b.pointer("x", "f32")
        start = (one, whole, Op("bit", "constant", Type("bool"), (True,)))
        refused(Kernel("types", tuple(b.parameters), (*start, op)), message)


@pytest.mark.parametrize(("step", "start"), [(0, 0), (-1, 5)])
def test_steps(step, start):
    refused(Kernel("steps", (), (Loop("i", start, 8, step, ()),)), "step", "loop i", "not positive")


def local_access(stop: int, scale: int = 1, lanes: int = 1, guard: bool = False, mask: bool = False, step: int = 1) -> Kernel:
    b = Builder("bounds")
    n = b.size("n")
    tile = b.local("tile", "f32", 16)
    with b.loop("outer", 0, n), b.loop("i", 0, stop, step) as i:
        chosen = b.first_lanes(n, lanes) if mask else None
        if guard:
            with b.branch(i < n):
                b.load(tile, i * scale, lanes, mask=chosen)
        else:
            b.load(tile, i * scale, lanes, mask=chosen)
    return b.finish()


@pytest.mark.parametrize("arguments", [
    {"stop": 16}, {"stop": 4, "scale": 4, "lanes": 4}, {"stop": 17, "guard": True}, {"stop": 15, "lanes": 8, "step": 8},
    {"stop": 16, "lanes": 4, "mask": True}, {"stop": 0, "scale": 100},
])
def test_bounds_that_hold(arguments):
    verify(local_access(**arguments))


@pytest.mark.parametrize("arguments", [
    {"stop": 17}, {"stop": 4, "scale": 5, "lanes": 4}, {"stop": 16, "lanes": 2}, {"stop": 2, "scale": -1},
    {"stop": 9, "lanes": 16, "step": 8},
])
def test_bounds_that_do_not(arguments):
    refused(local_access(**arguments), "loop outer / i", "local array tile")


def test_bounds_follow_offsets_views_and_arithmetic():
    b = Builder("offsets")
    n = b.size("n")
    tile = b.local("tile", "f32", 16)
    inside = b.minimum(b.maximum(n, 0), 15)
    b.load(tile, inside)
    b.load(b.retype(tile, "u8"), 63)
    b.load(tile.at(8), (inside % 8) - 8 + (inside // 2))
    verify(b.finish())
    b.load(tile.at(8), inside)
    refused(b.finish(), "32 to 96", "tile")


def test_a_certain_fault_is_refused_under_a_guard_too():
    b = Builder("certain")
    tile = b.local("tile", "f32", 16)
    with b.branch(b.size("n") > 0):
        b.store(tile, 16, 1.0)
    refused(b.finish(), "tile")


def test_builder_refuses_at_once():
    b = Builder("builder")
    x, half = b.load(b.pointer("x", "f32")), b.load(b.pointer("h", "f16"))
    for wrong in (
        lambda: x & x, lambda: half + half, lambda: x + half, lambda: b.branch(x).__enter__(), lambda: bool(x > 0.0),
        lambda: b.bitcast(x, "f64"), lambda: b.reduce("xor", x), lambda: b.otherwise().__enter__(),
        lambda: b.compare("near", x, x), lambda: b.constant(0.5, I64), lambda: b.load(b.pointer("y", "f32"), x),
        lambda: b.select(x, x, x), lambda: Type("f33"),
    ):
        with pytest.raises(LoopError):
            wrong()
