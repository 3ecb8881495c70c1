"""Weights of convolutions in panels: packed when compiling where they are constant, else by a call of their own.

A panel holds `tile.columns` output channels of one group; its rows are rows of the weights [*k, C, O], seen as a matrix, in an order
the algorithm chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.graph.layer import Problem, Tensor
from sartor.loops.language import Buffer, Builder, Value
from sartor.sizes import Dim
from sartor.templates.base import KernelCall
from sartor.templates.expression_code import widen
from sartor.templates.microkernel import Tile
from sartor.templates.panels import pack_panels, working_array
from sartor.templates.slots import Slots
from sartor.types import BYTES

Array = np.ndarray[Any, Any]


def is_static(tensor: Tensor) -> bool:
    """Whether all sizes are known when compiling."""
    return all(isinstance(d, int) for d in tensor.shape)


@dataclass(frozen=True)
class Weights:
    """The weights of a layer (its input 1) as [group][panel][row][column].

    Attributes
    ----------
    rows
        [groups, depth]: which row of the weights each row of a group's panels is.
    columns
        Output channels of a group.
    group_step
        Columns of the weights from one group to the next.
    """

    problem: Problem
    tile: Tile
    rows: Array
    columns: int
    group_step: int

    @property
    def is_constant(self) -> bool:
        return self.problem.constant(1) is not None

    @property
    def panels(self) -> int:
        """Of one group."""
        return -(-self.columns // self.tile.columns)

    def constants(self) -> tuple[Array, ...]:
        """Constant 0: the panels, or, for weights known at run time, the table of rows."""
        weights = self.problem.constant(1)
        if weights is None:
            return (np.ascontiguousarray(self.rows, np.int64),)
        matrix = working_array(weights, self.problem.input(1).dtype).reshape(-1, weights.shape[-1])
        groups = [matrix[rows, g * self.group_step:g * self.group_step + self.columns] for g, rows in enumerate(self.rows)]
        return (pack_panels(np.stack(groups), self.tile.columns),)

    def declare(self, slots: Slots) -> Buffer:
        """The slot of the panels."""
        if self.is_constant:
            return slots.constant("w", 0, self.tile.scalar)
        return slots.workspace("w", 0, self.tile.scalar)

    def workspaces(self) -> tuple[Dim, ...]:
        """Workspace 0 for panels made at run time."""
        if self.is_constant:
            return ()
        return (max(64, self.rows.size * self.panels * self.tile.columns * BYTES[self.tile.scalar]),)

    def calls(self) -> tuple[KernelCall, ...]:
        """The call that packs weights known at run time: extent groups x panels."""
        if self.is_constant:
            return ()
        b, tile = Builder("pack_weights"), self.tile
        slots = Slots(b, self.problem)
        name = self.problem.layer.inputs[1]
        source, pitch = slots.pointer("w", name), slots.pitch("w_pitch", name)
        rows, to = slots.constant("rows", 0, "i64"), slots.workspace("panels", 0, tile.scalar)
        depth, panels = slots.size("depth", self.rows.shape[1]), slots.size("panels_of_group", self.panels)
        columns, step = slots.size("columns", self.columns), slots.size("group_step", self.group_step)
        with b.loop("panel", b.begin, b.end, unroll=1) as e:
            group = e // panels
            first = (e - group * panels) * tile.columns
            origin = source.at(group * step + first)
            masks = [b.first_lanes(columns - first - j * tile.lanes, tile.lanes) for j in range(tile.vectors)]
            with b.loop("row", 0, depth, unroll=1) as r:
                self._row(b, origin.at(b.load(rows, group * depth + r) * pitch), to.at((e * depth + r) * tile.columns), masks)
        extent = self.rows.shape[0] * self.panels
        return (KernelCall(b.finish(), slots.arguments, extent=extent, bytes=2 * self.problem.input(1).bytes),)

    def _row(self, b: Builder, source: Buffer, to: Buffer, masks: list[Value]) -> None:
        for j, mask in enumerate(masks):
            at = j * self.tile.lanes
            b.store(to, at, widen(b, b.load(source, at, self.tile.lanes, mask)))
