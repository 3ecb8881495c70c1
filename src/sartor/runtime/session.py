"""A session runs a program: it checks what comes in, binds sizes, and hands each run a context of its own.

A context is everything one run writes: arena, argument blocks, task lists, scratch.  Contexts come from a pool, so that threads
may call one session at once; each grows to the largest sizes it was used for.  Bound plans are kept, least recently used dropped
first.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.errors import FeedError, OptionError, SartorError
from sartor.fitting.plan import ARENA, CONSTANT, INPUT, Plan, Value
from sartor.runtime.binding import Binder, BoundStage
from sartor.runtime.executor import TASK_ARGS, Runner, ticks_per_second
from sartor.runtime.host import HostRunner
from sartor.runtime.program import Program, check_machine
from sartor.runtime.threads import available_threads
from sartor.types import to_numpy

Array: TypeAlias = NDArray[Any]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]

KEPT_PLANS = 64
"""How many sets of sizes a session keeps plans for."""

_READY = 0x101  # NumPy's flags C_CONTIGUOUS and ALIGNED
_log = logging.getLogger("sartor")
_told: set[str] = set()


class Context:
    """What one run writes in one stage: argument block, task lists, and the arena they point into."""

    def __init__(self, program: Program, bound: BoundStage, arena: Array, scratch: Array) -> None:
        self.bound = bound
        self.arena = arena
        self.block = block = bound.block.copy()
        address, start = arena.ctypes.data, block.ctypes.data
        block[bound.arena_words] += address
        block[bound.own_words] += start
        patches = [p.copy() for p in bound.patches]
        for patch in patches:
            patch[:, 0] = patch[:, 0] * 8 + start
        tasks = bound.tasks.copy()
        tasks[:, TASK_ARGS] += start
        slabs = scratch[: bound.threads]
        self.runners: list[Runner | None] = []
        for first, end in bound.layout.segments:
            if end < 0:
                self.runners.append(None)
                continue
            # The caller's addresses are written once, by the first native segment.
            runner = Runner(
                program.code,
                tasks[first:end],
                threads=bound.threads,
                scratch=slabs,
                patches=patches,
                releases_lock=not bound.holds_lock,
            )
            self.runners.append(runner)
        self.call = self.runners[0].native if self.runners and self.runners[0] else _not_native


class Memory:
    """What one run at a time may use: arenas and scratch, with the contexts made of them."""

    def __init__(self) -> None:
        self.arenas: dict[int, Array] = {}
        self.scratch = _slabs(1, 0)
        self.contexts: dict[int, Context] = {}

    def context(self, program: Program, stage: int, bound: BoundStage) -> Context:
        """The context of a bound stage, made when first asked for; memory grows as needed."""
        context = self.contexts.get(id(bound))
        if context is None:
            self._reserve(stage, bound)
            if len(self.contexts) > KEPT_PLANS * 2:
                self.contexts.clear()
            context = self.contexts[id(bound)] = Context(program, bound, self.arenas[stage], self.scratch)
        return context

    def _reserve(self, stage: int, bound: BoundStage) -> None:
        arena = self.arenas.get(stage)
        small = self.scratch.shape[0] < bound.threads or self.scratch.shape[1] < bound.scratch_bytes
        try:
            if arena is None or len(arena) < bound.arena.bytes:
                self.contexts.clear()
                self.arenas.pop(stage, None)
                self.arenas[stage] = _aligned(bound.arena.bytes)
            if small:
                self.contexts.clear()
                self.scratch = _slabs(max(self.scratch.shape[0], bound.threads), max(self.scratch.shape[1], bound.scratch_bytes))
        except (MemoryError, ValueError):
            raise SartorError(
                f"there is not enough memory for these sizes: the network needs {bound.arena.bytes} bytes between its "
                f"layers and {bound.threads} times {bound.scratch_bytes} bytes of scratch"
            ) from None


class _Ready:
    """A plan that is bound, with what a call must bring to use it."""

    def __init__(
        self, program: Program, shapes: Shapes, sizes: dict[str, int], first: BoundStage, dtypes: Sequence[np.dtype[Any]]
    ) -> None:
        names = list(program.inputs)
        self.sizes = sizes
        self.first = first
        self.expected = tuple(zip(names, shapes, dtypes, strict=True))
        self.made = tuple((o.shape, o.dtype) for o in first.outputs)
        # One native call does it all: one stage, one segment, no host step.
        self.simple = len(program.blueprint.stages) == 1 and [end >= 0 for _, end in first.layout.segments] == [True]
        self.later: dict[tuple[int, tuple[int, ...]], BoundStage] = {}


class Session:
    """Runs a program.

    Parameters
    ----------
    program
        A `Program`, or the path of a program file.
    threads
        How many threads runs use; by default as the program was compiled for, within what this process may use.

    Notes
    -----
    Any number of threads may use a session at once.  Outputs are fresh arrays, or those given as `out`.
    """

    def __init__(self, program: Program | str | os.PathLike[str], *, threads: int | None = None) -> None:
        self.program = program if isinstance(program, Program) else Program.load(program)
        if threads is not None and threads < 1:
            raise OptionError(f"a session cannot run on {threads} threads; give 1 or more")
        self.threads = threads or max(1, min(self.program.threads, available_threads()))
        check_machine(self.program.isa, self.program.machine, self.program.path or "the program")
        self._binder = Binder(self.program, self.threads)
        self._plans: OrderedDict[Shapes, _Ready] = OrderedDict()
        self._lock = threading.Lock()
        self._latest: _Ready | None = None
        self._pool: list[Memory] = []
        self._closed = False
        self._input_names = tuple(self.program.inputs)
        self._output_names = tuple(self.program.outputs)
        values = self.program.blueprint.values
        self._dtypes = tuple(to_numpy(values[v].dtype) for v in self.program.blueprint.inputs)
        self._hosts = [HostRunner(step) for step in self.program.blueprint.hosts]
        _tell_fallbacks(self.program)

    # --- running ---

    def run(self, feeds: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Computes the network.

        Parameters
        ----------
        feeds
            An array for each input, of its type.  Arrays that are not contiguous are copied first.
        out
            Arrays to write outputs to, contiguous and of the right type and shape; outputs not named get fresh arrays.

        Returns
        -------
        dict
            Every output by name.

        Raises
        ------
        FeedError
            Names, types or sizes are wrong.
        """
        ready = self._latest
        if ready is not None and ready.simple and out is None and len(feeds) == len(ready.expected):
            arrays = []
            for name, shape, dtype in ready.expected:
                array = feeds.get(name)
                if (
                    type(array) is not np.ndarray
                    or array.dtype is not dtype
                    or array.shape != shape
                    or array.flags.num & _READY != _READY
                ):
                    break
                arrays.append(array)
            else:
                made = [np.empty(shape, dtype) for shape, dtype in ready.made]
                self._run_simple(ready, arrays, made)
                return dict(zip(self._output_names, made, strict=True))
        return self._run_checked(feeds, out)

    def __call__(self, *arrays: Array) -> Any:
        """Computes the network for arrays in the order of its inputs; returns the output, or a tuple of several."""
        if len(arrays) != len(self._input_names):
            raise FeedError(
                f"{len(arrays)} arrays came; the network has {len(self._input_names)} inputs: {', '.join(self._input_names)}"
            )
        results = tuple(self.run(dict(zip(self._input_names, arrays, strict=True))).values())
        return results[0] if len(results) == 1 else results

    def _run_simple(self, ready: _Ready, inputs: list[Array], outputs: list[Array]) -> None:
        try:
            memory = self._pool.pop()
        except IndexError:
            memory = self._new_memory()
        try:
            context = memory.contexts.get(id(ready.first))
            if context is None or context.bound is not ready.first:
                context = memory.context(self.program, 0, ready.first)
            if context.call(*inputs, *outputs):
                context.runners[0](*inputs, *outputs)  # type: ignore[misc]
        finally:
            self._pool.append(memory)

    def _run_checked(self, feeds: Mapping[str, Array], out: Mapping[str, Array] | None) -> dict[str, Array]:
        inputs = self._check_feeds(feeds)
        ready = self._ready(tuple(a.shape for a in inputs))
        given = self._check_out(out, inputs) if out else {}
        if ready.simple:
            outputs = [given.get(i) if i in given else np.empty(shape, dtype) for i, (shape, dtype) in enumerate(ready.made)]
            self._check_made(given, ready.first)
            self._run_simple(ready, inputs, outputs)  # type: ignore[arg-type]
        else:
            outputs = _Run(self, ready, inputs, given).all()  # type: ignore[assignment]
        return dict(zip(self._output_names, outputs, strict=True))  # type: ignore[arg-type]

    # --- what comes in ---

    def _check_feeds(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The input arrays in order, contiguous."""
        if not isinstance(feeds, Mapping):
            raise FeedError(f"inputs must come as a mapping of names to arrays, not as {type(feeds).__name__}")
        for name in feeds:
            if name not in self.program.inputs:
                raise FeedError(f"the network has no input {name}; it has {', '.join(self._input_names)}")
        return [self._check_array(name, feeds, dtype) for name, dtype in zip(self._input_names, self._dtypes, strict=True)]

    def _check_array(self, name: str, feeds: Mapping[str, Array], dtype: np.dtype[Any]) -> Array:
        if name not in feeds:
            raise FeedError(f"the input {name} is missing; expected {self.program.inputs[name]}")
        array = feeds[name]
        if not isinstance(array, np.ndarray | np.generic):
            raise FeedError(f"the input {name} is a {type(array).__name__}; expected an array {self.program.inputs[name]}")
        if array.dtype != dtype:
            raise FeedError(f"the input {name} has elements of type {array.dtype}; expected {dtype}")
        return np.require(array, dtype, ("C", "A")).view(np.ndarray)

    def _check_out(self, out: Mapping[str, Array], inputs: list[Array]) -> dict[int, Array]:
        """The arrays given for outputs by number; inputs that overlap one are copied."""
        values = self.program.blueprint.values
        found: dict[int, Array] = {}
        for name, array in out.items():
            if name not in self.program.outputs:
                raise FeedError(f"the network has no output {name}; it has {', '.join(self._output_names)}")
            index = self._output_names.index(name)
            dtype = to_numpy(values[self.program.blueprint.outputs[index]].dtype)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.carray:
                what = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
                raise FeedError(f"the array for the output {name} is {what}; expected a contiguous, writable array of {dtype}")
            for k, given in enumerate(inputs):
                if np.may_share_memory(given, array):
                    inputs[k] = given.copy()
            if any(np.may_share_memory(other, array) for other in found.values()):
                raise FeedError(f"the array for the output {name} overlaps that of another output")
            found[index] = array
        return found

    def _check_made(self, given: Mapping[int, Array], bound: BoundStage) -> None:
        for output in bound.outputs:
            array = given.get(output.index)
            if array is not None and array.shape != output.shape:
                raise FeedError(
                    f"the array for the output {self._output_names[output.index]} has the shape {list(array.shape)}; "
                    f"expected {list(output.shape)}"
                )

    # --- plans ---

    def _ready(self, shapes: Shapes) -> _Ready:
        """The bound plan for these input shapes."""
        with self._lock:
            ready = self._plans.get(shapes)
            if ready is None:
                sizes = self._binder.sizes(shapes)
                ready = _Ready(self.program, shapes, sizes, self._binder.bind(0, sizes), self._dtypes)
                self._plans[shapes] = ready
                if len(self._plans) > KEPT_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(shapes)
        self._latest = ready
        return ready

    def bind_later(self, ready: _Ready, stage: int, sizes: Mapping[str, int], before: Sequence[BoundStage]) -> BoundStage:
        """A later stage at sizes found in a run."""
        key = (stage, tuple(sizes.values()))
        with self._lock:
            if (bound := ready.later.get(key)) is None:
                if len(ready.later) > KEPT_PLANS:
                    ready.later.clear()
                bound = ready.later[key] = self._binder.bind(stage, sizes, before)
            return bound

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The plan for inputs of these shapes: memory, work, and each task's working set.

        Where sizes become known only in a run, they count as 0 here.
        """
        for name in self._input_names:
            if name not in shapes:
                raise FeedError(f"the shape of the input {name} is missing; expected {self.program.inputs[name]}")
        for name in shapes:
            if name not in self.program.inputs:
                raise FeedError(f"the network has no input {name}; it has {', '.join(self._input_names)}")
        ready = self._ready(tuple(tuple(int(d) for d in shapes[name]) for name in self._input_names))
        stages = [ready.first]
        for stage in range(1, len(self.program.blueprint.stages)):
            stages.append(self._binder.bind(stage, ready.sizes, stages))
        return self._binder.plan(stages)

    def profile(self, feeds: Mapping[str, Array]) -> dict[str, float]:
        """Seconds of each layer in one run, in order of computation."""
        inputs = self._check_feeds(feeds)
        ready = self._ready(tuple(a.shape for a in inputs))
        run = _Run(self, ready, inputs, {}, profiled=True)
        run.all()
        return run.seconds

    # --- memory ---

    def _new_memory(self) -> Memory:
        if self._closed:
            raise SartorError("the session is closed")
        return Memory()

    def take_memory(self) -> Memory:
        try:
            return self._pool.pop()
        except IndexError:
            return self._new_memory()

    def give_memory(self, memory: Memory) -> None:
        if not self._closed:
            self._pool.append(memory)

    def close(self) -> None:
        """Gives memory back; the session cannot run any more."""
        self._closed = True
        self._latest = None
        self._pool.clear()
        self._plans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session of {self.program!r} on {self.threads} thread{'s' if self.threads > 1 else ''}>"


class _Run:
    """One run stage by stage and segment by segment."""

    def __init__(
        self, session: Session, ready: _Ready, inputs: list[Array], given: Mapping[int, Array], profiled: bool = False
    ) -> None:
        self.session, self.ready, self.inputs, self.given, self.profiled = session, ready, inputs, given, profiled
        self.program = session.program
        self.outputs: list[Array] = [np.empty(0, np.uint8)] * len(session._output_names)
        self.sizes = dict(ready.sizes)
        self.stages: list[BoundStage] = []
        self.contexts: list[Context] = []
        self.seconds: dict[str, float] = {}

    def all(self) -> list[Array]:
        """Runs all stages; returns the outputs."""
        memory = self.session.take_memory()
        try:
            arrived: dict[int, Array] = {}
            for stage in range(len(self.program.blueprint.stages)):
                bound = self.session.bind_later(self.ready, stage, self.sizes, self.stages) if stage else self.ready.first
                self.stages.append(bound)
                self.session._check_made(self.given, bound)
                for output in bound.outputs:
                    self.outputs[output.index] = self.given.get(output.index, np.empty(output.shape, output.dtype))
                self.contexts.append(memory.context(self.program, stage, bound))
                for number, array in arrived.items():
                    self.view(number)[...] = array
                arrived = self.run_stage()
            return self.outputs
        finally:
            self.session.give_memory(memory)

    def run_stage(self) -> dict[int, Array]:
        """Runs the segments of the last stage bound; returns results whose place only the next stage knows."""
        context = self.contexts[-1]
        externals = (*self.inputs, *self.outputs, *(c.arena for c in self.contexts[:-1]))
        arrived: dict[int, Array] = {}
        for (first, end), runner in zip(self.stages[-1].layout.segments, context.runners, strict=True):
            if runner is None:
                start = time.perf_counter()
                arrived |= self.run_host(first)
                self.spend(self.program.blueprint.hosts[first].layer, time.perf_counter() - start)
            elif self.profiled:
                self.note(first, end, runner.profile(*externals))
            else:
                runner(*externals)
        return arrived

    def run_host(self, number: int) -> dict[int, Array]:
        host = self.session._hosts[number]
        step, values = host.step, self.program.blueprint.values
        results = host({v: self.view(v) for v in step.inputs if v >= 0}, self.sizes)
        for symbol, output, axis in step.defines:
            found = results[output]
            assert found is not None
            self.sizes[symbol] = found.shape[axis]
        arrived: dict[int, Array] = {}
        for v, result in zip(step.outputs, results, strict=True):
            if v < 0 or result is None:
                continue
            if step.defines:
                arrived[v] = result
                continue
            place = self.view(v)
            if place.shape != result.shape:
                raise SartorError(
                    f"the step {self.program.layers[step.layer].name} made {values[v].name} of the shape {list(result.shape)}; "
                    f"expected {list(place.shape)}"
                )
            place[...] = result
        return arrived

    def view(self, number: int) -> Array:
        """A value's place in memory as an array."""
        value: Value = self.program.blueprint.values[number]
        sizes = self.stages[-1].values
        dtype = to_numpy(value.dtype)
        shape = tuple(sizes[list(value.shape)].tolist())
        step = dtype.itemsize
        strides = [step] * len(shape)
        if len(shape) > 1:
            strides[-2] = step * int(sizes[value.pitch])
            for axis in range(len(shape) - 3, -1, -1):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        return np.ndarray(shape, dtype, self._root(value), int(sizes[value.offset]) + self._start(value), strides)

    def _root(self, value: Value) -> Array:
        if value.root == ARENA:
            return self.contexts[self.program.blueprint.buffers[value.index].stage].arena
        if value.root == CONSTANT:
            return self.program.weights
        return self.inputs[value.index] if value.root == INPUT else self.outputs[value.index]

    def _start(self, value: Value) -> int:
        if value.root != ARENA:
            return 0
        return self.stages[self.program.blueprint.buffers[value.index].stage].buffer_offsets[value.index]

    def note(self, first: int, end: int, ticks: NDArray[np.int64]) -> None:
        """Adds the time of native steps to their layers'."""
        rate = ticks_per_second(self.program.code)
        layout = self.stages[-1].layout
        for step, count in zip(layout.steps[first:end], np.diff(ticks).tolist(), strict=True):
            self.spend(step.layer, count / rate)

    def spend(self, layer: int, seconds: float) -> None:
        name = self.program.layers[layer].name
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def _tell_fallbacks(program: Program) -> None:
    """Logs once a process what of a program is not native code."""
    new = [fallback for fallback in program.fallbacks if fallback not in _told]
    _told.update(new)
    if new:
        more = f" and {len(new) - 5} more" if len(new) > 5 else ""
        _log.warning("not native code in %s: %s%s", program.name or "the program", ", ".join(new[:5]), more)


def _not_native(*arrays: Array) -> int:
    return 1


def _aligned(count: int) -> Array:
    """Uninitialised bytes from a multiple of 64 on."""
    memory = np.empty(count + 64, np.uint8)
    lead = -memory.ctypes.data % 64
    return memory[lead : lead + count]


def _slabs(threads: int, count: int) -> Array:
    """Scratch: a slab of at least `count` bytes a thread, each on lines of its own."""
    width = -(-max(count, 1) // 128) * 128
    return _aligned(threads * width).reshape(threads, width)
