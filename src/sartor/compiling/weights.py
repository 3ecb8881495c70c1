"""All constants of a program as one block of bytes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; every constant starts at a multiple of it."""

_SAMPLE = 1 << 16  # bytes looked at before two constants of one length are compared whole


class WeightsBuilder:
    """Collects constants, each at a multiple of `ALIGNMENT`; equal ones share their place."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, NDArray[Any]]] = []
        self._known: dict[tuple[int, int], list[tuple[int, NDArray[Any]]]] = {}
        self.bytes = 0

    def add(self, array: NDArray[Any]) -> int:
        """The offset at which the contents of `array` will lie."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        alike = self._known.setdefault((content.nbytes, zlib.crc32(content[:_SAMPLE].data)), [])
        for place, other in alike:
            if np.array_equal(content, other):
                return place
        place = self.bytes
        alike.append((place, content))
        self._arrays.append((place, content))
        self.bytes += -(-max(content.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return place

    def finish(self) -> NDArray[np.uint8]:
        """The block, aligned; forgets the arrays it was made of."""
        block = aligned_bytes(self.bytes)
        self._known.clear()
        while self._arrays:
            offset, content = self._arrays.pop()
            block[offset : offset + content.nbytes] = content
        return block


def aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Zeros that start at a multiple of `ALIGNMENT`."""
    memory = np.zeros(count + ALIGNMENT, np.uint8)
    lead = -memory.ctypes.data % ALIGNMENT
    return memory[lead : lead + count]
