"""Layers whose results are places: those of elements that are not zero, and those of rows in ascending order."""

from __future__ import annotations

from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Builder, Value
from sartor.sizes import maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen
from sartor.templates.heap import Heap, ahead
from sartor.templates.slots import Slots
from sartor.types import BYTES


class Nonzero(Knobless):
    """`nonzero`: one pass that notes the places it meets, and never more of them than there is room for."""

    name = "nonzero"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "nonzero" and problem.input(0).dtype == "bool"

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("nonzero")
        slots = Slots(b, problem)
        x, y = slots.pointer("x", problem.layer.inputs[0]), slots.pointer("y", problem.layer.outputs[0])
        length, room = slots.size("length", problem.input(0).elements), slots.size("room", problem.output().elements)
        with b.loop("all", b.begin, b.end):
            found = b.variable("found", b.constant(0, I64))
            with b.loop("i", 0, length) as i, b.branch(b.load(x, i) & (found.get() < room)):
                b.store(y, found.get(), i)
                found.set(found.get() + 1)
            with b.loop("rest", found.get(), room) as rest:
                b.store(y, rest, 0)
        return Implementation((KernelCall(b.finish(), slots.arguments, 1, bytes=problem.input(0).bytes + problem.output().bytes),))


class Order(Knobless):
    """`order`: a heap of the places of rows, which is emptied from the last place to the first."""

    name = "order"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "order" and problem.input(0).dtype in BYTES and problem.input(0).dtype != "bool"

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("order")
        slots = Slots(b, problem)
        x, y = slots.pointer("x", problem.layer.inputs[0]), slots.pointer("y", problem.layer.outputs[0])
        rows, columns = slots.size("rows", problem.input(0).shape[0]), slots.known("columns", problem.input(0).shape[1])

        def before(i: Value, j: Value) -> Value:
            """Whether row i comes before row j."""
            if columns == 1:
                more, same = ahead(b, widen(b, b.load(x, i)), widen(b, b.load(x, j)), False)
                return more | (same & (i < j))
            column, first = b.variable("column", b.constant(0, I64)), b.variable("first", i < j)
            with b.repeat_while() as test:
                b.proceed(test, column.get() < columns)
                at = column.get()
                p, q = (widen(b, b.load(x, row * columns + at)) for row in (i, j))
                more, same = ahead(b, p, q, False)
                first.set(b.select(same, first.get(), more))
                column.set(b.select(same, at + 1, columns))
            return first.get()

        heap = Heap(b, y, lambda i, j: before(j, i))
        with b.loop("all", b.begin, b.end):
            with b.loop("i", 0, rows) as i:
                heap.rise(i, i)
            with b.loop("taken", 0, rows) as taken:
                last = rows - 1 - taken
                top = b.load(y, 0)
                heap.sink(b.load(y, last), last)
                b.store(y, last, top)
        work = problem.output().bytes * 8
        return Implementation((KernelCall(b.finish(), slots.arguments, 1, bytes=problem.input(0).bytes + work),))


class Suppress(Knobless):
    """`suppress`: for each class a heap of the boxes that score enough, taken best first and kept where no kept one overlaps."""

    name = "suppress"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "suppress" and all(problem.input(i).dtype == "f32" for i in (0, 1, 3, 4))

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("suppress")
        slots = Slots(b, problem)
        boxes, scores, most, overlap, least = (slots.pointer(f"input_{i}", v) for i, v in enumerate(problem.layer.inputs))
        y = slots.pointer("y", problem.layer.outputs[0])
        batches, classes, count = problem.output().shape
        per_batch, length = slots.size("classes", classes), slots.size("boxes", count)
        candidates = b.scratch("i64")
        with b.loop("line", b.begin, b.end) as line:
            box, score, kept = boxes.at(line // per_batch * length * 4), scores.at(line * length), y.at(line * length)
            size, taken = b.variable("size", b.constant(0, I64)), b.variable("taken", b.constant(0, I64))

            def better(i: Value, j: Value, score: Any = score) -> Value:
                p, q = b.load(score, i), b.load(score, j)
                more, same = ahead(b, p, q, True)
                return more | (same & (i < j))

            heap = Heap(b, candidates, better)
            with b.loop("i", 0, length) as i, b.branch(b.load(score, i) > b.load(least)):
                heap.rise(i, size.get())
                size.set(size.get() + 1)
            with b.repeat_while() as test:
                b.proceed(test, (size.get() > 0) & (taken.get() < b.load(most)))
                best, last = b.load(candidates, 0), size.get() - 1
                heap.sink(b.load(candidates, last), last)
                size.set(last)
                free = _free(b, box, kept, taken.get(), best, b.load(overlap), problem["center"])
                with b.branch(free):
                    b.store(kept, taken.get(), best)
                    taken.set(taken.get() + 1)
            with b.loop("rest", taken.get(), length) as rest:
                b.store(kept, rest, -1)
        moved = problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes
        call = KernelCall(b.finish(), slots.arguments, batches * classes, scratch=8 * maximum(count, 1), bytes=moved)
        return Implementation((call,))


def _free(b: Builder, boxes: Any, kept: Any, count: Value, box: Value, most: Value, center: bool) -> Value:
    """Whether a box overlaps none of the kept ones by more than `most` of their union."""
    index, free = b.variable("index", b.constant(0, I64)), b.variable("free", box >= 0)
    y1, x1, y2, x2 = _corners(b, boxes, box, center)
    with b.repeat_while() as test:
        b.proceed(test, (index.get() < count) & free.get())
        y3, x3, y4, x4 = _corners(b, boxes, b.load(kept, index.get()), center)
        width, height = b.minimum(x2, x4) - b.maximum(x1, x3), b.minimum(y2, y4) - b.maximum(y1, y3)
        common, first, second = width * height, (x2 - x1) * (y2 - y1), (x4 - x3) * (y4 - y3)
        union = first + second - common
        meets = (width > 0) & (height > 0) & (common > 0) & (first > 0) & (second > 0) & (union > 0)
        free.set(~(meets & (common / b.select(meets, union, 1) > most)))
        index.set(index.get() + 1)
    return free.get()


def _corners(b: Builder, boxes: Any, box: Value, center: bool) -> tuple[Value, Value, Value, Value]:
    """The smaller and larger coordinates of a box: y, x, y, x."""
    a, c, d, e = (b.load(boxes, box * 4 + i) for i in range(4))
    if center:  # x, y, width, height
        half_width, half_height = d / 2, e / 2
        return c - half_height, a - half_width, c + half_height, a + half_width
    return b.minimum(a, d), b.minimum(c, e), b.maximum(a, d), b.maximum(c, e)
