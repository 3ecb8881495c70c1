"""The type of a value: all that a session needs to know of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.sizes import Dim, product
from sartor.types import BYTES


@dataclass(frozen=True)
class Tensor:
    """Element type and shape of a value; in place of an element type, the type in ONNX's words of a value that is no tensor of
    known rank (`seq(tensor(float))`)."""

    dtype: str
    shape: tuple[Dim, ...]

    @property
    def opaque(self) -> bool:
        """Whether it is no tensor of known rank, so that only Python can hold it."""
        return self.dtype.endswith(")")

    @property
    def elements(self) -> Dim:
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        return self.elements * BYTES[self.dtype]

    @property
    def rows(self) -> Dim:
        """Product of all dims but the last."""
        return product(self.shape[:-1])

    @property
    def columns(self) -> Dim:
        """The last dim; 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    def __str__(self) -> str:
        return self.dtype if self.opaque else f"{self.dtype}[{', '.join(map(str, self.shape))}]"
