"""What the verbs share: options, opening models, making inputs, and printing."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from sartor.errors import OptionError
from sartor.loops.target import ISAS

Function = TypeVar("Function", bound=Callable[..., Any])

# --- options --------------------------------------------------------------------------------------------------------------


def assignments(
    of: Callable[[str], Any], form: str
) -> Callable[[click.Context, click.Parameter, Sequence[str]], tuple[Any, ...]]:
    """A callback that turns texts `NAME=value` into pairs; `of` parses the value and `form` says what it must look like."""

    def parse(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> tuple[Any, ...]:
        pairs = []
        for text in texts:
            name, separator, value = text.rpartition("=")
            try:
                if not separator or not name:
                    raise ValueError(text)
                pairs.append((name, of(value)))
            except ValueError:
                raise click.BadParameter(f"{text} is not of the form NAME={form}", context, parameter) from None
        return tuple(pairs)

    return parse


def _shape(text: str) -> tuple[int | str, ...]:
    """`1x3x224x224` as a shape, or with commas `1,3,height,width`, where names may have an x too; nothing is a scalar's."""
    return tuple(_size(part.strip()) for part in text.split("," if "," in text else "x")) if text else ()


def _size(part: str) -> int | str:
    if part.isidentifier():
        return part
    if (size := int(part)) < 0:
        raise ValueError(part)
    return size


def _dim(text: str) -> int:
    if (value := int(text)) < 0:
        raise ValueError(text)
    return value


def verb(function: Function) -> Function:
    """The options every verb has: `--json` and `--debug`."""
    function = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(function)
    return click.option("--debug", is_flag=True, expose_value=False, help="Show where an error comes from.")(function)


def compile_options(function: Function) -> Function:
    """How a model is to be compiled: `--threads`, `--isa`, `--precision`."""
    function = click.option("--precision", default="fp32", show_default=True, help="Arithmetic of the program.")(function)
    function = click.option(
        "--isa", type=click.Choice(ISAS), help="Instruction set to make code for, by default this machine's best."
    )(function)
    return click.option("--threads", type=click.IntRange(1), help="Threads of a run, by default the cores this process may use.")(
        function
    )


def size_options(function: Function) -> Function:
    """Sizes for symbolic dimensions: `--shape` and `--dim`."""
    function = click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=N",
        callback=assignments(_dim, "N"),
        help="Size of a symbolic dimension, as height=256; repeatable.",
    )(function)
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1x3x224x224",
        callback=assignments(_shape, "1x3x224x224"),
        help="Shape of an input, as image=1x3x224x224, or with names for sizes to come, as image=1,3,height,width; repeatable.",
    )(function)


def input_options(function: Function) -> Function:
    """What to feed: `--input`, or random numbers of the sizes given."""
    function = click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")(function)
    function = size_options(function)
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=FILE.npy",
        callback=assignments(str, "FILE.npy"),
        help="Contents of an input, as image=picture.npy; repeatable.",
    )(function)


MODEL = click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))

# --- files ----------------------------------------------------------------------------------------------------------------


def is_program(path: Path) -> bool:
    """Whether `path` is a program file, by its name or its first bytes."""
    from sartor.runtime.program import MAGIC

    if path.suffix == ".sartor":
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_writable(path: Path) -> None:
    """Makes sure a result can be written to `path` before it is worked for.

    Raises
    ------
    OptionError
        When its folder does not exist, or either may not be written.
    """
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {folder}")
    if path.is_dir():
        raise OptionError(f"{path} cannot be written: it is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OptionError(f"{path} cannot be written: permission denied")


def open_program(
    model: Path, threads: int | None, isa: str | None, precision: str, shapes: Mapping[str, tuple[int | str, ...]] | None = None
) -> Any:
    """The program in the file `model`, or compiled from it; `shapes` are for the inputs whose rank the model does not say."""
    import sartor
    from sartor.cli.models import unknown_ranks
    from sartor.runtime.program import Program

    if is_program(model):
        if isa:
            raise OptionError(f"--isa does not change {model}, which is compiled already; give the model")
        return Program.load(model)
    ranks = unknown_ranks(model, shapes) if shapes else None
    with compile_progress(model.name) as progress:
        return sartor.compile(str(model), threads=threads, isa=isa, precision=precision, shapes=ranks, progress=progress)


# --- printing -------------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Talk: one line on stderr."""
    click.echo(text, err=True)


def print_json(data: Any) -> None:
    """Data for machines, on stdout; numbers JSON has no form for are the texts nan, inf and -inf."""
    click.echo(json.dumps(_finite(data), indent=1, default=_plain, allow_nan=False))


def _finite(data: Any) -> Any:
    data = data.item() if hasattr(data, "item") else data
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(item) for item in data] if isinstance(data, list | tuple) else data


def _plain(value: Any) -> Any:
    """What JSON has no form for: sizes as text, NumPy's numbers as numbers."""
    return value.item() if hasattr(value, "item") else str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Iterable[str] = ()) -> None:
    """Data for people, on stdout: aligned columns without lines, so that other tools can read them too."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(c), *(len(row[i]) for row in cells)) if cells else len(c) for i, c in enumerate(columns)]
    to_right = set(right)
    for row in [list(columns), *cells]:
        parts = [text.rjust(w) if c in to_right else text.ljust(w) for text, w, c in zip(row, widths, columns, strict=True)]
        click.echo("  ".join(parts).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def bytes_text(count: float) -> str:
    """A number of bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def rate_text(count: float, unit: str) -> str:
    """A rate for people: 25.0 GB/s."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000 or prefix == "T":
            return f"{count:.1f} {prefix}{unit}"
        count /= 1000
    return ""


def console() -> Any:
    """Where progress is shown: stderr, drawn only on a terminal."""
    from rich.console import Console

    return Console(stderr=True)


def status(text: str) -> Any:
    """A context that shows a spinner on a terminal while something takes long, and nothing elsewhere."""
    from contextlib import nullcontext

    return console().status(text) if sys.stderr.isatty() else nullcontext()


@contextmanager
def compile_progress(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar of the layers built and the kernels compiled, for `sartor.compile`; drawn only on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"reading {name}", total=None)

        def show(stage: str, done: int, total: int) -> None:
            text = {"build": f"choosing code for {name}", "compile": f"compiling {name}"}.get(stage, f"{stage} {name}")
            bar.update(task, description=text, completed=done, total=total)

        yield show


# --- inputs ---------------------------------------------------------------------------------------------------------------


def given_shapes(
    files: Sequence[tuple[str, str]], shapes: Sequence[tuple[str, tuple[int | str, ...]]]
) -> dict[str, tuple[int | str, ...]]:
    """Shapes that options give inputs, for a name each the last; a file's contents say what its input's is."""
    from sartor.cli.feeds import load_file

    return dict(shapes) | {name: load_file(name, path).shape for name, path in files}


def make_feeds(
    inputs: Mapping[str, Any],
    files: Sequence[tuple[str, str]],
    shapes: Sequence[tuple[str, tuple[int | str, ...]]],
    dims: Sequence[tuple[str, int]],
    seed: int,
) -> dict[str, Any]:
    """Arrays for `inputs` (name to Tensor): from files where given, else seeded random ones of the given sizes.

    A symbolic dimension no option settles is 1, which is said on stderr.

    Raises
    ------
    OptionError
        When an option names no input or dimension, a file cannot be read, or shapes do not fit.
    """
    from sartor.cli.feeds import load_file, random_array, random_unranked, settle_sizes, typed

    given, wanted = dict(files), dict(shapes)
    for name in (*given, *wanted):
        if name not in inputs:
            raise OptionError(f"the model has no input {name}; it has {', '.join(inputs)}")
    feeds = {name: typed(load_file(name, path), inputs[name]) for name, path in given.items()}
    wanted |= {name: array.shape for name, array in feeds.items()}
    sizes, assumed = settle_sizes(inputs, wanted, dict(dims))
    if assumed:
        say(f"note: {', '.join(f'{n} = 1' for n in assumed)}; other sizes by --dim or --shape")
    for number, (name, tensor) in enumerate(inputs.items()):
        if name in feeds:
            continue
        if tensor.opaque and name in wanted:
            feeds[name] = random_unranked(name, tensor, wanted[name], seed + number)
        else:
            feeds[name] = random_array(tensor, sizes, seed + number)
    return {name: feeds[name] for name in inputs}
