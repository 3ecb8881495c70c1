"""The memory planner: buffers alive together never share bytes, and plans come close to the bound."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.fitting.arena import ALIGNMENT, plan_arena


def check(sizes, first, last):
    arena = plan_arena(sizes, first, last)
    spans = [(o, o + s) for o, s in zip(arena.offsets, sizes, strict=True)]
    for i, (begin, end) in enumerate(spans):
        assert begin % ALIGNMENT == 0
        assert begin >= 0
        assert end <= arena.bytes
        for j in range(i):
            if first[i] <= last[j] and first[j] <= last[i]:
                assert end <= spans[j][0] or spans[j][1] <= begin, f"buffers {i} and {j} share bytes"
    assert arena.bytes >= arena.lower_bound
    return arena


BUFFERS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20), st.integers(0, 8)), max_size=30)


@given(BUFFERS)
def test_no_two_live_buffers_overlap(buffers):
    sizes, first = [b[0] for b in buffers], [b[1] for b in buffers]
    last = [b[1] + b[2] for b in buffers]
    assert check(sizes, first, last) == check(sizes, first, last)  # the same each time


def test_nothing_needs_nothing():
    assert plan_arena([], [], []).bytes == 0


def test_a_chain_takes_its_two_largest_neighbours():
    sizes = [6400, 128, 3200, 6400, 64]
    arena = check(sizes, [0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    assert arena.bytes == arena.lower_bound == 9600


def test_a_long_lived_small_buffer_does_not_split_the_arena():
    arena = check([64, 6400, 6400, 6400], [0, 0, 1, 2], [3, 1, 2, 3])
    assert arena.bytes == arena.lower_bound


def test_the_bound_is_the_largest_sum_alive():
    arena = plan_arena([100, 200, 300], [0, 1, 2], [1, 2, 2])
    assert arena.lower_bound == 256 + 320


@pytest.mark.parametrize("span", [3, 40])
def test_six_hundred_buffers_take_milliseconds(span):
    rng = random.Random(1)
    first = [i // 2 for i in range(600)]
    last = [f + rng.randrange(span) for f in first]
    sizes = [64 * rng.randrange(1, 5000) for _ in range(600)]
    check(sizes, first, last)
    best = min(_seconds(sizes, first, last) for _ in range(5))
    assert best < 0.1  # of the processor; a tenth of that on a free machine
    arena = plan_arena(sizes, first, last)
    assert arena.bytes <= 1.25 * arena.lower_bound


def _seconds(sizes, first, last):
    start = time.thread_time()
    plan_arena(sizes, first, last)
    return time.thread_time() - start
