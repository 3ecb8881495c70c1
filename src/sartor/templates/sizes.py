"""Layers that write what binding knows: sizes, and counting."""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Value
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import Epilogue
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask


class Sizes(Knobless):
    """`sizes`: a vector (or scalar) of sizes."""

    name = "sizes"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "sizes"

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("sizes")
        slots = Slots(b, problem)
        y = slots.pointer("y", problem.layer.outputs[0])
        values = [slots.size("size", dim) for dim in problem["dims"]]
        epilogue = Epilogue(b, problem, slots)
        with b.loop("row", b.begin, b.end) as row:
            for column, value in enumerate(values):
                b.store(y, column, epilogue.apply(value, row, column, 1))
        return Implementation((KernelCall(b.finish(), slots.arguments, 1),))


class Iota(Knobless):
    """`iota`: 0, 1, 2, ..."""

    name = "iota"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "iota"

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("iota")
        slots = Slots(b, problem)
        y = slots.pointer("y", problem.layer.outputs[0])
        epilogue = Epilogue(b, problem, slots)

        def body(at: Value, lanes: int, mask: Value | None) -> None:
            b.store(y, at, epilogue.apply(b.iota(lanes) + at, b.constant(0, at.type), at, lanes, mask), mask)

        masked = can_mask(device.target, [problem.output().dtype])
        along(b, b.begin, b.end, device.lanes("i64"), body, masked=masked)
        return Implementation((KernelCall(b.finish(), slots.arguments, problem.output().elements, grain=4096),))
