"""Runs the steps no kernel computes, on NumPy views of the run's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.fitting.plan import HostStep
from sartor.graph.data import problem_from_data
from sartor.graph.layer import Problem


class HostRunner:
    """One host step, ready to run with any sizes."""

    def __init__(self, step: HostStep) -> None:
        self.step = step
        self.problem: Problem = problem_from_data(step.node)

    def __call__(self, arrays: Mapping[int, NDArray[Any]], sizes: Mapping[str, int]) -> list[NDArray[Any] | None]:
        """The outputs (None for absent ones), given the contents of the values read by number.

        Raises
        ------
        SartorError
            The step fails on these inputs.
        """
        from sartor.graph.reference import evaluate_layer

        layer = self.problem.layer
        names = (*layer.inputs, *layer.extra)
        inputs = {name: arrays[number] for name, number in zip(names, self.step.inputs, strict=True) if number >= 0}
        try:
            results = evaluate_layer(self.problem, inputs, sizes)
        except SartorError:
            raise
        except Exception as problem:
            raise SartorError(
                f"the step {layer.name}, which runs on the host, failed: {type(problem).__name__}: {problem}"
            ) from problem
        return [np.asarray(results[name]) if name else None for name in layer.outputs]
