"""Shape arithmetic: small integer values followed as formulas instead of being computed at run time.

Each evaluator takes the node and the contents of its inputs (object arrays of Dims, bools, and `Ratio`s where a model computes
sizes in floating point; None for an absent input) and returns the contents of the output.  It raises `UndecidedError` where the
answer depends on the value of a symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd, prod
from typing import Any

import numpy as np

from sartor.ops.assume import less, not_equal
from sartor.ops.context import CONTENT_LIMIT, FLOATS, Array, Call, Context
from sartor.ops.numbers import Ratio, axis_of
from sartor.sizes import Dim, Size, at_least, ceildiv, floordiv, maximum, minimum, modulo, product

TERMS_LIMIT, TEXT_LIMIT = 64, 4000
"""Sums and characters of text that a formula may have."""
FEW_CONDITIONS = 8  # up to which conditions on sizes are followed as formulas


class UndecidedError(Exception):
    """The contents depend on the value of a symbol."""


def propagate(context: Context, call: Call) -> bool:
    """Gives the node's output by its contents, where those follow from the contents of its inputs."""
    if call.domain or not call.inputs:
        return False
    if call.op_type in ("Shape", "Size"):
        dims = list(context.shape(call.inputs[0]))
        if call.op_type == "Size":
            context.set_content(call.outputs[0], as_object(product(dims)))
        else:
            context.set_content(call.outputs[0], as_object(dims[call.get("start", 0):call.get("end")]))
        return True
    evaluator = EVALUATORS.get(call.op_type)
    if evaluator is None or not any(v in context.contents for v in call.inputs):
        return False
    inputs = [context.content(v) if v else None for v in call.inputs]
    if any(v and c is None for v, c in zip(call.inputs, inputs, strict=True)):
        return False
    if len([o for o in call.outputs if o]) > 1 and call.op_type != "Split":
        return False
    if call.op_type == "Div" and context.dtype(call.inputs[0]) in FLOATS:
        evaluator = _map(_divide_exactly)
    try:
        results = evaluator(call, inputs)
    except UndecidedError:
        return False
    results = results if isinstance(results, list) else [results]
    if any(r.size > CONTENT_LIMIT or not all(map(_is_reasonable, r.reshape(-1))) for r in results):
        return False
    dtype = _result_type(context, call)
    for name, result in zip(call.outputs, results, strict=False):
        context.set_content(name, result, dtype)
    return True


def _is_reasonable(item: Any) -> bool:
    """Whether a number fits 64 bits and a formula can still be read; what grows beyond that is left to kernels."""
    if isinstance(item, Ratio):
        return _is_reasonable(item.numerator) and _is_reasonable(item.denominator)
    if isinstance(item, Size):
        return len(item.terms) <= TERMS_LIMIT and len(str(item)) <= TEXT_LIMIT
    return not isinstance(item, int) or -(1 << 63) <= item < 1 << 63


def as_object(values: Any) -> Array:
    """An object array of a Dim, a list of Dims, or an array."""
    if isinstance(values, np.ndarray):
        return values.astype(object)
    flat = values if isinstance(values, list) else [values]
    out = np.empty(len(flat), object)
    out[:] = flat
    return out if isinstance(values, list) else out.reshape(())


def _result_type(context: Context, call: Call) -> str:
    if call.op_type in _PREDICATES or call.op_type in ("Not", "And", "Or"):
        return "bool"
    if call.op_type == "Cast":
        return _CASTS[call["to"]]
    if call.op_type == "Where":
        return context.dtype(call.inputs[1])
    if call.op_type == "ConstantOfShape":
        return "i64"
    return context.dtype(call.inputs[0])


_CASTS = {1: "f32", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64"}


# --- numbers ---------------------------------------------------------------------------------------------------------------


def ratio(numerator: Dim, denominator: int) -> Any:
    """numerator / denominator in lowest terms."""
    if isinstance(numerator, Size):
        common = gcd(denominator, *(f for _, f in numerator.terms))
    else:
        common = gcd(denominator, numerator)
    numerator, denominator = floordiv(numerator, common), denominator // common
    return numerator if denominator == 1 else Ratio(numerator, denominator)


def _parts(x: Any) -> tuple[Dim, int]:
    if isinstance(x, Ratio):
        return x.numerator, x.denominator
    if isinstance(x, float):
        raise UndecidedError
    return x, 1


def _add(a: Any, b: Any) -> Any:
    (an, ad), (bn, bd) = _parts(a), _parts(b)
    return ratio(an * bd + bn * ad, ad * bd)


def _negative(a: Any) -> Any:
    numerator, denominator = _parts(a)
    return ratio(numerator * -1, denominator)


def _multiply(a: Any, b: Any) -> Any:
    (an, ad), (bn, bd) = _parts(a), _parts(b)
    return ratio(an * bn, ad * bd)


def _divide_exactly(a: Any, b: Any) -> Any:
    (an, ad), (bn, bd) = _parts(a), _parts(b)
    if not isinstance(bn, Size):
        if bn == 0:
            raise UndecidedError
        exact = Fraction(bd, bn)
        return ratio(an * exact.numerator, ad * exact.denominator)
    if modulo(an * bd, bn) != 0:
        raise UndecidedError
    return ratio(floordiv(an * bd, bn), ad)


def _divide(a: Dim, b: Dim) -> Dim:
    """Integer division as ONNX has it: toward zero for numbers, and for sizes, which are not negative, downward."""
    if b == 0:
        raise UndecidedError
    if isinstance(a, Size) or isinstance(b, Size):
        return floordiv(a, b)
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _floor(a: Any) -> Any:
    return floordiv(*_parts(a))


def _ceil(a: Any) -> Any:
    return ceildiv(*_parts(a))


def _truncate(a: Any) -> Any:
    numerator, denominator = _parts(a)
    if denominator == 1:
        return numerator
    if at_least(numerator, 0):
        return floordiv(numerator, denominator)
    if isinstance(numerator, Size):
        raise UndecidedError
    return -(-numerator // denominator)


def _pick(of: Callable[[Dim, Dim], Dim]) -> Callable[[Any, Any], Any]:
    def pick(a: Any, b: Any) -> Any:
        (an, ad), (bn, bd) = _parts(a), _parts(b)
        return ratio(of(an * bd, bn * ad), ad * bd)

    return pick


def _equal(a: Any, b: Any) -> Any:
    return True if a == b else _not(_not_equal(a, b))


def _not_equal(a: Any, b: Any) -> Any:
    (an, ad), (bn, bd) = _parts(a), _parts(b)
    difference = an * bd - bn * ad
    if at_least(difference, 1) or at_least(difference * -1, 1):
        return True
    return _truth(not_equal(difference, 0))


def _less(a: Any, b: Any) -> Any:
    (an, ad), (bn, bd) = _parts(a), _parts(b)
    return _truth(less(an * bd, bn * ad))


def _truth(x: Any) -> Any:
    """A condition as a bool where it is decided, else as a formula of value 0 or 1."""
    return x if isinstance(x, Size) else bool(x)


def _not(a: Any) -> Any:
    return _truth(1 - a)


def _both(a: Any, b: Any) -> Any:
    return _truth(minimum(a + 0, b + 0))


def _either(a: Any, b: Any) -> Any:
    return _truth(maximum(a + 0, b + 0))


_PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: _not(_less(b, a)),
    "GreaterOrEqual": lambda a, b: _not(_less(a, b)),
}


def _absolute(a: Any) -> Any:
    numerator, denominator = _parts(a)
    if at_least(numerator, 0):
        return a
    if at_least(numerator * -1, 0):
        return ratio(numerator * -1, denominator)
    raise UndecidedError


# --- evaluators ------------------------------------------------------------------------------------------------------------


def _map(function: Callable[..., Any]) -> Callable[[Call, list[Any]], Array]:
    """Element by element, with broadcasting; more than two inputs are folded from the left."""
    def evaluate(call: Call, inputs: list[Any]) -> Array:
        if len(inputs) == 1 and _arity(function) == 1:
            return as_object(np.frompyfunc(function, 1, 1)(inputs[0]))
        out = inputs[0]
        for other in inputs[1:]:
            out = as_object(np.frompyfunc(function, 2, 1)(out, other))
        return as_object(out)

    return evaluate


def _condition(function: Callable[..., Any]) -> Callable[[Call, list[Any]], Array]:
    """As `_map`, for bools; many that are not decided are none of sizes."""
    def evaluate(call: Call, inputs: list[Any]) -> Array:
        out = _map(function)(call, inputs)
        if out.size > FEW_CONDITIONS and any(isinstance(d, Size) for d in out.reshape(-1)):
            raise UndecidedError
        return out

    return evaluate


def _arity(function: Callable[..., Any]) -> int:
    return function.__code__.co_argcount


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[[Call, list[Any]], Array]:
    def evaluate(call: Call, inputs: list[Any]) -> Array:
        data = inputs[0]
        axes = call.get("axes") if len(inputs) < 2 or inputs[1] is None else [int(a) for a in inputs[1].reshape(-1)]
        if not axes:
            if axes is not None and call.get("noop_with_empty_axes", 0):
                return as_object(data)
            axes = list(range(data.ndim))
        keep = bool(call.get("keepdims", 1))
        out = data
        for axis in sorted((a % data.ndim for a in axes), reverse=True):
            if out.shape[axis] == 0:
                raise UndecidedError
            out = np.frompyfunc(function, 2, 1).reduce(out, axis=axis, keepdims=keep)
        return as_object(out)

    return evaluate


def _cast(call: Call, inputs: list[Any]) -> Array:
    to = _CASTS.get(call["to"])
    if to is None:
        raise UndecidedError
    if to in FLOATS:
        return _map(lambda a: int(a) if isinstance(a, bool) else a)(call, inputs)
    if to == "bool":
        return _condition(lambda a: a if isinstance(a, bool) else _not_equal(a, 0))(call, inputs)
    return _map(lambda a: int(a) if isinstance(a, bool) else _truncate(a))(call, inputs)


def _where(call: Call, inputs: list[Any]) -> Array:
    return as_object(np.frompyfunc(_select, 3, 1)(*inputs))


def _select(condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, Size):
        return a if condition else b
    return _add(_multiply(condition, a), _multiply(1 - condition, b))


def _gather(call: Call, inputs: list[Any]) -> Array:
    data, indices = inputs
    try:
        return as_object(np.take(data, _integers(indices), axis=call.get("axis", 0)))
    except IndexError:
        raise UndecidedError from None


def _integers(values: Any) -> Array:
    if any(isinstance(d, Size | Ratio) for d in values.reshape(-1)):
        raise UndecidedError
    return np.array(values.tolist(), np.int64).reshape(values.shape)


def _integer_list(values: Any) -> list[int]:
    return [int(i) for i in _integers(values).reshape(-1)]


def _axes(call: Call, inputs: list[Any]) -> list[int] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return _integer_list(inputs[1])
    axes: list[int] | None = call.get("axes")
    return axes


def _unsqueeze(call: Call, inputs: list[Any]) -> Array:
    axes = _axes(call, inputs) or []
    return np.expand_dims(inputs[0], tuple(a % (inputs[0].ndim + len(axes)) for a in axes))


def _squeeze(call: Call, inputs: list[Any]) -> Array:
    axes = _axes(call, inputs)
    return as_object(np.squeeze(inputs[0], None if axes is None else tuple(axes)))


def _slice(call: Call, inputs: list[Any]) -> Array:
    data = inputs[0]
    if len(inputs) == 1:
        starts, ends = list(call["starts"]), list(call["ends"])
        axes, steps = call.get("axes"), None
    else:
        starts, ends = _integer_list(inputs[1]), _integer_list(inputs[2])
        axes = _integer_list(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else None
        steps = _integer_list(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else None
    index = [slice(None)] * data.ndim
    for place, axis in enumerate(axes if axes is not None else range(len(starts))):
        step = steps[place] if steps else 1
        end: int | None = ends[place]
        if step < 0 and ends[place] < -data.shape[axis_of(axis, data.ndim, call)]:
            end = None
        index[axis_of(axis, data.ndim, call)] = slice(starts[place], end, step)
    return as_object(data[tuple(index)])


def _reshape(call: Call, inputs: list[Any]) -> Array:
    shape = _integer_list(inputs[1]) if len(inputs) > 1 else list(call["shape"])
    if not call.get("allowzero", 0):
        shape = [inputs[0].shape[i] if d == 0 and i < inputs[0].ndim else d for i, d in enumerate(shape)]
    return inputs[0].reshape(shape)  # type: ignore[no-any-return]


def _concat(call: Call, inputs: list[Any]) -> Array:
    return np.concatenate(inputs, call.get("axis", 1))


def _split(call: Call, inputs: list[Any]) -> list[Array]:
    data = inputs[0]
    axis = axis_of(call.get("axis", 0), data.ndim, call)
    sizes = _integer_list(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else call.get("split")
    if not sizes:
        chunk = -(-data.shape[axis] // len(call.outputs))
        sizes = [chunk] * (len(call.outputs) - 1) + [data.shape[axis] - chunk * (len(call.outputs) - 1)]
    return [as_object(part) for part in np.split(data, np.cumsum(sizes)[:-1], axis)]


def _constant_of_shape(call: Call, inputs: list[Any]) -> Array:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    shape = _integer_list(inputs[0])
    if array.dtype != np.int64 or prod(shape) > CONTENT_LIMIT:
        raise UndecidedError
    return np.full(shape, int(array.reshape(-1)[0]), object)


def _expand(call: Call, inputs: list[Any]) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(_integer_list(inputs[1])))
    if prod(shape) > CONTENT_LIMIT:
        raise UndecidedError
    return np.array(np.broadcast_to(inputs[0], shape))


def _range(call: Call, inputs: list[Any]) -> Array:
    start, limit, delta = (x.reshape(-1)[0] for x in inputs)
    if not isinstance(delta, int) or delta == 0 or isinstance(start, Ratio) or isinstance(limit, Ratio):
        raise UndecidedError
    count = ceildiv(limit - start, delta) if delta > 0 else ceildiv(start - limit, -delta)
    if isinstance(count, Size) or count > CONTENT_LIMIT:
        raise UndecidedError
    return as_object([start + i * delta for i in range(max(count, 0))])


def _transpose(call: Call, inputs: list[Any]) -> Array:
    return inputs[0].transpose(call.get("perm"))  # type: ignore[no-any-return]


def _flatten(call: Call, inputs: list[Any]) -> Array:
    axis = call.get("axis", 1)
    return inputs[0].reshape(int(np.prod(inputs[0].shape[:axis])), -1)  # type: ignore[no-any-return]


def _tile(call: Call, inputs: list[Any]) -> Array:
    repeats = _integer_list(inputs[1])
    if inputs[0].size * prod(repeats) > CONTENT_LIMIT:
        raise UndecidedError
    return np.tile(inputs[0], repeats)


def _remainder(call: Call, inputs: list[Any]) -> Array:
    if call.get("fmod", 0):
        raise UndecidedError
    return _map(modulo)(call, inputs)


EVALUATORS: dict[str, Callable[[Call, list[Any]], Array | list[Array]]] = {
    "Abs": _map(_absolute),
    "Add": _map(_add),
    "And": _condition(_both),
    "Cast": _cast,
    "Ceil": _map(_ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _map(_divide),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _map(_floor),
    "Gather": _gather,
    "Max": _map(_pick(maximum)),
    "Min": _map(_pick(minimum)),
    "Mod": _remainder,
    "Mul": _map(_multiply),
    "Neg": _map(_negative),
    "Not": _condition(_not),
    "Or": _condition(_either),
    "Range": _range,
    "ReduceMax": _reduce(_pick(maximum)),
    "ReduceMin": _reduce(_pick(minimum)),
    "ReduceProd": _reduce(_multiply),
    "ReduceSum": _reduce(_add),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _map(lambda a, b: _add(a, _negative(b))),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
    **{name: _condition(predicate) for name, predicate in _PREDICATES.items()},
}
