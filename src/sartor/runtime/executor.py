"""Runs a bound plan by one native call: the Python half of `sartor.loops.executor`.

A `Runner` holds the native structures of one context: its task list, the run, and the patches that put the caller's arrays
into the argument blocks.  Two threads must not use one runner at once; sessions hand a runner to one run at a time.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import FeedError, ProgramError
from sartor.runtime.image import Code
from sartor.runtime.threads import MAX_THREADS, WorkerPool, function_address, process_pool

ABI_VERSION = 1
"""The version of the executor this module can talk to; `sartor.loops.executor.ABI_VERSION` is what images are made with."""

# Layouts of `%task`, `%run` and `%call` in sartor.loops.executor, in slots of 8 bytes.
TASK_SLOTS = 8
TASK_FUNCTION, TASK_ARGS, TASK_EXTENT, TASK_GRAIN, TASK_CHUNK, TASK_THREADS, TASK_COUNTER, TASK_FLAGS = range(TASK_SLOTS)
INDEPENDENT = 1
"""Bit of a task's flags: the next task does not depend on this one, so that no barrier stands between them."""

_RUN_SLOTS = 48
_RUN_THREADS, _RUN_TASKS, _RUN_COUNT, _RUN_SCRATCH, _RUN_SCRATCH_BYTES, _RUN_PROFILE, _RUN_POOL = range(7)
_FEW_WORKERS = 1

# What a native call reads of CPython's objects and NumPy's arrays: references, type, data; `_reads_objects` proves it.
_OBJECT_TYPE, _ARRAY_DATA = 8, 16


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_METH_FASTCALL = 0x80


class Runner:
    """One context of a bound plan, ready to run.

    Parameters
    ----------
    code
        Code with the executor in it.
    tasks
        int64 [tasks, `TASK_SLOTS`], copied: function address, address of the argument block, extent, grain, chunk (0: one
        slice a thread; otherwise a multiple of the grain: threads claim chunks), threads (0: all; 1: thread 0 alone), 0,
        flags.  Argument blocks must outlive the runner.
    threads
        How many threads to run on, if the tasks have work for them.
    scratch
        uint8 [threads or more, bytes]: one slab of scratch memory a thread; kept alive.
    patches
        For each buffer that calls bring, the (address of an argument, offset in bytes) pairs to set before a run, as a list
        or as int64 [pairs, 2].
    pool
        Where workers come from; by default the one of the process.
    releases_lock
        Whether other Python threads may run meanwhile; without it a call costs less, which pays for runs of a few µs.

    Attributes
    ----------
    native
        The bare call, for callers that count in tenths of a µs: `native(*arrays)` returns 0 when it ran, and otherwise has
        done nothing, so that calling the runner does it or says what is wrong.  The runner must outlive it.

    Raises
    ------
    ProgramError
        The executor in `code` is of another version, or a task is malformed.
    """

    def __init__(
        self,
        code: Code,
        tasks: NDArray[np.int64],
        *,
        threads: int = 1,
        scratch: NDArray[np.uint8] | None = None,
        patches: Sequence[Sequence[tuple[int, int]] | NDArray[np.int64]] = (),
        pool: WorkerPool | None = None,
        releases_lock: bool = True,
    ) -> None:
        _check_abi(code)
        _check_tasks(tasks)
        self.code = code
        self.tasks = aligned_words(tasks.size).reshape(tasks.shape)
        self.tasks[:] = tasks
        self.threads = max(1, min(threads, MAX_THREADS, useful_threads(tasks)))
        self._scratch = scratch
        self._pool = pool
        self._run = aligned_words(_RUN_SLOTS)
        self._run[_RUN_THREADS] = self.threads
        self._run[_RUN_TASKS] = self.tasks.ctypes.data
        self._run[_RUN_COUNT] = len(tasks)
        if scratch is not None:
            if len(scratch) < self.threads:
                raise ProgramError(f"{len(scratch)} slabs of scratch memory are too few for {self.threads} threads")
            self._run[_RUN_SCRATCH] = scratch.ctypes.data
            self._run[_RUN_SCRATCH_BYTES] = scratch.strides[0]
        if self.threads > 1:
            self._pool = pool or process_pool()
            self._run[_RUN_POOL] = self._pool.address
        self._patches = [np.concatenate(([len(p)], np.asarray(p, np.int64).reshape(-1))) for p in patches]
        python = ctypes.pythonapi
        self._call = np.array([
            self._run.ctypes.data,
            len(patches),
            id(np.ndarray),
            function_address(python.PyLong_FromLong),
            function_address(python.PyEval_SaveThread) if releases_lock else 0,
            function_address(python.PyEval_RestoreThread),
            *(p.ctypes.data for p in self._patches),
        ], np.int64)
        self._call_address = self._call.ctypes.data
        self._call_addresses = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(code.address("sartor_call"))
        self.native: Callable[..., int]
        if _reads_objects():
            # A built-in method costs a tenth of a call through ctypes and gets its arguments as plain pointers.
            self._definition = _MethodDefinition(b"run", code.address("sartor_method"), _METH_FASTCALL, None)
            new = python.PyCFunction_NewEx
            new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
            self.native = new(ctypes.byref(self._definition), self._call, None)
        else:
            self.native = self._call_with_addresses

    def __call__(self, *arrays: NDArray[Any]) -> None:
        """Runs all tasks with the given buffers, one for each item of `patches`.

        Types, sizes and strides of the arrays are the caller's business.

        Raises
        ------
        FeedError
            The number of arrays is wrong, or one is not an array.
        """
        status = self.native(*arrays)
        while status:
            if status == _FEW_WORKERS:
                self._find_workers()
            status = self._call_with_addresses(*arrays)

    def profile(self, *arrays: NDArray[Any]) -> NDArray[np.int64]:
        """A call that also reads thread 0's clock before the first task and after each; int64 [tasks + 1], in ticks."""
        ticks = np.zeros(len(self.tasks) + 1, np.int64)
        self._run[_RUN_PROFILE] = ticks.ctypes.data
        try:
            self(*arrays)
        finally:
            self._run[_RUN_PROFILE] = 0
        return ticks

    def _call_with_addresses(self, *arrays: NDArray[Any]) -> int:
        """The call for arrays of derived types, and where objects cannot be read natively."""
        if len(arrays) != len(self._patches):
            raise FeedError(f"the run takes {len(self._patches)} buffers, {len(arrays)} came")
        for i, array in enumerate(arrays):
            if not isinstance(array, np.ndarray):
                raise FeedError(f"buffer {i} is a {type(array).__name__}, expected an array")
        addresses = (ctypes.c_int64 * len(arrays))(*map(data_address, arrays))
        return int(self._call_addresses(self._call_address, ctypes.addressof(addresses)))

    def _find_workers(self) -> None:
        """Has the pool start workers, as at first use and after a fork; runs with fewer threads where it cannot."""
        assert self._pool is not None
        self._run[_RUN_THREADS] = self._pool.grow(self.threads, self.code)


def useful_threads(tasks: NDArray[np.int64]) -> int:
    """The most threads that any of the tasks can have something to do for; at least 1."""
    if not len(tasks):
        return 1
    extent, grain, chunk, threads = (tasks[:, slot] for slot in (TASK_EXTENT, TASK_GRAIN, TASK_CHUNK, TASK_THREADS))
    pieces = -(-extent // np.maximum(grain, chunk))
    return max(1, int(np.where(threads == 0, pieces, np.minimum(threads, pieces)).max()))


def aligned_words(count: int) -> NDArray[np.int64]:
    """int64 zeros that start at a multiple of 128 bytes, where structures stand that several threads write."""
    words = np.zeros(count + 16, np.int64)
    lead = -words.ctypes.data % 128 // 8
    return words[lead:lead + count]


def data_address(array: NDArray[Any]) -> int:
    """The address of an array's first element; much faster than `array.ctypes.data` where CPython's objects can be read."""
    if isinstance(array, np.ndarray) and _reads_objects():
        return ctypes.c_int64.from_address(id(array) + _ARRAY_DATA).value
    return int(array.ctypes.data)


def ticks_per_second(code: Code) -> float:
    """The rate of the clock that `Runner.profile` reads, measured over some milliseconds."""
    clock = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("sartor_clock"))
    start, start_ticks = time.perf_counter(), clock()
    time.sleep(0.01)
    end, end_ticks = time.perf_counter(), clock()
    return float(end_ticks - start_ticks) / (end - start)


@cache
def _reads_objects() -> bool:
    """Whether objects and arrays lie in memory as native calls expect: CPython with its lock; tried on a few, once."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != _ARRAY_DATA:
        return False

    def word(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    samples = (np.zeros(3), np.zeros((4, 5), np.uint8)[2:, 1:], np.frombuffer(b"12345678", np.int16), np.zeros(()))
    return all(word(id(a) + _OBJECT_TYPE) == id(np.ndarray) and word(id(a) + _ARRAY_DATA) == a.ctypes.data for a in samples)


def _check_abi(code: Code) -> None:
    version = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("sartor_abi"))()
    if version != ABI_VERSION:
        raise ProgramError(f"the program's executor has version {version}, this Sartor runs version {ABI_VERSION}")


def _check_tasks(tasks: NDArray[np.int64]) -> None:
    if tasks.dtype != np.int64 or tasks.ndim != 2 or tasks.shape[1] != TASK_SLOTS:
        raise ProgramError(f"the task list is {tasks.dtype} {list(tasks.shape)}; expected int64 [tasks, {TASK_SLOTS}]")
    grain, chunk = tasks[:, TASK_GRAIN], tasks[:, TASK_CHUNK]
    wrong = {
        "no function": tasks[:, TASK_FUNCTION] == 0,
        "a negative extent": tasks[:, TASK_EXTENT] < 0,
        "a grain below 1": grain < 1,
        "a chunk that is no multiple of its grain": (chunk < 0) | (chunk % np.maximum(grain, 1) != 0),
        "a negative number of threads": tasks[:, TASK_THREADS] < 0,
        "a counter that is not 0": tasks[:, TASK_COUNTER] != 0,
    }
    for what, where in wrong.items():
        if where.any():
            raise ProgramError(f"task {int(where.argmax())} has {what}")
