"""`sartor run`: one run of a model or program, outputs into an `.npz` file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click

from sartor.cli.common import (
    MODEL,
    check_writable,
    compile_options,
    input_options,
    make_feeds,
    open_program,
    print_json,
    print_table,
    verb,
)


@click.command("run")
@MODEL
@input_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write the outputs to (.npz).")
@compile_options
@verb
def command(
    model: Path,
    inputs: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    seed: int,
    output: Path | None,
    threads: int | None,
    isa: str | None,
    precision: str,
    as_json: bool,
) -> int:
    """Run MODEL (an ONNX file or a program file) once and show its outputs.

    Inputs that are not given are random numbers of a fixed seed; symbolic dimensions that
    nothing is said of are 1.

    \b
    Example:
      sartor run model.sartor --input image=picture.npy -o outputs.npz
      sartor run model.onnx --dim batch=2
    """
    import sartor

    if output:
        check_writable(output)
    program = open_program(model, threads, isa, precision)
    feeds = make_feeds(program.inputs, inputs, shapes, dims, seed)
    with sartor.Session(program, threads=threads) as session:
        start = time.perf_counter()
        outputs = session.run(feeds)
        seconds = time.perf_counter() - start
    if output:
        with output.open("wb") as file:
            save_arrays(file, outputs)
    rows = [
        {"output": name, "dtype": str(array.dtype), "shape": list(array.shape), **_figures(array)}
        for name, array in outputs.items()
    ]
    if as_json:
        print_json({"seconds": seconds, "file": str(output) if output else None, "outputs": rows})
    else:
        columns = ("output", "dtype", "shape", "min", "mean", "max")
        print_table(
            columns,
            [
                [row[c] if c != "shape" else "x".join(map(str, array.shape)) or "()" for c in columns]
                for row, array in zip(rows, outputs.values(), strict=True)
            ],
            right=columns[3:],
        )
    return 0


def save_arrays(file: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """Writes an `.npz` archive; unlike `numpy.savez` it takes any names, `file` too."""
    import io
    import zipfile

    import numpy as np

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            plain = np.asarray(array)
            if plain.dtype.isbuiltin == 2:  # one that ml_dtypes adds, for which NumPy's files have no name: raw bytes
                plain = plain.view(f"V{plain.dtype.itemsize}")
            np.save(buffer, plain, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())


def _figures(array: object) -> dict[str, float | None]:
    """Least, mean and greatest element, None where there is none."""
    import numpy as np

    from sartor.types import from_numpy

    values = np.asarray(array)
    if not values.size or from_numpy(values.dtype) == "string":
        return {"min": None, "mean": None, "max": None}
    values = values.astype(np.float64)
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
