"""Register tiles: the inner kernel of everything that multiplies matrices.

A tile is `rows` x `vectors` accumulators in registers.  For every step along the depth it loads `vectors` vectors of a packed
panel of B and, row by row, one element of A, which is broadcast.  A is read in place through one address a row, so rows may
lie anywhere: in a matrix with a pitch, in the pixels under a convolution's window, in scratch.

Each element of the result is one chain of multiply-adds in order of the depth, whatever the tile's height, the position of
the element and the way the depth is cut: results are the same bits in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.loops.target import Target
from sartor.templates.expression_code import Epilogue, widen

CHEAP = 8
"""Expressions of at most this many instructions are computed on the accumulators; longer ones on a copy of the tile."""

NARROW = 4
"""Outputs of so few columns are stored as a line; no vector is shorter."""

ONE_INSTRUCTION = ("constant", "select", "add", "sub", "mul", "div", "min", "max", "neg", "abs", "relu", "reciprocal", "sqrt", "floor",
                   "ceil", "round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "cast")
"""Operations that become about one instruction.  Others (exp, erf, ...) are long code, which is written once."""


@dataclass(frozen=True)
class Tile:
    """Shape of a register tile: `rows` x `vectors` vectors of `lanes` accumulators of type `scalar`."""

    rows: int
    vectors: int
    lanes: int
    scalar: str

    @property
    def columns(self) -> int:
        """Width of a panel of B."""
        return self.vectors * self.lanes

    @property
    def type(self) -> Type:
        return Type(self.scalar, self.lanes)

    @property
    def bytes(self) -> int:
        """Of a copy of the tile in memory."""
        return self.rows * self.columns * Type(self.scalar).bytes


def parse_tile(text: str, scalar: str, target: Target) -> Tile:
    """The tile that the knob's value "6x2" (rows x vectors) stands for."""
    rows, vectors = (int(part) for part in text.split("x"))
    return Tile(rows, vectors, target.lanes(scalar), scalar)


def tile_choices(target: Target) -> tuple[str, ...]:
    """Tiles that fit the register file, the usual best first."""
    if target.vector_registers >= 32:
        return ("6x4", "8x3", "12x2", "14x1", "4x4", "5x4", "9x3", "6x2")
    if target.has_fma:
        return ("6x2", "4x3", "12x1", "5x2", "8x1", "3x4", "2x4")
    return ("4x2", "4x3", "8x1", "6x2", "3x2", "2x4")


def choose_tile(columns: int, target: Target, scalar: str) -> str:
    """The tile that wastes the least on padding `columns` to whole panels, weighed by how fast each shape is."""
    lanes = target.lanes(scalar)
    worth = {"6x4": 1.0, "8x3": 0.99, "12x2": 0.93, "14x1": 0.6} if target.vector_registers >= 32 else (
        {"6x2": 1.0, "4x3": 0.97, "12x1": 0.8} if target.has_fma else {"4x2": 1.0, "4x3": 0.97, "8x1": 0.8})

    def cost(text: str) -> float:
        width = int(text.split("x")[1]) * lanes
        return -(-columns // width) * width / worth[text]

    return min(worth, key=cost)


def depth_unroll(target: Target) -> int:
    """Copies of the innermost body; on Arm, elements of A are loaded ahead by vectors, for which registers run out beyond two."""
    return 4 if target.is_x86 else 2


class Accumulators:
    """The accumulators of one tile of `rows` rows (at most the tile's), zero at first."""

    def __init__(self, builder: Builder, tile: Tile, rows: int) -> None:
        self.builder = builder
        self.tile = tile
        self.rows = rows
        zero = builder.constant(0, tile.type)
        self.values = [[builder.variable("c", zero) for _ in range(tile.vectors)] for _ in range(rows)]

    def load(self, buffer: Buffer) -> None:
        """Goes on from a copy of the tile in memory."""
        tile = self.tile
        for i, row in enumerate(self.values):
            for j, value in enumerate(row):
                value.set(self.builder.load(buffer, i * tile.columns + j * tile.lanes, tile.lanes))

    def save(self, buffer: Buffer, pitch: Number | None = None) -> None:
        """Copies the tile to memory, its rows `pitch` elements apart (by default dense)."""
        tile = self.tile
        for i, row in enumerate(self.values):
            offset = i * (tile.columns if pitch is None else pitch)
            for j, value in enumerate(row):
                self.builder.store(buffer, offset + j * tile.lanes, value.get())

    def step(self, rows: Sequence[Buffer], panel: Buffer, row_index: Number, panel_index: Number, align: int | None) -> None:
        """One step along the depth: element `row_index` of every row times the vectors at `panel_index`."""
        b, lanes = self.builder, self.tile.lanes
        vectors = [widen(b, b.load(panel, panel_index + j * lanes, lanes, align=align)) for j in range(self.tile.vectors)]
        for row, values in zip(rows, self.values, strict=True):
            element = b.broadcast(widen(b, b.load(row, row_index)), lanes)
            for value, vector in zip(values, vectors, strict=True):
                value.set(b.fma(element, vector, value.get()))


def multiply(accumulators: Accumulators, rows: Sequence[Buffer], panel: Buffer, depth: Number, *, unroll: int = 4,
             row_step: Number = 1, panel_step: Number | None = None, aligned: bool = True,
             meanwhile: Callable[[Value], None] | None = None) -> None:
    """accumulators[i] += sum over k of rows[i][k * row_step] * panel[k * panel_step ...].

    Parameters
    ----------
    rows
        One address a row of the tile.
    panel
        `depth` x columns elements, packed, or a matrix whose rows lie `panel_step` elements apart.
    unroll
        Copies of the body; what is left of the depth runs one by one.
    aligned
        Whether the panel's vectors are aligned.
    meanwhile
        Writes code that runs once every `unroll` steps, such as what `Ahead` does.
    """
    b, tile = accumulators.builder, accumulators.tile
    step = tile.columns if panel_step is None else panel_step
    align = tile.type.bytes if aligned and panel.scalar == tile.scalar else None

    def at(k: Value | int, copy: int) -> None:
        index = k + copy
        element = index if isinstance(row_step, int) and row_step == 1 else index * row_step
        accumulators.step(rows, panel, element, index * step, align)

    if isinstance(depth, int) and depth <= unroll:
        for known in range(depth):
            at(known, 0)
        return
    whole = depth // unroll * unroll
    with b.loop("k", 0, whole, unroll, unroll=1) as k:
        if meanwhile is not None:
            meanwhile(k)
        for copy in range(unroll):
            at(k, copy)
    if unroll > 1 and not (isinstance(depth, int) and depth % unroll == 0):
        with b.loop("k", whole, depth, unroll=1) as k:
            at(k, 0)


class Ahead:
    """Fetches the next panel while the tiles of this one are computed, so that weights arrive at a steady rate.

    The first `tiles` tiles of a chunk fetch a part each; later ones have nothing left and touch the last part again.
    """

    def __init__(self, builder: Builder, tile: Tile, tiles: int) -> None:
        self.builder = builder
        self.tiles = tiles
        self.line = 64 // Type(tile.scalar).bytes
        # Elements of the next panel fetched for each step of the depth.
        self.rate = max(tile.columns // tiles, 1)

    def start(self, panel_end: Buffer, depth: Value, place: Value) -> Buffer:
        """Where the tile that is number `place` of its chunk starts to fetch."""
        return panel_end.at(self.builder.minimum(place, self.tiles - 1) * (depth * self.rate))

    def fetch(self, start: Buffer, unroll: int) -> Callable[[Value], None]:
        """What to do once every `unroll` steps."""
        def go(k: Value) -> None:
            for offset in range(0, max(self.rate * unroll, 1), self.line):
                self.builder.prefetch(start, k * self.rate + offset)

        return go


def by_height(builder: Builder, tile: Tile, height: Value, body: Callable[[int], None]) -> None:
    """Runs `body(h)` for the h in 1..tile.rows that `height` is; the full height is tested first."""

    def rest(h: int) -> None:
        if h == 1:
            body(1)
            return
        with builder.branch(height.eq(h)):
            body(h)
        with builder.otherwise():
            rest(h - 1)

    rest(tile.rows)


def is_cheap(epilogue: Epilogue) -> bool:
    """Whether the expression is short enough to be written out once a vector of results."""
    expression = epilogue.expression
    if expression is None:
        return True
    return sum(1 if node.op in ONE_INSTRUCTION else CHEAP + 1 for node in expression.nodes[expression.operands:]) <= CHEAP


def store_pixels(builder: Builder, epilogue: Epilogue, output: Buffer, pitch: Value, results: Sequence[Value], row: Value,
                 count: Value | None, column: Value, mask: Value | None = None) -> None:
    """Stores one vector of raw results in each of the neighbouring rows `row`... of the output, the first `count` (None: all)."""
    b, lanes = builder, results[0].type.lanes
    origin = output.at(row * pitch).at(column)

    def store(value: Value, pixel: Number) -> None:
        finished = epilogue.apply(value, row + pixel, column, lanes, mask)
        b.store(origin, pitch * pixel, finished, mask)

    # With a branch a pixel, LLVM would move each pixel's arithmetic into its branch, one after the other.
    if is_cheap(epilogue) and count is None:
        for known, value in enumerate(results):
            store(value, known)
        return
    line = b.local("line", results[0].type.scalar, len(results) * lanes)
    for known, value in enumerate(results):
        b.store(line, known * lanes, value)
    with b.loop("x", 0, len(results) if count is None else count, unroll=1) as x:
        store(b.load(line, x * lanes, lanes), x)


@dataclass(frozen=True)
class Place:
    """Where a tile lies in the output: the row that is its i-th, its first column, its height, and the columns from that one on.

    Rows of a scattered tile need not follow one another.
    """

    row: Callable[[Number], Value]
    column: Value
    height: Value
    columns_left: Value
    scattered: bool = False


def rows_from(first: Value) -> Callable[[Number], Value]:
    """Rows of a tile that follow one another in the output."""
    return lambda i: first + i


def is_narrow(problem: Problem) -> bool:
    """Whether several rows of the output make one vector: few columns, and operands of the expression that are single numbers.

    Such an output must be dense, and a tile must have all its columns: those of one group are not next to the next row's.
    """
    columns = problem.output().columns
    if not isinstance(columns, int) or columns > NARROW or problem.layer.attributes.get("groups", 1) != 1:
        return False
    return all(problem.tensors[e].elements == 1 for e in problem.layer.extra)


def may_overwrite(problem: Problem, value: str) -> bool:
    """Whether the output may lie on `value`: an operand of the expression alone, of the output's form, each element of which is
    read just before it is written."""
    layer = problem.layer
    return value in layer.extra and value not in layer.inputs and problem.tensors[value] == problem.output()


class Output:
    """Computes tiles and stores them through the layer's expression.

    Tiles that are nearly full, of cheap expressions, go from the registers to the output; all others by way of a copy in
    scratch, from which one piece of code stores any part of a tile.  Rows of a narrow output are stored as one line.
    """

    def __init__(self, builder: Builder, tile: Tile, epilogue: Epilogue, output: Buffer, pitch: Value, narrow: bool = False) -> None:
        self.builder = builder
        self.tile = tile
        self.epilogue = epilogue
        self.output = output
        self.pitch = pitch
        self.cheap = is_cheap(epilogue)
        columns = epilogue.output.columns
        self.narrow = columns if narrow and isinstance(columns, int) and tile.vectors == 1 and columns <= tile.lanes else 0

    def compute(self, place: Place, copy: Buffer, accumulate: Callable[[Accumulators], None], resume: Value | None = None,
                last: Value | None = None) -> None:
        """Computes one tile and stores it.

        Parameters
        ----------
        copy
            Scratch for one tile.
        accumulate
            Writes the code that adds the products to the accumulators.
        resume, last
            Where the depth is cut in slices: whether the sums so far are in `copy`, and whether this is the last slice.
        """
        b, tile = self.builder, self.tile
        whole = place.columns_left >= tile.columns

        def body(height: int) -> None:
            accumulators = Accumulators(b, tile, height)
            if resume is not None:
                with b.branch(resume):
                    accumulators.load(copy)
            accumulate(accumulators)
            if self.narrow:
                self._save_line(accumulators, copy, last)
                return
            if not self._is_direct(height):
                accumulators.save(copy)
                return
            with b.branch(whole if last is None else whole & last):
                self._store_tile(accumulators, place)
            with b.otherwise():
                accumulators.save(copy)

        by_height(b, tile, place.height, body)
        if self.narrow:
            with b.branch(b.constant(True, Type("bool")) if last is None else last):
                self._store_line(copy, place)
            return
        waits = (place.height < tile.rows - 1) | ~whole if self.cheap else None
        if last is not None:
            waits = last if waits is None else waits & last
        if waits is None:
            self._store_copy(copy, place)
            return
        with b.branch(waits):
            self._store_copy(copy, place)

    def _is_direct(self, height: int) -> bool:
        return self.cheap and height + 1 >= self.tile.rows

    def store(self, raw: Value, row: Value, column: Number, mask: Value | None = None) -> None:
        """Stores one vector of raw results at (`row`, `column`) of the output."""
        value = self.epilogue.apply(raw, row, column, raw.type.lanes, mask)
        self.builder.store(self.output, row * self.pitch + column, value, mask)

    def _store_tile(self, accumulators: Accumulators, place: Place) -> None:
        for i, values in enumerate(accumulators.values):
            for j, value in enumerate(values):
                self.store(value.get(), place.row(i), place.column + j * self.tile.lanes)

    def _save_line(self, accumulators: Accumulators, copy: Buffer, last: Value | None) -> None:
        """Copies the rows of a narrow tile one behind the other: each overwrites what is too much of the one before."""
        if last is None:
            accumulators.save(copy, self.narrow)
            return
        with self.builder.branch(last):
            accumulators.save(copy, self.narrow)
        with self.builder.otherwise():
            accumulators.save(copy)

    def _store_line(self, line: Buffer, place: Place) -> None:
        """Stores a narrow tile whose rows lie one behind the other."""
        b, lanes = self.builder, self.tile.lanes
        first = place.row(0)
        if not place.scattered:
            self._store_run(line, first, place.height * self.narrow)
            return
        with b.branch((place.row(place.height - 1) - first).eq(place.height - 1)):
            self._store_run(line, first, place.height * self.narrow)
        with b.otherwise(), b.loop("row", 0, place.height, unroll=1) as i:
            mask = b.first_lanes(self.narrow, lanes)
            self.store(b.load(line, i * self.narrow, lanes), place.row(i), 0, mask)

    def _store_run(self, line: Buffer, first: Value, length: Value) -> None:
        b, lanes = self.builder, self.tile.lanes
        origin = self.output.at(first * self.narrow)
        whole = length // lanes * lanes
        with b.loop("at", 0, whole, lanes, unroll=1) as at:
            b.store(origin, at, self.epilogue.apply(b.load(line, at, lanes), first, 0, lanes))
        with b.branch(whole < length):
            mask = b.first_lanes(length - whole, lanes)
            b.store(origin, whole, self.epilogue.apply(b.load(line, whole, lanes), first, 0, lanes, mask), mask)

    def _store_copy(self, copy: Buffer, place: Place) -> None:
        """Stores the rows and columns that exist of a tile in `copy`."""
        b, tile = self.builder, self.tile
        left = b.minimum(place.columns_left, tile.columns)
        whole = left // tile.lanes
        rest = left - whole * tile.lanes
        with b.loop("row", 0, place.height, unroll=1) as i:
            with b.loop("vector", 0, whole, unroll=1) as j:
                at = j * tile.lanes
                self.store(b.load(copy, i * tile.columns + at, tile.lanes), place.row(i), place.column + at)
            with b.branch(rest > 0):
                at = whole * tile.lanes
                mask = b.first_lanes(rest, tile.lanes)
                self.store(b.load(copy, i * tile.columns + at, tile.lanes), place.row(i), place.column + at, mask)
