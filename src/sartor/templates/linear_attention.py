"""The time loop of linear attention: a matrix a head that fades, takes in a key and a value each step, and is read by queries.

The columns of that matrix never meet, so a task takes a head and a few vectors of columns through all steps, the matrix staying in its
scratch: the products with the key before and after the step, and with the queries, are sums over its rows.
"""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Number, Type, Value
from sartor.sizes import ceildiv
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

VECTORS = 4
"""Vectors of columns of a task."""


class LinearAttention(Knobless):
    """See the module."""

    name = "linear_attention"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "linear_attention" or problem.input(0).dtype not in ("f32", "f64"):
            return False
        return all(isinstance(d, int) and d > 0 for i in range(3) for d in problem.input(i).shape[2:])

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        batch, steps, heads, depth = problem.input(0).shape
        _, _, groups, columns = problem.input(2).shape
        call = KernelCall(
            code.b.finish(), code.slots.arguments, batch * groups * ceildiv(columns, code.width), chunk=1,
            scratch=code.depth * code.width * BYTES[code.scalar], multiply_adds=batch * steps * (groups * 2 + heads) * depth * columns,
            bytes=sum((problem.input(i).bytes for i in range(3)), problem.output().bytes))
        return Implementation((call,))


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.b = b = Builder("linear_attention")
        self.slots = slots = Slots(b, problem)
        self.scalar = problem.input(0).dtype
        self.heads, self.depth = (int(d) for d in problem.input(0).shape[2:])  # type: ignore[arg-type]
        self.groups, self.columns = (int(d) for d in problem.input(2).shape[2:])  # type: ignore[arg-type]
        self.scale = float(problem["scale"])
        self.lanes, self.masked = lanes_for(device.target, [self.scalar]), can_mask(device.target, [self.scalar])
        self.width = min(VECTORS, -(-self.columns // self.lanes)) * self.lanes
        names = ("q", "k", "v", "state", "decay", "beta")
        given = [slots.pointer(label, v) if v else None for label, v in zip(names, problem.layer.inputs, strict=True)]
        self.q, self.k, self.v, self.state, self.decay, self.beta = given
        self.y = slots.pointer("y", problem.layer.outputs[0])
        tensors = problem.tensors
        self.decays = int(tensors[problem.layer.inputs[4]].columns) if self.decay is not None else 0  # type: ignore[arg-type]
        self.betas = int(tensors[problem.layer.inputs[5]].columns) if self.beta is not None else 0  # type: ignore[arg-type]
        self.steps = slots.size("steps", problem.input(0).shape[1])
        self.matrix = b.scratch(self.scalar)

    def write(self) -> None:
        """Emits the whole kernel."""
        b, blocks = self.b, -(-self.columns // self.width)
        with b.loop("item", b.begin, b.end) as item:
            head = item // blocks  # of all groups of heads
            first = (item - head * blocks) * self.width
            count = b.minimum(self.columns - first, self.width)
            image = head // self.groups
            group = head - image * self.groups
            rows = head * (self.steps * (self.heads // self.groups) + self.depth)  # of the result, of this head
            self.matrix_rows(head * self.depth, first, count, load=True)
            with b.loop("t", 0, self.steps, unroll=1) as t:
                self.step((image * self.steps + t), group, rows + t * (self.heads // self.groups), first, count)
            self.matrix_rows(rows + self.steps * (self.heads // self.groups), first, count, load=False)

    def matrix_rows(self, row: Value, first: Value, count: Number, load: bool) -> None:
        """Brings the matrix in from the state of before, or out to the rows of the result from `row` on."""
        b = self.b
        with b.loop("d", 0, self.depth, unroll=1) as d:
            at, here = (row + d) * self.columns + first, d * self.width

            def body(e: Value, lanes: int, mask: Value | None, at: Value = at, here: Value = here) -> None:
                if not load:
                    b.store(self.y, at + e, b.load(self.matrix, here + e, lanes, mask), mask)
                    return
                zero = b.constant(0.0, Type(self.scalar, lanes))
                b.store(self.matrix, here + e, zero if self.state is None else b.load(self.state, at + e, lanes, mask), mask)

            along(b, 0, count, self.lanes, body, masked=self.masked)

    def step(self, place: Value, group: Value, row: Value, first: Value, count: Number) -> None:
        """One step: `place` is that of the image and step, `row` where the results of this head's queries go."""
        b = self.b
        assert self.q is not None and self.k is not None and self.v is not None
        head = place * self.groups + group
        keys = self.k.at(head * self.depth)
        values = self.v.at(head * self.columns + first)
        decays = None if self.decay is None else self.decay.at(head * self.decays)
        ratio = self.heads // self.groups
        queries = self.q.at((place * self.heads + group * ratio) * self.depth)

        def body(e: Value, lanes: int, mask: Value | None) -> None:
            value = b.load(values, e, lanes, mask)
            zero = b.constant(0.0, Type(self.scalar, lanes))

            def faded(d: Value) -> Value:
                old = b.load(self.matrix, d * self.width + e, lanes, mask)
                return old if decays is None else old * b.broadcast(b.load(decays, d if self.decays > 1 else 0), lanes)

            def key(d: Value) -> Value:
                return b.broadcast(b.load(keys, d), lanes)

            if self.beta is not None:
                known = b.variable("known", zero)
                with b.loop("d", 0, self.depth) as d:
                    known.set(b.fma(key(d), faded(d), known.get()))
                rate = b.load(self.beta, place * self.betas + (group if self.betas > 1 else 0))
                value = (value - known.get()) * b.broadcast(rate, lanes)
            with b.loop("d", 0, self.depth) as d:
                b.store(self.matrix, d * self.width + e, b.fma(key(d), value, faded(d)), mask)
            with b.loop("r", 0, ratio, unroll=1) as r:
                total = b.variable("total", zero)
                with b.loop("d", 0, self.depth) as d:
                    query = b.broadcast(b.load(queries, r * self.depth + d), lanes)
                    total.set(b.fma(query, b.load(self.matrix, d * self.width + e, lanes, mask), total.get()))
                b.store(self.y, (row + r) * self.columns + first + e, total.get() * self.scale, mask)

        along(b, 0, count, self.lanes, body, masked=self.masked)
