"""The newest version of every operator that computes on tensors, compiled and run on one thread and on two."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.every_operator import RECIPES
from tests.unit.test_every_operator import HOST, model_of, versions, wanted

import sartor

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("op", sorted(RECIPES))
def test_compiled(op):
    model, feeds, outputs = model_of(op, max(version for name, version in versions() if name == op))
    program = sartor.compile(model)
    assert op in HOST or not program.fallbacks
    for threads in (1, 2):
        with sartor.Session(program, threads=threads) as session:
            got = session.run(feeds)
        for name, want in zip(outputs, wanted(op), strict=True):
            assert got[name].shape == want.shape
            assert got[name].dtype == want.dtype
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)
