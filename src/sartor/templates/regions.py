"""Pooling of regions of interest, vectorised over channels: RoiAlign's average or maximum of sampled points, MaxRoiPool's maximum.

Points outside of the image count as zeros, and where the number of points follows from a region's size only those that may lie
inside are visited: a region far too large costs no more than one of the image's size.  A region of an image that does not exist
is zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Builder, Type, Value
from sartor.sizes import ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless, RowTable
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.reduction import tiles
from sartor.templates.slots import Slots
from sartor.templates.vectors import can_mask, lanes_for

WORK = 1 << 9  # outputs worth a slice of their own
FAR = 1e9  # to which coordinates are limited before they become integers


class Regions(Knobless):
    """See the module."""

    name = "regions"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "regions" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value in problem.layer.inputs[1:]

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = (_MaxCode if problem["mode"] == "bins" else _SampleCode)(problem, device)
        code.write()
        grain = maximum(1, ceildiv(WORK, maximum(problem.output().columns, 1)))
        call = KernelCall(code.b.finish(), (*code.slots.arguments, *code.epilogue.arguments()), problem.output().rows, grain=grain,
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code(ABC):
    """What both have: operands, and the walk over output pixels."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.b = b = Builder(f"regions_{problem['mode']}")
        self.problem = problem
        x, out = problem.input(0), problem.output()
        self.scalar = working(x.dtype)
        kinds = [x.dtype, self.scalar, out.dtype]
        self.lanes, self.masked = lanes_for(device.target, kinds), can_mask(device.target, kinds)
        self.slots = slots = Slots(b, problem)
        data, boxes, images = problem.layer.inputs
        table = RowTable(data, x.shape[0], x.shape[1], x.shape[2], 0, 0)
        self.x, self.x_pitch = slots.rows("x", table), slots.pitch("x_pitch", data)
        self.boxes, self.images = slots.pointer("boxes", boxes), slots.pointer("images", images)
        self.y, self.y_pitch = slots.pointer("y", problem.layer.outputs[0]), slots.pitch("y_pitch", problem.layer.outputs[0])
        self.batch = slots.size("batch", x.shape[0])
        self.height, self.width = slots.size("height", x.shape[1]), slots.size("width", x.shape[2])
        self.rows, self.columns = int(out.shape[1]), int(out.shape[2])  # type: ignore[arg-type]
        self.channels = slots.known("channels", out.columns)
        self.epilogue = Epilogue(b, problem)

    def write(self) -> None:
        """Emits the kernel's loops."""
        b = self.b
        with b.loop("pixel", b.begin, b.end) as pixel:
            line = pixel // self.columns
            region = line // self.rows
            image = b.load(self.images, region)
            there = (image >= 0) & (image < self.batch)
            box = [widen(b, b.load(self.boxes, region * 4 + k)) for k in range(4)]
            self.pixel(pixel, b.select(there, image, 0), there, box, line - region * self.rows, pixel - line * self.columns)

    @abstractmethod
    def pixel(self, pixel: Value, image: Value, there: Value, box: list[Value], row: Value, column: Value) -> None:
        """Emits one output pixel, all channels."""

    def put(self, pixel: Value, column: Value, lanes: int, mask: Value | None, value: Value) -> None:
        at = pixel * self.y_pitch + column
        self.b.store(self.y, at, self.epilogue.apply(value, pixel, column, lanes, mask), mask)

    def number(self, value: Value) -> Value:
        return self.b.cast(value, self.scalar)

    def whole(self, value: Value) -> Value:
        """A coordinate without its fraction as i64; 0 for NaN."""
        b = self.b
        value = b.select(value.ne(value), 0.0, value)
        return b.cast(b.maximum(b.minimum(value, FAR), -FAR), "i64")

    def fetch(self, image: Value, y: Value, x: Value, column: Value, lanes: int, mask: Value | None) -> Value:
        buffer = self.b.row(self.x, image * self.height + y)
        return widen(self.b, self.b.load(buffer, x * self.x_pitch + column, lanes, mask))


class _SampleCode(_Code):
    """RoiAlign."""

    def along_axis(self, low: Value, high: Value, bins: int, bin_: Value, size: Value) -> tuple[Value, Value, Value, Value, Value]:
        """Of one axis the first point's place and the points' distance, first and end of those to visit, and their number."""
        b, sampling = self.b, int(self.problem["sampling"])
        scale, offset = float(self.problem["scale"]), float(self.problem["offset"])
        start, end = low * scale - offset, high * scale - offset
        extent = end - start
        if not offset:
            extent = b.maximum(extent, 1.0)
        span = extent / float(bins)
        origin = start + self.number(bin_) * span
        if sampling > 0:
            count = b.constant(float(sampling), Type(self.scalar))
            return origin, span / count, b.constant(0, I64), b.constant(sampling, I64), count
        count = b.unary("ceil", span)
        count = b.select(count > 0.0, count, 0.0)
        step = span / b.maximum(count, 1.0)
        total = self.whole(count)
        first = b.minimum(b.maximum(self.whole(b.unary("floor", (-1.0 - origin) / step)) - 1, 0), total)
        last = b.minimum(b.maximum(self.whole(b.unary("ceil", (self.number(size) - origin) / step)) + 1, first), total)
        return origin, step, first, last, count

    def pixel(self, pixel: Value, image: Value, there: Value, box: list[Value], row: Value, column: Value) -> None:
        b, average = self.b, self.problem["mode"] == "average"
        vertical = self.along_axis(box[1], box[3], self.rows, row, self.height)
        across = self.along_axis(box[0], box[2], self.columns, column, self.width)
        points = vertical[4] * across[4]
        visited = self.number((vertical[3] - vertical[2]) * (across[3] - across[2]))

        def tile(channel: Value, _vectors: int, lanes: int, mask: Value | None) -> None:
            zero = b.constant(0.0, Type(self.scalar, lanes))
            start = zero if average else b.select(b.broadcast(visited < points, lanes), zero, float("-inf"))
            total = b.variable("total", start)
            with b.branch(there):
                with b.loop("i", vertical[2], vertical[3]) as i, b.loop("j", across[2], across[3]) as j:
                    y = vertical[0] + (self.number(i) + 0.5) * vertical[1]
                    x = across[0] + (self.number(j) + 0.5) * across[1]
                    self.sample(total, image, y, x, channel, lanes, mask, average)
            result = total.get() / b.maximum(points, 1.0) if average else total.get()
            result = b.select(there & (points > 0.0), result, 0.0)
            self.put(pixel, channel, lanes, mask, result)

        tiles(b, 0, self.channels, self.lanes, 1, tile, masked=self.masked)

    def sample(self, total: Any, image: Value, y: Value, x: Value, channel: Value, lanes: int, mask: Value | None,
               average: bool) -> None:
        """Takes in one point: the four pixels around it, each times its weight."""
        b = self.b
        inside = (y >= -1.0) & (y <= self.number(self.height)) & (x >= -1.0) & (x <= self.number(self.width))
        with b.branch(inside):
            (top, bottom, above, below), (left, right, before, behind) = self.corners(y, self.height), self.corners(x, self.width)
            terms = [self.fetch(image, i, j, channel, lanes, mask) * (u * v)
                     for i, u in ((top, above), (bottom, below)) for j, v in ((left, before), (right, behind))]
            if average:
                total.set(total.get() + (((terms[0] + terms[1]) + terms[2]) + terms[3]))
            else:
                for term in terms:
                    total.set(b.maximum(term, total.get()))
        if not average:
            with b.otherwise():
                total.set(b.maximum(total.get(), 0.0))

    def corners(self, at: Value, size: Value) -> tuple[Value, Value, Value, Value]:
        """The two pixels around a place along an axis, and what each counts."""
        b = self.b
        at = b.maximum(at, 0.0)
        low = self.whole(at)
        last = low >= size - 1
        low = b.select(last, size - 1, low)
        high = b.select(last, low, low + 1)
        part = b.select(last, 0.0, at - self.number(low))
        return low, high, 1.0 - part, part


class _MaxCode(_Code):
    """MaxRoiPool."""

    def rounded(self, value: Value) -> Value:
        """The nearest whole number, halves away from zero."""
        b = self.b
        value = value * float(self.problem["scale"])
        return self.whole(b.unary("trunc", value + b.binary("copysign", b.constant(0.5, value.type), value)))

    def bounds(self, low: Value, high: Value, bins: int, bin_: Value, size: Value) -> tuple[Value, Value]:
        """First and end of a bin's pixels along one axis."""
        b = self.b
        start, end = self.rounded(low), self.rounded(high)
        span = self.number(b.maximum(end - start + 1, 1)) / float(bins)
        first = self.whole(b.unary("floor", self.number(bin_) * span)) + start
        last = self.whole(b.unary("ceil", self.number(bin_ + 1) * span)) + start
        return b.minimum(b.maximum(first, 0), size), b.minimum(b.maximum(last, 0), size)

    def pixel(self, pixel: Value, image: Value, there: Value, box: list[Value], row: Value, column: Value) -> None:
        b = self.b
        top, bottom = self.bounds(box[1], box[3], self.rows, row, self.height)
        left, right = self.bounds(box[0], box[2], self.columns, column, self.width)
        some = there & (top < bottom) & (left < right)

        def tile(channel: Value, _vectors: int, lanes: int, mask: Value | None) -> None:
            best = b.variable("best", b.constant(float("-inf"), Type(self.scalar, lanes)))
            with b.branch(some):
                with b.loop("i", top, bottom) as i, b.loop("j", left, right) as j:
                    best.set(b.maximum(self.fetch(image, i, j, channel, lanes, mask), best.get()))
            with b.otherwise():
                best.set(0.0)
            self.put(pixel, channel, lanes, mask, best.get())

        tiles(b, 0, self.channels, self.lanes, 1, tile, masked=self.masked)
