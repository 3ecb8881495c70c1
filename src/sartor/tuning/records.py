"""Every measurement ever made on this machine, in SQLite, durable as it is made.

A record says how long one layer took with one template and configuration on one device at given sizes, or why it was
refused.  The key holds the hash of the template's source, so that a changed template never meets stale records.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

FILE = "records-1.sqlite"
"""Its number counts the ways of measuring that cannot be compared."""

COLUMNS = (
    "signature",
    "sizes",
    "device",
    "threads",
    "template",
    "source",
    "config",
    "status",
    "reason",
    "seconds",
    "samples",
    "made",
)
SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY,
    signature TEXT NOT NULL, sizes TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL,
    template TEXT NOT NULL, source TEXT NOT NULL, config TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, seconds REAL, samples TEXT NOT NULL, made REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS by_problem ON records (signature, sizes, device, threads);
"""
_INSERT = f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM records WHERE signature = ? AND sizes = ? AND device = ? AND threads = ? ORDER BY id"
_WAIT_SECONDS = 30.0  # for another process that is writing

_log = logging.getLogger("sartor")


@dataclass(frozen=True)
class Record:
    """One measurement.

    Attributes
    ----------
    signature, sizes
        Of the layer, and the values of its symbols.
    device, threads
        What it ran on.
    template, source, config
        The candidate: the template, the hash of its source, the knobs.
    status, reason
        As in `sartor.tuning.messages.Verdict`.
    seconds
        The least of `samples`, where ok.
    made
        When, in seconds since 1970.
    """

    signature: str
    sizes: Mapping[str, int]
    device: str
    threads: int
    template: str
    source: str
    config: Mapping[str, Any]
    status: str
    reason: str = ""
    seconds: float | None = None
    samples: tuple[float, ...] = ()
    made: float = field(default_factory=time.time)

    def row(self) -> tuple[Any, ...]:
        """The record as a database row, in the order of COLUMNS."""
        return (
            self.signature,
            canonical(self.sizes),
            self.device,
            self.threads,
            self.template,
            self.source,
            canonical(self.config),
            self.status,
            self.reason,
            self.seconds,
            json.dumps(self.samples),
            self.made,
        )


def canonical(data: Mapping[str, Any]) -> str:
    """JSON text that is equal for equal mappings."""
    return json.dumps(dict(data), sort_keys=True)


class Records:
    """The store.  What `add` was given is on disk when it returns; several processes may use one file at a time.

    A file that is no database any more is put aside, and one that cannot be written is done without; both are logged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = _open(path)
        except (sqlite3.OperationalError, OSError) as problem:  # not writable, no space, locked for too long
            self._do_without(problem)
        except sqlite3.DatabaseError as problem:
            _log.warning(
                "the measurements in %s cannot be read (%s); they are put aside as %s", path, problem, _put_aside(path).name
            )
            self._connection = _open(path)

    def _do_without(self, problem: Exception) -> None:
        _log.warning("measurements cannot be kept in %s (%s); they are lost when this run ends", self.path, problem)
        self._connection = sqlite3.connect(":memory:")
        self._connection.executescript(SCHEMA)

    def add(self, *records: Record) -> None:
        """Stores measurements, all or none."""
        rows = [record.row() for record in records]
        try:
            with self._connection:
                self._connection.executemany(_INSERT, rows)
        except sqlite3.OperationalError as problem:
            self.close()
            self._do_without(problem)
            with self._connection:
                self._connection.executemany(_INSERT, rows)

    def find(self, signature: str, sizes: Mapping[str, int], device: str, threads: int) -> Iterator[Record]:
        """All records of one layer on one device, oldest first."""
        for row in self._connection.execute(_SELECT, (signature, canonical(sizes), device, threads)):
            values = dict(zip(COLUMNS, row, strict=True))
            values["sizes"], values["config"] = json.loads(values["sizes"]), json.loads(values["config"])
            values["samples"] = tuple(json.loads(values["samples"]))
            yield Record(**values)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS)
    try:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Sets the journal's mode, which SQLite refuses at once, without waiting, while another process does the same."""
    limit = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or time.monotonic() > limit:
                raise
            time.sleep(0.02)


def _put_aside(path: Path) -> Path:
    """Renames a database with what belongs to it; returns the new name."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


# --- what a record stands for ---------------------------------------------------------------------------------------------------

_ROOMS = ("sartor.templates.", "sartor.loops.")
_ALWAYS = ("sartor.loops.llvm", "sartor.loops.executor")  # what makes code of every template's loop programs, and runs it


@cache
def source_hash(module: str) -> str:
    """Hash of a template module's source and of every `sartor.templates` and `sartor.loops` module it imports, transitively.

    The renderer counts as imported by all of them, and llvmlite's version takes part.
    """
    seen: dict[str, bytes] = {}
    pending = [module, *_ALWAYS]
    while pending:
        name = pending.pop()
        if name in seen or (source := _source(name)) is None:
            continue
        seen[name] = source
        pending += [n for n in _imports(source) if n.startswith(_ROOMS)]
    digest = hashlib.sha256(importlib.metadata.version("llvmlite").encode())
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + seen[name])
    return digest.hexdigest()[:16]


def _imports(source: bytes) -> Iterator[str]:
    """Names that may be modules, of all a source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _source(name: str) -> bytes | None:
    """The source of a module; None where there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).read_bytes() if spec is not None and spec.origin is not None else None
