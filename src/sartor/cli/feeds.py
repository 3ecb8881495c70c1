"""Inputs for a run: files, or seeded random arrays of settled sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sartor.errors import OptionError
from sartor.graph.layer import Tensor
from sartor.sizes import Size, evaluate, symbols
from sartor.types import BYTES, from_numpy, to_numpy


def load_file(name: str, path: str) -> np.ndarray[Any, Any]:
    """The array in a `.npy` file, or the one called `name` (or the only one) in an `.npz`.

    Raises
    ------
    OptionError
        When there is no such file or array in it.
    """
    if not Path(path).is_file():
        raise OptionError(f"input {name}: there is no file {path}")
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise OptionError(f"input {name}: {path} is not a .npy or .npz file ({problem})") from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        names = list(loaded.files)
        key = name if name in names else names[0] if len(names) == 1 else None
        if key is None:
            raise OptionError(f"input {name}: {path} holds {', '.join(names) or 'nothing'}, but no {name}")
        return np.asarray(loaded[key])


def typed(array: np.ndarray[Any, Any], tensor: Tensor) -> np.ndarray[Any, Any]:
    """An array as the input's type, where a file could not say it: NumPy writes types it lacks (bfloat16, float8) as raw bytes."""
    raw = array.dtype.kind == "V" and array.dtype.names is None and not tensor.opaque and tensor.dtype in BYTES
    return array.view(to_numpy(tensor.dtype)) if raw and array.dtype.itemsize == BYTES[tensor.dtype] else array


def settle_sizes(
    inputs: Mapping[str, Tensor], shapes: Mapping[str, tuple[int | str, ...]], dims: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Values for all symbols of the inputs, and the names of those nothing was said of, which become 1.

    Raises
    ------
    OptionError
        When shapes do not fit the inputs or each other.
    """
    known = {s for tensor in inputs.values() for dim in tensor.shape for s in symbols(dim)}
    for name in dims:
        if name not in known:
            raise OptionError(f"the model has no symbolic dimension {name}; it has {', '.join(sorted(known)) or 'none'}")
    sizes = dict(dims)
    for name, shape in shapes.items():
        if not inputs[name].opaque:
            _match(name, inputs[name], shape, sizes)
    assumed = sorted(known - set(sizes))
    return sizes | dict.fromkeys(assumed, 1), assumed


def _match(name: str, tensor: Tensor, shape: tuple[int | str, ...], sizes: dict[str, int]) -> None:
    """Enters into `sizes` what `shape` says of the symbols of the input."""
    if len(shape) != len(tensor.shape):
        raise OptionError(
            f"input {name} has {len(tensor.shape)} dimensions ({tensor}), but shape {_text(shape)} has {len(shape)}"
        )
    for dim, size in zip(tensor.shape, shape, strict=True):
        names = symbols(dim)
        if isinstance(size, str):  # a name for a size that something else says
            continue
        if isinstance(dim, Size) and str(dim) in names:
            if sizes.setdefault(str(dim), size) != size:
                raise OptionError(f"input {name}: {dim} is {size} in shape {_text(shape)}, but {sizes[str(dim)]} elsewhere")
        elif names <= set(sizes) and evaluate(dim, sizes) != size:
            raise OptionError(f"input {name} is {tensor}, which shape {_text(shape)} does not fit")


def _text(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "()"


def random_array(tensor: Tensor, sizes: Mapping[str, int], seed: int) -> np.ndarray[Any, Any]:
    """A seeded random array: normal floats, small whole numbers from 0 (safe as indices), fair booleans."""
    if tensor.opaque:
        how = "give its shape by --shape, or it by --input" if tensor.dtype.startswith("tensor(") else "run the model from Python"
        raise OptionError(f"a random value cannot be made for an input that is {tensor}; {how}")
    shape = tuple(evaluate(dim, sizes) for dim in tensor.shape)
    generator = np.random.default_rng(seed)
    if tensor.dtype == "string":
        raise OptionError("random text cannot be made for an input of strings; give it by --input")
    dtype = to_numpy(tensor.dtype)
    if tensor.dtype == "bool":
        return generator.integers(0, 2, shape).astype(dtype)
    if tensor.dtype[0] in "iu":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def random_unranked(name: str, tensor: Tensor, shape: tuple[int | str, ...], seed: int) -> np.ndarray[Any, Any]:
    """A seeded random array of a given shape, for an input of unknown rank, whose type is told in ONNX's words: tensor(float)."""
    import onnx

    known = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}
    if tensor.dtype not in known or any(isinstance(d, str) for d in shape):
        raise OptionError(f"input {name} is {tensor}, for which no random value of the shape {_text(shape)} can be made")
    dtype = from_numpy(onnx.helper.tensor_dtype_to_np_dtype(known[tensor.dtype]))
    return random_array(Tensor(dtype, tuple(int(d) for d in shape)), {}, seed)
