"""What machine is this: found by asking the system, without measuring and without LLVM, so that loading a program may use it.

    device = host_device()             this machine
    device = device_for("avx2")        this machine, used as if it had no more than AVX2; or another kind of machine
    device = measure(host_device())    with rates found by running kernels (compiles; kept in the cache folder)

The parts a session needs are in `sartor.devices.processor`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

from sartor.devices.device import Device
from sartor.devices.processor import cpuinfo, host_isas, machine, usable_cores
from sartor.errors import UnsupportedError
from sartor.loops.target import target_for

_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}  # bytes, where the system does not say


def cache_sizes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[int, int]:
    """Bytes of the data caches by level (1, 2, 3); common sizes where the system does not say, level 2's for a missing 3."""
    found: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text(encoding="utf-8").strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind in ("Data", "Unified") and (value := _bytes(size)):
            found[int(level)] = value
    if not found:
        return dict(_CACHES)
    first = found.get(1, _CACHES[1])
    second = found.get(2, max(first, _CACHES[2]))
    return {1: first, 2: second, 3: found.get(3, second)}


@cache
def _host_caches() -> dict[int, int]:
    return cache_sizes()


def _bytes(text: str) -> int:
    """`512K` in bytes; 0 for what is no size."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


@cache
def _name() -> str:
    """The processor's name with what tells apart processors that call themselves alike."""
    name = cpuinfo("model name") or machine()
    family, model = cpuinfo("cpu family"), cpuinfo("model")
    return f"{name} ({family}-{model})" if family and model else name


def host_device(proved: bool = False) -> Device:
    """This machine: its best instruction set, the cores this process may use, its caches.  Takes about a millisecond.

    With `proved`, the best instruction set whose code was seen to run here: a child runs some, once a machine.
    """
    sizes = _host_caches()
    isa = _best_proved() if proved else host_isas()[-1]
    return Device(target_for(isa), usable_cores(), sizes[1], sizes[2], sizes[3], _name())


def _best_proved() -> str:
    """The best level that runs; one that the processor reports but that does not run is passed over with a warning."""
    lowest, *better = host_isas()
    for isa in reversed(better):
        try:
            prove(isa)
        except UnsupportedError as problem:
            logging.getLogger("sartor").warning("%s", problem)
        else:
            return isa
    prove(lowest)
    return lowest


def device_for(isa: str, cores: int | None = None, name: str | None = None) -> Device:
    """A device with the instruction set `isa`: this machine where it has that (its caches and cores, without the rest of its
    instructions), else a described machine of that kind with common cache sizes, to compile for elsewhere.

    Raises
    ------
    OptionError
        When `isa` is not one of `ISAS`.
    """
    target = target_for(isa)
    if isa in host_isas():
        host = host_device()
        return replace(host, target=target, cores=cores or host.cores, name=name or host.name)
    return Device(target, cores or usable_cores(), _CACHES[1], _CACHES[2], _CACHES[3], name or f"any {isa}")


def measure(device: Device, refresh: bool = False) -> Device:
    """`device` with the rates its kernels reach, as measured now or, unless `refresh`, as kept from an earlier time.

    See `sartor.devices.rates`, which this imports (and with it LLVM).
    """
    from sartor.devices.rates import measured_device

    return measured_device(device, refresh)


def prove(isa: str) -> None:
    """Makes sure code for `isa` runs on this machine, by running some in a process of its own; once a machine.

    Raises
    ------
    UnsupportedError
        When it does not.
    """
    from sartor.devices.rates import prove_isa

    prove_isa(isa)
