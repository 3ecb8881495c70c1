"""Determinants of square matrices: elimination with the largest element of the column as pivot, in f64.

Each matrix is copied to scratch and eliminated there; the determinant is the product of the pivots, its sign that of the row swaps.
"""

from __future__ import annotations

from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Builder, Type, Value
from sartor.sizes import ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for

WORK = 1 << 12  # elements of matrices worth a slice of their own


class Determinant(Knobless):
    """See the module."""

    name = "determinant"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "determinant" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("determinant")
        slots = Slots(b, problem)
        shape = problem.input(0).shape
        x, y = slots.pointer("x", problem.layer.inputs[0]), slots.pointer("y", problem.layer.outputs[0])
        n = slots.size("n", shape[-1])
        a = b.scratch("f64")
        lanes, masked = lanes_for(device.target, ["f64"]), can_mask(device.target, ["f64"])
        with b.loop("matrix", b.begin, b.end) as matrix:
            base = matrix * n * n
            with b.loop("i", 0, n * n) as i:
                b.store(a, i, b.cast(widen(b, b.load(x, base + i)), "f64"))
            result = b.variable("result", b.constant(1.0, Type("f64")))
            with b.loop("k", 0, n) as k:
                row = k * n
                pivot = _pivot_row(b, a, k, n)
                with b.branch(pivot.ne(k)):
                    result.set(-result.get())
                    with b.loop("c", k, n) as c:
                        upper, lower = b.load(a, row + c), b.load(a, pivot * n + c)
                        b.store(a, row + c, lower)
                        b.store(a, pivot * n + c, upper)
                top = b.load(a, row + k)
                result.set(result.get() * top)
                with b.branch(top.ne(0.0)), b.loop("r", k + 1, n) as r:
                    factor = b.load(a, r * n + k) / top

                    def eliminate(c: Value, lanes: int, mask: Value | None, factor: Value = factor, r: Value = r, row: Value = row) -> None:
                        at = r * n + c
                        b.store(a, at, b.load(a, at, lanes, mask) - factor * b.load(a, row + c, lanes, mask), mask)

                    along(b, k + 1, n, lanes, eliminate, masked=masked)
            b.store(y, matrix, b.cast(b.cast(result.get(), "f32") if y.scalar in ("f16", "bf16") else result.get(), y.scalar))
        size = shape[-1] * shape[-1]
        call = KernelCall(b.finish(), slots.arguments, product(shape[:-2]), grain=maximum(1, ceildiv(WORK, maximum(size, 1))),
                          scratch=8 * maximum(size, 1), bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


def _pivot_row(b: Builder, a: Any, k: Value, n: Value) -> Value:
    """The row from k on whose element in column k is largest in magnitude; the first that is NaN."""
    best, place = b.variable("best", b.constant(-1.0, Type("f64"))), b.variable("place", b.constant(0, I64))
    with b.loop("r", k, n) as r:
        x = b.unary("abs", b.load(a, r * n + k))
        larger = (x > best.get()) | (x.ne(x) & best.get().eq(best.get()))
        best.set(b.select(larger, x, best.get()))
        place.set(b.select(larger, r, place.get()))
    return place.get()
