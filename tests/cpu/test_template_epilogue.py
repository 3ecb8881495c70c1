"""The epilogue's operands against the reference, through a template that does nothing else: it copies its input row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.cpu import harness

from sartor.devices.device import Device
from sartor.graph.expression import identity
from sartor.graph.layer import Problem
from sartor.loops.language import Builder
from sartor.sizes import symbol
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import Epilogue, classify, widen
from sartor.templates.slots import Slots


@dataclass(frozen=True)
class Copy:
    """Rows of the input through the epilogue: whole vectors, then one masked vector."""

    lanes: int = 8
    name: str = "copy"

    def applies(self, problem: Problem, device: Device) -> bool:
        return True

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b, out, (source,) = Builder("copy"), problem.output(), problem.layer.inputs
        slots = Slots(b, problem)
        x, xp = slots.pointer("x", source), slots.pitch("xp", source)
        y, yp = slots.pointer("y", "y"), slots.pitch("yp", "y")
        columns = slots.size("columns", out.columns)
        epilogue = Epilogue(b, problem)
        with b.loop("row", b.begin, b.end) as row:
            whole = columns - columns % self.lanes
            with b.loop("column", 0, whole, self.lanes) as column:
                raw = widen(b, b.load(x, row * xp + column, self.lanes))
                b.store(y, row * yp + column, epilogue.apply(raw, row, column, self.lanes))
            mask = b.first_lanes(columns - whole, self.lanes)
            raw = widen(b, b.load(x, row * xp + whole, self.lanes, mask))
            b.store(y, row * yp + whole, epilogue.apply(raw, row, whole, self.lanes, mask), mask)
        return Implementation((KernelCall(b.finish(), (*slots.arguments, *epilogue.arguments()), out.rows),))


N = symbol("n")
SHAPES = [(), (1,), (7,), (5, 7), (3, 1, 5, 7), (2, 3, 1, 1), (2, 1, 1, 7), (1, 3, 5, 1), (2, 1, 5, 1), (2, 3, 5, 1), (1, 3, 1, 7)]


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operand_is_broadcast(shape: tuple[int, ...], isa: str) -> None:
    full = (3, 3, 5, 7) if len(shape) == 4 and shape[0] == 3 else (2, 3, 5, 7)
    problem = harness.problem("transpose", {"x": ("f32", full)}, ("f32", full), extra={"e": ("f32", shape)},
                              expression=harness.chain(["f32", "f32"], ("mul", 0, 1), ("add", 2, 0.5)), perm=(0, 1, 2, 3))
    harness.check(Copy(), problem, on=harness.device(isa), pitch={"x": 9, "y": 11})
    if shape and shape[-1] > 1:
        harness.check(Copy(), problem, on=harness.device(isa), pitch={"e": 13})


@pytest.mark.parametrize("size", [1, 4])
def test_symbols_that_may_be_one(size: int) -> None:
    full, other = (N, 3, symbol("c")), (symbol("m"), 3, symbol("d"))
    problem = harness.problem("transpose", {"x": ("f32", full)}, ("f32", full), extra={"e": ("f32", other)},
                              expression=harness.chain(["f32", "f32"], ("mul", 0, 1)), perm=(0, 1, 2))
    for d in (1, 9):
        sizes: Mapping[str, int] = {"n": 4, "c": 9, "m": size, "d": d}
        harness.check(Copy(), problem, sizes=sizes)


def test_usual_operands_are_recognised() -> None:
    out = harness.Tensor("f32", (N, 5, 6, 7))
    kinds = {s: classify(harness.Tensor("f32", s), out).kind for s in ((), (7,), (1, 1, 7), (N, 5, 6, 7), (N, 5, 6, 1), (N, 1, 1, 7))}
    assert list(kinds.values()) == ["scalar", "column", "column", "full", "row", "general"]


@pytest.mark.parametrize("dtype", ["f16", "f64", "i32", "u8", "i64"])
def test_types(dtype: str) -> None:
    problem = harness.problem("transpose", {"x": (dtype, (3, 13))}, (dtype, (3, 13)), extra={"e": (dtype, (13,))},
                              expression=harness.chain([dtype, dtype], ("add", 0, 1), ("max", 2, 1)), perm=(0, 1))
    harness.check(Copy(), problem)


def test_identity() -> None:
    problem = harness.problem("transpose", {"x": ("f16", (3, 13))}, ("f16", (3, 13)), expression=identity("f16"), perm=(0, 1))
    harness.check(Copy(), problem)
