"""The layers of a network that there is something to choose for, each alone with its sizes and with what is known of it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sartor.compiling.steps import layer_problem
from sartor.devices.device import Device
from sartor.errors import FeedError, OptionError
from sartor.fitting.storage import Storage
from sartor.graph.data import problem_to_data
from sartor.graph.layer import Graph, Problem, Tensor
from sartor.graph.reference import bind_sizes
from sartor.sizes import evaluate, product, symbols
from sartor.templates.base import Template
from sartor.tuning.bench import describe_constant
from sartor.tuning.messages import Case, Verdict
from sartor.tuning.search import Choice, Search, choice_key, open_search
from sartor.types import BYTES

PATIENCE = 2.0  # after this many trials without a gain a layer is thought half as likely to gain more
REACHED = 1.2  # how many times the rate of the best layer is thought to be the most any could reach
LEAST_HEADROOM = 0.1
PLAIN_HEADROOM = 0.3  # of layers without multiply-adds
SMALL_CONSTANT = 4096  # bytes; constants up to this size are given to children as they are
SENT_CONSTANT = 1 << 20  # bytes; the same for integers, which may be indices
MOST_COPIES = 16
COST_BYTES = 50e6  # of constants that are drawn, packed and compared in about a second

_log = logging.getLogger("sartor")


@dataclass
class Target:
    """One distinct layer with its sizes.

    Attributes
    ----------
    problem
        The first of the layers that are alike.
    layers
        The names of all of them.
    case
        What measuring children are told of it.
    counts
        How many of the shapes to tune for lead to each of the case's sizes.
    work
        Multiply-adds of one computation, summed over the shapes; 0 where the layer is none of products.
    share
        Its part of the default network's seconds, summed over the layers and the shapes.
    default, best
        Template and configuration, the latter None until something was measured to be right.
    default_seconds, best_seconds
        Of one computation, summed over the shapes.
    dry
        How many trials went by without a gain since the last one, about.
    trials
        Candidates measured in this run.
    cost
        Seconds a trial takes: what the last ones took, or a guess.
    failures, default_fails
        Why candidates were refused, the default among them.
    """

    problem: Problem
    layers: list[str]
    case: Case
    counts: tuple[int, ...]
    work: int
    share: float
    default: Choice
    search: Search
    best: Choice | None = None
    default_seconds: float = 0.0
    best_seconds: float = math.inf
    dry: float = 0.0
    trials: int = 0
    cost: float = 0.0
    failures: list[str] = field(default_factory=list)
    default_fails: str = ""

    def __post_init__(self) -> None:
        self.cost = self.cost or 0.5 + self.bytes / COST_BYTES

    @property
    def bytes(self) -> int:
        """Of the constants that a child makes up for it."""
        return sum(array.nbytes for array in self.problem.constants.values()) * self.case.copies

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the templates that can compute it."""
        return tuple(template.name for template, _ in self.search.spaces)

    @property
    def gain(self) -> float:
        """Seconds of the network's time that the best wins."""
        return (self.default_seconds - self.best_seconds) * len(self.layers) if self.default_seconds and self.best else 0.0

    @property
    def left(self) -> float:
        """Its part of the network's seconds with the best so far: measured alone, or before that as part of the network."""
        return self.best_seconds * len(self.layers) if self.best is not None else self.share

    @property
    def rate(self) -> float:
        """Multiply-adds a second of the best so far, or as part of the default program."""
        return self.work * len(self.layers) / self.left if self.left else 0.0

    def promise(self, peak: float) -> float:
        """Seconds of the network's time that a second of trials may still win, as far as one can guess.

        `peak` is the highest rate of a layer that the same templates can compute: one close to it has little to gain.
        """
        if self.search.exhausted:
            return 0.0
        headroom = max(LEAST_HEADROOM, 1 - self.rate / (REACHED * peak)) if self.work and peak else PLAIN_HEADROOM
        return self.left * headroom / (1 + self.dry / PATIENCE) / self.cost

    def settle(self, choice: Choice, verdict: Verdict) -> None:
        """Enters what became of a candidate."""
        self.dry += 1
        is_default = choice_key(*choice) == choice_key(*self.default)
        if verdict.status != "ok":
            self.failures.append(f"{choice[0].name}: {verdict.status}, {verdict.reason}")
            if is_default:
                self.default_fails = self.failures[-1]
            return
        seconds = self.seconds(verdict.samples)
        if is_default:
            self.default_seconds = seconds
        if seconds < self.best_seconds:
            if self.best is not None:
                self.dry *= seconds / self.best_seconds / 2
            self.best, self.best_seconds = choice, seconds

    def settle_again(self, verdict: Verdict) -> None:
        """Enters another measurement of the best."""
        self.best_seconds = min(self.best_seconds, self.seconds(verdict.samples))
        if self.best is not None and choice_key(*self.best) == choice_key(*self.default):
            self.default_seconds = self.best_seconds

    def seconds(self, samples: Sequence[Sequence[float]]) -> float:
        """What samples for each of the sizes say one computation takes, summed over the shapes: the least, since all else delays."""
        return sum(count * min(few) for count, few in zip(self.counts, samples, strict=True))


# --- sizes ----------------------------------------------------------------------------------------------------------------------


def symbol_values(inputs: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Values of the symbols in the inputs' shapes; 1 for those that `shapes` leaves open.

    Raises
    ------
    OptionError
        `shapes` names an input the model does not have, or a shape does not fit.
    """
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise OptionError(f"the model has no input {name}; it has {', '.join(inputs)}")
        try:
            bind_sizes(inputs[name].shape, tuple(map(int, shape)), sizes, f"input {name} to tune for")
        except FeedError as problem:
            raise OptionError(str(problem)) from None
    return {s: 1 for tensor in inputs.values() for dim in tensor.shape for s in sorted(symbols(dim))} | sizes


def open_symbols(inputs: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """The symbols of the inputs that `shapes` says nothing of."""
    found = {name: {s for dim in tensor.shape for s in symbols(dim)} for name, tensor in inputs.items()}
    return sorted(set().union(*found.values()) - set().union(*(found[name] for name in shapes)))


def input_shapes(inputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The inputs' shapes at given sizes."""
    return {name: tuple(evaluate(d, sizes) for d in tensor.shape) for name, tensor in inputs.items()}


# --- layers ---------------------------------------------------------------------------------------------------------------------


def find_targets(
    graph: Graph,
    storage: Storage,
    chosen: Mapping[str, Choice | None],
    device: Device,
    templates: Sequence[Template],
    sizes: Sequence[Mapping[str, int]],
    profiles: Sequence[Mapping[str, float]],
    seed: int,
) -> list[Target]:
    """The distinct layers that have a choice.

    Parameters
    ----------
    graph, storage, chosen
        The network, and what the default program made of it: the layers that compute something, and how.
    sizes, profiles
        Values of the symbols, and each layer's seconds in the default program at these.
    seed
        Of the random contents.
    """
    found: dict[str, Target | None] = {}
    unknown: list[str] = []
    for layer in storage.layers:
        if (default := chosen.get(layer.name)) is None:
            continue
        problem = layer_problem(layer, storage.tensors, graph.constants)
        names = _all_symbols(problem)
        if not names <= set(sizes[0]):
            unknown.append(layer.name)
            continue
        signature = problem.signature()
        if signature not in found:
            found[signature] = _target(problem, signature, default, device, templates, _counted(names, sizes), seed)
        if (target := found[signature]) is not None:
            target.layers.append(layer.name)
            target.share += sum(profile.get(layer.name, 0.0) for profile in profiles)
    if unknown:
        _log.info("not tuned, since their sizes are known in a run only: %s", ", ".join(unknown))
    return [target for target in found.values() if target is not None]


def _all_symbols(problem: Problem) -> set[str]:
    """Symbols in the shapes and the attributes of a layer."""

    def inside(value: Any) -> Iterable[str]:
        if isinstance(value, tuple | list):
            return {s for v in value for s in inside(v)}
        return symbols(value)

    return problem.free_symbols() | {s for value in problem.layer.attributes.values() for s in inside(value)}


def _counted(names: set[str], sizes: Sequence[Mapping[str, int]]) -> list[tuple[dict[str, int], int]]:
    """The distinct values of these symbols, with how often each occurs."""
    counts = Counter(tuple((name, values[name]) for name in sorted(names)) for values in sizes)
    return [(dict(values), count) for values, count in counts.items()]


def _target(
    problem: Problem,
    signature: str,
    default: Choice,
    device: Device,
    templates: Sequence[Template],
    sizes: Sequence[tuple[dict[str, int], int]],
    seed: int,
) -> Target | None:
    default = (next((t for t in templates if t.name == default[0].name), default[0]), dict(default[1]))
    search = open_search(problem, device, templates, default, signature)
    if search is None:
        return None
    own = tuple(values for values, _ in sizes)
    constants = {name: array if _is_sent(array) else describe_constant(array) for name, array in problem.constants.items()}
    case = Case(f"{signature} {seed} {own}", problem_to_data(problem), constants, own, _copies(problem, own[0], device), seed)
    return Target(problem, [], case, tuple(count for _, count in sizes), _work(problem, sizes), 0.0, default, search)


def _work(problem: Problem, sizes: Sequence[tuple[dict[str, int], int]]) -> int:
    """Multiply-adds, summed over the sizes as often as they occur."""
    kind = problem.layer.kind
    if kind not in ("convolution", "deconvolution", "matmul"):
        return 0
    weights = problem.input(1).shape
    if kind == "convolution":
        each = product(weights[:-1]) * problem.output().elements
    elif kind == "deconvolution":
        each = product(weights[:-2]) * weights[-1] * problem.input(0).elements
    else:
        each = weights[-1 if problem["transpose_b"] else -2] * problem.output().elements
    return sum(count * evaluate(each, values) for values, count in sizes)


def _is_sent(array: np.ndarray[Any, Any]) -> bool:
    return array.nbytes <= (SENT_CONSTANT if array.dtype.kind in "iub" else SMALL_CONSTANT)


def _copies(problem: Problem, sizes: Mapping[str, int], device: Device) -> int:
    """So many that two level-2 caches are filled; the executor also takes runs of a few microseconds for too short to share."""
    each = sum(evaluate(t.elements, sizes) * BYTES[t.dtype] for t in problem.tensors.values())
    return max(1, min(MOST_COPIES, math.ceil(2 * device.l2_bytes / max(each, 1))))
