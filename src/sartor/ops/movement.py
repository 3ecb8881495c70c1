"""Operators that move elements without computing: reshaping, transposing, joining, cutting, padding, repeating."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import identity
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError, axis_of
from sartor.ops.elementwise import Operator
from sartor.sizes import Dim, Size, at_least, ceildiv, floordiv, maximum, minimum, modulo, product

_FAR = 10 ** 9  # ends from here on mean "to the end"; exporters write this number, 2^31 - 1 and 2^63 - 1


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
    wanted = context.require_dims(call.inputs[1]) if call.version >= 5 else call["shape"]
    shape = resolve_shape(context, call, context.shape(x), wanted, bool(call.get("allowzero", 0)))
    context.reshape(x, shape, output=call.outputs[0])


def _flatten(context: Context, call: Call) -> None:
    shape = context.shape(call.inputs[0])
    axis = call.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    context.reshape(call.inputs[0], (product(shape[:axis]), product(shape[axis:])), output=call.outputs[0])


def _axes(context: Context, call: Call) -> list[int] | None:
    if call.input(1):
        return context.require_ints(call.inputs[1])
    axes: list[int] | None = call.get("axes")
    return axes


def _squeeze(context: Context, call: Call) -> None:
    shape = context.shape(call.inputs[0])
    axes = _axes(context, call)
    if axes is None:
        if any(isinstance(d, Size) for d in shape):
            raise DeclinedError(f"{call} drops dimensions that depend on sizes")
        dropped = {i for i, d in enumerate(shape) if d == 1}
    else:
        dropped = {axis_of(a, len(shape), call) for a in axes}
    for axis in dropped:
        context.same(shape[axis], 1, f"dimension {axis}, which it drops")
    context.reshape(call.inputs[0], [d for i, d in enumerate(shape) if i not in dropped], output=call.outputs[0])


def _unsqueeze(context: Context, call: Call) -> None:
    shape = list(context.shape(call.inputs[0]))
    axes = _axes(context, call) or []
    rank = len(shape) + len(axes)
    for axis in sorted(axis_of(a, rank, call) for a in axes):
        shape.insert(axis, 1)
    context.reshape(call.inputs[0], shape, output=call.outputs[0])


def _dropout(context: Context, call: Call) -> None:
    training = context.constant(call.inputs[2]) if call.input(2) else np.array(False)
    if training is None or bool(training.reshape(-1)[0]) or (call.version < 7 and not call.get("is_test", 0)):
        raise DeclinedError(f"{call} trains")
    context.alias(call.outputs[0], call.inputs[0])
    if call.output(1):
        tensor = context.tensor(call.inputs[0])
        true = context.new_constant(np.array(True), f"{call.outputs[1]}.true")
        _broadcast_to(context, true, tensor.shape, call.outputs[1])


# --- joining and cutting ---------------------------------------------------------------------------------------------------


def _concat(context: Context, call: Call) -> None:
    tensors = [context.tensor(v) for v in call.inputs]
    rank = len(tensors[0].shape)
    if any(len(t.shape) != rank for t in tensors):
        raise ModelError(f"{call} joins inputs of different numbers of dimensions: {', '.join(map(str, tensors))}")
    if len(tensors) == 1:
        context.alias(call.outputs[0], call.inputs[0])
        return
    axis = axis_of(call.get("axis", 1), rank, call)
    shape: list[Dim] = list(tensors[0].shape)
    for tensor in tensors[1:]:
        for i in range(rank):
            shape[i] = shape[i] + tensor.shape[i] if i == axis else context.same(shape[i], tensor.shape[i], f"dimension {i}")
    context.layer("concat", call.inputs, Tensor(tensors[0].dtype, tuple(shape)), output=call.outputs[0], axis=axis)


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
        sizes = context.require_dims(call.inputs[1])
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
    """Start and number of elements of a slice of one dimension (NumPy's rules), as formulas."""
    if step > 0:
        end_at = dim if isinstance(end, int) and end >= _FAR else minimum(_from_end(context, dim, end), dim)
        begin = _from_end(context, dim, start)
        begin = min(begin, dim) if isinstance(begin, int) and isinstance(dim, int) else begin
        return begin, _count(context, dim, end_at - begin, step)
    begin = dim - 1 if isinstance(start, int) and start >= _FAR else minimum(_from_end(context, dim, start), dim - 1)
    last: Dim = -1
    if not (isinstance(end, int) and (end <= -_FAR or (isinstance(dim, int) and end < -dim))):
        last = _from_end(context, dim, end)
    if isinstance(last, int) and isinstance(begin, int):
        last = max(last, -1)
    return begin, _count(context, dim, begin - last, -step)


def _count(context: Context, dim: Dim, span: Dim, step: int) -> Dim:
    """How many steps a span has; a symbolic dimension less a number is taken, and held, to be at least 0."""
    if isinstance(span, Size) and isinstance(dim - span, int):
        context.require_at_least(span, 0)
        return ceildiv(span, step)
    return maximum(ceildiv(span, step), 0)


def _from_end(context: Context, dim: Dim, place: Dim) -> Dim:
    """A position that counts from the start; negative ones count from the end."""
    if isinstance(place, int):
        if place >= 0:
            return place
        if isinstance(dim, int):
            return max(place + dim, 0)
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


# --- padding and repeating -------------------------------------------------------------------------------------------------


def _pad(context: Context, call: Call) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    rank = len(tensor.shape)
    value = 0.0
    if call.version >= 11:
        pads = context.require_dims(call.inputs[1])
        if call.input(2):
            value = context.require_constant(call.inputs[2]).item()
        axes = context.require_ints(call.inputs[3]) if call.input(3) else list(range(rank))
    else:
        pads, axes = call["pads"] if call.version >= 2 else call["paddings"], list(range(rank))
        value = call.get("value", 0.0)
    if tensor.dtype == "string" or len(pads) != 2 * len(axes):
        raise ModelError(f"{call} has {len(pads)} pads for {len(axes)} dimensions")
    before: list[Dim] = [0] * rank
    shape = list(tensor.shape)
    for i, axis in enumerate(axes):
        place = axis_of(axis, rank, call)
        before[place] = pads[i]
        shape[place] = shape[place] + pads[i] + pads[len(axes) + i]
    context.layer("pad", [x], Tensor(tensor.dtype, tuple(shape)), output=call.outputs[0], before=tuple(before),
                  mode=call.get("mode", "constant"), value=float(value))


def _broadcast_to(context: Context, x: str, shape: Sequence[Dim], output: str | None) -> str:
    dtype = context.dtype(x)
    if output is None and context.shape(x) == tuple(shape):
        return x
    return context.layer("elementwise", [x], Tensor(dtype, tuple(shape)), output=output, suffix="" if output else "expand",
                         expression=identity(dtype))


def _expand(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = context.broadcast([context.shape(x), context.require_dims(call.inputs[1])])
    if shape == context.shape(x):
        context.alias(call.outputs[0], x)
    else:
        _broadcast_to(context, x, shape, call.outputs[0])


def _tile(context: Context, call: Call) -> None:
    """Repeats by broadcasting over a new dimension in front of each repeated one."""
    x = call.inputs[0]
    shape = context.shape(x)
    repeats: Sequence[Dim] = context.require_dims(call.inputs[1])
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
    expanded = _broadcast_to(context, context.reshape(x, split, suffix="split"), spread, None)
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
    ("", "Concat"): _concat,
    ("", "DepthToSpace"): _depth_to_space,
    ("", "Dropout"): _dropout,
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
