"""Discrete Fourier transforms of any length: the self-sorting (Stockham) algorithm over the prime factors of the length.

A line of N points is copied to scratch, zeros behind it.  A pass for the factor p turns N/s points, interleaved s at a time, into p
transforms of a p-th as many: y[q + s (p k + r)] = w^(s k r) times the sum over j of x[q + s (k + M j)] w^(N/p j r), with M = N / (s p)
and w = exp(-2 pi i / N), whose powers are an operand.  For odd p the points j and p - j are taken together, which gives the results
r and p - r from half the products.  A length that is itself a large prime costs its square.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Buffer, Builder, Type, Value
from sartor.sizes import ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen, working
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask, lanes_for
from sartor.types import BYTES

WORK = 1 << 9  # points worth a slice of their own


class Fourier(Knobless):
    """See the module."""

    name = "fourier"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "fourier" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        shape, points = problem.input(0).shape, problem.input(1).shape[0]
        grain = maximum(1, ceildiv(WORK, maximum(points, 1)))
        call = KernelCall(code.b.finish(), code.slots.arguments, shape[0] * shape[2], grain=grain,
                          scratch=4 * BYTES[code.scalar] * maximum(points, 1),
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel: x is [before, length, after, parts], y [before, kept, after, parts]."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.b = b = Builder("fourier")
        self.slots = slots = Slots(b, problem)
        source, out = problem.input(0).shape, problem.output().shape
        self.inverse, self.half = bool(problem["inverse"]), bool(problem["half"])
        x, cosines, sines = problem.layer.inputs
        self.x, self.y = slots.pointer("x", x), slots.pointer("y", problem.layer.outputs[0])
        self.cosines, self.sines = slots.pointer("cosines", cosines), slots.pointer("sines", sines)
        self.points = slots.size("points", problem.input(1).shape[0])
        self.length, self.kept, self.after = slots.size("length", source[1]), slots.size("kept", out[1]), slots.size("after", source[2])
        self.parts, self.parts_out = int(source[3]), int(out[3])  # type: ignore[arg-type]
        self.scalar = working(problem.input(0).dtype)
        self.lanes, self.masked = lanes_for(device.target, [self.scalar]), can_mask(device.target, [self.scalar])

    def write(self) -> None:
        """Emits the kernel's loops."""
        b, points = self.b, self.points
        near, far = (b.scratch(self.scalar, start) for start in (0, points * (2 * BYTES[self.scalar])))
        with b.loop("line", b.begin, b.end) as line:
            before = line // self.after
            column = line - before * self.after
            self.load(near, before, column)
            there = b.variable("there", b.constant(False, Type("bool")))  # whether the newest points lie in the far half
            step, factor = b.variable("step", b.constant(1, I64)), b.variable("factor", b.constant(2, I64))
            with b.repeat_while() as test:
                left = points // step.get()
                b.proceed(test, left > 1)
                self.next_factor(factor, left)
                source, target = b.select_buffer(there.get(), far, near), b.select_buffer(there.get(), near, far)
                self.turn(source, target, left // factor.get(), factor.get(), step.get())
                there.set(~there.get())
                step.set(step.get() * factor.get())
            self.store(b.select_buffer(there.get(), far, near), before, column)

    def next_factor(self, factor: Any, left: Value) -> None:
        """The smallest factor of what is left, from the last one on."""
        b = self.b
        with b.repeat_while() as test:
            b.proceed(test, (left % factor.get()).ne(0))
            higher = factor.get() + 1
            factor.set(b.select(higher * higher > left, left, higher))

    def load(self, target: Buffer, before: Value, column: Value) -> None:
        """A line into scratch: its real parts, then its imaginary ones; of half a spectrum the other half follows."""
        b, points = self.b, self.points
        base = before * self.length
        with b.loop("i", 0, points) as i:
            place, turned = i, None
            if self.half:
                turned = i > points // 2
                place = b.select(turned, points - i, i)
            real, imaginary = (b.variable(name, b.constant(0.0, Type(self.scalar))) for name in ("real", "imaginary"))
            with b.branch(place < self.length):
                at = ((base + place) * self.after + column) * self.parts
                real.set(widen(b, b.load(self.x, at)))
                if self.parts == 2:
                    imaginary.set(widen(b, b.load(self.x, at + 1)))
            b.store(target, i, real.get())
            value = imaginary.get()
            b.store(target, points + i, value if turned is None else b.select(turned, -value, value))

    def turn(self, source: Buffer, target: Buffer, count: Value, factor: Value, step: Value) -> None:
        """One pass: transforms of `factor` points, `count` * `step` of them, each result times its power of w."""
        b = self.b
        half = factor // 2
        with b.loop("k", 0, count) as k:
            origin, out = step * k, step * factor * k

            def run(q: Value, lanes: int, mask: Value | None) -> None:
                def point(j: Value | int) -> tuple[Value, Value]:
                    return self.pair(source, q + step * (k + count * j), lanes, mask)

                def put(r: Value | int, value: tuple[Value, Value]) -> None:
                    self.put(target, out + q + step * r, self.times(value, origin * r), mask)

                first = point(0)
                with b.branch(factor.eq(2)):
                    second = point(1)
                    put(0, (first[0] + second[0], first[1] + second[1]))
                    put(1, (first[0] - second[0], first[1] - second[1]))
                with b.otherwise():
                    total = [b.variable(name, value) for name, value in zip(("real", "imaginary"), first, strict=True)]
                    with b.loop("j", 1, half + 1) as j:
                        near, far = point(j), point(factor - j)
                        for part, p, q_ in zip(total, near, far, strict=True):
                            part.set(part.get() + (p + q_))
                    put(0, (total[0].get(), total[1].get()))
                    with b.loop("r", 1, half + 1) as r:
                        even, odd = self.halves(first, point, factor, half, r)
                        put(r, (even[0] + odd[0], even[1] + odd[1]))
                        put(factor - r, (even[0] - odd[0], even[1] - odd[1]))

            along(b, 0, step, self.lanes, run, masked=self.masked)

    def halves(self, first: tuple[Value, Value], point: Callable[[Value | int], tuple[Value, Value]], factor: Value, half: Value,
               r: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
        """Of an odd number of points what results r and factor - r have in common, and what they have with opposite signs."""
        b, part = self.b, self.points // factor
        zero = b.constant(0.0, first[0].type)
        even = [b.variable("even", value) for value in first]
        odd = [b.variable("odd", zero) for _ in range(2)]
        power = b.variable("power", b.constant(0, I64))
        with b.loop("j", 1, half + 1) as j:
            following = power.get() + part * r
            power.set(b.select(following < self.points, following, following - self.points))
            c, s = self.root(power.get())
            (u, v), (x, y) = point(j), point(factor - j)
            even[0].set(even[0].get() + c * (u + x))
            even[1].set(even[1].get() + c * (v + y))
            odd[0].set(odd[0].get() - s * (v - y))
            odd[1].set(odd[1].get() + s * (u - x))
        return (even[0].get(), even[1].get()), (odd[0].get(), odd[1].get())

    def root(self, power: Value) -> tuple[Value, Value]:
        """A power of w."""
        b = self.b
        c, s = (b.cast(b.load(table, power), self.scalar) for table in (self.cosines, self.sines))
        return c, s if self.inverse else -s

    def times(self, value: tuple[Value, Value], power: Value) -> tuple[Value, Value]:
        c, s = self.root(power)
        (u, v) = value
        return u * c - v * s, u * s + v * c

    def pair(self, source: Buffer, at: Value, lanes: int, mask: Value | None) -> tuple[Value, Value]:
        return self.b.load(source, at, lanes, mask), self.b.load(source, self.points + at, lanes, mask)

    def put(self, target: Buffer, at: Value, value: tuple[Value, Value], mask: Value | None) -> None:
        self.b.store(target, at, value[0], mask)
        self.b.store(target, self.points + at, value[1], mask)

    def store(self, source: Buffer, before: Value, column: Value) -> None:
        """The points that are wanted, divided by their number for the inverse; those of a real signal are symmetric."""
        b, points = self.b, self.points
        scale = b.cast(1.0 / b.cast(points, "f64"), self.scalar) if self.inverse else None
        with b.loop("i", 0, self.kept) as i:
            at = ((before * self.kept + i) * self.after + column) * self.parts_out
            turned = i > points // 2
            place = b.select(turned, points - i, i) if self.parts == 1 else i
            for part in range(self.parts_out):
                value = b.load(source, points * part + place)
                if self.parts == 1 and part == 1:
                    value = b.select(turned, -value, b.select(place.eq(0) | (place * 2).eq(points), 0.0, value))
                value = value if scale is None else value * scale
                b.store(self.y, at + part, b.cast(value, self.y.scalar))
