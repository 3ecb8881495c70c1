"""Resize by nearest, linear or cubic sampling along any dims.

Tables say which rows an output row is made of (see `resize_tables`).  Along a last dim that is not resized, as the channels of an
image are, rows are mixed in whole vectors; along one that is, elements are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import I64, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.expression_code import widen
from sartor.templates.movement_code import Mover
from sartor.templates.resize_tables import ResizedDim, resized_dims, table_bytes, table_calls
from sartor.templates.slots import Slots
from sartor.templates.vectors import along
from sartor.templates.walk import runs
from sartor.types import BYTES, to_numpy

WORK = 1 << 13  # elements worth a slice of their own
WRITTEN = 16  # taps of all dims but the last that are written out at most


class Resize(Knobless):
    """See the module."""

    name = "resize"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "resize" and problem.input(0).dtype in BYTES

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = _Code(problem, device)
        code.write()
        out = problem.output()
        taps: Dim = 1
        for dim in code.dims:
            taps = taps * dim.taps
        call = KernelCall(code.b.finish(), code.slots.arguments, out.rows, grain=maximum(1, ceildiv(WORK, maximum(out.columns, 1))),
                          multiply_adds=0 if code.nearest else out.elements * taps, bytes=problem.input(0).bytes + out.bytes)
        tables = table_calls(problem, code.dims, code.weight, device)
        return Implementation((*tables, call), table_bytes(code.dims, code.weight, not code.nearest) if code.dims else ())


@dataclass(frozen=True)
class _Lead:
    """Dims but the last taken as one: its size in the output, rows of the input between its steps, and its resizing if any."""

    size: Dim
    stride: Dim
    dim: ResizedDim | None


def _leads(problem: Problem, dims: list[ResizedDim]) -> list[_Lead]:
    """The dims but the last, innermost first; neighbours that are not resized are joined."""
    by_place = {d.place: d for d in dims}
    shape, out = problem.input(0).shape, problem.output().shape
    found: list[_Lead] = []
    stride: Dim = 1
    for place in range(len(shape) - 2, -1, -1):
        dim = by_place.get(place)
        if found and dim is None and found[-1].dim is None:
            found[-1] = _Lead(found[-1].size * out[place], found[-1].stride, None)
        else:
            found.append(_Lead(out[place], stride, dim))
        stride = stride * shape[place]
    return found


@dataclass(frozen=True)
class _Tap:
    """One input row of an output row: its place, its weight (None: 1), and whether it lies outside the crop (None: no)."""

    row: Number
    weight: Value | None
    outside: Value | None


class _Code:
    """Writes the main kernel."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.b = b = Builder("resize")
        self.problem = problem
        attributes = problem.layer.attributes
        self.nearest = attributes["mode"] == "nearest"
        self.crops = attributes["coordinate"] == "tf_crop_and_resize" and attributes.get("roi") is not None
        self.extrapolation = float(attributes.get("extrapolation") or 0.0)
        self.dims = resized_dims(problem)
        self.leads = _leads(problem, self.dims)
        rank = len(problem.output().shape)
        self.last = next((d for d in self.dims if d.place == rank - 1), None)
        dtype = problem.input(0).dtype
        self.weight = "f64" if dtype not in ("f16", "bf16", "f32") else "f32"
        self.slots = slots = Slots(b, problem)
        self.mover = Mover(slots, device.target)
        self.moves = self.nearest and self.mover.plain and not self.crops
        source = problem.layer.inputs[0]
        self.x = self.mover.source("x", source) if self.moves else slots.pointer("x", source)
        self.x_pitch = slots.pitch("x_pitch", source)
        self.lanes, self.masked = self.mover.lanes, self.mover.masked
        if not self.moves:
            self.lanes = max(1, device.target.vector_bytes // 8 if self.weight == "f64" else device.lanes("f32"))
            self.masked = self.masked and BYTES[dtype] >= 4
        if self.dims:
            self.indices = slots.workspace("indices", 0, "i32")
            self.weights = None if self.nearest else slots.workspace("weights", 1, self.weight)
        self.begins = {d.place: slots.size("begin", d.begin) for d in self.dims}
        self.outs = {d.place: slots.size("out", d.out) for d in self.dims}
        self.taps = {d.place: slots.known("taps", d.taps) for d in self.dims}
        self.strides = [slots.known("stride", lead.stride) for lead in self.leads]
        self.columns = slots.size("columns", problem.output().columns)

    def write(self) -> None:
        """Emits the kernel's loops."""
        runs(self.b, [self.slots.size("size", lead.size) for lead in self.leads[:-1]], self.run)

    def run(self, places: list[Value], first: Value, stop: Value, flat: Value) -> None:
        with self.b.loop("row", first, stop) as place:
            self.row([place, *places] if self.leads else [], flat + (place - first))

    # --- rows ---

    def row(self, places: list[Value], row: Value) -> None:
        """One row of the output."""
        count = 1
        for lead in self.leads:
            taps = 1 if lead.dim is None else lead.dim.taps
            count = count * taps if isinstance(taps, int) else WRITTEN + 1
        if count <= WRITTEN:
            taps_of_row = [_Tap(0, None, None)]
            for side, (lead, place) in enumerate(zip(self.leads, places, strict=True)):
                taps_of_row = [self.joined(a, b) for a in taps_of_row for b in self.written(side, lead, place)]
            def each(take: Callable[[_Tap], None]) -> None:
                for tap in taps_of_row:
                    take(tap)

            self.columns_of(row, each)
        else:
            self.columns_of(row, lambda take: self.looped(places, len(self.leads) - 1, _Tap(0, None, None), take))

    def entry(self, side: int, dim: ResizedDim, place: Value, tap: Number) -> _Tap:
        """One tap of one dim."""
        b = self.b
        at = self.begins[dim.place] + place
        if not (isinstance(tap, int) and tap == 0):
            at = at + tap * self.outs[dim.place]
        index = b.cast(b.load(self.indices, at), "i64")
        outside = None
        if self.crops:
            outside = index < 0
            index = b.maximum(index, 0)
        weight = None if self.weights is None else b.load(self.weights, at)
        return _Tap(index * self.strides[side], weight, outside)

    def written(self, side: int, lead: _Lead, place: Value) -> list[_Tap]:
        """All taps of one dim."""
        if lead.dim is None:
            return [_Tap(place * self.strides[side], None, None)]
        return [self.entry(side, lead.dim, place, tap) for tap in range(int(lead.dim.taps))]  # type: ignore[arg-type]

    def joined(self, a: _Tap, b: _Tap) -> _Tap:
        weight = b.weight if a.weight is None else a.weight if b.weight is None else a.weight * b.weight
        outside = b.outside if a.outside is None else a.outside if b.outside is None else a.outside | b.outside
        return _Tap(b.row if isinstance(a.row, int) else a.row + b.row, weight, outside)

    def looped(self, places: list[Value], side: int, tap: _Tap, take: Callable[[_Tap], None]) -> None:
        """Loops over the taps of the dims from `side` inwards."""
        if side < 0:
            take(tap)
            return
        lead, place = self.leads[side], places[side]
        if lead.dim is None:
            self.looped(places, side - 1, self.joined(tap, self.written(side, lead, place)[0]), take)
            return
        with self.b.loop("tap", 0, self.taps[lead.dim.place]) as t:
            self.looped(places, side - 1, self.joined(tap, self.entry(side, lead.dim, place, t)), take)

    # --- columns ---

    def columns_of(self, row: Value, over: Callable[[Callable[[_Tap], None]], None]) -> None:
        """All columns of one output row; `over` calls what it is given for every tap of the row."""
        b, mover = self.b, self.mover
        at = row * mover.y_pitch
        wide = self.last is None or (self.lanes > 1 and BYTES[self.x.scalar] >= 4)

        def body(c: Value, lanes: int, mask: Value | None) -> None:
            if self.moves:
                moved: list[Value] = []
                over(lambda tap: moved.append(self.source(tap.row, c, lanes, mask)))
                mover.store(at + c, moved[0], row, c, lanes, mask)
                return
            mixed = self.mixed(over, c, lanes, mask)
            result = self.finish(mixed)
            if mover.plain:
                b.store(b.retype(mover.y, self.problem.output().dtype), at + c, b.cast(result, self.problem.output().dtype), mask)
            else:
                mover.store(at + c, result, row, c, lanes, mask)

        along(b, 0, self.columns, self.lanes if wide else 1, body, masked=self.masked)

    def mixed(self, over: Callable[[Callable[[_Tap], None]], None], c: Value, lanes: int, mask: Value | None) -> Value:
        """The weighted sum of all taps for some columns (nearest: the one there is)."""
        b = self.b
        scalar = self.x.scalar if self.nearest else self.weight
        kind = Type("f32" if scalar in ("f16", "bf16") else scalar, lanes)
        total = b.variable("total", b.constant(0, kind))
        outside = b.variable("outside", b.constant(False, kind.of("bool"))) if self.crops else None

        def take(tap: _Tap) -> None:
            if self.last is not None and not isinstance(self.last.taps, int):
                with b.loop("tap", 0, self.taps[self.last.place]) as t:
                    add(tap, [self.element(tap, t, c, lanes, mask)])
            else:
                add(tap, self.elements(tap, c, lanes, mask))

        def add(tap: _Tap, elements: list[tuple[Value, Value | None, Value | None]]) -> None:
            for x, weight, beyond in elements:
                if weight is None:
                    total.set(b.broadcast(x, lanes))
                else:
                    total.set(b.fma(b.cast(x, self.weight), weight, total.get()))
                for flag in (tap.outside, beyond):
                    if flag is not None and outside is not None:
                        outside.set(b.binary("or", outside.get(), flag))

        over(take)
        if outside is None:
            return total.get()
        fill = self.extrapolation if kind.is_float else bool(self.extrapolation) if kind.scalar == "bool" else int(self.extrapolation)
        return b.select(outside.get(), b.constant(fill, kind), total.get())

    def elements(self, tap: _Tap, c: Value, lanes: int, mask: Value | None) -> list[tuple[Value, Value | None, Value | None]]:
        """What one row contributes to some columns: elements, weights, whether they lie outside the crop."""
        b = self.b
        if self.last is None:
            return [(self.source(tap.row, c, lanes, mask), tap.weight, None)]
        found = []
        for t in range(self.last.taps) if isinstance(self.last.taps, int) else ():
            found.append(self.element(tap, b.constant(t, I64), c, lanes, mask))
        return found

    def element(self, tap: _Tap, t: Value, c: Value, lanes: int, mask: Value | None) -> tuple[Value, Value | None, Value | None]:
        """One tap along the columns."""
        b, last = self.b, self.last
        assert last is not None
        at = self.begins[last.place] + t * self.outs[last.place] + c
        index = b.load(self.indices, at, lanes, mask)
        beyond = None
        if self.crops:
            beyond = index < 0
            index = b.maximum(index, 0)
        weight = None if self.weights is None else b.load(self.weights, at, lanes, mask)
        if weight is not None and tap.weight is not None:
            weight = weight * tap.weight
        x = b.gather(self.x, b.cast(index, "i64") + tap.row * self.x_pitch, mask)
        return (x if self.moves else widen(b, x)), weight, beyond

    def source(self, row: Number, c: Value, lanes: int, mask: Value | None) -> Value:
        """Elements of an input row at some columns."""
        b = self.b
        if self.last is not None:
            return self.element(_Tap(row, None, None), b.constant(0, I64), c, lanes, mask)[0]
        x = b.load(self.x, row * self.x_pitch + c, lanes, mask)
        return x if self.moves else widen(b, x)

    def finish(self, total: Value) -> Value:
        """The raw result: for integers cut to a whole number and kept in range."""
        b, dtype = self.b, self.problem.input(0).dtype
        if self.nearest or dtype in ("f16", "bf16", "f32", "f64"):
            return total
        if dtype == "bool":
            return b.cast(total, "bool")
        info = np.iinfo(to_numpy(dtype))
        highest = float(info.max) if info.bits < 64 else float(np.nextafter(float(info.max), 0.0))
        rounded = b.minimum(b.maximum(b.unary("trunc", total), float(info.min)), highest)
        return b.cast(rounded, dtype)
