"""The worker threads, one pool a process, shared by all sessions.

Workers are native threads that run `sartor_worker` of the first image that needed them; they never enter Python.  A run
hands them a function and an argument by native code (`sartor_run`); here they are only started, and counted.

A run that finds the pool held by another one goes on with its calling thread alone: results do not depend on the number of
threads, so only its speed differs.  Waiting for the other run would cost more than it saves where both are short, and
sharing the workers would slow both.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from functools import cache
from typing import Any

from sartor.devices.processor import usable_cores
from sartor.errors import OptionError
from sartor.runtime.image import Code, map_anonymous

MAX_THREADS = 1024
"""The most threads a run may have."""

SPIN_MICROSECONDS = 5
"""How long a waiting thread only looks before it offers its processor, and between two such offers.  Threads that all have a
processor of their own meet sooner; where two share one, this much is lost at each barrier.  An offer costs 0.3 µs."""

IDLE_SPIN_MICROSECONDS = 50
"""How long a worker waits awake for the next run.  Waking a parked one takes 5 to 50 µs, and programs that run one network
after another leave some tens of µs of Python between them; waiting much longer would only take the processor from others."""

# Layouts of `%pool` and `%slot` in sartor.loops.executor, in slots of 8 bytes.
_POOL_SLOTS, _WORKER_SLOTS = 48, 16
_POOL_WORKERS, _POOL_SYSCALL, _POOL_YIELD, _POOL_PAUSES, _POOL_IDLE_YIELDS, _POOL_BUSY = 0, 1, 2, 3, 4, 16
_WORKER_JOBS, _WORKER_PARKED, _WORKER_POOL = 0, 4, 5


def available_threads() -> int:
    """How many threads this process may run at once: the cores it may use."""
    return min(usable_cores(), MAX_THREADS)


class WorkerPool:
    """Native worker threads and the memory through which runs reach them.

    The memory and the code that workers run are never given back: workers end with the process, whenever that is.

    Attributes
    ----------
    address
        Of the `%pool` structure, for the `pool` slot of runs.
    """

    def __init__(self) -> None:
        length = 8 * (_POOL_SLOTS + _WORKER_SLOTS * (MAX_THREADS - 1))
        self.address = map_anonymous(length)
        self._words = (ctypes.c_int64 * (length // 8)).from_address(self.address)
        self._growing = threading.Lock()
        self._code: Code | None = None
        libc = ctypes.CDLL(None)
        self._words[_POOL_SYSCALL] = function_address(libc.syscall)
        self._words[_POOL_YIELD] = function_address(libc.sched_yield)
        self._create = libc.pthread_create
        self._create.argtypes = [ctypes.c_void_p] * 4
        self._detach = libc.pthread_detach
        self._detach.argtypes = [ctypes.c_void_p]
        os.register_at_fork(after_in_child=self._forget_workers)

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._words[_POOL_WORKERS]

    def grow(self, threads: int, code: Code) -> int:
        """Starts workers until runs of `threads` threads find enough, and returns how many threads runs may have.

        That is fewer than asked for when the system refuses more threads.  Any thread may call this at any time, also while
        runs are active.

        Parameters
        ----------
        threads
            Threads of a run, its calling thread included.
        code
            Code with an executor; the first one given is what all workers run.

        Raises
        ------
        OptionError
            `threads` is not between 1 and `MAX_THREADS`.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise OptionError(f"a run cannot have {threads} threads; expected 1 to {MAX_THREADS}")
        with self._growing:
            if self.workers + 1 < threads:
                self._start(threads - 1, code)
            return min(threads, self.workers + 1)

    def _start(self, wanted: int, code: Code) -> None:
        if not sys.platform.startswith("linux"):
            return  # parking uses the futex of Linux
        if self._code is None:
            self._code = code
            self._words[_POOL_PAUSES] = max(1, round(SPIN_MICROSECONDS / _pause_microseconds(code)))
            self._words[_POOL_IDLE_YIELDS] = IDLE_SPIN_MICROSECONDS // SPIN_MICROSECONDS
        entry = self._code.address("sartor_worker")
        handle = ctypes.c_void_p()
        # A new thread inherits the mask: signals are for the threads that know Python.
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for worker in range(self.workers, wanted):
                slot = _POOL_SLOTS + worker * _WORKER_SLOTS
                self._words[slot + _WORKER_POOL] = self.address
                if self._create(ctypes.byref(handle), None, entry, self.address + 8 * slot):
                    break
                self._detach(handle)
                self._words[_POOL_WORKERS] = worker + 1
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    def _forget_workers(self) -> None:
        """In a forked child: only the thread that forked lives on, so there are no workers and no run is active."""
        self._growing = threading.Lock()
        for worker in range(self.workers):
            slot = _POOL_SLOTS + worker * _WORKER_SLOTS
            self._words[slot + _WORKER_JOBS] = 0
            self._words[slot + _WORKER_PARKED] = 0
        self._words[_POOL_WORKERS] = 0
        self._words[_POOL_BUSY] = 0


@cache
def process_pool() -> WorkerPool:
    """The pool that all sessions of this process share; it has no workers before a run needs them."""
    return WorkerPool()


def function_address(function: Any) -> int:
    """The address of a C function found by ctypes."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _pause_microseconds(code: Code) -> float:
    """How long one pause of the processor lasts: 0.01 to 0.05 µs, whatever the clock; the best of a few tries."""
    spin = ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.address("sartor_spin"))
    pauses, times = 1000, []
    for _ in range(5):
        start = time.perf_counter_ns()
        spin(pauses)
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1000 / pauses
