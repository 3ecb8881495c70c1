"""Owns the warm child that measures, kills it when a candidate hangs, and starts it again when one crashed it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sartor.graph.layer import Graph
from sartor.devices.device import Device
from sartor.tuning import pipe


@dataclass(frozen=True)
class Job:
    """Single-layer graphs to compile with a template and a configuration, check and time, all in one set of sizes.

    `graph` has one layer and concrete sizes; `best` is the time to beat in seconds (infinity at first): a candidate
    clearly slower is dropped after its first samples.
    """

    graph: Graph
    device: Device
    threads: int
    template: str
    config: dict[str, Any]
    best: float
    seed: int


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate; see `records.Record.status`."""

    status: str
    reason: str = ""
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class NetworkJob:
    """Whole programs (paths) to time in turns on the same seeded feeds."""

    programs: tuple[str, ...]
    feeds: dict[str, Any]
    rounds: int


class Measurer:
    """A measuring child, started when first needed.

    Parameters
    ----------
    timeout
        Seconds one candidate may take for compiling, checking and timing together.
    """

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout
        self._child: subprocess.Popen[bytes] | None = None

    def measure(self, job: Job | NetworkJob) -> Any:
        """The child's answer; a `Verdict` with status `timeout` or `crash` where it gave none."""
        child = self._running()
        assert child.stdin and child.stdout
        try:
            pipe.send(child.stdin, job)
            ready, _, _ = select.select([child.stdout], [], [], self.timeout)
            if not ready:
                self.close()
                return Verdict("timeout", f"no result within {self.timeout:.0f} s")
            return pipe.receive(child.stdout)
        except (EOFError, BrokenPipeError, OSError):
            code = child.wait()
            self._child = None
            return Verdict("crash", f"the measuring process ended with {_exit_text(code)}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            command: Sequence[str] = [sys.executable, "-m", "sartor.tuning.child"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        return self._child

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream:
                    with contextlib.suppress(OSError):  # unsent data of a dead child
                        stream.close()
            self._child = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
