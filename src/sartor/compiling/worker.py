"""Child processes that compile LLVM IR, and their side of the pipe: `python -m sartor.compiling.worker` with the target as JSON.

Requests are LLVM IR texts, answers objects or an error's sentence, each with a mark (one byte) and its length (eight) in front.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import IO

from sartor.errors import LoopError
from sartor.loops.target import Target

_FRAME = struct.Struct("<cQ")
_TEXT, _OBJECT, _ERROR = b"t", b"o", b"e"


class Workers:
    """Compiles in child processes: each thread that asks has one of its own, started when first needed."""

    def __init__(self, target: Target) -> None:
        self._command = [sys.executable, "-m", "sartor.compiling.worker", json.dumps(asdict(target))]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._mine = threading.local()
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False

    def compile(self, name: str, ir: str) -> bytes:
        """The object of `ir`.

        Raises
        ------
        LoopError
            LLVM refuses the text of `name`, or the child ended over it.
        """
        child = self._child()
        assert child.stdin and child.stdout
        try:
            _send(child.stdin, _TEXT, ir.encode())
            mark, data = _receive(child.stdout)
        except (OSError, EOFError, ValueError):
            self._mine.child = None
            raise LoopError(f"the process that compiled {name} ended with exit code {child.wait()}") from None
        if mark == _ERROR:
            raise LoopError(f"{name} does not compile: {data.decode()}")
        return data

    def _child(self) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] | None = getattr(self._mine, "child", None)
        if child is None:
            with self._lock:
                if self._closed:
                    raise LoopError("compiling was given up")
                child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment)
                self._children.append(child)
            self._mine.child = child
        return child

    def close(self) -> None:
        """Ends all children."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream:
                    with contextlib.suppress(OSError):  # what a killed child was still to read
                        stream.close()


def _send(stream: IO[bytes], mark: bytes, data: bytes) -> None:
    stream.write(_FRAME.pack(mark, len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    mark, length = _FRAME.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return mark, data


def main() -> None:
    """Answers requests on standard input until it closes."""
    from sartor.loops.llvm import compile_ir

    target = Target(**json.loads(sys.argv[1]))
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints goes to standard error
    while True:
        try:
            _, text = _receive(source)
        except EOFError:
            return
        try:
            _send(sink, _OBJECT, compile_ir(text.decode(), target))
        except (RuntimeError, LoopError) as problem:  # llvmlite raises RuntimeError for what LLVM refuses
            _send(sink, _ERROR, str(problem).encode())


if __name__ == "__main__":
    main()
