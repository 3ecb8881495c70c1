"""What a template is, and what it hands over: kernels with formulas for their arguments.

A template turns a `Problem` (a layer with its types) into an `Implementation`: an ordered list of `KernelCall`s.  Everything that
binding needs (extent, grain, scratch and arguments) travels with the call as formulas over the model's symbols, so that
new sizes need neither the template nor a compiler.

Storage contract: the last dimension of every value is contiguous; its rows (all other dimensions flattened, row-major) lie
`Pitch(value)` elements apart.  Contiguous values have a pitch equal to the last dimension.  A value may be a column slice
of a wider one (concatenation and splitting without copies); templates reach rows by the pitch argument, unless `contiguous`
says for an operand that they need it dense.  Nothing is promised about alignment except one element's, but constants are aligned
to 64 bytes.  Outputs never overlap inputs, unless the template allows `in_place`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product as cartesian
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Kernel
from sartor.sizes import Dim

Config: TypeAlias = Mapping[str, Any]  # knob name -> int, str or bool


# --- arguments: what goes into one 8-byte slot of `args` -------------------------------------------------------------------


@dataclass(frozen=True)
class Pointer:
    """Address of the value's element `offset` (elements; the value is named as in the layer)."""

    value: str
    offset: Dim = 0


@dataclass(frozen=True)
class Pitch:
    """Elements between two rows of the value."""

    value: str


@dataclass(frozen=True)
class SizeOf:
    """A size."""

    dim: Dim


@dataclass(frozen=True)
class RowTable:
    """Address of a table of row addresses of a spatial value [N, H, W.., C] (rows of W.. x C elements).

    The table has images x (before + height + after) entries; entry i * (before + height + after) + before + r is the address of
    row r of image i, and the `before` and `after` entries of each image are null: they stand for padding.  Row r of image i
    is (i * height + r) * row_pixels pixels, of `Pitch(value)` elements each, after the start of the value.  Negative `before` or
    `after` crop.
    """

    value: str
    images: Dim
    height: Dim
    row_pixels: Dim
    before: Dim
    after: Dim


@dataclass(frozen=True)
class Constant:
    """Address of the packed constant number `index` (what `pack` returned)."""

    index: int


@dataclass(frozen=True)
class Workspace:
    """Address of the implementation's workspace number `index` (shared by all threads, alive from its first to its last call)."""

    index: int


@dataclass(frozen=True)
class Zeros:
    """Address of at least `bytes` zero bytes, 64-byte aligned, never written."""

    bytes: Dim


Argument: TypeAlias = Pointer | Pitch | SizeOf | RowTable | Constant | Workspace | Zeros


@dataclass(frozen=True)
class KernelCall:
    """A kernel with its arguments (one for each kernel parameter, in order) and formulas.

    extent          size of the parallel extent; begin..end slices of it are computed independently, in any order
    grain           slices begin and end at multiples of it (and at the extent)
    scratch         bytes of the slab each thread needs
    chunk           0: the extent is divided evenly over the threads beforehand; else threads claim pieces of this many (a multiple
                    of grain)
    multiply_adds   work of the whole extent, for planning and `inspect`
    bytes           memory moved by the whole extent at least once: inputs, weights and outputs; 0 when not stated
    """

    kernel: Kernel
    arguments: tuple[Argument, ...]
    extent: Dim
    grain: Dim = 1
    scratch: Dim = 0
    chunk: Dim = 0
    multiply_adds: Dim = 0
    bytes: Dim = 0


@dataclass(frozen=True)
class Implementation:
    """What a template builds: calls in order (each sees all results of the one before) and sizes in bytes of shared workspaces."""

    calls: tuple[KernelCall, ...]
    workspaces: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class Space:
    """Knobs with finite choices; `allowed` holds a whole configuration to the template's constraints."""

    knobs: Mapping[str, Sequence[Any]]
    constraint: Any = field(default=None, repr=False)  # Callable[[Config], bool] | None

    def allowed(self, config: Config) -> bool:
        return self.constraint is None or bool(self.constraint(config))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All allowed configurations."""
        for choice in cartesian(*self.knobs.values()):
            config = dict(zip(self.knobs, choice, strict=True))
            if self.allowed(config):
                yield config


@runtime_checkable
class Template(Protocol):
    """One algorithm for one kind of layer."""

    @property
    def name(self) -> str:
        """What records, programs and `inspect` call it."""

    def applies(self, problem: Problem, device: Device) -> bool:
        """Whether this algorithm can compute the layer (all its types, attributes and expression) exactly as defined."""

    def space(self, problem: Problem, device: Device) -> Space:
        """The knobs to choose from."""

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        """The configuration when nothing was measured; None where the template is for measured layers only."""

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        """Constants in the layout the kernels want; addressed by `Constant(index)`."""

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        """The kernels and their formulas."""

    def contiguous(self, problem: Problem, value: str) -> bool:
        """Whether this input or output must be dense (pitch equal to the last dim)."""

    def in_place(self, problem: Problem, value: str) -> bool:
        """Whether the output may lie exactly on this input (same bytes, same pitch): each element is read before it is written."""


class Knobless:
    """What templates without knobs share: nothing to choose or to pack, dense operands, an output of its own."""

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return True

    def in_place(self, problem: Problem, value: str) -> bool:
        return False
