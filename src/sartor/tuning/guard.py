"""Arrays that end at an unreadable page, so that a kernel that reads or writes past them ends its process at once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

PATTERN = 0xFF
"""Fills fresh arrays and what lies before them: NaN as a float, so that elements never written do not pass for results."""

_MARGIN = 256  # bytes before an array that are looked at; nearer ones are where an index off by a little lands


class Guarded:
    """An array of any shape and type in memory of its own that ends where the array ends.

    Attributes
    ----------
    array
        Contents are `PATTERN` at first.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        pages = -(-(size + _MARGIN) // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        _forbid(memory, pages * mmap.PAGESIZE)
        self._start = pages * mmap.PAGESIZE - size
        self._bytes = np.frombuffer(memory, np.uint8, pages * mmap.PAGESIZE)
        self.array: NDArray[Any] = np.ndarray(shape, dtype, memory, self._start)
        self.reset()

    def reset(self) -> None:
        """Fills the array and what lies before it with the pattern."""
        self._bytes[self._start - _MARGIN :] = PATTERN

    @property
    def intact(self) -> bool:
        """Whether what lies before the array holds the pattern still."""
        return bool((self._bytes[self._start - _MARGIN : self._start] == PATTERN).all())


def guarded_copy(array: NDArray[Any]) -> NDArray[Any]:
    """The same contents, ending at an unreadable page."""
    copy = Guarded(array.shape, array.dtype).array
    copy[...] = array
    return copy


def _forbid(memory: mmap.mmap, offset: int) -> None:
    """Takes all access to the last page from the process; where the system refuses, the page stays a margin."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), 0)
