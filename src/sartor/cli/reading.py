"""Reads text with the unmodified rapidocr-onnxruntime package, on ONNX Runtime or on Sartor through its like face.

The package takes `InferenceSession` from ONNX Runtime in one of its modules; `reader` puts another class into that one
place while the package makes its three sessions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

NETWORKS = ("det", "cls", "rec")


@dataclass(frozen=True)
class Reading:
    """What was read, from top to bottom, and the seconds that all runs of each network took in each pass over the picture.

    `fallbacks` lists the steps of Sartor's programs that are not native code, by network.
    """

    lines: tuple[str, ...]
    seconds: dict[str, list[float]]
    fallbacks: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Reader:
    """A `RapidOCR` whose networks run on one engine, with a clock on each."""

    def __init__(self, make: Callable[[], Any], seconds: dict[str, float], fallbacks: dict[str, tuple[str, ...]]) -> None:
        self._engine = make()
        self._seconds = seconds
        self._fallbacks = fallbacks

    def read(self, picture: Any, passes: int) -> Reading:
        """Reads the picture `passes` times after a first pass that is not timed."""
        self._engine(picture)
        seconds: dict[str, list[float]] = {name: [] for name in NETWORKS}
        result = None
        for _ in range(passes):
            self._seconds.clear()
            result, _ = self._engine(picture)
            for name in NETWORKS:
                seconds[name].append(self._seconds.get(name, 0.0))
        return Reading(tuple(text for _, text, _ in result or ()), seconds, self._fallbacks)


def reader(session_class: Any) -> Reader:
    """A reader whose networks are run by `session_class`, a class like ONNX Runtime's `InferenceSession`."""
    from rapidocr_onnxruntime import RapidOCR
    from rapidocr_onnxruntime.utils import infer_engine

    seconds: dict[str, float] = defaultdict(float)
    fallbacks: dict[str, tuple[str, ...]] = {}

    class TimedSession(session_class):  # type: ignore[misc]  # its base is known at run time only
        """A session that adds the time of its runs to its network's."""

        def __init__(self, path: str, **kwargs: Any) -> None:
            super().__init__(path, **kwargs)
            self._network = network_of(path)
            program = getattr(self, "program", None)  # of Sartor's sessions only
            fallbacks[self._network] = program.fallbacks if program else ()

        def run(self, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            outputs = super().run(*args, **kwargs)
            seconds[self._network] += time.perf_counter() - start
            return outputs

    def make() -> Any:
        with mock.patch.object(infer_engine, "InferenceSession", TimedSession):
            return RapidOCR()

    return Reader(make, seconds, fallbacks)


def network_of(path: str) -> str:
    """Which of the three networks a model file of the package is: `det` finds text, `cls` finds its direction, `rec` reads it."""
    name = Path(path).name
    return next(n for n in NETWORKS if f"_{n}_" in name)
