"""Compiles kernels to objects, each distinct one once, and keeps the objects in the cache folder.

A kernel's name is made from its text, so that equal kernels of different layers, models and days are one object.  Where several
objects are missing, child processes compile them while the next are being made, since LLVM uses one core at a time in a process.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import llvmlite

from sartor.cache import cache_folder
from sartor.compiling.worker import Workers
from sartor.devices.processor import usable_cores
from sartor.loops import llvm
from sartor.loops.executor import executor_ir
from sartor.loops.language import Kernel
from sartor.loops.target import Target
from sartor.loops.verify import verify

_PLACEHOLDER = "sartor_kernel"
_FEW = 3  # missing objects that are compiled in this process: starting a child takes about as long
_MOST_PROCESSES = 16


@dataclass(frozen=True)
class Unit:
    """One function to compile: LLVM IR text, the symbol it defines, and the kernel it came from."""

    symbol: str
    ir: str
    kernel: Kernel | None = None


def kernel_unit(kernel: Kernel, target: Target) -> Unit:
    """The LLVM IR of a kernel under a name made from its text."""
    text = llvm.render([Kernel(_PLACEHOLDER, kernel.parameters, kernel.body)], target, checked=True)
    symbol = "k" + hashlib.sha256(text.encode()).hexdigest()[:24]
    return Unit(symbol, text.replace(_PLACEHOLDER, symbol, 1), kernel)


def executor_unit(target: Target) -> Unit:
    """The LLVM IR of the executor."""
    return Unit("sartor_run", executor_ir(target))


class KernelCompiler:
    """Compiles units for one target while more are being made; use as a context.

    Parameters
    ----------
    target
        What to compile for.
    processes
        How many child processes may compile; by default as many as this process may use cores.
    """

    def __init__(self, target: Target, processes: int | None = None) -> None:
        self.target = target
        self.units: dict[str, Unit] = {}
        self._folder = cache_folder() / "kernels"
        self._processes = min(usable_cores(), _MOST_PROCESSES) if processes is None else processes
        self._workers: Workers | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._objects: dict[str, bytes] = {}
        self._missing: list[Unit] = []
        self._futures: dict[str, Future[bytes]] = {}

    def add(self, unit: Unit) -> str:
        """Takes a unit, unless its symbol came before, and starts on it when it is worth a child process; returns its symbol."""
        if unit.symbol not in self.units:
            self.units[unit.symbol] = unit
            if (found := _read(self._path(unit))) is not None:
                self._objects[unit.symbol] = found
            else:
                if unit.kernel is not None:
                    verify(unit.kernel)  # one that is cached was verified then
                self._missing.append(unit)
                if self._processes > 1 and len(self._missing) > _FEW:
                    self._start()
        return unit.symbol

    def _start(self) -> None:
        """Hands all that is missing to child processes."""
        for unit in self._missing:
            if unit.symbol not in self._futures:
                self._futures[unit.symbol] = self._pool().submit(self._compile_in_child, unit)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._workers = Workers(self.target)
            self._threads = ThreadPoolExecutor(self._processes, "sartor-compile")
        return self._threads

    def finish(self, progress: Callable[[int, int], None] | None = None) -> list[bytes]:
        """The objects of all units, in the order they came; `progress` is told (those there, those wanted)."""
        for unit in self._missing:
            future = self._futures.get(unit.symbol)
            self._objects[unit.symbol] = (
                self._store(unit, llvm.compile_ir(unit.ir, self.target)) if future is None else future.result()
            )
            if progress:
                progress(len(self._objects), len(self.units))
        return [self._objects[symbol] for symbol in self.units]

    def _compile_in_child(self, unit: Unit) -> bytes:
        assert self._workers is not None
        return self._store(unit, self._workers.compile(unit.symbol, unit.ir))

    def _store(self, unit: Unit, data: bytes) -> bytes:
        _write(self._path(unit), data)
        return data

    def _path(self, unit: Unit) -> Path:
        return self._folder / (object_key(unit, self.target) + ".o")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._threads is not None and self._workers is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._workers.close()
            self._threads.shutdown(wait=True)


def object_key(unit: Unit, target: Target) -> str:
    """Names the object of a unit: a hash of its text, the target, and what compiles it."""
    text = "\n".join([unit.ir, repr(target), _compiler_version()])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@cache
def _compiler_version() -> str:
    """llvmlite's version and a hash of the module that drives it."""
    source = Path(llvm.__file__).read_bytes()
    return f"{llvmlite.__version__} {hashlib.sha256(source).hexdigest()}"


def _read(path: Path) -> bytes | None:
    """A cached object, which has its checksum in front; None where there is none, or a damaged one."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[16:] if data[:16] == hashlib.sha256(data[16:]).digest()[:16] else None


def _write(path: Path, data: bytes) -> None:
    """Puts an object into the cache, whole or not at all; a cache that cannot be written is done without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(data).digest()[:16] + data)
        os.replace(file.name, path)
    except OSError:
        pass
