"""How fast is this machine: rates found by running loop programs, kept in the cache folder, and instruction sets proved.

Keys of `Device.measured` (rates in a second, for T = 1 and all cores; a level's figure is read with one quarter of its size a
thread, so that it stays inside; memory is read with four times the last level's):

    multiply_adds_f32_T, multiply_adds_f64_T     peak of the multiply-add units
    bytes_l1_T, bytes_l2_T, bytes_l3_T, bytes_memory_T     reading
    task_seconds                                 a task without work on all cores, its barrier included (with two cores or more)
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sartor.cache import cache_folder
from sartor.devices.device import Device
from sartor.devices.processor import host_isas
from sartor.errors import UnsupportedError
from sartor.loops.executor import executor_ir
from sartor.loops.language import Builder, Kernel, Type
from sartor.loops.llvm import compile_ir, jit, render
from sartor.loops.objects import link
from sartor.loops.target import Target, target_for
from sartor.runtime.executor import Runner
from sartor.runtime.image import load_code

_ACCUMULATORS = 12  # hides the latency of two units of four or five cycles and fits into 16 registers with its operands
_SECONDS = 0.02  # of one timed piece
_REPEATS = 3
_TASKS = 1000
_PATIENCE = 300  # seconds a proof may take; it takes half a second on an idle machine

Call: TypeAlias = Callable[..., None]
Work: TypeAlias = Callable[[int], None]  # does something the given number of times


def measured_device(device: Device, refresh: bool = False) -> Device:
    """`device` with `measured` filled.

    Raises
    ------
    UnsupportedError
        When this machine lacks the device's instruction set.
    """
    if device.target.isa not in host_isas():
        raise UnsupportedError(
            f"a device with {device.target.isa} cannot be measured here: this machine has {', '.join(host_isas())}"
        )
    prove_isa(device.target.isa)
    key = _key(device)
    kept = _read_kept("devices.json")
    if refresh or key not in kept:
        kept = _keep("devices.json", key, _measure(device))
    return replace(device, measured=kept[key])


def _key(device: Device) -> str:
    """The fingerprint and the source of the kernels: changed kernels do not meet old rates."""
    kernels = "".join(str(k) for k in _kernels(device.target))
    return f"{device.fingerprint}/{hashlib.sha256(kernels.encode()).hexdigest()[:12]}"


# --- kept figures ---------------------------------------------------------------------------------------------------------


def _read_kept(name: str) -> dict[str, Any]:
    try:
        data = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _keep(name: str, key: str, value: Any) -> dict[str, Any]:
    """Adds an entry to a file of the cache folder; where that cannot be written, this run alone knows it."""
    data = {**_read_kept(name), key: value}
    path = cache_folder() / name
    temporary = path.with_name(f"{name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True) if path.parent.is_dir() else None
    return data


# --- kernels --------------------------------------------------------------------------------------------------------------


def _multiply_adds(scalar: str, target: Target) -> Kernel:
    """begin..end times `_ACCUMULATORS` independent vector multiply-adds."""
    lanes = target.lanes(scalar)
    b = Builder(f"multiply_adds_{scalar}")
    data = b.pointer("data", scalar)
    factor, term = b.load(data, 0, lanes), b.load(data, lanes, lanes)
    totals = [b.variable(f"total{i}", b.load(data, (i % 2) * lanes, lanes)) for i in range(_ACCUMULATORS)]
    with b.loop("i", b.begin, b.end):
        for total in totals:
            total.set(b.fma(total.get(), factor, term))
    result = totals[0].get()
    for total in totals[1:]:
        result = result + total.get()
    b.store(data, 2 * lanes, result)
    return b.finish()


def _read(target: Target) -> Kernel:
    """Reads `count` f32 (a multiple of 16 vectors) end - begin times over."""
    lanes, ways = target.lanes("f32"), 8
    b = Builder("read")
    data, out, count = b.pointer("data", "f32"), b.pointer("out", "f32"), b.size("count")
    zero = b.constant(0.0, Type("f32", lanes))
    totals = [b.variable(f"total{i}", zero) for i in range(ways)]
    with b.loop("again", b.begin, b.end), b.loop("i", 0, count, 2 * ways * lanes) as i:
        for part in range(2 * ways):
            total = totals[part % ways]
            total.set(total.get() + b.load(data, i + part * lanes, lanes))
    result = totals[0].get()
    for total in totals[1:]:
        result = result + total.get()
    b.store(out, 0, result)
    return b.finish()


def _kernels(target: Target) -> list[Kernel]:
    return [_multiply_adds("f32", target), _multiply_adds("f64", target), _read(target)]


# --- measuring ------------------------------------------------------------------------------------------------------------


def _measure(device: Device) -> dict[str, float]:
    target = device.target
    calls = jit(_kernels(target), target)
    found: dict[str, float] = {}
    for threads in sorted({1, device.cores}):
        for scalar in ("f32", "f64"):
            rate = _rate_of([_peak_call(calls[f"multiply_adds_{scalar}"], scalar, target) for _ in range(threads)])
            found[f"multiply_adds_{scalar}_{threads}"] = rate * _ACCUMULATORS * target.lanes(scalar)
        for level, size in _working_sets(device, threads).items():
            found[f"bytes_{level}_{threads}"] = size * _rate_of([_read_call(calls["read"], size, target) for _ in range(threads)])
    if device.cores > 1:
        found["task_seconds"] = _task_seconds(target, device.cores)
    return found


def _working_sets(device: Device, threads: int) -> dict[str, int]:
    """Bytes each thread reads over and over to meet a level of memory."""
    whole = 16 * device.target.vector_bytes
    sets = {
        "l1": device.l1_bytes // 2,
        "l2": device.l2_bytes // 2,
        "l3": device.l3_bytes // (2 * threads),
        "memory": 4 * max(device.l3_bytes, 8 << 20) // threads,
    }
    return {level: max(whole, size // whole * whole) for level, size in sets.items()}


def _task_seconds(target: Target, threads: int) -> float:
    """The least time a task without work takes in the executor, on this many threads."""
    nothing = Builder("nothing").finish()
    image = link([compile_ir(executor_ir(target), target), compile_ir(render([nothing], target), target)])
    code = load_code(image.code, image.symbols)
    args = np.zeros(1, np.int64)
    rows = [[code.address("nothing"), args.ctypes.data, threads, 1, 0, 0, 0, 0]] * _TASKS
    run = Runner(code, np.array(rows, np.int64), threads=threads)
    run()
    best = float("inf")
    for _ in range(20 * _REPEATS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / _TASKS


def _peak_call(call: Call, scalar: str, target: Target) -> Work:
    data = np.zeros(3 * target.lanes(scalar), np.float32 if scalar == "f32" else np.float64)
    args = np.array([data.ctypes.data], np.int64)

    def work(times: int, *, _keep: Any = data) -> None:
        call(args, 0, 0, times)

    return work


def _read_call(call: Call, size: int, target: Target) -> Work:
    data = np.ones(size // 4, np.float32)
    out = np.zeros(target.lanes("f32"), np.float32)
    args = np.array([data.ctypes.data, out.ctypes.data, data.size], np.int64)

    def work(times: int, *, _keep: Any = (data, out)) -> None:
        call(args, 0, 0, times)

    return work


def _rate_of(work: list[Work]) -> float:
    """Times a second that all threads together, one for each item, run their work; the best of a few repeats.

    Native code runs with the interpreter lock released, so Python's threads are enough.
    """
    times = _times_for(work[0])
    best = 0.0
    for _ in range(_REPEATS):
        best = max(best, len(work) * times / _together(work, times))
    return best


def _times_for(work: Work) -> int:
    """How often `work` is to be repeated to fill `_SECONDS`."""
    times = 1
    while True:
        start = time.perf_counter()
        work(times)
        seconds = time.perf_counter() - start
        if seconds > _SECONDS / 4:
            return max(1, int(times * _SECONDS / seconds))
        times *= 4


def _together(work: list[Work], times: int) -> float:
    """Seconds in which every thread does its work `times` over, from a common start."""
    if len(work) == 1:
        start = time.perf_counter()
        work[0](times)
        return time.perf_counter() - start
    gate = threading.Barrier(len(work))
    spans: list[tuple[float, float]] = []

    def body(one: Work) -> None:
        gate.wait()
        start = time.perf_counter()
        one(times)
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=body, args=(one,)) for one in work]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


# --- proving --------------------------------------------------------------------------------------------------------------


def prove_isa(isa: str) -> None:
    """Runs a kernel for `isa` in a child, unless that was done on this processor before.

    Raises
    ------
    UnsupportedError
        When the child ends by a signal or gets a wrong result.
    """
    import llvmlite

    from sartor.devices.probe import host_device

    key = f"{host_device().name}/{isa}/llvmlite {llvmlite.__version__}"
    kept = _read_kept("proved.json")
    if key not in kept:
        command = [sys.executable, "-c", f"from sartor.devices.rates import run_proof; run_proof({isa!r})"]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise UnsupportedError(f"code for {isa} could not be tried within {_PATIENCE} s") from None
        kept = _keep("proved.json", key, _failure(done))
    if kept[key]:
        raise UnsupportedError(f"code for {isa} does not run on this machine ({kept[key]}); choose a lesser instruction set")


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    """Why a child failed, in a few words; empty when it did not."""
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"it ends by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def run_proof(isa: str) -> None:
    """What the child of `prove_isa` does: a vector multiply-add of every length up to three vectors, compared with NumPy's."""
    target = target_for(isa)
    lanes = target.lanes("f32")
    b = Builder("proof")
    x, y = b.pointer("x", "f32"), b.pointer("y", "f32")
    with b.loop("i", b.begin, b.end) as i:
        v = b.load(x, i * lanes, lanes)
        b.store(y, i * lanes, b.fma(v, v, 1.0))
    call = jit([b.finish()], target)["proof"]
    data = np.arange(3 * lanes, dtype=np.float32)
    out = np.zeros_like(data)
    call(np.array([data.ctypes.data, out.ctypes.data], np.int64), 0, 0, 3)
    if not np.array_equal(out, data * data + 1):
        sys.exit("a multiply-add gives wrong results")
