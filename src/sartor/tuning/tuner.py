"""Plain tuning: measure the candidates of each layer in a child process, keep the best, and keep it only if the network gains.

Trials go to the layer whose remaining time promises most; every measurement is stored as it is made, and what is stored is
not measured again.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor import compiler
from sartor.cache import cache_folder
from sartor.devices.device import Device
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.runtime.program import Program
from sartor.runtime.session import Session
from sartor.sizes import Size, substitute
from sartor.templates import candidates, choose
from sartor.tuning.measurer import Job, Measurer, NetworkJob, Verdict
from sartor.tuning.records import Record, Records, canonical, source_hash

if TYPE_CHECKING:
    from sartor.templates.base import Template

COMPOSE_SHARE = 0.12  # of the budget is kept for compiling the result and timing the whole network
PATIENCE = 0.93  # what each trial without a gain takes off a layer's hope of gaining more
NETWORK_ROUNDS = 15


@dataclass(frozen=True)
class Progress:
    """What a tuning run tells while it goes on."""

    layer: str
    trials: int
    best_seconds: float
    default_seconds: float
    elapsed: float
    budget: float


@dataclass
class Target:
    """One distinct layer at one set of sizes, with what is known of it."""

    graph: Graph
    sizes: Mapping[str, int]
    layers: list[str]
    seconds: float = 0.0  # time in the default program, summed over the layers that share it
    pending: list[tuple[Template, dict[str, Any]]] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    default: float | None = None
    best: float | None = None
    choice: tuple[Template, dict[str, Any]] | None = None
    hope: float = 1.0
    trials: int = 0

    @property
    def promise(self) -> float:
        """Seconds of the network's time that further trials may still win, as far as one can guess."""
        ratio = 1.0 if not self.best or not self.default else self.best / self.default
        return self.seconds * ratio * self.hope if self.pending else 0.0


def tune(model: Any, budget: float = 60.0, *, shapes: Sequence[Mapping[str, Sequence[int]]] | None = None, threads: int | None = None,
         precision: str = "fp32", isa: str | None = None, progress: Callable[[Progress], None] | None = None) -> Program:
    """Compiles `model` with the fastest measured configuration of each layer.

    Parameters
    ----------
    model
        Path, bytes or `onnx.ModelProto`.
    budget
        Seconds to spend, compiling included.
    shapes
        Sizes to tune symbolic dimensions for: one mapping of input name to shape each.  Symbols are taken as 1 where none is given.
    threads, precision, isa
        As for `sartor.compile`.
    progress
        Called after each trial.

    Returns
    -------
    Program
        Right for all sizes, tuned for the given ones.  Layers keep their default where nothing faster was found.
    """
    start = time.monotonic()
    graph = compiler.prepare(model)
    device = compiler.device_for(isa)
    threads = compiler.thread_count(threads)
    compiler.check_precision(precision)
    default = compiler.compile_graph(graph, device, threads=threads)
    sets = [bind_symbols(graph, s) for s in (shapes or [{}])]
    targets = [t for sizes in sets for t in find_targets(graph, sizes, default, device)]
    records = Records(cache_folder() / "records.sqlite")
    deadline = start + budget * (1 - COMPOSE_SHARE)
    with Measurer() as measurer:
        try:
            for target in targets:
                recall(target, device, threads, records)
            while time.monotonic() < deadline and (target := max(targets, key=lambda t: t.promise, default=None)):
                if not target.promise:
                    break
                try_next(target, device, threads, records, measurer)
                if progress:
                    progress(Progress(target.layers[0], sum(t.trials for t in targets), target.best or 0.0, target.default or 0.0,
                                      time.monotonic() - start, budget))
        finally:
            records.close()
        return better_program(graph, device, threads, default, targets, sets[0], measurer)


def bind_symbols(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Values of the graph's symbols for the given input shapes; 1 for those not given."""
    sizes = {s: 1 for name in graph.inputs for s in symbols_of(graph.tensors[name])}
    for name, shape in shapes.items():
        for dim, value in zip(graph.tensors[name].shape, shape, strict=True):
            if isinstance(dim, Size):
                sizes[str(dim)] = int(value)
    return sizes


def symbols_of(tensor: Tensor) -> Iterator[str]:
    """Names of the symbolic dims of an input."""
    return (str(d) for d in tensor.shape if isinstance(d, Size))


def concrete(value: Any, sizes: Mapping[str, int]) -> Any:
    """`value` (attributes: dims, nested tuples, anything) with symbols replaced."""
    if isinstance(value, Size):
        return substitute(value, sizes)
    if isinstance(value, tuple | list):
        return type(value)(concrete(v, sizes) for v in value)
    return value


def isolate(graph: Graph, layer: Layer, sizes: Mapping[str, int]) -> Graph:
    """A graph of this one layer at concrete sizes."""
    names = dict.fromkeys((*layer.reads, *layer.outputs))
    tensors = {n: Tensor(graph.tensors[n].dtype, concrete(graph.tensors[n].shape, sizes)) for n in names}
    constants = {n: graph.constants[n] for n in names if n in graph.constants}
    inputs = tuple(dict.fromkeys(n for n in layer.reads if n not in constants))
    alone = replace(layer, attributes={k: concrete(v, sizes) for k, v in layer.attributes.items()})
    return Graph(inputs, layer.outputs, tensors, constants, [alone], name=layer.name)


def find_targets(graph: Graph, sizes: Mapping[str, int], default: Program, device: Device) -> list[Target]:
    """The distinct layers that have a choice, with their share of the default program's time."""
    seconds = profile(default, graph, sizes)
    found: dict[str, Target] = {}
    for layer in graph.layers:
        alone = isolate(graph, layer, sizes)
        problem = alone.problem(alone.layers[0])
        options = [(t, config) for t in candidates(problem, device) for config in t.space(problem, device)]
        if len(options) < 2:
            continue
        key = problem.signature()
        target = found.setdefault(key, Target(alone, sizes, [], pending=ordered(options, problem, device)))
        target.layers.append(layer.name)
        target.seconds += seconds.get(layer.name, 0.0)
    return list(found.values())


def profile(program: Program, graph: Graph, sizes: Mapping[str, int]) -> dict[str, float]:
    """Seconds of each layer in the default program."""
    from sartor.tuning.child import random_feeds

    bound = replace(graph, tensors={**graph.tensors, **{n: Tensor(graph.tensors[n].dtype, concrete(graph.tensors[n].shape, sizes))
                                                       for n in graph.inputs}})
    feeds = random_feeds(bound, 0)
    with Session(program) as session:
        session.run(feeds)
        runs = [session.profile(feeds) for _ in range(3)]
    return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}


def ordered(options: list[tuple[Template, dict[str, Any]]], problem: Any, device: Device) -> list[tuple[Template, dict[str, Any]]]:
    """Candidates in the order to try them, last first: the default, every template's default, then the rest shuffled."""
    rest = list(options)
    random.Random(0).shuffle(rest)
    first = [chosen] if (chosen := choose(problem, device)) else []
    for template in dict.fromkeys(t for t, _ in options):
        if (config := template.default(problem, device)) is not None:
            first.append((template, config))
    unique = {t.name + canonical(c): (t, c) for t, c in [*first, *rest]}
    return list(unique.values())[::-1]


def recall(target: Target, device: Device, threads: int, records: Records) -> None:
    """Takes over what was measured before."""
    layer = target.graph.layers[0]
    by_name = {t.name: t for t, _ in target.pending}
    for record in records.find(target.graph.problem(layer).signature(), target.sizes, device.fingerprint, threads):
        template = by_name.get(record.template)
        if template is not None and record.source == source_hash(type(template).__module__):
            settle(target, template, dict(record.config), Verdict(record.status, record.reason, record.samples))


def try_next(target: Target, device: Device, threads: int, records: Records, measurer: Measurer) -> None:
    """Measures one more candidate and stores what came out."""
    template, config = target.pending.pop()
    if template.name + canonical(config) in target.tried:
        return
    job = Job(target.graph, device, threads, template.name, dict(config), target.best or float("inf"), seed=target.trials)
    verdict: Verdict = measurer.measure(job)
    seconds = statistics.median(verdict.samples) if verdict.samples else None
    records.add(Record(target.graph.problem(target.graph.layers[0]).signature(), target.sizes, device.fingerprint, threads, template.name,
                       source_hash(type(template).__module__), dict(config), verdict.status, verdict.reason, seconds, verdict.samples))
    settle(target, template, config, verdict)


def settle(target: Target, template: Template, config: dict[str, Any], verdict: Verdict) -> None:
    """Enters a verdict into what is known of the layer.  The first candidate is the default."""
    target.tried.add(template.name + canonical(config))
    target.trials += 1
    target.hope *= PATIENCE
    if verdict.status != "ok":
        return
    seconds = statistics.median(verdict.samples)
    if target.default is None:
        target.default = seconds
    if target.best is None or seconds < target.best:
        target.best, target.choice = seconds, (template, config)
        target.hope = min(1.0, target.hope / PATIENCE**2)


def better_program(graph: Graph, device: Device, threads: int, default: Program, targets: Sequence[Target], sizes: Mapping[str, int],
                   measurer: Measurer) -> Program:
    """The program of the best choices, or the default one where the whole network gains nothing by them."""
    from sartor.tuning.child import random_feeds

    choices = {}
    for target in sorted(targets, key=lambda t: t.seconds):  # the sizes that cost most decide
        if target.choice:
            choices |= dict.fromkeys(target.layers, target.choice)
    if not choices:
        return default
    tuned = compiler.compile_graph(graph, device, choices=choices, threads=threads, tuned=frozenset(choices))
    bound = replace(graph, tensors={**graph.tensors, **{n: Tensor(graph.tensors[n].dtype, concrete(graph.tensors[n].shape, sizes))
                                                       for n in graph.inputs}})
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("default.sartor", "tuned.sartor")]
        default.save(paths[0])
        tuned.save(paths[1])
        times = measurer.measure(NetworkJob(tuple(paths), random_feeds(bound, 0), NETWORK_ROUNDS))
    return tuned if isinstance(times, list) and times[1] <= times[0] else default
