"""Maxima with their places, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.ops_harness import check, rand


@pytest.mark.parametrize("options", [
    {"kernel_shape": [2, 2], "strides": [2, 2]}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]},
    {"kernel_shape": [2, 3], "dilations": [2, 1]}, {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "storage_order": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}], ids=str)
def test_places_of_maxima(options):
    x = -np.abs(rand(2, 3, 8, 7)) - 1  # padding would win were it compared
    check("MaxPool", {"x": x}, outputs=2, runtime=True, **options)


def test_one_and_three_dimensions():
    check("MaxPool", {"x": rand(2, 3, 9)}, outputs=2, runtime=True, kernel_shape=[3], strides=[2])
    check("MaxPool", {"x": rand(1, 2, 4, 5, 4)}, outputs=2, runtime=True, kernel_shape=[2, 2, 2])


def test_large_windows_make_no_more_layers():
    x = rand(1, 2, 40, 33)
    graph = check("MaxPool", {"x": x}, outputs=2, runtime=True, kernel_shape=[17, 9], pads=[8, 4, 8, 4], strides=[2, 3])
    assert len(graph.layers) < 12
