"""Holds a blueprint that came from a file to what binding and native code take for granted: numbers that name things name some.

Each column is looked at as a whole.  What is left to trust is what code alone could tell: how far a kernel goes from an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.errors import ProgramError
from sartor.fitting.formulas import CONSTANT as CONSTANT_FORMULA
from sartor.fitting.formulas import MAXIMUM, SYMBOL
from sartor.fitting.plan import ARENA, CONSTANT, INPUT, OUTPUT, SIZE, TABLE, ZEROS, Blueprint, ControlStep
from sartor.graph.tensor import Tensor
from sartor.types import BYTES

_MOST_DIMENSIONS = 64  # what NumPy's arrays may have


Parts: TypeAlias = Sequence[tuple[Sequence[Tensor], int]]
"""The types of inputs of each body, and how many outputs it has."""


def check_blueprint(blueprint: Blueprint, kernels: int, layers: int, weights: int, parts: Parts = (), own: int = 0) -> None:
    """Raises `ProgramError` where the blueprint refers to what is not there.

    Parameters
    ----------
    blueprint
        As read.
    kernels, layers, weights
        How many kernels and layers the program has, and how many bytes of weights.
    parts, own
        The bodies, and the number of the first one that this plan may run: it comes after the body that it is the plan of.
    """
    formulas = _check_formulas(blueprint)
    _check_values(blueprint, formulas, weights)
    stages = len(blueprint.stages)
    if not len(blueprint.outputs) == len(blueprint.output_names) == len(blueprint.output_stages):
        raise ProgramError("its outputs have different numbers of values, names and stages")
    _within("output stages", _column(blueprint.output_stages), stages)
    if not all(isinstance(name, str) for name in blueprint.output_names):
        raise ProgramError("an output has no name")
    size, stage, first, last, kept = _columns(blueprint.buffers, 5)
    _within("buffers", size, formulas)
    _within("buffers", stage, stages)
    _within("buffers", kept, 2)
    if np.any(first < 0) or np.any((last < first) & (first < 1 << 60)):
        raise ProgramError("a buffer ends before it begins")
    ends = np.array([max(len(items), 1) for items in blueprint.stages], np.int64)
    _within("buffers", np.where(first < 1 << 60, last, 0), ends[stage])
    _check_slots(blueprint, formulas, weights)
    tables = _columns(blueprint.tables, 6)
    _within("tables", tables[0], len(blueprint.values))
    _within("tables", tables[1:], formulas)
    _check_steps(blueprint, formulas, kernels, layers)
    for step in blueprint.controls:
        _within("control steps", _column([step.layer]), layers)
        _within("control steps", _column((*step.inputs, *step.outputs)) + 1, len(blueprint.values) + 1)
        _within("control steps", _column(step.parts), len(parts))
        _check_control(step, parts, own, formulas)
    _within("conditions", _columns(blueprint.conditions, 2), formulas)


def _check_formulas(blueprint: Blueprint) -> int:
    """How many formulas there are; each refers to those before it."""
    table = blueprint.formulas
    if not len(table.op) == len(table.a) == len(table.b):
        raise ProgramError("its formulas have columns of different lengths")
    if not all(isinstance(name, str) for name in (*table.symbols, *blueprint.given)):
        raise ProgramError("a symbol has no name")
    op, a, b = _column(table.op), _column(table.a), _column(table.b)
    _within("formulas", op, MAXIMUM + 1)
    _within("symbols", a[op == SYMBOL], len(table.symbols))
    calls = np.flatnonzero(op > SYMBOL)
    _within("formulas", np.stack([a[calls], b[calls]]), calls)
    return len(op)


def _check_values(blueprint: Blueprint, formulas: int, weights: int) -> None:
    for value in blueprint.values:
        if not isinstance(value.name, str) or value.dtype not in BYTES or len(value.shape) > _MOST_DIMENSIONS:
            raise ProgramError(f"the value {value.name!r} has no type or too many dimensions")
    _within("shapes", _column([d for value in blueprint.values for d in value.shape]), formulas)
    root, index, *places = _columns([value[3:] for value in blueprint.values], 4)
    _check_roots(blueprint, root, index)
    _within("values", np.where(np.isin(root, (TABLE, SIZE, ZEROS)), -1, root), ZEROS + 1)
    _within("values", np.stack(places), formulas)
    for side, kind in ((blueprint.inputs, INPUT), (blueprint.outputs, OUTPUT)):
        numbers = _column(side)
        _within("inputs and outputs", numbers, len(blueprint.values))
        if np.any(root[numbers] != kind) or not np.array_equal(index[numbers], np.arange(len(numbers))):
            raise ProgramError("an input or output has another's place")


def _check_roots(blueprint: Blueprint, kind: NDArray[np.int64], index: NDArray[np.int64]) -> None:
    _within("places", kind, ZEROS + 1)
    counts = {ARENA: len(blueprint.buffers), INPUT: len(blueprint.inputs), OUTPUT: len(blueprint.outputs), TABLE: len(blueprint.tables)}
    for root, count in counts.items():
        _within("places", index[kind == root], count)


def _check_slots(blueprint: Blueprint, formulas: int, weights: int) -> None:
    slots = blueprint.slots
    if not len(slots.kind) == len(slots.index) == len(slots.formula):
        raise ProgramError("its arguments have columns of different lengths")
    kind, index, formula = _column(slots.kind), _column(slots.index), _column(slots.formula)
    _check_roots(blueprint, kind, index)
    _within("arguments", formula, formulas)
    if not weights and np.any(kind == CONSTANT):
        raise ProgramError("its arguments refer to weights, of which it has none")
    op, a = _column(blueprint.formulas.op), _column(blueprint.formulas.a)
    known = formula[(kind == CONSTANT) & (op[formula] == CONSTANT_FORMULA)]
    _within("weights", a[known], weights + 1)


def _check_steps(blueprint: Blueprint, formulas: int, kernels: int, layers: int) -> None:
    columns = _columns(blueprint.steps, 11)
    kernel, layer, first, count = columns[:4]
    _within("steps", kernel, kernels)
    _within("steps", layer, layers)
    slots = len(blueprint.slots.kind)
    _within("steps", first, slots + 1)
    _within("steps", count, slots + 1 - first)
    _within("steps", columns[4:], formulas)
    values = len(blueprint.values)
    for host in blueprint.hosts:
        _within("host steps", _column([host.layer]), layers)
        _within("host steps", _column((*host.inputs, *host.outputs)) + 1, values + 1)
        if not isinstance(host.node, dict):
            raise ProgramError("a host step has no layer")
        for symbol, output, axis in host.defines:
            if not isinstance(symbol, str) or not 0 <= output < len(host.outputs) or not 0 <= axis < _MOST_DIMENSIONS:
                raise ProgramError("a host step defines a size of nothing")
    for bind in blueprint.binds:
        _within("bind steps", _column([bind.layer]), layers)
        _within("bind steps", _column(bind.inputs), values)
        _within("bind steps", _column(bind.dims), formulas)
        if not isinstance(bind.options, dict) or not all(isinstance(text, str) for text in (bind.rule, *bind.symbols)):
            raise ProgramError("a bind step has no rule")
    counts = np.array([len(steps) for steps in (blueprint.steps, blueprint.hosts, blueprint.binds, blueprint.controls)], np.int64)
    for items in blueprint.stages:
        kind, number = _columns(items, 2)
        _within("stages", kind, len(counts))
        _within("stages", number, counts[kind])


def _check_control(step: ControlStep, parts: Parts, own: int, formulas: int) -> None:
    """Raises `ProgramError` where a control step and its bodies do not fit each other."""
    a, kind = step.attributes, step.kind
    numbers = {"if": (), "loop": ("carried",), "scan": ("states", "scanned")}.get(kind)
    if numbers is None or len(step.parts) != (2 if kind == "if" else 1) or not isinstance(a, dict):
        raise ProgramError("a control step is of no kind")
    if any(type(a.get(name)) is not int or a[name] < 0 for name in numbers) or any(part < own for part in step.parts):
        raise ProgramError("a control step runs what is not there")
    before = 2 if kind == "loop" else 1  # inputs of the step alone
    given = len(step.inputs) - before + (2 if kind == "loop" else 0)
    if any(v < 0 for v in (*step.inputs[before:], *step.outputs)) or sum(a[name] for name in numbers) > len(step.inputs) - before:
        raise ProgramError("a control step lacks an input or output")
    if any((len(inputs), outputs) != (given, len(step.outputs) + (kind == "loop")) for inputs, outputs in (parts[p] for p in step.parts)):
        raise ProgramError("a control step has bodies of other inputs and outputs")
    if kind == "if" and step.inputs[0] < 0:
        _within("control steps", _column([a.get("test", -1)]), formulas)
    if kind == "loop" and (type(a.get("while")) is not bool or a["carried"] > len(step.outputs)):
        raise ProgramError("a loop carries what it does not make")
    if kind == "scan":
        flags = [len(f) if isinstance(f, list | tuple) else -1 for f in (a.get("reverse"), a.get("reverse_outputs"))]
        if a["scanned"] < 1 or flags != [a["scanned"], len(step.outputs) - a["states"]]:
            raise ProgramError("a scan has no directions")
    for symbol, output, axis in step.defines:
        if not isinstance(symbol, str) or not 0 <= output < len(step.outputs) or not 0 <= axis < _MOST_DIMENSIONS:
            raise ProgramError("a control step defines a size of nothing")


def _columns(rows: Iterable[Sequence[Any]], count: int) -> NDArray[np.int64]:
    """Rows of `count` numbers each as columns."""
    return _column(list(chain.from_iterable(rows))).reshape(-1, count).T


def _column(numbers: Sequence[Any]) -> NDArray[np.int64]:
    """Whole numbers of 64 bits as an array; everything else is refused."""
    array = np.array(numbers) if len(numbers) else np.empty(0, np.int64)
    if array.dtype.kind not in "ib" or array.ndim != 1:
        raise ProgramError("a number is missing, or is none")
    return array.astype(np.int64)


def _within(what: str, numbers: NDArray[np.int64], count: int | NDArray[np.int64]) -> None:
    if numbers.size and (numbers.min() < 0 or (numbers >= count).any()):
        raise ProgramError(f"its {what} refer to what is not there")
