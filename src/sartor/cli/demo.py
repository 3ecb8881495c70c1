"""`sartor demo`: a picture of text, read on ONNX Runtime and on Sartor by the same unmodified package."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import click

from sartor.cli.common import print_json, print_table, say, status, verb
from sartor.errors import OptionError, SartorError

_PAUSE = 0.2  # seconds, in which ONNX Runtime's threads stop spinning
_TITLES = {"det": "find text", "cls": "find direction", "rec": "read text"}


@click.command("demo")
@click.option(
    "--image", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Picture to read, instead of one drawn here."
)
@click.option(
    "--passes", type=click.IntRange(1), default=5, show_default=True, help="Timed passes over the picture on each engine."
)
@click.option("--save", type=click.Path(path_type=Path), help="Write the picture to this PNG file.")
@verb
def command(image: Path | None, passes: int, save: Path | None, as_json: bool) -> int:
    """Read a picture of text with rapidocr-onnxruntime, on ONNX Runtime and on Sartor.

    Prints what both read and the time of each of the three networks; exits 3 when the texts differ.

    \b
    Example:
      sartor demo
      sartor demo --image page.png
    """
    onnxruntime = _needed("onnxruntime")
    _needed("rapidocr_onnxruntime")
    from sartor.cli.common import check_writable
    from sartor.cli.reading import reader
    from sartor.compat import onnxruntime as face

    if save:
        check_writable(save)
    picture = _picture(image)
    if save:
        _save(picture, save)
    with status("reading on ONNX Runtime"):
        theirs = reader(onnxruntime.InferenceSession).read(picture, passes)
    time.sleep(_PAUSE)
    start = time.perf_counter()
    with status("compiling three networks for this machine"):
        ours_reader = reader(face.InferenceSession)
    compiled = time.perf_counter() - start
    with status("reading on Sartor"):
        ours = ours_reader.read(picture, passes)
    same = theirs.lines == ours.lines
    times = {
        name: {"onnxruntime_ms": _milliseconds(theirs.seconds[name]), "sartor_ms": _milliseconds(ours.seconds[name])}
        for name in _TITLES
    }
    if as_json:
        print_json(
            {
                "onnxruntime": theirs.lines,
                "sartor": ours.lines,
                "same": same,
                "networks": times,
                "compile_seconds": round(compiled, 3),
                "fallbacks": ours.fallbacks,
            }
        )
    else:
        _print(theirs, ours, times)
        click.echo(f"\n{'The texts are the same.' if same else 'THE TEXTS DIFFER.'}  Compiled in {compiled:.1f} s.")
    for name, fallbacks in ours.fallbacks.items():
        if fallbacks:
            say(f"note: not native code in {name}: {', '.join(fallbacks)}")
    if not theirs.lines:
        say("note: no text was found in the picture")
    return 0 if same else 3


def _print(theirs: Any, ours: Any, times: dict[str, dict[str, float]]) -> None:
    for title, reading in (("ONNX Runtime", theirs), ("Sartor", ours)):
        click.echo(f"{title} reads:")
        for line in reading.lines:
            click.echo(f"  {line}")
    click.echo("")
    rows = [(_TITLES[name], t["onnxruntime_ms"], t["sartor_ms"]) for name, t in times.items()]
    rows.append(("all three", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    cells = [(title, f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}" if b else "-") for title, a, b in rows]
    print_table(("network", "ONNX Runtime ms", "Sartor ms", "ratio"), cells, right=("ONNX Runtime ms", "Sartor ms", "ratio"))


def _milliseconds(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def _needed(module: str) -> Any:
    """The module, or one sentence that says how to get it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as problem:
        raise SartorError(
            f"the demo needs {module.replace('_', '-')} ({problem}); install it with: pip install 'sartor[demo]'"
        ) from None


def _picture(image: Path | None) -> Any:
    if image is None:
        from sartor.cli.picture import draw_text

        return draw_text()
    import cv2

    picture = cv2.imread(str(image))
    if picture is None:
        raise OptionError(f"{image} is not a picture OpenCV can read")
    return picture


def _save(picture: Any, path: Path) -> None:
    from PIL import Image

    Image.fromarray(picture[:, :, ::-1]).save(path, format="PNG")
