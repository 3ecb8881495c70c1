"""`sartor bench`: how long a run takes, beside other engines in turns."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from sartor.cli.common import (
    MODEL,
    compile_options,
    given_shapes,
    input_options,
    is_program,
    make_feeds,
    open_program,
    print_json,
    print_table,
    say,
    status,
    verb,
)
from sartor.cli.engines import ENGINES, Engine
from sartor.errors import OptionError

_PAUSE = 0.03  # seconds between engines, in which worker threads that spin after a run go to sleep
_BURST = 4
_LEAST_ROUNDS = 5


def _peers(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    """The engines named, separated by commas."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in ENGINES or name == "sartor":
            raise click.BadParameter(
                f"{name} is not an engine to compare with; there are {', '.join(e for e in ENGINES if e != 'sartor')}", ctx, param
            )
    return list(dict.fromkeys(names))


@click.command("bench")
@MODEL
@click.option("--against", default="", callback=_peers, metavar="ENGINES", help="Engines to run in turns: onnxruntime,openvino.")
@click.option(
    "--model",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The ONNX file a program came from, for the other engines.",
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True, help="Measuring time.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-3,
    show_default=True,
    help="Greatest difference of outputs, relative to the largest.",
)
@input_options
@compile_options
@verb
def command(
    model: Path,
    against: list[str],
    source: Path | None,
    seconds: float,
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
    """Measure the time of a run of MODEL (an ONNX file or a program file).

    Every engine runs in a process of its own; they take turns in short bursts with pauses, so that a drift of the machine's
    speed meets all alike.  Exits 3 when their outputs differ.

    \b
    Example:
      sartor bench model.onnx --against onnxruntime,openvino --threads 2
    """
    others = source or model
    if against and is_program(others):
        raise OptionError(f"{others} is a program of Sartor's, which {against[0]} cannot read; name its ONNX file by --model")
    program = open_program(model, threads, isa, precision, given_shapes(inputs, shapes))
    threads = threads or program.threads
    feeds = make_feeds(program.inputs, inputs, shapes, dims, seed)
    with tempfile.TemporaryDirectory() as folder:
        paths = {"sartor": Path(folder) / "program.sartor", **dict.fromkeys(against, others)}
        program.save(paths["sartor"])
        with status("measuring"):
            results = measure(paths, threads, precision, feeds, seconds, Path(folder))
    for row in results[1:]:
        row["ratio"] = row["median_ms"] / results[0]["median_ms"]
    if as_json:
        print_json(
            {
                "model": str(model),
                "threads": threads,
                "precision": precision,
                "isa": program.isa,
                "engines": results,
                "fallbacks": [str(f) for f in program.fallbacks],
            }
        )
    else:
        report(results)
    for fallback in program.fallbacks:
        say(f"note: not native code: {fallback}")
    differing = [row["engine"] for row in results if not row.get("difference", 0.0) <= tolerance]
    if differing:
        say(f"sartor: outputs differ from those of {', '.join(differing)} by more than {tolerance:g}")
    return 3 if differing else 0


def measure(
    paths: dict[str, Path], threads: int, precision: str, feeds: dict[str, Any], seconds: float, folder: Path
) -> list[dict[str, Any]]:
    """Figures of each engine; the first one's outputs are what the others' are compared with."""
    from sartor.cli.arrays import save_arrays

    feeds_path = folder / "feeds.npz"
    save_arrays(feeds_path, feeds)
    engines: list[Engine] = []
    try:
        for name, path in paths.items():
            engines.append(Engine(name, path, threads, precision, feeds_path))
        take_turns(engines, seconds)
        own = engines[0].outputs()
        return [figures(engine, own if engine is not engines[0] else None) for engine in engines]
    finally:
        for engine in engines:
            engine.close()


def take_turns(engines: list[Engine], seconds: float) -> None:
    """Bursts of each engine in turn, until `seconds` have passed for each and every one has a few."""
    for engine in engines:
        engine.burst(3)
    start, rounds = time.perf_counter(), 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() - start < seconds * len(engines):
        for engine in engines:
            engine.burst(1)  # wakes its threads
            engine.seconds += engine.burst(_BURST)
            time.sleep(_PAUSE)
        rounds += 1


def figures(engine: Engine, own: list[Any] | None) -> dict[str, Any]:
    """Median, percentiles and, beside Sartor's outputs, the difference."""
    cuts = statistics.quantiles(engine.seconds, n=100, method="inclusive")
    row = {
        "engine": engine.name,
        "runs": len(engine.seconds),
        "median_ms": statistics.median(engine.seconds) * 1e3,
        "p90_ms": cuts[89] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "ready_s": engine.ready["ready_seconds"],
    }
    if own is not None:
        row["difference"] = difference(engine.outputs(), own)
    return row


def difference(reference: list[Any], outputs: list[Any]) -> float:
    """The largest difference of two lists of arrays, relative to the largest element; infinite where they do not correspond."""
    import numpy as np

    if len(reference) != len(outputs):
        return math.inf
    worst = 0.0
    for a, b in zip(reference, outputs, strict=True):
        if a.shape != b.shape:
            return math.inf
        if a.dtype.kind in "OUS" or b.dtype.kind in "OUS":
            worst = max(worst, 0.0 if np.array_equal(a, b) else math.inf)
            continue
        left, right = (np.stack([v.real, v.imag]) if v.dtype.kind == "c" else v.astype(np.float64) for v in (a, b))
        if left.shape != right.shape:
            return math.inf
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        if same.all():
            continue
        gap = np.abs(np.where(same, 0.0, left - right)).max()
        scale = np.abs(left[np.isfinite(left)]).max(initial=0.0)
        worst = max(worst, math.inf if not math.isfinite(gap) else float(gap / max(scale, 1e-30)))
    return worst


def report(results: list[dict[str, Any]]) -> None:
    """The figures as a table."""
    columns = ["engine", "median ms", "p90 ms", "p99 ms", "runs", "ready s"]
    rows = [
        [r["engine"], f"{r['median_ms']:.3f}", f"{r['p90_ms']:.3f}", f"{r['p99_ms']:.3f}", r["runs"], f"{r['ready_s']:.2f}"]
        for r in results
    ]
    if len(results) > 1:
        columns += ["of sartor's", "difference"]
        more = [[f"{r['ratio']:.2f}", f"{r['difference']:.1e}"] if "ratio" in r else ["1.00", "-"] for r in results]
        rows = [row + cells for row, cells in zip(rows, more, strict=True)]
    print_table(columns, rows, right=columns[1:])
