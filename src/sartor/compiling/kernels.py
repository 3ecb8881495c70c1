"""Compiles kernels to objects, each distinct one once, and keeps the objects in the cache folder.

A kernel's name is made from its text, so that equal kernels of different layers, models and days are one object.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite

from sartor.cache import cache_folder
from sartor.loops import llvm
from sartor.loops.executor import executor_ir
from sartor.loops.language import Kernel
from sartor.loops.objects import Image, link
from sartor.loops.target import Target

_PLACEHOLDER = "sartor_kernel"


@dataclass(frozen=True)
class Unit:
    """One function to compile: LLVM IR text and the symbol it defines."""

    symbol: str
    ir: str


def kernel_unit(kernel: Kernel, target: Target) -> Unit:
    """The LLVM IR of a kernel under a name made from its text."""
    text = llvm.render([Kernel(_PLACEHOLDER, kernel.parameters, kernel.body)], target)
    symbol = "k" + hashlib.sha256(text.encode()).hexdigest()[:24]
    return Unit(symbol, text.replace(_PLACEHOLDER, symbol, 1))


def executor_unit(target: Target) -> Unit:
    """The LLVM IR of the executor."""
    return Unit("sartor_run", executor_ir(target))


def compile_units(units: Sequence[Unit], target: Target, progress: Callable[[int, int], None] | None = None) -> list[bytes]:
    """An object for each unit, from the cache where it is known.

    Parameters
    ----------
    units
        With distinct symbols.
    target
        What to compile for.
    progress
        Called with (objects there, objects wanted) as they become ready.
    """
    folder = cache_folder() / "kernels"
    objects = []
    for number, unit in enumerate(units):
        path = folder / (object_key(unit, target) + ".o")
        data = _read(path)
        if data is None:
            data = llvm.compile_ir(unit.ir, target)
            _write(path, data)
        objects.append(data)
        if progress:
            progress(number + 1, len(units))
    return objects


def link_objects(objects: Sequence[bytes]) -> Image:
    """The image of all objects."""
    return link(objects)


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
    """A cached object with its checksum in front; None where there is none, or a damaged one."""
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
