"""Operators that pick elements by index, and those that make index-like values: ranges, masks, one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import CASTS, Operator
from sartor.ops.movement import emit_slice
from sartor.ops.numbers import axis_of, plain
from sartor.sizes import Dim, Size, ceildiv, maximum, minimum, product


def emit_gather(context: Context, x: str, indices: str, axis: int, output: str | None) -> str:
    """Emits a gather."""
    tensor = context.tensor(x)
    context.require_at_least(tensor.shape[axis], minimum(context.tensor(indices).elements, 1))  # nothing can be picked from nothing
    shape = (*tensor.shape[:axis], *context.shape(indices), *tensor.shape[axis + 1:])
    return context.layer("gather", [x, indices], Tensor(tensor.dtype, shape), output=output, axis=axis)


def _gather(context: Context, call: Call) -> None:
    x, indices = call.inputs
    shape = context.shape(x)
    axis = axis_of(call.get("axis", 0), len(shape), call)
    known = context.ints(indices)
    if context.shape(indices) == () and known is not None:  # one place: a view
        place: Dim = known[0] if known[0] >= 0 else shape[axis] + known[0]
        context.require_at_least(shape[axis], known[0] + 1 if known[0] >= 0 else -known[0])
        part = [1 if i == axis else d for i, d in enumerate(shape)]
        starts = [place if i == axis else 0 for i in range(len(shape))]
        cut = emit_slice(context, x, starts, [1] * len(shape), part)
        context.reshape(cut, [d for i, d in enumerate(shape) if i != axis], output=call.outputs[0])
        return
    emit_gather(context, x, indices, axis, call.outputs[0])


def wrapped(context: Context, indices: str, dim: Dim, suffix: str) -> str:
    """Indices as i64 with negative ones counted from the end, as a value or a constant."""
    size = context.size_value(dim)
    if (array := context.constant(indices)) is not None and isinstance(dim, int):
        wide = array.astype(np.int64)
        return context.new_constant(np.where(wide < 0, wide + dim, wide), f"{context.call.output(0)}.{suffix}")
    wide_type = context.dtype(indices) == "i64"

    def build(e: ExpressionBuilder, index: int, extent: int) -> int:
        wide_index = index if wide_type else e("cast", index, dtype="i64")
        zero = e("constant", dtype="i64", value=0)
        return e("select", e("lt", wide_index, zero), e("add", wide_index, extent), wide_index)

    return context.elementwise([indices, size], build, context.shape(indices), suffix=suffix)


def combine(context: Context, parts: Sequence[tuple[str, Dim]], shape: Sequence[Dim]) -> str:
    """The sum of parts (values, each times a size) as an i64 value; a constant where all are."""
    arrays = [(context.constant(v), s) for v, s in parts]
    if all(a is not None and isinstance(s, int) for a, s in arrays):
        total = sum((a * s for a, s in arrays if a is not None and isinstance(s, int)), np.zeros((), np.int64))
        dims = [d for d in shape if isinstance(d, int)]
        return context.new_constant(np.broadcast_to(total, dims).copy(), f"{context.call.output(0)}.linear")
    operands = [v for v, _ in parts] + [context.size_value(s) for _, s in parts]

    def build(e: ExpressionBuilder, *indices: int) -> int:
        half = len(indices) // 2
        out = e("mul", indices[0], indices[half])
        for value, scale in zip(indices[1:half], indices[half + 1:], strict=True):
            out = e("add", out, e("mul", value, scale))
        return int(out)

    return context.elementwise(operands, build, shape, suffix="linear")


def strides_of(shape: Sequence[Dim]) -> list[Dim]:
    """Elements from one index to the next, for each dimension of a dense tensor."""
    return [product(shape[i + 1:]) for i in range(len(shape))]


def _gather_elements(context: Context, call: Call) -> None:
    x, indices = call.inputs
    emit_gather_elements(context, x, indices, axis_of(call.get("axis", 0), len(context.shape(x)), call), call.outputs[0])


def emit_gather_elements(context: Context, x: str, indices: str, axis: int, output: str) -> None:
    """Along one axis an index, along all others the element's own place: a gather from the flattened data."""
    shape, taken = context.shape(x), context.shape(indices)
    strides = strides_of(shape)
    parts = [(wrapped(context, indices, shape[axis], "wrapped"), strides[axis])]
    for i, dim in enumerate(taken):
        if i != axis and dim != 1:
            place = context.reshape(context.arange(dim), [dim, *[1] * (len(taken) - i - 1)])
            parts.append((place, strides[i]))
    linear = combine(context, parts, taken)
    flat = context.reshape(x, [product(shape)], suffix="flat")
    emit_gather(context, flat, linear, 0, output)


def _gather_nd(context: Context, call: Call) -> None:
    """Index tuples over the first dimensions: a gather from data with those flattened."""
    x, indices = call.inputs
    shape, taken = context.shape(x), context.shape(indices)
    batch = call.get("batch_dims", 0)
    depth = taken[-1] if taken else 0
    if not isinstance(depth, int) or not 1 <= depth <= len(shape) - batch:
        raise ModelError(f"{call} has index tuples of {depth} numbers for an input of {len(shape)} dimensions")
    places = taken[:-1]
    outer = shape[:batch + depth]
    strides = strides_of(outer)
    parts = []
    for i in range(depth):
        column = column_of(context, indices, i, places)
        parts.append((wrapped(context, column, shape[batch + i], f"wrapped_{i}"), strides[batch + i]))
    for i in range(batch):
        context.same(shape[i], taken[i], f"batch dimension {i}")
        place = context.reshape(context.arange(shape[i]), [shape[i], *[1] * (len(places) - i - 1)])
        parts.append((place, strides[i]))
    linear = combine(context, parts, places)
    flat = context.reshape(x, [product(outer), *shape[batch + depth:]], suffix="flat")
    emit_gather(context, flat, linear, 0, call.outputs[0])


def column_of(context: Context, indices: str, place: int, shape: Sequence[Dim]) -> str:
    """Number `place` of each index tuple."""
    made = context.derived_constant(indices, ("column", place), lambda a: np.ascontiguousarray(a[..., place]),
                                    f"{indices}.column_{place}")
    if made is not None:
        return made
    rank = len(shape) + 1
    cut = emit_slice(context, indices, [*[0] * (rank - 1), place], [1] * rank, (*shape, 1), suffix=f"column_{place}")
    return context.reshape(cut, shape)


# --- ranges, fills, masks --------------------------------------------------------------------------------------------------


def _range_length(context: Context, call: Call) -> Dim:
    contents = [context.content(v) for v in call.inputs]
    if all(c is not None for c in contents):
        first, end, delta = (plain(c.reshape(-1)[0]) for c in contents if c is not None)
        if isinstance(delta, int) and delta and all(isinstance(d, int | Size) for d in (first, end)):
            return maximum(ceildiv(end - first if delta > 0 else first - end, abs(delta)), 0)
    return context.bind("range", call.inputs, 1, dtype=context.dtype(call.inputs[0]))[0]


def _range(context: Context, call: Call) -> None:
    """start + i * step; the count must follow from sizes."""
    start, _, step = call.inputs
    dtype = context.dtype(start)
    count = _range_length(context, call)
    iota = context.arange(count)

    def build(e: ExpressionBuilder, i: int, origin: int, scale: int) -> int:
        wide = i if dtype == "i64" else e("cast", i, dtype=dtype)
        return e("add", origin, e("mul", wide, scale))

    context.elementwise([iota, start, step], build, (count,), output=call.outputs[0])


def _constant_of_shape(context: Context, call: Call) -> None:
    shape = context.known_sizes(call.inputs[0])
    tensor = call.get("value")
    value = np.zeros((), np.float32) if tensor is None else np.asarray(tensor.numpy()).reshape(())
    filler = context.new_constant(value, f"{call.outputs[0]}.value")
    context.elementwise([filler], lambda e, x: x, tuple(shape), output=call.outputs[0])


def _matrix_places(context: Context, shape: Sequence[Dim]) -> tuple[str, str]:
    """Row and column numbers of a matrix, shaped to broadcast."""
    rows, columns = shape[-2:]
    return context.reshape(context.arange(rows), (rows, 1)), context.arange(columns)


def _triangle(context: Context, call: Call) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    upper = bool(call.get("upper", 1))
    known = context.dims(call.inputs[1]) if call.input(1) else [0]
    diagonal = context.reshape(call.inputs[1], ()) if known is None else context.size_value(known[0])
    row, column = _matrix_places(context, tensor.shape)
    zero: float | bool = False if tensor.dtype == "bool" else 0 if tensor.dtype[0] in "iu" else 0.0

    def build(e: ExpressionBuilder, value: int, i: int, j: int, k: int) -> int:
        kept = e("ge" if upper else "le", e("sub", j, i), k)
        return e("select", kept, value, e("constant", dtype=tensor.dtype, value=zero))

    context.elementwise([x, row, column, diagonal], build, tensor.shape, output=call.outputs[0])


def _eye_like(context: Context, call: Call) -> None:
    tensor = context.tensor(call.inputs[0])
    dtype = CASTS.get(call["dtype"], "") if call.get("dtype") is not None else tensor.dtype
    if dtype in ("", "string"):
        raise DeclinedError(f"{call} makes a type without compiled code")
    row, column = _matrix_places(context, tensor.shape)
    k = call.get("k", 0)
    context.elementwise(
        [row, column], lambda e, i, j: e("cast", e("eq", e("sub", j, i), e.constant(k, "i64")), dtype=dtype), tensor.shape,
        output=call.outputs[0])


def _one_hot(context: Context, call: Call) -> None:
    indices, depth, values = call.inputs
    known = context.known_sizes(depth)
    shape = list(context.shape(indices))
    axis = axis_of(call.get("axis", -1), len(shape) + 1, call)
    index_type, value_type = context.dtype(indices), context.dtype(values)
    if index_type in ("bool", "string") or value_type == "string":
        raise DeclinedError(f"{call} has indices of type {index_type}")
    places = context.reshape(wrapped(context, indices, known[0], "wrapped"), [*shape[:axis], 1, *shape[axis:]])
    iota = context.reshape(context.arange(known[0]), [known[0], *[1] * (len(shape) - axis)])
    off = _element(context, values, 0)
    on = _element(context, values, 1)
    context.elementwise([places, iota, on, off], lambda e, i, j, a, b: e("select", e("eq", i, j), a, b),
                        [*shape[:axis], known[0], *shape[axis:]], output=call.outputs[0])


def _element(context: Context, vector: str, place: int) -> str:
    """One element of a vector, as a scalar."""
    made = context.derived_constant(vector, ("element", place), lambda a: np.array(a.reshape(-1)[place]), f"{vector}.{place}")
    return made or context.reshape(emit_slice(context, vector, [place], [1], (1,), suffix=f"element_{place}"), ())


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "ConstantOfShape"): _constant_of_shape,
    ("", "EyeLike"): _eye_like,
    ("", "Gather"): _gather,
    ("", "GatherElements"): _gather_elements,
    ("", "GatherND"): _gather_nd,
    ("", "OneHot"): _one_hot,
    ("", "Range"): _range,
    ("", "Trilu"): _triangle,
}
