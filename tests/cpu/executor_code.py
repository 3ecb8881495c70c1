"""Small kernels with the executor, as a program would have them: used by the tests of the executor and of its threads."""

from __future__ import annotations

import platform
from functools import cache

import numpy as np

from sartor.loops.executor import executor_ir
from sartor.loops.llvm import compile_ir
from sartor.loops.objects import Image, link
from sartor.loops.target import Target, target_for
from sartor.runtime.executor import TASK_SLOTS, Runner
from sartor.runtime.image import Code, load_code
from sartor.runtime.threads import WorkerPool

# Arguments: 0 output, 1 input, 2 length.  All elements are 8 bytes.
_KERNELS = {
    # output[i] = input[length - 1 - i] + 1: reads what other threads wrote before the barrier.
    "turn": """
  %last = sub i64 %length, 1
  %from = sub i64 %last, %i
  %in.p = getelementptr i64, ptr %input, i64 %from
  %in = load i64, ptr %in.p
  %value = add i64 %in, 1
  store i64 %value, ptr %out.p""",
    # output[i] = address of the scratch of the thread that computed it.
    "place": """
  %value = ptrtoint ptr %scratch to i64
  store i64 %value, ptr %out.p""",
    # output[i] += 1: shows that each element was computed once.
    "count": """
  %old = load i64, ptr %out.p
  %value = add i64 %old, 1
  store i64 %value, ptr %out.p""",
    # output[i] = input[i] / 2 in double precision: flushed to zero where that is denormal.
    "halve": """
  %in.p = getelementptr double, ptr %input, i64 %i
  %in = load double, ptr %in.p
  %value = fmul double %in, 0.5
  store double %value, ptr %out.p""",
    # output[i] = begin * 65536 + end: the division.
    "slice": """
  %high = mul i64 %begin, 65536
  %value = add i64 %high, %end
  store i64 %value, ptr %out.p""",
}


def _kernel(name: str, body: str) -> str:
    return f"""
define void @{name}(ptr %args, ptr %scratch, i64 %begin, i64 %end) {{
entry:
  %out = load ptr, ptr %args
  %input.p = getelementptr ptr, ptr %args, i64 1
  %input = load ptr, ptr %input.p
  %length.p = getelementptr i64, ptr %args, i64 2
  %length = load i64, ptr %length.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %out.p = getelementptr i64, ptr %out, i64 %i
{body}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


@cache
def host_target() -> Target:
    return target_for("neon" if platform.machine() == "aarch64" else "sse4")


@cache
def image(target: Target) -> Image:
    kernels = f'target triple = "{target.triple}"\n' + "".join(_kernel(*item) for item in _KERNELS.items())
    return link([compile_ir(executor_ir(target), target), compile_ir(kernels, target)])


@cache
def code() -> Code:
    linked = image(host_target())
    return load_code(linked.code, linked.symbols)


def arguments(output: np.ndarray, input: np.ndarray | None = None) -> np.ndarray:
    """An argument block; the arrays must be kept alive."""
    return np.array([output.ctypes.data, 0 if input is None else input.ctypes.data, output.size], np.int64)


def task(
    kernel: str, args: np.ndarray, extent: int, *, grain: int = 1, chunk: int = 0, threads: int = 0, flags: int = 0,
) -> list[int]:
    row = [code().address(kernel), args.ctypes.data, extent, grain, chunk, threads, 0, flags]
    assert len(row) == TASK_SLOTS
    return row


class Counting:
    """A runner of ten tasks that add one to each of 64 numbers, and its memory."""

    def __init__(self, threads: int, pool: WorkerPool | None = None) -> None:
        self.output = np.zeros(64, np.int64)
        self.args = arguments(self.output)
        tasks = np.array([task("count", self.args, 64, chunk=8 * (i % 2)) for i in range(10)], np.int64)
        self.run = Runner(code(), tasks, threads=threads, pool=pool)

    def check(self, runs: int) -> bool:
        """Whether `runs` more runs add up."""
        self.output[:] = 0
        for _ in range(runs):
            self.run()
        return bool((self.output == 10 * runs).all())
