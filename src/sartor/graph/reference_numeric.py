"""The meaning in NumPy of Fourier transforms, determinants and pooled regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sartor.graph.layer import Layer
from sartor.graph.scalars import Array


def fourier(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `fourier`."""
    x, points = inputs[0].astype(np.float64), inputs[1].shape[0]
    line = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(np.complex128)
    if layer.attributes["half"]:
        line = line[:, :points // 2 + 1]
    line = line[:, :points]
    line = np.concatenate([line, np.zeros((line.shape[0], points - line.shape[1], line.shape[2]))], axis=1)
    if layer.attributes["half"]:
        for k in range(points // 2 + 1, points):
            line[:, k] = np.conj(line[:, points - k])
    if points and line.size:
        line = (np.fft.ifft if layer.attributes["inverse"] else np.fft.fft)(line, axis=1)
    line = line[:, :shape[1]]
    parts = np.stack([line.real, line.imag], axis=-1)[..., :shape[3]]
    return np.asarray(parts.astype(inputs[0].dtype))


def determinant(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `determinant`."""
    return np.asarray(np.linalg.det(inputs[0].astype(np.float64)).astype(inputs[0].dtype))


def regions(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `regions`."""
    x, boxes, images = inputs
    out = np.zeros(shape, x.dtype)
    for r, (box, image) in enumerate(zip(boxes, images, strict=True)):
        if 0 <= image < x.shape[0]:
            function = _bins if layer.attributes["mode"] == "bins" else _sampled
            function(layer.attributes, x[image], box, out[r])
    return out


def trees(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """Raw result of `trees`."""
    x, thresholds, nodes, roots, weights, targets = inputs
    comparisons = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
    join = {"sum": np.add, "min": np.minimum, "max": np.maximum}[layer.attributes["op"]]
    out, met = np.zeros(shape, np.float64), np.zeros(shape, bool)
    for r, row in enumerate(x):
        for root in roots:
            node = root
            while (how := nodes[node, 1]) >= 0:
                value = row[nodes[node, 0]]
                holds = comparisons[how & 7](value, thresholds[node]) or (how >= 8 and np.isnan(value))
                node = nodes[node, 2 if holds else 3]
            for vote in range(nodes[node, 4], nodes[node, 5]):
                place = (r, targets[vote])
                out[place] = join(out[place], weights[vote]) if met[place] else weights[vote]
                met[place] = True
    return out


def _bins(attributes: Mapping[str, Any], x: Array, box: Array, out: Array) -> None:
    """The maximum of the pixels of each bin."""
    left, top, right, bottom = (int(np.trunc(v + np.copysign(0.5, v))) for v in box * x.dtype.type(attributes["scale"]))
    ranges = []
    for first, last, count, size in ((top, bottom, out.shape[0], x.shape[0]), (left, right, out.shape[1], x.shape[1])):
        span = x.dtype.type(max(last - first + 1, 1)) / x.dtype.type(count)
        edges = [(int(np.floor(x.dtype.type(i) * span)), int(np.ceil(x.dtype.type(i + 1) * span))) for i in range(count)]
        ranges.append([(min(max(a + first, 0), size), min(max(b + first, 0), size)) for a, b in edges])
    for i, (a, b) in enumerate(ranges[0]):
        for j, (c, d) in enumerate(ranges[1]):
            out[i, j] = x[a:b, c:d].max(axis=(0, 1)) if a < b and c < d else 0


def _sampled(attributes: Mapping[str, Any], x: Array, box: Array, out: Array) -> None:
    """The mean or maximum of points within each cell, each made of four pixels."""
    number = x.dtype.type
    places = []
    low = box[[1, 0]] * number(attributes["scale"]) - number(attributes["offset"])
    high = box[[3, 2]] * number(attributes["scale"]) - number(attributes["offset"])
    for start, end, cells, size in zip(low, high, out.shape, x.shape, strict=False):
        extent = end - start if attributes["offset"] else max(end - start, number(1))
        span = extent / number(cells)
        count = attributes["sampling"] or max(int(np.ceil(span)), 0)
        places.append([[_corners(start + number(cell) * span + (number(i) + number(0.5)) * (span / number(count)), size)
                        for i in range(count)] for cell in range(cells)])
    for i, rows in enumerate(places[0]):
        for j, columns in enumerate(places[1]):
            points = []
            for row in rows:
                for column in columns:
                    inside = row is not None and column is not None
                    points.append([x[a, c] * (u * v) for a, u in row for c, v in column] if row and column and inside
                                  else [np.zeros_like(x[0, 0])] * 4)
            if points:
                terms = np.array(points)
                out[i, j] = terms.sum(axis=1).mean(axis=0) if attributes["mode"] == "average" else terms.max(axis=(0, 1))


def _corners(at: Any, size: int) -> list[tuple[int, Any]] | None:
    """The two pixels around a place, with their weights; None for a place outside."""
    if not -1 <= at <= size:
        return None
    at = max(at, type(at)(0))
    low = int(at)
    if low >= size - 1:
        return [(size - 1, type(at)(1)), (size - 1, type(at)(0))]
    return [(low, 1 - (at - low)), (low + 1, at - low)]
