"""Element-wise layers: any expression of any number of inputs, broadcast against each other.

The output's dims are joined where every operand is either present in all of them or broadcast along all of them.  What is
left is a nest of groups of rows around the columns.  Where all operands have the output's shape (or are scalars) the layer is one
flat run of elements; else it is a loop of rows, each a run along the columns, and rows that turn out to be dense when the
kernel runs are taken in one run too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.expression import Expression
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import emit_expression, present_in, widen
from sartor.templates.movement_code import BITS
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, cost, lanes_for
from sartor.templates.walk import runs
from sartor.types import BYTES

LONGEST = 8  # vectors after which short rows must come round again to be taken in whole vectors
WORK = 6000  # instructions, roughly, that are worth a slice of their own


@dataclass(frozen=True)
class Group:
    """Neighbouring dims taken as one: its size, and for each operand whether it has these dims (1), is broadcast along them (0),
    or a formula that says so when sizes are known.  `strides`: rows of each operand between two steps of the group."""

    size: Dim
    present: tuple[Dim, ...]
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class Shape:
    """Groups of the output's rows, innermost first, and the columns' `present` flags; operand 0 is the output."""

    groups: tuple[Group, ...]
    columns: Dim
    column: tuple[Dim, ...]

    @property
    def flat(self) -> bool:
        """Whether the whole layer is one run of elements when all pitches are dense."""
        if not self.groups:
            return True
        return len(self.groups) == 1 and self.joins

    @property
    def joins(self) -> bool:
        """Whether the innermost rows continue the columns where pitches are dense."""
        if not self.groups or any(not isinstance(p, int) for p in (*self.column, *self.groups[0].present)):
            return False
        return self.groups[0].present == self.column


def shape_of(problem: Problem) -> Shape:
    """The joined dims of an element-wise layer."""
    out = problem.output().shape or (1,)
    aligned = [out]
    for name in problem.layer.inputs:
        shape = problem.tensors[name].shape
        shape = shape[max(0, len(shape) - len(out)):]
        aligned.append((1,) * (len(out) - len(shape)) + shape)
    columns = out[-1]
    column = tuple(present_in(s[-1], columns) for s in aligned)
    groups: list[Group] = []
    outer: list[Dim] = [1] * len(aligned)
    for place in range(len(out) - 2, -1, -1):
        size = out[place]
        present = tuple(present_in(s[place], size) for s in aligned)
        if size != 1:
            known = all(isinstance(p, int) for p in present)
            if groups and known and groups[-1].present == present:
                groups[-1] = Group(groups[-1].size * size, present, groups[-1].strides)
            else:
                groups.append(Group(size, present, tuple(p * o for p, o in zip(present, outer, strict=True))))
        outer = [o * s[place] for o, s in zip(outer, aligned, strict=True)]
    if columns == 1:
        known = bool(groups) and all(isinstance(p, int) for p in groups[0].present)
        column = groups[0].present if known else (1,) * len(aligned)
    return Shape(tuple(groups), columns, column)


class Elementwise:
    """See the module."""

    name = "elementwise"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "elementwise" or problem.layer.expression is None:
            return False
        types = [problem.output().dtype, *(problem.tensors[n].dtype for n in problem.layer.inputs)]
        return all(t in BYTES for t in types)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"unroll": (1, 2, 4)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {"unroll": 4 if cost(problem.layer.expression) < 12 else 1}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        there, out = problem.tensors[value], problem.output()
        return there.shape == out.shape and BYTES[there.dtype] == BYTES[out.dtype]

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        shape = shape_of(problem)
        code = _Code(problem, shape, config, device)
        expression = problem.layer.expression
        elements = max(64, WORK * code.lanes // (2 + len(problem.layer.inputs) + cost(expression)))
        if shape.flat:
            code.flat()
            extent: Dim = problem.output().elements
            grain: Dim = elements // 64 * 64
        else:
            code.rows()
            extent, grain = problem.output().rows, maximum(1, ceildiv(elements, maximum(shape.columns, 1)))
        moved: Dim = problem.output().bytes
        for name in dict.fromkeys(problem.layer.inputs):
            moved = moved + problem.tensors[name].bytes
        call = KernelCall(code.b.finish(), code.slots.arguments, extent, grain=grain, bytes=moved)
        return Implementation((call,))


class _Code:
    """Writes the kernel."""

    def __init__(self, problem: Problem, shape: Shape, config: Config, device: Device) -> None:
        layer = problem.layer
        self.b = b = Builder("elementwise")
        self.slots = slots = Slots(b, problem)
        self.shape = shape
        self.expression: Expression = layer.expression  # type: ignore[assignment]
        self.unroll = int(config["unroll"])
        names = (layer.outputs[0], *layer.inputs)
        memory = [problem.tensors[n].dtype for n in names]
        computed = [n.dtype for n in self.expression.nodes if n.op != "constant"]
        self.moved = self.expression.moved
        if self.moved is not None:  # bits alone, so that a NaN stays the one it is
            memory, computed = [BITS[BYTES[t]] for t in memory], []
        self.lanes = lanes_for(device.target, [*memory, *computed])
        self.masked = can_mask(device.target, memory)
        self.buffers = [b.retype(slots.pointer("y" if i == 0 else f"x{i - 1}", n), t)
                        for i, (n, t) in enumerate(zip(names, memory, strict=True))]
        self.scalar: list[Value | None] = []
        self.pitches: list[Number] = []
        self.column = [c if isinstance(c, int) else slots.size(f"column{i}", c) for i, c in enumerate(shape.column)]
        for i, name in enumerate(names):
            rows = any(g.strides[i] != 0 for g in shape.groups)
            one = product(problem.tensors[name].shape) == 1 and i > 0
            self.scalar.append(widen(b, b.load(self.buffers[i])) if one else None)
            self.pitches.append(slots.pitch(f"pitch{i}", name) if rows and not one else 0)

    def computed(self, operands: Sequence[Value], lanes: int) -> Value:
        """The expression of the operands' elements."""
        result = emit_expression(self.b, self.expression, operands) if self.moved is None else operands[self.moved]
        return self.b.cast(self.b.broadcast(result, lanes), self.buffers[0].scalar)

    # --- one run of elements ---

    def run(self, offsets: Sequence[Number], length: Number, column: Number) -> None:
        """Computes `length` elements of one row from `column` on; `offsets` are where the row starts in each operand."""
        b = self.b
        first = {i: widen(b, b.load(self.buffers[i], offset)) for i, offset in enumerate(offsets)
                 if i and self.scalar[i] is None and isinstance(self.column[i], int) and self.column[i] == 0}

        def body(at: Value, lanes: int, mask: Value | None) -> None:
            operands: list[Value] = []
            for i in range(1, len(offsets)):
                whole = self.scalar[i]
                if whole is None:
                    whole = first[i] if i in first else self.load(i, offsets[i], at, lanes, mask)
                operands.append(whole)
            b.store(self.buffers[0], at + offsets[0], self.computed(operands, lanes), mask)

        stop = length if isinstance(column, int) and column == 0 else column + length
        along(b, column, stop, self.lanes, body, masked=self.masked, unroll=self.unroll)

    def load(self, operand: int, offset: Number, at: Value, lanes: int, mask: Value | None) -> Value:
        """Elements of an operand along the columns."""
        b, buffer, column = self.b, self.buffers[operand], self.column[operand]
        if isinstance(column, int):
            return widen(b, b.load(buffer, at + offset, lanes, mask))
        found = b.variable("operand", b.constant(0, Type(buffer.scalar, lanes)))
        with b.branch(column.eq(1)):
            found.set(b.load(buffer, at + offset, lanes, mask))
        with b.otherwise():
            found.set(b.load(buffer, offset))
        return widen(b, found.get())

    # --- the layer as one run ---

    def flat(self) -> None:
        """The extent counts elements; rows matter only where a pitch is not dense."""
        b, shape = self.b, self.shape
        if not shape.groups:
            self.run([0] * len(self.buffers), b.end - b.begin, b.begin)
            return
        columns = self.slots.size("columns", shape.columns)
        with b.branch(self.dense(columns)):
            self.run([0] * len(self.buffers), b.end - b.begin, b.begin)
        with b.otherwise():
            row = b.variable("row", b.begin // columns)
            column = b.variable("column", b.begin - row.get() * columns)
            at = b.variable("at", b.begin)
            with b.repeat_while() as test:
                b.proceed(test, at.get() < b.end)
                length = b.minimum(columns - column.get(), b.end - at.get())
                start = row.get()
                self.run([0 if isinstance(p, int) else start * p for p in self.pitches], length, column.get())
                at.set(at.get() + length)
                row.set(row.get() + 1)
                column.set(0)

    def dense(self, columns: Value) -> Value:
        """Whether the rows of all operands that have rows follow each other without gaps."""
        b, found = self.b, None
        for pitch in dict.fromkeys(p for p in self.pitches if isinstance(p, Value)):
            same = pitch.eq(columns)
            found = same if found is None else found & same
        return b.constant(True, Type("bool")) if found is None else found

    # --- the layer as rows ---

    def rows(self) -> None:
        """The extent counts rows of the output."""
        b, groups = self.b, self.shape.groups
        columns = self.slots.known("columns", self.shape.columns)
        sizes = [self.slots.size("group", g.size) for g in groups[:-1]]
        steps = [[self.step(i, s) for i, s in enumerate(g.strides)] for g in groups]

        def run(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            bases: list[Number] = []
            for i in range(len(self.buffers)):
                base: Number = 0
                for place, step in zip(places, steps[1:], strict=True):
                    if isinstance(step[i], Value):
                        base = place * step[i] + base
                bases.append(base)
            self.some_rows(bases, steps[0], first, stop - first, columns)

        runs(b, sizes, run)

    def step(self, operand: int, stride: Dim) -> Number:
        """Elements between two steps of a group: rows times the pitch; 0 where the operand is broadcast."""
        pitch = self.pitches[operand]
        if isinstance(pitch, int) or (isinstance(stride, int) and stride == 0):
            return 0
        if isinstance(stride, int) and stride == 1:
            return pitch
        return self.slots.size("stride", stride) * pitch

    # --- short rows of known length ---

    def period(self) -> int:
        """After how many vectors the columns of dense rows come round again, where rows are best taken so; else 0.

        Every operand must either have the innermost rows and the columns or be broadcast along these rows.
        """
        columns, group = self.shape.columns, self.shape.groups[0]
        if not isinstance(columns, int) or columns == 1 or columns % self.lanes == 0 or self.shape.joins:
            return 0
        flags = list(zip(group.present, self.shape.column, strict=True))
        if any(not isinstance(present, int) or not isinstance(column, int) or (present and not column) for present, column in flags):
            return 0
        vectors = columns // gcd(columns, self.lanes)
        return vectors if vectors <= LONGEST else 0

    def repeated(self, bases: Sequence[Number], first: Value, count: Value, columns: int, period: int) -> None:
        """Dense rows as one run, in steps after which the columns begin anew; column operands stay in registers."""
        b, lanes = self.b, self.lanes
        present = self.shape.groups[0].present
        start = first * columns
        offsets = [start + base if p == 1 else base for base, p in zip(bases, present, strict=True)]
        patterns: dict[int, list[Value]] = {}
        for i in range(1, len(bases)):
            if self.scalar[i] is None and present[i] == 0:
                places = [(b.iota(lanes, "i32") + v * lanes) % columns for v in range(period)]
                there = b.offset(self.buffers[i], offsets[i])
                varies = self.column[i] == 1
                patterns[i] = [widen(b, b.gather(there, p) if varies else b.broadcast(b.load(there), lanes)) for p in places]

        def compute(at: Value, wide: int, vector: int | None) -> None:
            operands: list[Value] = []
            for i in range(1, len(bases)):
                same = self.scalar[i]
                if same is None and i in patterns:
                    place = 0 if self.column[i] == 0 else at % columns
                    same = patterns[i][vector] if vector is not None else widen(b, b.load(self.buffers[i], place + offsets[i]))
                operands.append(widen(b, b.load(self.buffers[i], at + offsets[i], wide)) if same is None else same)
            b.store(self.buffers[0], at + offsets[0], self.computed(operands, wide))

        total = count * columns
        whole = total - total % (period * lanes)
        with b.loop("i", 0, whole, period * lanes) as at:
            for vector in range(period):
                compute(at + vector * lanes, lanes, vector)
        with b.loop("i", whole, total) as at:
            compute(at, 1, None)

    def some_rows(self, bases: Sequence[Number], steps: Sequence[Number], first: Value, count: Value, columns: Number) -> None:
        """`count` rows of the innermost group from `first` on."""
        b = self.b

        def each() -> None:
            with b.loop("row", first, first + count) as row:
                offsets = [base if isinstance(step, int) else row * step + base for base, step in zip(bases, steps, strict=True)]
                self.run(offsets, columns, 0)

        period = self.period()
        if period and isinstance(columns, int):
            with b.branch(self.dense(b.constant(columns, I64))):
                self.repeated(bases, first, count, columns, period)
            with b.otherwise():
                each()
            return
        if not self.shape.joins:
            each()
            return
        width = columns if isinstance(columns, Value) else b.constant(columns, I64)
        with b.branch(self.dense(width)):
            offsets = [base if isinstance(step, int) else first * step + base for base, step in zip(bases, steps, strict=True)]
            self.run(offsets, count * width, 0)
        with b.otherwise():
            each()
