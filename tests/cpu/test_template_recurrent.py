"""The recurrent template against its reference, in guarded memory, whole and in slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.harness import check, device, problem, random_inputs

from sartor.graph.layer import Problem
from sartor.graph.reference_recurrent import GATES
from sartor.sizes import symbol
from sartor.templates.recurrent import Recurrent

ACTIVATIONS = {"lstm": (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("softsign", 0.0, 0.0)),
               "gru": (("hardsigmoid", 0.2, 0.5), ("tanh", 0.0, 0.0)), "rnn": (("elu", 0.7, 0.0),)}
TEMPLATE = Recurrent()


def cell_problem(cell: str, steps: Any, batch: Any, hidden: int, reverse: tuple[bool, ...], given: str = "lhcbp", dtype: str = "f32",
                 **attributes: Any) -> Problem:
    """A problem with the optional inputs whose letters are `given`; the second direction has the same activations."""
    directions, gates = len(reverse), GATES[cell]
    optional = {"l": ("i32", (batch,)), "h": (dtype, (directions, batch, hidden)), "c": (dtype, (directions, batch, hidden)),
                "b": (dtype, (directions, hidden)), "p": (dtype, (directions, 3 * hidden))}
    inputs = {"x": (dtype, (steps, batch, directions * gates * hidden)), "r": (dtype, (directions, hidden, gates * hidden)),
              **{name: value for name, value in optional.items() if name in given}}
    settings = {"cell": cell, "reverse": reverse, "activations": (ACTIVATIONS[cell],) * directions, "clip": None,
                "linear_before_reset": False, "input_forget": False, **attributes}
    made = problem("recurrent", inputs, (dtype, (steps + (2 if cell == "lstm" else 1), directions, batch, hidden)), **settings)
    order = ("x", "r", *(name if name in given else "" for name in "lhcbp"))
    layer = type(made.layer)("layer", "recurrent", order, ("y",), settings)
    return Problem(layer, made.tensors, {})


def run(made: Problem, sizes: dict[str, int] | None = None, **options: Any) -> None:
    inputs = random_inputs(made, sizes)
    for name, array in inputs.items():
        if array.dtype.kind == "f":
            inputs[name] = (array * 0.4).astype(array.dtype)
    if "l" in inputs:
        steps = made.tensors["x"].shape[0]
        count = steps if isinstance(steps, int) else (sizes or {})[str(steps)]
        inputs["l"] = np.random.default_rng(3).integers(-1, count + 3, inputs["l"].shape).astype(np.int32)
    check(TEMPLATE, made, inputs, sizes, **options)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize(("cell", "given"), [("lstm", "lhcp"), ("lstm", "c"), ("gru", "lh"), ("gru", ""), ("rnn", "lh")])
def test_cells(cell: str, given: str, isa: str) -> None:
    run(cell_problem(cell, 3, 7, 13, (False, True), given), on=device(isa))


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (1, 1), (4, 4), (2, 9)])
def test_one_kernel_for_all_sizes(cell: str, steps: int, batch: int) -> None:
    run(cell_problem(cell, symbol("s"), symbol("b"), 17, (True,), "lh"), {"s": steps, "b": batch})


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_types(dtype: str) -> None:
    run(cell_problem("lstm", 3, 5, 9, (False,), "hc", dtype), tolerance=1e-5 if dtype == "f64" else 5e-3,
        absolute=1e-6 if dtype == "f64" else 5e-3)


def test_attributes() -> None:
    run(cell_problem("gru", 3, 5, 9, (False, True), "hb", linear_before_reset=True, clip=0.5))
    run(cell_problem("gru", 3, 1, 8, (True,), "b", linear_before_reset=True))
    run(cell_problem("lstm", 3, 5, 9, (False,), "h", input_forget=True, clip=0.5))


@pytest.mark.parametrize(("cell", "hidden"), [("lstm", 13), ("gru", 9), ("gru", 32), ("rnn", 67)])
def test_constant_weights_are_packed(cell: str, hidden: int) -> None:
    made = cell_problem(cell, 3, 6, hidden, (False, True), "h")
    weights = np.random.default_rng(5).standard_normal(made.tensors["r"].shape).astype(np.float32) * np.float32(0.3)
    run(Problem(made.layer, made.tensors, {"r": weights}))
