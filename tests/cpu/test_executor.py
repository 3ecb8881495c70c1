"""The executor: division of tasks, barriers, buffers of the caller, the floating-point mode, profiles."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.cpu.executor_code import arguments, code, host_target, image, task

from sartor.errors import FeedError, ProgramError
from sartor.loops import executor as compiled
from sartor.loops.target import target_for
from sartor.runtime import executor
from sartor.runtime.executor import INDEPENDENT, Runner, aligned_words, data_address, ticks_per_second, useful_threads
from sartor.runtime.image import load_code

THREADS = [1, 2, 3, 4]


def rows(*tasks: list[int]) -> np.ndarray:
    return np.array(tasks, np.int64)


def test_both_halves_agree_on_the_version() -> None:
    assert compiled.ABI_VERSION == executor.ABI_VERSION


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("chunk", [0, 8, 24])
@pytest.mark.parametrize("extent", [0, 1, 3, 8, 100, 1000])
def test_every_element_is_computed_once_a_run(threads: int, chunk: int, extent: int) -> None:
    output = np.zeros(1024, np.int64)
    args = arguments(output)
    runner = Runner(code(), rows(*[task("count", args, extent, grain=8, chunk=chunk)] * 3), threads=threads)
    for _ in range(20):
        runner()
    assert (output[:extent] == 60).all()
    assert not output[extent:].any()
    assert not runner.tasks[:, executor.TASK_COUNTER].any()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("chunk", [0, 16])
def test_each_task_sees_what_the_one_before_wrote(threads: int, chunk: int) -> None:
    a, b = np.zeros(512, np.int64), np.zeros(512, np.int64)
    forth, back = arguments(b, a), arguments(a, b)
    tasks = [task("turn", args, 512, chunk=chunk) for args in (forth, back)] * 10
    runner = Runner(code(), rows(*tasks), threads=threads)
    for run in range(100):
        runner()
        assert (a == 20 * (run + 1)).all()


@pytest.mark.parametrize("threads", THREADS)
def test_tasks_of_one_thread_follow_each_other_and_wait_for_tasks_of_all(threads: int) -> None:
    a, b = np.zeros(64, np.int64), np.zeros(64, np.int64)
    forth, back = arguments(b, a), arguments(a, b)
    pattern = [(forth, 0), (back, 1), (forth, 1), (back, 0), (forth, 1), (back, 1), (forth, 2), (back, 0)]
    runner = Runner(code(), rows(*[task("turn", args, 64, threads=limit) for args, limit in pattern]), threads=threads)
    for run in range(500):
        runner()
        assert (a == 8 * (run + 1)).all()


@pytest.mark.parametrize("threads", THREADS)
def test_independent_tasks_are_waited_for_by_the_next_dependent_one(threads: int) -> None:
    a, b, c, d = (np.zeros(64, np.int64) for _ in range(4))
    ab, cd, ba, dc = arguments(b, a), arguments(d, c), arguments(a, b), arguments(c, d)
    # The second task runs on thread 0 alone and its successor too, which reads what all threads wrote in the first.
    runner = Runner(code(), rows(
        task("turn", ab, 64, chunk=8, flags=INDEPENDENT),
        task("turn", cd, 64, threads=1),
        task("turn", ba, 64, threads=1),
        task("turn", dc, 64),
    ), threads=threads)
    for run in range(500):
        runner()
        assert (a == 2 * (run + 1)).all()
        assert (c == 2 * (run + 1)).all()


@pytest.mark.parametrize(("extent", "grain"), [(1000, 1), (1000, 7), (1000, 600), (64, 16), (5, 1), (1, 1)])
@pytest.mark.parametrize("threads", [2, 3])
def test_static_slices_are_balanced_in_grains(extent: int, grain: int, threads: int) -> None:
    output = np.zeros(extent, np.int64)
    args = arguments(output)
    Runner(code(), rows(task("slice", args, extent, grain=grain)), threads=threads)()
    slices = sorted({(int(v) >> 16, int(v) & 0xFFFF) for v in output})
    assert slices[0][0] == 0
    assert slices[-1][1] == extent
    assert all(a[1] == b[0] for a, b in pairwise(slices))
    assert all(begin % grain == 0 for begin, _ in slices)
    sizes = [-(-(end - begin) // grain) for begin, end in slices]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(threads, -(-extent // grain))


def test_each_thread_has_its_slab_of_scratch() -> None:
    output = np.zeros(300, np.int64)
    args = arguments(output)
    scratch = np.zeros((3, 256), np.uint8)
    Runner(code(), rows(task("place", args, 300)), threads=3, scratch=scratch)()
    assert (output == scratch.ctypes.data + 256 * (np.arange(300) // 100)).all()
    with pytest.raises(ProgramError, match="2 slabs"):
        Runner(code(), rows(task("place", args, 300)), threads=3, scratch=scratch[:2])


def test_thousands_of_runs() -> None:
    output = np.zeros(64, np.int64)
    args = arguments(output)
    runner = Runner(code(), rows(task("count", args, 64), task("count", args, 64, chunk=4)), threads=2)
    for _ in range(10_000):
        runner()
    assert (output == 20_000).all()


def test_no_tasks_and_more_threads_than_work() -> None:
    Runner(code(), np.zeros((0, 8), np.int64), threads=4, patches=[[]])(np.zeros(1))
    output = np.zeros(8, np.int64)
    args = arguments(output)
    tasks = rows(task("count", args, 3), task("count", args, 8, grain=4), task("count", args, 8, threads=1))
    assert useful_threads(tasks) == 3
    runner = Runner(code(), tasks, threads=100_000)
    assert runner.threads == 3
    runner()
    assert output.tolist() == [3, 3, 3, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("releases_lock", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_buffers_of_the_caller_are_patched_in(native: bool, releases_lock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(executor, "_reads_objects", lambda: False)
    args = np.array([0, 0, 8], np.int64)
    at = args.ctypes.data
    runner = Runner(
        code(), rows(task("turn", args, 8)), threads=2, patches=[[(at + 8, 16)], np.array([[at, 0]])],
        releases_lock=releases_lock)
    source, output = np.arange(10), np.zeros(8, np.int64)
    runner(source, output)
    assert (output == np.arange(10, 2, -1)).all()
    assert runner.native(source + 1, output) == 0
    assert (output == np.arange(11, 3, -1)).all()

    class Derived(np.ndarray):
        pass

    runner(source.view(Derived), output)
    assert (output == np.arange(10, 2, -1)).all()
    with pytest.raises(FeedError, match="takes 2 buffers, 1 came"):
        runner(source)
    with pytest.raises(FeedError, match="buffer 1 is a list"):
        runner(source, [1, 2])  # type: ignore[arg-type]


def test_addresses() -> None:
    base = np.zeros((6, 7), np.float32)
    for array in (base, base[2:, 3:], base.T, np.zeros(()), base.view(np.memmap)):
        assert data_address(array) == array.ctypes.data
    assert aligned_words(5).ctypes.data % 128 == 0
    assert aligned_words(5).size == 5


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_flushed_inside_a_run_and_nowhere_else(threads: int) -> None:
    least = np.finfo(np.float64).tiny
    source, output = np.full(64, least), np.ones(64)
    args = arguments(output, source)
    runner = Runner(code(), rows(task("halve", args, 64)), threads=threads)
    runner()
    assert (output == 0).all()
    assert (source * 0.5 > 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_reads_the_clock_round_each_task(threads: int) -> None:
    output = np.zeros(100_000, np.int64)
    args = arguments(output)
    runner = Runner(code(), rows(*[task("count", args, n) for n in (100_000, 0, 10)]), threads=threads)
    ticks = np.min([np.diff(runner.profile()) for _ in range(20)], axis=0)
    assert (ticks >= 0).all()
    assert ticks[0] > ticks[1]
    seconds = ticks[0] / ticks_per_second(code())
    assert 1e-6 < seconds < 1
    runner()
    assert (output[:10] == 42).all()


@pytest.mark.parametrize(("slot", "value", "message"), [
    (executor.TASK_FUNCTION, 0, "no function"),
    (executor.TASK_EXTENT, -1, "negative extent"),
    (executor.TASK_GRAIN, 0, "grain below 1"),
    (executor.TASK_CHUNK, 6, "chunk that is no multiple"),
    (executor.TASK_THREADS, -2, "negative number of threads"),
    (executor.TASK_COUNTER, 1, "counter"),
])
def test_malformed_tasks_are_refused(slot: int, value: int, message: str) -> None:
    args = arguments(np.zeros(1, np.int64))
    tasks = rows(task("count", args, 1), task("count", args, 1, grain=4))
    tasks[1, slot] = value
    with pytest.raises(ProgramError, match=f"task 1 has .*{message}"):
        Runner(code(), tasks)
    with pytest.raises(ProgramError, match="task list"):
        Runner(code(), tasks[:, :7])


def test_another_version_of_the_executor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "ABI_VERSION", 999)
    with pytest.raises(ProgramError, match="version 1, this Sartor runs version 999"):
        Runner(code(), np.zeros((0, 8), np.int64))


def test_executors_for_all_targets_link() -> None:
    for isa in ("sse4", "avx2", "avx512", "neon"):
        linked = image(target_for(isa))
        assert {"sartor_run", "sartor_call", "sartor_method", "sartor_worker"} <= set(linked.symbols)


def test_code_of_two_images_shares_the_workers() -> None:
    linked = image(host_target())
    output = np.zeros(64, np.int64)
    args = arguments(output)
    first = Runner(code(), rows(task("count", args, 64)), threads=2)
    first()
    other = load_code(linked.code, linked.symbols)
    tasks = rows(task("count", args, 64))
    tasks[0, 0] = other.address("count")
    second = Runner(other, tasks, threads=2)
    for _ in range(100):
        first()
        second()
    assert (output == 201).all()
