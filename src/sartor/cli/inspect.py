"""`sartor inspect`: what a model or program is made of, and the text of any stage of its making."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sartor.cli.common import MODEL, bytes_text, compile_options, is_program, print_json, print_table, size_options, verb

STAGES = ("layers", "tasks", "loops", "llvm", "asm")


@click.command("inspect")
@MODEL
@click.option("--stage", type=click.Choice(STAGES), help="Print this stage's text instead of the overview.")
@click.option(
    "--layer", "names", multiple=True, help="Only the layer of this name (or of the model's node it came from); repeatable."
)
@size_options
@compile_options
@verb
def command(
    model: Path,
    stage: str | None,
    names: tuple[str, ...],
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    dims: tuple[tuple[str, int], ...],
    threads: int | None,
    isa: str | None,
    precision: str,
    as_json: bool,
) -> int:
    """Show the layers of MODEL (an ONNX file or a program file): sizes, work, memory, templates, fallbacks.

    --stage prints the graph of layers, the tasks of the plan, or each layer's loop program,
    LLVM IR or assembly; the last three need the model itself.

    \b
    Example:
      sartor inspect model.sartor --dim batch=4
      sartor inspect model.onnx --stage loops --layer conv1
    """
    from sartor.cli import stages

    if stage in ("loops", "llvm", "asm") or (stage == "layers" and not is_program(model)):
        texts = stages.layer_texts(model, stage, names, isa)
        if as_json:
            print_json({"stage": stage, "layers": texts})
        else:
            click.echo(
                "\n".join(
                    text if stage == "layers" else f"{stages.comment(stage)} layer {name}\n{text}" for name, text in texts.items()
                )
            )
        return 0
    program = stages.open_any(model, threads, isa, precision)
    if stage == "layers":
        rows = stages.chosen(program, names)
        print_json(rows) if as_json else print_table(
            ("layer", "kind", "inputs", "outputs", "expression"),
            [(r["layer"], r["kind"], ", ".join(r["inputs"]), ", ".join(r["outputs"]), r["expression"]) for r in rows],
        )
        return 0
    overview = stages.overview(program, shapes, dims, names)
    if as_json:
        print_json(overview if stage is None else {"sizes": overview["sizes"], "tasks": overview["tasks"]})
    elif stage == "tasks":
        _print_tasks(overview["tasks"])
    else:
        _print_overview(overview)
    return 0


def _print_tasks(tasks: list[dict[str, Any]]) -> None:
    columns = ("task", "layer", "kind", "extent", "grain", "MMAC", "working set")
    rows = [
        (
            number,
            t["layer"],
            "host" if t["host"] else t["kind"],
            t["extent"],
            t["grain"],
            f"{t['multiply_adds'] / 1e6:.2f}",
            bytes_text(t["working_set"]),
        )
        for number, t in enumerate(tasks)
    ]
    print_table(columns, rows, right=("task", "extent", "grain", "MMAC", "working set"))


def _print_overview(overview: dict[str, Any]) -> None:
    program, memory = overview["program"], overview["memory"]
    columns = ("layer", "kind", "output", "template", "MFLOP", "working set", "configuration")
    rows = [
        (
            r["layer"],
            r["kind"],
            ", ".join(r["outputs"]),
            r["template"] or (f"HOST {r['operator']}" if r["operator"] else "-"),
            f"{r['flop'] / 1e6:.2f}" if r["flop"] is not None else "-",
            bytes_text(r["working_set"]) if r["working_set"] is not None else "-",
            " ".join(f"{k}={v}" for k, v in r["config"].items()) + (" tuned" if r["tuned"] else ""),
        )
        for r in overview["layers"]
    ]
    print_table(columns, rows, right=("MFLOP", "working set"))
    click.echo("")
    facts = [
        ("inputs", ", ".join(f"{n} {t}" for n, t in program["inputs"].items())),
        ("outputs", ", ".join(f"{n} {t}" for n, t in program["outputs"].items())),
        ("sizes", ", ".join(f"{n} = {v}" for n, v in overview["sizes"].items()) or "fixed"),
        ("made for", f"{program['isa']}, {program['precision']}, {program['threads']} threads"),
        ("layers", f"{program['layers']}, {program['tuned_layers']} of them tuned"),
        ("code", f"{bytes_text(program['code_bytes'])}, {program['kernels']} kernels"),
        ("weights", bytes_text(program["weight_bytes"])),
    ]
    if memory:
        facts += [
            ("work", f"{2 * memory['multiply_adds'] / 1e9:.3f} GFLOP"),
            ("arena", f"{bytes_text(memory['arena_bytes'])} (no less than {bytes_text(memory['lower_bound'])})"),
            ("scratch", bytes_text(memory["scratch_bytes"])),
        ]
    facts.append(("fallbacks", ", ".join(program["fallbacks"]) or "none"))
    print_table(("what", "found"), facts)
