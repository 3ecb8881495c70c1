"""Sartor compiles trained neural networks to native code for the machine they run on.

program = sartor.compile("model.onnx", threads=2)
program.save("model.sartor")
session = sartor.load("model.sartor")
outputs = session.run({"x": x})
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sartor.errors import (
    FeedError,
    GraphError,
    LoopError,
    ModelError,
    OptionError,
    ProgramError,
    SartorError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from sartor.compiler import compile  # noqa: A004  the name users know
    from sartor.runtime.program import Program
    from sartor.runtime.session import Session
    from sartor.tuning.tuner import tune

__version__ = "0.1.0"

__all__ = [
    "FeedError",
    "GraphError",
    "LoopError",
    "ModelError",
    "OptionError",
    "Program",
    "ProgramError",
    "SartorError",
    "Session",
    "UnsupportedError",
    "__version__",
    "compile",
    "load",
    "tune",
]

# What is imported when first used, so that `import sartor` is quick and running a program brings in no compiler.
_LAZY = {
    "compile": "sartor.compiler",
    "tune": "sartor.tuning.tuner",
    "Program": "sartor.runtime.program",
    "Session": "sartor.runtime.session",
}


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> Session:
    """A session of the program file at `path`; see `Program.load` and `Session`."""
    from sartor.runtime.session import Session

    return Session(path, threads=threads)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module sartor has no attribute {name}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
