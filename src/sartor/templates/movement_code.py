"""What templates that move elements share: they move bits where there is nothing to compute, else values through the epilogue."""

from __future__ import annotations

from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Number, Value
from sartor.loops.target import Target
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.slots import Slots
from sartor.templates.vectors import can_mask, lanes_for
from sartor.types import BYTES

BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def computes(problem: Problem) -> bool:
    """Whether the layer has an expression that changes what it moves."""
    expression = problem.layer.expression
    return expression is not None and not expression.is_identity


class Mover:
    """The output of a moving layer, and how its inputs' elements are read and written.

    Inputs are declared by `source`; all slots, the epilogue's too, are among `slots`.
    """

    def __init__(self, slots: Slots, target: Target) -> None:
        self.b: Builder = slots.builder
        self.slots = slots
        self.problem = problem = slots.problem
        output = problem.output()
        self.plain = not computes(problem)
        self.element = BYTES[output.dtype]
        kinds = [problem.tensors[n].dtype for n in problem.layer.reads] + [output.dtype]
        kinds = [BITS[self.element]] if self.plain else [*kinds, *(working(k) for k in kinds)]
        self.lanes = lanes_for(target, kinds)
        self.masked = can_mask(target, kinds)
        name = problem.layer.outputs[0]
        self.y = self._bits(slots.pointer("y", name))
        self.y_pitch = slots.pitch("y_pitch", name)
        self.epilogue = Epilogue(self.b, problem, slots)

    def _bits(self, buffer: Buffer) -> Buffer:
        return self.b.retype(buffer, BITS[self.element]) if self.plain else buffer

    def source(self, name: str, value: str) -> Buffer:
        """Declares an input's pointer."""
        return self._bits(self.slots.pointer(name, value))

    def load(self, buffer: Buffer, index: Number, lanes: int = 1, mask: Value | None = None) -> Value:
        """Elements to be moved."""
        x = self.b.load(buffer, index, lanes, mask)
        return x if self.plain else widen(self.b, x)

    @property
    def gathers(self) -> bool:
        """Whether vectors can be gathered: elements of 4 or 8 bytes."""
        return self.lanes > 1 and (self.element >= 4 if self.plain else True)

    def gather(self, buffer: Buffer, indexes: Value, mask: Value | None = None) -> Value:
        """Elements to be moved, from anywhere."""
        x = self.b.gather(buffer, indexes, mask)
        return x if self.plain else widen(self.b, x)

    def result(self, x: Value, row: Number, column: Number, lanes: int, mask: Value | None = None) -> Value:
        """What is stored for moved elements that come to `row` and `column` of the output."""
        if self.plain:
            return self.b.broadcast(x, lanes)
        place = row if isinstance(row, Value) else self.b.constant(int(row), self.b.begin.type)
        return self.epilogue.apply(x, place, column, lanes, mask)

    def store(self, at: Number, x: Value, row: Number, column: Number, lanes: int = 1, mask: Value | None = None) -> None:
        """Stores moved elements at element `at` of the output."""
        self.b.store(self.y, at, self.result(x, row, column, lanes, mask), mask)

