"""A session runs a program: it checks what comes in, binds sizes, and hands each run a context of its own.

A context is everything one run writes: arena, argument blocks, task lists, scratch.  Contexts come from a pool, so that threads
may call one session at once; each grows to the largest sizes it was used for.  Bound plans are kept, least recently used dropped
first.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sartor.errors import FeedError, OptionError, ProgramError, SartorError
from sartor.fitting.plan import Plan
from sartor.runtime.binding import Binder, BoundStage, new_array
from sartor.runtime.context import Array, Memory
from sartor.runtime.executor import ticks_per_second
from sartor.runtime.program import Program, check_machine
from sartor.runtime.repeating import Shapes
from sartor.runtime.run import Run
from sartor.runtime.threads import available_threads
from sartor.types import to_numpy

if TYPE_CHECKING:
    from sartor.runtime.control import ControlRunner
    from sartor.runtime.host import HostRunner
    from sartor.runtime.tail import TailRunner

KEPT_PLANS = 64
"""How many sets of sizes a session keeps plans for."""

KEPT_STAGES = 64
"""How many sets of sizes found in runs each of these keeps the later stages for."""

_READY = 0x101  # NumPy's flags C_CONTIGUOUS and ALIGNED
_WRITABLE = 0x501  # and WRITEABLE
_told: set[str] = set()


class Ready:
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
        self.later: OrderedDict[tuple[int, tuple[int, ...]], BoundStage] = OrderedDict()

    def repeat(self, arrays: list[Array]) -> None:
        """Repeats arrays along dims of size 1 where the plan is for more."""
        for number, (_, shape, _) in enumerate(self.expected):
            if arrays[number].shape != shape:
                arrays[number] = np.ascontiguousarray(np.broadcast_to(arrays[number], shape))


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
        if threads is not None and (not isinstance(threads, int | np.integer) or threads < 1):
            raise OptionError(f"a session cannot run on {threads} threads; give 1 or more")
        self.threads = threads or max(1, min(self.program.threads, available_threads()))
        check_machine(self.program.isa, self.program.machine, self.program.path or "the program")
        self._binder = Binder(self.program, self.threads)
        self._plans: OrderedDict[object, Ready] = OrderedDict()
        self._lock = threading.Lock()
        self._latest: Ready | None = None
        self._pool: list[Memory] = []
        self._closed = False
        self._input_names = tuple(self.program.inputs)
        self.output_names = tuple(self.program.outputs)
        values = self.program.blueprint.values
        self._dtypes = tuple(to_numpy(values[v].dtype) for v in self.program.blueprint.inputs)
        self.hosts = _host_runners(self.program)
        self.controls = _control_runners(self.program, self.threads)
        self._tail = _tail_runner(self.program, self.threads)
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
        if ready is not None and ready.simple and out is None and isinstance(feeds, dict) and len(feeds) == len(ready.expected):
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
                return dict(zip(self.output_names, made, strict=True))
        return self._run_checked(feeds, out)

    def __call__(self, *arrays: Array) -> Any:
        """Computes the network for arrays in the order of its inputs; returns the output, or a tuple of several."""
        if len(arrays) != len(self._input_names):
            raise FeedError(
                f"{len(arrays)} arrays came; the network has {len(self._input_names)} inputs: {', '.join(self._input_names)}"
            )
        results = tuple(self.run(dict(zip(self._input_names, arrays, strict=True))).values())
        return results[0] if len(results) == 1 else results

    def _run_simple(self, ready: Ready, inputs: list[Array], outputs: list[Array]) -> None:
        try:
            memory = self._pool.pop()
        except IndexError:
            memory = self._new_memory()
        try:
            context = memory.contexts.get(id(ready.first)) or memory.context(self.program, 0, ready.first)
            if context.call(*inputs, *outputs):
                context.call_again(*inputs, *outputs)
        finally:
            self._pool.append(memory)

    def _run_checked(self, feeds: Mapping[str, Array], out: Mapping[str, Array] | None) -> dict[str, Array]:
        if self._tail is not None:
            if self._closed:
                raise SartorError("the session is closed")
            return self._tail.run(feeds, out)
        if out is not None and not isinstance(out, Mapping):
            raise FeedError(f"arrays for outputs must come as a mapping of names to arrays, not as {type(out).__name__}")
        inputs = self._check_feeds(feeds)
        ready = self._ready(tuple(a.shape for a in inputs))
        ready.repeat(inputs)
        given = self._check_out(out, inputs) if out else {}
        if ready.simple:
            self.check_made(given, ready.first)
            outputs = [given[o.index] if o.index in given else new_array(o, self.output_names[o.index]) for o in ready.first.outputs]
            self._run_simple(ready, inputs, outputs)
        else:
            memory = self._take_memory()
            try:
                outputs = Run(self, ready, inputs, given, memory).all()
            finally:
                self._give_memory(memory)
        return dict(zip(self.output_names, outputs, strict=True))

    def run_body(
        self, inputs: Sequence[Array], out: Sequence[Array | None], known: Mapping[str, int], memory: Memory
    ) -> list[Array]:
        """Runs the program as a body, in the memory of the run around it.

        Parameters
        ----------
        inputs
            Contiguous arrays of the right types.
        out
            Arrays to write outputs to where their shapes fit; None for those that are to be made.
        known
            Sizes that the run around it knows.
        """
        ready = self._ready(tuple([a.shape for a in inputs]), known)
        if not ready.simple:
            made = {o.index: o.shape for o in ready.first.outputs}
            given = {i: a for i, a in enumerate(out) if a is not None and made.get(i) == a.shape}
            return Run(self, ready, list(inputs), given, memory).all()
        outputs = [
            place if place is not None and place.shape == shape and place.flags.num & _WRITABLE == _WRITABLE else np.empty(shape, dtype)
            for place, (shape, dtype) in zip(out, ready.made, strict=True)
        ]
        context = memory.contexts.get(id(ready.first)) or memory.context(self.program, 0, ready.first)
        if context.call(*inputs, *outputs):
            context.call_again(*inputs, *outputs)
        return outputs

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
                raise FeedError(f"the network has no output {name}; it has {', '.join(self.output_names)}")
            index = self.output_names.index(name)
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

    def check_made(self, given: Mapping[int, Array], bound: BoundStage) -> None:
        for output in bound.outputs:
            array = given.get(output.index)
            if array is not None and array.shape != output.shape:
                raise FeedError(
                    f"the array for the output {self.output_names[output.index]} has the shape {list(array.shape)}; "
                    f"expected {list(output.shape)}"
                )

    # --- plans ---

    def _ready(self, shapes: Shapes, known: Mapping[str, int] | None = None) -> Ready:
        """The bound plan for these input shapes, and sizes that are `known` besides."""
        key = (shapes, tuple(known.values())) if known else shapes
        with self._lock:
            ready = self._plans.get(key)
            if ready is None:
                fitted, sizes = self._binder.fitted(shapes, known)
                ready = Ready(self.program, fitted, sizes, self._binder.bind(0, sizes), self._dtypes)
                self._plans[key] = ready
                if len(self._plans) > KEPT_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
        self._latest = ready
        return ready

    def bind_later(self, ready: Ready, stage: int, sizes: Mapping[str, int], before: Sequence[BoundStage]) -> BoundStage:
        """A later stage at sizes found in a run."""
        key = (stage, tuple(sizes.values()))
        with self._lock:
            if (bound := ready.later.get(key)) is None:
                bound = ready.later[key] = self._binder.bind(stage, sizes, before)
                if len(ready.later) > KEPT_STAGES * (len(self.program.blueprint.stages) - 1):
                    ready.later.popitem(last=False)
            else:
                ready.later.move_to_end(key)
            return bound

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The plan for inputs of these shapes: memory, work, and each task's working set.

        Where sizes become known only in a run, they count as 0 here.
        """
        for name, tensor in self.program.inputs.items():
            if name not in shapes and not tensor.opaque:
                raise FeedError(f"the shape of the input {name} is missing; expected {tensor}")
        for name in shapes:
            if name not in self.program.inputs:
                raise FeedError(f"the network has no input {name}; it has {', '.join(self._input_names)}")
        if self._tail is not None:
            return self._tail.plan(shapes)
        ready = self._ready(tuple(tuple(int(d) for d in shapes[name]) for name in self._input_names))
        stages = [ready.first]
        with self._lock:
            for stage in range(1, len(self.program.blueprint.stages)):
                stages.append(self._binder.bind(stage, ready.sizes, stages, checked=False))
        return self._binder.plan(stages)

    def profile(self, feeds: Mapping[str, Array]) -> dict[str, float]:
        """Seconds of each layer in one run, in order of computation."""
        if self._tail is not None:
            return self._tail.profile(feeds)
        inputs = self._check_feeds(feeds)
        ready = self._ready(tuple(a.shape for a in inputs))
        ready.repeat(inputs)
        memory = self._take_memory()
        try:
            run = Run(self, ready, inputs, {}, memory, profiled=True)
            run.all()
        finally:
            self._give_memory(memory)
        return run.seconds

    @cached_property
    def tick_rate(self) -> float:
        """Ticks a second of the clock in profiles."""
        return ticks_per_second(self.program.code)

    # --- memory ---

    def _new_memory(self) -> Memory:
        if self._closed:
            raise SartorError("the session is closed")
        return Memory()

    def _take_memory(self) -> Memory:
        try:
            return self._pool.pop()
        except IndexError:
            return self._new_memory()

    def _give_memory(self, memory: Memory) -> None:
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


def _host_runners(program: Program) -> list[HostRunner]:
    if not program.blueprint.hosts:
        return []
    from sartor.runtime.host import HostRunner  # what steps on the host need is imported for them alone

    try:
        return [HostRunner(step) for step in program.blueprint.hosts]
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        what = f"{program.path or 'the program'} is damaged"
        raise ProgramError(f"{what}: a step on the host cannot be read ({type(problem).__name__}: {problem})") from None


def _control_runners(program: Program, threads: int) -> list[ControlRunner]:
    if not program.blueprint.controls:
        return []
    from sartor.runtime.control import ControlRunner

    return [ControlRunner(program, step, threads) for step in program.blueprint.controls]


def _tail_runner(program: Program, threads: int) -> TailRunner | None:
    if program.tail is None:
        return None
    from sartor.runtime.tail import TailRunner

    return TailRunner(program, threads)


def _tell_fallbacks(program: Program) -> None:
    """Logs once a process what of a program is not native code."""
    new = [fallback for fallback in program.fallbacks if fallback not in _told]
    _told.update(new)
    if new:
        import logging

        more = f" and {len(new) - 5} more" if len(new) > 5 else ""
        logging.getLogger("sartor").warning("not native code in %s: %s%s", program.name or "the program", ", ".join(new[:5]), more)
