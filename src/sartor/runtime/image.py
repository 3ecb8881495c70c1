"""Brings code and weights into memory: mapped from a program file, or code just compiled from a buffer.

Memory is never writable and executable at once.  Mappings of files are private and read no more than what is touched; a
program file must be replaced by renaming a new one over it, not rewritten in place, while a process runs it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sartor.errors import ProgramError

Source: TypeAlias = str | os.PathLike[str] | int | bytes | bytearray | memoryview

_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_mprotect = _libc.mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Code:
    """Executable code in this process, unmapped when nobody refers to the object any more.

    Parameters
    ----------
    base
        Address of its first byte; a multiple of the page size.
    length
        Bytes mapped.
    symbols
        Offset of each function by name.
    """

    def __init__(self, base: int, length: int, symbols: Mapping[str, int]) -> None:
        self.base = base
        self.length = length
        self._symbols = dict(symbols)
        # Not at exit: threads may still be in the code while the interpreter shuts down.
        weakref.finalize(self, _munmap, base, length).atexit = False

    def address(self, symbol: str) -> int:
        """Address of a function.

        Raises
        ------
        ProgramError
            The code has no such function.
        """
        if symbol not in self._symbols:
            raise ProgramError(f"the program's code has no function {symbol}")
        return self.base + self._symbols[symbol]

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._symbols


def map_anonymous(length: int) -> int:
    """Address of `length` zero bytes of fresh memory that is never given back; a multiple of the page size."""
    return _map(length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def load_code(source: Source, symbols: Mapping[str, int], offset: int = 0, length: int | None = None) -> Code:
    """Makes code executable.

    Parameters
    ----------
    source
        A file, by path or open descriptor, or a buffer that holds the code.
    symbols
        Offsets of its functions within the code, as `sartor.loops.objects.Image` has them.
    offset, length
        Where the code stands in the source; by default all of it.  In a file at a multiple of the page size it is mapped,
        elsewhere it is copied.

    Raises
    ------
    ProgramError
        The source is shorter than that, a symbol lies outside, or the system forbids executable memory.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        content = memoryview(source).cast("B")
        length = len(content) - offset if length is None else length
        _check_within("the code", offset, length, len(content))
        code = _copy(content[offset:offset + length], symbols)
    elif isinstance(source, int):
        code = _load_file(source, symbols, offset, length)
    else:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            code = _load_file(descriptor, symbols, offset, length)
        finally:
            os.close(descriptor)
    for name, place in symbols.items():
        if not 0 <= place < code.length:
            raise ProgramError(f"the function {name} lies outside the program's code")
    return code


def map_weights(path: str | os.PathLike[str], offset: int, length: int) -> NDArray[np.uint8]:
    """A read-only view of part of a file, mapped into memory; it keeps the mapping alive.

    Parameters
    ----------
    path
        The program file.
    offset
        Of the first byte, a multiple of 64, so that its address is one as well.
    length
        Bytes, 0 or more.

    Raises
    ------
    ProgramError
        The file is shorter than that, or the offset no multiple of 64.
    """
    if offset % 64:
        raise ProgramError(f"the weights of {os.fspath(path)} start at {offset}, which is not a multiple of 64")
    with open(path, "rb") as file:
        _check_within(f"the weights of {os.fspath(path)}", offset, length, os.fstat(file.fileno()).st_size)
        if not length:
            return np.frombuffer(b"", np.uint8)
        lead = offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(file.fileno(), lead + length, access=mmap.ACCESS_READ, offset=offset - lead)
    return np.frombuffer(mapping, np.uint8)[lead:]


def _check_within(what: str, offset: int, length: int, size: int) -> None:
    if offset < 0 or length < 0 or offset + length > size:
        raise ProgramError(f"the file is cut short: {what} should reach byte {offset + length}, but it has {size}")


def _load_file(descriptor: int, symbols: Mapping[str, int], offset: int, length: int | None) -> Code:
    size = os.fstat(descriptor).st_size
    length = size - offset if length is None else length
    _check_within("the code", offset, length, size)
    if offset % mmap.PAGESIZE == 0 and length:
        try:
            base = _map(length, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, offset)
        except PermissionError:
            pass  # the file system is mounted without permission to execute: copy
        else:
            return Code(base, length, symbols)
    return _copy(os.pread(descriptor, length, offset), symbols)


def _copy(content: bytes | memoryview, symbols: Mapping[str, int]) -> Code:
    """Code in fresh memory: written first, then made executable and read-only."""
    if not content:
        raise ProgramError("the program's code is empty")
    base = map_anonymous(len(content))
    ctypes.memmove(base, bytes(content), len(content))
    if _mprotect(base, len(content), mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        _munmap(base, len(content))
        raise ProgramError(f"this system does not let a process make memory executable ({os.strerror(error)})")
    return Code(base, len(content), symbols)


def _map(length: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    address = _mmap(None, length, protection, flags, descriptor, offset)
    if address is None or address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {length} bytes into memory: {os.strerror(error)}")
    return int(address)
