"""One run of a plan with several stages, host steps, or a clock: stage by stage, segment by segment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sartor.errors import FeedError, ProgramError, SartorError
from sartor.fitting.plan import ARENA, BIND, CONSTANT, HOST, INPUT, BindStep, ControlStep, HostStep, Value
from sartor.runtime.binding import BoundStage, new_array
from sartor.runtime.context import Array, Context, Memory
from sartor.types import to_numpy

if TYPE_CHECKING:
    from sartor.runtime.session import Ready, Session


class Run:
    """One run stage by stage and segment by segment."""

    def __init__(
        self, session: Session, ready: Ready, inputs: list[Array], given: Mapping[int, Array], memory: Memory, profiled: bool = False
    ) -> None:
        self.session, self.ready, self.inputs, self.given, self.profiled = session, ready, inputs, given, profiled
        self.memory = memory
        self.program = session.program
        self.outputs: list[Array] = [np.empty(0, np.uint8)] * len(session.output_names)
        self.sizes = dict(ready.sizes)
        self.stages: list[BoundStage] = []
        self.contexts: list[Context] = []
        self.seconds: dict[str, float] = {}

    def all(self) -> list[Array]:
        """Runs all stages; returns the outputs."""
        arrived: dict[int, Array] = {}
        for stage in range(len(self.program.blueprint.stages)):
            bound = self.session.bind_later(self.ready, stage, self.sizes, self.stages) if stage else self.ready.first
            self.stages.append(bound)
            self.session.check_made(self.given, bound)
            for output in bound.outputs:
                given = self.given.get(output.index)
                self.outputs[output.index] = new_array(output, self.session.output_names[output.index]) if given is None else given
            self.contexts.append(self.memory.context(self.program, stage, bound))
            for number, array in arrived.items():
                self.view(number)[...] = array
            arrived = self.run_stage()
        return self.outputs

    def run_stage(self) -> dict[int, Array]:
        """Runs the segments of the last stage bound; returns results whose place only the next stage knows."""
        context = self.contexts[-1]
        externals = (*self.inputs, *self.outputs, *(c.arena for c in self.contexts[:-1]))
        arrived: dict[int, Array] = {}
        for (first, end), runner in zip(self.stages[-1].layout.segments, context.runners, strict=True):
            if end == -BIND:
                self.run_bind(self.program.blueprint.binds[first])
            elif runner is None:
                start = time.perf_counter()
                made, layer = self.run_host(first) if end == -HOST else self.run_control(first)
                arrived |= made
                self.spend(layer, time.perf_counter() - start)
            elif self.profiled:
                self.note(first, end, runner.profile(*externals))
            else:
                runner(*externals)
        return arrived

    def run_host(self, number: int) -> tuple[dict[int, Array], int]:
        host = self.session.hosts[number]
        results = host({v: self.view(v) for v in host.step.inputs if v >= 0}, self.sizes)
        return self.take(host.step, results), host.step.layer

    def run_control(self, number: int) -> tuple[dict[int, Array], int]:
        control = self.session.controls[number]
        places = [None if control.step.defines else self.view(v) for v in control.step.outputs]
        return self.take(control.step, control(self, places), places), control.step.layer

    def take(
        self, step: HostStep | ControlStep, results: Sequence[Array | None], places: Sequence[Array | None] = ()
    ) -> dict[int, Array]:
        """Puts results where they belong, if they are not there; returns those whose place only the next stage knows."""
        values = self.program.blueprint.values
        for symbol, output, axis in step.defines:
            found = results[output]
            assert found is not None
            if found.ndim != len(values[step.outputs[output]].shape):
                known = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
                raise FeedError(
                    f"the network cannot work at the sizes {known}: {self.program.layers[step.layer].name} makes "
                    f"{values[step.outputs[output]].name} of {found.ndim} dimensions; expected {len(values[step.outputs[output]].shape)}"
                )
            self.sizes[symbol] = found.shape[axis]
        arrived: dict[int, Array] = {}
        for index, (v, result) in enumerate(zip(step.outputs, results, strict=True)):
            if v < 0 or result is None or (places and result is places[index]):
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

    def run_bind(self, step: BindStep) -> None:
        """Makes sizes known from what small vectors hold."""
        from sartor.graph.rules import known

        sizes = self.stages[-1].values
        numbers = [self.view(v).reshape(-1).tolist() for v in step.inputs]
        try:
            found = known(step.rule, numbers, sizes[list(step.dims)].tolist(), step.options)
        except ValueError as problem:
            raise SartorError(f"{step.options['what']} {problem}") from None
        self.sizes |= {symbol: size for symbol, size in zip(step.symbols, found, strict=False) if symbol}

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
        try:
            return np.ndarray(shape, dtype, self._root(value), int(sizes[value.offset]) + self._start(value), strides)
        except (TypeError, ValueError):
            what = f"{self.program.path or 'the program'} is damaged"
            raise ProgramError(f"{what}: its value {value.name} of the shape {list(shape)} does not lie within its memory") from None

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
        rate = self.session.tick_rate
        layout = self.stages[-1].layout
        for step, count in zip(layout.steps[first:end], np.diff(ticks).tolist(), strict=True):
            self.spend(step.layer, count / rate)

    def spend(self, layer: int, seconds: float) -> None:
        name = self.program.layers[layer].name
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
