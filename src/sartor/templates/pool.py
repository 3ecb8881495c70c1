"""Pooling windows over any number of spatial dims, vectorised over channels.

One run of output pixels along the last spatial dim shares the taps of the other dims that lie inside the input.  Along the
last dim, pixels whose whole window lies inside have their taps written out; those at the edges loop over the taps they have.
Taps in padding are never read.  A NaN is passed over by max, as processors' maximum instructions do.  For the places of maxima each
lane keeps the best element so far and its place, which is computed once a tap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops import math as functions
from sartor.loops.language import I64, Buffer, Builder, Number, Type, Value, Variable
from sartor.sizes import Dim, ceildiv, maximum, product
from sartor.templates.base import Config, Implementation, KernelCall, RowTable, Space
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.reduction import accumulator, tiles
from sartor.templates.slots import Slots
from sartor.templates.vectors import can_mask, lanes_for
from sartor.templates.walk import runs
from sartor.types import BYTES

UNROLLED = 8  # taps of the last dim that are written out at most
WORK = 1 << 14  # loads worth a slice of their own


class Pool:
    """See the module."""

    name = "pool"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "pool" or problem.input(0).dtype not in BYTES:
            return False
        return problem["mode"] in ("max", "argmax") or problem.input(0).dtype in ("f16", "bf16", "f32", "f64")

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"vectors": (1, 2, 4, 8)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        columns, lanes = problem.output().columns, device.lanes(working(problem.input(0).dtype))
        return {"vectors": 4 if not isinstance(columns, int) or columns >= 4 * lanes else 2 if columns >= 2 * lanes else 1}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, config, device)
        code.write()
        taps = product(problem["kernel"])
        grain = maximum(1, ceildiv(WORK, maximum(problem.output().columns * taps, 1)))
        call = KernelCall(code.b.finish(), (*code.slots.arguments, *code.epilogue.arguments()), problem.output().rows, grain=grain,
                          bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


class _Code:
    """Writes the kernel.  With one spatial dim, another of size 1 is put before it."""

    def __init__(self, problem: Problem, config: Config, device: Device) -> None:
        layer, x, out = problem.layer, problem.input(0), problem.output()
        self.b = b = Builder(f"pool_{problem['mode']}")
        self.mode, self.power = problem["mode"], problem.layer.attributes.get("p", 2)
        self.include_pad = bool(problem.layer.attributes.get("include_pad"))
        rank = len(x.shape) - 2
        thin = rank == 1
        unit = [1] if thin else []
        self.kernel: list[int] = [*unit, *problem["kernel"]]
        self.strides: list[int] = [*unit, *problem["strides"]]
        self.dilations: list[int] = [*unit, *problem["dilations"]]
        sizes: list[Dim] = [*unit, *x.shape[1:-1]]
        results: list[Dim] = [*unit, *out.shape[1:-1]]
        self.scalar = working(x.dtype)
        kinds = [x.dtype, self.scalar, out.dtype, *(["i64"] if self.mode == "argmax" else [])]
        self.lanes, self.masked = lanes_for(device.target, kinds), can_mask(device.target, kinds)
        self.vectors = int(config["vectors"])
        self.how = accumulator("max" if self.mode in ("max", "argmax") else "sum")
        self.slots = slots = Slots(b, problem)
        table = RowTable(layer.inputs[0], x.shape[0], sizes[0], product(sizes[1:]), 0, 0)
        self.x, self.x_pitch = slots.rows("x", table), slots.pitch("x_pitch", layer.inputs[0])
        self.y, self.y_pitch = slots.pointer("y", layer.outputs[0]), slots.pitch("y_pitch", layer.outputs[0])
        self.columns = slots.known("columns", out.columns)
        self.sizes = [slots.known("size", d) for d in sizes]
        self.results = [slots.known("result", d) for d in results]
        none = [0] if thin else []
        self.before: list[Number] = [*none, *(slots.known("before", d) for d in problem["pads"][:rank])]
        self.after: list[Number] = [*none, *(slots.known("after", d) for d in problem["pads"][rank:])]
        self.epilogue = Epilogue(b, problem)
        self.steps_in_plane = self._steps(bool(problem.layer.attributes.get("column_major")))

    def _steps(self, column_major: bool) -> list[Number]:
        """What one index of each spatial dim counts in a place."""
        steps: list[Number] = []
        total: Number = 1
        for size in self.sizes if column_major else self.sizes[::-1]:
            steps.append(total)
            total = total * size
        return steps if column_major else steps[::-1]

    def write(self) -> None:
        """Emits the kernel's loops."""
        runs(self.b, self.results[::-1], self.run)

    def value(self, number: Number) -> Value:
        return number if isinstance(number, Value) else self.b.constant(int(number), I64)

    # --- which taps lie inside ---

    def taps(self, dim: int, place: Value) -> tuple[Value, Value]:
        """First and end of the taps along `dim` that output index `place` has inside the input."""
        b, dilation = self.b, self.dilations[dim]
        missing = self.before[dim] - place * self.strides[dim]
        first = self.steps(b.maximum(missing, 0), dilation)
        end = b.minimum(self.steps(b.maximum(missing + self.sizes[dim], 0), dilation), self.kernel[dim])
        return b.minimum(first, end), end

    def steps(self, distance: Value, dilation: int) -> Value:
        """Ceiling of distance / dilation."""
        return distance if dilation == 1 else (distance + (dilation - 1)) // dilation

    def counted(self, dim: int, place: Value, inside: Value) -> Value:
        """How many taps along `dim` an average counts."""
        if not self.include_pad:
            return inside
        room = self.before[dim] - place * self.strides[dim] + self.sizes[dim] + self.after[dim]
        return self.b.minimum(self.steps(self.b.maximum(room, 0), self.dilations[dim]), self.kernel[dim])

    # --- pixels ---

    def run(self, outer: list[Value], first: Value, stop: Value, flat: Value) -> None:
        """Output pixels first...stop along the last dim."""
        b = self.b
        *places, image = outer
        places = places[::-1]  # of the spatial dims but the last, outermost first
        bounds = [self.taps(dim, place) for dim, place in enumerate(places)]
        area: Value | None = None
        if self.mode == "average":
            for dim, (place, (low, high)) in enumerate(zip(places, bounds, strict=True)):
                counted = self.counted(dim, place, high - low)
                area = counted if area is None else area * counted
        origins = [place * s - p for place, s, p in zip(places, self.strides, self.before, strict=False)]
        row = flat - first
        state = (image, origins, bounds, area, row)
        last = len(places)
        kernel, stride, dilation = self.kernel[last], self.strides[last], self.dilations[last]
        if kernel > UNROLLED:
            with b.loop("pixel", first, stop) as place:
                self.pixel(place, state, None)
            return
        before, room = self.value(self.before[last]), self.value(self.sizes[last])
        begins = (b.maximum(before, 0) + (stride - 1)) // stride
        reach = room + before - ((kernel - 1) * dilation + 1)
        ends = b.select(reach < 0, 0, b.maximum(reach, 0) // stride + 1)
        left = b.minimum(b.maximum(begins, first), stop)
        right = b.minimum(b.maximum(ends, left), stop)
        with b.loop("side", 0, 2) as side:
            begin, end = b.select(side.eq(0), first, right), b.select(side.eq(0), left, stop)
            with b.loop("pixel", begin, end) as place:
                self.pixel(place, state, None)
        with b.loop("pixel", left, right) as place:
            self.pixel(place, state, kernel)

    def pixel(self, place: Value, state: Any, whole: int | None) -> None:
        """One output pixel; `whole` is the number of taps of the last dim where all are known to lie inside."""
        b = self.b
        image, origins, bounds, area, row = state
        last = len(self.kernel) - 1
        low, high = (self.value(0), self.value(whole)) if whole is not None else self.taps(last, place)
        origin = place * self.strides[last] - self.before[last]
        inverse: Value | None = None
        if area is not None:
            count = area * (whole if whole is not None and not self.include_pad else self.counted(last, place, high - low))
            inverse = 1.0 / b.cast(count, self.scalar)

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            kind = Type(self.scalar, lanes)
            totals = [b.variable("total", self.how.start(b, kind)) for _ in range(vectors)]
            found = [b.variable("place", b.constant(-1, Type("i64", lanes))) for _ in totals] if self.mode == "argmax" else None

            def taps(buffer: Buffer, offset: Number, base: Number) -> None:
                def take(step: Number) -> None:
                    pixel = offset + origin + step
                    if found is None:
                        self.tap(totals, buffer, pixel, column, lanes, mask)
                    else:
                        self.compare(totals, found, buffer, pixel, base + (origin + step) * self.steps_in_plane[last], column, lanes, mask)

                if whole is not None:
                    for known in range(whole):
                        take(known * self.dilations[last])
                else:
                    with b.loop("tap", low, high) as tap:
                        take(tap * self.dilations[last])

            self.nest(image, origins, bounds, taps)
            for v, total in enumerate(totals):
                result = self.finish(total.get(), inverse) if found is None else found[v].get()
                at = column + v * lanes
                flat = row + place
                b.store(self.y, flat * self.y_pitch + at, self.epilogue.apply(result, flat, at, lanes, mask), mask)

        vectors = 1 if whole is None and self.kernel[last] <= UNROLLED else self.vectors  # edges are few: keep their code small
        tiles(b, 0, self.columns, self.lanes, vectors, tile, masked=self.masked)

    def nest(self, image: Value, origins: list[Value], bounds: list[tuple[Value, Value]], body: Any) -> None:
        """Loops over the taps of all dims but the last: `body(row of the input, pixels from its start, what its place counts)`."""
        b = self.b
        with b.loop("tap", *bounds[0]) as tap:
            at = origins[0] + tap * self.dilations[0]
            buffer = b.row(self.x, image * self.sizes[0] + at)
            self.inner(1, buffer, 0, at * self.steps_in_plane[0], origins, bounds, body)

    def inner(self, dim: int, buffer: Buffer, offset: Number, base: Value, origins: list[Value], bounds: list[tuple[Value, Value]],
              body: Any) -> None:
        if dim == len(bounds):
            body(buffer, offset, base)
            return
        with self.b.loop("tap", *bounds[dim]) as tap:
            at = origins[dim] + tap * self.dilations[dim]
            self.inner(dim + 1, buffer, (at + offset) * self.sizes[dim + 1], base + at * self.steps_in_plane[dim], origins, bounds, body)

    def compare(self, totals: list[Variable], found: list[Variable], buffer: Buffer, pixel: Value, place: Value, column: Value,
                lanes: int, mask: Value | None) -> None:
        """Takes the place of one pixel of the input where it is larger than those before it, or the first."""
        b = self.b
        base = pixel * self.x_pitch + column
        for v, (total, best) in enumerate(zip(totals, found, strict=True)):
            x = widen(b, b.load(buffer, base + v * lanes, lanes, mask))
            wins = (x & ~total.get() if x.type.scalar == "bool" else x > total.get()) | (best.get() < 0)
            total.set(b.select(wins, x, total.get()))
            best.set(b.select(wins, b.broadcast(place, lanes), best.get()))

    def tap(self, totals: list[Variable], buffer: Buffer, pixel: Value, column: Value, lanes: int, mask: Value | None) -> None:
        """Takes one pixel of the input in."""
        b = self.b
        base = pixel * self.x_pitch + column
        for v, total in enumerate(totals):
            x = widen(b, b.load(buffer, base + v * lanes, lanes, mask))
            if self.mode == "max":
                boolean = x.type.scalar == "bool"
                total.set(b.binary("or", x, total.get()) if boolean else b.maximum(x, total.get()))
            else:
                total.set(total.get() + (x if self.mode == "average" else self.powered(x)))

    def powered(self, x: Value) -> Value:
        """|x| ** p."""
        b = self.b
        if self.power == 2:
            return x * x
        magnitude = b.unary("abs", x)
        return magnitude if self.power == 1 else functions.pow_(b, magnitude, b.constant(float(self.power), x.type))

    def finish(self, total: Value, inverse: Value | None) -> Value:
        b = self.b
        if inverse is not None:
            return total * inverse
        if self.mode != "lp" or self.power == 1:
            return total
        return b.unary("sqrt", total) if self.power == 2 else functions.pow_(b, total, b.constant(1.0 / self.power, total.type))
