"""Linear attention's time loop against the reference, in guarded memory, whole and in slices."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.graph.layer import Problem
from sartor.loops.llvm import compile_ir, render
from sartor.sizes import symbol
from sartor.templates.linear_attention import LinearAttention

TEMPLATE = LinearAttention()


def made(batch, steps, heads, groups, depth, columns, state=True, decay=0, beta=0, dtype="f32"):
    """A problem; `decay` and `beta` are how many factors each group of heads, and each step, has (0: the input is absent)."""
    inputs = {"q": (dtype, (batch, steps, heads, depth)), "k": (dtype, (batch, steps, groups, depth)),
              "v": (dtype, (batch, steps, groups, columns))}
    optional = {"s": (dtype, (batch, groups, depth, columns)) if state else None,
                "d": (dtype, (batch, steps, groups, decay)) if decay else None, "b": (dtype, (batch, steps, beta)) if beta else None}
    inputs |= {name: tensor for name, tensor in optional.items() if tensor}
    found = harness.problem("linear_attention", inputs, (dtype, (batch, groups, steps * (heads // groups) + depth, columns)), scale=0.3)
    order = ("q", "k", "v", *(name if tensor else "" for name, tensor in optional.items()))
    return Problem(type(found.layer)("layer", "linear_attention", order, ("y",), {"scale": 0.3}), found.tensors, {})


def run(problem, sizes=None, **options):
    inputs = {name: (x * 0.3).astype(x.dtype) for name, x in harness.random_inputs(problem, sizes).items()}
    return harness.check(TEMPLATE, problem, inputs, sizes, **options)


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
@pytest.mark.parametrize(("state", "decay", "beta"), [(False, 0, 0), (True, 1, 0), (True, 5, 0), (False, 0, 1), (True, 5, 2), (True, 1, 1)])
def test_rules(state, decay, beta, isa):
    run(made(2, 4, 4, 2, 5, 37, state, decay, beta), on=harness.device(isa))


@pytest.mark.parametrize(("batch", "steps"), [(1, 0), (1, 1), (3, 6)])
def test_one_kernel_for_all_sizes(batch, steps):
    run(made(symbol("b"), symbol("t"), 3, 1, 8, 16, decay=8, beta=1), {"b": batch, "t": steps})


@pytest.mark.parametrize("columns", [1, 3, 8, 64, 100])
def test_widths(columns):
    run(made(1, 3, 2, 2, 1, columns, decay=1, beta=2))
    run(made(1, 3, 2, 2, 7, columns, dtype="f64"))


def test_a_step_by_hand():
    """S = 1 fades to 0.5, is 1 for the key 2, and takes in 2 * 0.5 * (7 - 1): 6.5; the query 2 reads 13, scaled 3.9."""
    problem = made(1, 1, 1, 1, 1, 1, decay=1, beta=1)
    values = {"q": 2, "k": 2, "v": 7, "s": 1, "d": 0.5, "b": 0.5}
    inputs = {name: np.full([int(d) for d in problem.tensors[name].shape], value, np.float32) for name, value in values.items()}
    np.testing.assert_allclose(harness.check(TEMPLATE, problem, inputs)["y"].reshape(-1), [3.9, 6.5], rtol=1e-6)


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_compiles_for_others(isa):
    device = harness.device(isa)
    problem = made(2, 3, 4, 2, 5, 37, decay=5, beta=2)
    calls = TEMPLATE.build(problem, {}, device).calls
    assert compile_ir(render([c.kernel for c in calls], device.target), device.target)
