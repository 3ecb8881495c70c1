"""One row times a constant matrix, at the speed at which the matrix can be read.

A panel is `vectors` vectors wide and is read once, from front to back.  Where there are few columns, the depth is dealt out to
`chains` sums, so that enough multiply-adds are under way; the sums are added in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Buffer, Builder, Type, Value
from sartor.templates.base import Config, Implementation, KernelCall, Space
from sartor.templates.expression_code import Epilogue, widen, working
from sartor.templates.gemm import weight_matrix
from sartor.templates.panels import pack_panels
from sartor.templates.product import as_product
from sartor.templates.slots import Slots

Array = np.ndarray[Any, Any]

UNDER_WAY = 8
"""Multiply-adds under way that keep the units busy."""


class MatVecCode:
    """Writes the kernel; the extent is the panels."""

    def __init__(self, slots: Slots, vectors: int, chains: int, lanes: int, scalar: str) -> None:
        layer = slots.problem.layer
        self.builder: Builder = slots.builder
        self.vectors, self.chains, self.lanes = vectors, chains, lanes
        self.type = Type(scalar, lanes)
        self.panels = slots.constant("b", 0, scalar)
        self.a = slots.pointer("a", layer.inputs[0])
        # The elements of a transposed row lie a pitch apart.
        transposed = layer.kind == "matmul" and slots.problem["transpose_a"]
        self.step = slots.pitch("a_pitch", layer.inputs[0]) if transposed else None
        self.c = slots.pointer("c", layer.outputs[0])
        self.n, self.k = slots.size("n", slots.problem.output().columns), slots.size("k", slots.problem.input(0).elements)

    def write(self, epilogue: Epilogue) -> None:
        """Emits the whole body."""
        b, lanes = self.builder, self.lanes
        width = self.vectors * lanes
        self.zero_row = b.constant(0, Type("i64"))
        with b.loop("panel", b.begin, b.end, unroll=1) as p:
            sums = self._sums(self.panels.at(p * (self.k * width)))
            column = p * width
            with b.branch(self.n - column >= width):
                for j, value in enumerate(sums):
                    self._store(epilogue, value, column + j * lanes, None)
            with b.otherwise():
                line = b.local("line", self.type.scalar, width)
                for j, value in enumerate(sums):
                    b.store(line, j * lanes, value)
                with b.loop("vector", 0, self.n - column, lanes, unroll=1) as at:
                    mask = b.first_lanes(self.n - column - at, lanes)
                    self._store(epilogue, b.load(line, at, lanes), column + at, mask)

    def _store(self, epilogue: Epilogue, value: Value, column: Value, mask: Value | None) -> None:
        self.builder.store(self.c, column, epilogue.apply(value, self.zero_row, column, self.lanes, mask), mask)

    def _sums(self, panel: Buffer) -> list[Value]:
        b, width = self.builder, self.vectors * self.lanes
        zero = b.constant(0, self.type)
        sums = [[b.variable("sum", zero) for _ in range(self.vectors)] for _ in range(self.chains)]

        def step(k: Value, chain: int) -> None:
            index = k + chain
            element = b.broadcast(widen(b, b.load(self.a, index if self.step is None else index * self.step)), self.lanes)
            for j, total in enumerate(sums[chain]):
                total.set(b.fma(element, b.load(panel, index * width + j * self.lanes, self.lanes, align=self.type.bytes), total.get()))

        whole = self.k // self.chains * self.chains
        with b.loop("k", 0, whole, self.chains, unroll=4 if self.chains == 1 else 1) as k:
            for chain in range(self.chains):
                step(k, chain)
        if self.chains > 1:
            with b.loop("k", whole, self.k, unroll=1) as k:
                step(k, 0)
        totals = [total.get() for total in sums[0]]
        for more in sums[1:]:
            totals = [a + total.get() for a, total in zip(totals, more, strict=True)]
        return totals


class MatVecTemplate:
    """Products of a single row with a constant matrix."""

    name = "matvec"

    def applies(self, problem: Problem, device: Device) -> bool:
        found = as_product(problem)
        return (found is not None and problem.constant(1) is not None and problem.input(0).dtype == problem.input(1).dtype != "bool"
                and found.m == 1 and found.batch == 1 and isinstance(found.k, int))

    def space(self, problem: Problem, device: Device) -> Space:
        return Space({"vectors": (8, 4, 2, 1, 12), "chains": (1, 2, 4, 8)},
                     constraint=lambda config: config["vectors"] * config["chains"] <= 12)

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        columns = int(problem.output().columns)  # type: ignore[arg-type]
        lanes = device.lanes(working(problem.input(0).dtype))
        # A part of the columns for each core, as wide as keeps the units busy.
        part = -(-columns // device.cores // lanes)
        vectors = max((v for v in (8, 4, 2, 1) if v <= part), default=1)
        return {"vectors": vectors, "chains": UNDER_WAY // vectors}

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        lanes = device.lanes(working(problem.input(0).dtype))
        return (pack_panels(weight_matrix(problem), int(config["vectors"]) * lanes),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        scalar = working(problem.input(0).dtype)
        lanes, vectors = device.lanes(scalar), int(config["vectors"])
        builder = Builder("matvec")
        slots = Slots(builder, problem)
        code = MatVecCode(slots, vectors, int(config["chains"]), lanes, scalar)
        epilogue = Epilogue(builder, problem)
        code.write(epilogue)
        columns, depth = int(problem.output().columns), problem.input(0).elements  # type: ignore[arg-type]
        return Implementation((KernelCall(
            builder.finish(), (*slots.arguments, *epilogue.arguments()), extent=-(-columns // (vectors * lanes)),
            multiply_adds=depth * columns, bytes=problem.input(1).bytes + problem.input(0).bytes + problem.output().bytes),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return False

    def in_place(self, problem: Problem, value: str) -> bool:
        return False


MATVEC = MatVecTemplate()
