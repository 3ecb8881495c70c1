"""Geometry of windows over channels-last images, in one form for any number of spatial dimensions.

The last spatial dimension is the width: its pixels lie one pitch apart.  The one before is the height: its rows are reached through
a table of row addresses, whose null entries are padding.  Any dimensions before those are `leading`; with the batch they count
images of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Number, Rows, Value, Variable
from sartor.sizes import Dim, product
from sartor.templates.base import RowTable
from sartor.templates.slots import Slots


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: output index o and tap k meet input index o * stride + k * dilation - before."""

    size: Dim
    out: Dim
    kernel: int
    stride: int
    dilation: int
    before: Dim
    after: Dim


@dataclass(frozen=True)
class Window:
    """The spatial part of a layer that slides a window: batch, leading dimensions, height and width."""

    value: str
    batch: Dim
    leading: tuple[Axis, ...]
    height: Axis
    width: Axis

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.leading, self.height, self.width)

    @property
    def taps(self) -> int:
        count = 1
        for axis in self.axes:
            count *= axis.kernel
        return count

    @property
    def pixels(self) -> Dim:
        """Of the output, over the whole batch."""
        return product((self.batch, *(axis.out for axis in self.axes)))

    @property
    def table(self) -> RowTable:
        """The rows of the input with the height's padding."""
        images = product((self.batch, *(axis.size for axis in self.leading)))
        return RowTable(self.value, images, self.height.size, self.width.size, self.height.before, self.height.after)


TRIVIAL = Axis(1, 1, 1, 1, 1, 0, 0)


def window(problem: Problem, kernel: tuple[int, ...]) -> Window:
    """The window of a layer whose attributes are strides, dilations and pads; one spatial dimension gets a height of 1."""
    image, out = problem.input(0).shape, problem.output().shape
    rank = len(image) - 2
    pads = problem["pads"]
    axes = tuple(Axis(image[1 + i], out[1 + i], kernel[i], problem["strides"][i], problem["dilations"][i], pads[i], pads[rank + i])
                 for i in range(rank))
    axes = (TRIVIAL,) * max(0, 2 - rank) + axes
    return Window(problem.layer.inputs[0], image[0], axes[:-2], axes[-2], axes[-1])


@dataclass
class AxisCode:
    """An axis inside a kernel: numbers that are known, arguments for those that are not."""

    size: Number
    out: Number
    kernel: Number
    stride: Number
    dilation: Number
    before: Number


def axis_code(slots: Slots, axis: Axis, name: str, compiled: bool) -> AxisCode:
    """Declares the slots of an axis; windows are compiled in or, so that layers share a kernel, arguments."""
    def window_number(part: str, value: int) -> Number:
        return value if compiled or (name.startswith("leading") and value == 1) else slots.size(f"{name}_{part}", value)

    return AxisCode(slots.size(f"{name}_size", axis.size), slots.size(f"{name}_out", axis.out), window_number("kernel", axis.kernel),
                    window_number("stride", axis.stride), window_number("dilation", axis.dilation),
                    slots.size(f"{name}_before", axis.before))


class WindowCode:
    """A window inside a kernel: addresses of the pixels under it."""

    def __init__(self, slots: Slots, window: Window, compiled: bool = False) -> None:
        self.builder: Builder = slots.builder
        self.rows: Rows = slots.rows("x", window.table)
        self.pitch = slots.pitch("x_pitch", window.value)
        self.leading = [axis_code(slots, axis, f"leading{i}", compiled) for i, axis in enumerate(window.leading)]
        self.height = axis_code(slots, window.height, "height", compiled)
        self.width = axis_code(slots, window.width, "width", compiled)
        self.image_rows = slots.size("image_rows", window.height.size + window.height.before + window.height.after)

    @property
    def axes(self) -> list[AxisCode]:
        return [*self.leading, self.height, self.width]

    def is_padding(self, row: Value) -> Value:
        """Whether entry `row` of the table is null."""
        addresses = Buffer(self.rows.name, "u64", self.builder)
        return self.builder.load(addresses, row).eq(0)

    def position(self, pixel: Value) -> list[Variable]:
        """Coordinates (batch, leading..., height, width) of a flattened output pixel, as variables for `advance`."""
        return position(self.builder, [axis.out for axis in self.axes], pixel)

    def advance(self, at: list[Variable]) -> None:
        """Moves to the next output pixel."""
        advance(self.builder, [axis.out for axis in self.axes], at)

    @contextmanager
    def row_taps(self, at: list[Value]) -> Iterator[tuple[Value, Value, Value]]:
        """Loops over the taps of all axes but the width: (number of the tap, entry of the table, whether it is inside)."""
        b = self.builder
        with nest(b, [axis.kernel for axis in self.leading], "tap") as taps:
            image, inside, number = at[0], b.constant(True, at[0].type.of("bool")), b.constant(0, at[0].type)
            for axis, o, tap in zip(self.leading, at[1:-2], taps, strict=True):
                i = o * axis.stride + tap * axis.dilation - axis.before
                valid = (i >= 0) & (i < axis.size)
                image = image * axis.size + b.select(valid, i, 0)
                inside = inside & valid
                number = number * axis.kernel + tap
            first = image * self.image_rows + at[-2] * self.height.stride
            with b.loop("tap_y", 0, self.height.kernel, unroll=1) as y:
                entry = first + y * self.height.dilation
                yield number * self.height.kernel + y, entry, inside & ~self.is_padding(entry)


def position(builder: Builder, sizes: Sequence[Number], pixel: Value) -> list[Variable]:
    """Coordinates (batch, then one for each of `sizes`) of a flattened pixel, as variables."""
    rest, found = pixel, []
    for size in reversed(sizes):
        divisor = builder.maximum(size, 1) if isinstance(size, Value) else size
        quotient = rest // divisor
        found.append(rest - quotient * divisor)
        rest = quotient
    return [builder.variable("at", value) for value in (rest, *reversed(found))]


def advance(builder: Builder, sizes: Sequence[Number], at: Sequence[Variable]) -> None:
    """Moves coordinates to the next pixel."""
    carry: Value | None = None
    for variable, size in zip(reversed(at[1:]), reversed(sizes), strict=True):
        moved = variable.get() + (1 if carry is None else carry)
        wraps = moved >= size
        variable.set(builder.select(wraps, builder.constant(0, moved.type), moved))
        carry = builder.cast(wraps, "i64")
    if carry is not None:
        at[0].set(at[0].get() + carry)


@contextmanager
def nest(builder: Builder, counts: Sequence[Number], name: str) -> Iterator[list[Value]]:
    """Nested loops over ranges."""
    if not counts:
        yield []
        return
    with builder.loop(name, 0, counts[0], unroll=1) as first, nest(builder, counts[1:], name) as rest:
        yield [first, *rest]
