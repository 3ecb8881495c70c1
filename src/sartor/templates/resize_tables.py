"""Where a resize looks: for every resized dim, which input elements an output element is made of, and their weights.

Sizes may be symbols, so the tables are computed by kernels of their own when the layer runs, in f64 as ONNX's formulas are
written.  A dim of `out` elements with `taps` taps has `taps x out` entries, tap by tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Type, Value
from sartor.sizes import Dim, Size, ceildiv, maximum
from sartor.templates.base import KernelCall
from sartor.templates.slots import Slots
from sartor.templates.vectors import along, can_mask
from sartor.types import BYTES


@dataclass(frozen=True)
class ResizedDim:
    """One resized dim: its place among the dims, its sizes, how many taps it has and where its tables begin, in entries."""

    place: int
    size: Dim
    out: Dim
    taps: Dim
    first: int | None  # the first tap relative to ceil(x) - 1 where it is known
    begin: Dim


def resized_dims(problem: Problem) -> list[ResizedDim]:
    """The dims that are not taken as they are."""
    attributes = problem.layer.attributes
    cropped = attributes["coordinate"] == "tf_crop_and_resize"
    found: list[ResizedDim] = []
    begin: Dim = 0
    for place, (size, out) in enumerate(zip(problem.input(0).shape, problem.output().shape, strict=True)):
        scale = attributes["scales"][place]
        if size == out and (scale is None or scale == 1.0) and not cropped:
            continue
        taps, first = _taps(attributes, scale, size, out)
        found.append(ResizedDim(place, size, out, taps, first, begin))
        begin = begin + taps * out
    return found


def _taps(attributes: Any, scale: float | Size | None, size: Dim, out: Dim) -> tuple[Dim, int | None]:
    """How many taps a dim has and, where it is known when compiling, the first one's distance from ceil(x) - 1."""
    if attributes["mode"] == "nearest":
        return 1, 0
    support = 1 if attributes["mode"] == "linear" else 2
    if not attributes.get("antialias"):
        return 2 * support, 1 - support
    if scale is not None and not isinstance(scale, Size):
        reach = -floor(-support / min(float(scale), 1.0))
        return 2 * reach, 1 - reach
    if isinstance(size, int) and isinstance(out, int) and scale is None:
        reach = -floor(-support / min(out / size, 1.0)) if size and out else support
        return 2 * reach, 1 - reach
    # ceil(support * size / out) may differ by one from what the rounded quotient gives; one tap more has no weight.
    return maximum(2 * support, 2 * ceildiv(support * size, maximum(out, 1))), None


def entries(dims: list[ResizedDim]) -> Dim:
    """Entries of all tables."""
    return sum((d.taps * d.out for d in dims), 0)


def table_calls(problem: Problem, dims: list[ResizedDim], scalar: str, device: Device) -> list[KernelCall]:
    """The kernels that fill the tables: indices (i32) in workspace 0, weights (`scalar`) in workspace 1."""
    return [_TableCode(problem, dim, scalar, device).call() for dim in dims]


class _TableCode:
    """Writes the kernel of one dim."""

    def __init__(self, problem: Problem, dim: ResizedDim, scalar: str, device: Device) -> None:
        attributes = problem.layer.attributes
        self.attributes, self.dim, self.scalar = attributes, dim, scalar
        self.mode: str = attributes["mode"]
        self.b = b = Builder("resize_table")
        self.slots = slots = Slots(b, problem)
        self.lanes = max(1, device.lanes("f64"))
        self.masked = can_mask(device.target, ["f64", "i32", scalar])
        self.indices = slots.workspace("indices", 0, "i32")
        self.weights = None if self.mode == "nearest" else slots.workspace("weights", 1, scalar)
        self.begin = slots.size("begin", dim.begin)
        self.size_of, self.out_of = slots.size("size", dim.size), slots.size("out", dim.out)
        self.taps = slots.known("taps", dim.taps)

    def call(self) -> KernelCall:
        """Emits the kernel."""
        b = self.b
        self.size, self.out = b.cast(self.size_of, "f64"), b.cast(self.out_of, "f64")
        given = self.attributes["scales"][self.dim.place]
        self.scale = self.out / self.size if given is None else self.number("scale", given)
        self.length = self.scale * self.size
        along(b, b.begin, b.end, self.lanes, self.some, masked=self.masked)
        return KernelCall(b.finish(), self.slots.arguments, self.dim.out, grain=64)

    # --- coordinates ---

    def number(self, name: str, given: float | Size) -> Value:
        """A float of the layer's, or one that depends on data: a size that holds its bits."""
        b = self.b
        return b.bitcast(self.slots.size(name, given), "f64") if isinstance(given, Size) else b.constant(float(given), Type("f64"))

    def region(self) -> tuple[Value, Value]:
        """The part of the input that is cropped."""
        roi, place = self.attributes.get("roi"), self.dim.place
        begin, end = (roi[place], roi[place + len(roi) // 2]) if roi is not None and len(roi) else (0.0, 1.0)
        return self.number("begin_of_region", begin), self.number("end_of_region", end)

    def position(self, i: Value) -> Value:
        """Where in the input (elements) output elements `i` look."""
        b, mode = self.b, self.attributes["coordinate"]
        last = self.size - 1.0
        divisor = self.length - 1.0
        single = divisor.eq(0.0)
        divisor = b.select(single, 1.0, divisor)
        if mode == "align_corners":
            return b.select(single, i * 0.0, i * last / divisor)
        if mode == "asymmetric":
            return i / self.scale
        if mode == "tf_crop_and_resize":
            begin, end = self.region()
            middle = last * ((begin + end) / 2)
            return b.select(single, i * 0.0 + middle, i * (end - begin) * last / divisor + last * begin)
        centre = (i + 0.5) / self.scale - 0.5
        if mode == "pytorch_half_pixel":
            return b.select(self.out.eq(1.0), i * 0.0 - 0.5, centre)
        if mode == "half_pixel_symmetric":
            return centre + self.size * 0.5 * (1.0 - self.out / self.length)
        return centre

    # --- tables ---

    def some(self, at: Value, lanes: int, mask: Value | None) -> None:
        """The entries of some output elements."""
        b = self.b
        x = self.position(b.cast(b.iota(lanes) + at, "f64"))
        outside = None
        if self.attributes["coordinate"] == "tf_crop_and_resize" and self.attributes.get("roi") is not None:
            outside = (x < 0.0) | (x > self.size - 1.0)
        place = self.begin + at
        if self.weights is None:
            self.put(place, self.rounded(x), outside, mask)
            return
        base = b.unary("ceil", x) - 1.0 + self.first()
        total: Value | None = None
        if self.normalizes:
            sums = b.variable("sum", b.constant(0.0, x.type))
            with b.loop("tap", 0, self.taps) as tap:
                sums.set(sums.get() + self.weight(base + b.cast(tap, "f64"), x))
            total = sums.get()
        with b.loop("tap", 0, self.taps) as tap:
            index = base + b.cast(tap, "f64")
            weight = self.weight(index, x)
            if total is not None:
                weight = weight / total
            entry = place + tap * self.out_of
            self.put(entry, index, outside, mask)
            b.store(self.weights, entry, b.cast(weight, self.scalar), mask)

    def first(self) -> Value:
        """The first tap relative to ceil(x) - 1."""
        if self.dim.first is not None:
            return self.b.constant(float(self.dim.first), Type("f64"))
        if isinstance(self.taps, int):
            return self.b.constant(1.0 - self.taps // 2, Type("f64"))
        return 1.0 - self.b.cast(self.taps // 2, "f64")

    @property
    def normalizes(self) -> bool:
        return bool(self.attributes.get("exclude_outside") or self.attributes.get("antialias"))

    def put(self, entry: Value, index: Value, outside: Value | None, mask: Value | None) -> None:
        """Stores an index, kept inside the input; -1 stands for a position outside the crop."""
        b = self.b
        inside = b.maximum(0.0, b.minimum(self.size - 1.0, index))
        number = b.cast(inside, "i32")
        if outside is not None:
            number = b.select(outside, -1, number)
        b.store(self.indices, entry, number, mask)

    def rounded(self, x: Value) -> Value:
        """The nearest element."""
        b, how = self.b, self.attributes["nearest"]
        if how == "round_prefer_floor":
            return b.unary("ceil", x - 0.5)
        if how == "round_prefer_ceil":
            return b.unary("floor", x + 0.5)
        return b.unary("floor" if how == "floor" else "ceil", x)

    def weight(self, index: Value, x: Value) -> Value:
        """The weight of an input element."""
        b = self.b
        distance = b.unary("abs", index - x)
        if self.attributes.get("antialias"):
            distance = distance * b.minimum(self.scale, 1.0)
        if self.mode == "linear":
            weight = b.maximum(1.0 - distance, 0.0)
        else:
            a = float(self.attributes.get("cubic_a", -0.75))
            d = distance
            near = ((d * (a + 2.0) - (a + 3.0)) * d) * d + 1.0
            far = ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
            weight = b.select(d <= 1.0, near, b.select(d < 2.0, far, 0.0))
        if self.attributes.get("exclude_outside"):
            weight = b.select((index < 0.0) | (index > self.size - 1.0), 0.0, weight)
        return weight


def table_bytes(dims: list[ResizedDim], scalar: str, weights: bool) -> tuple[Dim, ...]:
    """Sizes of the workspaces."""
    count = entries(dims)
    return (count * 4, count * BYTES[scalar]) if weights else (count * 4,)

