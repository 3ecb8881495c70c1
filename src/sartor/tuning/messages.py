"""What the tuner and its measuring children say to each other: plain data, no weights and no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.devices.device import Device

LIBRARY = "sartor.templates:TEMPLATES"
"""Where the product's own templates are: `module:attribute`, a tuple of them."""

READY = "ready"
"""The first message a child sends."""


@dataclass(frozen=True)
class Drawn:
    """How to make up the contents of a large constant: from `low` to `high`, or normal with this mean and spread."""

    low: int = 0
    high: int = 0
    mean: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True)
class Case:
    """A layer alone: what all its candidates have in common.

    Attributes
    ----------
    key
        Equal for equal cases; a child keeps what it made for one.
    problem
        The layer as `sartor.graph.data` writes it, symbols included.
    constants
        Contents of its small constants, which may be compiled into kernels, and how to draw the others.
    sizes
        The values of its symbols to check and time it at, one mapping each.
    copies
        How many copies of the layer one run computes, each with weights and inputs of its own; see `sartor.tuning.bench`.
    seed
        Of the random contents; another one in each tuning run.
    """

    key: str
    problem: Mapping[str, Any]
    constants: Mapping[str, np.ndarray[Any, Any] | Drawn]
    sizes: tuple[Mapping[str, int], ...]
    copies: int
    seed: int


@dataclass(frozen=True)
class Job:
    """Build a candidate for a layer and compare it with the reference; the answer is a `Verdict`, `built` or a failure.

    Attributes
    ----------
    batch, number
        Names the candidate.  A child keeps those of one batch.
    library
        The templates to choose from, as `module:attribute`.
    """

    batch: int
    number: int
    case: Case
    device: Device
    threads: int
    library: str
    template: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Timing:
    """Time a candidate that the child has built, for one round; the answer is a `Verdict`, `ok` with samples or a failure."""

    number: int


@dataclass(frozen=True)
class Confirmation:
    """Compare a candidate that would win with the reference once more, on input made for the purpose; answered by a `Verdict`."""

    number: int


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate.

    Attributes
    ----------
    status
        `built` (right so far, not timed), `ok`, `wrong`, `crash`, `timeout` or `error`; `broken` where the fault is not the
        candidate's, which ends the tuning run.
    reason
        Why not ok, in a sentence.
    samples
        Seconds for one computation of the layer: several samples for each of the sizes.
    """

    status: str
    reason: str = ""
    samples: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class ProfileJob:
    """Time the layers of a whole program (a path) at each of these input shapes.

    The answer lists seconds by layer, for each of the shapes, or is a `Verdict`.
    """

    program: str
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class CompareJob:
    """Time whole programs (paths) in turns at each of these input shapes, for about `seconds` in all.

    The answer is a `Comparison`, or a `Verdict`.
    """

    programs: tuple[str, ...]
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Least seconds of each program, summed over the shapes, and how far float outputs are from those of the first program.

    That is the largest difference, relative to the largest output.
    """

    seconds: tuple[float, ...]
    difference: float
