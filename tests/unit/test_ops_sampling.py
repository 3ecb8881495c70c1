"""Grid sampling against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.ops_harness import check, rand


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode, padding, align):
    grid = (1.5 * rand(2, 3, 5, 2)).clip(-3, 3)
    check("GridSample", {"x": rand(2, 2, 4, 6), "g": grid}, opset=20, tolerance=1e-4, symbolic=padding == "zeros", mode=mode,
          padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_grid_sample_of_volumes(mode):
    grid = rand(1, 2, 3, 2, 3)
    check("GridSample", {"x": rand(1, 2, 3, 4, 5), "g": grid}, opset=20, tolerance=1e-4, symbolic=False, mode=mode)
    check("GridSample", {"x": rand(1, 2, 3, 4, 5).astype(np.float64), "g": grid}, opset=20, tolerance=1e-4, symbolic=False, mode=mode)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 5, 4), (1, 3, 4, 2)], ids=str)
def test_affine_grids(size, align):
    theta, wanted = rand(size[0], len(size) - 2, len(size) - 1), np.array(size)
    check("AffineGrid", {"theta": theta}, {"size": wanted}, opset=20, align_corners=align)
    check("AffineGrid", {"theta": theta, "size": wanted}, opset=20, align_corners=align, fixed={"size": 0})


def test_affine_grid_of_one_pixel_a_side():
    """Corners that fall together lie at -1."""
    theta = rand(2, 2, 3)
    wanted = (theta[:, :, 2] - theta[:, :, 0] - theta[:, :, 1]).reshape(2, 1, 1, 2)
    check("AffineGrid", {"theta": theta}, {"size": np.array([2, 3, 1, 1])}, opset=20, align_corners=1, expected=[wanted])
