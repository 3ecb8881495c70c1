"""What the processor can do and how much of it this process may use: what a session must know, in a module that costs nothing to load.

`SARTOR_ISA` lowers what this machine claims to have, to try what would happen on a lesser one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache

from sartor.errors import OptionError, UnsupportedError

# What the processor must report, as /proc/cpuinfo spells it, for all that LLVM may use for the level.
_FLAGS = {
    "sse4": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    "avx2": ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
_LEVELS = ("sse4", "avx2", "avx512")  # each includes those before it


def machine() -> str:
    """The processor's architecture as LLVM spells it."""
    name = os.uname().machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


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
            f"this processor ({machine()}) has none of the instruction sets Sartor makes code for: {', '.join(_LEVELS)} and neon"
        )
    if limit := os.environ.get("SARTOR_ISA"):
        if limit not in found:
            raise OptionError(f"SARTOR_ISA is {limit}, but this machine has {', '.join(found)}")
        found = found[: found.index(limit) + 1]
    return found


@cache
def _host_levels() -> tuple[str, ...]:
    if machine() == "aarch64":
        return ("neon",)
    flags = set(cpuinfo("flags").split())
    found: list[str] = []
    for level in _LEVELS:
        if not flags.issuperset(_FLAGS[level]):
            break
        found.append(level)
    return tuple(found)


@cache
def cpuinfo(key: str) -> str:
    """The first value of `key` in /proc/cpuinfo; empty where there is none."""
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def usable_cores() -> int:
    """How many cores this process may use: its affinity, or the control group's processor quota where that is less.

    It is read anew each time, since both may change while a process runs.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, cgroup_quota())))


def cgroup_quota(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float:
    """The least processor quota of this process's control groups and those above them; infinite without one."""
    groups = _groups("cpu", membership, root)
    return min((_quota_v2(folder) if newer else _quota_v1(folder) for newer, folder in groups), default=math.inf)


@cache
def memory_bytes(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """How much memory this process can have: the machine's, or the limit of its control groups where that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for newer, folder in _groups("memory", membership, root):
        limit = _read(os.path.join(folder, "memory.max" if newer else "memory.limit_in_bytes")).strip()
        if limit.isdigit():
            found = min(found, int(limit))
    return found


def _groups(controller: str, membership: str, root: str) -> Iterator[tuple[bool, str]]:
    """Folders of this process's control groups for a controller and of those above them; whether each is of version 2."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root
        elif controller in controllers.split(","):
            base = os.path.join(root, controllers)
            if not os.path.isdir(base):
                base = os.path.join(root, controller)
        else:
            continue
        # Inside a container the path may name a group of the host; the root is then this process's own group.
        folder = os.path.join(base, path.lstrip("/"))
        while True:
            yield controllers == "", folder
            if len(folder.rstrip("/")) <= len(base):
                break
            folder = os.path.dirname(folder.rstrip("/"))


def _read(path: str) -> str:
    """A small file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _quota_v2(group: str) -> float:
    words = _read(os.path.join(group, "cpu.max")).split()
    if len(words) != 2 or words[0] == "max":
        return math.inf
    return int(words[0]) / int(words[1])


def _quota_v1(group: str) -> float:
    words = [_read(os.path.join(group, name)).strip() or "-1" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    limit, period = map(int, words)
    return limit / period if limit > 0 and period > 0 else math.inf
