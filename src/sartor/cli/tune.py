"""`sartor tune`: a model into a program file, each layer computed the way that was measured to be fastest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sartor.cli.common import MODEL, compile_options, console, size_options, verb
from sartor.cli.compile import default_output, report_program


@click.command("tune")
@MODEL
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Program file to write, by default the model's name with .sartor."
)
@click.option("--budget", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to spend.")
@compile_options
@size_options
@verb
def command(
    model: Path,
    output: Path | None,
    budget: float,
    threads: int | None,
    isa: str | None,
    precision: str,
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    as_json: bool,
) -> int:
    """Compile the ONNX file MODEL, measuring candidates for each layer in a child process.

    Measurements are stored as they are made, so that an interrupted run goes on where it
    stopped.  --shape and --dim say for which sizes of symbolic dimensions to tune; the program
    serves all sizes.

    \b
    Example:
      sartor tune model.onnx --budget 120 --dim batch=1 --threads 2
    """
    import sartor
    from sartor.cli.models import concrete_shapes

    output = default_output(model, output)
    wanted = [concrete_shapes(model, dict(shapes), dict(dims))] if shapes or dims else None
    start = time.perf_counter()
    with progress_bar(budget) as progress:
        program = sartor.tune(
            str(model), budget=budget, shapes=wanted, threads=threads, isa=isa, precision=precision, progress=progress
        )
    program.save(output)
    report_program(program, output, time.perf_counter() - start, as_json)
    return 0


@contextmanager
def progress_bar(budget: float) -> Iterator[Callable[[Any], None]]:
    """A bar of the time spent, with the layer at work and what was gained on it; drawn only on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[trials]} trials  {task.description}"),
        console=console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("reading the model", total=budget or 1.0, trials=0)

        def show(step: Any) -> None:
            gain = f"{step.default_seconds / step.best_seconds:.2f}x" if step.best_seconds and step.default_seconds else ""
            bar.update(task, completed=min(step.elapsed, budget), description=f"{step.layer} {gain}", trials=step.trials)

        yield show
