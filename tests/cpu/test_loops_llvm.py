"""Every operation of the loop language, rendered by LLVM and compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu.loops_running import elementwise, host_targets
from tests.unit.test_loops_objects import micro_kernel

from sartor.loops.language import Builder, Type
from sartor.loops.llvm import jit
from sartor.types import BYTES, to_numpy

TARGETS = pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.isa)
LANES = pytest.mark.parametrize("lanes", [1, 3, 8, 16])
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


def integers(scalar: str, count: int = 64, seed: int = 0) -> np.ndarray:
    info = np.iinfo(to_numpy(scalar))
    values = np.random.default_rng(seed).integers(info.min, info.max, count, to_numpy(scalar), endpoint=True)
    values[:4] = [info.min, info.max, 0, 1]
    return values


def floats(scalar: str, count: int = 64, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 100, count)
    values[:8] = [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf]
    return values.astype(to_numpy(scalar))


@TARGETS
@LANES
@pytest.mark.parametrize("scalar", INTEGERS)
def test_integer_operations(target, lanes, scalar):
    a, b = integers(scalar), integers(scalar, seed=1)
    shift = (np.abs(b.astype(np.int64)) % (8 * BYTES[scalar])).astype(a.dtype)
    safe = np.where(b == 0, 3, b).astype(a.dtype)
    safe = np.where(safe == -1, 3, safe).astype(a.dtype) if scalar[0] == "i" else safe
    left, right = a.astype(object), safe.astype(object)
    quotient = np.abs(left) // np.abs(right) * np.sign(left) * np.sign(right)
    cases = {
        "add": (a + b, b), "sub": (a - b, b), "mul": (a * b, b), "min": (np.minimum(a, b), b), "max": (np.maximum(a, b), b),
        "and": (a & b, b), "or": (a | b, b), "xor": (a ^ b, b), "shl": (a << shift, shift), "shr": (a >> shift, shift),
        "idiv": (quotient.astype(a.dtype), safe), "irem": ((left - quotient * right).astype(a.dtype), safe),
    }
    for code, (expected, other) in cases.items():
        got = elementwise(lambda b, x, y, code=code: b.binary(code, x, y), [a, other], scalar, lanes, target)
        np.testing.assert_array_equal(got, expected, err_msg=code)
    bits = 8 * BYTES[scalar]
    unsigned = [int(x) % 2**bits for x in a]
    unary = {
        "ineg": -a, "not": ~a, "abs": np.abs(a), "popcount": [x.bit_count() for x in unsigned],
        "leading_zeros": [bits - x.bit_length() for x in unsigned],
    }
    for code, expected in unary.items():
        got = elementwise(lambda b, x, code=code: b.unary(code, x), [a], scalar, lanes, target)
        np.testing.assert_array_equal(got, np.array(expected).astype(a.dtype), err_msg=code)
    got = elementwise(lambda b, x, y: b.fma(x, y, x), [a, b], scalar, lanes, target)
    np.testing.assert_array_equal(got, a * b + a)


@TARGETS
@LANES
@pytest.mark.parametrize("scalar", ["f32", "f64"])
def test_float_operations(target, lanes, scalar):
    a, b = floats(scalar), floats(scalar, seed=1)
    with np.errstate(all="ignore"):
        binary = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b, "min": np.where(a < b, a, b),
                  "max": np.where(a > b, a, b), "copysign": np.copysign(a, b)}
        unary = {"neg": -a, "abs": np.abs(a), "sqrt": np.sqrt(a), "floor": np.floor(a), "ceil": np.ceil(a), "trunc": np.trunc(a),
                 "nearbyint": np.rint(a)}
    for code, expected in binary.items():
        got = elementwise(lambda b, x, y, code=code: b.binary(code, x, y), [a, b], scalar, lanes, target)
        np.testing.assert_array_equal(got, expected, err_msg=code)
    for code, expected in unary.items():
        got = elementwise(lambda b, x, code=code: b.unary(code, x), [a], scalar, lanes, target)
        np.testing.assert_array_equal(got, expected, err_msg=code)
        assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()


@TARGETS
@LANES
@pytest.mark.parametrize("scalar", ["f32", "u8", "i32", "i64"])
def test_comparisons_selects_and_bools(target, lanes, scalar):
    a, b = (floats(scalar), floats(scalar, seed=1)) if scalar == "f32" else (integers(scalar), integers(scalar, seed=1))
    b[::3] = a[::3]
    if scalar == "f32":
        a[5:7] = np.nan
    expected = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    for predicate, want in expected.items():
        got = elementwise(lambda b, x, y, p=predicate: b.compare(p, x, y), [a, b], "bool", lanes, target)
        np.testing.assert_array_equal(got, want)
        got = elementwise(lambda b, m, x, y: b.select(m, x, y), [want, a, b], scalar, lanes, target)
        np.testing.assert_array_equal(got, np.where(want, a, b))
    x, y = expected["lt"], expected["ge"]
    for code, want in {"and": x & y, "or": x | y, "xor": x ^ y}.items():
        got = elementwise(lambda b, x, y, code=code: b.binary(code, x, y), [x, y], "bool", lanes, target)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(elementwise(lambda b, x: ~x, [x], "bool", lanes, target), ~x)


@TARGETS
@LANES
@pytest.mark.parametrize("source", [*INTEGERS, "bool", "f16", "bf16", "f32", "f64"])
def test_casts(target, lanes, source):
    rng = np.random.default_rng(2)
    lowest = 0 if source[0] in "ub" and source != "bf16" else -100
    a = rng.integers(lowest, 100, 64).astype(to_numpy(source))
    for to in (*INTEGERS, "bool", "f16", "bf16", "f32", "f64"):
        if to == source:
            continue
        values = np.abs(a) if to[0] == "u" and source != "bool" else a
        got = elementwise(lambda b, x, to=to: b.cast(x, to), [values], to, lanes, target)
        np.testing.assert_array_equal(got, values.astype(to_numpy(to)), err_msg=to)


@TARGETS
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("scalar", ["f16", "bf16"])
def test_sixteen_bit_floats_to_single(target, lanes, scalar):
    a = np.arange(65536, dtype=np.uint16).view(to_numpy(scalar))
    got = elementwise(lambda b, x: b.cast(x, "f32"), [a], "f32", lanes, target)
    np.testing.assert_array_equal(got, a.astype(np.float32))


@TARGETS
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("scalar", ["f16", "bf16"])
def test_sixteen_bit_floats_from_single(target, lanes, scalar):
    exact = np.arange(65536, dtype=np.uint16).view(to_numpy(scalar)).astype(np.float32)
    finite = np.sort(exact[np.isfinite(exact)])
    with np.errstate(all="ignore"):
        ties = finite[:-1] + (finite[1:] - finite[:-1]) / np.float32(2)
        near = np.concatenate([np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
        wild = np.random.default_rng(3).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
        a = np.concatenate([exact, ties, near, wild])
        got = elementwise(lambda b, x: b.cast(x, scalar), [a], scalar, lanes, target)
        expected = a.astype(to_numpy(scalar))
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
    sign = 0x8000
    assert ((got.view(np.uint16) & sign) == (expected.view(np.uint16) & sign))[~np.isnan(a)].all()


def test_constants_of_every_type():
    values = {"bool": True, "i8": -128, "u8": 255, "u16": 65535, "i32": -5, "u64": 2**64 - 1,
              "f16": 0.1, "bf16": 0.1, "f32": 0.1, "f64": 0.1}
    zero = [np.zeros(4, np.int8)]
    target = host_targets()[0]
    for scalar, value in values.items():
        for lanes in (1, 4):
            got = elementwise(lambda b, x, s=scalar, v=value, n=lanes: b.constant(v, Type(s, n)), zero, scalar, lanes, target)
            np.testing.assert_array_equal(got, np.full(4, value).astype(to_numpy(scalar)))
    for value in (np.inf, -np.inf, 1e300, np.nan):
        for scalar in ("f16", "bf16", "f32"):
            got = elementwise(lambda b, x, s=scalar, v=value: b.constant(v, Type(s)), zero, scalar, 1, target)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(got.astype(np.float32), np.full(4, np.float64(value).astype(np.float32)))


@TARGETS
@pytest.mark.parametrize("scalar", ["bool", "u8", "bf16", "f32", "f64", "i64"])
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_masked_memory(target, scalar, lanes):
    b = Builder("masked")
    x, y, count = b.pointer("x", scalar), b.pointer("y", scalar), b.size("count")
    mask = b.first_lanes(count, lanes)
    mask = b.extract(b.first_lanes(count, 2), 0) if lanes == 1 else mask
    b.store(y, 0, b.load(x, 0, lanes, mask=mask))
    b.store(y, 8, b.load(x, 0, lanes), mask=mask)
    at = b.iota(lanes, "i32") if lanes > 1 else b.constant(0, Type("i32"))
    b.store(y, 16, b.gather(x, at * 2, mask=mask))
    b.store(y, 24, b.gather(x, b.cast(at, "i64") * 2))
    call = jit([b.finish()], target)["masked"]
    values = (np.arange(1, 33) % 2 if scalar == "bool" else np.arange(1, 33)).astype(to_numpy(scalar))
    for count in (0, 1, 3, 100):
        out = np.zeros(32, values.dtype)
        call(np.array([values.ctypes.data, out.ctypes.data, count], np.int64), 0, 0, 0)
        first = np.where(np.arange(lanes) < count, values[:lanes], np.zeros(1, values.dtype))
        np.testing.assert_array_equal(out[:lanes], first)
        np.testing.assert_array_equal(out[8:8 + lanes], first)
        gathered = values[:2 * lanes:2]
        np.testing.assert_array_equal(out[16:16 + lanes], np.where(np.arange(lanes) < count, gathered, np.zeros(1, values.dtype)))
        np.testing.assert_array_equal(out[24:24 + lanes], gathered)


@TARGETS
@pytest.mark.parametrize("lanes", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("scalar", ["f32", "i32", "u8", "bool"])
def test_reductions(target, lanes, scalar):
    makers = {"f32": lambda: floats("f32", 16, 5), "bool": lambda: integers("u8", 16) > 100}
    a = makers.get(scalar, lambda: integers(scalar, 16))()[:lanes]
    a = np.where(np.isfinite(a), a, 1).astype(to_numpy(scalar))
    with np.errstate(all="ignore"):
        expected = {"add": a.sum(dtype=a.dtype), "mul": a.prod(dtype=a.dtype), "min": a.min(), "max": a.max()}
        expected |= {} if scalar == "f32" else {"and": np.bitwise_and.reduce(a), "or": np.bitwise_or.reduce(a)}
    for kind, want in expected.items():
        if scalar == "bool" and kind not in ("and", "or"):
            continue
        got = elementwise(lambda b, x, kind=kind: b.broadcast(b.reduce(kind, x), lanes), [a], scalar, lanes, target)
        np.testing.assert_allclose(got.astype(float), np.full(lanes, want).astype(float), rtol=1e-5, err_msg=kind)


@TARGETS
def test_lanes(target):
    a = np.arange(8, dtype=np.float32)
    cases = [
        (lambda b, x: b.broadcast(b.extract(x, 3), 8), [3] * 8),
        (lambda b, x: b.insert(x, 9.0, 2), [0, 1, 9, 3, 4, 5, 6, 7]),
        (lambda b, x: b.shuffle(x, x + 10.0, (8, 1, 10, 3, 12, 5, 14, 7)), [10, 1, 12, 3, 14, 5, 16, 7]),
        (lambda b, x: b.broadcast(b.shuffle(x, x, (5,)), 8), [5] * 8),
        (lambda b, x: b.shuffle(b.extract(x, 1), b.extract(x, 2), (0, 1) * 4), [1, 2] * 4),
        (lambda b, x: b.cast(b.iota(8), "f32") * x, [n * n for n in range(8)]),
        (lambda b, x: b.bitcast(b.bitcast(x, "u32") | 0x80000000, "f32"), [-n for n in range(8)]),
    ]
    for function, expected in cases:
        np.testing.assert_array_equal(elementwise(function, [a], "f32", 8, target), expected)


@TARGETS
def test_control_flow_and_locals(target):
    b = Builder("flow")
    x, y = b.pointer("x", "i64"), b.pointer("y", "i64")
    entry = b.local("entry", "i64", 8)
    total = b.variable("total", b.constant(0, Type("i64")))
    with b.loop("i", 0, 8, unroll=2) as i:
        v = b.load(x, i)
        with b.branch((v % 2).eq(0)):
            b.store(entry, i, v * 10)
        with b.otherwise():
            b.store(entry, i, v)
        with b.loop("j", 0, i) as j:
            total.set(total.get() + j)
    n = b.variable("n", b.load(x, 7))
    steps = b.variable("steps", b.constant(0, Type("i64")))
    with b.repeat_while() as test:
        b.proceed(test, n.get() > 1)
        half = n.get() // 2
        n.set(b.select((n.get() % 2).eq(0), half, n.get() * 3 + 1))
        steps.set(steps.get() + 1)
    with b.loop("k", 0, 8) as k:
        b.store(y, k, b.load(entry, k))
    b.store(y, 8, total.get())
    b.store(y, 9, steps.get())
    source, out = np.array([3, 4, 5, 6, 7, 8, 9, 27], np.int64), np.zeros(10, np.int64)
    jit([b.finish()], target)["flow"](np.array([source.ctypes.data, out.ctypes.data], np.int64), 0, 0, 0)
    expected = [v * 10 if v % 2 == 0 else v for v in source]
    np.testing.assert_array_equal(out, [*expected, sum(sum(range(i)) for i in range(8)), 111])


@TARGETS
def test_rows_and_scratch(target):
    b = Builder("rows")
    source, y, flag = b.rows("source", "f32"), b.pointer("y", "f32"), b.size("flag")
    scratch = b.scratch("f32", 64)
    kept = b.scratch_table("f32", 256)
    local = b.table("turned", 2, "f32")
    with b.loop("r", 0, 2) as r:
        b.set_row(kept, r, source.row(r))
        b.set_row(local, r, source.row(1 - r).at(1))
    b.store(scratch, 0, b.load(kept.row(1), 2))
    b.store(y, 0, b.load(scratch, 0))
    b.store(y, 1, b.load(local.row(0), 0))
    b.prefetch(source.row(0), 4)
    b.store(y, 2, b.load(b.select_buffer(flag.ne(0), source.row(0), source.row(1)), 3))
    b.store(y, 3, b.load(y, 0), non_temporal=True)
    first, second = np.arange(8, dtype=np.float32), np.arange(10, 18, dtype=np.float32)
    table = np.array([first.ctypes.data, second.ctypes.data], np.int64)
    out, slab = np.zeros(4, np.float32), np.zeros(512, np.uint8)
    call = jit([b.finish()], target)["rows"]
    call(np.array([table.ctypes.data, out.ctypes.data, 1], np.int64), slab.ctypes.data, 0, 0)
    np.testing.assert_array_equal(out, [12, 11, 3, 12])


@TARGETS
def test_matrix_micro_kernel(target):
    lanes, rows, vectors, depth = target.lanes("f32"), 6, 2, 37
    rng = np.random.default_rng(7)
    a = rng.normal(size=(rows, depth)).astype(np.float32)
    right = rng.normal(size=(depth, lanes * vectors)).astype(np.float32)
    out = np.zeros((rows, lanes * vectors), np.float32)
    args = np.array([a.ctypes.data, right.ctypes.data, out.ctypes.data, depth, lanes * vectors, depth], np.int64)
    jit([micro_kernel(lanes, rows, vectors)], target)["micro"](args, 0, 0, 1)
    np.testing.assert_allclose(out, a @ right, rtol=1e-4, atol=1e-5)
