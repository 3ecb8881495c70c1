"""Many random graphs through the whole pipeline."""

from __future__ import annotations

import pytest
from tests.cpu.random_programs import check_program

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(100, 400))
def test_compiled_random_graphs_compute_what_they_mean(seed: int) -> None:
    check_program(seed, ("avx2", "sse4")[seed % 2])
