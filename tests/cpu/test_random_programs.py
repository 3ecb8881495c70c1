"""Random graphs through the whole pipeline: passes, templates, storage, binding, native code."""

from __future__ import annotations

import pytest
from tests.cpu.random_programs import check_program


@pytest.mark.parametrize("seed", range(12))
def test_a_compiled_random_graph_computes_what_the_graph_means(seed: int) -> None:
    check_program(seed, "avx2" if seed % 3 else "sse4")
