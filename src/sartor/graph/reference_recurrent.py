"""The meaning in NumPy of the kinds with a loop over time: `recurrent` (LSTM, GRU and RNN, after their inputs were multiplied) and
`linear_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sartor.graph.layer import Layer
from sartor.graph.scalars import Array

Activation = tuple[str, float, float]

ACTIVATIONS: dict[str, Callable[[Array, Any, Any], Array]] = {
    "affine": lambda x, a, b: a * x + b,
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
}
"""The activations by their names in lower case; alpha and beta come as numbers of the array's type."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""How many gates a cell has."""


class _Cell:
    """One direction's cell: from the input's products and the states to the new states."""

    def __init__(self, layer: Layer, direction: int, weights: Array, bias: Array | None, peepholes: Array | None) -> None:
        self.attributes = layer.attributes
        self.activations: Sequence[Activation] = layer.attributes["activations"][direction]
        self.weights = weights
        self.bias = bias
        self.size = weights.shape[0]
        self.peepholes = np.zeros(3 * self.size, weights.dtype) if peepholes is None else peepholes

    def activate(self, number: int, x: Array) -> Array:
        clip = self.attributes["clip"]
        if clip is not None and number < 2:
            x = np.clip(x, x.dtype.type(-clip), x.dtype.type(clip))
        name, alpha, beta = self.activations[number]
        return np.asarray(ACTIVATIONS[name](x, x.dtype.type(alpha), x.dtype.type(beta)))

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        cells = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}
        return cells[self.attributes["cell"]](x, h, c)

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, o, f, g = np.split(x + h @ self.weights, 4, axis=-1)
        of_i, of_o, of_f = np.split(self.peepholes, 3)
        i = self.activate(0, i + of_i * c)
        f = 1 - i if self.attributes["input_forget"] else self.activate(0, f + of_f * c)
        c = f * c + i * self.activate(1, g)
        o = self.activate(0, o + of_o * c)
        return o * self.activate(2, c), c

    def _gru(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        two = 2 * self.size
        z, r = np.split(self.activate(0, x[:, :two] + h @ self.weights[:, :two]), 2, axis=-1)
        if self.attributes["linear_before_reset"]:
            inner = h @ self.weights[:, two:]
            product = r * (inner if self.bias is None else inner + self.bias)
        else:
            product = (r * h) @ self.weights[:, two:]
        return (1 - z) * self.activate(1, x[:, two:] + product) + z * h, c

    def _rnn(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return self.activate(0, x + h @ self.weights), c


def recurrent(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """All states in order, then the last h and, of an LSTM, the last c: see the table in `sartor.graph.layer`."""
    given = iter(inputs)
    x, weights, lengths, first_h, first_c, bias, peepholes = (next(given) if name else None for name in layer.inputs)
    assert x is not None and weights is not None
    steps, batch, _ = x.shape
    hidden = weights.shape[1]
    out = np.zeros(shape, x.dtype)
    count = np.full(batch, steps) if lengths is None else np.minimum(lengths, steps)
    for d, reverse in enumerate(layer.attributes["reverse"]):
        cell = _Cell(layer, d, weights[d], None if bias is None else bias[d], None if peepholes is None else peepholes[d])
        columns = slice(d * weights.shape[2], (d + 1) * weights.shape[2])
        h, c = (np.zeros((batch, hidden), x.dtype) if first is None else first[d] for first in (first_h, first_c))
        for t in range(steps):
            rows = np.nonzero(t < count)[0]
            at = count[rows] - 1 - t if reverse else np.full(len(rows), t)
            h, c = h.copy(), c.copy()
            h[rows], c[rows] = cell.step(x[at, rows, columns], h[rows], c[rows])
            out[at, d, rows] = h[rows]
        out[steps, d] = h
        if layer.attributes["cell"] == "lstm":
            out[steps + 1, d] = c
    return out


def linear_attention(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    """The results of all steps, then the matrix as it is left: see the table in `sartor.graph.layer`."""
    given = iter(inputs)
    q, k, v, state, decay, beta = (next(given) if name else None for name in layer.inputs)
    assert q is not None and k is not None and v is not None
    (batch, steps, heads, depth), (groups, columns) = q.shape, v.shape[2:]
    matrix = np.zeros((batch, groups, depth, columns), q.dtype) if state is None else state
    out = np.zeros(shape, q.dtype)
    ratio = heads // groups
    for t in range(steps):
        value = v[:, t]
        if decay is not None:
            matrix = matrix * decay[:, t, :, :, None]
        if beta is not None:
            value = beta[:, t, :, None] * (value - np.einsum("bgde,bgd->bge", matrix, k[:, t]))
        matrix = matrix + k[:, t, :, :, None] * value[:, :, None, :]
        queries = q[:, t].reshape(batch, groups, ratio, depth)
        out[:, :, t * ratio:(t + 1) * ratio] = np.einsum("bgrd,bgde->bgre", queries, matrix) * q.dtype.type(layer.attributes["scale"])
    out[:, :, steps * ratio:] = matrix
    return out
