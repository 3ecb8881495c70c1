"""Objects for every target: no undefined symbols, no spills, constants only in sections of their own."""

from __future__ import annotations

import pytest
from tests.unit.test_loops_text import tour

from sartor.errors import LoopError, OptionError
from sartor.loops import math as vector_math
from sartor.loops.language import Builder, Kernel, Type
from sartor.loops.llvm import assembly, compile_ir, count_spills, render
from sartor.loops.target import ISAS, target_for

TARGETS = pytest.mark.parametrize("isa", ISAS)


def everything(isa: str) -> list[Kernel]:
    """Kernels with all vector functions, conversions, and loops that look like memset and memcpy."""
    target = target_for(isa)
    kernels = [tour()]
    for scalar in ("f32", "f64"):
        for lanes in (1, target.lanes(scalar)):
            for name, function in vector_math.FUNCTIONS.items():
                b = Builder(f"{name}_{scalar}_{lanes}")
                x = b.pointer("x", scalar)
                b.store(x, 0, function(b, b.load(x, 0, lanes)))
                kernels.append(b.finish())
            b = Builder(f"pow_{scalar}_{lanes}")
            x = b.pointer("x", scalar)
            b.store(x, 0, vector_math.pow_(b, b.load(x, 0, lanes), b.load(x, 64, lanes)))
            kernels.append(b.finish())
    return [*kernels, conversions(), memory_idioms()]


def conversions() -> Kernel:
    b = Builder("conversions")
    scalars = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")
    buffers = {s: b.pointer(s, s) for s in scalars}
    for lanes in (1, 16):
        for source in scalars:
            for to in scalars:
                b.store(buffers[to], 0, b.cast(b.load(buffers[source], 0, lanes), to))
    wide = b.load(buffers["i64"], 0, 4)
    b.store(buffers["i64"], 0, wide // (wide | 1) + wide % 7)
    return b.finish()


def memory_idioms() -> Kernel:
    b = Builder("idioms")
    x, y, n = b.pointer("x", "f32"), b.pointer("y", "f32"), b.size("n")
    tile = b.local("tile", "f32", 4096)
    with b.loop("i", 0, n) as i:
        b.store(x, i, 0.0)
    with b.loop("j", 0, n) as j:
        b.store(y, j, b.load(x, j))
    with b.loop("k", 0, 4096) as k:
        b.store(tile, k, 0.0)
    with b.loop("l", 0, 4096) as k:
        b.store(y, k, b.load(tile, k))
    return b.finish()


@TARGETS
def test_no_undefined_symbols(isa):
    target = target_for(isa)
    kernels = everything(isa)
    data = compile_ir(render(kernels, target), target)
    assert undefined(data) == []


def undefined(data: bytes) -> list[str]:
    """Names of the undefined symbols of an ELF object."""
    word = lambda at, size: int.from_bytes(data[at:at + size], "little")  # noqa: E731
    offset, count = word(0x28, 8), word(0x3C, 2)
    sections = [offset + 64 * n for n in range(count)]
    symbols = next(s for s in sections if word(s + 4, 4) == 2)
    names = word(sections[word(symbols + 0x28, 4)] + 0x18, 8)
    start, size = word(symbols + 0x18, 8), word(symbols + 0x20, 8)
    found = []
    for at in range(start + 24, start + size, 24):
        if word(at + 6, 2) == 0:
            name = names + word(at, 4)
            found.append(data[name:data.index(b"\0", name)].decode())
    return found


def micro_kernel(lanes: int, rows: int, vectors: int) -> Kernel:
    """C[rows, vectors lanes] = A[rows, K] B, B packed; A's elements are broadcast."""
    b = Builder("micro")
    a, packed, c = b.pointer("a", "f32"), b.pointer("b", "f32"), b.pointer("c", "f32")
    a_pitch, c_pitch, depth = b.size("a_pitch"), b.size("c_pitch"), b.size("depth")
    zero = b.constant(0.0, Type("f32", lanes))
    sums = [[b.variable("sum", zero) for _ in range(vectors)] for _ in range(rows)]
    with b.loop("k", 0, depth) as k:
        right = [b.load(packed, k * (vectors * lanes) + v * lanes, lanes) for v in range(vectors)]
        for r in range(rows):
            left = b.broadcast(b.load(a.at(a_pitch * r), k), lanes)
            for v in range(vectors):
                sums[r][v].set(b.fma(left, right[v], sums[r][v].get()))
    for r in range(rows):
        for v in range(vectors):
            b.store(c.at(c_pitch * r), v * lanes, sums[r][v].get())
    return b.finish()


@pytest.mark.parametrize(("isa", "rows", "vectors", "register"), [
    ("avx2", 6, 2, "ymm"), ("avx512", 6, 4, "zmm"), ("sse4", 4, 2, "xmm"), ("neon", 6, 4, "v"),
])
def test_micro_kernels_do_not_spill(isa, rows, vectors, register):
    target = target_for(isa)
    text = assembly(render([micro_kernel(target.lanes("f32"), rows, vectors)], target), target)
    assert count_spills(text) == 0
    assert register in text
    if target.has_fma:
        assert "fmadd" in text or "fmla" in text


def test_spills_are_counted():
    target = target_for("avx2")
    assert count_spills(assembly(render([micro_kernel(8, 10, 3)], target), target)) > 0


def test_names_and_targets_that_are_refused():
    with pytest.raises(LoopError, match="tour"):
        render([tour(), tour()], target_for("avx2"))
    with pytest.raises(OptionError, match="mmx"):
        target_for("mmx")


def test_lanes():
    assert [target_for(isa).lanes("f32") for isa in ISAS] == [4, 8, 16, 4]
    assert [target_for(isa).lanes("bf16") for isa in ISAS] == [8, 16, 32, 8]
