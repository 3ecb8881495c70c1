"""Binds a program's blueprint to sizes: evaluates formulas, plans the arena, fills in everything that needs no addresses.

Nothing here compiles or looks at templates.  What does not depend on sizes is prepared once for each stage (`Layout`); binding
is then a few gathers from the table of formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.devices.processor import memory_bytes
from sartor.errors import FeedError, ProgramError, SartorError
from sartor.fitting.arena import Arena, plan_arena
from sartor.fitting.formulas import SYMBOL
from sartor.fitting.plan import (
    ARENA,
    BIND,
    CONSTANT,
    CONTROL,
    HOST,
    INPUT,
    NATIVE,
    OUTPUT,
    TABLE,
    ZEROS,
    Blueprint,
    Item,
    Plan,
    Table,
    Task,
    Value,
)
from sartor.runtime.executor import (
    TASK_ARGS,
    TASK_CHUNK,
    TASK_EXTENT,
    TASK_FUNCTION,
    TASK_GRAIN,
    TASK_SLOTS,
    TASK_THREADS,
)
from sartor.runtime.program import Program
from sartor.runtime.repeating import Shapes, repeated
from sartor.types import BYTES, to_numpy

Words: TypeAlias = NDArray[np.int64]

# How fast one thread may be expected to be, to tell what is too small to share: multiply-adds and bytes a second.
_MULTIPLY_ADDS = 2e10
_BYTES = 1e10
_SMALL_TASK = 1.5e-6  # seconds; a barrier costs less than this, but not much less
_SMALL_RUN = 12e-6  # seconds; waking the other threads costs about as much
LARGEST = 1 << 56  # elements that no memory holds; numbers of bytes up to here do not overflow
_HELD_RUN = 20e-6  # seconds; runs shorter than this keep the interpreter lock: giving it back and forth would cost more


class Layout:
    """What binding needs of one stage and sizes do not change."""

    def __init__(self, program: Program, stage: int) -> None:
        blueprint = program.blueprint
        self.items = blueprint.stages[stage]
        steps = [blueprint.steps[item.number] for item in self.items if item.kind == NATIVE]
        self.steps = steps
        self.segments = _segments(self.items)
        chosen = [i for step in steps for i in range(step.first, step.first + step.count)]
        slots = blueprint.slots
        self.kind, self.index, self.formula = (
            np.array([c[i] for i in chosen], np.int64) for c in (slots.kind, slots.index, slots.formula)
        )
        self.first = np.cumsum([0, *(step.count for step in steps)])[:-1]
        self.functions = np.array([program.code.address(program.kernels[step.kernel]) for step in steps], np.int64)
        columns = [(s.extent, s.grain, s.chunk, s.scratch, s.multiply_adds, s.working_set) for s in steps]
        self.columns = np.array(columns, np.int64).reshape(len(steps), 6).T
        self.where = {kind: np.flatnonzero(self.kind == kind) for kind in (ARENA, INPUT, OUTPUT, CONSTANT, TABLE, ZEROS)}
        numbers = dict.fromkeys(self.index[self.where[TABLE]].tolist())
        self.tables: dict[int, Table] = {n: blueprint.tables[n] for n in numbers}
        self.buffers = np.array([i for i, b in enumerate(blueprint.buffers) if b.stage == stage], np.int64)
        mine = [blueprint.buffers[i] for i in self.buffers]
        end = max(0, len(self.items) - 1)
        self.arena_sizes = np.array([blueprint.buffers[i].size for i in self.index[self.where[ARENA]].tolist()], np.int64)
        self.buffer_sizes = np.array([b.size for b in mine], np.int64)
        self.buffer_first = [b.first for b in mine]
        self.buffer_last = [end if b.kept else b.last for b in mine]


def _segments(items: Sequence[Item]) -> list[tuple[int, int]]:
    """(number, minus the kind) for each step that is not native, and (first, end) among the native steps for each run of them."""
    segments: list[tuple[int, int]] = []
    native = 0
    for item in items:
        if item.kind != NATIVE:
            segments.append((item.number, -item.kind))
            continue
        if segments and segments[-1][1] == native:
            segments[-1] = (segments[-1][0], native + 1)
        else:
            segments.append((native, native + 1))
        native += 1
    return segments


@dataclass(frozen=True)
class OutputArray:
    """An output to make: its number, shape and dtype."""

    index: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def new_array(output: OutputArray, name: str) -> NDArray[Any]:
    """A fresh array for an output.

    Raises
    ------
    SartorError
        There is not enough memory for it, or none could be.
    """
    try:
        return np.empty(output.shape, output.dtype)
    except (MemoryError, ValueError):
        raise SartorError(f"there is not enough memory for the output {name} of the shape {list(output.shape)}") from None


@dataclass(frozen=True)
class BoundStage:
    """One stage at given sizes: all but addresses.

    Attributes
    ----------
    block
        The argument block: arguments of all steps, then the tables of row addresses.
    arena_words, own_words
        Which words of it are relative to the arena's start and to the block's own.
    patches
        Of each external array (inputs, outputs, arenas of stages before), [words, offsets] to patch in.
    tasks
        The task list, with argument addresses relative to the block.
    scratch_bytes
        One thread's slab.
    outputs
        Those whose size is known from this stage on.
    """

    layout: Layout
    values: Words
    arena: Arena
    block: Words
    arena_words: NDArray[np.intp]
    own_words: NDArray[np.intp]
    patches: tuple[Words, ...]
    tasks: Words
    scratch_bytes: int
    threads: int
    holds_lock: bool
    outputs: tuple[OutputArray, ...]
    zeros: NDArray[np.uint8]
    buffer_offsets: Mapping[int, int]


@dataclass
class Bound:
    """A program at given sizes: its stages as far as they are bound, the later ones keyed by sizes found in the run."""

    sizes: dict[str, int]
    first: BoundStage


class Binder:
    """Binds one program; keeps what sizes do not change."""

    def __init__(self, program: Program, threads: int) -> None:
        self.program = program
        self.threads = threads
        self._layouts: dict[int, Layout] = {}
        self._zeros = _aligned(0)

    @property
    def blueprint(self) -> Blueprint:
        return self.program.blueprint

    def layout(self, stage: int) -> Layout:
        if stage not in self._layouts:
            self._layouts[stage] = Layout(self.program, stage)
        return self._layouts[stage]

    @cached_property
    def _input_symbols(self) -> list[tuple[int, int, str]]:
        """(input, axis, symbol) for each input dimension that is a symbol alone."""
        names = dict(self.blueprint.formulas.symbol_entries)
        return [
            (k, axis, names[entry])
            for k, number in enumerate(self.blueprint.inputs)
            for axis, entry in enumerate(self.blueprint.values[number].shape)
            if entry in names
        ]

    def sizes(self, shapes: Sequence[tuple[int, ...]], known: Mapping[str, int] | None = None) -> dict[str, int]:
        """What the shapes of all inputs, in order, say about symbols that are not `known`.

        Raises
        ------
        FeedError
            They do not fit.
        """
        blueprint = self.blueprint
        for number, shape in zip(blueprint.inputs, shapes, strict=True):
            if len(shape) != len(blueprint.values[number].shape):
                raise FeedError(self._misfit(number, shape))
        sizes: dict[str, int] = dict(known or {})
        for k, axis, name in self._input_symbols:
            sizes.setdefault(name, shapes[k][axis])
        values = blueprint.formulas.evaluate(sizes)
        for number, shape in zip(blueprint.inputs, shapes, strict=True):
            if tuple(values[list(blueprint.values[number].shape)].tolist()) != tuple(shape):
                raise FeedError(self._misfit(number, shape, sizes))
        self._check_conditions(0, values, sizes)
        return sizes

    def fitted(self, shapes: Shapes, known: Mapping[str, int] | None = None) -> tuple[Shapes, dict[str, int]]:
        """The shapes to run with, and their sizes: those given, or where a size of 1 meets another and that may be, repeated ones.

        Raises
        ------
        FeedError
            They do not fit.
        """
        try:
            return shapes, self.sizes(shapes, known)
        except FeedError:
            at_once = [c for c, stage in zip(self.blueprint.conditions, self._condition_stages, strict=True) if stage == 0]
            if known is not None or (wide := repeated(self.blueprint, self._input_symbols, at_once, shapes)) is None:
                raise
        return wide, self.sizes(wide, known)

    def _check_conditions(self, stage: int, values: Words, sizes: Mapping[str, int]) -> None:
        """Raises `FeedError` where a condition that can be told from this stage on does not hold."""
        for (a, b), known in zip(self.blueprint.conditions, self._condition_stages, strict=True):
            if known == stage and values[a] != values[b]:
                raise FeedError(
                    f"the network cannot work at the sizes {_sizes_text(sizes)}: two tensors that are combined would have "
                    f"{values[a]} and {values[b]} elements in one dimension"
                )

    @cached_property
    def _known(self) -> list[int]:
        """For each formula the stage from which on its symbols are known; -1 where one never is, since nothing needs it."""
        blueprint, formulas = self.blueprint, self.blueprint.formulas
        symbols = dict.fromkeys(blueprint.given, 0) | {name: 0 for _, _, name in self._input_symbols}
        for stage, items in enumerate(blueprint.stages):
            for item in items:
                if item.kind == HOST:
                    symbols |= {entry[0]: stage + 1 for entry in blueprint.hosts[item.number].defines}
                elif item.kind == BIND:
                    symbols |= dict.fromkeys(filter(None, blueprint.binds[item.number].symbols), stage + 1)
                elif item.kind == CONTROL:
                    symbols |= {entry[0]: stage + 1 for entry in blueprint.controls[item.number].defines}
        known: list[int] = []
        for op, a, b in zip(formulas.op, formulas.a, formulas.b, strict=True):
            if op <= SYMBOL:
                known.append(symbols.get(formulas.symbols[a], -1) if op == SYMBOL else 0)
            else:
                known.append(-1 if min(known[a], known[b]) < 0 else max(known[a], known[b]))
        return known

    @cached_property
    def _condition_stages(self) -> list[int]:
        return [-1 if min(known := (self._known[a], self._known[b])) < 0 else max(known) for a, b in self.blueprint.conditions]

    @cached_property
    def _shape_stages(self) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
        """The values, with their shapes' formulas, whose sizes are known from a stage on, by that stage."""
        found: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for value in self.blueprint.values:
            known = [self._known[f] for f in value.shape]
            if min(known, default=0) >= 0:
                found.setdefault(max(known, default=0), []).append((value.name, value.shape))
        return found

    def _check_shapes(self, stage: int, values: Words, sizes: Mapping[str, int]) -> None:
        """Raises `SartorError` where a size that is known from this stage on is below 0, or more than a number of bytes can be."""
        exact = self.blueprint.formulas.evaluate(sizes, np.float64)
        for name, shape in self._shape_stages.get(stage, ()):
            if shape and (min(values[list(shape)]) < 0 or np.prod(exact[list(shape)]) > LARGEST):
                dims = ", ".join(f"{d:.0f}" for d in exact[list(shape)])
                raise SartorError(f"the value {name} would have the shape [{dims}], which no array can have")

    def _misfit(self, number: int, shape: Sequence[int], sizes: Mapping[str, int] | None = None) -> str:
        name = self.blueprint.values[number].name
        expected = ", ".join(map(str, self.program.inputs[name].shape))
        used = [s for s in sizes or {} if s in expected]
        where = f" with {_sizes_text({s: sizes[s] for s in used})}" if sizes and used else ""
        return f"the input {name} has the shape [{', '.join(map(str, shape))}]; expected [{expected}]{where}"

    def bind(self, stage: int, sizes: Mapping[str, int], before: Sequence[BoundStage] = (), checked: bool = True) -> BoundStage:
        """Stage number `stage` at these sizes, those before being bound already.

        Raises
        ------
        SartorError
            The network cannot work at these sizes; not looked at where `checked` is false, for sizes that are not known yet.
        """
        layout, blueprint = self.layout(stage), self.blueprint
        values = blueprint.formulas.evaluate(sizes)
        if checked:
            if stage:
                self._check_conditions(stage, values, sizes)
            self._check_shapes(stage, values, sizes)
        arena = plan_arena(values[layout.buffer_sizes].tolist(), layout.buffer_first, layout.buffer_last)
        offsets = dict(zip(layout.buffers.tolist(), arena.offsets, strict=True))
        tables, length = self._place_tables(layout, values)
        outputs = self._outputs(stage, values)
        tasks, scratch, seconds = self._tasks(layout, values)
        if checked:
            self._check_memory(arena.bytes + scratch * self.threads + 8 * length + sum(o.bytes for o in outputs), sizes)
        block = np.zeros(length, np.int64)
        words = block[: len(layout.kind)]
        words[:] = values[layout.formula]
        self._check_places(layout, words, values)
        words[layout.where[CONSTANT]] += self._weights_address
        words[layout.where[ZEROS]] = self._zeros_address(words[layout.where[ZEROS]])
        patches = _Patches(len(blueprint.inputs), len(blueprint.outputs), len(before))
        arena_words: list[NDArray[np.intp]] = []
        self._fill_pointers(layout, words, offsets, before, patches, arena_words)
        starts = np.array([tables[n] for n in layout.index[layout.where[TABLE]].tolist()], np.int64)
        words[layout.where[TABLE]] = 8 * starts
        for number, start in tables.items():
            self._fill_table(layout.tables[number], values, block[start:], start, (offsets, before, patches, arena_words))
        return BoundStage(
            layout,
            values,
            arena,
            block,
            np.concatenate([*arena_words, np.empty(0, np.intp)]),
            layout.where[TABLE],
            patches.finish(),
            tasks,
            scratch,
            1 if seconds < _SMALL_RUN else self.threads,
            seconds < _HELD_RUN,
            outputs,
            self._zeros,
            offsets,
        )

    def _check_memory(self, wanted: int, sizes: Mapping[str, int]) -> None:
        """Refuses sizes at which a run needs more memory than the machine has at all."""
        if wanted > memory_bytes():
            at = f" at the sizes {_sizes_text(sizes)}" if sizes else ""
            raise SartorError(f"there is not enough memory{at}: a run needs {wanted} bytes, the machine has {memory_bytes()}")

    def _check_places(self, layout: Layout, words: Words, values: Words) -> None:
        """Makes sure that each address to be given to a kernel is one in its root."""
        blueprint = self.blueprint
        ends = {CONSTANT: len(self.program.weights), ZEROS: memory_bytes()}
        roots: list[tuple[NDArray[np.intp], Any]] = [(layout.where[kind], end) for kind, end in ends.items()]
        where = layout.where[ARENA]
        roots.append((where, values[layout.arena_sizes]))
        for kind, numbers in ((INPUT, blueprint.inputs), (OUTPUT, blueprint.outputs)):
            where = layout.where[kind]
            if len(where):
                sizes = np.array([_span(blueprint.values[n], values) for n in numbers], np.int64)
                roots.append((where, sizes[layout.index[where]]))
        for where, end in roots:
            if np.any((words[where] < 0) | ((words[where] > end) & (end != 0))):  # of nothing, no kernel touches anything
                raise ProgramError(f"{self.program.path or 'the program'} is damaged: an argument lies outside of its value")

    # --- addresses ---

    @cached_property
    def _weights_address(self) -> int:
        return int(self.program.weights.ctypes.data) if len(self.program.weights) else 0

    def _zeros_address(self, sizes: Words) -> int:
        wanted = int(sizes.max(initial=0))
        if wanted > len(self._zeros):
            self._zeros = _aligned(wanted)  # bound stages keep the one they were bound with
        return int(self._zeros.ctypes.data)

    def _fill_pointers(
        self,
        layout: Layout,
        words: Words,
        offsets: Mapping[int, int],
        before: Sequence[BoundStage],
        patches: _Patches,
        arena_words: list[NDArray[np.intp]],
    ) -> None:
        where = layout.where[ARENA]
        numbers = layout.index[where]
        if not before:
            lookup = np.zeros(len(self.blueprint.buffers), np.int64)
            lookup[layout.buffers] = [offsets[b] for b in layout.buffers.tolist()]
            words[where] += lookup[numbers]
            arena_words.append(where)
        else:
            for word, number in zip(where.tolist(), numbers.tolist(), strict=True):
                self._point(number, np.array([word]), words[word : word + 1], (offsets, before, patches, arena_words))
                words[word] += self._buffer_offset(number, offsets, before)
        for kind in (INPUT, OUTPUT):
            where = layout.where[kind]
            numbers = layout.index[where]
            for number in dict.fromkeys(numbers.tolist()):
                mine = where[numbers == number]
                patches.add(kind, number, mine, words[mine])

    def _buffer_offset(self, number: int, offsets: Mapping[int, int], before: Sequence[BoundStage]) -> int:
        stage = self.blueprint.buffers[number].stage
        return before[stage].buffer_offsets[number] if number not in offsets else offsets[number]

    def _point(self, number: int, where: NDArray[np.intp], content: Words, context: _Context) -> None:
        """Notes that these words are addresses in a buffer, of this stage or of one before."""
        offsets, before, patches, arena_words = context
        if number in offsets:
            arena_words.append(where)
        else:
            stage = self.blueprint.buffers[number].stage
            patches.add(ARENA, stage, where, content + before[stage].buffer_offsets[number])

    def _place_tables(self, layout: Layout, values: Words) -> tuple[dict[int, int], int]:
        """The first word of each table, and the length of the whole block."""
        at = len(layout.kind)
        places = {}
        for number, table in layout.tables.items():
            places[number] = at
            at += max(0, int(values[table.images] * (values[table.before] + values[table.height] + values[table.after])))
        return places, at

    def _fill_table(self, table: Table, values: Words, block: Words, start: int, context: _Context) -> None:
        value = self.blueprint.values[table.value]
        images, height, pixels, before, after = (
            int(values[f]) for f in (table.images, table.height, table.row_pixels, table.before, table.after)
        )
        count = before + height + after
        if images <= 0 or count <= 0:
            return
        row = np.arange(count) - before
        inside = (row >= 0) & (row < height)
        step = pixels * int(values[value.pitch]) * BYTES[value.dtype]
        rows = (np.arange(images)[:, None] * height + row) * step + int(values[value.offset])
        block[: images * count] = np.where(inside, rows, 0).reshape(-1)
        where = np.flatnonzero(np.broadcast_to(inside, rows.shape).reshape(-1))
        if value.root == ARENA:
            self._point(value.index, where + start, block[where], context)
            block[where] += self._buffer_offset(value.index, context[0], context[1])
        elif value.root == CONSTANT:
            block[where] += self._weights_address
        else:
            context[2].add(value.root, value.index, where + start, block[where])

    # --- tasks ---

    def _tasks(self, layout: Layout, values: Words) -> tuple[Words, int, float]:
        """The task list, bytes of scratch a thread, and a guess of the seconds one thread takes."""
        extent, grain, chunk, scratch, multiply_adds, working_set = values[layout.columns]
        tasks = np.zeros((len(layout.steps), TASK_SLOTS), np.int64)
        tasks[:, TASK_FUNCTION] = layout.functions
        tasks[:, TASK_ARGS] = 8 * layout.first
        tasks[:, TASK_EXTENT] = np.maximum(extent, 0)
        tasks[:, TASK_GRAIN] = grain = np.maximum(grain, 1)
        tasks[:, TASK_CHUNK] = -(-chunk // grain) * grain
        seconds = multiply_adds / _MULTIPLY_ADDS + working_set / _BYTES
        tasks[:, TASK_THREADS] = seconds < _SMALL_TASK
        return tasks, int(scratch.max(initial=0)), float(seconds.sum())

    def _outputs(self, stage: int, values: Words) -> tuple[OutputArray, ...]:
        blueprint = self.blueprint
        return tuple(
            OutputArray(i, tuple(values[list(blueprint.values[number].shape)].tolist()), to_numpy(blueprint.values[number].dtype))
            for i, (number, known) in enumerate(zip(blueprint.outputs, blueprint.output_stages, strict=True))
            if known == stage
        )

    # --- what the plan shows ---

    def plan(self, stages: Sequence[BoundStage]) -> Plan:
        """A plan for people and tests to read."""
        tasks: list[Task] = []
        for bound in stages:
            for item in bound.layout.items:
                if item.kind != BIND:
                    tasks.append(self._native_task(item.number, bound) if item.kind == NATIVE else self._task_in_python(item, bound))
        threads = max(bound.threads for bound in stages)
        return Plan(
            arena_bytes=sum(b.arena.bytes for b in stages),
            lower_bound=sum(b.arena.lower_bound for b in stages),
            scratch_bytes=max(b.scratch_bytes * b.threads for b in stages),
            multiply_adds=sum(t.multiply_adds for t in tasks),
            tasks=tuple(tasks),
            threads=threads,
        )

    def _native_task(self, number: int, bound: BoundStage) -> Task:
        step, values = self.blueprint.steps[number], bound.values
        layer = self.program.layers[step.layer]
        return Task(
            layer.name,
            "copy" if layer.copies else "compute",
            int(values[step.working_set]),
            int(values[step.multiply_adds]),
            int(values[step.extent]),
            int(values[step.grain]),
        )

    def _task_in_python(self, item: Item, bound: BoundStage) -> Task:
        host = item.kind == HOST
        step = self.blueprint.hosts[item.number] if host else self.blueprint.controls[item.number]
        touched = [self.blueprint.values[v] for v in dict.fromkeys((*step.inputs, *step.outputs)) if v >= 0]
        size = sum(int(np.prod(bound.values[list(v.shape)])) * BYTES[v.dtype] for v in touched)
        return Task(self.program.layers[step.layer].name, "compute" if host else "control", size, 0, host=host)


_Context: TypeAlias = "tuple[Mapping[int, int], Sequence[BoundStage], _Patches, list[NDArray[np.intp]]]"


class _Patches:
    """Words of the argument block that hold addresses in the caller's arrays or in arenas of stages before."""

    def __init__(self, inputs: int, outputs: int, arenas: int) -> None:
        self._start = {INPUT: 0, OUTPUT: inputs, ARENA: inputs + outputs}
        self._parts: list[list[Words]] = [[] for _ in range(inputs + outputs + arenas)]

    def add(self, kind: int, number: int, words: NDArray[np.intp], offsets: Words) -> None:
        self._parts[self._start[kind] + number].append(np.stack([words, offsets], axis=1).astype(np.int64))

    def finish(self) -> tuple[Words, ...]:
        return tuple(np.concatenate(parts) if parts else np.empty((0, 2), np.int64) for parts in self._parts)


def _span(value: Value, values: Words) -> int:
    """Bytes of the caller's array that a value is."""
    return int(np.prod(values[list(value.shape)])) * BYTES[value.dtype]


def _aligned(count: int) -> NDArray[np.uint8]:
    """Zero bytes from a multiple of 64 on."""
    memory = np.zeros(count + 64, np.uint8)
    lead = -memory.ctypes.data % 64
    return memory[lead : lead + count]


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
