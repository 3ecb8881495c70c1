"""Where one layer is checked and timed: its random contents, what the reference makes of them, and several copies of it.

A layer timed alone, again and again, finds its weights and inputs in the nearest cache, which it never does inside a
network.  So the graph measured holds several independent copies of the layer, together larger than a core's level-2 cache, and a
run computes them one after another, as a network does: with barriers between them, with all threads awake, and with what
Python costs a run shared among them.

The layer keeps its symbols, since templates make other code where a size is a number.  A session learns the values of symbols
from the shapes of inputs, and a layer's own shapes may hold them only inside formulas; so the graph has one more input for each
symbol, of that many bytes, which nothing reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.compiling.weights import aligned_bytes
from sartor.graph.data import problem_from_data
from sartor.graph.layer import Graph, Layer, Problem, Tensor
from sartor.graph.reference import evaluate_layer
from sartor.runtime.session import Session
from sartor.sizes import evaluate, symbol
from sartor.tuning.agreement import disagreement, has_steps
from sartor.tuning.guard import Guarded, guarded_copy
from sartor.tuning.messages import Case, Drawn
from sartor.types import from_numpy, to_numpy

SAMPLE_SECONDS = 0.002  # one sample repeats a run for at least this long, so that the clock's grain does not matter
SAMPLES = 3  # in a round
BURST_SECONDS = 0.2  # after so long a slow layer gets no further samples in a round
_PERIOD = 1_000_003  # elements drawn of a large array, which then repeat; a prime, so that rows differ

Array = NDArray[Any]
Feeds = dict[str, Array]


class Bench:
    """A case made up: contents drawn, expected results computed.

    Attributes
    ----------
    graph
        The copies of the layer as one graph.
    layers
        Their names in it.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._generator = np.random.default_rng(case.seed)
        plain = problem_from_data(case.problem)
        self._problems = [self._furnished(plain) for _ in range(case.copies)]
        self.graph = _side_by_side(self._problems, case)
        self.layers = tuple(layer.name for layer in self.graph.layers)
        self._feeds = [[self._draw_inputs(p, sizes) for p in self._problems] for sizes in case.sizes]
        self._checked = sorted({0, case.copies - 1})
        self._expected = [
            [self._reference(k, place, self._feeds[place][k]) for k in self._checked] for place in range(len(case.sizes))
        ]

    @property
    def bytes(self) -> int:
        """What it occupies, roughly."""
        constants = sum(a.nbytes for p in self._problems for a in p.constants.values())
        return constants + sum(a.nbytes for feeds in self._feeds for one in feeds for a in one.values())

    # --- contents ---

    def _furnished(self, plain: Problem) -> Problem:
        """The layer with contents for its constants."""
        contents = {}
        for name, given in self.case.constants.items():
            if isinstance(given, Drawn):
                tensor = plain.tensors[name]
                contents[name] = _draw(self._generator, given, tuple(map(int, tensor.shape)), tensor.dtype)  # type: ignore[arg-type]
            else:
                contents[name] = given
        return replace(plain, constants=contents)

    def _draw_inputs(self, problem: Problem, sizes: Mapping[str, int]) -> Feeds:
        return draw_inputs(problem, sizes, self._generator)

    def _reference(self, copy: int, place: int, inputs: Feeds) -> dict[str, Array]:
        return evaluate_layer(self._problems[copy], inputs, self.case.sizes[place], wide=True)

    def _all_feeds(self, place: int, feeds: list[Feeds]) -> Feeds:
        """The graph's inputs: those of each copy, and the bytes that carry the symbols' values."""
        carried = {_carrier(s): np.zeros(size, np.uint8) for s, size in self.case.sizes[place].items()}
        return {_of(copy, name): array for copy, own in enumerate(feeds) for name, array in own.items()} | carried

    def _output_types(self, place: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each output of the graph."""
        found = {}
        for copy, problem in enumerate(self._problems):
            for name in filter(None, problem.layer.outputs):
                tensor = problem.tensors[name]
                shape = tuple(evaluate(d, self.case.sizes[place]) for d in tensor.shape)
                found[_of(copy, name)] = (shape, to_numpy(tensor.dtype))
        return found

    # --- checking ---

    def check(self, all_threads: Session, one_thread: Session | None) -> str:
        """Why a candidate is wrong; "" where its results are those of the reference, and the same bits on one thread.

        All inputs and outputs end at unreadable pages.
        """
        for place in range(len(self.case.sizes)):
            feeds = {name: guarded_copy(array) for name, array in self._all_feeds(place, self._feeds[place]).items()}
            outputs = {name: Guarded(*kind) for name, kind in self._output_types(place).items()}
            out = {name: guarded.array for name, guarded in outputs.items()}
            all_threads.run(feeds, out)
            for copy, expected in zip(self._checked, self._expected[place], strict=True):
                if fault := self._fault(copy, expected, outputs):
                    return f"{fault}{self._where(place)}"
            if one_thread is not None:
                bits = {name: array.tobytes() for name, array in out.items()}
                for guarded in outputs.values():
                    guarded.reset()
                one_thread.run(feeds, out)
                if any(array.tobytes() != bits[name] for name, array in out.items()):
                    return f"its results have other bits on one thread than on {all_threads.threads}{self._where(place)}"
            if not all(guarded.intact for guarded in outputs.values()):
                return f"it writes before its output{self._where(place)}"
        return ""

    def check_anew(self, session: Session) -> str:
        """The same on all threads, with input no candidate has seen for the first copy."""
        for place, sizes in enumerate(self.case.sizes):
            feeds = [self._draw_inputs(self._problems[0], sizes), *self._feeds[place][1:]]
            outputs = {name: Guarded(*kind) for name, kind in self._output_types(place).items()}
            given = {name: guarded_copy(array) for name, array in self._all_feeds(place, feeds).items()}
            session.run(given, {name: guarded.array for name, guarded in outputs.items()})
            if fault := self._fault(0, self._reference(0, place, feeds[0]), outputs):
                return f"{fault}{self._where(place)}"
        return ""

    def _fault(self, copy: int, expected: Mapping[str, Array], outputs: Mapping[str, Guarded]) -> str:
        steps = has_steps(self._problems[copy])
        for name, wanted in expected.items():
            if fault := disagreement(wanted, outputs[_of(copy, name)].array, steps):
                return fault
        return ""

    def _where(self, place: int) -> str:
        sizes = self.case.sizes[place]
        return f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}" if sizes else ""

    # --- timing ---

    def time(self, session: Session) -> tuple[tuple[float, ...], ...]:
        """Seconds for one copy: some samples for each of the sizes."""
        samples = []
        for place in range(len(self.case.sizes)):
            out = {name: aligned_empty(*kind) for name, kind in self._output_types(place).items()}
            samples.append(_burst(session, self._all_feeds(place, self._feeds[place]), out, self.case.copies))
        return tuple(samples)


def clock_for(session: Session) -> Callable[[], float]:
    """The clock to time a session by: on one thread the time that thread was given, whatever else the machine did."""
    return time.thread_time if session.threads == 1 else time.perf_counter


def _burst(session: Session, feeds: Feeds, out: Feeds, copies: int) -> tuple[float, ...]:
    clock = clock_for(session)
    session.run(feeds, out)
    start = clock()
    session.run(feeds, out)
    repeats = max(1, math.ceil(SAMPLE_SECONDS / max(clock() - start, 1e-7)))
    begun = time.perf_counter()
    samples: list[float] = []
    while len(samples) < SAMPLES and (not samples or time.perf_counter() - begun < BURST_SECONDS):
        start = clock()
        for _ in range(repeats):
            session.run(feeds, out)
        samples.append((clock() - start) / repeats / copies)
    return tuple(samples)


# --- random contents ----------------------------------------------------------------------------------------------------------


def draw_inputs(problem: Problem, sizes: Mapping[str, int], generator: np.random.Generator) -> Feeds:
    """Random contents for the values a layer reads that are not constants.

    Floats are normal, booleans mostly true, integers 1 to 9, so that they can be divided by; indices lie inside what they index.
    """
    feeds: Feeds = {}
    for name in dict.fromkeys(problem.layer.reads):
        if name in problem.constants:
            continue
        tensor = problem.tensors[name]
        drawn = Drawn(low=1, high=9)
        if problem.layer.kind == "gather" and name == problem.layer.inputs[1]:
            length = evaluate(problem.input(0).shape[problem["axis"]], sizes)
            drawn = Drawn(low=-length if tensor.dtype[0] == "i" else 0, high=length - 1)
        feeds[name] = _draw(generator, drawn, tuple(evaluate(d, sizes) for d in tensor.shape), tensor.dtype)
    return feeds


def _draw(generator: np.random.Generator, drawn: Drawn, shape: tuple[int, ...], dtype: str) -> Array:
    size = math.prod(shape)
    count = min(size, _PERIOD)
    values: Array
    if dtype == "bool":
        values = generator.random(count) < 0.7
    elif dtype[0] in "iu":
        values = generator.integers(drawn.low, drawn.high, count, endpoint=True)
    else:
        values = generator.standard_normal(count, np.float32) * np.float32(drawn.spread) + np.float32(drawn.mean)
    array = aligned_empty(shape, to_numpy(dtype))
    array[...] = np.resize(values.astype(array.dtype), shape)
    return array


def describe_constant(array: Array) -> Drawn:
    """How to draw something like `array`."""
    few = array.reshape(-1)[: 1 << 16]
    if from_numpy(array.dtype)[0] in "iu":
        return Drawn(low=int(array.min()), high=int(array.max()))
    if array.dtype.kind == "b":
        return Drawn()
    wide = few.astype(np.float64)
    mean, spread = float(wide.mean()), float(wide.std())
    return Drawn(mean=mean, spread=spread) if math.isfinite(mean) and math.isfinite(spread) else Drawn()


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return aligned_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


# --- the graph -----------------------------------------------------------------------------------------------------------------


def _of(copy: int, name: str) -> str:
    return f"{copy} {name}" if name else ""


def _carrier(name: str) -> str:
    return f"size {name}"


def _side_by_side(problems: list[Problem], case: Case) -> Graph:
    """A graph of independent copies of one layer."""
    tensors: dict[str, Tensor] = {}
    constants: dict[str, Array] = {}
    inputs: list[str] = []
    layers: list[Layer] = []
    for copy, problem in enumerate(problems):
        layer = problem.layer
        tensors |= {_of(copy, name): tensor for name, tensor in problem.tensors.items()}
        constants |= {_of(copy, name): array for name, array in problem.constants.items()}
        inputs += [_of(copy, name) for name in dict.fromkeys(layer.reads) if name not in problem.constants]
        reads, made, extra = (tuple(_of(copy, name) for name in side) for side in (layer.inputs, layer.outputs, layer.extra))
        layers.append(replace(layer, name=f"copy {copy}", inputs=reads, outputs=made, extra=extra))
    for name in case.sizes[0] if case.sizes else {}:
        tensors[_carrier(name)] = Tensor("u8", (symbol(name),))
        inputs.append(_carrier(name))
    outputs = tuple(name for layer in layers for name in layer.outputs if name)
    return Graph(tuple(inputs), outputs, tensors, constants, layers, name="layer")
