"""Grid sampling: places and weights are computed element by element, pixels are gathered with their channels last."""

from __future__ import annotations

from itertools import product as cartesian

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.convolution import channels_first, channels_last
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import column_of, combine, strides_of
from sartor.ops.movement import emit_slice
from sartor.sizes import Dim, product

MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}
TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
CUBIC = -0.75
MOST_PIXELS = 16  # that one output is made of


class _Axis:
    """Builds the places and weights along one spatial dimension, in f64 where the grid is, else in f32."""

    def __init__(self, e: ExpressionBuilder, grid: int, size: int, mode: str, padding: str, align: bool) -> None:
        self.e, self.mode, self.padding = e, mode, padding
        self.kind = kind = "f64" if e.nodes[grid].dtype == "f64" else "f32"
        self.zero, self.one = e.constant(0.0, kind), e.constant(1.0, kind)
        half = e.constant(0.5, kind)
        self.size = e("cast", size, dtype=kind)
        self.end = e("sub", self.size, self.one)
        self.low = self.zero if align else e.constant(-0.5, kind)
        self.high = self.end if align else e("sub", self.size, half)
        given = e("add", e("cast", grid, dtype=kind), self.one)
        at = e("mul", e("mul", given, half), self.end) if align else e("mul", e("sub", e("mul", given, self.size), self.one), half)
        at = e("round", at) if mode == "nearest" else at
        at = at if padding == "zeros" else self.brought_in(at)
        far = e.constant(-4.0, kind)
        at = e("select", e("is_nan", at), far, at)
        self.at = e("min", e("max", at, far), e("add", self.size, e.constant(4.0, kind)))
        self.base = e("floor", self.at)

    def clamped(self, at: int) -> int:
        return self.e("min", self.e("max", at, self.zero), self.end)

    def brought_in(self, at: int) -> int:
        """A coordinate beyond the border, clamped or reflected; others unchanged."""
        e = self.e
        if self.padding == "border":
            inner = self.clamped(at)
        else:
            span = e("sub", self.high, self.low)
            turn = e("add", span, span)
            along = e("mod", e("sub", at, self.low), turn)
            inner = e("add", self.low, e("min", along, e("sub", turn, along)))
        return e("select", e("or", e("lt", at, self.low), e("gt", at, self.high)), inner, at)

    def place(self, tap: int) -> int:
        """The pixel of a tap, always inside."""
        e, at = self.e, self.e("add", self.base, self.e.constant(float(tap), self.kind))
        at = self.brought_in(at) if self.padding == "reflection" else at
        at = self.clamped(e("select", e("is_nan", at), self.zero, at))
        return e("cast", at, dtype="i64")

    def weight(self, tap: int) -> int:
        """What the pixel of a tap counts."""
        e, at = self.e, self.e("add", self.base, self.e.constant(float(tap), self.kind))
        distance = e("abs", e("sub", self.at, at))
        weight = {"nearest": lambda: self.one, "linear": lambda: e("sub", self.one, distance),
                  "cubic": lambda: self.cubic(distance, tap)}[self.mode]()
        if self.padding != "zeros":
            return int(weight)
        return e("select", e("and", e("ge", at, self.zero), e("le", at, self.end)), weight, self.zero)

    def cubic(self, x: int, tap: int) -> int:
        """The cubic convolution kernel at distance x: up to 1 for the two taps in the middle, 1 to 2 for the others."""
        a = CUBIC
        factors = (a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
        total = self.e.constant(factors[0], self.kind)
        for factor in factors[1:]:
            total = self.e("add", self.e("mul", total, x), self.e.constant(factor, self.kind))
        return total


def _grid_sample(context: Context, call: Call) -> None:
    x, grid = call.inputs
    tensor, out = context.tensor(x), context.shape(grid)[:-1]
    rank = len(tensor.shape)
    mode, padding = MODES.get(call.get("mode", "linear"), ""), call.get("padding_mode", "zeros")
    if not mode or padding not in ("zeros", "border", "reflection"):
        raise ModelError(f"{call} has the unknown mode {call.get('mode')!r} or padding {padding!r}")
    if len(out) != rank - 1:
        raise ModelError(f"{call} has a grid of {len(out) + 1} dimensions for an input of {rank}")
    taps = TAPS[mode]
    if {tensor.dtype, context.dtype(grid)} - {"f32", "f64", "f16"} or len(taps) ** (rank - 2) > MOST_PIXELS:
        raise DeclinedError(f"{call} samples {tensor.dtype} with {len(taps) ** (rank - 2)} pixels for each output")
    batch = context.same(tensor.shape[0], out[0], "the batch")
    context.same(context.shape(grid)[-1], rank - 2, "the coordinates of the grid")
    sizes = tensor.shape[2:]
    for size in sizes:
        context.require_at_least(size, 1)
    places, weights = _along_axes(context, call, grid, sizes, mode, padding)
    shape = (batch, *out[1:])
    strides = strides_of((batch, *sizes))
    images = context.reshape(context.arange(batch), [batch, *[1] * (rank - 2)])
    moved = context.transpose(x, channels_last(rank), suffix="channels_last")
    pixels = context.reshape(moved, (product((batch, *sizes)), tensor.shape[1]), suffix="pixels")
    operands: list[str] = []
    for corner in cartesian(range(len(taps)), repeat=rank - 2):
        parts = [(images, strides[0])] + [(places[i][tap], strides[i + 1]) for i, tap in enumerate(corner)]
        linear = combine(context, parts, shape)
        operands.append(context.layer("gather", [pixels, linear], Tensor(tensor.dtype, (*shape, tensor.shape[1])), axis=0))
        operands += [weights[i][tap] for i, tap in enumerate(corner)]
    wide = "f64" if tensor.dtype == "f64" else "f32"

    def build(e: ExpressionBuilder, *values: int) -> int:
        total = -1
        for start in range(0, len(values), rank - 1):
            term = e("cast", values[start], dtype=wide)
            for weight in values[start + 1:start + rank - 1]:
                term = e("mul", term, e("cast", weight, dtype=wide))
            total = term if total < 0 else e("add", total, term)
        return e("cast", total, dtype=tensor.dtype)

    result = context.elementwise(operands, build, (*shape, tensor.shape[1]), suffix="sampled")
    context.transpose(result, channels_first(rank), output=call.outputs[0])


def _along_axes(context: Context, call: Call, grid: str, sizes: tuple[Dim, ...], mode: str,
                padding: str) -> tuple[list[list[str]], list[list[str]]]:
    """For each spatial dimension and tap the pixels' places, and their weights shaped to broadcast over channels."""
    out = context.shape(grid)[:-1]
    places, weights = [], []
    for i, size in enumerate(sizes):
        column = column_of(context, grid, len(sizes) - 1 - i, out)
        operands = [column, context.size_value(size)]

        def axis(e: ExpressionBuilder, g: int, s: int) -> _Axis:
            return _Axis(e, g, s, mode, padding, bool(call.get("align_corners", 0)))

        places.append([context.elementwise(operands, lambda e, g, s, t=tap: axis(e, g, s).place(t), out, suffix=f"place_{i}")
                       for tap in TAPS[mode]])
        weights.append([context.reshape(context.elementwise(operands, lambda e, g, s, t=tap: axis(e, g, s).weight(t), out,
                                                            suffix=f"weight_{i}"), (*out, 1)) for tap in TAPS[mode]])
    return places, weights


def _affine_grid(context: Context, call: Call) -> None:
    """Coordinate i of the grid at a place: theta's row i times the place's own coordinates, last dimension first, and 1."""
    theta = call.inputs[0]
    tensor, wanted = context.tensor(theta), context.known_sizes(call.inputs[1])
    rank = len(wanted) - 2
    if rank not in (2, 3) or len(tensor.shape) != 3 or tensor.dtype not in ("f16", "bf16", "f32", "f64"):
        raise ModelError(f"{call} has the transformations {tensor} for {rank} spatial dimensions")
    batch, sizes = context.same(tensor.shape[0], wanted[0], "the batch"), wanted[2:]
    context.same(tensor.shape[1], rank, "the rows of a transformation")
    context.same(tensor.shape[2], rank + 1, "the columns of a transformation")
    wide, align = "f64" if tensor.dtype == "f64" else "f32", bool(call.get("align_corners", 0))
    operands = [context.reshape(context.arange(d), (d, *[1] * (rank - i))) for i, d in reversed(list(enumerate(sizes)))]
    operands += [context.size_value(d) for d in reversed(sizes)]
    for column in range(rank + 1):
        cut = emit_slice(context, theta, (0, 0, column), (1, 1, 1), (batch, rank, 1), suffix=f"column_{column}")
        operands.append(context.reshape(cut, (batch, *[1] * rank, rank)))

    def build(e: ExpressionBuilder, *values: int) -> int:
        places, extents, columns = values[:rank], values[rank:2 * rank], [e("cast", v, dtype=wide) for v in values[2 * rank:]]
        one, two = e.constant(1.0, wide), e.constant(2.0, wide)
        total = columns[rank]
        for place, extent, column in zip(places, extents, columns, strict=False):
            i, size = e("cast", place, dtype=wide), e("cast", extent, dtype=wide)
            if align:
                at = e("sub", e("div", e("mul", i, two), e("max", e("sub", size, one), one)), one)
            else:
                at = e("sub", e("div", e("add", e("mul", i, two), one), size), one)
            total = e("add", total, e("mul", at, column))
        return e("cast", total, dtype=tensor.dtype)

    context.elementwise(operands, build, (batch, *sizes, rank), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {("", "AffineGrid"): _affine_grid, ("", "GridSample"): _grid_sample}
"""All operators of this file."""
