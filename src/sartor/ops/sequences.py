"""Sequences and optionals whose making the model spells out: while it is lowered they are lists of names, and no layer sees them.

A sequence that is an input or output of the model, or that a loop grows, has no such list; the part that needs it is left to the
host (`sartor.ops.split`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sartor.errors import ModelError, UnsupportedError
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.movement import emit_concat, emit_slice
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, Size


def _items(context: Context, call: Call) -> tuple[str, ...]:
    """What the node's first input holds."""
    items = context.sequence(call.inputs[0])
    if items is None:
        raise UnsupportedError(f"{call} reads the sequence {call.inputs[0]!r}, whose elements cannot be told before it runs")
    return items


def _place(context: Context, call: Call, index: int, length: int, default: int) -> int:
    """The position that an input gives, counted from the start."""
    if not call.input(index):
        return default
    place, = context.require_ints(call.inputs[index])
    if not -length <= place <= length:
        raise ModelError(f"{call} has the position {place} in a sequence of {length} elements")
    return place + length if place < 0 else place


def _construct(context: Context, call: Call) -> None:
    context.sequences[call.outputs[0]] = call.inputs


def _at(context: Context, call: Call) -> None:
    items = _items(context, call)
    place = _place(context, call, 1, len(items), 0)
    if place == len(items):
        raise ModelError(f"{call} has the position {place} in a sequence of {len(items)} elements")
    context.alias(call.outputs[0], items[place])


def _insert(context: Context, call: Call) -> None:
    items = _items(context, call)
    place = _place(context, call, 2, len(items), len(items))
    context.sequences[call.outputs[0]] = (*items[:place], call.inputs[1], *items[place:])


def _erase(context: Context, call: Call) -> None:
    items = _items(context, call)
    place = _place(context, call, 1, len(items), len(items) - 1)
    if place >= len(items):
        raise ModelError(f"{call} has the position {place} in a sequence of {len(items)} elements")
    context.sequences[call.outputs[0]] = (*items[:place], *items[place + 1:])


def _length(context: Context, call: Call) -> None:
    context.set_constant(call.outputs[0], np.array(len(_items(context, call)), np.int64))


def _concat(context: Context, call: Call) -> None:
    items = _items(context, call)
    if not items:
        raise ModelError(f"{call} joins a sequence that is empty")
    rank = len(context.shape(items[0]))
    if call.get("new_axis", 0):
        axis = axis_of(call["axis"], rank + 1, call)
        items = tuple(context.reshape(v, _with_axis(context.shape(v), axis), suffix=f"item_{i}") for i, v in enumerate(items))
    emit_concat(context, call, items, call["axis"])


def _with_axis(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _split(context: Context, call: Call) -> None:
    """Pieces of given sizes, of one given size (the last one may be smaller), or single places, whose axis may be dropped."""
    x = call.inputs[0]
    shape = context.shape(x)
    axis = axis_of(call.get("axis", 0), len(shape), call)
    whole = shape[axis]
    if call.input(1) and len(context.shape(call.inputs[1])) == 1:
        sizes = context.require_dims(call.inputs[1])
    else:
        piece, = context.require_ints(call.inputs[1]) if call.input(1) else (1,)
        if isinstance(whole, Size) or piece < 1:
            raise DeclinedError(f"{call} makes as many pieces as only a run tells")
        sizes = [min(piece, whole - i * piece) for i in range(-(-whole // piece))]
    single = not call.input(1) and not call.get("keepdims", 1)
    names: list[str] = []
    total: Dim = 0
    for number, size in enumerate(sizes):
        starts: list[Dim] = [total if i == axis else 0 for i in range(len(shape))]
        part = emit_slice(context, x, starts, [1] * len(shape), [size if i == axis else d for i, d in enumerate(shape)],
                          suffix=f"{call.outputs[0]}.part_{number}")
        if single:
            part = context.reshape(part, [d for i, d in enumerate(shape) if i != axis], suffix=f"part_{number}.item")
        names.append(part)
        total = total + size
    context.same(whole, total, f"dimension {axis}")
    context.sequences[call.outputs[0]] = tuple(names)


def _element(context: Context, call: Call) -> None:
    """A tensor or a sequence stands for the optional that holds it."""
    items = context.sequence(call.inputs[0])
    if items is None:
        context.tensor(call.inputs[0])
        context.alias(call.outputs[0], call.inputs[0])
    else:
        context.sequences[call.outputs[0]] = items


def _has_element(context: Context, call: Call) -> None:
    if call.input(0) and context.sequence(call.inputs[0]) is None:
        context.tensor(call.inputs[0])
    context.set_constant(call.outputs[0], np.array(bool(call.input(0))))


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "ConcatFromSequence"): _concat,
    ("", "OptionalGetElement"): _element,
    ("", "OptionalHasElement"): _has_element,
    ("", "SequenceAt"): _at,
    ("", "SequenceConstruct"): _construct,
    ("", "SequenceEmpty"): _construct,
    ("", "SequenceErase"): _erase,
    ("", "SequenceInsert"): _insert,
    ("", "SequenceLength"): _length,
    ("", "SplitToSequence"): _split,
}
