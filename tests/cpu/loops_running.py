"""Runs small loop programs on arrays, for the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sartor.loops.language import Builder, Kernel, Value
from sartor.loops.llvm import jit
from sartor.loops.target import Target, target_for
from sartor.types import from_numpy, to_numpy

Function = Callable[..., Value]


def host_targets() -> list[Target]:
    """The targets whose code runs on this machine."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    wanted = {"sse4": "sse4_2", "avx2": "avx2", "avx512": "avx512dq", "neon": "asimd"}
    return [target_for(isa) for isa, flag in wanted.items() if flag in flags]


def elementwise_kernel(name: str, function: Function, inputs: Sequence[str], output: str, lanes: int) -> Kernel:
    """y[i] = function(builder, x0[i], x1[i], ...) in steps of `lanes`."""
    b = Builder(name)
    sources = [b.pointer(f"x{n}", scalar) for n, scalar in enumerate(inputs)]
    y = b.pointer("y", output)
    with b.loop("i", b.begin, b.end, lanes) as i:
        b.store(y, i, function(b, *(b.load(x, i, lanes) for x in sources)))
    return b.finish()


def elementwise(function: Function, arrays: Sequence[np.ndarray], output: str, lanes: int, target: Target) -> np.ndarray:
    """What `function` gives for `arrays` of one length."""
    kernel = elementwise_kernel("k", function, [from_numpy(a.dtype) for a in arrays], output, lanes)
    count = len(arrays[0])
    padded = -(-count // lanes) * lanes
    inputs = [np.concatenate([a, np.ones(padded - count, a.dtype)]) for a in arrays]
    result = np.zeros(padded, to_numpy(output))
    args = np.array([a.ctypes.data for a in (*inputs, result)], np.int64)
    jit([kernel], target)["k"](args, 0, 0, padded)
    return result[:count]
