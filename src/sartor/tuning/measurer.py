"""Owns the warm children that build and measure: kills one when its candidate hangs, and starts another when one crashed.

Children build and check in parallel, one candidate each; timing is asked of one at a time, while the others wait, since
nothing else of ours may run while a kernel is timed.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Self

from sartor.errors import SartorError
from sartor.tuning import pipe
from sartor.tuning.messages import READY, Verdict

START_SECONDS = 60.0  # within which a child must have loaded what it needs
_COMMAND = (sys.executable, "-m", "sartor.tuning.child")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # of NumPy: the reference is computed in every child


class Child:
    """One child process and what to read of its last words."""

    def __init__(self) -> None:
        environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        # A session of its own: an interrupt from the keyboard is the tuner's to handle, and the child's children end with it.
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._talk, env=environment, start_new_session=True
        )
        self.ready = False

    @property
    def output(self) -> Any:
        """The stream that answers come from."""
        return self._process.stdout

    def send(self, message: Any) -> None:
        assert self._process.stdin
        pipe.send(self._process.stdin, message)

    def receive(self) -> Any:
        assert self._process.stdout
        return pipe.receive(self._process.stdout)

    def last_words(self) -> str:
        """How it ended, with the last line it wrote to standard error."""
        code = self._process.wait()
        self._talk.seek(0)
        lines = self._talk.read()[-4000:].decode(errors="replace").strip().splitlines()
        end = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        return f"{end}: {lines[-1][:200]}" if lines else end

    def close(self) -> None:
        """Ends it, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._talk):
            with contextlib.suppress(OSError):  # unsent data of a dead child
                stream.close()  # type: ignore[union-attr]


class Measurer:
    """Measuring children, each started when first needed; use as a context.

    Parameters
    ----------
    children
        How many candidates are built at a time.
    timeout
        Seconds one message may take: compiling and checking a candidate, or timing it.
    """

    def __init__(self, children: int = 1, timeout: float = 30.0) -> None:
        self.children = children
        self.timeout = timeout
        self._children: list[Child | None] = [None] * children

    def share(self, messages: Sequence[Any], until: float = math.inf) -> list[tuple[int, Any] | None]:
        """Has all children answer messages side by side, each the next one that is left.

        Parameters
        ----------
        until
            The time (`time.monotonic`) after which no answer is waited for.

        Returns
        -------
        list
            For each message the child that answered and its answer: a `Verdict` of status `timeout` or `crash` where it gave none.
            None where `until` came first, and where the child ended over a later message, so that what it had made is lost.

        Raises
        ------
        SartorError
            A child does not start.
        """
        answers: list[tuple[int, Any] | None] = [None] * len(messages)
        free = list(range(min(self.children, len(messages))))
        self._start(free)
        left = deque(range(len(messages)))
        busy: dict[int, tuple[int, float]] = {}  # child: the message it is at, and the time it has for it
        while busy or (left and time.monotonic() < until):
            while free and left and time.monotonic() < until:
                self._start(free[:1])
                child, place = free.pop(0), left.popleft()
                busy[child] = (place, time.monotonic() + self.timeout)
                self._send(child, messages[place])
            first = min(limit for _, limit in busy.values())
            for child in self._ready(busy, min(first, until)):
                answers[busy.pop(child)[0]] = (child, self._receive(child))
                free.append(child)
            for child, (place, limit) in list(busy.items()):
                if time.monotonic() >= min(limit, until):
                    self._end(child)
                    del busy[child]
                    if limit <= until:
                        answers[place] = (child, self._timeout(self.timeout))
                        free.append(child)
            self._forget_lost(answers)
        return answers

    def _forget_lost(self, answers: list[tuple[int, Any] | None]) -> None:
        """Takes back what children that have ended since had made."""
        for place, answer in enumerate(answers):
            if answer is not None and self._children[answer[0]] is None and answer[1].status == "built":
                answers[place] = None

    def ask(self, message: Any, child: int = 0, until: float = math.inf, timeout: float | None = None) -> Any:
        """One child's answer while the others wait; None where `until` came first.

        It is a `Verdict` of status `timeout` or `crash` where the child gave none.
        """
        timeout = timeout or self.timeout
        self._start([child])
        limit = time.monotonic() + timeout
        self._send(child, message)
        if self._ready([child], min(limit, until)):
            return self._receive(child)
        self._end(child)
        return self._timeout(timeout) if limit <= until else None

    def _timeout(self, seconds: float) -> Verdict:
        return Verdict("timeout", f"no result within {seconds:g} s")

    def runs(self, child: int) -> bool:
        """Whether a child has what it made: it has not ended."""
        return self._children[child] is not None

    # --- children ---

    def _start(self, numbers: Sequence[int]) -> None:
        """Makes sure these children run."""
        for number in numbers:
            if self._children[number] is None:
                self._children[number] = Child()
        limit = time.monotonic() + START_SECONDS
        fresh = {n for n in numbers if not self._child(n).ready}
        while fresh:
            ready = self._ready(fresh, limit)
            if not ready:
                raise SartorError(f"the measuring process does not start within {START_SECONDS:.0f} s")
            for number in ready:
                fresh.discard(number)
                try:
                    self._child(number).ready = self._child(number).receive() == READY
                except EOFError:
                    words = self._child(number).last_words()
                    self._end(number)
                    raise SartorError(f"the measuring process does not start; it ended with {words}") from None

    def _child(self, number: int) -> Child:
        child = self._children[number]
        assert child is not None
        return child

    def _send(self, number: int, message: Any) -> None:
        with contextlib.suppress(OSError):  # a child that has ended is noticed by the answer it does not give
            self._child(number).send(message)

    def _ready(self, numbers: Iterable[int], limit: float) -> list[int]:
        """Those of the children that have something to say, waiting for one until `limit`."""
        streams = {self._child(n).output: n for n in numbers}
        return [streams[stream] for stream in select.select(list(streams), [], [], max(0.0, limit - time.monotonic()))[0]]

    def _receive(self, number: int) -> Any:
        try:
            answer = self._child(number).receive()
        except (EOFError, OSError):
            return self._crash(number)
        if isinstance(answer, Verdict) and answer.status == "broken":
            raise SartorError(f"candidates cannot be measured: {answer.reason}")
        return answer

    def _crash(self, number: int) -> Verdict:
        words = self._child(number).last_words()
        self._end(number)
        return Verdict("crash", f"the measuring process ended with {words}")

    def _end(self, number: int) -> None:
        child, self._children[number] = self._children[number], None
        if child is not None:
            child.close()

    def close(self) -> None:
        """Ends all children, whatever they are doing."""
        for number in range(self.children):
            self._end(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
