"""Operators that move elements without computing: reshaping, transposing, joining, cutting, padding, repeating."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder, identity
from sartor.graph.layer import Tensor
from sartor.ops.assume import is_one
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, Size, at_least, ceildiv, floordiv, maximum, minimum, modulo, product, substitute, symbol, symbols

_FAR = 1 << 48  # ends from here on mean "to the end": no tensor reaches them
_ENDS = (10**9, (1 << 31) - 1, 1 << 31)  # which exporters write for it too


def _transpose(context: Context, call: Call) -> None:
    rank = len(context.shape(call.inputs[0]))
    perm = call.get("perm") or list(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{call} has perm {perm} for an input of {rank} dimensions")
    context.transpose(call.inputs[0], perm, output=call.outputs[0])


# --- views -----------------------------------------------------------------------------------------------------------------


def resolve_shape(context: Context, call: Call, source: Sequence[Dim], wanted: Sequence[Dim], allow_zero: bool) -> list[Dim]:
    """The shape that a reshape asks for: 0 copies a dimension, -1 takes what is left."""
    copied = [i for i, d in enumerate(wanted) if d == 0 and not allow_zero]
    if any(i >= len(source) for i in copied):
        raise ModelError(f"{call} copies dimension {copied[-1]} of an input of {len(source)} dimensions")
    out = [source[i] if i in copied else d for i, d in enumerate(wanted)]
    total = product(source)
    free = [i for i, d in enumerate(out) if d == -1]
    if len(free) > 1:
        raise ModelError(f"{call} leaves two dimensions open: {list(wanted)}")
    if free:
        rest = _cancelled(source, [d for i, d in enumerate(out) if i != free[0]])
        known = product(d for i, d in enumerate(out) if i != free[0])
        if known == 0:
            raise ModelError(f"{call} cannot tell the open dimension of {list(wanted)}")
        out[free[0]] = floordiv(*rest)
        if isinstance(total, int) and isinstance(known, int) and total % known:
            raise ModelError(f"{call} cannot turn {list(source)} into {list(wanted)}")
    context.same(total, product(out), "its elements")
    return out


def _cancelled(source: Sequence[Dim], taken: Sequence[Dim]) -> tuple[Dim, Dim]:
    """What is left of both products after equal factors are struck out."""
    left = list(source)
    over: list[Dim] = []
    for dim in taken:
        if dim in left:
            left.remove(dim)
        else:
            over.append(dim)
    return product(left), product(over)


def _reshape(context: Context, call: Call) -> None:
    x = call.inputs[0]
    source, allow_zero = context.shape(x), bool(call.get("allowzero", 0))
    wanted = context.dims(call.inputs[1]) if call.version >= 5 else call["shape"]
    if wanted is not None:
        shape = resolve_shape(context, call, source, wanted, allow_zero)
    else:
        length, = context.static_shape(call.inputs[1])
        shape = context.bind("reshape", [call.inputs[1]], length, source, allow_zero=allow_zero)
    context.reshape(x, shape, output=call.outputs[0])


def _flatten(context: Context, call: Call) -> None:
    shape = context.shape(call.inputs[0])
    axis = call.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    context.reshape(call.inputs[0], (product(shape[:axis]), product(shape[axis:])), output=call.outputs[0])


def _axes(context: Context, call: Call) -> list[int] | None:
    """The axes where they are known or absent."""
    if call.input(1):
        return context.ints(call.inputs[1])
    axes: list[int] | None = call.get("axes")
    return axes


def _squeeze(context: Context, call: Call) -> None:
    shape = context.shape(call.inputs[0])
    axes = _axes(context, call)
    if axes is None and call.input(1):
        count, = context.static_shape(call.inputs[1])
        rest = context.bind("squeeze", [call.inputs[1]], len(shape) - count, shape)
        context.reshape(call.inputs[0], rest, output=call.outputs[0])
        return
    if axes is None:
        ones = [is_one(d, context.facts) for d in shape]
        if any(isinstance(one, Size) for one in ones):
            raise DeclinedError(f"{call} drops dimensions that depend on sizes")
        dropped = {i for i, one in enumerate(ones) if one}
    else:
        dropped = {axis_of(a, len(shape), call) for a in axes}
    for axis in dropped:
        context.same(shape[axis], 1, f"dimension {axis}, which it drops")
    context.reshape(call.inputs[0], [d for i, d in enumerate(shape) if i not in dropped], output=call.outputs[0])


def _unsqueeze(context: Context, call: Call) -> None:
    shape = list(context.shape(call.inputs[0]))
    axes = _axes(context, call)
    if axes is None:
        count, = context.static_shape(call.inputs[1])
        longer = context.bind("unsqueeze", [call.inputs[1]], len(shape) + count, shape)
        context.reshape(call.inputs[0], longer, output=call.outputs[0])
        return
    rank = len(shape) + len(axes)
    for axis in sorted(axis_of(a, rank, call) for a in axes):
        shape.insert(axis, 1)
    context.reshape(call.inputs[0], shape, output=call.outputs[0])


# --- joining and cutting ---------------------------------------------------------------------------------------------------


def _concat(context: Context, call: Call) -> None:
    emit_concat(context, call, call.inputs, call.get("axis", 1))


def emit_concat(context: Context, call: Call, values: Sequence[str], axis: int) -> None:
    """Makes the node's output of `values` joined along an axis."""
    tensors = [context.tensor(v) for v in values]
    rank = len(tensors[0].shape)
    if any(len(t.shape) != rank or t.dtype != tensors[0].dtype for t in tensors):
        raise ModelError(f"{call} joins inputs of different numbers of dimensions or types: {', '.join(map(str, tensors))}")
    if len(tensors) == 1:
        context.alias(call.outputs[0], values[0])
        return
    axis = axis_of(axis, rank, call)
    shape: list[Dim] = list(tensors[0].shape)
    for tensor in tensors[1:]:
        for i in range(rank):
            shape[i] = shape[i] + tensor.shape[i] if i == axis else context.same(shape[i], tensor.shape[i], f"dimension {i}")
    context.layer("concat", values, Tensor(tensors[0].dtype, tuple(shape)), output=call.outputs[0], axis=axis)


def emit_slice(context: Context, x: str, starts: Sequence[Dim], steps: Sequence[int], shape: Sequence[Dim], *,
               output: str | None = None, suffix: str = "slice") -> str:
    """Emits a slice."""
    return context.layer("slice", [x], Tensor(context.dtype(x), tuple(shape)), output=output, suffix=suffix,
                         starts=tuple(starts), steps=tuple(steps))


def _split(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = context.shape(x)
    axis = axis_of(call.get("axis", 0), len(shape), call)
    if call.input(1):
        sizes = context.dims(call.inputs[1]) or context.bind("parts", [call.inputs[1]], len(call.outputs), [shape[axis]])
    else:
        sizes = call.get("split") or _even(context, call, shape[axis])
    if len(sizes) != len(call.outputs):
        raise ModelError(f"{call} has {len(sizes)} sizes for {len(call.outputs)} outputs")
    total: Dim = 0
    for number, (name, size) in enumerate(zip(call.outputs, sizes, strict=True)):
        if name:
            starts = [total if i == axis else 0 for i in range(len(shape))]
            part = [size if i == axis else d for i, d in enumerate(shape)]
            emit_slice(context, x, starts, [1] * len(shape), part, output=name, suffix=f"part_{number}")
        total = total + size
    if not call.input(1) or context.dims(call.inputs[1]) is not None:  # else the rule has looked at it
        context.same(shape[axis], total, f"dimension {axis}")


def _even(context: Context, call: Call, dim: Dim) -> list[Dim]:
    count = len(call.outputs)
    if not isinstance(dim, Size) or modulo(dim, count) == 0:
        chunk = ceildiv(dim, count)
        return [chunk] * (count - 1) + [dim - chunk * (count - 1)]
    chunk = floordiv(dim, count)
    context.same(dim, chunk * count, "the axis it splits evenly")
    return [chunk] * count


def slice_axis(context: Context, dim: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """Start and number of elements of a slice of one dimension, as formulas; places outside are the first or the last."""
    if step > 0:
        begin, end_at = (_far(place, 0, dim) for place in (start, end))
        end_at = minimum(_from_end(context, dim, end), dim) if end_at is None else end_at
        begin = _from_end(context, dim, start) if begin is None else begin
        if isinstance(start, int) and start < 0 and isinstance(begin, Size) and end_at == dim:  # the last ones, as many as there are
            return begin, ceildiv(-start if begin == dim + start else minimum(dim, -start), step)
        count = _count(context, dim, end_at - begin, step)
        inside = not isinstance(begin, int) or (end_at == dim and _inside(dim, begin))
        return begin if inside else minimum(begin, dim), count
    begin, last = _far(start, minimum(0, dim - 1), dim - 1), _far(end, -1, dim - 1)
    begin = minimum(_from_end(context, dim, start), dim - 1) if begin is None else begin
    last = _from_end(context, dim, end, -1) if last is None else last
    if isinstance(last, int) and isinstance(begin, int):
        last = max(last, -1)
    return begin, _count(context, dim, begin - last, -step)


def _far(place: Dim, first: Dim, last: Dim) -> Dim | None:
    """Where a place is that lies beyond all tensors, before or behind; None for others."""
    if not isinstance(place, int) or (abs(place) < _FAR and abs(place) not in _ENDS):
        return None
    if isinstance(last, int) and abs(place) <= last:  # such a large dimension
        return None
    return first if place < 0 else last


def _count(context: Context, dim: Dim, span: Dim, step: int) -> Dim:
    """How many steps a span has; a symbolic dimension less a number is held to be at least 0 where only empty ones are less."""
    if isinstance(span, Size) and isinstance(less := dim - span, int) and _inside(dim, less):
        context.require_at_least(span, 0)
        return ceildiv(span, step)
    return maximum(ceildiv(span, step), 0)


def _inside(dim: Dim, number: int) -> bool:
    """Whether a dimension has so many elements where nothing is empty, so that the simple formula will do."""
    return number <= 1 or at_least(substitute(dim, {name: symbol(name) + 1 for name in symbols(dim)}), number)


def _from_end(context: Context, dim: Dim, place: Dim, least: int = 0) -> Dim:
    """A position that counts from the start, at least `least`; negative ones count from the end."""
    if isinstance(place, int):
        if place >= 0:
            return place
        if isinstance(dim, int) or not _inside(dim, -place):
            return maximum(place + dim, least)
        context.require_at_least(dim, -place)
        return dim + place
    if at_least(place * -1, 1):
        context.require_at_least(dim, 0 - place)
        return dim + place
    context.require_at_least(place, 0)
    return place


def _slice(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = list(context.shape(x))
    rank = len(shape)
    if call.version >= 10:
        given = [context.dims(v) if v else [] for v in (call.inputs[1], call.inputs[2], call.input(3), call.input(4))]
        if any(dims is None for dims in given) or any(isinstance(d, Size) for dims in given[2:] for d in dims or ()):
            _slice_bound(context, call)
            return
        starts, ends = context.require_dims(call.inputs[1]), context.require_dims(call.inputs[2])
        axes = context.require_ints(call.inputs[3]) if call.input(3) else list(range(len(starts)))
        steps = context.require_ints(call.inputs[4]) if call.input(4) else [1] * len(starts)
    else:
        starts, ends = call["starts"], call["ends"]
        axes, steps = call.get("axes") or list(range(len(starts))), [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ModelError(f"{call} has starts, ends, axes and steps that do not fit each other")
    begins: list[Dim] = [0] * rank
    strides = [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis_of(axis, rank, call)
        begins[place], shape[place] = slice_axis(context, shape[place], start, end, step)
        strides[place] = step
    emit_slice(context, x, begins, strides, shape, output=call.outputs[0])


def _slice_bound(context: Context, call: Call) -> None:
    """A slice whose places depend on data.  Where steps do too, the places of each axis become a vector to gather by."""
    x, shape = call.inputs[0], list(context.shape(call.inputs[0]))
    rank, (count,) = len(shape), context.static_shape(call.inputs[1])
    axes = context.ints(call.inputs[3]) if call.input(3) else list(range(count))
    steps = context.ints(call.inputs[4]) if call.input(4) else [1] * count
    reads = [*call.inputs[1:3], call.input(3), call.input(4)]
    for place, numbers in ((2, range(count)), (3, [1] * count)):
        reads[place] = reads[place] or context.new_constant(np.array(numbers, np.int64), f"{call.outputs[0]}.default")
    if any(context.shape(v) != (count,) for v in reads):
        raise ModelError(f"{call} has starts, ends, axes and steps that do not fit each other")
    found = context.bind("slice", reads, 4 * rank, shape)
    touched = range(rank) if axes is None else [axis_of(a, rank, call) for a in axes]
    begins = [found[i] if i in touched else 0 for i in range(rank)]
    counts = [found[rank + i] if i in touched else shape[i] for i in range(rank)]
    if steps is not None and (axes is not None or set(steps) <= {1}):
        strides = dict(zip(touched, steps, strict=False)) if axes is not None else {}
        emit_slice(context, x, begins, [strides.get(i, 1) for i in range(rank)], counts, output=call.outputs[0])
        return
    for i in touched:
        shape[i] = counts[i]
        stride = found[2 * rank + i] - found[3 * rank + i]
        operands = [context.arange(counts[i]), context.size_value(begins[i]), context.size_value(stride)]
        places = context.elementwise(operands, lambda e, k, begin, step: e("add", begin, e("mul", k, step)), (counts[i],), suffix="places")
        last = i == touched[-1]
        x = context.layer("gather", [x, places], Tensor(context.dtype(x), tuple(shape)), axis=i, output=call.outputs[0] if last else None)


# --- padding and repeating -------------------------------------------------------------------------------------------------


def _pad(context: Context, call: Call) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    if tensor.dtype == "string":
        raise DeclinedError(f"{call} pads strings")
    before, shape = _pads(context, call, tensor.shape)
    fill, value = call.input(2) if call.version >= 11 else "", float(call.get("value", 0.0)) if call.version < 11 else 0.0
    if fill and (array := context.constant(fill)) is not None and _as_float(array) == array.item():
        fill, value = "", _as_float(array)
    constant = call.get("mode", "constant") == "constant"
    later = bool(fill) and constant
    padded = context.layer("pad", [x], Tensor(tensor.dtype, tuple(shape)), output=None if later else call.outputs[0],
                           before=tuple(before), mode=call.get("mode", "constant"), value=value)
    if later:
        _fill_outside(context, padded, context.reshape(fill, ()), tensor.shape, before, call.outputs[0])


def _as_float(array: Array) -> float:
    """A constant of one element as a float, which may not be able to hold it."""
    return float(array.reshape(-1)[0])


def _pads(context: Context, call: Call, source: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """How much comes before each dimension (less than 0: is cut off), and the padded shape."""
    rank = len(source)
    axes: Sequence[int] | None = range(rank)
    if call.version < 11:
        pads = call["pads"] if call.version >= 2 else call["paddings"]
    else:
        pads = context.dims(call.inputs[1])
        axes = context.ints(call.inputs[3]) if call.input(3) else axes
    if pads is None or axes is None:
        given = call.input(3) or context.new_constant(np.arange(rank, dtype=np.int64), f"{call.outputs[0]}.axes")
        if context.static_shape(call.inputs[1]) != (2 * context.static_shape(given)[0],):
            raise ModelError(f"{call} has pads that do not fit its axes")
        found = context.bind("pad", [call.inputs[1], given], 3 * rank, source, mode=call.get("mode", "constant"))
        touched = range(rank) if axes is None else [axis_of(a, rank, call) for a in axes]
        return ([found[i] - found[rank + i] if i in touched else 0 for i in range(rank)],
                [found[2 * rank + i] if i in touched else source[i] for i in range(rank)])
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{call} has {len(pads)} pads for {len(axes)} dimensions")
    before: list[Dim] = [0] * rank
    shape = list(source)
    for i, axis in enumerate(axes):
        place = axis_of(axis, rank, call)
        before[place] = pads[i]
        shape[place] = shape[place] + pads[i] + pads[len(axes) + i]
    return before, shape


def _fill_outside(context: Context, padded: str, fill: str, source: Sequence[Dim], before: Sequence[Dim], output: str) -> None:
    """Puts a value where a padded tensor has nothing of what was padded."""
    shape = context.shape(padded)
    operands = [padded, fill]
    for i, dim in enumerate(source):
        if shape[i] != dim or before[i] != 0:
            operands += [context.reshape(context.arange(shape[i]), (shape[i], *[1] * (len(shape) - i - 1))),
                         context.size_value(before[i]), context.size_value(before[i] + dim)]

    def build(e: ExpressionBuilder, x: int, value: int, *places: int) -> int:
        out = x
        for i, first, end in zip(places[::3], places[1::3], places[2::3], strict=True):
            out = e("select", e("and", e("ge", i, first), e("lt", i, end)), out, value)
        return out

    context.elementwise(operands, build, shape, output=output)


def _center_crop_pad(context: Context, call: Call) -> None:
    """Each axis cut, or padded with zeros, on both sides; of an odd difference the larger half comes after."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    rank = len(tensor.shape)
    axes = [axis_of(a, rank, call) for a in (call.get("axes") or range(rank))]
    wanted = context.known_sizes(call.inputs[1])
    if len(wanted) != len(axes) or tensor.dtype == "string":
        raise ModelError(f"{call} is given {len(wanted)} sizes for {len(axes)} dimensions")
    shape = list(tensor.shape)
    before: list[Dim] = [0] * rank
    for axis, size in zip(axes, wanted, strict=True):
        more = size - shape[axis]
        before[axis] = floordiv(maximum(more, 0), 2) - floordiv(maximum(more * -1, 0), 2)
        shape[axis] = size
    context.layer("pad", [x], Tensor(tensor.dtype, tuple(shape)), output=call.outputs[0], before=tuple(before), mode="constant",
                  value=0.0)


def broadcast_to(context: Context, x: str, shape: Sequence[Dim], output: str | None) -> str:
    dtype = context.dtype(x)
    if output is None and context.shape(x) == tuple(shape):
        return x
    return context.layer("elementwise", [x], Tensor(dtype, tuple(shape)), output=output, suffix="" if output else "expand",
                         expression=identity(dtype))


def _expanded(context: Context, call: Call) -> tuple[Dim, ...]:
    """The shape that the input and a wanted shape broadcast to."""
    source, wanted = context.shape(call.inputs[0]), context.dims(call.inputs[1])
    if wanted is not None:
        return context.broadcast([source, wanted])
    length, = context.static_shape(call.inputs[1])
    rank = max(len(source), length)
    found = context.bind("expand", [call.inputs[1]], rank, source)
    known = [1] * (rank - len(source)) + list(source)
    return tuple(d if isinstance(d, int) and d != 1 else f for d, f in zip(known, found, strict=True))


def _expand(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = _expanded(context, call)
    if shape == context.shape(x):
        context.alias(call.outputs[0], x)
    else:
        broadcast_to(context, context.broadcastable(x, shape), shape, call.outputs[0])


def _tile(context: Context, call: Call) -> None:
    """Repeats by broadcasting over a new dimension in front of each repeated one."""
    x = call.inputs[0]
    shape = context.shape(x)
    repeats: Sequence[Dim] = context.known_sizes(call.inputs[1])
    if call.version < 6:  # tiles along one axis
        axis, = context.require_ints(call.inputs[2])
        repeats = [repeats[0] if i == axis else 1 for i in range(len(shape))]
    if len(repeats) != len(shape):
        raise ModelError(f"{call} has {len(repeats)} repeats for an input of {len(shape)} dimensions")
    if all(r == 1 for r in repeats):
        context.alias(call.outputs[0], x)
        return
    split: list[Dim] = []
    spread: list[Dim] = []
    for dim, repeat in zip(shape, repeats, strict=True):
        split += [dim] if repeat == 1 else [1, dim]
        spread += [dim] if repeat == 1 else [repeat, dim]
    expanded = broadcast_to(context, context.reshape(x, split, suffix="split"), spread, None)
    context.reshape(expanded, [d * r for d, r in zip(shape, repeats, strict=True)], output=call.outputs[0])


def _depth_to_space(context: Context, call: Call) -> None:
    x = call.inputs[0]
    batch, channels, height, width = context.shape(x)
    block = call["blocksize"]
    depth = floordiv(channels, block * block)
    if call.get("mode", "DCR") == "DCR":
        split, perm = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    moved = context.transpose(context.reshape(x, split, suffix="split"), perm)
    context.reshape(moved, (batch, depth, height * block, width * block), output=call.outputs[0])


def _space_to_depth(context: Context, call: Call) -> None:
    x = call.inputs[0]
    batch, channels, height, width = context.shape(x)
    block = call["blocksize"]
    rows, columns = floordiv(height, block), floordiv(width, block)
    context.same(height, rows * block, "the height")
    context.same(width, columns * block, "the width")
    split = context.reshape(x, (batch, channels, rows, block, columns, block), suffix="split")
    moved = context.transpose(split, (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4))
    context.reshape(moved, (batch, channels * (block * block), rows, columns), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "CenterCropPad"): _center_crop_pad,
    ("", "Concat"): _concat,
    ("", "DepthToSpace"): _depth_to_space,
    ("", "Expand"): _expand,
    ("", "Flatten"): _flatten,
    ("", "Pad"): _pad,
    ("", "Reshape"): _reshape,
    ("", "Slice"): _slice,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "Split"): _split,
    ("", "Squeeze"): _squeeze,
    ("", "Tile"): _tile,
    ("", "Transpose"): _transpose,
    ("", "Unsqueeze"): _unsqueeze,
}
