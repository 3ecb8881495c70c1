"""The measuring child: builds candidates, compares them with the reference, times them, and times whole programs.

Run by `sartor.tuning.measurer` as `python -m sartor.tuning.child`; a crash or a hang costs the one candidate it was given.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.compiler import compile_graph
from sartor.runtime.session import Session
from sartor.templates.base import Template
from sartor.tuning import pipe
from sartor.tuning.agreement import largest_difference
from sartor.tuning.bench import Bench, clock_for
from sartor.tuning.messages import READY, CompareJob, Comparison, Confirmation, Job, ProfileJob, Timing, Verdict
from sartor.types import to_numpy

PROFILES = 5  # profiled runs of a whole program for each of its shapes, at most
PROFILE_SECONDS = 1.0
ROUNDS = 3  # turns of whole programs, at least

_KEPT_BENCHES = 3
_KEPT_BYTES = 256 << 20
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class Workplace:
    """What a child keeps from one message to the next."""

    def __init__(self) -> None:
        self._benches: OrderedDict[str, Bench] = OrderedDict()
        self._batch = -1
        self._built: dict[int, tuple[Session, Bench]] = {}

    def answer(self, message: Any) -> Any:
        """The answer to a message of `sartor.tuning.messages`."""
        if isinstance(message, Job):
            return self.build(message)
        if isinstance(message, Timing):
            return self.time(message.number)
        if isinstance(message, Confirmation):
            return self.confirm(message.number)
        return profile(message) if isinstance(message, ProfileJob) else compare(message)

    def build(self, job: Job) -> Verdict:
        """Compiles and checks a candidate, and keeps it for timing."""
        if job.batch != self._batch:
            self._built.clear()
            self._batch = job.batch
        try:
            template = next(t for t in find_templates(job.library) if t.name == job.template)
        except (ImportError, AttributeError, StopIteration) as problem:
            return Verdict("broken", f"the template {job.template} is not in {job.library} ({type(problem).__name__}: {problem})")
        bench = self._bench_for(job)
        choices = dict.fromkeys(bench.layers, (template, job.config))
        program = compile_graph(bench.graph, job.device, choices, threads=job.threads)
        if not set(bench.layers) <= {layer.name for layer in program.layers}:
            return Verdict("error", "there is nothing to compute when the layer stands alone")
        session = Session(program, threads=job.threads)
        one_thread = Session(program, threads=1) if job.threads > 1 else None
        if fault := bench.check(session, one_thread):
            return Verdict("wrong", fault)
        self._built[job.number] = (session, bench)
        return Verdict("built")

    def _bench_for(self, job: Job) -> Bench:
        key = job.case.key
        if key not in self._benches:
            self._benches[key] = Bench(job.case)
        self._benches.move_to_end(key)
        while len(self._benches) > 1 and (len(self._benches) > _KEPT_BENCHES or self._bytes() > _KEPT_BYTES):
            self._benches.popitem(last=False)
        return self._benches[key]

    def _bytes(self) -> int:
        return sum(bench.bytes for bench in self._benches.values())

    def time(self, number: int) -> Verdict:
        """Times a candidate for one round."""
        session, bench = self._built[number]
        return Verdict("ok", samples=bench.time(session))

    def confirm(self, number: int) -> Verdict:
        """Checks a candidate on fresh input."""
        session, bench = self._built[number]
        fault = bench.check_anew(session)
        return Verdict("wrong", fault) if fault else Verdict("ok")


def find_templates(library: str) -> tuple[Template, ...]:
    """The templates that `module:attribute` names."""
    module, _, attribute = library.partition(":")
    found: tuple[Template, ...] = getattr(import_module(module), attribute)
    return found


# --- whole programs -----------------------------------------------------------------------------------------------------------


def program_feeds(session: Session, shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Seeded inputs for a program.  Integers are 0 or 1: token numbers, masks and kinds may all be so."""
    generator = np.random.default_rng(0)
    feeds: dict[str, NDArray[Any]] = {}
    for name, tensor in session.program.inputs.items():
        dtype, shape = to_numpy(tensor.dtype), tuple(shapes[name])
        drawn = generator.standard_normal(shape, np.float32) if tensor.dtype[0] in "fb" and tensor.dtype != "bool" else None
        feeds[name] = (generator.integers(0, 2, shape) if drawn is None else drawn).astype(dtype)
    return feeds


def profile(job: ProfileJob) -> list[dict[str, float]]:
    """Seconds of each layer for each of the shapes: the least of several runs."""
    found = []
    with Session(job.program) as session:
        for shapes in job.shapes:
            feeds = program_feeds(session, shapes)
            session.run(feeds)
            start, runs = time.perf_counter(), [session.profile(feeds)]
            while len(runs) < PROFILES and time.perf_counter() - start < PROFILE_SECONDS:
                runs.append(session.profile(feeds))
            found.append({name: min(run[name] for run in runs) for name in runs[0]})
    return found


def compare(job: CompareJob) -> Comparison:
    """Times programs in turns.  A run counts when the program's own run before it has woken its threads."""
    sessions = [Session(path) for path in job.programs]
    seconds, difference = [0.0] * len(sessions), 0.0
    for shapes in job.shapes:
        feeds = program_feeds(sessions[0], shapes)
        outputs = [session.run(feeds) for session in sessions]
        difference = max([difference, *(largest_difference(outputs[0][n], o[n]) for o in outputs[1:] for n in o)])
        samples: list[list[float]] = [[] for _ in sessions]
        start, rounds = time.perf_counter(), 0
        while rounds < ROUNDS or time.perf_counter() - start < job.seconds / len(job.shapes):
            for place, session in enumerate(sessions):
                samples[place] += _turn(session, feeds)
            rounds += 1
        for place, times in enumerate(samples):
            seconds[place] += min(times)
    return Comparison(tuple(seconds), difference)


def _turn(session: Session, feeds: Mapping[str, NDArray[Any]]) -> list[float]:
    """Seconds of a few runs after one that is not counted."""
    clock = clock_for(session)
    session.run(feeds)
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 4 and (not times or time.perf_counter() - begun < 0.1):
        start = clock()
        session.run(feeds)
        times.append(clock() - start)
    return times


# --- the process ---------------------------------------------------------------------------------------------------------------


def _settle_in() -> None:
    """Ends with the tuner, also while a candidate runs forever, and is the first to go when memory runs out."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tuner decides when to end
    logging.getLogger("sartor").setLevel(logging.ERROR)  # what there is to say of a layer is said by the tuner


def main() -> None:
    """Answers messages on standard input until it closes.  Whatever else prints goes to standard error."""
    _settle_in()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    workplace = Workplace()
    pipe.send(sink, READY)
    while True:
        try:
            message = pipe.receive(source)
        except EOFError:
            return
        try:
            answer = workplace.answer(message)
        except Exception as problem:  # noqa: BLE001  a candidate may fail in any way
            answer = Verdict("error", f"{type(problem).__name__}: {problem}")
        pipe.send(sink, answer)


if __name__ == "__main__":
    main()
