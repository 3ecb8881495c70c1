"""The measuring child: compiles one candidate, compares it with the reference on fresh random input, and times it.

Run by `sartor.tuning.measurer` as `python -m sartor.tuning.child`; a crash or a hang costs the one candidate it was given.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from sartor.compiler import compile_graph
from sartor.errors import SartorError
from sartor.graph.layer import Graph
from sartor.graph.reference import evaluate_layer
from sartor.runtime.session import Session
from sartor.templates import TEMPLATES
from sartor.tuning import pipe
from sartor.tuning.measurer import Job, NetworkJob, Verdict
from sartor.types import to_numpy

CHECKS = 2  # fresh random inputs every candidate is compared on
TOLERANCE = 2e-4  # largest difference allowed, relative to the largest reference output
BURST_SECONDS = 0.002  # one sample repeats the layer for at least this long, so that the clock's grain does not matter
SAMPLES = 7
DROP_FACTOR = 1.3  # a candidate this much slower than the best after DROP_AFTER samples is not measured further
DROP_AFTER = 2


def random_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Seeded inputs for a graph with concrete sizes; integers that index (gather) stay within the indexed dimension."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        shape = tuple(int(d) for d in tensor.shape)
        dtype = to_numpy(tensor.dtype)
        if tensor.dtype == "bool":
            feeds[name] = rng.random(shape) < 0.7
        elif dtype.kind in "iu":
            feeds[name] = rng.integers(0, _index_limit(graph, name), shape).astype(dtype)
        else:
            feeds[name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def _index_limit(graph: Graph, name: str) -> int:
    for layer in graph.layers:
        if layer.kind == "gather" and layer.inputs[1] == name:
            return max(1, int(graph.tensors[layer.inputs[0]].shape[layer.attributes["axis"]]))  # type: ignore[arg-type]
    return 100


def difference(expected: dict[str, np.ndarray[Any, Any]], outputs: dict[str, np.ndarray[Any, Any]]) -> float:
    """Largest difference relative to the largest expected magnitude; infinity where shapes or finiteness differ."""
    worst = 0.0
    for name, want in expected.items():
        got = outputs[name].astype(np.float64)
        if want.shape != got.shape:
            return math.inf
        if want.size:
            wide = want.astype(np.float64)
            if not (np.isfinite(wide) == np.isfinite(got)).all():
                return math.inf
            finite = np.isfinite(wide)
            scale = float(np.abs(wide[finite]).max(initial=0.0)) + 1e-30
            worst = max(worst, float(np.abs(wide - got)[finite].max(initial=0.0)) / scale)
    return worst


def examine(job: Job) -> Verdict:
    """Compiles, checks and times one candidate."""
    layer = job.graph.layers[0]
    template = next(t for t in TEMPLATES if t.name == job.template)
    program = compile_graph(job.graph, job.device, choices={layer.name: (template, job.config)}, threads=job.threads)
    problem = job.graph.problem(layer)
    with Session(program) as session:
        for round_ in range(CHECKS):
            feeds = random_feeds(job.graph, job.seed + round_)
            expected = evaluate_layer(problem, {**job.graph.constants, **feeds}, {}, wide=True)
            worst = difference(expected, session.run(feeds))
            if not worst <= TOLERANCE:
                return Verdict("wrong", f"differs from the reference by {worst:.1e} of the largest output")
        return Verdict("ok", samples=time_runs(session, feeds, job.best))


def time_runs(session: Session, feeds: dict[str, np.ndarray[Any, Any]], best: float) -> tuple[float, ...]:
    """Seconds per run, several samples; few when clearly slower than `best`."""
    out = session.run(feeds)
    start = time.perf_counter()
    session.run(feeds, out)
    repeats = max(1, math.ceil(BURST_SECONDS / max(time.perf_counter() - start, 1e-7)))
    samples: list[float] = []
    while len(samples) < SAMPLES:
        start = time.perf_counter()
        for _ in range(repeats):
            session.run(feeds, out)
        samples.append((time.perf_counter() - start) / repeats)
        if len(samples) == DROP_AFTER and min(samples) > DROP_FACTOR * best:
            break
    return tuple(samples)


def compare(job: NetworkJob) -> list[float]:
    """Median seconds of each program, run in turns."""
    sessions = [Session(path) for path in job.programs]
    samples: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.run(job.feeds)
    for _ in range(job.rounds):
        for session, times in zip(sessions, samples, strict=True):
            start = time.perf_counter()
            session.run(job.feeds)
            times.append(time.perf_counter() - start)
    return [statistics.median(t) for t in samples]


def main() -> None:
    """Answers jobs on standard input until it closes.  Whatever else prints goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            job = pipe.receive(source)
        except EOFError:
            return
        try:
            pipe.send(sink, compare(job) if isinstance(job, NetworkJob) else examine(job))
        except (SartorError, ArithmeticError, ValueError, TypeError, KeyError, IndexError, MemoryError) as problem:
            pipe.send(sink, Verdict("error", f"{type(problem).__name__}: {problem}"))


if __name__ == "__main__":
    sys.exit(main())
