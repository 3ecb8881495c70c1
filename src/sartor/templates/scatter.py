"""Scatter: rows written, or combined with what is there, at places that indices choose.

Each slice copies its own rows of the output and then goes through all indices, taking those that fall into it: updates of one row
come in their order whatever the slices, and an index outside of the output is in no slice, so that nothing outside is ever written.
"""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Value
from sartor.sizes import ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen
from sartor.templates.movement_code import BITS
from sartor.templates.reduction import extreme
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

WORK = 1 << 13  # elements worth a slice of their own


class Scatter(Knobless):
    """See the module."""

    name = "scatter"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "scatter":  # other kinds may have no input
            return False
        dtype = problem.input(0).dtype
        return dtype in BYTES and (problem["op"] == "none" or dtype != "bool")

    def in_place(self, problem: Problem, value: str) -> bool:
        return value not in problem.layer.inputs[1:]

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("scatter")
        slots = Slots(b, problem)
        op, scalar = problem["op"], problem.output().dtype
        held = BITS[BYTES[scalar]] if op == "none" else scalar
        data, indices, updates = problem.layer.inputs
        x, u = (b.retype(slots.pointer(n, v), held) for n, v in (("x", data), ("updates", updates)))
        places, y = slots.pointer("indices", indices), b.retype(slots.pointer("y", problem.layer.outputs[0]), held)
        columns, count = slots.known("columns", problem.output().columns), slots.size("count", problem.input(1).elements)
        lanes, masked = lanes_for(device.target, [held]), can_mask(device.target, [held])

        def copy(at: Value, lanes: int, mask: Value | None) -> None:
            b.store(y, at, b.load(x, at, lanes, mask), mask)

        along(b, b.begin * columns, b.end * columns, lanes, copy, masked=masked)
        with b.loop("m", 0, count) as m:
            place = b.load(places, m)
            with b.branch((place >= b.begin) & (place < b.end)):
                source, target = m * columns, place * columns

                def write(at: Value, lanes: int, mask: Value | None) -> None:
                    new = b.load(u, source + at, lanes, mask)
                    if op != "none":
                        old = b.load(y, target + at, lanes, mask)
                        new = b.cast(_combined(b, op, widen(b, old), widen(b, new)), held)
                    b.store(y, target + at, new, mask)

                along(b, 0, columns, lanes, write, masked=masked)
        grain = maximum(1, ceildiv(WORK, maximum(problem.output().columns, 1)))
        moved = 2 * problem.output().bytes + problem.input(1).bytes + 2 * problem.input(2).bytes
        return Implementation((KernelCall(b.finish(), slots.arguments, problem.output().rows, grain=grain, bytes=moved),))


def _combined(b: Builder, op: str, old: Value, new: Value) -> Value:
    return extreme(b, op, old, new) if op in ("min", "max") else b.binary(op, old, new)
