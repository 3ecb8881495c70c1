"""Random nodes of reductions, running totals and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tests.cpu.random_models.fills import normal, positive, small
from tests.cpu.random_models.maker import Entry, Maker, SkipError
from tests.cpu.random_models.movement import axes_as, positive_axes


def reduce(m: Maker, op: str) -> None:
    log = op in ("ReduceLogSum",)
    x = m.new(m.type(op), m.shape(), positive) if log else m.any(m.types(op, 0), fill=small if op == "ReduceProd" else normal)
    shape = m.shape_of(x)
    rank = len(shape)
    if 0 in shape and (op in ("ReduceMax", "ReduceMin", "ReduceMean") or m.opset < 18):
        raise SkipError("a reduction of nothing")
    axes = positive_axes(m, op, m.axes(rank, 1), rank) if rank and m.chance(0.75) else None
    noop = m.number(0, 1) if m.chance(0.4) else None
    if m.has(op, "axes"):
        m.node(op, [x], axes=axes, keepdims=m.number(0, 1) if m.chance(0.8) else None)
        return
    if axes is None and m.chance(0.3):
        axes = []
    inputs, attributes = axes_as(m, op, axes)
    m.node(op, [x, *inputs], keepdims=m.number(0, 1) if m.chance(0.8) else None, noop_with_empty_axes=noop, **attributes)


def cumulative(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1, fill=small if op == "CumProd" else normal)
    axis = m.given(m.axis(len(m.shape_of(x))), m.one(("int64", "int32")))
    m.node(op, [x, axis], exclusive=m.number(0, 1) if m.chance(0.6) else None, reverse=m.number(0, 1) if m.chance(0.6) else None)


def lp_normalization(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1)
    if 0 in m.shape_of(x):
        raise SkipError("nothing to normalize")
    m.node(op, [x], axis=m.axis(len(m.shape_of(x))) if m.chance(0.8) else None, p=m.number(1, 2) if m.chance(0.7) else None)


def mean_variance(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=4, high=4)
    if 0 in m.shape_of(x):
        raise SkipError("nothing to normalize")
    m.node(op, [x], axes=m.axes(len(m.shape_of(x)), 1) if m.chance(0.7) else None)


def layer_norm(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=1)
    shape = m.shape_of(x)
    if 0 in shape:
        raise SkipError("nothing to normalize")
    axis = m.number(0, len(shape) - 1)
    inner = shape[axis:]
    if m.chance(0.3):
        inner = tuple(1 if m.chance(0.3) else d for d in inner)[m.number(0, len(inner) - 1) :]
    dtype = m.dtype_of(x)
    given = m.axis_sign(axis, len(shape)) if axis != len(shape) - 1 or m.chance(0.5) else None
    epsilon = m.one((None, 1e-3, 1e-2))
    if op == "RMSNormalization":
        scale = dtype if m.chance(0.8) else m.one(m.types(op, 1))
        m.node(op, [x, m.tensor(scale, inner, normal, constant=0.7)], axis=given, epsilon=epsilon)
        return
    inputs = [x, m.tensor(dtype, inner, normal, constant=0.7)]
    if m.chance(0.6):
        inputs.append(m.tensor(dtype, inner, normal, constant=0.7))
    wanted = (True, m.chance(0.3), m.chance(0.3))
    m.node(op, inputs, 3, wanted=wanted, axis=given, epsilon=epsilon)


def channels(m: Maker, op: str, low: int = 3, high: int = 5) -> tuple[str, tuple[int, ...], str]:
    """An operand [N, C, ...] without zero sizes."""
    x = m.any(m.types(op, 0), low=low, high=high)
    if 0 in m.shape_of(x):
        x = m.new(m.dtype_of(x), tuple(max(1, d) for d in m.shape_of(x)))
    return x, m.shape_of(x), m.dtype_of(x)


def instance_norm(m: Maker, op: str) -> None:
    x, shape, dtype = channels(m, op)
    vectors = [m.tensor(dtype, (shape[1],), normal, constant=0.7) for _ in range(2)]
    m.node(op, [x, *vectors], epsilon=m.one((None, 1e-3, 1e-2)))


def group_norm(m: Maker, op: str) -> None:
    x, shape, dtype = channels(m, op)
    groups = m.one([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
    vectors = [m.tensor(dtype, (groups if m.opset < 21 else shape[1],), normal, constant=0.7) for _ in range(2)]
    m.node(op, [x, *vectors], num_groups=groups, epsilon=m.one((None, 1e-3, 1e-2)))


def batch_norm(m: Maker, op: str) -> None:
    x, shape, dtype = channels(m, op, low=2)
    kinds = [dtype, dtype, dtype, dtype] if m.opset < 14 or m.chance(0.8) else [dtype] * 2 + [m.one(m.types(op, 3))] * 2
    if m.opset == 14:
        kinds = [dtype] * 4
    elif m.opset >= 15 and m.chance(0.2):
        kinds[0] = kinds[1] = m.one(m.types(op, 1))
    fills = (normal, normal, normal, positive)
    vectors = [m.new(k, (shape[1],), f, constant=0.8) for k, f in zip(kinds, fills, strict=True)]
    m.node(op, [x, *vectors], epsilon=m.one((None, 1e-3, 1e-2)))


def local_response(m: Maker, op: str) -> None:
    x, _, _ = channels(m, op, low=3, high=5)
    m.node(op, [x], size=m.one((1, 2, 3, 5)), alpha=m.one((None, 0.01, 0.5)), beta=m.one((None, 0.5)), bias=m.one((None, 2.0)))


def loss(m: Maker, op: str) -> None:
    rank = m.number(2, 4)
    shape = tuple(m.number(1, 4) for _ in range(rank))
    classes = shape[1]
    dtype = m.one([t for t in m.types(op, 0) if t != "bfloat16"])
    ignore = m.one((None, None, -1, 0, classes - 1))
    low = -1 if ignore == -1 else 0

    def targets(rng: np.random.Generator, kind: str, own: tuple[int, ...]) -> np.ndarray:
        return rng.integers(low, classes, own).astype(kind)

    inputs = [m.tensor(dtype, shape, normal), m.new(m.one(("int64", "int32")), (shape[0], *shape[2:]), targets, hidden=True)]
    if m.chance(0.5):
        inputs.append(m.tensor(dtype, (classes,), positive))
    reduction = m.one((None, "none", "sum", "mean"))
    outputs = 2 if op == "SoftmaxCrossEntropyLoss" and m.chance(0.4) else 1
    m.node(op, inputs, outputs, reduction=reduction, ignore_index=ignore)


def beyond(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """Integers whose norm may not be one of their type, and those of which a mean in double precision lacks the last digits."""
    x = operands[0]
    if x.dtype.kind not in "iu" or not x.size:
        return np.array(False)
    most = float(np.abs(x.astype(np.float64)).max())
    return np.array(most >= (2.0**53 if node.op_type == "ReduceMean" else np.iinfo(x.dtype).max / np.sqrt(x.size)) / 2)


REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare")
NORMALISATION = {
    "LpNormalization": lp_normalization, "MeanVarianceNormalization": mean_variance, "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm, "InstanceNormalization": instance_norm, "GroupNormalization": group_norm,
    "BatchNormalization": batch_norm, "LRN": local_response, "NegativeLogLikelihoodLoss": loss, "SoftmaxCrossEntropyLoss": loss,
}  # fmt: skip

OPERATORS: dict[str, Entry] = {
    **dict.fromkeys(REDUCTIONS, Entry(reduce, ulps=4, spread=4)),
    **dict.fromkeys(("ReduceL2", "ReduceMean"), Entry(reduce, ulps=4, spread=4, unspecified=beyond)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), Entry(reduce, ulps=0)),
    **dict.fromkeys(("CumSum", "CumProd"), Entry(cumulative, ulps=2, spread=4)),
    **{op: Entry(make, ulps=8, spread=16, within=1 if "Loss" in op else 0) for op, make in NORMALISATION.items()},
}

