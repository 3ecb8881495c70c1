"""What machine is this: found by asking the system, without measuring and without LLVM, so that loading a program may use it.

    device = host_device()             this machine
    device = device_for("avx2")        this machine, used as if it had no more than AVX2; or another kind of machine
    device = measure(host_device())    with rates found by running kernels (compiles; kept in the cache folder)

`SARTOR_ISA` lowers what this machine claims to have, to try what would happen on a lesser one.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path

from sartor.devices.device import Device
from sartor.errors import OptionError, UnsupportedError
from sartor.loops.target import ISAS, target_for

# What the processor must report, as /proc/cpuinfo spells it, for all that LLVM may use for the level.
_FLAGS = {
    "sse4": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    "avx2": ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
_LEVELS = ("sse4", "avx2", "avx512")  # each includes those before it
_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}  # bytes, where the system does not say


def host_isas() -> tuple[str, ...]:
    """The instruction set levels this machine's processor reports, lowest first.

    The environment variable `SARTOR_ISA` cuts the list after the level it names.

    Raises
    ------
    UnsupportedError
        When the processor has none of the levels Sartor makes code for.
    OptionError
        When `SARTOR_ISA` names no level of this machine.
    """
    found = _host_levels()
    if not found:
        raise UnsupportedError(
            f"this processor ({platform.machine()}) has none of the instruction sets Sartor makes code for: {', '.join(ISAS)}"
        )
    if limit := os.environ.get("SARTOR_ISA"):
        if limit not in found:
            raise OptionError(f"SARTOR_ISA is {limit}, but this machine has {', '.join(found)}")
        found = found[: found.index(limit) + 1]
    return found


@cache
def _host_levels() -> tuple[str, ...]:
    if platform.machine() in ("aarch64", "arm64"):
        return ("neon",)
    flags = set(_cpuinfo("flags").split())
    found: list[str] = []
    for level in _LEVELS:
        if not flags.issuperset(_FLAGS[level]):
            break
        found.append(level)
    return tuple(found)


@cache
def _cpuinfo(key: str) -> str:
    """The first value of `key` in /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""


def usable_cores() -> int:
    """How many cores this process may use: its affinity, or the control group's processor quota where that is less.

    It is read anew each time, since both may change while a process runs.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, cgroup_quota())))


def cgroup_quota(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """The least processor quota of this process's control groups and those above them; infinite without one."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    quota = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, read = root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / controllers, _quota_v1
            if not base.is_dir():
                base = root / "cpu"
        else:
            continue
        # Inside a container the path may name a group of the host; the root is then this process's own group.
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            quota = min(quota, read(folder))
            if folder == base:
                break
    return quota


def _quota_v2(group: Path) -> float:
    try:
        limit, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if limit == "max" else int(limit) / int(period)


def _quota_v1(group: Path) -> float:
    try:
        limit = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf
    return limit / period if limit > 0 and period > 0 else math.inf


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
    name = _cpuinfo("model name") or platform.machine()
    family, model = _cpuinfo("cpu family"), _cpuinfo("model")
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
