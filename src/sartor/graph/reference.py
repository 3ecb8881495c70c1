"""What every kind of Layer means, in NumPy: the reference that passes, kernels and tuning candidates are checked against.

`evaluate_layer` computes one layer, `evaluate_graph` a whole graph.  With `wide=True` all floats are computed and returned in
float64, so that a difference from the reference is the candidate's own rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from sartor.errors import FeedError, GraphError, SartorError
from sartor.graph.control import run_layer
from sartor.graph.layer import BODIES, Graph, Layer, Problem
from sartor.graph.reference_numeric import determinant, fourier, regions, trees
from sartor.graph.reference_recurrent import linear_attention, recurrent
from sartor.graph.reference_spatial import convolution, deconvolution, pad, pool, resize
from sartor.graph.rules import known
from sartor.graph.scalars import FLOATS, Array, evaluate_expression
from sartor.sizes import Dim, Size, evaluate, substitute
from sartor.types import from_numpy, to_numpy

__all__ = ["bind_layer", "bind_sizes", "evaluate_expression", "evaluate_graph", "evaluate_layer"]


# --- kinds: raw(layer, inputs, output shape, sizes) -> the raw result --------------------------------------------------------


def _matmul(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    a, b = inputs
    if layer.attributes.get("transpose_a"):
        a = np.swapaxes(a, -1, -2)
    if layer.attributes.get("transpose_b"):
        b = np.swapaxes(b, -1, -2)
    return np.asarray(np.matmul(a, b))


def _extreme(x: Array, op: str, axes: tuple[int, ...]) -> Array:
    """Largest or smallest elements; an empty one is the type's least or greatest value."""
    least: Any = x.dtype.kind == "b" and op == "min"
    if x.dtype.kind == "f":
        least = -np.inf if op == "max" else np.inf
    elif x.dtype.kind in "iu":
        least = np.iinfo(x.dtype).min if op == "max" else np.iinfo(x.dtype).max
    function = np.maximum if op == "max" else np.minimum
    return np.asarray(function.reduce(x, axis=axes, keepdims=True, initial=least))


def _reduce(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), op, axes = inputs, layer.attributes["op"], tuple(layer.attributes["axes"])
    if op in ("argmax", "argmin"):
        return _arg_reduce(x, op, axes[0], bool(layer.attributes.get("select_last")))
    if op in ("max", "min"):
        return _extreme(x, op, axes)
    if op == "log_sum_exp":
        top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        return np.asarray(np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top)
    if op == "mean" and x.dtype.kind in "iu":
        count = max(1, prod(x.shape[a] for a in axes))
        return np.asarray(np.trunc(np.sum(x, axis=axes, keepdims=True, dtype=x.dtype) / count))
    functions: dict[str, Callable[[Array], Array]] = {
        "sum": lambda v: np.sum(v, axis=axes, keepdims=True, dtype=v.dtype),
        "mean": lambda v: np.sum(v, axis=axes, keepdims=True, dtype=v.dtype) / v.dtype.type(prod(v.shape[a] for a in axes)),
        "prod": lambda v: np.prod(v, axis=axes, keepdims=True, dtype=v.dtype),
        "l1": lambda v: np.sum(np.abs(v), axis=axes, keepdims=True, dtype=v.dtype),
        "l2": lambda v: np.sqrt(np.sum(v * v, axis=axes, keepdims=True, dtype=v.dtype)),
        "sum_square": lambda v: np.sum(v * v, axis=axes, keepdims=True, dtype=v.dtype),
        "log_sum": lambda v: np.log(np.sum(v, axis=axes, keepdims=True, dtype=v.dtype)),
    }
    if op not in functions:
        raise GraphError(f"layer {layer.name} reduces by the unknown operation {op}")
    return functions[op](x)


def _arg_reduce(x: Array, op: str, axis: int, select_last: bool) -> Array:
    find = np.argmax if op == "argmax" else np.argmin
    if not select_last:
        return np.expand_dims(find(x, axis=axis), axis).astype(np.int64)
    return np.expand_dims(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis), axis).astype(np.int64)


def _softmax(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), axis = inputs, layer.attributes["axis"]
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    exponentials = np.exp(shifted)
    total = np.sum(exponentials, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if layer.attributes.get("log") else exponentials / total)


def _normalize(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), axes, epsilon = inputs, tuple(layer.attributes["axes"]), x_type(inputs[0], layer.attributes["epsilon"])
    if layer.attributes["mode"] == "layer":
        x = x - np.mean(x, axis=axes, keepdims=True)
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + epsilon))


def x_type(x: Array, value: float) -> Any:
    """`value` as a scalar of the array's type, so that it does not widen the computation."""
    return x.dtype.type(value)


def _attention(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    q, k, v = (np.moveaxis(t, 1, 2) for t in inputs[:3])
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * x_type(q, layer.attributes["scale"])
    if len(inputs) > 3 and inputs[3].size:
        mask = inputs[3]
        scores = np.where(mask, scores, x_type(q, -np.inf)) if mask.dtype == bool else scores + mask
    if layer.attributes.get("causal"):
        rows, columns = scores.shape[-2:]
        seen = np.arange(columns)[None, :] <= np.arange(rows)[:, None] + columns - rows
        scores = np.where(seen, scores, x_type(q, -np.inf))
    best = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - best)
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    if layer.attributes.get("zero_unseen"):
        weights = np.where(np.isneginf(best), x_type(q, 0), weights)
    return np.moveaxis(np.matmul(weights, v), 1, 2)


def _slice(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), cuts = inputs, []
    for start, step, count in zip(layer.attributes["starts"], layer.attributes["steps"], shape, strict=True):
        first = evaluate(start, sizes)
        stop = first + step * count
        cuts.append(slice(first, stop if stop >= 0 else None, step) if count else slice(0, 0))
    return x[tuple(cuts)]


def _gather(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x, indices), axis = inputs, layer.attributes["axis"]
    return np.asarray(np.take(x, np.asarray(indices), axis=axis))  # NumPy counts negative indices from the end and refuses those outside


def _scatter(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    x, indices, updates = inputs
    out, inside = x.copy(), (indices >= 0) & (indices < x.shape[0])
    functions = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    for place, update in zip(indices[inside], updates[inside], strict=True):
        op = layer.attributes["op"]
        out[place] = update if op == "none" else functions[op](out[place], update)
    return out


def _cumulative(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), axis, a = inputs, layer.attributes["axis"], layer.attributes
    x = np.moveaxis(np.flip(x, axis) if a["reverse"] else x, axis, 0)
    function = np.add if a["op"] == "sum" else np.multiply
    total = function.accumulate(x, axis=0, dtype=x.dtype)
    if a["exclusive"] and len(total):
        total = np.concatenate([np.full_like(total[:1], a["op"] == "prod"), total[:-1]])
    total = np.moveaxis(total, 0, axis)
    return np.flip(total, axis) if a["reverse"] else total


def _topk(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (x,), axis = inputs, layer.attributes["axis"]
    if layer.attributes["largest"]:  # the last of the equals comes last in the order that is then turned round
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.take(order, np.arange(shape[axis]), axis=axis).astype(np.int64)


def _nonzero(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    return np.resize(np.flatnonzero(inputs[0]), shape) if shape[0] else np.empty(shape, np.int64)


def _order(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    columns = [inputs[0][:, i] for i in range(inputs[0].shape[1])]
    return np.lexsort(columns[::-1]) if columns else np.arange(shape[0])


def _suppress(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    (boxes, scores), (most, overlap, least) = inputs[:2], (x.reshape(-1)[0] for x in inputs[2:])
    out = np.full(shape, -1, np.int64)
    for batch, kind in np.ndindex(*shape[:2]):
        a, c, d, e = np.moveaxis(boxes[batch], -1, 0)
        y1, x1, y2, x2 = (c - e / 2, a - d / 2, c + e / 2, a + d / 2) if layer.attributes["center"] else (
            np.minimum(a, d), np.minimum(c, e), np.maximum(a, d), np.maximum(c, e))
        area = (y2 - y1) * (x2 - x1)
        kept: list[int] = []
        for i in np.argsort(-scores[batch, kind], kind="stable"):
            if len(kept) >= most or not scores[batch, kind, i] > least:
                continue
            width = np.minimum(x2[i], x2[kept]) - np.maximum(x1[i], x1[kept])
            height = np.minimum(y2[i], y2[kept]) - np.maximum(y1[i], y1[kept])
            meets = (width > 0) & (height > 0) & (area[i] > 0) & (area[kept] > 0)
            if not np.any(meets & (width * height / (area[i] + area[kept] - width * height) > overlap)):
                kept.append(int(i))
        out[batch, kind, :len(kept)] = kept
    return out


def _sizes(layer: Layer, inputs: list[Array], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Array:
    return np.array([evaluate(d, sizes) for d in layer.attributes["dims"]], np.int64).reshape(shape)


_RAW: dict[str, Callable[[Layer, list[Array], tuple[int, ...], Mapping[str, int]], Array]] = {
    "matmul": _matmul, "convolution": convolution, "deconvolution": deconvolution, "pool": pool, "reduce": _reduce,
    "softmax": _softmax, "normalize": _normalize, "attention": _attention, "slice": _slice, "gather": _gather, "sizes": _sizes,
    "pad": pad, "resize": resize, "recurrent": recurrent,
    "linear_attention": linear_attention, "scatter": _scatter, "cumulative": _cumulative, "topk": _topk,
    "fourier": fourier, "determinant": determinant, "regions": regions, "trees": trees,
    "nonzero": _nonzero, "order": _order, "suppress": _suppress,
    "iota": lambda layer, inputs, shape, sizes: np.arange(shape[0], dtype=np.int64),
    "transpose": lambda layer, inputs, shape, sizes: np.transpose(inputs[0], layer.attributes["perm"]),
    "reshape": lambda layer, inputs, shape, sizes: np.reshape(inputs[0], shape),
    "concat": lambda layer, inputs, shape, sizes: np.concatenate(inputs, axis=layer.attributes["axis"]),
}


def _host(layer: Layer, inputs: list[Array | None]) -> list[Array]:
    """Runs the layer's node with ONNX's reference implementation."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from sartor.graph.host_operators import operators

    node = onnx.NodeProto.FromString(layer.attributes["node"])
    captures = list(layer.attributes.get("captures", ()))
    own = len(inputs) - len(captures)
    names = [f"input {k}" if inputs[k] is not None else "" for k in range(own)] + captures
    outputs = [f"output {k}" if name else "" for k, name in enumerate(layer.outputs)]
    del node.input[:], node.output[:]
    node.input.extend(names[:own])
    node.output.extend(outputs)
    given = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in names if n]
    results = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in outputs if n]
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in layer.attributes["domains"].items()]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "host", given, results), opset_imports=opsets)
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if name}
    return [np.asarray(y) for y in ReferenceEvaluator(model, new_ops=operators()).run(None, feeds)]


def _control(problem: Problem, read: Callable[[str], Array], sizes: Mapping[str, int], wide: bool) -> dict[str, Array]:
    """Runs the bodies of a control layer."""
    layer = problem.layer
    inputs = [np.asarray(read(n)) if n else None for n in layer.inputs]
    known = defaultdict(int, sizes)
    tensors = [problem.tensors[n] for n in layer.outputs]
    forms = [(tuple(evaluate(d, known) for d in t.shape), _dtype(t.dtype, wide)) for t in tensors]

    def called(body: Graph) -> Callable[[Sequence[Array], Sequence[Array | None]], list[Array]]:
        def call(arrays: Sequence[Array], out: Sequence[Array | None]) -> list[Array]:
            made = evaluate_graph(body, dict(zip(body.inputs, arrays, strict=True)), wide, sizes)
            return [np.array(made[name]) for name in body.outputs]

        return call

    scalars: Any = ((), ())
    if layer.kind == "loop":
        body = layer.bodies[0]
        scalars = tuple((1,) * len(body.tensors[name].shape) for name in body.inputs[:2])
    results = run_layer(layer.kind, layer.attributes, inputs, [called(b) for b in layer.bodies], forms, [None] * len(forms),
                        lambda: evaluate(layer.attributes["test"][0], sizes), scalars)
    return dict(zip(layer.outputs, results, strict=True))


def _dtype(name: str, wide: bool) -> Any:
    return np.dtype(np.float64) if wide and name in FLOATS else to_numpy(name)


# --- layers and graphs -------------------------------------------------------------------------------------------------------


def _operand(array: Array, dtype: str, wide: bool) -> Array:
    """The array in the type computed in: float64 when wide, f32 for the 16-bit floats."""
    if dtype not in FLOATS:
        return np.asarray(array)
    return np.asarray(array).astype(np.float64 if wide or dtype == "f64" else np.float32, copy=False)


def evaluate_layer(problem: Problem, inputs: Mapping[str, Array], sizes: Mapping[str, int], wide: bool = False) -> dict[str, Array]:
    """The outputs of one layer by name.

    Parameters
    ----------
    problem
        The layer with its types and constants.
    inputs
        Contents of the values it reads; constants may be left out.
    sizes
        Values of the symbols in its shapes and attributes.
    wide
        Compute all floats in float64 and return them so.
    """
    layer, tensors = problem.layer, problem.tensors

    def read(name: str) -> Array:
        return inputs[name] if name in inputs else problem.constants[name]

    with np.errstate(all="ignore"):
        if layer.kind == "host":
            narrow = [np.asarray(read(n)).astype(to_numpy(tensors[n].dtype), copy=False) if n else None for n in layer.inputs]
            named = [n for n in layer.outputs if n]
            return {n: _operand(y, tensors[n].dtype, True) if wide else y.astype(to_numpy(tensors[n].dtype), copy=False)
                    for n, y in zip(named, _host(layer, narrow), strict=True)}
        if layer.kind in BODIES:
            return _control(problem, read, sizes, wide)
        output = tensors[layer.outputs[0]]
        shape = tuple(evaluate(d, sizes) for d in output.shape)
        operands = [_operand(read(n), tensors[n].dtype, wide) for n in layer.inputs if n]
        if layer.kind == "elementwise":
            if layer.expression is None:
                raise GraphError(f"layer {layer.name} is element-wise but has no expression")
            raw = evaluate_expression(layer.expression, operands) if (bits := _moved(problem, read)) is None else bits
        else:
            raw = _RAW[layer.kind](layer, operands, shape, sizes)
            if layer.expression is not None:
                raw = evaluate_expression(layer.expression, [raw, *(_operand(read(n), tensors[n].dtype, wide) for n in layer.extra)])
        try:
            raw = np.broadcast_to(raw, shape)
        except ValueError:
            raise GraphError(f"layer {layer.name} ({layer.kind}) computes the shape {raw.shape}, not {shape} as its output says") from None
        dtype = _dtype(output.dtype, wide)
        return {layer.outputs[0]: np.ascontiguousarray(raw.astype(dtype, copy=False)).reshape(shape)}


def _moved(problem: Problem, read: Callable[[str], Array]) -> Array | None:
    """The result of an elementwise layer that moves bits, NaNs as they are; None for others, and where values are held wider."""
    expression, inputs = problem.layer.expression, problem.layer.inputs
    if expression is None or expression.moved is None:
        return None
    array = np.asarray(read(inputs[expression.moved]))
    kept = array.dtype == to_numpy(problem.tensors[inputs[expression.moved]].dtype)
    return array.view(to_numpy(problem.output().dtype)) if kept and array.dtype != object else None


def bind_sizes(shape: tuple[Dim, ...], actual: tuple[int, ...], sizes: dict[str, int], name: str) -> None:
    """Adds to `sizes` what an array's shape tells of the symbols in its declared shape; raises `FeedError` where they differ."""
    if len(shape) != len(actual):
        raise FeedError(f"{name} has {len(actual)} dimensions; expected {len(shape)}")
    for dim, size in zip(shape, actual, strict=True):
        rest = substitute(dim, sizes)
        if isinstance(rest, Size) and len(variable := [t for t in rest.terms if t[0]]) == 1:
            (atoms, factor), offset = variable[0], sum(f for t, f in rest.terms if not t)
            if len(atoms) == 1 and atoms[0].op == "symbol" and (size - offset) % factor == 0:
                sizes[atoms[0].args[0]] = (size - offset) // factor
                continue
        if isinstance(rest, int) and rest != size:
            raise FeedError(f"{name} has the shape {actual}; expected {tuple(map(str, shape))}")


def evaluate_graph(
    graph: Graph, feeds: Mapping[str, Array], wide: bool = False, known: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """The graph's outputs for the given inputs, layer by layer; symbols that are not `known` are bound from the shapes met on the way."""
    sizes: dict[str, int] = dict(known or {})
    values: dict[str, Array] = {}
    for name in graph.inputs:
        if name not in feeds:
            raise FeedError(f"the input {name} is missing; given are {', '.join(feeds) or 'none'}")
        values[name] = np.asarray(feeds[name])
        if (found := from_numpy(values[name].dtype)) != graph.tensors[name].dtype and not (wide and found == "f64"):
            raise FeedError(f"the input {name} has the type {found}; expected {graph.tensors[name].dtype}")
        bind_sizes(graph.tensors[name].shape, values[name].shape, sizes, f"the input {name}")
    last = {name: index for index, layer in enumerate(graph.layers) for name in layer.reads}
    for index, layer in enumerate(graph.layers):
        if layer.kind == "bind":
            bind_layer(layer, [values[n] if n in values else graph.constants[n] for n in layer.inputs], sizes)
            continue
        results = evaluate_layer(graph.problem(layer), values, sizes, wide)
        for name, array in results.items():
            bind_sizes(graph.tensors[name].shape, array.shape, sizes, f"the value {name}")
            values[name] = array
        for name in {*layer.reads, *layer.outputs}:
            if last.get(name, -1) <= index and name not in graph.outputs:
                values.pop(name, None)
    return {name: _result(graph, values, name, wide) for name in graph.outputs}


def bind_layer(layer: Layer, inputs: list[Array], sizes: dict[str, int]) -> None:
    """Adds to `sizes` what a `bind` layer makes known; raises `SartorError` where its inputs make no sense."""
    a = layer.attributes
    numbers = [array.reshape(-1).tolist() for array in inputs]
    try:
        found = known(a["rule"], numbers, [evaluate(d, sizes) for d in a["dims"]], a["options"])
    except ValueError as problem:
        raise SartorError(f"{a['options']['what']} {problem}") from None
    sizes |= {symbol: found[place] for symbol, place in a["defines"]}


def _result(graph: Graph, values: Mapping[str, Array], name: str, wide: bool) -> Array:
    array = values[name] if name in values else graph.constants[name]
    return _operand(array, graph.tensors[name].dtype, True) if wide else np.asarray(array)
