"""A picture of text, drawn at run time with the font that Pillow carries."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.errors import SartorError

LINES = (
    "Sartor",
    "cut to measure",
    "for the machine at hand",
    "3.14159 26535 89793",
    "every layer its own code,",
    "no compiler on your machine",
    "Order 4711, 20 November 1889",
    "ok",
)


def draw_text(lines: tuple[str, ...] = LINES, size: int = 36) -> np.ndarray[Any, Any]:
    """Dark lines of different lengths on a light page.

    Parameters
    ----------
    lines
        What to write, one line each.
    size
        Height of the letters in pixels.

    Returns
    -------
    uint8 [height, width, 3], blue first, as OpenCV reads pictures.
    """
    from PIL import Image, ImageDraw, ImageFont

    try:
        font = ImageFont.load_default(size)
    except TypeError:
        raise SartorError("drawing text needs Pillow 10.1 or newer; give a picture by --image instead") from None
    step = 2 * size
    page = Image.new("RGB", (20 * size, step * (len(lines) + 1)), (250, 248, 240))
    pen = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        pen.text((1.5 * size, step * (number + 0.5)), line, (30, 30, 60), font=font)
    return np.ascontiguousarray(np.asarray(page)[:, :, ::-1])
