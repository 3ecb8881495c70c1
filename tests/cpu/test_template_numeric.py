"""Fourier transforms, determinants and pooled regions against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu import harness

from sartor.sizes import symbol
from sartor.templates.determinant import Determinant
from sartor.templates.fourier import Fourier
from sartor.templates.regions import Regions
from sartor.templates.trees import Trees

N, R = symbol("n"), symbol("r")


def fourier(points, length=None, before=2, after=3, parts=2, kept=None, parts_out=2, dtype="f32", **attributes):
    length, kept = points if length is None else length, points if kept is None else kept
    reads = {"x": (dtype, (before, length, after, parts)), "c": ("f64", (points,)), "s": ("f64", (points,))}
    return harness.problem("fourier", reads, (dtype, (before, kept, after, parts_out)), **{"inverse": False, "half": False} | attributes)


def turned(problem, points, sizes=None):
    angle = 2 * np.pi * np.arange(points) / max(points, 1)
    return harness.random_inputs(problem, sizes) | {"c": np.cos(angle), "s": np.sin(angle)}


@pytest.mark.parametrize("points", [1, 2, 3, 5, 8, 12, 49, 97, 210])
@pytest.mark.parametrize("inverse", [False, True])
def test_lengths(points, inverse):
    for isa, dtype in (("sse4", "f32"), ("avx2", "f64")):
        problem = fourier(points, inverse=inverse, dtype=dtype)
        harness.check(Fourier(), problem, turned(problem, points), on=harness.device(isa), absolute=1e-5)


@pytest.mark.parametrize("shape", [
    {"length": 5, "parts": 1}, {"length": 20, "parts": 1}, {"kept": 7, "parts": 1}, {"length": 7, "half": True, "inverse": True, "parts_out": 1},
    {"length": 3, "half": True, "inverse": True, "parts_out": 1, "after": 1}, {"before": 0}, {"length": 0}], ids=str)
def test_other_shapes(shape):
    for points in (12, 13):
        problem = fourier(points, **shape)
        harness.check(Fourier(), problem, turned(problem, points), absolute=1e-5)


def test_fourier_of_sizes_and_types():
    for points in (1, 6, 40):
        problem = fourier(N)
        harness.check(Fourier(), problem, turned(problem, points, {"n": points}), {"n": points}, absolute=1e-5)
    problem = fourier(9, dtype="f16")
    harness.check(Fourier(), problem, turned(problem, 9), absolute=2e-2)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 19])
@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_determinants(n, isa):
    for dtype in ("f32", "f64"):
        problem = harness.problem("determinant", {"x": (dtype, (2, 3, N, N))}, (dtype, (2, 3)))
        harness.check(Determinant(), problem, None, {"n": n}, on=harness.device(isa), tolerance=1e-4)


def test_determinants_of_special_matrices():
    problem = harness.problem("determinant", {"x": ("f32", (4, 3, 3))}, ("f32", (4,)))
    x = np.array([np.ones((3, 3)), np.eye(3)[[1, 0, 2]], [[0, 2, 0], [0, 0, 3], [4, 0, 0]], np.full((3, 3), np.nan)], np.float32)
    harness.check(Determinant(), problem, {"x": x})


def regions(mode, boxes, shape=(2, 9, 7, 19), grid=(3, 2), dtype="f32", offset=0.5, sampling=0, scale=0.5):
    return harness.problem("regions", {"x": (dtype, shape), "b": (dtype, (boxes, 4)), "i": ("i64", (boxes,))},
                           (dtype, (boxes, *grid, shape[-1])), mode=mode, scale=scale, offset=offset, sampling=sampling)


BOXES = np.array([[1, 2, 9, 15], [0, 0, 14, 18], [-9, -30, 90, 80], [3, 3, 3, 3], [6, 5, 2, 1], [40, 50, 60, 70], [2.5, 3.5, 4.5, 7.5],
                  [1e30, 0, 1e35, 4], [0, 0, 5, 5]], np.float32)


@pytest.mark.parametrize("mode", ["average", "max", "bins"])
@pytest.mark.parametrize("offset", [0.0, 0.5])
@pytest.mark.parametrize("sampling", [0, 1, 3])
def test_regions(mode, offset, sampling):
    for dtype, isa in (("f32", "sse4"), ("f32", "avx2"), ("f64", "avx2")):
        problem = regions(mode, R, dtype=dtype, offset=offset, sampling=sampling)
        boxes = BOXES[[0, 1, 2, 3, 4, 5, 6, 8]]
        images = np.array([0, 1, 1, 0, 1, 0, 1, 2])
        inputs = harness.random_inputs(problem, {"r": 8}) | {"b": boxes.astype(problem.tensors["b"].dtype.replace("f", "float")), "i": images}
        harness.check(Regions(), problem, inputs, {"r": 8}, on=harness.device(isa), pitch={"x": 23, "y": 21}, tolerance=1e-4,
                      absolute=1e-5)


@pytest.mark.parametrize("mode", ["average", "max", "bins"])
def test_regions_beyond_all_bounds_end(mode):
    problem = regions(mode, 4)
    boxes = np.array([[1e30, 0, 1e35, 4], [-1e20, -1e20, 1e20, 1e20], [np.nan, 0, 5, 5], [-np.inf, 0, np.inf, 5]], np.float32)
    inputs = harness.random_inputs(problem) | {"b": boxes, "i": np.array([0, 1, -1, 2**62])}
    harness.run(Regions(), problem, inputs)


def test_regions_of_f16():
    problem = regions("average", 2, dtype="f16")
    inputs = harness.random_inputs(problem) | {"b": BOXES[:2].astype(np.float16), "i": np.array([0, 1])}
    harness.check(Regions(), problem, inputs, absolute=2e-3)


@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_trees(op):
    reads = {"x": ("f32", (N, 3)), "thresholds": ("f32", (5,)), "nodes": ("i64", (5, 6)), "roots": ("i64", (2,)), "weights": ("f32", (4,)),
             "targets": ("i64", (4,))}
    problem = harness.problem("trees", reads, ("f32", (N, 3)), op=op)
    nodes = np.array([[0, 0, 1, 2, 0, 0], [1, 11, 3, 4, 0, 0], [0, -1, 0, 0, 0, 2], [0, -1, 0, 0, 2, 3], [0, -1, 0, 0, 3, 4]])
    more = {"thresholds": np.array([0.2, -0.1, 0, 0, 0], np.float32), "nodes": nodes, "roots": np.array([0, 1]),
            "weights": np.array([1, -2, 3, 4], np.float32), "targets": np.array([0, 2, 2, 0])}
    for isa in ("sse4", "avx2"):
        x = harness.random_inputs(problem, {"n": 33})["x"]
        x[::7] = np.nan
        harness.check(Trees(), problem, more | {"x": x}, {"n": 33}, on=harness.device(isa))
