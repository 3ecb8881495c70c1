"""Messages between the tuner and its measuring child: pickled objects with a length in front, over a pair of pipes.

Pickle is used only between these two processes of one user, never in files.
"""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

HEADER = struct.Struct("<Q")


def send(stream: IO[bytes], message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Reads one message; raises `EOFError` where the other side is gone."""
    header = _exactly(stream, HEADER.size)
    return pickle.loads(_exactly(stream, HEADER.unpack(header)[0]))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    parts, left = [], count
    while left:
        part = stream.read(left)
        if not part:
            raise EOFError("the other process has ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
