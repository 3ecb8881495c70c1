"""The gates of LSTM, GRU and RNN cells as loop code, and the activations they may have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sartor.graph.reference_recurrent import Activation
from sartor.loops import math as functions
from sartor.loops.language import Buffer, Builder, Type, Value
from sartor.templates.vectors import Body

if TYPE_CHECKING:
    from sartor.templates.recurrent import RecurrentCode


def _elu(b: Builder, x: Value, alpha: float) -> Value:
    return b.select(x >= 0.0, x, (functions.exp(b, b.minimum(x, 0.0)) - 1.0) * alpha)


ACTIVATIONS: dict[str, Callable[[Builder, Value, float, float], Value]] = {
    "affine": lambda b, x, alpha, beta: x * alpha + beta,
    "elu": lambda b, x, alpha, beta: _elu(b, x, alpha),
    "hardsigmoid": lambda b, x, alpha, beta: b.minimum(1.0, b.maximum(0.0, x * alpha + beta)),
    "leakyrelu": lambda b, x, alpha, beta: b.select(x >= 0.0, x, x * alpha),
    "relu": lambda b, x, alpha, beta: b.maximum(0.0, x),
    "scaledtanh": lambda b, x, alpha, beta: functions.tanh(b, x * beta) * alpha,
    "sigmoid": lambda b, x, alpha, beta: functions.sigmoid(b, x),
    "softplus": lambda b, x, alpha, beta: functions.softplus(b, x),
    "softsign": lambda b, x, alpha, beta: x / (b.unary("abs", x) + 1.0),
    "tanh": lambda b, x, alpha, beta: functions.tanh(b, x),
    "thresholdedrelu": lambda b, x, alpha, beta: b.select(x > alpha, x, 0.0),
}
"""The activations by their names in lower case, with alpha and beta."""


class Cell(ABC):
    """One direction of a cell: `step` takes some rows one step on."""

    def __init__(self, code: RecurrentCode, direction: Value, activations: Sequence[Activation]) -> None:
        self.code, self.b, self.d, self.activations = code, code.b, direction, activations

    def activate(self, number: int, x: Value) -> Value:
        """The activation `number` of `x`, clipped before where `x` is a gate's input (a cell's state is not, as in ONNX Runtime)."""
        b, clip = self.b, self.code.problem["clip"]
        if clip is not None and number < 2:
            x = b.minimum(clip, b.maximum(-clip, x))  # in this order a NaN stays
        name, alpha, beta = self.activations[number]
        return ACTIVATIONS[name](b, x, alpha, beta)

    @abstractmethod
    def step(self, t: Value, first: Value, rows: Value, reverse: bool) -> None:
        """Emits the step `t` of the rows from `first` on."""

    def rows(self, t: Value, first: Value, rows: Value, reverse: bool, body: Callable[[Value, Value, Value], None],
             finish: bool = True) -> None:
        """Emits `body(row, input's offset, output's offset)` for the rows whose sequence lasts; the output of others is zero."""
        b, code = self.b, self.code
        with b.loop("row", 0, rows, unroll=1) as row:
            length = code.steps
            if code.lengths is not None:
                length = b.minimum(b.cast(b.load(code.lengths, first + row), "i64"), length)
            time = length - 1 - t if reverse else t
            with b.branch(t < length):
                source = (time * code.batch + first + row) * (code.directions * code.columns) + self.d * code.columns
                body(row, source, code.place(time, self.d, first + row))
            if code.lengths is not None and finish:
                with b.otherwise():
                    start = code.place(t, self.d, first + row)

                    def clear(j: Value, lanes: int, mask: Value | None) -> None:
                        code.put(start + j, b.constant(0.0, Type(code.scalar, lanes)), mask)

                    code.units(clear)

    def gate(self, row: Value, source: Value, number: int, j: Value, lanes: int, mask: Value | None) -> Value:
        """The gate's input: the input's product and the state's."""
        return self.input(source, number, j, lanes, mask) + self.sum(row, number, j, lanes, mask)

    def input(self, source: Value, number: int, j: Value, lanes: int, mask: Value | None) -> Value:
        """The input's product for a gate."""
        return self.code.load(self.code.x, source + number * self.code.hidden + j, lanes, mask)

    def sum(self, row: Value, number: int, j: Value, lanes: int, mask: Value | None) -> Value:
        """The state's product for a gate."""
        return self.b.load(self.code.sums, self.sum_place(row, number, j), lanes, mask)

    def sum_place(self, row: Value, number: int, j: Value) -> Value:
        """Where the state's product for a gate is kept."""
        return row * self.code.columns + number * self.code.hidden + j

    def state(self, buffer: Buffer, row: Value, j: Value, lanes: int, mask: Value | None) -> Value:
        """A row's state."""
        return self.b.load(buffer, row * self.code.hidden + j, lanes, mask)

    def keep(self, row: Value, target: Value, j: Value, h: Value, mask: Value | None) -> None:
        """Notes the new h, and writes it out."""
        self.b.store(self.code.h, row * self.code.hidden + j, h, mask)
        self.code.put(target + j, h, mask)


class Lstm(Cell):
    """Gates in the order input, output, forget, cell."""

    def step(self, t: Value, first: Value, rows: Value, reverse: bool) -> None:
        self.code.multiply(self.code.h, self.d, 0, self.code.columns, rows)

        def row(at: Value, source: Value, target: Value) -> None:
            self.code.units(self._unit(at, source, target))

        self.rows(t, first, rows, reverse, row)

    def _unit(self, row: Value, source: Value, target: Value) -> Body:
        b, code = self.b, self.code

        def peep(number: int, x: Value, c: Value, j: Value, mask: Value | None) -> Value:
            if code.peepholes is None:
                return x
            place = self.d * (3 * code.hidden) + number * code.hidden + j
            return x + code.load(code.peepholes, place, x.type.lanes, mask) * c

        def unit(j: Value, lanes: int, mask: Value | None) -> None:
            c = self.state(code.c, row, j, lanes, mask)
            i, o, f, g = (self.gate(row, source, number, j, lanes, mask) for number in range(4))
            i = self.activate(0, peep(0, i, c, j, mask))
            f = 1.0 - i if code.problem["input_forget"] else self.activate(0, peep(2, f, c, j, mask))
            c = f * c + i * self.activate(1, g)
            b.store(code.c, row * code.hidden + j, c, mask)
            o = self.activate(0, peep(1, o, c, j, mask))
            self.keep(row, target, j, o * self.activate(2, c), mask)

        return unit


class Gru(Cell):
    """Gates in the order update, reset, hidden."""

    def step(self, t: Value, first: Value, rows: Value, reverse: bool) -> None:
        code = self.code
        linear, two = bool(code.problem["linear_before_reset"]), 2 * code.hidden
        code.multiply(code.h, self.d, 0, code.columns if linear else two, rows)
        if not linear:
            self.rows(t, first, rows, reverse, lambda at, source, target: code.units(self._reset(at, source)), finish=False)
            code.multiply(code.c, self.d, two, code.columns, rows)
        self.rows(t, first, rows, reverse, lambda at, source, target: code.units(self._unit(at, source, target, linear)))

    def _reset(self, row: Value, source: Value) -> Body:
        """r * h, kept in the place of c."""
        def unit(j: Value, lanes: int, mask: Value | None) -> None:
            r = self.activate(0, self.gate(row, source, 1, j, lanes, mask))
            kept = r * self.state(self.code.h, row, j, lanes, mask)
            self.b.store(self.code.c, row * self.code.hidden + j, kept, mask)

        return unit

    def _unit(self, row: Value, source: Value, target: Value, linear: bool) -> Body:
        code = self.code

        def unit(j: Value, lanes: int, mask: Value | None) -> None:
            z = self.activate(0, self.gate(row, source, 0, j, lanes, mask))
            product = self.sum(row, 2, j, lanes, mask)
            if linear:
                if code.bias is not None:
                    product = product + code.load(code.bias, self.d * code.hidden + j, lanes, mask)
                product = self.activate(0, self.gate(row, source, 1, j, lanes, mask)) * product
            new = self.activate(1, self.input(source, 2, j, lanes, mask) + product)
            self.keep(row, target, j, (1.0 - z) * new + z * self.state(code.h, row, j, lanes, mask), mask)

        return unit


class Rnn(Cell):
    """One gate."""

    def step(self, t: Value, first: Value, rows: Value, reverse: bool) -> None:
        code = self.code
        code.multiply(code.h, self.d, 0, code.columns, rows)

        def row(at: Value, source: Value, target: Value) -> None:
            def unit(j: Value, lanes: int, mask: Value | None) -> None:
                self.keep(at, target, j, self.activate(0, self.gate(at, source, 0, j, lanes, mask)), mask)

            code.units(unit)

        self.rows(t, first, rows, reverse, row)


CELLS: dict[str, type[Cell]] = {"lstm": Lstm, "gru": Gru, "rnn": Rnn}
