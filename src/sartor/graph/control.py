"""What control layers do with their bodies: one account of it for the reference and for programs in operation.

A body is a function from arrays to arrays, which may also be given arrays to put results into (None where it may choose).  Its
results share no memory with what it was given to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Body: TypeAlias = Callable[[Sequence[Array], Sequence[Array | None]], list[Array]]
Form: TypeAlias = tuple[tuple[int, ...], Any]
"""Shape and dtype of one element of a stack, for stacks that stay empty."""

_FIRST = 8  # elements a stack of unknown length has room for at first


def truth(condition: Array) -> bool:
    """A condition as a bool."""
    return bool(condition.reshape(-1)[0])


class Stack:
    """Arrays of one shape, laid one after another along a new first dimension.

    Parameters
    ----------
    count
        How many there will be; None where only the run tells.
    form
        Shape and dtype where there are none.
    backward
        Whether the first comes last.
    zero
        Whether those never put are 0.
    """

    def __init__(self, count: int | None, form: Form, *, backward: bool = False, zero: bool = False) -> None:
        self._count, self._form, self._backward, self._zero = count, form, backward, zero
        self._array: Array | None = None
        self._used = 0

    def _make(self, shape: Sequence[int], dtype: Any) -> Array:
        count = _FIRST if self._count is None else self._count
        return (np.zeros if self._zero else np.empty)((count, *shape), dtype)

    def _place(self, index: int) -> int:
        return len(self._array) - 1 - index if self._backward and self._array is not None else index

    def slot(self, index: int) -> Array | None:
        """Where element `index` may be written at once; None where its shape is not known yet."""
        if self._array is None:
            return None
        if index >= len(self._array):
            self._array = np.concatenate([self._array, np.empty_like(self._array)])
        return self._array[self._place(index), ...]

    def put(self, index: int, element: Array, slot: Array | None) -> None:
        """Takes element `index`, which is there already where it is the `slot`."""
        if self._array is None:
            self._array = self._make(element.shape, element.dtype)
        if element is not slot:
            target = self.slot(index)
            assert target is not None
            if target.shape != element.shape:
                raise ValueError(f"an element of shape {list(element.shape)} comes after one of shape {list(target.shape)}")
            target[...] = element
        self._used = index + 1

    def finish(self) -> Array:
        """The whole."""
        if self._array is None:
            shape, dtype = self._form
            return self._make(shape, dtype)[: None if self._count is not None else 0]
        return self._array if self._count is not None else self._array[: self._used]


def loop(
    trip: int | None, condition: bool, carried: Sequence[Array], captured: Sequence[Array], body: Body, forms: Sequence[Form], *,
    ends: bool, scalars: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> list[Array]:
    """Carried values and stacks after a loop.

    Parameters
    ----------
    trip
        The most iterations; None for no bound.
    condition
        Whether to begin.
    carried, captured
        What is handed from one iteration to the next, and what stays.
    body
        (iteration, condition, carried..., captured...) -> (condition, carried..., elements...).
    forms
        Of the elements of each stack.
    ends
        Whether the body's condition is looked at.
    scalars
        Shapes of iteration and condition, which may be of one element in a dimension.
    """
    count = None if trip is None or ends else max(trip, 0) if condition else 0
    stacks = [Stack(count, form) for form in forms]
    values, number, kept = list(carried), len(carried), list(captured)
    spare: list[Array | None] = [None] * number  # what the iteration before the last made, whose memory may be used again
    iteration, holds = np.zeros(scalars[0], np.int64), np.ones(scalars[1], np.bool_)
    index = 0
    while condition and (trip is None or index < trip):
        slots = [stack.slot(index) for stack in stacks]
        iteration[...] = index
        results = body([iteration, holds, *values, *kept], [None, *spare, *slots])
        if index:
            spare[:] = values
        values = results[1 : number + 1]
        for stack, element, slot in zip(stacks, results[number + 1 :], slots, strict=True):
            stack.put(index, element, slot)
        if ends:
            condition = truth(results[0])
        index += 1
    return [*values, *(stack.finish() for stack in stacks)]


def scan(
    length: int, count: int, states: Sequence[Array], scanned: Sequence[Array], captured: Sequence[Array], body: Body,
    forms: Sequence[Form], *, reverse: Sequence[bool], reverse_outputs: Sequence[bool],
) -> list[Array]:
    """States and stacks after a scan of `count` of `length` elements."""
    stacks = [Stack(length, form, backward=backward, zero=count < length)
              for form, backward in zip(forms, reverse_outputs, strict=True)]
    values, number = list(states), len(states)
    spare: list[Array | None] = [None] * number
    for index in range(count):
        slots = [stack.slot(index) for stack in stacks]
        elements = [x[length - 1 - index if back else index, ...] for x, back in zip(scanned, reverse, strict=True)]
        results = body([*values, *elements, *captured], [*spare, *slots])
        if index:
            spare[:] = values
        values = results[:number]
        for stack, element, slot in zip(stacks, results[number:], slots, strict=True):
            stack.put(index, element, slot)
    return [*values, *(stack.finish() for stack in stacks)]


def run_layer(
    kind: str, attributes: Any, inputs: Sequence[Array | None], bodies: Sequence[Body], forms: Sequence[Form], out: Sequence[Array | None],
    test: Callable[[], int], scalars: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> list[Array]:
    """The outputs of a control layer.

    Parameters
    ----------
    kind, attributes
        As in the layer; of the attributes, those that are no graphs.
    inputs
        As in the layer; None for an absent one.
    bodies
        To call.
    forms
        Shape and dtype of each output; unknown sizes as 0.
    out
        Arrays to put results into, where a branch can.
    test
        Tells the condition of an `if` that depends on sizes.
    scalars
        See `loop`.
    """
    if kind == "if":
        condition = inputs[0]
        then = test() != 0 if condition is None else truth(condition)
        return bodies[0 if then else 1]([x for x in inputs[1:] if x is not None], out)
    rest = [x for x in inputs[1 if kind == "scan" else 2 :] if x is not None]
    if kind == "loop":
        trip, condition, carried = inputs[0], inputs[1], attributes["carried"]
        return loop(
            None if trip is None else int(trip.reshape(-1)[0]), condition is None or truth(condition), rest[:carried], rest[carried:],
            bodies[0], [(shape[1:], dtype) for shape, dtype in forms[carried:]], ends=attributes["while"], scalars=scalars,
        )
    states = attributes["states"]
    end = states + attributes["scanned"]
    length = len(rest[states])
    count = length if inputs[0] is None else min(max(int(inputs[0].reshape(-1)[0]), 0), length)
    return scan(
        length, count, rest[:states], rest[states:end], rest[end:], bodies[0], [(shape[1:], dtype) for shape, dtype in forms[states:]],
        reverse=attributes["reverse"], reverse_outputs=attributes["reverse_outputs"],
    )
