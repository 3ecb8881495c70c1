"""The time loop of LSTM, GRU and RNN.

The products with the inputs were computed for all steps at once before.  A task takes a direction and a few rows of the batch through
all steps, so that nothing waits within it: the states stay in its scratch, each step multiplies them by the recurrent weights, tile by
tile in registers, and passes the sums through the gates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.graph.reference_recurrent import GATES
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.sizes import ceildiv
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import widen, working
from sartor.templates.recurrent_cells import CELLS
from sartor.templates.reduction import tiles
from sartor.templates.slots import Slots
from sartor.templates.vectors import Body, along, can_mask, lanes_for
from sartor.types import BYTES

ROWS, ROWS_VECTORS = 4, 2
"""Rows and vectors of a register tile of several rows."""
SINGLE_VECTORS = 8
"""Vectors of a register tile of one row."""


class Recurrent:
    """See the module."""

    name = "recurrent"

    def applies(self, problem: Problem, device: Device) -> bool:
        return (problem.layer.kind == "recurrent" and problem.input(0).dtype in ("f16", "bf16", "f32", "f64")
                and all(isinstance(d, int) for d in problem.input(1).shape))

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({})

    def default(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        return {}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[np.ndarray[Any, Any], ...]:
        panel = panel_of(problem, device)
        if not panel:
            return ()
        weights = np.asarray(problem.constants[problem.layer.inputs[1]])
        directions, hidden, columns = weights.shape
        padded = np.zeros((directions, hidden, -(-columns // panel) * panel), weights.dtype)
        padded[:, :, :columns] = weights
        return (np.ascontiguousarray(padded.reshape(directions, hidden, -1, panel).swapaxes(1, 2)),)

    def contiguous(self, problem: Problem, value: str) -> bool:
        return True

    def in_place(self, problem: Problem, value: str) -> bool:
        return False

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        code = RecurrentCode(problem, device)
        code.write()
        steps, batch = problem.input(0).shape[:2]
        directions, hidden, columns = (int(d) for d in problem.input(1).shape)  # type: ignore[arg-type]
        call = KernelCall(
            code.b.finish(), code.slots.arguments, ceildiv(batch, code.tile) * directions,
            scratch=code.tile * code.row_room * BYTES[code.scalar],
            multiply_adds=steps * batch * (directions * hidden * columns),
            bytes=problem.input(0).bytes + problem.input(1).bytes + problem.output().bytes)
        return Implementation((call,))


def panel_of(problem: Problem, device: Device) -> int:
    """Columns of the panels that constant weights are packed in; 0 where they are read as they are.

    A GRU that multiplies its last gate apart needs that gate to begin with a panel.
    """
    panel = SINGLE_VECTORS * lanes_for(device.target, [problem.input(0).dtype, working(problem.input(0).dtype)])
    apart = problem["cell"] == "gru" and not problem["linear_before_reset"]
    if problem.constant(1) is None or (apart and 2 * problem.input(1).shape[1] % panel != 0):
        return 0
    return panel


class RecurrentCode:
    """Writes the kernel; the cells' gates are in `recurrent_cells`.

    The scratch holds, for each row: h, c (or r * h) and the sums of all gates.
    """

    def __init__(self, problem: Problem, device: Device) -> None:
        layer = problem.layer
        self.problem, self.cell = problem, str(problem["cell"])
        self.b = b = Builder(self.cell)
        dtype = problem.input(0).dtype
        self.scalar = working(dtype)
        self.directions, self.hidden, self.columns = (int(d) for d in problem.input(1).shape)  # type: ignore[arg-type]
        self.lanes, self.masked = lanes_for(device.target, [dtype, self.scalar]), can_mask(device.target, [dtype, self.scalar])
        steps, batch = problem.input(0).shape[:2]
        self.tile = min(ROWS, batch) if isinstance(batch, int) and batch > 0 else ROWS
        self.row_room = (2 + GATES[self.cell]) * self.hidden
        self.slots = slots = Slots(b, problem)
        self.panel = panel_of(problem, device)
        self.x = slots.pointer("x", layer.inputs[0])
        self.weights = slots.constant("weights", 0, dtype) if self.panel else slots.pointer("weights", layer.inputs[1])
        names = ("lengths", "first_h", "first_c", "bias", "peepholes")
        optional = [slots.pointer(label, value) if value else None for label, value in zip(names, layer.inputs[2:], strict=True)]
        self.lengths, self.first_h, self.first_c, self.bias, self.peepholes = optional
        self.y = slots.pointer("y", layer.outputs[0])
        self.steps, self.batch = slots.size("steps", steps), slots.size("batch", batch)
        self.h = b.scratch(self.scalar)
        self.c = self.h.at(self.tile * self.hidden)
        self.sums = self.h.at(2 * self.tile * self.hidden)

    # --- elements ---

    def load(self, buffer: Buffer, index: Number, lanes: int = 1, mask: Value | None = None) -> Value:
        """Elements in the type they are computed in."""
        return widen(self.b, self.b.load(buffer, index, lanes, mask))

    def put(self, index: Number, value: Value, mask: Value | None) -> None:
        """Writes elements of the output."""
        self.b.store(self.y, index, self.b.cast(value, self.y.scalar), mask)

    def units(self, body: Body) -> None:
        """Emits `body(unit, lanes, mask)` for all hidden units."""
        along(self.b, 0, self.hidden, self.lanes, body, masked=self.masked)

    # --- structure ---

    def write(self) -> None:
        """Emits the whole kernel."""
        b = self.b
        parts = (self.batch + (self.tile - 1)) // self.tile
        with b.loop("item", b.begin, b.end) as item:
            d = item // parts
            first = (item % parts) * self.tile
            rows = b.minimum(self.batch - first, self.tile)
            kinds = list(zip(self.problem["activations"], self.problem["reverse"], strict=True))
            for number, (activations, reverse) in enumerate(kinds):
                with b.branch(d.eq(number)):
                    self.sequence(b.constant(number, d.type), first, rows, activations, bool(reverse))

    def sequence(self, d: Value, first: Value, rows: Value, activations: Any, reverse: bool) -> None:
        """Some rows of one direction through all steps."""
        b = self.b
        cell = CELLS[self.cell](self, d, activations)
        states = [(self.h, self.first_h, 0)] + ([(self.c, self.first_c, 1)] if self.cell == "lstm" else [])
        with b.loop("row", 0, rows) as row:
            for state, given, _ in states:
                start = (d * self.batch + first + row) * self.hidden

                def begin(j: Value, lanes: int, mask: Value | None, state: Buffer = state, given: Buffer | None = given,
                          start: Value = start, row: Value = row) -> None:
                    zero = b.constant(0.0, Type(self.scalar, lanes))
                    value = zero if given is None else self.load(given, start + j, lanes, mask)
                    b.store(state, row * self.hidden + j, value, mask)

                self.units(begin)
        with b.loop("t", 0, self.steps, unroll=1) as t:
            cell.step(t, first, rows, reverse)
        with b.loop("row", 0, rows) as row:
            for state, _, place in states:
                start = self.place(self.steps + place, d, first + row)

                def finish(j: Value, lanes: int, mask: Value | None, state: Buffer = state, start: Value = start,
                           row: Value = row) -> None:
                    self.put(start + j, b.load(state, row * self.hidden + j, lanes, mask), mask)

                self.units(finish)

    def place(self, t: Value, d: Value, row: Value) -> Value:
        """Where the output of a step begins."""
        return ((t * self.directions + d) * self.batch + row) * self.hidden

    # --- the recurrent product ---

    def multiply(self, source: Buffer, d: Value, start: int, stop: int, rows: Value) -> None:
        """Sums of all rows for the columns start...stop: `source` [rows, hidden] times the weights of direction `d`."""
        b = self.b
        columns = -(-self.columns // self.panel) * self.panel if self.panel else self.columns
        weights = self.weights.at(d * (self.hidden * columns))
        if self.tile == 1:
            self._tile(source, weights, start, stop, b.constant(0, rows.type), 1, SINGLE_VECTORS)
            return
        with b.branch(rows.eq(self.tile)):
            self._tile(source, weights, start, stop, b.constant(0, rows.type), self.tile, ROWS_VECTORS)
        with b.otherwise(), b.loop("row", 0, rows, unroll=1) as row:
            self._tile(source, weights, start, stop, row, 1, SINGLE_VECTORS)

    def _tile(self, source: Buffer, weights: Buffer, start: int, stop: int, row: Value, rows: int, width: int) -> None:
        b = self.b

        def tile(column: Value, vectors: int, lanes: int, mask: Value | None) -> None:
            zero = b.constant(0.0, Type(self.scalar, lanes))
            sums = [[b.variable("sum", zero) for _ in range(vectors)] for _ in range(rows)]
            pitch = self.panel or self.columns
            first = column // pitch * (self.hidden * pitch) + column % pitch if self.panel else column
            with b.loop("k", 0, self.hidden, unroll=2) as k:
                at = k * pitch + first
                right = [self.load(weights, at + v * lanes, lanes, mask) for v in range(vectors)]
                for r in range(rows):
                    left = b.broadcast(b.load(source, (row + r) * self.hidden + k), lanes)
                    for v in range(vectors):
                        sums[r][v].set(b.fma(left, right[v], sums[r][v].get()))
            for r in range(rows):
                for v in range(vectors):
                    b.store(self.sums, (row + r) * self.columns + column + v * lanes, sums[r][v].get(), mask)

        tiles(b, start, stop, self.lanes, width, tile, masked=self.masked)
