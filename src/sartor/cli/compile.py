"""`sartor compile`: a model into a program file."""

from __future__ import annotations

import time
from pathlib import Path

import click

from sartor.cli.common import (
    MODEL,
    bytes_text,
    check_writable,
    compile_options,
    compile_progress,
    print_json,
    say,
    size_options,
    verb,
)
from sartor.errors import OptionError


@click.command("compile")
@MODEL
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Program file to write, by default the model's name with .sartor."
)
@compile_options
@size_options
@verb
def command(
    model: Path,
    output: Path | None,
    threads: int | None,
    isa: str | None,
    precision: str,
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    as_json: bool,
) -> int:
    """Compile the ONNX file MODEL into a program file.

    Symbolic dimensions stay symbols: one program serves all sizes.  --shape and --dim fix
    them, which may save a little time.

    \b
    Example:
      sartor compile model.onnx -o model.sartor --threads 2
    """
    import sartor
    from sartor.cli.models import settle_shapes

    output = default_output(model, output)
    wanted = settle_shapes(model, dict(shapes), dict(dims)) if shapes or dims else None
    start = time.perf_counter()
    with compile_progress(model.name) as progress:
        program = sartor.compile(str(model), threads=threads, isa=isa, precision=precision, shapes=wanted, progress=progress)
    program.save(output)
    seconds = time.perf_counter() - start
    report_program(program, output, seconds, as_json)
    return 0


def default_output(model: Path, output: Path | None) -> Path:
    """Where the program goes: `output`, or the model's name with .sartor in the current folder; checked to be writable."""
    output = output or Path(model.name).with_suffix(".sartor")
    check_writable(output)
    if output.exists() and output.samefile(model):
        raise OptionError(f"{output} is the model itself; name another file by -o")
    return output


def report_program(program: object, output: Path, seconds: float, as_json: bool) -> None:
    """Says what was made: on stdout the facts, on stderr what deserves attention."""
    from sartor.cli.models import facts

    found = facts(program)
    data = {"output": str(output), "bytes": output.stat().st_size, "seconds": round(seconds, 3), **found}
    if as_json:
        print_json(data)
    else:
        click.echo(
            f"{output}: {bytes_text(output.stat().st_size)}, {found['layers']} layers, {found['kernels']} kernels, "
            f"{found['isa']}, {found['precision']}, {found['threads']} threads, in {seconds:.1f} s"
        )
    for fallback in found["fallbacks"]:
        say(f"note: not native code: {fallback}")
