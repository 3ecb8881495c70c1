"""`sartor check`: everything in a model that is not native, not supported or suspicious, all at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sartor.cli.common import MODEL, is_program, print_json, print_table, say, size_options, verb
from sartor.errors import OptionError


@click.command("check")
@MODEL
@click.option("--native", is_flag=True, help="Exit with 4 when anything has no native code, too.")
@size_options
@verb
def command(
    model: Path,
    native: bool,
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    as_json: bool,
) -> int:
    """List what in the ONNX file MODEL is not supported, has no native code, or is suspicious.

    Suspicious are inputs and constants that nothing reads, weights that are not a number,
    huge constants, and inputs of unknown rank. The exit code is 4 when something is not
    supported, else 0.

    \b
    Example:
      sartor check model.onnx
      sartor check model.onnx --native --json
    """
    from sartor.cli.findings import LEVELS, examine
    from sartor.cli.models import settle_shapes

    if is_program(model):
        raise OptionError(f"{model} is a program, which is compiled already; give the model it was made of")
    found = examine(model, settle_shapes(model, dict(shapes), dict(dims)) if shapes or dims else None)
    counts = {level: sum(f.level == level for f in found) for level in LEVELS}
    if as_json:
        print_json({"model": str(model), **counts, "findings": [asdict(f) for f in found]})
    elif found:
        print_table(("level", "where", "what"), [(f.level, f.where, f.what) for f in found])
    else:
        say(f"{model.name} is native throughout, and nothing in it is suspicious")
    return 4 if counts["unsupported"] or (native and counts["host"]) else 0
