"""Turns the implementations of layers into steps with formulas: the `Blueprint` a program carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from sartor.compiling.weights import WeightsBuilder
from sartor.errors import UnsupportedError
from sartor.fitting.formulas import FormulaBuilder
from sartor.fitting.plan import (
    ARENA,
    BIND,
    CONSTANT,
    CONTROL,
    HOST,
    INPUT,
    NATIVE,
    OUTPUT,
    SIZE,
    TABLE,
    ZEROS,
    BindStep,
    Blueprint,
    Buffer,
    ControlStep,
    HostStep,
    Item,
    Slots,
    Step,
    Table,
    Value,
)
from sartor.fitting.storage import Storage
from sartor.graph.data import problem_to_data
from sartor.graph.layer import BODIES, Graph, Layer, Problem
from sartor.loops.language import Kernel
from sartor.sizes import Dim
from sartor.templates.base import (
    Argument,
    Constant,
    Implementation,
    KernelCall,
    Pitch,
    Pointer,
    RowTable,
    SizeOf,
    Workspace,
    Zeros,
)
from sartor.types import BYTES

_ROOTS = {"arena": ARENA, "input": INPUT, "output": OUTPUT, "constant": CONSTANT}


@dataclass(frozen=True)
class Built:
    """A layer's implementation and its packed constants."""

    implementation: Implementation
    constants: tuple[NDArray[Any], ...]


@dataclass
class _Life:
    """When a buffer is used: in its stage from item `first` to item `last`, and whether stages after it read it."""

    size: Dim
    stage: int
    first: int = 1 << 60
    last: int = -1
    kept: bool = False

    def use(self, stage: int, first: int, last: int) -> None:
        if stage == self.stage:
            self.first, self.last = min(self.first, first), max(self.last, last)
        else:
            self.kept = True


@dataclass
class StepBuilder:
    """Collects the steps of all layers in order, then `finish`es the blueprint.

    Kernels are kept as they come; `kernels` lists them, and steps name them by place.
    """

    graph: Graph
    storage: Storage
    weights: WeightsBuilder = field(default_factory=WeightsBuilder)
    kernels: list[Kernel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.formula = FormulaBuilder()
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.hosts: list[HostStep] = []
        self.binds: list[BindStep] = []
        self.controls: list[ControlStep] = []
        last = max((*self.storage.stages, *(self.storage.known[v] for v in self.storage.outputs)), default=0)
        self.stages: list[list[Item]] = [[] for _ in range(last + 1)]
        self.tables: dict[Table, int] = {}
        self.slots: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._value_numbers: dict[str, int] = {}
        self._lives: list[_Life] = []
        self._buffers: dict[str, int] = {}
        self._kernel_numbers: dict[int, int] = {}

    # --- layers ---

    def add_layer(self, number: int, problem: Problem, stage: int, built: Built | None, parts: Sequence[int] = ()) -> None:
        """The steps of one layer: those of its implementation, one on the host, one that makes sizes known, or one that runs `parts`."""
        items = self.stages[stage]
        first = len(items)
        if problem.layer.kind == "bind":
            items.append(Item(BIND, len(self.binds)))
            self.binds.append(self._bind_step(number, problem.layer))
        elif parts:
            items.append(Item(CONTROL, len(self.controls)))
            self.controls.append(self._control_step(number, problem, parts))
        elif built is None:
            items.append(Item(HOST, len(self.hosts)))
            self.hosts.append(self._host_step(number, problem))
        else:
            workspaces = self._workspaces(built.implementation, stage, first)
            places = [self.weights.add(c) for c in built.constants]
            for call in built.implementation.calls:
                items.append(Item(NATIVE, len(self.steps)))
                self.steps.append(self._step(number, call, problem, built, places, workspaces))
        for value in (*problem.layer.reads, *filter(None, problem.layer.outputs)):
            self._use(value, stage, first, len(items) - 1)

    def _host_step(self, number: int, problem: Problem) -> HostStep:
        layer = problem.layer
        inputs = tuple(self.value(v) if v else -1 for v in (*layer.inputs, *layer.extra))
        outputs = tuple(self.value(v) if v else -1 for v in layer.outputs)
        return HostStep(number, inputs, outputs, problem_to_data(problem), tuple(map(tuple, layer.attributes.get("defines", ()))))

    def _bind_step(self, number: int, layer: Layer) -> BindStep:
        symbols = [""] * (1 + max(place for _, place in layer.attributes["defines"]))
        for symbol, place in layer.attributes["defines"]:
            symbols[place] = symbol
        a = layer.attributes
        return BindStep(number, tuple(map(self.value, layer.inputs)), a["rule"], tuple(map(self.formula, a["dims"])),
                        dict(a["options"]), tuple(symbols))  # fmt: skip

    def _control_step(self, number: int, problem: Problem, parts: Sequence[int]) -> ControlStep:
        layer = problem.layer
        attributes = {k: v for k, v in layer.attributes.items() if k not in (*BODIES[layer.kind], "defines", "test")}
        if "test" in layer.attributes:
            attributes["test"] = self.formula(layer.attributes["test"][0])
        inputs, outputs = (tuple(self.value(v) if v else -1 for v in side) for side in (layer.inputs, layer.outputs))
        defines = tuple(map(tuple, layer.attributes.get("defines", ())))
        return ControlStep(number, layer.kind, inputs, outputs, tuple(parts), attributes, defines)

    def _workspaces(self, implementation: Implementation, stage: int, first: int) -> list[int]:
        """Buffers for the workspaces, alive from the first call that uses them to the last."""
        numbers = []
        for index, size in enumerate(implementation.workspaces):
            life = _Life(size, stage)
            for place, call in enumerate(implementation.calls):
                if Workspace(index) in call.arguments:
                    life.use(stage, first + place, first + place)
            numbers.append(len(self._lives))
            self._lives.append(life)
        return numbers

    def _step(
        self, layer: int, call: KernelCall, problem: Problem, built: Built, places: Sequence[int], workspaces: Sequence[int]
    ) -> Step:
        first = len(self.slots[0])
        for argument in call.arguments:
            for column, entry in zip(self.slots, self._slot(argument, problem, places, workspaces), strict=True):
                column.append(entry)
        kernel = self._kernel_numbers.setdefault(id(call.kernel), len(self.kernels))
        if kernel == len(self.kernels):
            self.kernels.append(call.kernel)
        formulas = (
            call.extent,
            call.grain,
            call.chunk,
            call.scratch,
            call.multiply_adds,
            call.bytes,
            _working_set(call, problem, built),
        )
        return Step(kernel, layer, first, len(call.arguments), *map(self.formula, formulas))

    def _slot(
        self, argument: Argument, problem: Problem, places: Sequence[int], workspaces: Sequence[int]
    ) -> tuple[int, int, int]:
        if isinstance(argument, Pointer):
            value = self.values[self.value(argument.value)]
            place = self.storage.places[argument.value]
            offset = (place.offset + argument.offset) * BYTES[value.dtype] + self._base(place.root)
            return value.root, value.index, self.formula(offset)
        if isinstance(argument, Pitch):
            return SIZE, 0, self.formula(self.storage.places[argument.value].pitch)
        if isinstance(argument, SizeOf):
            return SIZE, 0, self.formula(argument.dim)
        if isinstance(argument, RowTable):
            sizes = (argument.images, argument.height, argument.row_pixels, argument.before, argument.after)
            table = Table(self.value(argument.value), *map(self.formula, sizes))
            return TABLE, self.tables.setdefault(table, len(self.tables)), 0
        if isinstance(argument, Constant):
            return CONSTANT, 0, self.formula(places[argument.index])
        if isinstance(argument, Workspace):
            return ARENA, workspaces[argument.index], self.formula(0)
        assert isinstance(argument, Zeros), f"layer {problem.layer.name} has an argument of an unknown kind: {argument}"
        return ZEROS, 0, self.formula(argument.bytes)

    # --- values ---

    def value(self, name: str) -> int:
        """The number of a value, which is entered when first met."""
        if name not in self._value_numbers:
            tensor, place = self.storage.tensors[name], self.storage.places[name]
            if tensor.dtype not in BYTES:
                raise UnsupportedError(f"the value {name} has elements of type {tensor.dtype}, which programs cannot hold")
            kind, index = self.storage.roots[place.root]
            offset = place.offset * BYTES[tensor.dtype] + self._base(place.root)
            if kind == "arena":
                index = self._buffer(place.root)
            self._value_numbers[name] = len(self.values)
            self.values.append(
                Value(
                    name,
                    tensor.dtype,
                    tuple(map(self.formula, tensor.shape)),
                    _ROOTS[kind],
                    index,
                    self.formula(offset),
                    self.formula(place.pitch),
                )
            )
        return self._value_numbers[name]

    def _base(self, root: str) -> int:
        """Where a constant lies in the weights; 0 for other roots."""
        return self.weights.add(self.graph.constants[root]) if self.storage.roots[root][0] == "constant" else 0

    def _buffer(self, root: str) -> int:
        if root not in self._buffers:
            self._buffers[root] = len(self._lives)
            self._lives.append(_Life(self.storage.tensors[root].bytes, self.storage.known[root]))
        return self._buffers[root]

    def _use(self, name: str, stage: int, first: int, last: int) -> None:
        """Notes that a layer with these items reads or writes a value."""
        root = self.storage.places[name].root
        if self.storage.roots[root][0] == "arena":
            life = self._lives[self._buffer(root)]
            if self.storage.known[name] > stage:
                life.use(self.storage.known[name], 0, 0)  # made by the host step that ends the stage before
            else:
                life.use(stage, first, last)

    # --- the whole ---

    def finish(self, body: bool = False) -> Blueprint:
        """The blueprint of all layers added, for a body or a whole program."""
        inputs = tuple(map(self.value, self.graph.inputs))
        outputs = tuple(map(self.value, self.storage.outputs))
        buffers = tuple(
            Buffer(self.formula(life.size), life.stage, min(life.first, max(life.last, 0)), max(life.last, 0), life.kept)
            for life in self._lives
        )
        conditions = tuple((self.formula(a), self.formula(b)) for a, b in self.graph.conditions)
        formulas = self.formula.finish()
        made = {entry[0] for layer in self.storage.layers for entry in layer.attributes.get("defines", ())}
        return Blueprint(
            formulas,
            tuple(self.values),
            inputs,
            outputs,
            tuple(self.graph.outputs),
            tuple(self.storage.known[v] for v in self.storage.outputs),
            buffers,
            tuple(self.steps),
            tuple(self.hosts),
            tuple(self.binds),
            tuple(self.controls),
            tuple(map(tuple, self.stages)),
            Slots(*map(tuple, self.slots)),
            tuple(self.tables),
            conditions,
            tuple(s for s in formulas.symbols if s not in made) if body else (),
            None if self.graph.wants is None else tuple(tuple(sorted(s)) for s in self.graph.wants),
        )


def _working_set(call: KernelCall, problem: Problem, built: Built) -> Dim:
    """Bytes one call touches: each value and constant it has the address of, its workspaces, one thread's scratch."""
    values = dict.fromkeys(a.value for a in call.arguments if isinstance(a, Pointer | RowTable))
    total: Dim = call.scratch
    for name in values:
        total = total + problem.tensors[name].bytes
    for argument in dict.fromkeys(a for a in call.arguments if isinstance(a, Constant | Workspace)):
        size = (
            built.constants[argument.index].nbytes
            if isinstance(argument, Constant)
            else built.implementation.workspaces[argument.index]
        )
        total = total + size
    return total


def is_copy(layer: Layer) -> bool:
    """Whether a layer only moves data."""
    moves = layer.kind in ("transpose", "concat", "slice", "pad", "reshape")
    plain = layer.expression is None or (layer.expression.is_identity and len(layer.expression.nodes) == 1)
    return plain and (moves or layer.kind == "elementwise")


def layer_problem(layer: Layer, tensors: Mapping[str, Any], constants: Mapping[str, NDArray[Any]]) -> Problem:
    """The layer with the types and constants it needs."""
    names = dict.fromkeys((*layer.reads, *filter(None, layer.outputs)))
    return Problem(layer, {n: tensors[n] for n in names}, {n: constants[n] for n in names if n in constants})
