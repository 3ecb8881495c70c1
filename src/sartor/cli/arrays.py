"""Values of a model in `.npz` files: arrays of all element types, strings, sequences, maps and optionals."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]


def save_arrays(file: BinaryIO | Path, values: Mapping[str, Any]) -> None:
    """Writes an `.npz` archive; unlike `numpy.savez` it takes any names, `file` too, and what NumPy's files have no form for.

    Of a sequence each element, and of a map each value, has a member `name/place` or `name/key`; what is absent has none.  Element
    types that ml_dtypes adds are written as raw bytes, with the type's name as the member's comment.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in values.items():
            for part, array in parts(name, value):
                member = zipfile.ZipInfo(f"{part}.npy")
                theirs = array.dtype.isbuiltin == 2
                member.comment = array.dtype.name.encode() if theirs else b""
                buffer = io.BytesIO()
                np.save(buffer, array.view(f"V{array.dtype.itemsize}") if theirs else array, allow_pickle=False)
                archive.writestr(member, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, Array]:
    """What `save_arrays` wrote, in its order."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            array = np.load(io.BytesIO(archive.read(member)), allow_pickle=False)
            if member.comment:
                import ml_dtypes

                array = array.view(getattr(ml_dtypes, member.comment.decode()))
            found[member.filename.removesuffix(".npy")] = array.astype(object) if array.dtype.kind == "U" else array
    return found


def parts(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    """The arrays that a value holds, strings as NumPy's own, each with a name."""
    if value is None:
        return
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from parts(f"{name}/{key}", item)
        return
    array = np.asarray(value)
    yield name, array.astype(str) if array.dtype.kind in "OS" else array
