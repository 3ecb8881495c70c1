"""Running sums and products along one dim: a vector of columns at a time, from one end of the dim to the other."""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Type, Value
from sartor.sizes import ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen, working
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.templates.walk import runs
from sartor.types import BYTES

WORK = 1 << 12  # elements worth a slice of their own


class Cumulative(Knobless):
    """See the module."""

    name = "cumulative"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "cumulative" and problem.input(0).dtype in BYTES and problem.input(0).dtype != "bool"

    def in_place(self, problem: Problem, value: str) -> bool:
        return True

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("cumulative")
        slots = Slots(b, problem)
        x, y = slots.pointer("x", problem.layer.inputs[0]), slots.pointer("y", problem.layer.outputs[0])
        shape, axis, scalar = problem.input(0).shape, problem["axis"], problem.input(0).dtype
        length, after = slots.known("length", shape[axis]), slots.known("after", product(shape[axis + 1:]))
        lanes, masked = lanes_for(device.target, [scalar, working(scalar)]), can_mask(device.target, [scalar, working(scalar)])
        neutral = b.constant(1 if problem["op"] == "prod" else 0, Type(working(scalar)))
        code = "mul" if problem["op"] == "prod" else "add"

        def columns(places: list[Value], first: Value, stop: Value, flat: Value) -> None:
            base = places[0] * length * after

            def some(column: Value, lanes: int, mask: Value | None) -> None:
                total = b.variable("total", b.broadcast(neutral, lanes))
                with b.loop("i", 0, length) as i:
                    place = length - 1 - i if problem["reverse"] else i
                    at = base + place * after + column
                    before = total.get()
                    total.set(b.binary(code, before, widen(b, b.load(x, at, lanes, mask))))
                    b.store(y, at, b.cast(before if problem["exclusive"] else total.get(), scalar), mask)

            along(b, first, stop, lanes, some, masked=masked)

        runs(b, [after], columns)
        extent = product((*shape[:axis], *shape[axis + 1:]))
        grain = maximum(1, ceildiv(WORK, maximum(shape[axis], 1)))
        return Implementation((KernelCall(b.finish(), slots.arguments, extent, grain=grain, bytes=2 * problem.output().bytes),))
