"""Attention: softmax(Q K^T scale + mask) V, a block of queries of one head at a time, so that scores are never whole in memory.

A first kernel packs the keys of each head, transposed, in panels for the register tile; another the values, where their
rows are not whole panels already.  The main kernel then computes, for a block of queries, their scores in scratch, turns them
into weights and multiplies these by the values.  Queries that see no key give NaN, as the formula does, or zeros
where the layer asks for these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem, Tensor
from sartor.loops import math as functions
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.sizes import Dim, ceildiv
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import Epilogue, Operand, widen, working
from sartor.templates.microkernel import Accumulators, Tile, multiply, parse_tile, tile_choices
from sartor.templates.reduction import RowTotal, accumulator
from sartor.templates.slots import Slots
from sartor.templates.transpose import transposed
from sartor.templates.vectors import along, can_mask
from sartor.types import BYTES

TYPES = ("f32", "f16", "bf16", "f64")


class Attention:
    """See the module."""

    name = "attention"

    def applies(self, problem: Problem, device: Device) -> bool:
        if problem.layer.kind != "attention":
            return False
        types = {problem.input(i).dtype for i in range(3)}
        if len(types) > 1 or not types <= set(TYPES):
            return False
        mask = _mask(problem)
        return mask is None or problem.tensors[mask].dtype in (*TYPES, "bool")

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"tile": tile_choices(device.target), "tiles": (1, 2, 4, 8)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        keys = problem.input(1).shape[1]
        return {"tile": tile_choices(device.target)[0], "tiles": 4 if not isinstance(keys, int) or keys <= 2048 else 2}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        return ()

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        tile = parse_tile(str(config["tile"]), working(problem.input(0).dtype), device.target)
        queries = problem.input(0).shape[1]
        if isinstance(queries, int) and 0 < queries < tile.rows:
            tile = Tile(queries, tile.vectors, tile.lanes, tile.scalar)
        packs_values = not _whole_panels(problem, tile)
        calls = [_pack_keys(problem, tile)]
        workspaces = [_panels_bytes(problem.input(1), 1, tile)]
        if packs_values:
            calls.append(_pack_values(problem, tile, device))
            workspaces.append(_panels_bytes(problem.input(2), 3, tile))
        code = _Code(problem, tile, int(config["tiles"]), device, packs_values)
        calls.append(code.call())
        return Implementation(tuple(calls), tuple(workspaces))


def _mask(problem: Problem) -> str | None:
    inputs = problem.layer.inputs
    return inputs[3] if len(inputs) > 3 and inputs[3] else None


def _whole_panels(problem: Problem, tile: Tile) -> bool:
    """Whether the values' rows are whole panels that the register tile can read in place."""
    columns = problem.input(2).columns
    return problem.input(2).dtype == tile.scalar and isinstance(columns, int) and columns % tile.columns == 0


def _panels_bytes(tensor: Tensor, cut: int, tile: Tile) -> Dim:
    """Bytes of all heads' panels, dim `cut` being cut in panels."""
    batch, keys, heads, depth = tensor.shape
    whole, rest = (keys, depth) if cut == 1 else (depth, keys)
    return batch * heads * ceildiv(whole, tile.columns) * rest * (tile.columns * BYTES[tile.scalar])


# --- packing --------------------------------------------------------------------------------------------------------------


def _pack_keys(problem: Problem, tile: Tile) -> KernelCall:
    """Panel p of a head holds, for each element of the depth, that element of keys p * columns and following."""
    batch, keys, heads, depth = problem.input(1).shape
    b, lanes = Builder("attention_keys"), tile.lanes
    slots = Slots(b, problem)
    x, pitch = slots.pointer("k", problem.layer.inputs[1]), slots.pitch("k_pitch", problem.layer.inputs[1])
    y = slots.workspace("panels", 0, tile.scalar)
    count, size = slots.size("keys", keys), slots.known("depth", depth)
    groups, panels = slots.known("heads", heads), slots.size("panels_of_head", ceildiv(keys, tile.columns))
    unit = min(16 // BYTES[tile.scalar], lanes)
    with b.loop("item", b.begin, b.end) as item:
        head = item // panels
        panel = item - head * panels
        image = head // groups
        base = (image * count * groups + (head - image * groups)) * pitch
        target = b.offset(y, item * (size * tile.columns))

        def row(j: int, base: Value = base, panel: Value = panel) -> Value:
            key = b.minimum(panel * tile.columns + j, count - 1)
            return base + key * groups * pitch

        rows = [row(j) for j in range(tile.columns)]
        whole = size // unit * unit
        with b.loop("d", 0, whole, unit) as d:
            for group in range(tile.vectors):
                vectors = []
                for k in range(unit):
                    pieces = [widen(b, b.load(x, rows[group * lanes + k + unit * p] + d, unit)) for p in range(lanes // unit)]
                    while len(pieces) > 1:
                        width = 2 * pieces[0].type.lanes
                        pieces = [b.shuffle(a, c, range(width)) for a, c in zip(pieces[::2], pieces[1::2], strict=True)]
                    vectors.append(pieces[0])
                for k, vector in enumerate(transposed(b, vectors, unit)):
                    b.store(target, (d + k) * tile.columns + group * lanes, vector)
        with b.loop("d", whole, size) as d:
            for j, at in enumerate(rows):
                b.store(target, d * tile.columns + j, widen(b, b.load(x, at + d)))
    return KernelCall(b.finish(), slots.arguments, batch * heads * ceildiv(keys, tile.columns), bytes=2 * problem.input(1).bytes)


def _pack_values(problem: Problem, tile: Tile, device: Device) -> KernelCall:
    """Panel p of a head holds, for each key, elements p * columns and following of its value; zeros past the end."""
    batch, keys, heads, depth = problem.input(2).shape
    b = Builder("attention_values")
    slots = Slots(b, problem)
    x, pitch = slots.pointer("v", problem.layer.inputs[2]), slots.pitch("v_pitch", problem.layer.inputs[2])
    y = slots.workspace("panels", 1, tile.scalar)
    count, size = slots.size("keys", keys), slots.size("depth", depth)
    groups, panels = slots.known("heads", heads), slots.size("panels_of_head", ceildiv(depth, tile.columns))
    zero = b.constant(0, tile.type)
    with b.loop("item", b.begin, b.end) as item:
        head = item // panels
        first = (item - head * panels) * tile.columns
        image = head // groups
        base = (image * count * groups + (head - image * groups)) * pitch + first
        target = b.offset(y, item * (count * tile.columns))
        length = b.minimum(size - first, tile.columns)
        with b.loop("t", 0, count) as t:
            source, at = base + t * groups * pitch, t * tile.columns
            for vector in range(tile.vectors):
                b.store(target, at + vector * tile.lanes, zero)

            def body(c: Value, lanes: int, mask: Value | None, source: Value = source, at: Value = at, to: Buffer = target) -> None:
                b.store(to, at + c, widen(b, b.load(x, source + c, lanes, mask)), mask)

            along(b, 0, length, tile.lanes, body, masked=can_mask(device.target, [x.scalar]))
    return KernelCall(b.finish(), slots.arguments, batch * heads * ceildiv(depth, tile.columns), bytes=2 * problem.input(2).bytes)


# --- the main kernel ------------------------------------------------------------------------------------------------------


class _Code:
    """Writes the main kernel: an item of its extent is a block of queries of one head."""

    def __init__(self, problem: Problem, tile: Tile, tiles: int, device: Device, packed: bool) -> None:
        self.problem, self.tile, self.tiles, self.packed = problem, tile, tiles, packed
        self.b = b = Builder("attention")
        self.slots = slots = Slots(b, problem)
        self.scale, self.causal = float(problem["scale"]), bool(problem.layer.attributes.get("causal"))
        self.zero_unseen = bool(problem.layer.attributes.get("zero_unseen")) and _mask(problem) is not None
        self.shape = problem.input(0).shape
        batch, queries, heads, depth = self.shape
        _, keys, groups, values = problem.input(2).shape
        q, _, v = problem.layer.inputs[:3]
        self.masked = can_mask(device.target, [tile.scalar])
        self.q, self.q_pitch = slots.pointer("q", q), slots.pitch("q_pitch", q)
        self.k = slots.workspace("k_panels", 0, tile.scalar)
        if packed:
            self.v = slots.workspace("v_panels", 1, tile.scalar)
            self.v_pitch: Number = tile.columns
        else:
            self.v, self.v_pitch = slots.pointer("v", v), slots.pitch("v_pitch", v)
        self.y, self.y_pitch = slots.pointer("y", problem.layer.outputs[0]), slots.pitch("y_pitch", problem.layer.outputs[0])
        self.queries, self.keys = slots.size("queries", queries), slots.size("keys", keys)
        self.heads, self.groups = slots.size("heads", heads), slots.size("groups", groups)
        self.depth, self.values = slots.known("depth", depth), slots.known("values", values)
        self.rows = tile.rows * tiles
        self.row_bytes: Dim = ceildiv(keys, tile.columns) * (tile.columns * BYTES[tile.scalar])
        self.score_pitch = slots.size("score_pitch", ceildiv(keys, tile.columns) * tile.columns)
        self.blocks = slots.size("blocks", ceildiv(queries, self.rows))
        mask = _mask(problem)
        whole = Tensor(tile.scalar, (batch, heads, queries, keys))
        self.mask = None if mask is None else Operand(slots, mask, whole, "mask")
        self.epilogue = Epilogue(b, problem, slots)

    def call(self) -> KernelCall:
        """Emits the kernel and states its formulas."""
        b = self.b
        self.scores = b.scratch(self.tile.scalar)
        self.local = b.local("tile", self.tile.scalar, self.tile.rows * self.tile.columns) if not self.direct else None
        with b.loop("item", b.begin, b.end) as item:
            self.item(item)
        batch, queries, heads, depth = self.shape
        keys, values = self.problem.input(2).shape[1], self.problem.input(2).columns
        work = batch * heads * queries * keys * (depth + values)
        moved = self.problem.input(0).bytes + self.problem.output().bytes
        return KernelCall(b.finish(), self.slots.arguments, batch * heads * ceildiv(queries, self.rows), chunk=1,
                          scratch=self.row_bytes * self.rows, multiply_adds=work, bytes=moved)

    @property
    def direct(self) -> bool:
        """Whether results are stored straight from registers."""
        return isinstance(self.values, int) and self.values % self.tile.columns == 0

    def item(self, item: Value) -> None:
        """One block of queries of one head."""
        b = self.b
        head_of_all = item // self.blocks
        first = (item - head_of_all * self.blocks) * self.rows
        image = head_of_all // self.heads
        head = head_of_all - image * self.heads
        ratio = self.heads // self.groups
        group = image * self.groups + head // ratio  # of all groups
        count = b.minimum(self.queries - first, self.rows)
        seen = self.seen(b.minimum(first + self.rows, self.queries) - 1)
        sums = b.local("sums", self.tile.scalar, self.rows)
        with b.loop("m", 0, count, self.tile.rows) as m:
            self.some_scores(first, m, count, image, head, group, seen)
        with b.loop("m", 0, count) as m:
            self.weights(m, first + m, head_of_all, seen, sums)
        with b.loop("m", 0, count, self.tile.rows) as m:
            self.some_results(first, m, count, image, head, group, seen, sums)

    def seen(self, query: Value) -> Value:
        """How many keys a query sees, from the first one on."""
        if not self.causal:
            return self.keys
        b = self.b
        return b.maximum(b.minimum(query + 1 + self.keys - self.queries, self.keys), 0)

    def row_of(self, image: Value, query: Value, head: Value) -> Value:
        """The row of Q, and of the result, of one query and head."""
        return (image * self.queries + query) * self.heads + head

    def some_scores(self, first: Value, m: Value, count: Value, image: Value, head: Value, group: Value, seen: Value) -> None:
        """Q K^T for one tile of queries; where fewer are left, the last one is computed again."""
        b, tile = self.b, self.tile
        queries = [first + b.minimum(m + i, count - 1) for i in range(tile.rows)]
        rows = [b.offset(self.q, self.row_of(image, query, head) * self.q_pitch) for query in queries]
        panels = self.score_pitch // tile.columns
        base = group * panels * (self.depth * tile.columns)
        keys = b.offset(self.k, base)
        target = b.offset(self.scores, m * self.score_pitch)
        with b.loop("panel", 0, (seen + (tile.columns - 1)) // tile.columns) as panel:
            accumulators = Accumulators(b, tile, tile.rows)
            multiply(accumulators, rows, b.offset(keys, panel * (self.depth * tile.columns)), self.depth)
            accumulators.save(b.offset(target, panel * tile.columns), self.score_pitch)

    def weights(self, m: Value, query: Value, head_of_all: Value, seen: Value, sums: Buffer) -> None:
        """Turns a row of scores into exponentials; their sum goes to `sums`."""
        b, tile = self.b, self.tile
        row, length = b.offset(self.scores, m * self.score_pitch), self.seen(query)
        mask = self.mask
        offset = mask.row_offset(head_of_all * self.queries + query) if mask is not None else 0

        def score(t: Value, lanes: int, chosen: Value | None) -> Value:
            s = b.load(row, t, lanes, chosen) * self.scale
            if mask is not None:
                extra = mask.load_at(offset, t, lanes, chosen)
                s = b.select(extra, s, float("-inf")) if extra.type.scalar == "bool" else s + b.cast(extra, s.type.scalar)
                b.store(row, t, s, chosen)
            return s

        best = RowTotal(b, accumulator("peak"), tile.scalar, tile.lanes, masked=self.masked)
        best.take(0, length, score)
        top = best.result()
        if self.zero_unseen:
            top = b.select(top.eq(float("-inf")), 0.0, top)

        def exponential(t: Value, lanes: int, chosen: Value | None) -> Value:
            s = b.load(row, t, lanes, chosen)
            e = functions.exp_not_positive(b, (s if mask is not None else s * self.scale) - top)
            b.store(row, t, e, chosen)
            return e

        total = RowTotal(b, accumulator("sum"), tile.scalar, tile.lanes, masked=self.masked, vectors=2)
        total.take(0, length, exponential)
        b.store(sums, m, total.result())
        if self.causal:
            zero = b.constant(0.0, Type(tile.scalar))
            along(b, length, seen, tile.lanes, lambda t, lanes, chosen: b.store(row, t, b.broadcast(zero, lanes), chosen),
                  masked=self.masked)

    def some_results(self, first: Value, m: Value, count: Value, image: Value, head: Value, group: Value, seen: Value,
                     sums: Buffer) -> None:
        """The weights of one tile of queries times the values."""
        b, tile = self.b, self.tile
        places = [b.minimum(m + i, count - 1) for i in range(tile.rows)]
        rows = [b.offset(self.scores, place * self.score_pitch) for place in places]
        inverses = []
        for place in places:
            total = b.load(sums, place)
            inverses.append(b.select(total.eq(0.0), 0.0, 1.0 / total))
        panels = (self.values + (tile.columns - 1)) // tile.columns
        step: Number = tile.columns
        if not self.packed:
            step = self.groups * self.v_pitch
            image_rows = image * self.keys * self.groups + (group - image * self.groups)
            values = b.offset(self.v, image_rows * self.v_pitch)
        else:
            values = b.offset(self.v, group * self.keys * (panels * tile.columns))
        with b.loop("panel", 0, panels) as panel:
            accumulators = Accumulators(b, tile, tile.rows)
            start = panel * tile.columns if not self.packed else panel * self.keys * tile.columns
            multiply(accumulators, rows, b.offset(values, start), seen, panel_step=step, aligned=False)
            self.store(accumulators, inverses, first, m, count, image, head, panel * tile.columns)

    def store(self, accumulators: Accumulators, inverses: list[Value], first: Value, m: Value, count: Value, image: Value, head: Value,
              column: Value) -> None:
        """Stores a tile of results, scaled by the sums of the weights."""
        b, tile = self.b, self.tile
        if self.local is not None:
            accumulators.save(self.local)
        for i in range(tile.rows):
            with b.branch(m + i < count):
                row = self.row_of(image, first + m + i, head)
                at = row * self.y_pitch
                if self.local is None:
                    for j, value in enumerate(accumulators.values[i]):
                        place = column + j * tile.lanes
                        b.store(self.y, at + place, self.epilogue.apply(value.get() * inverses[i], row, place, tile.lanes))
                    continue
                part = b.offset(self.local, i * tile.columns)

                def body(c: Value, lanes: int, mask: Value | None, part: Buffer = part, row: Value = row, at: Value = at,
                         inverse: Value = inverses[i]) -> None:
                    raw = b.load(part, c, lanes, mask) * inverse
                    b.store(self.y, at + column + c, self.epilogue.apply(raw, row, column + c, lanes, mask), mask)

                along(b, 0, b.minimum(self.values - column, tile.columns), tile.lanes, body, masked=self.masked)
