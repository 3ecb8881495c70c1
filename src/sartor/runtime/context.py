"""What one run writes: arenas, scratch, argument blocks, task lists."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.devices.processor import memory_bytes
from sartor.errors import SartorError
from sartor.runtime.binding import BoundStage
from sartor.runtime.executor import TASK_ARGS, Runner
from sartor.runtime.program import Program

Array: TypeAlias = NDArray[Any]

KEPT_CONTEXTS = 128
"""How many contexts the memory of one run keeps."""


class Context:
    """What one run writes in one stage: argument block, task lists, and the arena they point into."""

    def __init__(self, program: Program, bound: BoundStage, arena: Array, scratch: Array) -> None:
        self.bound = bound
        self.arena = arena
        self.block = block = bound.block.copy()
        address, start = arena.ctypes.data, block.ctypes.data
        block[bound.arena_words] += address
        block[bound.own_words] += start
        patches = [p.copy() for p in bound.patches]
        for patch in patches:
            patch[:, 0] = patch[:, 0] * 8 + start
        tasks = bound.tasks.copy()
        tasks[:, TASK_ARGS] += start
        slabs = scratch[: bound.threads]
        self.runners: list[Runner | None] = []
        for first, end in bound.layout.segments:
            if end < 0:
                self.runners.append(None)
                continue
            # The caller's addresses are written once, by the first native segment.
            runner = Runner(
                program.code,
                tasks[first:end],
                threads=bound.threads,
                scratch=slabs,
                patches=patches,
                releases_lock=not bound.holds_lock,
            )
            self.runners.append(runner)
        # The bare call of a plan that is one native call; what it returns other than 0 `call_again` deals with.
        self.call = self.runners[0].native if self.runners and self.runners[0] else _not_native

    def call_again(self, *arrays: Array) -> None:
        """Runs the first native segment where the bare call could not."""
        runner = self.runners[0]
        assert runner is not None
        runner(*arrays)


class Memory:
    """What one run at a time may use: arenas and scratch, with the contexts made of them."""

    def __init__(self) -> None:
        self.arenas: dict[int, Array] = {}
        self.scratch = _slabs(1, 0)
        self.contexts: dict[int, Context] = {}
        self._inner: Memory | None = None

    @property
    def inner(self) -> Memory:
        """What the bodies run from here may use: one after another they share it."""
        if self._inner is None:
            self._inner = Memory()
        return self._inner

    def context(self, program: Program, stage: int, bound: BoundStage) -> Context:
        """The context of a bound stage, made when first asked for; memory grows as needed."""
        context = self.contexts.get(id(bound))
        if context is None:
            self._reserve(stage, bound)
            if len(self.contexts) > KEPT_CONTEXTS:
                self.contexts.clear()
            context = self.contexts[id(bound)] = Context(program, bound, self.arenas[stage], self.scratch)
        return context

    def _reserve(self, stage: int, bound: BoundStage) -> None:
        arena = self.arenas.get(stage)
        small = self.scratch.shape[0] < bound.threads or self.scratch.shape[1] < bound.scratch_bytes
        try:
            if max(bound.arena.bytes, bound.threads * bound.scratch_bytes) > memory_bytes():
                raise MemoryError
            if arena is None or len(arena) < bound.arena.bytes:
                self.contexts.clear()
                self.arenas.pop(stage, None)
                self.arenas[stage] = _aligned(bound.arena.bytes)
            if small:
                self.contexts.clear()
                self.scratch = _slabs(max(self.scratch.shape[0], bound.threads), max(self.scratch.shape[1], bound.scratch_bytes))
        except (MemoryError, ValueError):
            raise SartorError(
                f"there is not enough memory for these sizes: the network needs {bound.arena.bytes} bytes between its "
                f"layers and {bound.threads} times {bound.scratch_bytes} bytes of scratch"
            ) from None


def _not_native(*arrays: Array) -> int:
    return 1


def _aligned(count: int) -> Array:
    """Uninitialised bytes from a multiple of 64 on."""
    memory = np.empty(count + 64, np.uint8)
    lead = -memory.ctypes.data % 64
    return memory[lead : lead + count]


def _slabs(threads: int, count: int) -> Array:
    """Scratch: a slab of at least `count` bytes a thread, each on lines of its own."""
    width = -(-max(count, 1) // 128) * 128
    return _aligned(threads * width).reshape(threads, width)
