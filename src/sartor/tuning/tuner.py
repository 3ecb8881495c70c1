"""Plain tuning: measure the candidates of each layer in child processes, keep the best, and keep it only if the network gains.

    default    the program as `sartor.compile` makes it, with the seconds each of its layers takes
    recall     what earlier runs measured of these layers on this machine
    search     candidates in small batches: built and checked side by side, then timed one by one, each stored at once
    compose    the program of the best choices
    compare    both programs in turns; the faster one is the result

Trials go to the layers whose remaining time promises most.
"""

from __future__ import annotations

import logging
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from sartor import compiler
from sartor.cache import cache_folder
from sartor.devices.device import Device
from sartor.devices.processor import host_isas, usable_cores
from sartor.errors import OptionError, UnsupportedError
from sartor.fitting.storage import Storage
from sartor.graph.layer import Graph
from sartor.runtime.program import Program
from sartor.tuning.child import find_templates
from sartor.tuning.measurer import Measurer
from sartor.tuning.messages import LIBRARY, CompareJob, Comparison, ProfileJob, Verdict
from sartor.tuning.records import FILE, Records
from sartor.tuning.search import Choice, choice_key
from sartor.tuning.targets import Target, find_targets, input_shapes, open_symbols, symbol_values
from sartor.tuning.trials import Trials

MOST_CHILDREN = 8
GRACE_SECONDS = 10.0  # how far beyond the budget finishing may go
COMPARE_SECONDS = 2.0
WORTH_CHANGING = 0.002  # the share of the network's time that layers must gain together for a program of them to be made
NETWORK_TIMEOUT = 120.0  # seconds for one message about a whole program
NETWORK_TOLERANCE = 1e-4  # by how much outputs of the tuned program may differ from the default's, relative to the largest

Shapes: TypeAlias = tuple[Mapping[str, tuple[int, ...]], ...]

_log = logging.getLogger("sartor")


@dataclass(frozen=True)
class Progress:
    """What a tuning run tells while it goes on.

    Attributes
    ----------
    layer
        The layer at work, or what else is being done.
    trials
        Candidates measured so far.
    best_seconds, default_seconds
        Of that layer; 0 where not known.
    elapsed, budget
        Seconds.
    """

    layer: str
    trials: int
    best_seconds: float
    default_seconds: float
    elapsed: float
    budget: float


def tune(
    model: compiler.Model,
    budget: float = 60.0,
    *,
    shapes: Sequence[Mapping[str, Sequence[int]]] | None = None,
    threads: int | None = None,
    precision: str = "fp32",
    isa: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Program:
    """Compiles a model with the fastest measured way of computing each layer.

    Candidates are measured in child processes and compared with a reference before they may win.  Each measurement is kept in
    the cache folder as it is made, and is not made again.

    Parameters
    ----------
    model
        An ONNX file: its path, its bytes, or a `ModelProto`.
    budget
        Seconds to spend, compiling included.  It ends earlier when nothing is left to measure.
    shapes
        Sizes to tune symbolic dimensions for: one mapping of input names to shapes for each set, which all count alike.
        What is left open is taken as 1.
    threads, precision, isa
        As for `sartor.compile`.
    progress
        Called after each trial and at each stage.

    Returns
    -------
    Program
        Right for all sizes, tuned for the given ones.  Its layers say which of them were tuned; the others have their default.

    Raises
    ------
    ModelError, UnsupportedError, OptionError
        As for `sartor.compile`; also when `shapes` do not fit the model or this machine cannot run the instruction set.
    """
    start = time.monotonic()
    compiler.check_precision(precision)
    count = compiler.thread_count(threads)
    device = compiler.device_for(isa)
    if isinstance(shapes, Mapping):
        raise OptionError("shapes is a mapping; expected a list of them, one for each set of sizes to tune for")
    if device.target.isa not in host_isas():
        raise OptionError(f"this machine cannot measure {device.target.isa} code; it has {', '.join(host_isas())}")
    try:
        graph = compiler.prepare(model)
    except UnsupportedError:  # nothing to tune in a model that runs on the host, if it runs at all
        return compiler.compile(model, threads=threads, precision=precision, device=device)
    return tune_graph(
        graph, device, budget, shapes=shapes or ({},), threads=count, precision=precision, progress=progress, start=start
    )


def tune_graph(
    graph: Graph,
    device: Device,
    budget: float,
    *,
    shapes: Sequence[Mapping[str, Sequence[int]]] = ({},),
    threads: int = 1,
    precision: str = "fp32",
    progress: Callable[[Progress], None] | None = None,
    start: float | None = None,
    library: str = LIBRARY,
    timeout: float = 30.0,
) -> Program:
    """The same for a graph of layers, as `sartor.compiler.prepare` makes it.

    Parameters
    ----------
    start
        When the budget began (`time.monotonic`); by default now.
    library
        The templates to choose from, as `module:attribute`: measuring children import them by that name.
    timeout
        Seconds a candidate may take for being compiled and checked.
    """
    start = time.monotonic() if start is None else start
    inputs = {name: graph.tensors[name] for name in graph.inputs}
    sizes = [symbol_values(inputs, one) for one in shapes]
    if assumed := sorted({name for one in shapes for name in open_symbols(inputs, one)}):
        _log.warning("tuning takes the sizes %s as 1; shapes may say others", ", ".join(assumed))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sartor-tune-")))
        measurer = stack.enter_context(Measurer(min(usable_cores(), MOST_CHILDREN), timeout))
        records = stack.enter_context(Records(cache_folder() / FILE))
        clock = _Clock(start, budget, progress)
        network = _Network(graph, device, threads, precision, sizes, any(shapes), measurer, folder, clock)
        return _tuned(network, records, library)


class _Clock:
    """The time a tuning run has, and who is told how it goes."""

    def __init__(self, start: float, budget: float, progress: Callable[[Progress], None] | None) -> None:
        self.start, self.budget, self._progress = start, budget, progress
        self.trials = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def end(self) -> float:
        """When the budget is spent (`time.monotonic`)."""
        return self.start + self.budget

    @property
    def last(self) -> float:
        """When all must be finished."""
        return self.end + GRACE_SECONDS

    def tell(self, what: str, best_seconds: float = 0.0, default_seconds: float = 0.0) -> None:
        if self._progress:
            self._progress(Progress(what, self.trials, best_seconds, default_seconds, self.elapsed, self.budget))

    def tell_trial(self, target: Target) -> None:
        self.trials += 1
        self.tell(target.layers[0], target.best_seconds if target.best else 0.0, target.default_seconds)


def _tuned(network: _Network, records: Records, library: str) -> Program:
    """The stages of a tuning run, as the module lists them."""
    clock = network.clock
    default = network.compiled("default", {})
    if clock.elapsed > clock.budget + GRACE_SECONDS / 2:
        _log.warning("nothing was tuned: compiling took %.0f s of a budget of %g s", clock.elapsed, clock.budget)
        return default.program
    profiles = network.profiled(default)
    if profiles is None:
        return default.program
    targets = find_targets(
        network.graph,
        default.storage,
        default.chosen,
        network.device,
        find_templates(library),
        network.sizes,
        profiles,
        secrets.randbits(63),
    )
    trials = Trials(targets, network.device, network.threads, library, network.measurer, records, clock.tell_trial)
    for target in targets:
        trials.recall(target)
    trials.search(clock.end - network.finishing_seconds(default))
    best = _best_choices(targets)
    changed = {name: choice for name, choice in best.items() if not _same(choice, default.chosen.get(name))}
    fails = any(target.default_fails and target.best for target in targets)
    program, decided = default.program, True
    if fails or sum(target.gain for target in targets) > WORTH_CHANGING * network.seconds:
        program, decided = network.better(default, changed, fails)
    return _marked(program, best.keys() if decided else best.keys() - changed.keys())


def _best_choices(targets: Sequence[Target]) -> dict[str, Choice]:
    """The fastest choice of each layer that has one; says which layers have none, or a default that fails."""
    for target in targets:
        if target.failures and target.best is None:
            _log.warning(
                "no measured candidate for %s can be used; it keeps its default (%s)", _names(target), target.failures[-1]
            )
        elif target.default_fails:
            _log.warning("the default for %s cannot be used (%s)", _names(target), target.default_fails)
        elif target.failures:
            _log.info("%d candidates for %s were refused (%s)", len(target.failures), _names(target), target.failures[-1])
    best = {name: target.best for target in targets if target.best for name in target.layers}
    if untried := sum(len(target.layers) for target in targets if not target.best):
        _log.info("%d of %d layers with a choice were not measured within the budget", untried, untried + len(best))
    return best


@dataclass(frozen=True)
class _Compiled:
    """A program, where it is saved, and how its compilation went."""

    program: Program
    path: Path
    chosen: Mapping[str, Choice | None]
    storage: Storage
    build_seconds: float


class _LateError(Exception):
    """There is no time left to finish compiling."""


@dataclass
class _Network:
    """The whole network: compiling it and timing it.  `given`: whether the caller said for which sizes to tune."""

    graph: Graph
    device: Device
    threads: int
    precision: str
    sizes: list[dict[str, int]]
    given: bool
    measurer: Measurer
    folder: Path
    clock: _Clock
    seconds: float = 0.0  # of one run at each of the sizes

    @property
    def shapes(self) -> Shapes:
        inputs = {name: self.graph.tensors[name] for name in self.graph.inputs}
        return tuple(input_shapes(inputs, sizes) for sizes in self.sizes)

    def compiled(self, name: str, choices: Mapping[str, Choice], until: float = math.inf) -> _Compiled:
        """Compiles and saves the network with these choices; raises `_LateError` at the time `until`."""
        made: dict[str, Any] = {}
        begun, built = time.process_time(), 0.0  # of this process alone, whatever else is going on

        def observe(stage: str, what: Any) -> None:
            if stage in ("choose", "store"):
                made[stage] = what

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal built
            if stage == "build":
                built = time.process_time() - begun
            if time.monotonic() > until:
                raise _LateError
            self.clock.tell(f"compiling ({stage} {done}/{total})")

        program = compiler.compile_graph(
            self.graph, self.device, choices, threads=self.threads, precision=self.precision, progress=progress, observe=observe
        )
        path = self.folder / f"{name}.sartor"
        program.save(path)
        return _Compiled(program, path, made["choose"], made["store"], built)

    def profiled(self, default: _Compiled) -> list[dict[str, float]] | None:
        """Seconds of each layer at each of the sizes; None where the default program cannot be timed."""
        self.clock.tell("timing the network")
        answer = self.measurer.ask(ProfileJob(str(default.path), self.shapes), until=self.clock.last, timeout=NETWORK_TIMEOUT)
        if answer is None:
            _log.warning(
                "nothing was tuned, since timing the network once takes longer than the budget of %g s", self.clock.budget
            )
            return None
        if not isinstance(answer, Verdict):
            self.seconds = sum(sum(profile.values()) for profile in answer)
            return list(answer)
        if answer.status == "error" and self.given:
            raise OptionError(f"the network does not run at the shapes to tune for: {answer.reason}")
        if answer.status == "error" and (assumed := ", ".join(self.sizes[0])):
            raise OptionError(f"the network does not run with {assumed} taken as 1; give shapes to tune for ({answer.reason})")
        _log.warning("nothing was tuned, since the network cannot be timed: %s, %s", answer.status, answer.reason)
        return None

    @property
    def compare_seconds(self) -> float:
        return min(COMPARE_SECONDS, self.clock.budget / 20)

    def finishing_seconds(self, default: _Compiled) -> float:
        """How long composing and comparing will take: what building took, since kernels are compiled by then, and some runs."""
        return 1.0 + 1.5 * default.build_seconds + self.compare_seconds + 20 * self.seconds

    def better(self, default: _Compiled, changed: Mapping[str, Choice], default_fails: bool) -> tuple[Program, bool]:
        """The program with these layers changed, or the default one where the whole network gains nothing by them.

        Also whether measurements decided that.
        """
        try:
            if time.monotonic() + self.finishing_seconds(default) > self.clock.last:
                raise _LateError
            tuned = self.compiled("tuned", changed, self.clock.last)
        except _LateError:
            _log.warning("the default is kept: there is no time to compile what was found, which is stored for a later run")
            return default.program, False
        if default_fails:
            return tuned.program, True
        self.clock.tell("comparing")
        job = CompareJob((str(default.path), str(tuned.path)), self.shapes, self.compare_seconds)
        answer = self.measurer.ask(job, until=self.clock.last, timeout=NETWORK_TIMEOUT)
        if not isinstance(answer, Comparison):
            reason = f"{answer.status}, {answer.reason}" if answer else "no time was left"
            _log.warning("the default is kept: the tuned network could not be timed (%s)", reason)
            return default.program, False
        if answer.difference > NETWORK_TOLERANCE:
            _log.warning("the default is kept: the outputs of the tuned network differ from its by %.1e", answer.difference)
            return default.program, False
        _log.info("the network takes %.3f ms by default and %.3f ms tuned", *(1e3 * s for s in answer.seconds))
        return (tuned if answer.seconds[1] <= answer.seconds[0] else default).program, True


def _same(choice: Choice, other: Choice | None) -> bool:
    return other is not None and choice_key(*choice) == choice_key(*other)


def _marked(program: Program, tuned: Collection[str]) -> Program:
    """The program with these layers noted as chosen by measurements."""
    return replace(program, layers=tuple(replace(layer, tuned=layer.name in tuned) for layer in program.layers))


def _names(target: Target) -> str:
    more = f" and {len(target.layers) - 1} like it" if len(target.layers) > 1 else ""
    return f"{target.layers[0]}{more}"
