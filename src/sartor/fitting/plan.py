"""What a program knows of its plan before sizes are known, and what a plan is once they are: plain data.

A `Blueprint` is the plan with formulas for sizes; it travels in the program file and needs no template, model or compiler to
become a `Plan`.  Sizes are entries of one table (`sartor.fitting.formulas`); everything below refers to them by index.

The steps are cut into stages: a stage ends with a step that makes sizes known which nobody knows before.  Within a stage,
native steps that follow each other run by one native call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from sartor.fitting.formulas import Formulas
from sartor.graph.tensor import Tensor

# Kinds of roots, and of argument slots.
ARENA, INPUT, OUTPUT, CONSTANT, SIZE, TABLE, ZEROS = range(7)


class Value(NamedTuple):
    """A tensor with its place: `offset` bytes into its root, rows `pitch` elements apart.

    `root` is ARENA (`index`: a buffer), INPUT or OUTPUT (`index`: which), or CONSTANT (offset into the weights).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    root: int
    index: int  # type: ignore[assignment]  # the field hides a method of tuples that nobody needs here
    offset: int
    pitch: int


class Buffer(NamedTuple):
    """Part of an arena: `size` bytes, alive from item `first` to item `last` of its stage, or to the run's end (`kept`)."""

    size: int
    stage: int
    first: int
    last: int
    kept: bool = False


class Table(NamedTuple):
    """A table of row addresses of a value; see `sartor.templates.base.RowTable`."""

    value: int
    images: int
    height: int
    row_pixels: int
    before: int
    after: int


class Step(NamedTuple):
    """One call of a kernel.  Its arguments are `count` slots from `first` on; all fields below those are formulas."""

    kernel: int
    layer: int
    first: int
    count: int  # type: ignore[assignment]  # as above
    extent: int
    grain: int
    chunk: int
    scratch: int
    multiply_adds: int
    bytes: int
    working_set: int


class HostStep(NamedTuple):
    """A layer that no kernel computes.  Inputs and outputs are values (-1: absent); `node` is the layer as data.

    `defines` lists (symbol, output, dimension): sizes known only once it has run.
    """

    layer: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    node: Mapping[str, Any]
    defines: tuple[tuple[str, int, int], ...] = ()


class ControlStep(NamedTuple):
    """A layer that runs other plans: an `if`, `loop` or `scan`; see `sartor.graph.control`.

    Inputs and outputs are values (-1: absent), `parts` the plans of its bodies by number in the program.  `attributes` are the layer's
    that are no graphs; the `test` of an `if` is a formula.
    """

    layer: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parts: tuple[int, ...]
    attributes: Mapping[str, Any]
    defines: tuple[tuple[str, int, int], ...] = ()


class BindStep(NamedTuple):
    """Small vectors to read, and the rule (of `sartor.graph.rules`) that makes them sizes, with the sizes and options it needs.

    `symbols` are those it makes known, in the rule's order ("" for one nobody needs).
    """

    layer: int
    inputs: tuple[int, ...]
    rule: str
    dims: tuple[int, ...]
    options: Mapping[str, Any]
    symbols: tuple[str, ...]


NATIVE, HOST, BIND, CONTROL = range(4)


class Item(NamedTuple):
    """One entry of a stage's list: a step by its kind (NATIVE, HOST, BIND, CONTROL) and its number."""

    kind: int
    number: int


class Slots(NamedTuple):
    """Arguments of all steps as columns.

    `kind` is that of a root, SIZE, TABLE or ZEROS; `index` the buffer, input, output or table; `formula` the size itself, the
    offset in bytes from the root, or how many zero bytes are needed.
    """

    kind: tuple[int, ...]
    index: tuple[int, ...]  # type: ignore[assignment]  # as above
    formula: tuple[int, ...]


@dataclass(frozen=True)
class Blueprint:
    """A whole program's plan with formulas for sizes, or that of a body.

    `inputs` and `outputs` name values; `output_stages` says in which stage each output's size is known; `conditions` are pairs of
    formulas that must be equal; `given` are the symbols of a body that the plan around it may know; `wants` are as of a graph.
    """

    formulas: Formulas
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    output_stages: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    hosts: tuple[HostStep, ...]
    binds: tuple[BindStep, ...]
    controls: tuple[ControlStep, ...]
    stages: tuple[tuple[Item, ...], ...]
    slots: Slots
    tables: tuple[Table, ...]
    conditions: tuple[tuple[int, int], ...] = ()
    given: tuple[str, ...] = ()
    wants: tuple[tuple[str, ...], ...] | None = None

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        data = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return data | {"formulas": self.formulas.to_data()}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Blueprint:
        """The inverse of `to_data`."""
        return Blueprint(
            formulas=Formulas.from_data(data["formulas"]),
            values=tuple(Value(n, t, tuple(s), *rest) for n, t, s, *rest in data["values"]),
            inputs=tuple(data["inputs"]),
            outputs=tuple(data["outputs"]),
            output_names=tuple(data["output_names"]),
            output_stages=tuple(data["output_stages"]),
            buffers=_rows(Buffer, data["buffers"]),
            steps=_rows(Step, data["steps"]),
            hosts=tuple(
                HostStep(layer, tuple(i), tuple(o), node, tuple((s, a, b) for s, a, b in defines))
                for layer, i, o, node, defines in data["hosts"]
            ),
            binds=tuple(
                BindStep(layer, tuple(i), rule, tuple(d), options, tuple(s)) for layer, i, rule, d, options, s in data.get("binds", ())
            ),
            controls=tuple(
                ControlStep(layer, kind, tuple(i), tuple(o), tuple(parts), attributes, tuple((s, a, b) for s, a, b in defines))
                for layer, kind, i, o, parts, attributes, defines in data.get("controls", ())
            ),
            stages=tuple(_rows(Item, stage) for stage in data["stages"]),
            slots=Slots(*map(tuple, data["slots"])),
            tables=_rows(Table, data["tables"]),
            conditions=tuple((a, b) for a, b in data["conditions"]),
            given=tuple(data.get("given", ())),
            wants=None if data.get("wants") is None else tuple(tuple(map(str, names)) for names in data["wants"]),
        )


_Row = TypeVar("_Row", Buffer, Step, Item, Table)


def _rows(kind: type[_Row], data: Sequence[Sequence[Any]]) -> tuple[_Row, ...]:
    return tuple(kind(*row) for row in data)


class Part(NamedTuple):
    """The plan of a body, with the types of what it reads and makes."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    blueprint: Blueprint


def _plain(item: Any) -> Any:
    """Rows as lists of their fields."""
    if isinstance(item, (Value, Buffer, Table, Step, HostStep, BindStep, ControlStep, Item, Slots)):
        return list(item)
    return [_plain(x) for x in item] if isinstance(item, tuple) else item


# --- bound plans ------------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One task of a bound plan.

    Attributes
    ----------
    layer
        Name of the layer.
    kind
        `compute`, `copy`, or `control` for a layer that runs other plans.
    working_set
        Bytes the task touches: inputs, outputs, weights, workspaces, and one thread's scratch.
    multiply_adds
        Work.
    extent, grain
        The parallel extent and what slices of it are cut at multiples of; 0 for a host step.
    host
        Whether it is not a compiled kernel.
    """

    layer: str
    kind: str
    working_set: int
    multiply_adds: int
    extent: int = 0
    grain: int = 0
    host: bool = False


@dataclass(frozen=True)
class Plan:
    """A plan for given sizes, as `Session.plan` shows it.

    Attributes
    ----------
    arena_bytes
        Memory for all values between layers.
    lower_bound
        The largest sum of bytes alive at one step: no arena can be smaller.
    scratch_bytes
        Memory for scratch of all threads together.
    multiply_adds
        Of all tasks.
    tasks
        In order.
    threads
        How many threads run it.
    """

    arena_bytes: int
    lower_bound: int
    scratch_bytes: int
    multiply_adds: int
    tasks: tuple[Task, ...] = field(repr=False)
    threads: int = 1
