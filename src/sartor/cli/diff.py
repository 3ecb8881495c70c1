"""`sartor diff`: a model computed by Sartor and by a reference, layer by layer, to find where they part."""

from __future__ import annotations

from pathlib import Path

import click

from sartor.cli.common import (
    MODEL,
    compile_options,
    given_shapes,
    input_options,
    is_program,
    make_feeds,
    print_json,
    print_table,
    say,
    status,
    verb,
)
from sartor.errors import OptionError


@click.command("diff")
@MODEL
@click.option(
    "--against",
    type=click.Choice(("reference", "onnxruntime")),
    default="reference",
    show_default=True,
    help="Compare with the meaning of each layer in float64, or with ONNX Runtime.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=1e-3,
    show_default=True,
    help="Difference allowed, relative to the largest element.",
)
@input_options
@compile_options
@verb
def command(
    model: Path,
    against: str,
    tolerance: float,
    inputs: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    seed: int,
    threads: int | None,
    isa: str | None,
    precision: str,
    as_json: bool,
) -> int:
    """Run the ONNX file MODEL beside a reference and name the first layer that differs.

    `difference` is that of a layer's result after all layers before it; `alone` is what the
    layer itself adds when it is given the same inputs. The exit code is 3 when an output
    differs by more than the tolerance.

    \b
    Example:
      sartor diff model.onnx --input image=picture.npy
      sartor diff model.onnx --against onnxruntime --tolerance 1e-4
    """
    from sartor.cli import beside
    from sartor.cli.models import unknown_ranks

    if is_program(model):
        raise OptionError(f"{model} is a program, which keeps no values between layers; give the model it was made of")
    with status(f"compiling {model.name}"):
        ours = beside.Ours(model, threads, isa, precision, unknown_ranks(model, given_shapes(inputs, shapes)))
    feeds = make_feeds(ours.program.inputs, inputs, shapes, dims, seed)
    with status(f"computing {model.name} twice"):
        wanted = beside.onnxruntime_values(model, feeds, ours.names) if against == "onnxruntime" else None
        rows, outputs = beside.compare(ours, feeds, wanted)
    first = next((r["layer"] for r in rows if r["difference"] is not None and r["difference"] > tolerance), None)
    differ = [name for name, difference in outputs.items() if difference > tolerance]
    if as_json:
        print_json({"against": against, "tolerance": tolerance, "outputs": outputs, "first": first, "layers": rows})
    else:
        columns = ("layer", "kind", "value", "difference", "alone")
        print_table(
            columns,
            [[f"{v:.1e}" if isinstance(v := row[c], float) else v for c in columns] for row in rows]
            + [[name, "output", name, f"{difference:.1e}", None] for name, difference in outputs.items()],
            right=columns[3:],
        )
    if first is not None:
        row = next(r for r in rows if r["layer"] == first)
        say(f"the first layer that differs from {against} is {first} ({row['kind']}), by {row['difference']:.1e}")
    elif differ:
        say(f"the outputs {', '.join(differ)} differ from {against}, but no single layer does when its result is kept")
    return 3 if differ else 0
