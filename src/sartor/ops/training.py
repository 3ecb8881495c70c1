"""Operators that training graphs have: optimisers, and sampling from distributions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops import host
from sartor.ops.context import Call, Context, DeclinedError
from sartor.ops.elementwise import CASTS, Operator
from sartor.ops.movement import broadcast_to
from sartor.sizes import maximum
from sartor.types import to_numpy

Step = Callable[[ExpressionBuilder, Call, int, list[int]], list[int]]
"""One optimiser's formula: from the adjusted rate and one tensor with its gradient and states the tensor's and states' new values."""


def _constant(e: ExpressionBuilder, call: Call, like: int, name: str, default: float) -> int:
    return e.constant(float(call.get(name, default)), e.nodes[like].dtype)


def _regularized(e: ExpressionBuilder, call: Call, x: int, gradient: int) -> int:
    return e("add", e("mul", _constant(e, call, x, "norm_coefficient", 0.0), x), gradient)


def _adagrad_rate(e: ExpressionBuilder, call: Call, rate: int, t: int) -> int:
    decay = e("mul", t, _constant(e, call, t, "decay_factor", 0.0))
    return e("div", rate, e("add", e.constant(1.0, "f64"), decay))


def _adagrad(e: ExpressionBuilder, call: Call, rate: int, values: list[int]) -> list[int]:
    x, gradient, h = values
    g = _regularized(e, call, x, gradient)
    squares = e("add", h, e("mul", g, g))
    scale = e("add", e("sqrt", squares), _constant(e, call, x, "epsilon", 0.0))
    return [e("sub", x, e("div", e("mul", rate, g), scale)), squares]


def _adam_rate(e: ExpressionBuilder, call: Call, rate: int, t: int) -> int:
    """The learning rate with the correction of the moments' start at zero."""
    one = e.constant(1.0, "f64")

    def rest(name: str, default: float) -> int:
        return e("sub", one, e("pow", _constant(e, call, t, name, default), t))

    corrected = e("div", e("mul", rate, e("sqrt", rest("beta", 0.999))), rest("alpha", 0.9))
    return e("select", e("gt", t, e.constant(0.0, "f64")), corrected, rate)


def _adam(e: ExpressionBuilder, call: Call, rate: int, values: list[int]) -> list[int]:
    x, gradient, v, h = values
    g = _regularized(e, call, x, gradient)

    def moved(name: str, default: float, old: int, new: int) -> int:
        factor = float(call.get(name, default))
        kind = e.nodes[x].dtype
        return e("add", e("mul", e.constant(factor, kind), old), e("mul", e.constant(1 - factor, kind), new))

    first, second = moved("alpha", 0.9, v, g), moved("beta", 0.999, h, e("mul", g, g))
    scale = e("add", e("sqrt", second), _constant(e, call, x, "epsilon", 0.0))
    updated = e("sub", x, e("mul", rate, e("div", first, scale)))
    post = float(call.get("norm_coefficient_post", 0.0))
    return [e("mul", e.constant(1 - post, e.nodes[x].dtype), updated), first, second]


def _momentum(e: ExpressionBuilder, call: Call, rate: int, values: list[int]) -> list[int]:
    x, gradient, v, t = values
    g, one = _regularized(e, call, x, gradient), e.constant(1.0, e.nodes[x].dtype)
    beta = e("select", e("gt", t, e.constant(0, "i64")), _constant(e, call, x, "beta", 1.0), one)
    kept = e("mul", _constant(e, call, x, "alpha", 0.9), v)
    velocity = e("add", kept, e("mul", beta, g))
    if call["mode"] == "standard":
        return [e("sub", x, e("mul", rate, velocity)), velocity]
    ahead = e("add", g, e("mul", _constant(e, call, x, "alpha", 0.9), velocity))
    return [e("sub", x, e("mul", rate, ahead)), velocity]


def optimizer(states: int, step: Step, rate: Callable[[ExpressionBuilder, Call, int, int], int] | None) -> Operator:
    """An optimiser of any number of tensors: inputs are rate, step count, all tensors, all gradients, then all of each state."""
    def lower(context: Context, call: Call) -> None:
        given, t, *rest = call.inputs
        kinds = 2 + states
        count = len(rest) // kinds
        if count * kinds != len(rest) or any(context.dtype(v) not in ("f32", "f64") for v in (given, *rest)):
            raise ModelError(f"{call} has {len(rest)} tensors; expected {kinds} of f32 or f64 for each that it updates")
        scalar, steps = context.reshape(given, ()), context.reshape(t, ())
        if rate is not None:
            scalar = context.elementwise(
                [scalar, steps], lambda e, r, n: rate(e, call, e("cast", r, dtype="f64"), e("cast", n, dtype="f64")), (), suffix="rate")
        for i in range(count):
            operands = [scalar, *(rest[i + k * count] for k in range(kinds)), *([steps] if rate is None else [])]
            for k in range(kinds - 1):
                def build(e: ExpressionBuilder, r: int, *values: int, k: int = k) -> int:
                    return step(e, call, e("cast", r, dtype=e.nodes[values[0]].dtype), list(values))[k]

                if name := call.output(i + k * count):
                    context.elementwise(operands, build, context.shape(rest[i]), output=name, suffix=f"updated_{i}_{k}")

    return lower


def _dropout(context: Context, call: Call) -> None:
    """Nothing is dropped outside of training, nor with a ratio of 0; what is dropped the host draws."""
    x, old = call.inputs[0], call.version < 7
    tensor = context.tensor(x)
    training = context.constant(call.inputs[2]) if call.input(2) else np.array(old and not call.get("is_test", 0))
    ratio = context.constant(call.inputs[1]) if call.version >= 12 and call.input(1) else np.array(call.get("ratio", 0.5))
    trains = training is None or bool(training.reshape(-1)[0])
    if trains and (ratio is None or float(ratio.reshape(-1)[0]) != 0):
        if not old or ratio is None or tensor.dtype not in ("f16", "bf16", "f32", "f64"):
            raise DeclinedError(f"{call} trains")
        _dropped(context, call, float(ratio.reshape(-1)[0]))
        return
    context.alias(call.outputs[0], x)
    if call.output(1):  # of the type of x before opset 10
        true = context.new_constant(np.ones((), bool if call.version >= 10 else to_numpy(tensor.dtype)), f"{call.outputs[1]}.true")
        broadcast_to(context, true, tensor.shape, call.outputs[1])


def _dropped(context: Context, call: Call, ratio: float) -> None:
    """Training before opset 7, which onnx's reference does not know."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    wide = context.elementwise([x], lambda e, v: e("cast", v, dtype="f64"), tensor.shape, suffix="wide")
    drawn = _uniform(context, call, wide)
    kept = context.elementwise([drawn], lambda e, u: e("cast", e("ge", u, e.constant(ratio, "f64")), dtype=tensor.dtype), tensor.shape,
                               output=call.output(1) or None, suffix="kept")
    scale = 1 / (1 - ratio) if ratio < 1 else 0.0
    context.elementwise([x, kept], lambda e, v, m: e("mul", e("mul", v, m), e.constant(scale, tensor.dtype)), tensor.shape,
                        output=call.outputs[0])


def _multinomial(context: Context, call: Call) -> None:
    """The class at which the running total of the probabilities passes a random number, which the host draws."""
    x = call.inputs[0]
    tensor = context.tensor(x)
    dtype, samples = CASTS.get(call.get("dtype", 6), ""), call.get("sample_size", 1)
    if len(tensor.shape) != 2 or samples < 1 or tensor.dtype not in ("f16", "bf16", "f32", "f64"):
        raise ModelError(f"{call} draws {samples} samples from an input of type {tensor}")
    if dtype not in ("i32", "i64"):
        raise DeclinedError(f"{call} makes a type without compiled code")
    batch, classes = tensor.shape
    context.require_at_least(classes, 1)
    wide = context.elementwise([x], lambda e, v: e("cast", v, dtype="f64"), tensor.shape, suffix="wide")
    top = context.layer("reduce", [wide], Tensor("f64", (batch, 1)), suffix="top", op="max", axes=(1,), select_last=False)
    weights = context.elementwise([wide, top], lambda e, v, m: e("exp", e("sub", v, m)), tensor.shape, suffix="weights")
    totals = context.layer("cumulative", [weights], Tensor("f64", tensor.shape), suffix="totals", op="sum", axis=1, exclusive=False,
                           reverse=False)
    last = context.layer("slice", [totals], Tensor("f64", (batch, 1)), suffix="last", starts=(0, maximum(classes, 1) - 1), steps=(1, 1))
    drawn = _uniform(context, call, context.elementwise([last], lambda e, v: v, (batch, samples), suffix="samples"))
    wanted = context.elementwise([drawn, last], lambda e, u, s: e("mul", u, s), (batch, samples), suffix="wanted")
    passed = context.elementwise(
        [context.reshape(totals, (batch, 1, classes)), context.reshape(wanted, (batch, samples, 1))],
        lambda e, total, u: e("cast", e("le", total, u), dtype="i64"), (batch, samples, classes), suffix="passed")
    counts = context.layer("reduce", [passed], Tensor("i64", (batch, samples, 1)), suffix="counts", op="sum", axes=(2,), select_last=False)
    places = context.reshape(counts, (batch, samples), suffix="places")
    context.elementwise([places, context.size_value(classes)],
                        lambda e, i, n: e("cast", e("min", i, e("sub", n, e.constant(1, "i64"))), dtype=dtype), (batch, samples),
                        output=call.outputs[0])


def _uniform(context: Context, call: Call, like: str) -> str:
    """Random numbers of f64 in 0...1 in the shape of a value, drawn by onnx's reference implementation."""
    made = context.unique(f"{call.outputs[0]}.drawn")
    attributes = [onnx_ir.AttrInt64("dtype", 11)]
    if call.get("seed") is not None:
        attributes.append(onnx_ir.AttrFloat32("seed", float(call["seed"])))
    node = onnx_ir.Node("", "RandomUniformLike", [onnx_ir.Value(name=like)], attributes, outputs=[onnx_ir.Value(name=made)],
                        name=f"{call.name}.drawn")
    draw = Call("RandomUniformLike", "", call.version, context.unique_layer(f"{call.name}.drawn"), (like,), (made,),
                {a.name: a.value for a in attributes}, node)
    host.lower(context, draw, {"": max(call.version, 7)})
    return made


_DOMAIN = "ai.onnx.preview.training"
OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Dropout"): _dropout,
    ("", "Multinomial"): _multinomial,
    (_DOMAIN, "Adagrad"): optimizer(1, _adagrad, _adagrad_rate),
    (_DOMAIN, "Adam"): optimizer(2, _adam, _adam_rate),
    (_DOMAIN, "Momentum"): optimizer(1, _momentum, None),
}
