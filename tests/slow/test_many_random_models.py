"""Five thousand random ONNX models against onnx's reference implementation."""

from __future__ import annotations

import os

import pytest
from tests.cpu.random_models.running import check_seeds

pytestmark = pytest.mark.slow
AT_ONCE = 250


@pytest.mark.parametrize("start", range(0, 5000, AT_ONCE))
def test_random_models_compute_what_the_reference_does(start: int) -> None:
    processes = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    wrong = [v for v in check_seeds(range(start, start + AT_ONCE), processes) if v.kind != "ok"]
    assert not wrong, "\n".join(map(str, wrong))
