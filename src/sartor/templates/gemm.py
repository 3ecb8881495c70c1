"""Matrix products whose right-hand side is constant: MatMul and Gemm with weights, and 1x1 convolutions.

The weights are packed in panels when compiling; the left-hand side is read where it lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder
from sartor.templates.base import Config, Implementation, Space
from sartor.templates.expression_code import Epilogue, working
from sartor.templates.microkernel import is_narrow, may_overwrite, parse_tile, tile_choices
from sartor.templates.panels import pack_panels, working_array
from sartor.templates.product import PackedPanels, Product, ProductCode, as_product, blocking, copies_bytes, product_call
from sartor.templates.slots import Slots

Array = np.ndarray[Any, Any]


def weight_matrix(problem: Problem) -> Array:
    """The constant right-hand side as [..., K, N], in the type it is computed in."""
    weights = problem.constant(1)
    assert weights is not None
    matrix = working_array(weights, problem.input(1).dtype)
    if problem.layer.kind == "convolution":
        return matrix.reshape(matrix.shape[-2:])
    return np.swapaxes(matrix, -1, -2) if problem["transpose_b"] else matrix


class GemmTemplate:
    """Products with a constant right-hand side, on register tiles with packed weights."""

    name = "gemm"

    def applies(self, problem: Problem, device: Device) -> bool:
        found = as_product(problem)
        return (found is not None and problem.constant(1) is not None and problem.input(0).dtype != "bool"
                and problem.input(0).dtype == problem.input(1).dtype)

    def space(self, problem: Problem, device: Device) -> Space:
        default = self.default(problem, device)
        tiles = tile_choices(device.target)
        panels = sorted({1, 2, 4, 8, 16, 32, default["panels"]})
        mc = sorted({24, 48, 96, 192, 384, default["mc"]})
        return Space({"tile": tiles, "panels": panels, "mc": mc, "kc": (0, 256, 512), "unroll": (4, 2, 8), "prefetch": (4, 0, 2, 8),
                      "rows_ahead": (True, False)})

    def default(self, problem: Problem, device: Device) -> dict[str, Any]:
        return blocking(self._product(problem), device, working(problem.input(0).dtype))

    def pack(self, problem: Problem, config: Config, device: Device) -> tuple[Array, ...]:
        scalar = working(problem.input(1).dtype)
        return (pack_panels(weight_matrix(problem), parse_tile(config["tile"], scalar, device.target).columns),)

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        found = self._product(problem)
        scalar = working(problem.input(0).dtype)
        tile = parse_tile(config["tile"], scalar, device.target)
        builder = Builder("gemm")
        slots = Slots(builder, problem)
        weights = slots.constant("b", 0, scalar)
        code = ProductCode(slots, found, tile, config)
        epilogue = Epilogue(builder, problem)
        code.write(epilogue, PackedPanels(weights, tile.columns, code.k, code.panel_count))
        return Implementation((product_call(code, (*slots.arguments, *epilogue.arguments()), copies_bytes(tile, config)),))

    def contiguous(self, problem: Problem, value: str) -> bool:
        return value == problem.layer.outputs[0] and is_narrow(problem)

    def in_place(self, problem: Problem, value: str) -> bool:
        return may_overwrite(problem, value)

    def _product(self, problem: Problem) -> Product:
        found = as_product(problem)
        assert found is not None
        return found


GEMM = GemmTemplate()
