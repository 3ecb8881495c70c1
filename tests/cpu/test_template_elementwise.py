"""Element-wise layers against the reference: broadcasting, pitches, types, symbols, empty values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu import harness

from sartor.loops.llvm import compile_ir, render
from sartor.loops.target import target_for
from sartor.sizes import symbol
from sartor.templates.elementwise import Elementwise

TEMPLATE = Elementwise()
ADD_MUL = harness.chain(["f32", "f32", "f32"], ("add", 0, 1), ("mul", 3, 2), ("relu", 4))
N, H = symbol("n"), symbol("h")


def layer(out, *shapes, dtype="f32", expression=ADD_MUL):
    names = "abcdef"[:len(shapes)]
    return harness.problem("elementwise", {n: (dtype, s) for n, s in zip(names, shapes, strict=True)}, (dtype, out), expression=expression)


CASES = [
    ((5, 7), (5, 7), (5, 7), (5, 7)),
    ((300,), (300,), (), (300,)),
    ((4, 9, 33), (4, 9, 33), (33,), (1, 9, 33)),
    ((2, 3, 5, 8), (2, 3, 5, 8), (2, 1, 1, 8), (2, 3, 5, 8)),
    ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 1, 1), (1, 3, 1, 1)),
    ((2, 3, 5, 7), (3, 1, 7), (2, 1, 5, 1), (5, 1)),
    ((6, 1), (6, 1), (1, 1), (6, 1)),
    ((4, 3, 1), (4, 1, 1), (3, 1), (4, 3, 1)),
    ((2, 3), (), (), (1, 1)),
    ((2, 1, 2, 1, 2, 1, 2, 3), (2, 1, 1, 1, 2, 1, 1, 3), (2, 1, 2, 1, 2, 1, 2, 1), (3,)),
    ((), (), (), ()),
    ((0, 7), (0, 7), (7,), (0, 1)),
    ((7, 0), (7, 0), (7, 1), ()),
    ((50, 3), (50, 3), (3,), (1, 3)),
    ((2, 31, 12), (2, 31, 12), (2, 1, 12), (2, 1, 1)),
    ((40, 5), (40, 5), (40, 1), (5,)),
]


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("shapes", CASES, ids=str)
def test_broadcast(shapes, isa):
    harness.check(TEMPLATE, layer(*shapes), on=harness.device(isa))


@pytest.mark.parametrize("shapes", [c for c in CASES if c[0] and 0 not in c[0]], ids=str)
def test_pitches(shapes):
    problem = layer(*shapes)
    pitch = {n: (t.shape[-1] if t.shape else 1) + 3 + i for i, (n, t) in enumerate(problem.tensors.items())}
    harness.check(TEMPLATE, problem, pitch=pitch)


@pytest.mark.parametrize("sizes", [{"n": 1, "h": 1}, {"n": 5, "h": 1}, {"n": 1, "h": 9}, {"n": 3, "h": 33}, {"n": 0, "h": 5}], ids=str)
@pytest.mark.parametrize("shapes", [((N, H), (N, H), (H,), (N, 1)),
                                    ((N, 4, H), (N, 4, H), (N, 1, H), (4, 1)), ((N, 8), (N, 8), (N, 8), ())])
def test_symbols(shapes, sizes):
    harness.check(TEMPLATE, layer(*shapes), sizes=sizes)


def test_symbols_that_may_be_one():
    problem = layer((4, 3, 6), (symbol("p"), 3, 6), (4, symbol("q"), 6), (4, 3, symbol("r")))
    for p, q, r in ((1, 1, 1), (4, 3, 6), (1, 3, 1), (4, 1, 6)):
        harness.check(TEMPLATE, problem, sizes={"p": p, "q": q, "r": r})


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u8", "i32", "i64", "u16"])
def test_types(dtype):
    problem = layer((3, 45), (3, 45), (45,), (), dtype=dtype, expression=harness.chain([dtype] * 3, ("add", 0, 1), ("max", 3, 2)))
    harness.check(TEMPLATE, problem)


def test_mixed_types():
    e = harness.ExpressionBuilder(["f32", "bool", "i64"])
    e = e.finish(e("select", 1, e("cast", 2, dtype="f32"), 0))
    inputs = {"a": ("f32", (5, 11)), "m": ("bool", (5, 11)), "i": ("i64", (11,))}
    harness.check(TEMPLATE, harness.problem("elementwise", inputs, ("f32", (5, 11)), expression=e))
    e = harness.chain(["f32", "f32"], ("lt", 0, 1))
    harness.check(TEMPLATE, harness.problem("elementwise", {"a": ("f32", (5, 77)), "b": ("f32", (77,))}, ("bool", (5, 77)), expression=e))


def test_an_input_used_twice_and_no_input():
    e = harness.chain(["f32", "f32"], ("mul", 0, 1))
    problem = harness.problem("elementwise", {"a": ("f32", (3, 9))}, ("f32", (3, 9)), expression=e)
    twice = type(problem)(type(problem.layer)("l", "elementwise", ("a", "a"), ("y",), {}, e), problem.tensors, {})
    harness.check(TEMPLATE, twice)
    builder = harness.ExpressionBuilder([])
    constant = builder.finish(builder.constant(2.5, "f32"))
    harness.check(TEMPLATE, harness.problem("elementwise", {}, ("f32", (3, 9)), expression=constant))


@pytest.mark.parametrize("shapes", CASES[:8] + CASES[-3:], ids=str)
def test_in_place(shapes):
    problem = layer(*shapes)
    for name in problem.layer.inputs:
        if problem.tensors[name].shape == shapes[0]:
            harness.check_in_place(TEMPLATE, problem, name)
            if shapes[0][-1] > 1 and len(shapes[0]) > 1:
                harness.check_in_place(TEMPLATE, problem, name, pitch={name: shapes[0][-1] + 3, "y": shapes[0][-1] + 3})


SIZE = st.sampled_from([1, 2, 3, 5])


@settings(max_examples=25, deadline=None)
@given(st.lists(SIZE, min_size=1, max_size=5), st.data())
def test_any_shapes(out, data):
    shapes = []
    for _ in range(3):
        rank = data.draw(st.integers(0, len(out)))
        shapes.append(tuple(data.draw(st.sampled_from([1, d])) for d in out[len(out) - rank:]))
    harness.check(TEMPLATE, layer(tuple(out), *shapes))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    for shapes in CASES[2:5]:
        problem = layer(*shapes)
        calls = TEMPLATE.build(problem, TEMPLATE.default(problem, device), device).calls
        assert compile_ir(render([c.kernel for c in calls], target_for(isa)), target_for(isa))
