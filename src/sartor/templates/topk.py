"""The places of the k largest or smallest elements along one dim, best first; among equals the lower index comes first.

Each line keeps a heap of the places of its best elements so far with the worst of them at the root, which is then emptied from
the last place to the first.  A NaN counts as larger than all numbers.
"""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Value
from sartor.sizes import ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen
from sartor.templates.heap import Heap, ahead
from sartor.templates.slots import Slots
from sartor.types import BYTES

WORK = 1 << 11  # elements worth a slice of their own


class TopK(Knobless):
    """See the module."""

    name = "topk"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "topk" and problem.input(0).dtype in BYTES and problem.input(0).dtype != "bool"

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
            heap = Heap(b, self.heap, lambda i, j: self.ahead(x, j, i))
            with b.loop("i", 0, self.length) as i:
                with b.branch(i < self.count):
                    heap.rise(i, i)
                with b.otherwise(), b.branch(self.ahead(x, i, b.load(self.heap, 0))):
                    heap.sink(i, self.count)
            y = self.y.at(before * self.count * self.after + column)
            with b.loop("taken", 0, self.count) as taken:
                last = self.count - 1 - taken
                b.store(y, last * self.after, b.load(self.heap, 0))
                heap.sink(b.load(self.heap, last), last)

    def ahead(self, x: Buffer, i: Value, j: Value) -> Value:
        """Whether element i comes before element j."""
        p, q = (widen(self.b, self.b.load(x, place * self.after)) for place in (i, j))
        more, same = ahead(self.b, p, q, self.largest)
        return more | (same & (i < j))
