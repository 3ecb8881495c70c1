"""All constants of a program as one block of bytes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; every constant starts at a multiple of it."""


class WeightsBuilder:
    """Collects constants, each at a multiple of `ALIGNMENT`; equal ones share their place."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, NDArray[Any]]] = []
        self._places: dict[tuple[int, bytes], int] = {}
        self.bytes = 0

    def add(self, array: NDArray[Any]) -> int:
        """The offset at which the contents of `array` will lie."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = (content.nbytes, hashlib.blake2b(content.data, digest_size=16).digest())
        if key not in self._places:
            self._places[key] = self.bytes
            self._arrays.append((self.bytes, content))
            self.bytes += -(-max(content.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return self._places[key]

    def finish(self) -> NDArray[np.uint8]:
        """The block, aligned; forgets the arrays it was made of."""
        block = aligned_bytes(self.bytes)
        block[:] = 0
        while self._arrays:
            offset, content = self._arrays.pop()
            block[offset : offset + content.nbytes] = content
        return block


def aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Uninitialised memory that starts at a multiple of `ALIGNMENT`."""
    memory = np.empty(count + ALIGNMENT, np.uint8)
    lead = -memory.ctypes.data % ALIGNMENT
    return memory[lead : lead + count]
