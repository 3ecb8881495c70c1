"""The linker: what it lays out, what it binds, what it refuses, and what it makes of code and weights once mapped."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from pathlib import Path

import numpy as np
import pytest

from sartor.errors import LoopError, ProgramError
from sartor.loops.llvm import compile_ir
from sartor.loops.objects import Image, _apply_aarch64, _apply_x86_64, link
from sartor.loops.target import Target, target_for
from sartor.runtime.image import load_code, map_weights

X86, ARM = target_for("avx2"), target_for("neon")
HOST = ARM if platform.machine() == "aarch64" else target_for("sse4")

# Each object has a local function and a local table of the same name; the second calls the first.
FIRST = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
define internal i64 @helper(i64 %i) noinline {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @first(i64 %i) {
  %v = call i64 @helper(i64 %i)
  %w = mul i64 %v, 2
  ret i64 %w
}
"""
SECOND = """
@table = internal constant [4 x i64] [i64 100, i64 200, i64 300, i64 400]
@vectors = internal constant [4 x <4 x float>] [<4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>,
  <4 x float> zeroinitializer, <4 x float> zeroinitializer, <4 x float> <float 5.0, float 6.0, float 7.0, float 8.0>]
declare i64 @first(i64)
define internal i64 @helper(i64 %i) noinline {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @second(i64 %i) {
  %a = call i64 @first(i64 %i)
  %b = call i64 @helper(i64 %i)
  %c = add i64 %a, %b
  ret i64 %c
}
define float @lane(i64 %i) {
  %p = getelementptr <4 x float>, ptr @vectors, i64 %i
  %v = load <4 x float>, ptr %p
  %x = extractelement <4 x float> %v, i32 2
  ret float %x
}
define ptr @whereabouts() {
  ret ptr @first
}
"""


def compiled(text: str, target: Target = HOST) -> bytes:
    return compile_ir(f'target triple = "{target.triple}"\n{text}', target)


def linked(*texts: str, target: Target = HOST) -> Image:
    return link([compiled(text, target) for text in texts])


def check_runs(code) -> None:  # type: ignore[no-untyped-def]
    second = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("second"))
    assert [second(i) for i in range(4)] == [106, 210, 314, 422]
    lane = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(code.address("lane"))
    assert [lane(i) for i in range(4)] == [3, 0, 0, 7]
    assert ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address("whereabouts"))() == code.address("first")


def test_objects_become_one_image_that_runs_anywhere() -> None:
    for order in ([FIRST, SECOND], [SECOND, FIRST]):
        image = linked(*order)
        assert set(image.symbols) == {"first", "second", "lane", "whereabouts"}
        check_runs(load_code(image.code, image.symbols))


def test_linking_is_the_same_each_time() -> None:
    assert linked(FIRST, SECOND) == linked(FIRST, SECOND)


@pytest.mark.parametrize("target", [X86, ARM], ids=["x86_64", "aarch64"])
def test_the_machine_and_the_symbols_of_other_machines(target: Target) -> None:
    image = linked(FIRST, SECOND, target=target)
    assert image.machine == target.triple.split("-")[0]
    assert all(0 <= place < len(image.code) and place % 4 == 0 for place in image.symbols.values())


@pytest.mark.parametrize(("text", "message"), [
    ("declare double @sin(double)\ndefine double @f(double %x) {\n %y = call double @sin(double %x)\n ret double %y\n}",
     "object 0 refers to sin, which no object"),
    ("@counter = global i64 5\ndefine ptr @f() {\n ret ptr @counter\n}", r"object 0 has writable data in \.data"),
    ("@counter = internal global i64 0\ndefine void @f(i64 %x) {\n store volatile i64 %x, ptr @counter\n ret void\n}",
     r"object 0 has writable data in \.bss"),
    ("@here = thread_local global i64 1\ndefine void @f() {\n ret void\n}", r"writable data in \.tdata"),
    ("@shared = common global i64 0\ndefine void @f() {\n ret void\n}", r"writable data in \.bss|shared of object 0 is writable"),
    ("define void @f() {\n ret void\n}\n@pointers = constant [1 x ptr] [ptr @f]",
     r"object 0 refers to f in \.data\.rel\.ro by an absolute address"),
])
def test_what_needs_work_at_loading_is_refused(text: str, message: str) -> None:
    for target in (X86, ARM):
        with pytest.raises(LoopError, match=message):
            linked(text, target=target)


def test_clashes_and_strangers_are_refused() -> None:
    with pytest.raises(LoopError, match="first is exported by object 1 and by an object before it"):
        linked(FIRST, FIRST)
    with pytest.raises(LoopError, match="object 1 is for aarch64, object 0 for x86_64"):
        link([compiled(FIRST, X86), compiled(FIRST, ARM)])
    with pytest.raises(LoopError, match="no objects"):
        link([])
    with pytest.raises(LoopError, match="not a little-endian ELF-64 object"):
        link([b"\x7fELF but not really"])
    data = bytearray(compiled(FIRST))
    with pytest.raises(LoopError, match="damaged"):
        link([bytes(data[:len(data) // 2])])
    data[18:20] = struct.pack("<H", 243)
    with pytest.raises(LoopError, match="machine 243"):
        link([bytes(data)])


def test_relocations_of_x86_64() -> None:
    code = bytearray(32)
    assert _apply_x86_64(code, 8, 2, 100, -4) == ""
    assert struct.unpack_from("<i", code, 8) == (88,)
    assert _apply_x86_64(code, 8, 24, 0, 0) == ""
    assert struct.unpack_from("<q", code, 8) == (-8,)
    assert "too far" in _apply_x86_64(code, 8, 4, 1 << 32, 0)
    assert "R_X86_64_32S" in _apply_x86_64(code, 8, 11, 0, 0)
    assert "global offset table" in _apply_x86_64(code, 8, 9, 0, -4)
    assert "unknown relocation 77" in _apply_x86_64(code, 8, 77, 0, 0)


@pytest.mark.parametrize(("before", "after", "distance_at"), [
    ("488b05", "488d05", 3),  # mov address(%rip), %rax to lea
    ("8b05", "8d05", 2),
    ("ff15", "67e8", 2),  # call through the table to call
])
def test_relaxed_loads_from_the_table(before: str, after: str, distance_at: int) -> None:
    code = bytearray.fromhex(before) + bytearray(8)
    assert _apply_x86_64(code, distance_at, 42 if before.startswith("48") else 41, 64, -4) == ""
    assert code[:distance_at].hex() == after
    assert struct.unpack_from("<i", code, distance_at)[0] + distance_at + 4 == 64


def test_a_relaxed_jump_through_the_table() -> None:
    code = bytearray.fromhex("ff25") + bytearray(4)
    assert _apply_x86_64(code, 2, 41, 64, -4) == ""
    assert code[0] == 0xE9
    assert code[5] == 0x90
    assert struct.unpack_from("<i", code, 1)[0] + 5 == 64


@pytest.mark.parametrize(("kind", "instruction", "at", "value", "expected"), [
    (283, 0x94000000, 0x1000, 0x2000, 0x94000400),  # bl
    (282, 0x14000000, 0x2000, 0x1000, 0x17FFFC00),  # b, backwards
    (275, 0x90000000, 0x1FFC, 0x5678, 0x90000000 | 4 >> 2 << 5),  # adrp x0, four pages on
    (275, 0x90000001, 0x5000, 0x1008, 0x90000001 | (-4 >> 2 & 0x7FFFF) << 5),  # adrp x1, four pages back
    (311, 0x90000000, 0x1FFC, 0x5678, 0x90000000 | 4 >> 2 << 5),  # adrp of the table's page
    (312, 0xF9400021, 0, 0x5678, 0x91000021 | 0x678 << 10),  # ldr x1, [x1] from the table to add x1, x1
    (277, 0x91000000, 0, 0x5678, 0x91000000 | 0x678 << 10),  # add
    (278, 0x39400000, 0, 0x5679, 0x39400000 | 0x679 << 10),  # ldrb
    (284, 0x79400000, 0, 0x5FFE, 0x79400000 | 0xFFE >> 1 << 10),  # ldrh
    (285, 0xB9400000, 0, 0x5FFC, 0xB9400000 | 0xFFC >> 2 << 10),  # ldr w
    (286, 0xF9400000, 0, 0x5FF8, 0xF9400000 | 0xFF8 >> 3 << 10),  # ldr x
    (299, 0x3DC00000, 0, 0x5FF0, 0x3DC00000 | 0xFF0 >> 4 << 10),  # ldr q
    (274, 0x10000000, 0x100, 0x107, 0x10000000 | 3 << 29 | 1 << 5),  # adr
    (280, 0x54000000, 0x100, 0x80, 0x54000000 | (-32 & 0x7FFFF) << 5),  # b.eq, backwards
    (279, 0x36000000, 0x100, 0x180, 0x36000000 | 32 << 5),  # tbz
])
def test_relocations_of_aarch64(kind: int, instruction: int, at: int, value: int, expected: int) -> None:
    code = bytearray(0x2100 if at < 0x2100 else 0x6000)
    struct.pack_into("<I", code, at, instruction)
    assert _apply_aarch64(code, at, kind, value - 8, 8) == ""
    assert struct.unpack_from("<I", code, at) == (expected,)


def test_refused_relocations_of_aarch64() -> None:
    code = bytearray(64)
    assert "too far" in _apply_aarch64(code, 0, 283, 1 << 28, 0)
    assert "not a multiple of 4" in _apply_aarch64(code, 0, 283, 6, 0)
    assert "not aligned" in _apply_aarch64(code, 0, 286, 4, 0)
    assert "R_AARCH64_ABS64" in _apply_aarch64(code, 0, 257, 0, 0)
    assert "global offset table" in _apply_aarch64(code, 0, 313, 0, 0)
    assert "global offset table" in _apply_aarch64(code, 0, 312, 0, 0)
    assert "unknown relocation 999" in _apply_aarch64(code, 0, 999, 0, 0)
    assert _apply_aarch64(code, 8, 261, 4, 0) == ""
    assert _apply_aarch64(code, 16, 260, 4, 0) == ""
    assert struct.unpack_from("<i", code, 8) + struct.unpack_from("<q", code, 16) == (-4, -12)


def test_code_is_mapped_from_files_and_copied_from_elsewhere(tmp_path: Path) -> None:
    image = linked(FIRST, SECOND)
    path = tmp_path / "program"
    path.write_bytes(bytes(mmap.PAGESIZE) + image.code + b"trailer")
    check_runs(load_code(path, image.symbols, mmap.PAGESIZE, len(image.code)))
    check_runs(load_code(bytearray(image.code), image.symbols))
    path.write_bytes(b"x" * 64 + image.code)
    check_runs(load_code(path, image.symbols, 64))
    with path.open("rb") as file:
        check_runs(load_code(file.fileno(), image.symbols, 64, len(image.code)))


def test_code_is_never_writable_and_executable_at_once(tmp_path: Path) -> None:
    image = linked(FIRST)
    path = tmp_path / "program"
    path.write_bytes(image.code)
    codes = [load_code(path, image.symbols), load_code(image.code, image.symbols)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    for code in codes:
        (line,) = [line for line in maps if int(line.split("-")[0], 16) == code.base]
        assert line.split()[1] == "r-xp"
    bases = [code.base for code in codes]
    del codes, code
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert not {int(line.split("-")[0], 16) for line in maps} & set(bases)


def test_faults_of_code_are_named(tmp_path: Path) -> None:
    image = linked(FIRST)
    path = tmp_path / "program"
    path.write_bytes(image.code)
    with pytest.raises(ProgramError, match="cut short"):
        load_code(path, image.symbols, 0, len(image.code) + 1)
    with pytest.raises(ProgramError, match="cut short"):
        load_code(image.code, image.symbols, 16, len(image.code))
    with pytest.raises(ProgramError, match="empty"):
        load_code(b"", {})
    with pytest.raises(ProgramError, match="first lies outside"):
        load_code(image.code, {"first": len(image.code)})
    code = load_code(image.code, image.symbols)
    assert "first" in code
    with pytest.raises(ProgramError, match="no function second"):
        code.address("second")


@pytest.mark.parametrize("offset", [0, 64, 4096, 4160])
def test_weights_are_mapped_read_only(tmp_path: Path, offset: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
    path = tmp_path / "program"
    path.write_bytes(content.tobytes())
    weights = map_weights(path, offset, 5000)
    os.unlink(path)
    assert (weights == content[offset:offset + 5000]).all()
    assert weights.ctypes.data % 64 == 0
    assert not weights.flags.writeable


def test_faults_of_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(bytes(100))
    assert map_weights(path, 64, 0).size == 0
    with pytest.raises(ProgramError, match=r"cut short: the weights of .*program should reach byte 101"):
        map_weights(path, 64, 37)
    with pytest.raises(ProgramError, match="not a multiple of 64"):
        map_weights(path, 32, 8)
