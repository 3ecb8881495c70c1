"""Where Sartor keeps what it learned of this machine: one folder, named by `SARTOR_CACHE`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The cache folder: `SARTOR_CACHE`, else `sartor` in the user's cache folder.  It is made by whoever writes into it."""
    if named := os.environ.get("SARTOR_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sartor"
