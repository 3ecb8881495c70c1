"""LSTM, GRU and RNN: the inputs' products of all steps as one matrix product, then the time loop as a `recurrent` layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.graph.reference_recurrent import ACTIVATIONS, GATES, Activation
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.sizes import Dim
from sartor.types import to_numpy, working

_DEFAULT_ACTIVATIONS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}
_DEFAULTS = {"affine": (1.0, 0.0), "elu": (1.0, 0.0), "hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01, 0.0), "scaledtanh": (1.0, 1.0),
             "thresholdedrelu": (1.0, 0.0)}
_WITH_BETA = ("affine", "hardsigmoid", "scaledtanh")
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _activations(call: Call, cell: str, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Each direction's activations; alpha and beta are dealt out in order to those that have them."""
    names = [n.lower() for n in call.get("activations") or _DEFAULT_ACTIVATIONS[cell] * directions]
    each = len(_DEFAULT_ACTIVATIONS[cell])
    if len(names) != each * directions:
        raise ModelError(f"{call} has {len(names)} activations; expected {each * directions}")
    alphas, betas = iter(call.get("activation_alpha") or ()), iter(call.get("activation_beta") or ())
    found: list[Activation] = []
    for name in names:
        if name not in ACTIVATIONS:
            raise ModelError(f"{call} has the unknown activation {name!r}")
        alpha, beta = _DEFAULTS.get(name, (0.0, 0.0))
        if name in _DEFAULTS:
            alpha = float(next(alphas, alpha))
        if name in _WITH_BETA:
            beta = float(next(betas, beta))
        found.append((name, alpha, beta))
    return tuple(tuple(found[d * each:(d + 1) * each]) for d in range(directions))


def _columns(context: Context, value: str, parts: Sequence[tuple[int, int]]) -> list[str]:
    """Some ranges of a matrix's columns."""
    made = []
    rows, dtype = context.shape(value)[0], context.dtype(value)
    for start, stop in parts:
        def cut(array: Array, start: int = start, stop: int = stop) -> Array:
            return np.ascontiguousarray(array[:, start:stop])

        constant = context.derived_constant(value, ("columns", start, stop), cut, f"{value}.columns")
        made.append(constant or context.layer("slice", [value], Tensor(dtype, (rows, stop - start)), suffix="columns",
                                              starts=(0, start), steps=(1, 1)))
    return made


def _biases(context: Context, value: str, width: int, hidden: int, linear: bool) -> tuple[str, str]:
    """The bias [D, width] to add to the inputs' products, and that of the last gate's recurrent product where it stays apart."""
    kept = width - hidden if linear else width

    def joined(array: Array) -> Array:
        out = array[:, :width].copy()
        out[:, :kept] += array[:, width:width + kept]
        return out

    apart = _columns(context, value, [(width + kept, 2 * width)])[0] if linear else ""
    constant = context.derived_constant(value, ("biases", linear), joined, f"{value}.sum")
    if constant is not None:
        return constant, apart
    shape, dtype = context.shape(value), context.dtype(value)
    first, second = _columns(context, value, [(0, kept), (width, width + kept)])
    total = context.elementwise([first, second], lambda e, a, b: e("add", a, b), (shape[0], kept), suffix="bias")
    if linear:
        rest = _columns(context, value, [(kept, width)])[0]
        total = context.layer("concat", [total, rest], Tensor(dtype, (shape[0], width)), suffix="biases", axis=1)
    return total, apart


def _products(context: Context, x: str, weights: str, bias: str) -> str:
    """X [S, B, I] times the weights [D, G*H, I] of all directions, as [S, B, D*G*H], with the bias [D, G*H]; of 16-bit floats in f32."""
    steps, batch, size = context.shape(x)
    directions, width, inner = context.shape(weights)
    context.same(size, inner, "the inputs")
    rows = context.reshape(weights, (directions * width, inner), suffix="weights")
    dtype, expression, extra = context.dtype(x), None, []
    wide = working(dtype)
    if bias or wide != dtype:
        e = ExpressionBuilder([dtype] + ([context.dtype(bias)] if bias else []))
        out = e("cast", 0, dtype=wide) if wide != dtype else 0
        expression = e.finish(e("add", out, 1) if bias else out)
        extra = [context.reshape(bias, (directions * width,), suffix="bias_row")] if bias else []
    return context.layer("matmul", [x, rows], Tensor(wide, (steps, batch, directions * width)), suffix="products",
                         expression=expression, extra=extra, transpose_a=False, transpose_b=True)


def recurrent(cell: str) -> Operator:
    """LSTM, GRU or RNN."""
    def lower(context: Context, call: Call) -> None:
        x, w, r = call.inputs[:3]
        direction = call.get("direction", "forward")
        if direction not in _REVERSE:
            raise ModelError(f"{call} has the direction {direction!r}; known are {', '.join(_REVERSE)}")
        reverse = _REVERSE[direction]
        directions = len(reverse)
        hidden = _hidden(context, call)
        width = GATES[cell] * hidden
        batch_first = bool(call.get("layout", 0))
        states = [call.input(5), call.input(6) if cell == "lstm" else ""]
        if batch_first:
            x = context.transpose(x, (1, 0, 2))
            states = [context.transpose(v, (1, 0, 2)) if v else "" for v in states]
        _check(context, call, directions, hidden, width, [context.shape(x)[1], *(context.shape(v)[1] for v in states if v)])
        linear = cell == "gru" and bool(call.get("linear_before_reset", 0))
        bias, apart = _biases(context, _wide(context, call.input(3)), width, hidden, linear) if call.input(3) else ("", "")
        products = _products(context, x, w, bias)
        steps, batch = context.shape(products)[:2]
        dtype, wide = context.dtype(x), context.dtype(products)
        inputs = [products, context.transpose(_wide(context, r), (0, 2, 1)), call.input(4), *(_wide(context, v) for v in states), apart,
                  _wide(context, call.input(7)) if cell == "lstm" else ""]
        clip = call.get("clip")
        out = context.layer(
            "recurrent", inputs, Tensor(wide, (steps + (2 if cell == "lstm" else 1), directions, batch, hidden)),
            cell=cell, reverse=reverse, activations=_activations(call, cell, directions), clip=None if clip is None else float(clip),
            linear_before_reset=linear, input_forget=bool(call.get("input_forget", 0)) and cell == "lstm")
        if wide != dtype:  # states are rounded once they are all known
            out = context.elementwise([out], lambda e, v: e("cast", v, dtype=dtype), context.shape(out), suffix="rounded")
        if call.output(0):
            _part(context, out, 0, steps, call.output(0), (2, 0, 1, 3) if batch_first else (), keep=True)
        for number in range(1, 3 if cell == "lstm" else 2):
            if call.output(number):
                _part(context, out, steps + number - 1, 1, call.output(number), (1, 0, 2) if batch_first else (), keep=False)

    return lower


def _wide(context: Context, value: str) -> str:
    """A value in the type that is computed in, so that the states of 16-bit networks keep what a step adds to them."""
    dtype = context.dtype(value) if value else ""
    if not value or working(dtype) == dtype:
        return value
    wide = to_numpy(working(dtype))
    made = context.derived_constant(value, ("wide",), lambda a: a.astype(wide), f"{value}.wide")
    if made is None:
        made = context.elementwise([value], lambda e, v: e("cast", v, dtype=working(dtype)), context.shape(value), suffix=f"{value}.wide")
    return made


def _hidden(context: Context, call: Call) -> int:
    """The number of hidden units."""
    hidden = context.shape(call.inputs[2])[-1]
    if not isinstance(hidden, int):
        hidden = call.get("hidden_size")
    if not isinstance(hidden, int) or hidden < 1:
        raise DeclinedError(f"{call} has {hidden} hidden units")
    return hidden


def _check(context: Context, call: Call, directions: int, hidden: int, width: int, batches: Sequence[Dim]) -> None:
    """Holds the shapes of the weights and the sizes of the batch to each other."""
    wanted: list[tuple[int, tuple[Dim, ...]]] = [
        (1, (directions, width)), (2, (directions, width, hidden)), (3, (directions, 2 * width)), (4, (batches[0],)),
        (7, (directions, 3 * hidden))]
    for number, shape in wanted:
        if call.input(number):
            for a, b in zip(context.shape(call.input(number)), shape, strict=False):
                context.same(a, b, f"input {number}")
    for batch in batches[1:]:
        context.same(batch, batches[0], "the batch")


def _part(context: Context, value: str, first: Dim, count: Dim, output: str, perm: Sequence[int], keep: bool) -> None:
    """Makes an output of some steps of the states, transposed by `perm`, without the dimension of the steps unless it is kept."""
    shape, dtype = context.shape(value), context.dtype(value)

    def emit(kind: str, read: str, dims: Sequence[Dim], last: bool, **attributes: Any) -> str:
        return context.layer(kind, [read], Tensor(dtype, tuple(dims)), output=output if last else None, suffix=f"{output}.{kind}",
                             **attributes)

    made = emit("slice", value, (count, *shape[1:]), keep and not perm, starts=(first, 0, 0, 0), steps=(1, 1, 1, 1))
    if not keep:
        made = emit("reshape", made, shape[1:], not perm)
    if perm:
        dims = context.shape(made)
        emit("transpose", made, [dims[p] for p in perm], True, perm=tuple(perm))


OPERATORS: dict[tuple[str, str], Operator] = {("", "GRU"): recurrent("gru"), ("", "LSTM"): recurrent("lstm"), ("", "RNN"): recurrent("rnn")}
