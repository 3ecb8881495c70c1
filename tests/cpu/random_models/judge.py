"""What a random model must compute, and how near a right result has to be.

The expected value of a node is had twice: from onnx's reference implementation on operands as they are, and on operands widened to
double precision, rounded at the end.  How far a right result may be off, element by element, is not one loose number: a rounding of
`ulps` units in the last place of the result, and what comes of shifting the node's operands by `spread` units in their last
place and by what they may themselves be off, the largest of a few draws doubled.  So a sum in which large terms cancel may be off
by more than a product, and what only moves elements by nothing at all.  Where a shift changes an integer, a choice or whether a
value is finite, any value is right: rounding decides there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from tests.cpu.random_models.fills import is_float
from tests.cpu.random_models.maker import Array, Entry
from tests.cpu.random_models.reference import Evaluator
from tests.cpu.random_models.table import OPERATORS

DRAWS = 3


@dataclass
class Expected:
    """A value: by the reference, by the reference in double precision, and by how much each element may be off (None: nothing)."""

    native: Array
    wide: Array
    tolerance: Array | None

    def differs(self, found: Array) -> str | None:
        """A sentence about what is wrong with `found`, or None."""
        if found.dtype != self.native.dtype:
            return f"type {found.dtype} instead of {self.native.dtype}"
        if found.shape != self.native.shape:
            return f"shape {found.shape} instead of {self.native.shape}"
        wrong = ~(same(found, self.native) | same(found, self.wide))
        if self.tolerance is not None and wrong.any():
            with np.errstate(all="ignore"):
                near = np.isinf(self.tolerance)
                for right in (self.native, self.wide):
                    near |= np.abs(as_wide(found) - as_wide(right)) <= self.tolerance
            wrong &= ~near
        if not wrong.any():
            return None
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        off = "" if self.tolerance is None else f", which may be off by {self.tolerance[at]:.3g}"
        return (f"{int(wrong.sum())} of {wrong.size} elements, first at {list(at)}: {found[at]} instead of {self.native[at]} "
                f"({self.wide[at]}){off}")


def same(a: Array, b: Array) -> Any:
    if not is_float(a.dtype.name):
        return a == b
    return (a == b) | (np.isnan(as_wide(a)) & np.isnan(as_wide(b)))


def as_wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind != "f" or array.dtype.itemsize < 8 else array


def epsilon(dtype: str) -> float:
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(dtype, 2.0**-52)


def smallest(dtype: str) -> float:
    return {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126}.get(dtype, 2.0**-1022)


def expected_values(model: onnx.ModelProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Expected]:
    """Every value of the model's nodes; raises what the reference raises where it cannot run them."""
    values = {n: Expected(a, a, None) for n, a in feeds.items()}
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        values[tensor.name] = Expected(array, array, None)
    rng = np.random.default_rng(0)
    for node in model.graph.node:
        results = _node(node, OPERATORS[node.op_type], [values.get(n) for n in node.input], opset, rng)
        values.update({n: r for n, r in zip(node.output, results, strict=True) if n and r is not None})
    return values


def _node(node: onnx.NodeProto, entry: Entry, operands: Sequence[Expected | None], opset: int,
          rng: np.random.Generator) -> list[Expected | None]:
    evaluator = Evaluator(node, opset)
    native = evaluator.run([o.native if o else None for o in operands])
    floats = any(o is not None and is_float(o.wide.dtype.name) for o in operands)
    base: list[Any] = native
    if floats and entry.wide:
        try:
            base = evaluator.run([_widened(o.wide) if o else None for o in operands])
        except Exception:
            base = native
        if any(b is not None and b.shape != n.shape for b, n in zip(base, native, strict=True)):
            base = native
    loose = any(o is not None and o.tolerance is not None for o in operands)
    off: list[Any] = [None if n is None else np.zeros(n.shape) for n in native]
    if loose or (entry.spread and floats):
        for draw in range(DRAWS):
            off = _shifted(evaluator, entry, operands, base, off, rng, draw)
    out: list[Expected | None] = []
    for number, (right, wide, moved) in enumerate(zip(native, base, off, strict=True)):
        if right is None:
            out.append(None)
            continue
        tolerance = 2 * moved if moved.any() else None
        with np.errstate(all="ignore"):
            rounded = wide if wide.dtype == right.dtype else wide.astype(right.dtype)
        if is_float(right.dtype.name) and entry.ulps:
            unit = epsilon(entry.precision or right.dtype.name)
            own = entry.ulps * (unit * (np.abs(as_wide(rounded)) + entry.within) + smallest(right.dtype.name))
            tolerance = np.where(np.isfinite(own), own, 0) + (0 if tolerance is None else tolerance)
        open_ = entry.unspecified(node, [o.native if o else None for o in operands]) if entry.unspecified else np.array(False)
        if open_.any() and (number == 0 or not open_.ndim):
            tolerance = np.where(np.broadcast_to(open_, right.shape), np.inf, 0 if tolerance is None else tolerance)
        out.append(Expected(right, rounded, tolerance))
    return out


def _shifted(evaluator: Evaluator, entry: Entry, operands: Sequence[Expected | None], base: Sequence[Any], off: Sequence[Any],
             rng: np.random.Generator, draw: int) -> list[Any]:
    """How far results go from `base` where operands are shifted; the larger of that and `off`."""
    given = [None if o is None else _shift(o, entry, rng, draw) for o in operands]
    try:
        results = evaluator.run(given)
    except Exception:
        return [None if o is None else np.full(o.shape, np.inf) for o in off]
    out = []
    for result, right, before in zip(results, base, off, strict=True):
        if before is None:
            out.append(None)
        elif result.shape != right.shape:
            out.append(np.full(before.shape, np.inf))
        elif is_float(right.dtype.name):
            with np.errstate(all="ignore"):
                moved = np.where(same(result, right), 0.0, np.abs(as_wide(result) - as_wide(right)))
            out.append(np.maximum(before, np.where(np.isfinite(moved), moved, np.inf)))
        else:
            out.append(np.where(result == right, before, np.inf))
    return out


def _shift(operand: Expected, entry: Entry, rng: np.random.Generator, draw: int) -> Array:
    array, tolerance = operand.wide, operand.tolerance
    if not is_float(array.dtype.name):
        if tolerance is None:
            return array
        other = rng.integers(0, 2, array.shape).astype(array.dtype)
        return np.where(np.isinf(tolerance), other, array)
    wide = _widened(array) if entry.wide else as_wide(array)
    step = entry.spread * max(epsilon(array.dtype.name), epsilon(entry.precision)) * np.abs(wide)
    step = np.where(np.isfinite(step), step, 0)
    if tolerance is not None:
        step = step + np.where(np.isinf(tolerance), 1 + np.abs(np.where(np.isfinite(wide), wide, 0)), tolerance)
        if draw == 0:
            wide = np.where(np.isinf(tolerance), 0, wide)
    sign = 1 if draw == 0 else rng.choice([-1.0, 1.0], array.shape)
    moved = wide + sign * step
    return np.asarray(moved) if entry.wide else moved.astype(array.dtype)


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if is_float(array.dtype.name) else array

