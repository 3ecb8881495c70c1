"""Every measurement ever made on this machine, in SQLite, durable as it is made.

A record says how long one layer took with one template and configuration on one device at given sizes, or why it was
refused.  The key holds the hash of the template's source, so that a changed template never meets stale records.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY,
    signature TEXT NOT NULL, sizes TEXT NOT NULL, device TEXT NOT NULL, threads INTEGER NOT NULL,
    template TEXT NOT NULL, source TEXT NOT NULL, config TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, seconds REAL, samples TEXT NOT NULL, made REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS by_problem ON records (signature, sizes, device, threads);
"""
COLUMNS = ("signature", "sizes", "device", "threads", "template", "source", "config", "status", "reason", "seconds", "samples", "made")


@dataclass(frozen=True)
class Record:
    """One measurement.  `status` is `ok`, `wrong`, `crash`, `timeout` or `error`; `seconds` is the median of `samples` where ok."""

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
        return (self.signature, canonical(self.sizes), self.device, self.threads, self.template, self.source, canonical(self.config),
                self.status, self.reason, self.seconds, json.dumps(self.samples), self.made)


def canonical(data: Mapping[str, Any]) -> str:
    """JSON text that is equal for equal mappings."""
    return json.dumps(dict(data), sort_keys=True)


class Records:
    """The store.  Each `add` is committed before it returns; several processes may use one file at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._connection = sqlite3.connect(path, timeout=30)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.executescript(SCHEMA)

    def add(self, record: Record) -> None:
        """Stores one measurement durably."""
        marks = ", ".join("?" * len(COLUMNS))
        with self._connection:
            self._connection.execute(f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({marks})", record.row())

    def find(self, signature: str, sizes: Mapping[str, int], device: str, threads: int) -> Iterator[Record]:
        """All records of one layer on one device, oldest first."""
        query = (f"SELECT {', '.join(COLUMNS)} FROM records WHERE signature = ? AND sizes = ? AND device = ? AND threads = ? ORDER BY id")
        for row in self._connection.execute(query, (signature, canonical(sizes), device, threads)):
            values = dict(zip(COLUMNS, row, strict=True))
            values["sizes"], values["config"] = json.loads(values["sizes"]), json.loads(values["config"])
            values["samples"] = tuple(json.loads(values["samples"]))
            yield Record(**values)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


@cache
def source_hash(module: str) -> str:
    """Hash of a template module's source and of every `sartor.templates` and `sartor.loops` module it imports, transitively."""
    seen: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        spec = importlib.util.find_spec(name)
        if name in seen or spec is None or spec.origin is None:
            continue
        seen[name] = Path(spec.origin).read_bytes()
        for node in ast.walk(ast.parse(seen[name])):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            pending += [n for n in names if n.startswith(("sartor.templates.", "sartor.loops.")) and _is_module(n)]
    digest = hashlib.sha256()
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + seen[name])
    return digest.hexdigest()[:16]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
