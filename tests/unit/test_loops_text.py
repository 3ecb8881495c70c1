"""The text of a kernel, kept as a golden file; SARTOR_UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

from sartor.loops.language import Builder, Kernel, Type

GOLDEN = Path(__file__).parent / "golden" / "loops_tour.txt"


def tour() -> Kernel:
    """A kernel with one of everything that the text shows."""
    b = Builder("tour")
    x, y, rows, n = b.pointer("x", "f32"), b.pointer("y", "f32"), b.rows("rows", "f32"), b.size("n")
    b.comment("one of everything")
    total = b.variable("total", b.constant(0.0, Type("f32", 8)))
    tile = b.local("tile", "f32", 64)
    table = b.table("table", 4, "f32")
    with b.loop("i", b.begin, b.end, 8, unroll=2) as i:
        v = b.load(x, i, 8, align=32)
        row = rows.row(i)
        b.prefetch(row, 64)
        b.set_row(table, 0, row.at(8))
        total.set(b.fma(v, 2.0, total.get()))
        with b.branch(i < n - 8):
            b.store(y, i, b.minimum(-v, 6.0), non_temporal=True)
        with b.otherwise():
            b.store(y, i, v, mask=b.first_lanes(n - i, 8))
    left = b.variable("left", n)
    with b.repeat_while() as test:
        b.proceed(test, left.get() > 0)
        left.set(left.get() // 2)
    gathered = b.gather(x, b.iota(8, "i32") * 3)
    b.store(tile, 0, b.select(gathered.ne(0.0), b.shuffle(gathered, gathered, tuple(range(7, -1, -1))), total.get()))
    b.store(b.scratch("f32", 64), 0, b.reduce("add", b.load(tile, 0, 8)))
    return b.finish()


def test_text_of_a_kernel():
    text = str(tour()) + "\n"
    if os.environ.get("SARTOR_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
