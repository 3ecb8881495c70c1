"""Runs random models through Sartor and compares: one seed here, many in child processes that may crash or hang."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.cpu.random_models.judge import expected_values
from tests.cpu.random_models.maker import RandomModel
from tests.cpu.random_models.making import random_model

import sartor

LIMIT = 10.0 * (2 if len(os.sched_getaffinity(0)) < 4 else 1)  # seconds a seed may take; small machines are busy


@dataclass(frozen=True)
class Verdict:
    """What came of a seed: `kind` is ok, wrong, threads (bits depend on their number), refused, raised, crash or hang."""

    seed: int
    kind: str
    operators: tuple[str, ...] = ()
    detail: str = ""
    fallbacks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    feeds: int = 0

    def __str__(self) -> str:
        return f"seed {self.seed} {self.kind}: {', '.join(self.operators)}: {self.detail}"


def check_seed(seed: int, only: tuple[str, ...] = ()) -> Verdict:
    """Makes the model of a seed, compiles it, runs it on one and two threads and on other sizes, and compares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = random_model(seed, only)
        if not model.operators:
            return Verdict(seed, "ok", notes=tuple(model.notes))
        return check_model(model)


def check_model(model: RandomModel) -> Verdict:
    def verdict(kind: str, detail: str = "", operators: tuple[str, ...] = (), fallbacks: Any = (), feeds: int = 0) -> Verdict:
        return Verdict(model.seed, kind, operators or model.operators, detail, tuple(fallbacks), tuple(model.notes), feeds)

    isa = "sse4" if model.seed % 7 == 3 else None
    try:
        program = sartor.compile(model.model, threads=2, isa=isa)
        one, two = sartor.Session(program, threads=1), _reloaded(program) if model.seed % 5 == 2 else sartor.Session(program, threads=2)
    except sartor.SartorError as error:
        return verdict("refused", f"{type(error).__name__}: {error}")
    except Exception as error:
        return verdict("raised", f"{type(error).__name__}: {error}")
    fallbacks = tuple(sorted({str(getattr(f, "operator", f)) for f in program.fallbacks}))
    ran = 0
    for number, feeds in enumerate(model.feeds):
        if number and not feeds:
            continue
        try:
            expected = expected_values(model.model, feeds, model.opset)
        except Exception:
            if number == 0:
                raise
            continue  # sizes for which the model makes no sense
        try:
            found, again = one.run(feeds), two.run(feeds)
        except Exception as error:
            sizes = {n: a.shape for n, a in feeds.items()}
            kind = "refused" if isinstance(error, sartor.SartorError) else "raised"
            return verdict(kind, f"run {number} {sizes}: {type(error).__name__}: {error}", fallbacks=fallbacks)
        ran += 1
        for node in model.model.graph.node:
            for name in node.output:
                if name not in found:
                    continue
                if said := expected[name].differs(np.asarray(found[name])):
                    return verdict("wrong", f"run {number}, {name}: {said}", (node.op_type, *model.operators), fallbacks)
                if found[name].tobytes() != again[name].tobytes():
                    return verdict("threads", f"run {number}, {name}", (node.op_type, *model.operators), fallbacks)
    return verdict("ok", fallbacks=fallbacks, feeds=ran)


def _reloaded(program: sartor.Program) -> sartor.Session:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sartor"
        program.save(path)
        return sartor.load(path, threads=2)


# --- many ------------------------------------------------------------------------------------------------------------------


class _Child:
    """A process that checks one seed after another."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("child.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.started = False
        self.seed = 0
        self.deadline = 0.0

    def begin(self, seed: int, only: tuple[str, ...]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([seed, only]) + "\n")
        self.process.stdin.flush()
        self.seed, self.deadline = seed, time.monotonic() + LIMIT + (0 if self.started else 30)  # imports take their time
        self.started = True

    def verdict(self) -> Verdict:
        """What it answered; a process without an answer has died or hangs, and is ended."""
        assert self.process.stdout is not None
        if select.select([self.process.stdout], [], [], 0)[0] and (line := self.process.stdout.readline()):
            fields = json.loads(line)
            return Verdict(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        code = self.process.poll()
        self.end()
        return Verdict(self.seed, "hang" if code is None else "crash", (), f"exit code {code}")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def check_seeds(seeds: Iterable[int], processes: int = 1, only: tuple[str, ...] = (),
                told: Callable[[Verdict], None] | None = None) -> list[Verdict]:
    """The verdicts of many seeds, in child processes; a child that dies or takes longer than `LIMIT` costs its seed."""
    todo, out, busy = list(seeds)[::-1], [], {}
    idle = [_Child() for _ in range(min(processes, len(todo)))]
    while todo or busy:
        while todo and idle:
            child = idle.pop()
            child.begin(todo.pop(), only)
            busy[child.process.stdout] = child
        ready = select.select(list(busy), [], [], 0.5)[0]
        for pipe in [p for p, c in busy.items() if p in ready or time.monotonic() > c.deadline]:
            child = busy.pop(pipe)
            verdict = child.verdict()
            out.append(verdict)
            if told:
                told(verdict)
            idle.append(_Child() if verdict.kind in ("hang", "crash") else child)
    for child in idle:
        child.end()
    return out
