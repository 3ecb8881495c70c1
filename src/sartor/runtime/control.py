"""Runs the steps that run other plans: the bodies of `if`, `loop` and `scan`.

Bodies use one memory, that of the run around them for what is inside of it, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.errors import SartorError
from sartor.fitting.plan import ControlStep
from sartor.graph.control import run_layer
from sartor.runtime.context import Array
from sartor.runtime.program import Program
from sartor.types import to_numpy

if TYPE_CHECKING:
    from sartor.runtime.run import Run
    from sartor.runtime.session import Session


class ControlRunner:
    """One control step, ready to run with any sizes."""

    def __init__(self, program: Program, step: ControlStep, threads: int) -> None:
        self.program, self.step, self.threads = program, step, threads

    @cached_property
    def bodies(self) -> list[Session]:
        """A session for each body."""
        from sartor.runtime.session import Session

        return [Session(self.program.part(number), threads=self.threads) for number in self.step.parts]

    def __call__(self, run: Run, places: Sequence[Array | None]) -> list[Array]:
        """The outputs; those of an `if` are written to `places` where they can be.

        Raises
        ------
        SartorError
            The step fails on these inputs.
        """
        step, values = self.step, run.stages[-1].values
        inputs = [np.require(run.view(v), None, ("C", "A")) if v >= 0 else None for v in step.inputs]
        made = [self.program.blueprint.values[v] for v in step.outputs]
        forms = [(tuple(values[list(v.shape)].tolist()), to_numpy(v.dtype)) for v in made]
        scalars: Any = ((), ())
        if step.kind == "loop":
            scalars = tuple((1,) * len(tensor.shape) for tensor in list(self.program.parts[step.parts[0]].inputs.values())[:2])
        bodies = [self._body(run, index) for index in range(len(step.parts))]
        try:
            return run_layer(
                step.kind, step.attributes, inputs, bodies, forms, places, lambda: int(values[step.attributes["test"]]), scalars
            )
        except MemoryError:
            raise SartorError(f"there is not enough memory for the results of {self.program.layers[step.layer].name}") from None
        except ValueError as problem:
            raise SartorError(f"the step {self.program.layers[step.layer].name} failed: {problem}") from problem

    def _body(self, run: Run, index: int) -> Callable[[Sequence[Array], Sequence[Array | None]], list[Array]]:
        """A body as a function, at the sizes and in the memory of a run."""

        def call(inputs: Sequence[Array], out: Sequence[Array | None]) -> list[Array]:
            return session.run_body(inputs, out, known, run.memory.inner)

        session = self.bodies[index]
        known = {s: run.sizes[s] for s in session.program.blueprint.given if s in run.sizes}
        return call
