"""Random graphs compiled whole and compared with what they mean, for tests of few and of many seeds."""

from __future__ import annotations

import numpy as np
from tests.unit.graphs import feeds_for, random_graph

from sartor.compiler import compile_graph
from sartor.devices.probe import device_for
from sartor.graph.passes import optimize
from sartor.graph.reference import evaluate_graph
from sartor.runtime.session import Session


def check_program(seed: int, isa: str) -> None:
    """Compiles the random graph of this seed, runs it on one and two threads at two sizes, and compares with the wide reference."""
    symbolic = seed % 2 == 1
    graph = random_graph(seed, 16, symbolic=symbolic)
    program = compile_graph(optimize(graph), device_for(isa), threads=2)
    one, two = Session(program, threads=1), Session(program, threads=2)
    for sizes in ({"n": 2, "h": 3}, {"n": 1, "h": 4}) if symbolic else ({},):
        feeds = feeds_for(graph, seed, **sizes)
        expected, found, again = evaluate_graph(graph, feeds, wide=True), one.run(feeds), two.run(feeds)
        for name, want in expected.items():
            np.testing.assert_array_equal(
                found[name], again[name], err_msg=f"seed {seed}: {name} depends on the number of threads"
            )
            scale = float(np.abs(want[np.isfinite(want)]).max(initial=0)) + 1e-30
            np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-4 * scale, err_msg=f"seed {seed}: {name}")
