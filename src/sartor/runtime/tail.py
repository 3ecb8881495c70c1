"""Runs a program of which onnx's reference implementation does the last part, or all.

Its values may be anything ONNX knows: arrays, lists of them for sequences, None for an absent optional, dictionaries for maps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sartor.errors import FeedError, ProgramError, SartorError, UnsupportedError
from sartor.fitting.plan import Plan, Task
from sartor.graph.tensor import Tensor
from sartor.runtime.program import Program
from sartor.types import from_numpy


class TailRunner:
    """Head and tail of a model, ready to run.  Any number of threads may call it; in the tail they take turns."""

    def __init__(self, program: Program, threads: int) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        from sartor.graph.host_operators import operators
        from sartor.runtime.session import Session

        tail = program.tail
        assert tail is not None
        self.head: Session | None = None
        if tail.head_outputs:
            kernels = replace(program, tail=None, inputs=tail.head_inputs, outputs=tail.head_outputs)
            kernels.__dict__["code"] = program.code  # which is loaded already; the file may have been replaced since
            self.head = Session(kernels, threads=threads)
        self.program = program
        self._lock = threading.Lock()
        self._started: list[float] | None = None  # when each node did, where a profile is wanted
        clock = self._note

        class Clocked(ReferenceEvaluator):
            def _log(self, level: int, pattern: str, *args: Any) -> None:
                if level == 1:  # said before each node
                    clock(self)

        try:
            model = onnx.ModelProto.FromString(program.weights[tail.start :].tobytes())
            self._evaluator = Clocked(model, new_ops=operators())
        except Exception as problem:
            raise ProgramError(f"{program.path or 'the program'} holds a model that cannot be run here: {problem}") from problem

        self.layers = [layer.name for layer in program.layers[len(program.layers) - len(model.graph.node) :]]

    def _note(self, evaluator: object) -> None:
        if self._started is not None and evaluator is self._evaluator:
            self._started.append(time.perf_counter())

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The head's plan, with the nodes of the tail as tasks on the host."""
        nodes = tuple(Task(name, "compute", 0, 0, host=True) for name in self.layers)
        if self.head is None:
            return Plan(0, 0, 0, 0, nodes)
        plan = self.head.plan({name: shapes[name] for name in self.head.program.inputs})
        return replace(plan, tasks=plan.tasks + nodes)

    def profile(self, feeds: Mapping[str, Any]) -> dict[str, float]:
        """Seconds of each layer of the head and each node of the tail in one run."""
        seconds = self.head.profile({name: feeds[name] for name in self.head.program.inputs if name in feeds}) if self.head else {}
        with self._lock:
            started: list[float] = []
            self._started = started
        try:
            self.run(feeds, None)
        finally:
            self._started = None
        ends = [*started, time.perf_counter()]
        return seconds | {name: ends[i + 1] - ends[i] for i, name in enumerate(self.layers[: len(started)])}

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """All outputs by name; those named in `out` are written there.

        Raises
        ------
        FeedError
            Names, types or sizes are wrong.
        SartorError
            The model fails on these inputs.
        """
        if not isinstance(feeds, Mapping):
            raise FeedError(f"inputs must come as a mapping of names to values, not as {type(feeds).__name__}")
        for side, given, known in (("input", feeds, self.program.inputs), ("output", out or {}, self.program.outputs)):
            for name in given:
                if name not in known:
                    raise FeedError(f"the network has no {side} {name}; it has {', '.join(known)}")
        values = {name: _checked(name, feeds, tensor) for name, tensor in self.program.inputs.items()}
        if self.head is not None:
            values |= self.head.run({name: values[name] for name in self.head.program.inputs})
        try:
            with self._lock, np.errstate(all="ignore"):
                made = self._evaluator.run(None, values)
        except Exception as problem:
            text = (str(problem).strip().splitlines() or ["no reason given"])[0]
            raise SartorError(f"the model, which runs on the host, failed: {type(problem).__name__}: {text}") from problem
        values |= zip(self._evaluator.output_names, made, strict=True)
        results = {name: np.asarray(v) if isinstance(v := values[name], np.generic) else v for name in self.program.outputs}
        for name, array in (out or {}).items():
            results[name] = _written(name, array, results[name])
        return results


def _checked(name: str, feeds: Mapping[str, Any], tensor: Tensor) -> Any:
    """The value given for an input, held against what the model says of it."""
    if name not in feeds:
        raise FeedError(f"the input {name} is missing; expected {tensor}")
    value = feeds[name]
    if tensor.opaque:
        kinds = {"seq": list, "tensor": np.ndarray | np.generic, "map": dict}
        kind = kinds.get(tensor.dtype.partition("(")[0])
        if kind is not None and not isinstance(value, kind):
            raise FeedError(f"the input {name} is a {type(value).__name__}; expected {tensor}")
        return list(value) if isinstance(value, list) else value
    if not isinstance(value, np.ndarray | np.generic):
        raise FeedError(f"the input {name} is a {type(value).__name__}; expected an array {tensor}")
    try:
        found = from_numpy(value.dtype)
    except UnsupportedError:
        found = str(value.dtype)
    if found != tensor.dtype:
        raise FeedError(f"the input {name} has elements of type {value.dtype}; expected {tensor.dtype}")
    sizes = tensor.shape
    if len(sizes) != value.ndim or any(isinstance(d, int) and d != s for d, s in zip(sizes, value.shape, strict=True)):
        raise FeedError(f"the input {name} has the shape {list(value.shape)}; expected {tensor}")
    return np.asarray(value)


def _written(name: str, array: Any, value: Any) -> Any:
    """`array` with the contents of an output."""
    if not isinstance(value, np.ndarray):
        raise FeedError(f"the output {name} is a {type(value).__name__}, which cannot be written to an array")
    if not isinstance(array, np.ndarray) or array.dtype != value.dtype or not array.flags.carray:
        what = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise FeedError(f"the array for the output {name} is {what}; expected a contiguous, writable array of {value.dtype}")
    if array.shape != value.shape:
        raise FeedError(
            f"the array for the output {name} has the shape {list(array.shape)}; expected {list(value.shape)}"
        )
    array[...] = value
    return array
