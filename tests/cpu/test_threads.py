"""The worker threads: how many, growth, contention, forks, idleness, the end of the process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.cpu.executor_code import Counting, code

from sartor.errors import OptionError
from sartor.runtime.threads import MAX_THREADS, WorkerPool, available_threads, process_pool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def wait_for(child: int, seconds: float = 30) -> int:
    """The exit code of a child process; -1 when it hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def fork(work: Any) -> int:
    """Does `work` in a forked child and returns whether it went well there: 0 when it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return wait_for(child)


def test_available_threads_keeps_to_the_affinity() -> None:
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))


def test_the_pool_grows_as_runs_need_it() -> None:
    pool = WorkerPool()
    assert pool.workers == 0
    assert Counting(1, pool).check(10)
    assert pool.workers == 0
    assert Counting(3, pool).check(50)
    assert pool.workers == 2
    assert Counting(2, pool).check(50)
    assert pool.workers == 2
    for bad in (0, -1, MAX_THREADS + 1):
        with pytest.raises(OptionError, match="threads"):
            pool.grow(bad, code())


def test_a_system_that_refuses_threads_leaves_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool()
    monkeypatch.setattr(pool, "_create", lambda *_: 11)
    counting = Counting(4, pool)
    assert counting.check(20)
    assert pool.workers == 0


def test_many_more_threads_than_processors() -> None:
    assert Counting(16, WorkerPool()).check(20)


def test_runs_at_the_same_time_share_the_pool() -> None:
    pool = WorkerPool()
    results: list[bool] = []

    def work(threads: int) -> None:
        results.append(Counting(threads, pool).check(1000))

    workers = [threading.Thread(target=work, args=(n,)) for n in (2, 2, 3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert results == [True] * 4
    assert pool.workers == 3


def test_parked_workers_burn_nothing() -> None:
    assert Counting(4).check(20)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03
    assert Counting(4).check(20)


def test_a_parked_worker_wakes() -> None:
    counting = Counting(2)
    for _ in range(100):
        assert counting.check(1)
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_forked_child_makes_its_own_workers(threads: int) -> None:
    counting = Counting(threads)
    assert counting.check(50)

    def work() -> bool:
        return process_pool().workers == 0 and counting.check(50) and Counting(threads).check(50)

    for _ in range(5):
        assert fork(work) == 0
        assert counting.check(50)


def test_a_child_of_a_child() -> None:
    counting = Counting(2)
    assert counting.check(20)
    assert fork(lambda: counting.check(20) and fork(lambda: counting.check(20)) == 0 and counting.check(20)) == 0


def test_a_fork_while_another_thread_runs() -> None:
    busy, mine = Counting(2), Counting(2)
    assert mine.check(1)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            busy.run()

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(10):
            assert fork(lambda: mine.check(20) and Counting(3).check(20)) == 0
            assert mine.check(20)
    finally:
        stop.set()
        other.join(30)
    assert not other.is_alive()


def _child_of_multiprocessing(runs: int) -> bool:
    return Counting(2).check(runs)


def test_children_of_multiprocessing() -> None:
    assert Counting(2).check(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_child_of_multiprocessing, [50] * 4) == [True] * 4


_SCRIPT = """
import threading, sys, time
from executor_code import Counting
counting = Counting(3)
assert counting.check(20)
"""

_ENDINGS = {
    "right after a run": "",
    "while parked": "time.sleep(0.1)",
    "by an exception": "raise SystemExit(0)",
    "with a daemon thread running": """
def work():
    while True:
        counting.run()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
    "after threads ended": """
worker = threading.Thread(target=counting.check, args=(100,))
worker.start()
worker.join()
""",
}


@pytest.mark.parametrize("ending", _ENDINGS.values(), ids=_ENDINGS.keys())
def test_the_process_ends(ending: str) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests' / 'cpu'}"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT + ending], check=False, env=environment, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
