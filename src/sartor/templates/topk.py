"""The places of the k largest or smallest elements along one dim, best first; among equals the lower index comes first.

Each line keeps a heap of the places of its best elements so far with the worst of them at the root, which is then emptied from
the last place to the first.  A NaN counts as larger than all numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Buffer, Builder, Value
from sartor.sizes import ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import widen
from sartor.templates.slots import Slots
from sartor.types import BYTES

WORK = 1 << 11  # elements worth a slice of their own


class TopK:
    """See the module."""

    name = "topk"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "topk" and problem.input(0).dtype in BYTES and problem.input(0).dtype != "bool"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return True

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        shape, axis = problem.input(0).shape, problem["axis"]
        count = problem.output().shape[axis]
        code = _Code(problem)
        code.write()
        extent = product((*shape[:axis], *shape[axis + 1:]))
        grain = maximum(1, ceildiv(WORK, maximum(shape[axis], 1)))
        call = KernelCall(code.b.finish(), code.slots.arguments, extent, grain=grain, scratch=8 * maximum(count, 1),
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel: x is [before, length, after], y [before, count, after]."""

    def __init__(self, problem: Problem) -> None:
        self.b = b = Builder("topk")
        self.slots = slots = Slots(b, problem)
        shape, axis = problem.input(0).shape, problem["axis"]
        self.largest: bool = problem["largest"]
        self.x = slots.pointer("x", problem.layer.inputs[0])
        self.y = slots.pointer("y", problem.layer.outputs[0])
        self.length, self.after = slots.size("length", shape[axis]), slots.size("after", product(shape[axis + 1:]))
        self.count = slots.size("count", problem.output().shape[axis])
        self.heap = b.scratch("i64")

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        with b.branch(self.count > 0), b.loop("line", b.begin, b.end) as line:
            before = line // self.after
            column = line - before * self.after
            x = self.x.at(before * self.length * self.after + column)
            with b.loop("i", 0, self.length) as i:
                with b.branch(i < self.count):
                    self.rise(x, i)
                with b.otherwise(), b.branch(self.ahead(x, i, b.load(self.heap, 0))):
                    self.sink(x, i, self.count)
            y = self.y.at(before * self.count * self.after + column)
            with b.loop("taken", 0, self.count) as taken:
                last = self.count - 1 - taken
                b.store(y, last * self.after, b.load(self.heap, 0))
                self.sink(x, b.load(self.heap, last), last)

    def ahead(self, x: Buffer, i: Value, j: Value) -> Value:
        """Whether element i comes before element j."""
        b = self.b
        p, q = (widen(b, b.load(x, place * self.after)) for place in (i, j))
        more, same = (p > q if self.largest else p < q), p.eq(q)
        if p.type.is_float:
            above, below = (p, q) if self.largest else (q, p)
            more = more | (above.ne(above) & below.eq(below))
            same = same | (p.ne(p) & q.ne(q))
        return more | (same & (i < j))

    def rise(self, x: Buffer, i: Value) -> None:
        """Adds element i to a heap of i elements."""
        b, at = self.b, self.b.variable("at", i)
        with b.repeat_while() as test:
            inside = at.get() > 0
            parent = b.load(self.heap, b.maximum(at.get() - 1, 0) >> 1)
            b.proceed(test, inside & self.ahead(x, b.select(inside, parent, i), i))
            place = at.get()
            above = (place - 1) >> 1
            b.store(self.heap, place, b.load(self.heap, above))
            at.set(above)
        b.store(self.heap, at.get(), i)

    def sink(self, x: Buffer, i: Value, size: Value) -> None:
        """Puts element i in the place of the root of a heap of `size` elements."""
        b = self.b
        at, following = b.variable("at", b.constant(0, I64)), b.variable("following", b.constant(1, I64))
        with b.repeat_while() as test:
            b.proceed(test, following.get() < size)
            left = following.get()
            right = b.minimum(left + 1, size - 1)
            worse = b.select(self.ahead(x, b.load(self.heap, left), b.load(self.heap, right)), right, left)
            child = b.load(self.heap, worse)
            with b.branch(self.ahead(x, i, child)):
                b.store(self.heap, at.get(), child)
                at.set(worse)
                following.set(worse * 2 + 1)
            with b.otherwise():
                following.set(size)
        b.store(self.heap, at.get(), i)
