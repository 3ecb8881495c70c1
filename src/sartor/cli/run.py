"""`sartor run`: one run of a model or program, outputs into an `.npz` file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sartor.cli.common import (
    MODEL,
    check_writable,
    compile_options,
    given_shapes,
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
    from sartor.cli.arrays import save_arrays

    if output:
        check_writable(output)
    program = open_program(model, threads, isa, precision, given_shapes(inputs, shapes))
    feeds = make_feeds(program.inputs, inputs, shapes, dims, seed)
    with sartor.Session(program, threads=threads) as session:
        start = time.perf_counter()
        outputs = session.run(feeds)
        seconds = time.perf_counter() - start
    if output:
        with output.open("wb") as file:
            save_arrays(file, outputs)
    rows = [
        {"output": name, **_kind(value, program.outputs[name]), **_figures(value)}
        for name, value in outputs.items()
    ]
    if as_json:
        print_json({"seconds": seconds, "file": str(output) if output else None, "outputs": rows})
    else:
        columns = ("output", "dtype", "shape", "min", "mean", "max")
        print_table(
            columns,
            [
                [row[c] if c != "shape" or row[c] is None else "x".join(map(str, row[c])) or "()" for c in columns] for row in rows
            ],
            right=columns[3:],
        )
    return 0


def _kind(value: object, tensor: Any) -> dict[str, Any]:
    """Element type and shape of an array; of a sequence, map or optional its type, and no shape."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    return {"dtype": str(tensor), "shape": None}


def _figures(value: object) -> dict[str, float | None]:
    """Least, mean and greatest element, None where there is none."""
    import numpy as np

    from sartor.types import from_numpy

    if not isinstance(value, np.ndarray) or value.dtype.kind == "c" or not value.size or from_numpy(value.dtype) == "string":
        return {"min": None, "mean": None, "max": None}
    values = value.astype(np.float64)
    with np.errstate(all="ignore"):
        return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
