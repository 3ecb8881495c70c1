"""Random nodes of operators that index, order and choose."""

from __future__ import annotations

import numpy as np
from tests.cpu.random_models.fills import between, distinct, normal, special
from tests.cpu.random_models.maker import Entry, Maker, SkipError


def indices(m: Maker, size: int, shape: tuple[int, ...], kind: str = "int64", *, signed: bool = True) -> str:
    if size == 0 and 0 not in shape:
        raise SkipError("nothing to index")
    return m.new(kind, shape, between(-size if signed else 0, size - 1), constant=0.4, hidden=True)


def kind_of(m: Maker) -> str:
    return str(m.one(("int64", "int64", "int32")))


def gather(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = m.shape_of(x)
    axis = m.number(0, len(shape) - 1)
    high = min(3, 8 - len(shape) + 1)
    ids = indices(m, shape[axis], m.shape(0, high, 20), kind_of(m), signed=m.opset >= 11)
    m.node(op, [x, ids], axis=axis if m.opset < 11 else m.axis_sign(axis, len(shape)))


def gather_elements(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = m.shape_of(x)
    axis = m.number(0, len(shape) - 1)
    own = [m.number(1, d) if i != axis and d else d for i, d in enumerate(shape)]
    own[axis] = m.number(0, 5)
    m.node(op, [x, indices(m, shape[axis], tuple(own), kind_of(m))], axis=m.axis_sign(axis, len(shape)))


def tuples(m: Maker, shape: tuple[int, ...], lead: tuple[int, ...], count: int) -> str:
    """Index tuples of `count` numbers for the first dimensions of `shape`."""
    if 0 in shape[:count]:
        raise SkipError("nothing to index")

    def fill(rng: np.random.Generator, dtype: str, own: tuple[int, ...]) -> np.ndarray:
        columns = [rng.integers(-d, d, own[:-1]) for d in shape[:count]]
        return np.stack(columns, axis=-1).astype(np.int64)

    return m.new("int64", (*lead, count), fill, constant=0.4, hidden=True)


def gather_nd(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, high=6, fill=special)
    shape = m.shape_of(x)
    batch = m.number(0, min(2, len(shape) - 1)) if m.opset >= 12 and m.chance(0.5) else 0
    count = m.number(1, len(shape) - batch)
    lead = shape[:batch] + m.shape(0 if batch else 1, 2, 12)
    m.node(op, [x, tuples(m, shape[batch:], lead, count)], batch_dims=batch or None)


def reductions(m: Maker, op: str) -> str | None:
    if m.opset < 16:
        return None
    return m.one((None, "none", "add", "mul", *(("max", "min") if m.opset >= 18 else ())))


def scatter_elements(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=normal)
    if m.dtype_of(x) == "bool" and op != "Scatter" and m.opset >= 16:
        raise SkipError("sums of booleans")
    shape = m.shape_of(x)
    axis = m.number(0, len(shape) - 1)
    reduction = reductions(m, op)
    own = [m.number(1, d) if d else 0 for d in shape]
    if reduction in (None, "none"):  # no place twice, since which update wins is open

        def fill(rng: np.random.Generator, dtype: str, ids: tuple[int, ...]) -> np.ndarray:
            lines = rng.random([shape[axis] if i == axis else d for i, d in enumerate(ids)]).argsort(axis=axis)
            return lines.take(range(ids[axis]), axis=axis).astype(dtype)

        ids = m.new(kind_of(m), own, fill, constant=0.4, hidden=True)
    else:
        own[axis] = m.number(0, 5) if shape[axis] else 0
        ids = indices(m, shape[axis], tuple(own), kind_of(m))
    updates = m.tensor(m.dtype_of(x), own, normal)
    m.node(op, [x, ids, updates], axis=m.axis_sign(axis, len(shape)) if m.opset >= 11 else axis, reduction=reduction)


def scatter_nd(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, high=6, fill=normal)
    if m.dtype_of(x) == "bool" and m.opset >= 16:
        raise SkipError("sums of booleans")
    shape = m.shape_of(x)
    count = m.number(1, len(shape))
    reduction = reductions(m, op)
    if reduction in (None, "none"):
        places = int(np.prod(shape[:count], dtype=np.int64))
        lead = (m.number(0, min(places, 6)),)

        def fill(rng: np.random.Generator, dtype: str, ids: tuple[int, ...]) -> np.ndarray:
            flat = rng.permutation(places)[: ids[0]]
            return np.stack(np.unravel_index(flat, shape[:count]), axis=-1).astype(np.int64).reshape(ids)

        ids = m.new("int64", (*lead, count), fill, constant=0.4, hidden=True)
    else:
        lead = m.shape(1, 2, 12)
        ids = tuples(m, shape, lead, count)
    m.node(op, [x, ids, m.tensor(m.dtype_of(x), lead + shape[count:], normal)], reduction=reduction)


def one_hot(m: Maker, op: str) -> None:
    depth = m.number(1, 6)
    kind, size, out = (m.one(m.types(op, k)) for k in range(3))
    shape = m.shape(1 if m.opset < 11 else 0, 5, 200)
    low = -depth - 1 if not kind.startswith("u") and m.opset >= 11 else 0
    ids = m.new(kind, shape, between(low, depth), hidden=True)
    axis = m.axis(len(shape) + 1) if m.opset >= 11 else m.number(-1, len(shape))
    values = m.given([0, 1] if m.chance(0.5) or out == "bool" else [2, 5], out)
    m.node(op, [ids, m.given(depth if m.chance(0.5) else [depth], size), values], axis=axis if m.chance(0.8) else None)


def reverse_sequence(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=2, fill=special)
    shape = m.shape_of(x)
    time = m.number(0, 1)
    if 0 in shape[:2]:
        raise SkipError("no sequence")
    lengths = m.new("int64", (shape[1 - time],), between(1, shape[time]), constant=0.4, hidden=True)
    m.node(op, [x, lengths], time_axis=time, batch_axis=1 - time)


def compress(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = m.shape_of(x)
    axis = m.axis(len(shape)) if m.chance(0.7) else None
    size = int(np.prod(shape, dtype=np.int64)) if axis is None else shape[axis]
    if m.opset < 11 and axis is not None:
        axis %= len(shape)
    m.node(op, [x, m.new("bool", (m.number(0, size),), normal, hidden=True)], axis=axis)


def non_zero(m: Maker, op: str) -> None:
    m.node(op, [m.any(m.types(op, 0), low=1)])


def unique(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1)
    shape = m.shape_of(x)
    if 0 in shape:
        raise SkipError("unique of nothing")
    wanted = (True, *(m.chance(0.5) for _ in range(3)))
    m.node(op, [x], 4, wanted=wanted, axis=m.axis(len(shape)) if m.chance(0.5) else None,
           sorted=m.number(0, 1) if m.chance(0.6) else None)


def top_k(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=distinct if m.chance(0.3) else normal)
    shape = m.shape_of(x)
    axis = m.axis(len(shape)) if m.opset >= 11 else m.number(0, len(shape) - 1)
    k = m.number(0 if m.opset >= 11 else min(1, shape[axis]), shape[axis])
    if m.opset < 10:
        m.node(op, [x], 2, axis=axis, k=k)
    else:  # sorted, since the order is open otherwise
        m.node(op, [x, m.given([k])], 2, axis=axis, largest=m.number(0, 1) if m.chance(0.7) else None)


def arg(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1)
    shape = m.shape_of(x)
    if 0 in shape:
        raise SkipError("the greatest of nothing")
    axis = m.axis(len(shape)) if m.opset >= 11 else m.number(0, len(shape) - 1)
    m.node(op, [x], axis=axis if m.chance(0.8) else None, keepdims=m.number(0, 1), select_last_index=m.number(0, 1))


def suppression(m: Maker, op: str) -> None:
    """Boxes and scores without ties, since the order among equals is open."""
    batch, boxes, classes = m.number(1, 2), m.number(1, 8), m.number(1, 3)

    def corners(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0, 4, shape).astype(np.float32)

    def scores(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        return (rng.permutation(int(np.prod(shape))).reshape(shape) / 50).astype(np.float32)

    inputs = [m.new("float32", (batch, boxes, 4), corners, hidden=True), m.new("float32", (batch, classes, boxes), scores, hidden=True)]
    inputs += [m.given([m.number(0, 5)]), m.given([m.real(0, 1)], "float32"), m.given([m.real(0, 0.6)], "float32")][: m.number(0, 3)]
    m.node(op, inputs, center_point_box=m.number(0, 1) if m.chance(0.6) else None)


def tensor_scatter(m: Maker, op: str) -> None:
    rank = m.number(2, 5)
    axis = m.number(1, rank - 1)
    shape = [m.number(1, 4) for _ in range(rank)]
    shape[axis] = m.number(2, 8)
    own = list(shape)
    own[axis] = m.number(1, shape[axis])
    mode = m.one(("linear", "circular"))
    dtype = m.type(op)
    inputs = [m.tensor(dtype, shape, special), m.tensor(dtype, own, special)]
    most = shape[axis] - own[axis] if mode == "linear" else shape[axis] - 1
    if m.chance(0.8):
        inputs.append(m.new("int64", (shape[0],), between(0, most), hidden=True))
    m.node(op, inputs, axis=m.axis_sign(axis, rank) if m.chance(0.8) or axis != rank - 2 else None, mode=mode)


OPERATORS: dict[str, Entry] = {
    "Gather": Entry(gather, ulps=0),
    "GatherElements": Entry(gather_elements, ulps=0),
    "GatherND": Entry(gather_nd, ulps=0),
    "ScatterElements": Entry(scatter_elements, ulps=2, spread=2),
    "Scatter": Entry(scatter_elements, ulps=0),
    "ScatterND": Entry(scatter_nd, ulps=2, spread=2),
    "TensorScatter": Entry(tensor_scatter, ulps=0),
    "OneHot": Entry(one_hot, ulps=0),
    "ReverseSequence": Entry(reverse_sequence, ulps=0),
    "Compress": Entry(compress, ulps=0),
    "NonZero": Entry(non_zero, ulps=0),
    "Unique": Entry(unique, ulps=0),
    "TopK": Entry(top_k, ulps=0),
    "ArgMax": Entry(arg, ulps=0),
    "ArgMin": Entry(arg, ulps=0),
    "NonMaxSuppression": Entry(suppression, ulps=0, wide=False),
}
