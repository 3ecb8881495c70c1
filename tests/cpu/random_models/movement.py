"""Random nodes of operators that move elements without looking at them."""

from __future__ import annotations

import numpy as np
from tests.cpu.random_models.elementwise import DATA_TYPES
from tests.cpu.random_models.fills import normal, special
from tests.cpu.random_models.maker import INTS, Entry, Maker, SkipError


def axes_as(m: Maker, op: str, axes: list[int] | None, place: int = 1) -> tuple[list[str], dict[str, list[int] | None]]:
    """Axes as an attribute where this version has one, else as an input."""
    if m.has(op, "axes"):
        return [], {"axes": axes}
    return ([m.given(np.array(axes, np.int64))] if axes is not None else []), {}


def positive_axes(m: Maker, op: str, axes: list[int], rank: int) -> list[int]:
    """Axes as versions below 11 want them."""
    return axes if m.opset >= 11 else [a % rank for a in axes]


def reshape(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=special)
    shape, count = m.shape_of(x), int(np.prod(m.shape_of(x), dtype=np.int64))
    target: list[int] = []
    rest = count
    for place in range(m.number(0, 6)):
        if place < len(shape) and shape[place] and rest and rest % shape[place] == 0 and m.chance(0.3):
            target.append(0)
            rest //= shape[place]
        elif rest:
            divisors = [d for d in range(1, rest + 1) if rest % d == 0]
            target.append(int(m.one(divisors)))
            rest //= target[-1]
    if count == 0:
        target = [2, 3, 0] if m.has(op, "allowzero") else [*shape]
        m.node(op, [x, m.given(target)], allowzero=1)
        return
    if rest != 1 or (not target and count != 1):
        target.append(rest)
    if target and m.chance(0.4) and (places := [i for i, d in enumerate(target) if d != 0]):
        target[m.one(places)] = -1
    m.node(op, [x, m.given(target)])


def transpose(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=special)
    rank = len(m.shape_of(x))
    m.node(op, [x], perm=[int(p) for p in m.rng.permutation(rank)] if rank and m.chance(0.85) else None)


def concat(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = list(m.shape_of(x))
    axis = m.number(0, len(shape) - 1)
    pieces = [x]
    for _ in range(m.number(0, 3)):
        own = list(shape)
        own[axis] = m.number(0, 5) if m.chance(0.5) else shape[axis]
        pieces.append(m.tensor(m.dtype_of(x), own, special) if m.chance(0.8) else pieces[0])
    m.rng.shuffle(pieces)
    m.node(op, pieces, axis=axis - len(shape) if m.opset >= 11 and m.chance(0.4) else axis)


def split(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = m.shape_of(x)
    axis = m.number(0, len(shape) - 1)
    size, given = shape[axis], m.axis_sign(axis, len(shape)) if m.opset >= 11 else axis
    count = m.number(1, 4)
    wanted = [m.chance(0.85) for _ in range(count)]
    wanted[m.number(0, count - 1)] = True
    if m.chance(0.5) or (size % count and m.opset < 18) or size < count:
        cuts = sorted(m.number(0, size) for _ in range(count - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        if m.opset < 13:
            m.node(op, [x], count, axis=given, split=sizes, wanted=wanted)
        else:
            m.node(op, [x, m.given(sizes)], count, axis=given, wanted=wanted)
    else:
        m.node(op, [x], count, axis=given, num_outputs=count, wanted=wanted)


def slicing(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    shape = m.shape_of(x)
    axes = m.axes(len(shape), 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        starts.append(m.number(-size - 2, size + 2))
        steps.append(m.one((1, 1, 1, 2, 3, -1, -2, -size - 1)) if m.opset >= 10 else 1)
        far = (2**31 - 1, -(2**31), 2**63 - 1) if steps[-1] > 0 else (-(2**31),)  # backwards ONNX Runtime reads 2^31 - 1 as -1
        ends.append(m.one((m.number(-size - 2, size + 2), *far)))
    if m.opset < 10:
        m.node(op, [x], axes=positive_axes(m, op, axes, len(shape)), starts=starts, ends=ends)
        return
    if m.chance(0.15):
        axes, starts, ends, steps = list(range(len(shape))), *(2 * [[0] * len(shape)]), [1] * len(shape)
        ends = [m.number(0, d) for d in shape]
        m.node(op, [x, m.given(starts), m.given(ends)])
        return
    kind = m.one(("int64", "int64", "int32"))
    if kind == "int32":
        ends = [min(e, 2**31 - 1) for e in ends]
    axes = positive_axes(m, op, axes, len(shape))
    parts = [m.given(v, kind) for v in (starts, ends, axes)] + ([m.given(steps, kind)] if any(s != 1 for s in steps) else [])
    m.node(op, [x, *parts])


def squeeze(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=special)
    shape = m.shape_of(x)
    if 1 not in shape and m.chance(0.8):
        shape = tuple(1 if m.chance(0.5) else d for d in m.shape(1, 6))
        x = m.new(m.dtype_of(x), shape, special)
    ones = [i for i, d in enumerate(shape) if d == 1]
    chosen = [i - (len(shape) if m.opset >= 11 and m.chance(0.3) else 0) for i in ones if m.chance(0.6)]
    inputs, attributes = axes_as(m, op, chosen if chosen and m.chance(0.8) else None)
    m.node(op, [x, *inputs], **attributes)


def unsqueeze(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), high=6, fill=special)
    rank = len(m.shape_of(x))
    rank += (count := m.number(1, min(2, 8 - rank)))
    axes = [int(a) - (rank if m.opset >= 11 and m.chance(0.3) else 0) for a in m.rng.permutation(rank)[:count]]
    inputs, attributes = axes_as(m, op, axes)
    m.node(op, [x, *inputs], **attributes)


def flatten(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special)
    rank = len(m.shape_of(x))
    m.node(op, [x], axis=m.number(-rank if m.opset >= 11 else 0, rank) if m.chance(0.8) else None)


def expand(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=special, limit=500)
    shape = [m.number(1, 4) if d == 1 else 1 if m.chance(0.3) else d for d in m.shape_of(x)]
    shape = shape[m.number(0, len(shape)) if m.chance(0.2) else 0 :]
    if len(m.shape_of(x)) < 8 and len(shape) == len(m.shape_of(x)) and m.chance(0.4):
        shape = [m.number(0, 3), *shape]
    m.node(op, [x, m.given(np.array(shape, np.int64))])


def tile(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=special, limit=300)
    m.node(op, [x, m.given(np.array([m.one((1, 1, 2, 3, 0)) for _ in m.shape_of(x)], np.int64))])


def pad(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special, limit=500)
    shape = m.shape_of(x)
    modes = ["constant", "constant", "reflect", "edge"] + (["wrap"] if m.opset >= 19 else [])
    mode = m.one(modes) if 0 not in shape else "constant"
    axes = m.axes(len(shape), 1) if m.opset >= 18 and m.chance(0.4) else None
    sizes = [shape[a] for a in axes] if axes is not None else list(shape)
    most = {"constant": lambda d: 3, "reflect": lambda d: d - 1, "edge": lambda d: 3, "wrap": lambda d: min(d, 3)}[mode]
    least = {"constant": lambda d: -(d // 3)}.get(mode, lambda d: 0)
    pads = [m.number(least(d), most(d)) for d in sizes + sizes]
    if m.opset < 11:
        value = {} if m.dtype_of(x) not in ("float32", "float16", "float64") else {"value": m.real(-2, 2)}
        m.node(op, [x], mode=mode, pads=pads, **value)
        return
    inputs = [x, m.given(pads)]
    dtype = m.dtype_of(x)
    if mode == "constant" and m.chance(0.6):
        inputs.append(m.given(m.number(0, 1) if dtype == "bool" else m.number(0, 9), dtype, constant=0.7))
    elif axes is not None:
        inputs.append("")
    m.node(op, inputs + ([m.given(axes, m.one(("int64", "int32")))] if axes is not None else []), mode=mode)


def depth_space(m: Maker, op: str) -> None:
    block = m.number(1, 3)
    dtype = m.type(op)
    if op == "DepthToSpace":
        shape = (m.number(0, 2), m.number(1, 3) * block * block, m.number(1, 4), m.number(1, 4))
        m.node(op, [m.tensor(dtype, shape, special)], blocksize=block, mode=m.one(("DCR", "CRD")) if m.chance(0.7) else None)
    else:
        shape = (m.number(0, 2), m.number(1, 3), m.number(1, 3) * block, m.number(1, 3) * block)
        m.node(op, [m.tensor(dtype, shape, special)], blocksize=block, mode=m.one(("DCR", "CRD")) if m.chance(0.5) else None)


def trilu(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=2, fill=special)
    inputs = [x] + ([m.given(m.number(-6, 6), constant=0.6)] if m.chance(0.7) else [])
    m.node(op, inputs, upper=m.number(0, 1) if m.chance(0.8) else None)


def crop_pad(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=special, limit=500)
    shape = m.shape_of(x)
    axes = m.axes(len(shape), 1) if m.chance(0.5) else None
    sizes = [m.number(1, shape[a] + 4) for a in (axes if axes is not None else range(len(shape)))]
    m.node(op, [x, m.given(sizes, m.one(("int64", "int32")))], axes=axes)


def shape_of(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), fill=normal)
    rank = len(m.shape_of(x))
    ends = {k: m.number(-rank - 1, rank + 1) for k in ("start", "end") if m.chance(0.4)}
    m.node(op, [x], **ends)


def constant_of_shape(m: Maker, op: str) -> None:
    kind = m.one(("float32", "int64", "bool", "float16", "int8", "uint8", "int32", "float64"))
    value = None
    if m.chance(0.7):
        value = __import__("onnx").numpy_helper.from_array(np.array([m.number(0, 3)]).astype(kind))
    m.node(op, [m.given(np.array(m.shape(0, 4, 200), np.int64))], value=value)


def ranging(m: Maker, op: str) -> None:
    dtype = m.one([t for t in m.types(op, 0) if t != "bfloat16"])
    delta = m.one((1, 2, 3)) if m.chance(0.6) else -m.one((1, 2))
    start, limit = m.number(-5, 5), m.number(-9, 12)
    if dtype in INTS and dtype.startswith("u"):
        raise SkipError("no negative numbers")
    halves = 0.5 if dtype not in INTS and m.chance(0.5) else 1
    constant = 0.0 if m.chance(0.2) else 1.0
    m.node(op, [m.given(v * halves, dtype, constant=constant) for v in (start, limit, delta)])


def eye_like(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=2, high=2)
    kind = m.one(("float32", "int64", "bool", "float16", "int8", "uint8", "int32", "float64"))
    m.node(op, [x], k=m.number(-4, 4) if m.chance(0.7) else None, dtype=DATA_TYPES[kind] if m.chance(0.6) else None)


def constant(m: Maker, op: str) -> None:
    kind = m.one(("float32", "int64", "bool", "float16", "int8", "uint16", "int32", "float64"))
    array = normal(m.rng, kind, m.shape(0, 4, 200))
    m.node(op, [], value=__import__("onnx").numpy_helper.from_array(np.asarray(array)))


def size_of(m: Maker, op: str) -> None:
    m.node(op, [m.any(m.types(op, 0))])


EXACT_ENTRIES = {
    "Reshape": reshape, "Transpose": transpose, "Concat": concat, "Split": split, "Slice": slicing, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Flatten": flatten, "Expand": expand, "Tile": tile, "Pad": pad, "DepthToSpace": depth_space,
    "SpaceToDepth": depth_space, "Trilu": trilu, "CenterCropPad": crop_pad, "Shape": shape_of, "Size": size_of,
    "ConstantOfShape": constant_of_shape, "EyeLike": eye_like, "Constant": constant,
}  # fmt: skip

OPERATORS: dict[str, Entry] = {
    **{op: Entry(make, ulps=0) for op, make in EXACT_ENTRIES.items()},
    "Range": Entry(ranging, ulps=2),
}
