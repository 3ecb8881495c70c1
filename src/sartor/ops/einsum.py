"""Einsum: products of two operands at a time, as transposes, reshapes and matmul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sartor.errors import ModelError
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import combine, emit_gather, strides_of
from sartor.sizes import Dim, product


@dataclass(frozen=True)
class Operand:
    """A value with one label for each of its dimensions."""

    value: str
    labels: str


def _parse(equation: str, ranks: Sequence[int], call: Call) -> tuple[list[str], str]:
    """Labels of each operand and of the result; dimensions under an ellipsis are labelled by digits, aligned at the last."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError(f"{call} has the equation {equation!r} for {len(ranks)} inputs")
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(c < 0 or (c > 0 and "..." not in t) for c, t in zip(counts, terms, strict=True)) or max(counts, default=0) > 9:
        raise ModelError(f"{call} has the equation {equation!r}, which does not fit its inputs' {list(ranks)} dimensions")
    digits = "".join(str(i) for i in range(max(counts, default=0)))
    labels = [t.replace("...", digits[len(digits) - c:]) for t, c in zip(terms, counts, strict=True)]
    if arrow:
        return labels, right.replace("...", digits)
    letters = "".join(labels)
    return labels, digits + "".join(sorted(c for c in set(letters) if c.isalpha() and letters.count(c) == 1))


def _sum_out(context: Context, operand: Operand, needed: str) -> Operand:
    """Sums over the dimensions whose labels nothing needs."""
    axes = [i for i, c in enumerate(operand.labels) if c not in needed]
    if not axes:
        return operand
    tensor = context.tensor(operand.value)
    kept = Tensor(tensor.dtype, tuple(1 if i in axes else d for i, d in enumerate(tensor.shape)))
    made = context.layer("reduce", [operand.value], kept, op="sum", axes=tuple(axes), select_last=False)
    left = "".join(c for i, c in enumerate(operand.labels) if i not in axes)
    return Operand(context.reshape(made, [d for i, d in enumerate(tensor.shape) if i not in axes]), left)


def _arrange(context: Context, operand: Operand, labels: str) -> str:
    """The operand with its dimensions in the order of `labels`; missing ones become 1."""
    present = [operand.labels.index(c) for c in labels if c in operand.labels]
    moved = context.transpose(operand.value, present)
    shape = iter(context.shape(moved))
    return context.reshape(moved, [next(shape) if c in operand.labels else 1 for c in labels])


def _dims(context: Context, operands: Sequence[Operand]) -> dict[str, Dim]:
    """The size of every label; sizes under an ellipsis may be 1 in one operand."""
    dims: dict[str, Dim] = {}
    for operand in operands:
        for label, dim in zip(operand.labels, context.shape(operand.value), strict=True):
            known = dims.get(label, 1)
            dims[label] = dim if known == 1 else known if dim == 1 else context.same(known, dim, f"the label {label!r}")
    return dims


def _unbroadcast(context: Context, operand: Operand, other: Operand, needed: str) -> Operand:
    """Sums over dimensions that nothing needs and along which the other operand is broadcast, or drops its own of that kind."""
    shape, beside = context.shape(operand.value), dict(zip(other.labels, context.shape(other.value), strict=True))
    gone = [c for c, d in zip(operand.labels, shape, strict=True) if c not in needed and (d == 1) != (beside.get(c, d) == 1)]
    return _sum_out(context, operand, "".join(c for c in operand.labels if c not in gone)) if gone else operand


def _product(context: Context, a: Operand, b: Operand, needed: str) -> Operand:
    """The product of two operands, summed over the labels of both that nothing needs."""
    a, b = _sum_out(context, a, needed + b.labels), _sum_out(context, b, needed + a.labels)
    a, b = _unbroadcast(context, a, b, needed), _unbroadcast(context, b, a, needed)
    dims = _dims(context, [a, b])
    shared = [c for c in a.labels if c in b.labels]
    batch = "".join(c for c in shared if c in needed)
    inner = "".join(c for c in shared if c not in needed)
    rows = "".join(c for c in a.labels if c not in shared)
    columns = "".join(c for c in b.labels if c not in shared)
    labels = batch + rows + columns
    shape = [dims[c] for c in labels]
    dtype = context.dtype(a.value)
    if not inner:
        operands = [_arrange(context, a, labels), _arrange(context, b, labels)]
        return Operand(context.elementwise(operands, lambda e, x, y: e("mul", x, y), shape, suffix="product"), labels)
    depth = product(dims[c] for c in inner)
    left, right = _arrange(context, a, batch + rows + inner), _arrange(context, b, batch + inner + columns)
    height, width = product(dims[c] for c in rows), product(dims[c] for c in columns)
    count = len(batch)
    left = context.reshape(left, [*context.shape(left)[:count], height, depth])
    right = context.reshape(right, [*context.shape(right)[:count], depth, width])
    result = Tensor(dtype, (*(dims[c] for c in batch), height, width))
    made = context.layer("matmul", [left, right], result, transpose_a=False, transpose_b=False)
    return Operand(context.reshape(made, shape), labels)


def _diagonal(context: Context, operand: Operand) -> Operand:
    """The operand with each label once: elements whose indices along dimensions of the same label are equal."""
    labels = "".join(dict.fromkeys(operand.labels))
    if labels == operand.labels:
        return operand
    shape = context.shape(operand.value)
    strides, dims = strides_of(shape), _dims(context, [operand])
    sizes = [dims[c] for c in labels]
    parts = []
    for i, (label, size) in enumerate(zip(labels, sizes, strict=True)):
        stride: Dim = 0
        for place, step in zip(operand.labels, strides, strict=True):
            stride = stride + step if place == label else stride
        parts.append((context.reshape(context.arange(size), (size, *[1] * (len(labels) - 1 - i))), stride))
    flat = context.reshape(operand.value, (product(shape),), suffix="flat")
    return Operand(emit_gather(context, flat, combine(context, parts, sizes), 0, None), labels)


def _einsum(context: Context, call: Call) -> None:
    labels, out = _parse(call["equation"], [len(context.shape(v)) for v in call.inputs], call)
    if len(set(out)) != len(out):
        raise ModelError(f"{call} has the equation {call['equation']!r}, whose result has a label twice")
    operands = [_diagonal(context, Operand(v, text)) for v, text in zip(call.inputs, labels, strict=True)]
    labels = [operand.labels for operand in operands]
    total = operands[0]
    for number, operand in enumerate(operands[1:], 1):
        total = _product(context, total, operand, out + "".join(labels[number + 1:]))
    total = _sum_out(context, total, out)
    if set(out) != set(total.labels):
        raise ModelError(f"{call} has the equation {call['equation']!r}, whose result has labels that no input has")
    context.transpose(total.value, [total.labels.index(c) for c in out], output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {("", "Einsum"): _einsum}
