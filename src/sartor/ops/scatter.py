"""Operators that write at places chosen by indices, running totals, and the best k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import column_of, combine, emit_gather_elements, strides_of, wrapped
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, floordiv, maximum, product
from sartor.types import to_numpy


def emit_scatter(context: Context, x: str, linear: str, updates: str, rows: Dim, columns: Dim, op: str, output: str) -> None:
    """Emits a scatter of rows of `columns` elements into x seen as [rows, columns]."""
    tensor = context.tensor(x)
    count = product(context.shape(linear))
    flat = context.reshape(x, (rows, columns), suffix="rows")
    places = context.reshape(linear, (count,), suffix="places")
    new = context.reshape(updates, (count, columns), suffix="updates")
    made = context.layer("scatter", [flat, places, new], Tensor(tensor.dtype, (rows, columns)), suffix="scattered", op=op)
    context.reshape(made, tensor.shape, output=output)


def _operation(context: Context, call: Call) -> str:
    """The reduction of a scatter; declines types without compiled code."""
    op = call.get("reduction", "none")
    dtype = context.dtype(call.inputs[0])
    if op not in ("none", "add", "mul", "min", "max"):
        raise ModelError(f"{call} has the unknown reduction {op!r}")
    if dtype == "string" or (dtype == "bool" and op != "none"):
        raise DeclinedError(f"{call} scatters elements of type {dtype}")
    return str(op)


def _scatter_elements(context: Context, call: Call) -> None:
    """Along one axis an index, along all others the update's own place: a scatter into the flattened data."""
    x, indices, updates = call.inputs
    op, shape, taken = _operation(context, call), context.shape(x), context.shape(indices)
    if not shape:
        raise DeclinedError(f"{call} has a scalar input")
    if len(taken) != len(shape) or len(context.shape(updates)) != len(shape):
        raise ModelError(f"{call} has indices or updates of another number of dimensions than its input, {len(shape)}")
    for i, (a, b) in enumerate(zip(taken, context.shape(updates), strict=True)):
        context.same(a, b, f"dimension {i}")
    axis = axis_of(call.get("axis", 0), len(shape), call)
    strides = strides_of(shape)
    parts = [(_inside(context, indices, shape, axis), strides[axis])]
    for i, dim in enumerate(taken):
        if i != axis:
            context.require_at_least(shape[i], dim)
            if dim != 1:
                place = context.reshape(context.arange(dim), [dim, *[1] * (len(taken) - i - 1)])
                parts.append((place, strides[i]))
    linear = combine(context, parts, taken)
    emit_scatter(context, x, linear, updates, product(shape), 1, op, call.outputs[0])


def _inside(context: Context, indices: str, shape: Sequence[Dim], axis: int, suffix: str = "wrapped") -> str:
    """Indices with negative ones counted from the end; one outside of its dimension leads before the flattened tensor's start."""
    dim, far = shape[axis], product(shape[:axis + 1])
    counted = wrapped(context, indices, dim, suffix)
    array = context.constant(counted)
    if array is not None and isinstance(dim, int) and isinstance(far, int):
        fits = (array >= 0) & (array < dim)
        return counted if fits.all() else context.new_constant(np.where(fits, array, -far), f"{context.call.output(0)}.inside")
    return context.elementwise([counted, context.size_value(dim), context.size_value(far)], _checked, context.shape(indices),
                               suffix=f"{suffix}_inside")


def _checked(e: ExpressionBuilder, index: int, extent: int, far: int) -> int:
    """The index, or -far where it is not in 0...extent."""
    fits = e("and", e("ge", index, e.constant(0, "i64")), e("lt", index, extent))
    return e("select", fits, index, e("neg", far))


def _scatter_nd(context: Context, call: Call) -> None:
    """Index tuples over the first dimensions: a scatter of slices."""
    x, indices, updates = call.inputs
    op, shape, taken = _operation(context, call), context.shape(x), context.shape(indices)
    depth = taken[-1] if taken else 0
    if not isinstance(depth, int):
        raise DeclinedError(f"{call} has index tuples of a length that is not known")
    if not 1 <= depth <= len(shape):
        raise ModelError(f"{call} has index tuples of {depth} numbers for an input of {len(shape)} dimensions")
    places, given = taken[:-1], context.shape(updates)
    if len(given) != len(places) + len(shape) - depth:
        raise ModelError(f"{call} has updates of {len(given)} dimensions; expected {len(places) + len(shape) - depth}")
    for i, (a, b) in enumerate(zip((*places, *shape[depth:]), given, strict=True)):
        context.same(a, b, f"dimension {i} of the updates")
    strides = strides_of(shape[:depth])
    parts = [(_inside(context, column_of(context, indices, i, places), shape, i, f"wrapped_{i}"), strides[i]) for i in range(depth)]
    linear = combine(context, parts, places)
    emit_scatter(context, x, linear, updates, product(shape[:depth]), product(shape[depth:]), op, call.outputs[0])


def _tensor_scatter(context: Context, call: Call) -> None:
    """A stretch of a cache written at a place of each batch's own, around its end where it is circular."""
    cache, update, first = call.inputs[0], call.inputs[1], call.input(2)
    shape, given = context.shape(cache), context.shape(update)
    axis = axis_of(call.get("axis", -2), len(shape), call)
    if axis == 0 or context.dtype(cache) == "string":
        raise DeclinedError(f"{call} scatters along its batch dimension")
    for i, (a, b) in enumerate(zip(shape, given, strict=True)):
        if i != axis:
            context.same(a, b, f"dimension {i}")
    context.require_at_least(shape[axis], given[axis])
    places = given[:axis + 1]
    step = context.arange(given[axis])
    circular = call.get("mode", "linear") == "circular"
    operands = [step, context.size_value(shape[axis]), context.size_value(product(shape[:axis + 1]))]
    if first:
        operands.append(context.reshape(first, (given[0], *[1] * axis)))

    def build(e: ExpressionBuilder, i: int, extent: int, far: int, origin: int | None = None) -> int:
        place = i if origin is None else e("add", i, origin)
        return e("mod", place, extent) if circular else _checked(e, place, extent, far)

    first_place = context.elementwise(operands, build, places, suffix="at")
    parts: list[tuple[str, Dim]] = [(first_place, 1)]
    strides = strides_of(shape[:axis + 1])
    parts += [(context.reshape(context.arange(d), [d, *[1] * (axis - i)]), strides[i]) for i, d in enumerate(places[:-1])]
    linear = combine(context, parts, places)
    emit_scatter(context, cache, linear, update, product(shape[:axis + 1]), product(shape[axis + 1:]), "none", call.outputs[0])


def cumulative(op: str) -> Operator:
    """CumSum and CumProd.  Where the axis is known only when the model runs, the totals along all axes are made and one taken."""
    def lower(context: Context, call: Call) -> None:
        x, given = call.inputs
        tensor = context.tensor(x)
        rank = len(tensor.shape)
        if not rank or tensor.dtype in ("bool", "string"):
            raise DeclinedError(f"{call} has an input of type {tensor}")
        options: dict[str, Any] = {"op": op, "exclusive": bool(call.get("exclusive", 0)), "reverse": bool(call.get("reverse", 0))}
        known = context.ints(given)
        axes = [axis_of(known[0], rank, call)] if known else list(range(rank))
        if len(axes) == 1:
            context.layer("cumulative", [x], tensor, output=call.outputs[0], axis=axes[0], **options)
            return
        totals = [context.layer("cumulative", [x], tensor, suffix=f"along_{axis}", axis=axis, **options) for axis in axes]

        def build(e: ExpressionBuilder, axis: int, *values: int) -> int:
            chosen = values[-1]
            kind = context.dtype(given)
            for place, value in enumerate(values[:-1]):
                here = e("or", e("eq", axis, e.constant(place, kind)), e("eq", axis, e.constant(place - rank, kind)))
                chosen = e("select", here, value, chosen)
            return chosen

        context.elementwise([context.reshape(given, ()), *totals], build, tensor.shape, output=call.outputs[0])

    return lower


def _top_k(context: Context, call: Call) -> None:
    """The places of the best elements, and the elements gathered from there."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    if not tensor.shape or tensor.dtype in ("bool", "string"):
        raise DeclinedError(f"{call} has an input of type {tensor}")
    axis = axis_of(call.get("axis", -1), len(tensor.shape), call)
    count: Dim
    if call.input(1) and context.dims(call.inputs[1]) is None:
        count, = context.bind("at_most", [call.inputs[1]], 1, [tensor.shape[axis]])
    else:
        count = context.require_dims(call.inputs[1])[0] if call.input(1) else call["k"]
        context.require_at_least(tensor.shape[axis], count)
        context.require_at_least(count, 0)
    shape = tuple(count if i == axis else d for i, d in enumerate(tensor.shape))
    places = context.layer("topk", [x], Tensor("i64", shape), output=call.output(1) or None, suffix="places",
                           axis=axis, largest=bool(call.get("largest", 1)))
    if call.output(0):
        emit_gather_elements(context, x, places, axis, call.outputs[0])


def _reverse_sequence(context: Context, call: Call) -> None:
    """The first `length` elements along time turned round, for each batch its own length."""
    x, lengths = call.inputs
    shape = context.shape(x)
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    if {time, batch} != {0, 1} or len(shape) < 2 or context.dtype(lengths) != "i64":
        raise DeclinedError(f"{call} has the axes {time} and {batch}")
    context.same(context.shape(lengths)[0], shape[batch], "the batch")
    steps = context.reshape(context.arange(shape[time]), (shape[time], 1) if time == 0 else (1, shape[time]))
    length = context.reshape(lengths, (shape[batch], 1) if batch == 0 else (1, shape[batch]))

    def build(e: ExpressionBuilder, i: int, count: int, most: int) -> int:
        turned = e("sub", e("sub", e("min", count, most), e.constant(1, "i64")), i)
        return e("select", e("lt", i, count), turned, i)

    source = context.elementwise([steps, length, context.size_value(shape[time])], build, shape[:2], suffix="turned")
    place = context.reshape(context.arange(shape[batch]), (shape[batch], 1) if batch == 0 else (1, shape[batch]))
    strides: Sequence[Dim] = strides_of(shape[:2])
    linear = combine(context, [(source, strides[time]), (place, strides[batch])], shape[:2])
    flat = context.reshape(x, (shape[0] * shape[1], *shape[2:]), suffix="flat")
    context.layer("gather", [flat, linear], context.tensor(x), output=call.outputs[0], axis=0)


def _zeros(context: Context, dtype: str, shape: Sequence[Dim]) -> str:
    filler = context.new_constant(np.zeros((), to_numpy(dtype)), f"{context.call.outputs[0]}.zero")
    return context.elementwise([filler], lambda e, x: x, shape, suffix="zeros")


def _col2im(context: Context, call: Call) -> None:
    """Columns of blocks added to the places of an image they came from; what lies in its padding is passed over."""
    x = call.inputs[0]
    tensor, image, block = context.tensor(x), context.known_sizes(call.inputs[1]), context.known_sizes(call.inputs[2])
    rank, count = len(image), product(block)
    if len(tensor.shape) != 3 or tensor.dtype in ("bool", "string"):
        raise DeclinedError(f"{call} has an input of type {tensor}")
    strides, dilations = call.get("strides") or [1] * rank, call.get("dilations") or [1] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    known = [d for d in (*image, *block) if isinstance(d, int)]
    if not len(block) == len(strides) == len(dilations) == len(pads) / 2 == rank or min((*known, *strides, *dilations)) < 1:
        raise ModelError(f"{call} has blocks, strides, dilations or pads that do not fit an image of {rank} dimensions")
    for dim in block:
        context.require_at_least(dim, 1)
    channels = floordiv(tensor.shape[1], count)
    context.same(tensor.shape[1], channels * count, "the channels")
    windows = [floordiv(image[i] + pads[i] + pads[i + rank] - (block[i] - 1) * dilations[i] - 1, strides[i]) + 1 for i in range(rank)]
    context.same(tensor.shape[2], maximum(product(windows), 0), "the blocks")
    linear = _places_of_blocks(context, image, (*block, *windows), strides, dilations, pads)
    planes, pixels, blocks = tensor.shape[0] * channels, product(image), count * tensor.shape[2]
    columns = context.transpose(context.reshape(x, (planes, blocks), suffix="columns"), (1, 0), suffix="blocks")
    reads = [_zeros(context, tensor.dtype, (pixels, planes)), context.reshape(linear, (blocks,), suffix="places"), columns]
    made = context.layer("scatter", reads, Tensor(tensor.dtype, (pixels, planes)), suffix="scattered", op="add")
    moved = context.transpose(made, (1, 0), suffix="planes")
    context.reshape(moved, (tensor.shape[0], channels, *image), output=call.outputs[0])


def _places_of_blocks(context: Context, image: Sequence[Dim], shape: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int],
                      pads: Sequence[int]) -> str:
    """For each element of each block its place in the flattened image, -1 for those in the padding; blocks' dimensions come first."""
    rank, all_dims = len(image), len(shape)
    spread = [context.reshape(context.arange(d), (d, *[1] * (all_dims - 1 - i))) for i, d in enumerate(shape)]

    def build(e: ExpressionBuilder, *operands: int) -> int:
        total, inside = e.constant(0, "i64"), e.constant(True, "bool")
        for i in range(rank):
            tap, step, size = operands[i], operands[rank + i], operands[2 * rank + i]
            moved = e("add", e("mul", step, e.constant(strides[i], "i64")), e("mul", tap, e.constant(dilations[i], "i64")))
            place = e("sub", moved, e.constant(pads[i], "i64"))
            total = e("add", e("mul", total, size), place)
            inside = e("and", inside, e("and", e("ge", place, e.constant(0, "i64")), e("lt", place, size)))
        return e("select", inside, total, e.constant(-1, "i64"))

    return context.elementwise([*spread, *map(context.size_value, image)], build, shape, suffix="linear")


def _max_unpool(context: Context, call: Call) -> None:
    """Maxima back at the places that pooling noted; zeros elsewhere, and around where a larger shape is wanted."""
    x, indices = call.inputs[:2]
    tensor, kernel = context.tensor(x), call["kernel_shape"]
    rank = len(kernel)
    strides, pads = call.get("strides") or [1] * rank, call.get("pads") or [0] * (2 * rank)
    if len(tensor.shape) != rank + 2 or len(strides) != rank or len(pads) != 2 * rank or context.dtype(indices) != "i64":
        raise ModelError(f"{call} has a kernel, strides or pads that do not fit its input {tensor}")
    sizes = [(d - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i, d in enumerate(tensor.shape[2:])]
    shape = (*tensor.shape[:2], *sizes)
    wanted = tuple(context.known_sizes(call.inputs[2])) if call.input(2) else shape
    if len(wanted) != len(shape):
        raise ModelError(f"{call} wants {len(wanted)} dimensions for an input of {len(shape)}")
    for size, dim in zip(wanted, shape, strict=True):
        context.require_at_least(size, dim)
    count = product(tensor.shape)
    reads = [_zeros(context, tensor.dtype, (product(shape), 1)), context.reshape(indices, (count,), suffix="places"),
             context.reshape(x, (count, 1), suffix="maxima")]
    made = context.layer("scatter", reads, Tensor(tensor.dtype, (product(shape), 1)), suffix="scattered", op="none")
    if wanted == shape:
        context.reshape(made, shape, output=call.outputs[0])
        return
    inner = context.reshape(made, shape, suffix="inner")
    context.layer("pad", [inner], Tensor(tensor.dtype, wanted), output=call.outputs[0], before=(0,) * len(shape), mode="constant",
                  value=0.0)


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Col2Im"): _col2im,
    ("", "CumProd"): cumulative("prod"),
    ("", "CumSum"): cumulative("sum"),
    ("", "MaxUnpool"): _max_unpool,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Scatter"): _scatter_elements,
    ("", "ScatterElements"): _scatter_elements,
    ("", "ScatterND"): _scatter_nd,
    ("", "TensorScatter"): _tensor_scatter,
    ("", "TopK"): _top_k,
}
