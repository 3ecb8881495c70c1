"""How a product of matrices is cut: a grid of blocks over threads, chunks of rows for the L2 cache, panels, tiles.

The parallel extent is `outer x tiles`: index e stands for row tile e % tiles of outer block e // tiles.  An outer block is a
block of panels of one matrix of a batch.  A thread's slice begin..end covers runs of neighbouring tiles of the same outer
block, so that a block of panels is used by many rows; with one outer block the rows are divided, with many the columns.

Row tiles have lengths that differ by at most one (49 rows in tiles of 6 are 4 tiles of 6 and 5 of 5), so that no tile is
left with too few rows to keep the multipliers busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sartor.loops.language import Builder, Number, Value
from sartor.sizes import Dim, ceildiv


@dataclass(frozen=True)
class Run:
    """A run of row tiles `first..last` of outer block `outer`."""

    outer: Value
    first: Value
    last: Value


@dataclass(frozen=True)
class Part:
    """`length` things from `start` on."""

    start: Value
    length: Value


def tiles_of(rows: Dim, height: int) -> Dim:
    """How many row tiles `rows` rows make: the factor of the extent."""
    return ceildiv(rows, height)


def even(builder: Builder, total: Number, parts: Value, index: Value) -> Part:
    """Part `index` of `total` things cut into `parts` whose lengths differ by at most one."""
    whole = total if isinstance(total, Value) else builder.constant(total, parts.type)
    base = whole // parts
    extra = whole - base * parts
    return Part(index * base + builder.minimum(index, extra), base + builder.cast(index < extra, "i64"))


@contextmanager
def runs(builder: Builder, tiles: Value) -> Iterator[Run]:
    """The runs of row tiles in begin..end."""
    first, last = builder.begin // tiles, (builder.end - 1) // tiles + 1
    with builder.loop("outer", first, last, unroll=1) as outer:
        origin = outer * tiles
        yield Run(outer, builder.maximum(builder.begin - origin, 0), builder.minimum(builder.end - origin, tiles))


@contextmanager
def chunks(builder: Builder, run: Run, tiles: Number) -> Iterator[Run]:
    """Pieces of a run of at most `tiles` tiles."""
    with builder.loop("chunk", run.first, run.last, tiles, unroll=1) as first:
        yield Run(run.outer, first, builder.minimum(first + tiles, run.last))
