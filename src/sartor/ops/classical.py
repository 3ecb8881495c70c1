"""The operators of ai.onnx.ml that work on numbers alone: scaling, encoding, linear models.

Where their definition leaves something open, it is read as ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import emit_gather
from sartor.ops.movement import emit_concat
from sartor.sizes import Dim
from sartor.types import from_numpy, to_numpy

NUMBERS = ("f32", "f64", "i32", "i64")
MOST_KEYS = 4096  # of a table that every element is compared with


def _number(context: Context, call: Call, value: str) -> Tensor:
    tensor = context.tensor(value)
    if tensor.dtype not in NUMBERS:
        raise DeclinedError(f"{call} works on elements of type {tensor.dtype}")
    return tensor


def _single(context: Context, call: Call, value: str) -> str:
    """The value in f32, in which these operators compute."""
    tensor = _number(context, call, value)
    if tensor.dtype == "f32":
        return value
    return context.elementwise([value], lambda e, v: e("cast", v, dtype="f32"), tensor.shape, suffix="single")


def _columns(context: Context, call: Call, numbers: Sequence[float], dtype: Any, columns: Dim, name: str) -> str:
    """Numbers of an attribute as a constant: one for all columns, or one each."""
    array = np.asarray(numbers, dtype)
    if array.size != 1:
        context.same(columns, array.size, f"the columns that {name!r} is for")
    return context.new_constant(array if array.size != 1 else array.reshape(()), f"{call.outputs[0]}.{name}")


def _binarizer(context: Context, call: Call) -> None:
    tensor = _number(context, call, call.inputs[0])
    limit = float(call.get("threshold", 0.0))

    def build(e: ExpressionBuilder, x: int) -> int:
        wide = x if tensor.dtype[0] == "f" else e("cast", x, dtype="f64")
        return e("cast", e("gt", wide, e.constant(limit, e.nodes[wide].dtype)), dtype=tensor.dtype)

    context.elementwise(call.inputs, build, tensor.shape, output=call.outputs[0])


def _scaler(context: Context, call: Call) -> None:
    x = _single(context, call, call.inputs[0])
    shape = context.shape(x)
    operands = [x]
    for name in ("offset", "scale"):
        default = [0.0] if name == "offset" else [1.0]
        operands.append(_columns(context, call, call.get(name) or default, np.float32, shape[-1] if shape else 1, name))
    context.elementwise(operands, lambda e, v, o, s: e("mul", e("sub", v, o), s), shape, output=call.outputs[0])


def _normalizer(context: Context, call: Call) -> None:
    """Divided by a norm of each row; rows whose norm is 0 stay as they are."""
    x, norm = _single(context, call, call.inputs[0]), call.get("norm", "MAX")
    op = {"MAX": "max", "L1": "l1", "L2": "l2"}.get(norm)
    shape = context.shape(x)
    if op is None or not 1 <= len(shape) <= 2:
        raise ModelError(f"{call} has the norm {norm!r} for an input of type {context.tensor(x)}")
    norms = context.layer("reduce", [x], Tensor("f32", (*shape[:-1], 1)), suffix="norms", op=op, axes=(len(shape) - 1,), select_last=False)
    context.elementwise([x, norms], lambda e, v, n: e("select", e("eq", n, e.constant(0.0, "f32")), v, e("div", v, n)), shape,
                        output=call.outputs[0])


def _imputer(context: Context, call: Call) -> None:
    tensor = _number(context, call, call.inputs[0])
    floating = tensor.dtype[0] == "f"
    values = call.get("imputed_value_floats" if floating else "imputed_value_int64s") or []
    missing: float | int = float(call.get("replaced_value_float", 0.0)) if floating else int(call.get("replaced_value_int64", 0))
    if not values or not tensor.shape:
        raise ModelError(f"{call} has no values for what is missing in {tensor}")
    filler = _columns(context, call, values, to_numpy(tensor.dtype), tensor.shape[-1], "imputed")

    def build(e: ExpressionBuilder, x: int, new: int) -> int:
        gone = e("is_nan", x) if floating and isnan(missing) else e("eq", x, e.constant(missing, tensor.dtype))
        return e("select", gone, new, x)

    context.elementwise([call.inputs[0], filler], build, tensor.shape, output=call.outputs[0])


def _feature_vectorizer(context: Context, call: Call) -> None:
    """Columns of all inputs side by side."""
    parts, widths = [], call.get("inputdimensions") or [None] * len(call.inputs)
    for value, width in zip(call.inputs, widths, strict=False):
        part = _single(context, call, value)
        shape = context.shape(part)
        part = part if len(shape) == 2 else context.reshape(part, (*shape, 1) if len(shape) == 1 else (1, 1))
        if width is not None:
            context.same(context.shape(part)[1], width, "the columns of an input")
        parts.append(part)
    emit_concat(context, call, parts, 1)


def _feature_extractor(context: Context, call: Call) -> None:
    x, places = call.inputs
    tensor, count = context.tensor(x), context.tensor(places).elements
    if tensor.dtype == "string" or not tensor.shape:
        raise DeclinedError(f"{call} takes columns of {tensor}")
    rows = x if len(tensor.shape) > 1 else context.reshape(x, (1, *tensor.shape))
    emit_gather(context, rows, context.reshape(places, (count,)), len(context.shape(rows)) - 1, call.outputs[0])


def _one_hot(context: Context, call: Call) -> None:
    """Whether each element is each category; one that is none gives zeros."""
    tensor, categories = _number(context, call, call.inputs[0]), call.get("cats_int64s")
    if not categories or not call.get("zeros", 1):
        raise DeclinedError(f"{call} has categories that are no numbers, or refuses unknown ones")
    table = context.new_constant(np.asarray(categories, np.int64), f"{call.outputs[0]}.categories")
    shape = tensor.shape
    context.elementwise([context.reshape(call.inputs[0], (*shape, 1)), table],
                        lambda e, x, c: e("cast", e("eq", e("cast", x, dtype="i64"), c), dtype="f32"), (*shape, len(categories)),
                        output=call.outputs[0])


def _table(call: Call, what: str) -> Array | None:
    """Keys or values of a label encoder where they are numbers."""
    for suffix, dtype in (("floats", np.float32), ("int64s", np.int64)):
        if call.get(f"{what}_{suffix}"):
            return np.asarray(call[f"{what}_{suffix}"], dtype)
    tensor = call.get(f"{what}_tensor")
    array = None if tensor is None else np.asarray(tensor.numpy()).reshape(-1)
    return array if array is not None and array.dtype.kind in "if" else None


def _label_encoder(context: Context, call: Call) -> None:
    """Every element is compared with all keys; the last that is equal says which value it gets.

    NaN is a key like any other from version 4 on.
    """
    x, keys, values = call.inputs[0], _table(call, "keys"), _table(call, "values")
    tensor = context.tensor(x)
    if keys is None or values is None or keys.size > MOST_KEYS or tensor.dtype not in NUMBERS:
        raise DeclinedError(f"{call} encodes other things than numbers, or more than {MOST_KEYS} of them")
    if keys.size != values.size or from_numpy(keys.dtype) != tensor.dtype:
        raise ModelError(f"{call} has {keys.size} keys of type {from_numpy(keys.dtype)} and {values.size} values for {tensor}")
    given = call.get("default_tensor")
    default = given.numpy().reshape(()) if given is not None else (
        call.get("default_float", -0.0) if values.dtype.kind == "f" else call.get("default_int64", -1))
    results = context.new_constant(np.concatenate([np.asarray([default], values.dtype), values]), f"{call.outputs[0]}.values")
    table = context.new_constant(keys, f"{call.outputs[0]}.keys")
    numbers = context.new_constant(np.arange(1, keys.size + 1), f"{call.outputs[0]}.numbers")

    def build(e: ExpressionBuilder, v: int, key: int, number: int) -> int:
        equal = e("eq", v, key)
        if tensor.dtype[0] == "f" and call.version >= 4:
            equal = e("or", equal, e("and", e("is_nan", v), e("is_nan", key)))
        return e("select", equal, number, e.constant(0, "i64"))

    shape = (*tensor.shape, keys.size)
    found = context.elementwise([context.reshape(x, (*tensor.shape, 1)), table, numbers], build, shape, suffix="found")
    best = context.layer("reduce", [found], Tensor("i64", (*tensor.shape, 1)), suffix="best", op="max", axes=(len(tensor.shape),),
                         select_last=False)
    emit_gather(context, results, context.reshape(best, tensor.shape), 0, call.outputs[0])


# --- linear models -----------------------------------------------------------------------------------------------------------


def _linear(context: Context, call: Call, count: int) -> str:
    """Products of the rows with `count` rows of coefficients, plus intercepts."""
    x = _single(context, call, call.inputs[0])
    shape = context.shape(x)
    if len(shape) == 1:
        x = context.reshape(x, (1, *shape))
        shape = context.shape(x)
    coefficients = np.asarray(call["coefficients"], np.float32)
    if len(shape) != 2 or coefficients.size % max(count, 1) or count < 1:
        raise ModelError(f"{call} has {coefficients.size} coefficients for {count} results of an input of type {context.tensor(x)}")
    context.same(shape[1], coefficients.size // count, "the coefficients")
    matrix = context.new_constant(np.ascontiguousarray(coefficients.reshape(count, -1).T), f"{call.outputs[0]}.coefficients")
    products = context.layer("matmul", [x, matrix], Tensor("f32", (shape[0], count)), suffix="products", transpose_a=False,
                             transpose_b=False)
    intercepts = call.get("intercepts")
    if not intercepts:
        return products
    shift = _columns(context, call, intercepts, np.float32, count, "intercepts")
    return context.elementwise([products, shift], lambda e, v, b: e("add", v, b), (shape[0], count), suffix="scores")


def transformed(context: Context, call: Call, scores: str, output: str, kind: str = "") -> None:
    """Emits the results as the node's `post_transform`, or `kind`, wants them."""
    kind = kind or call.get("post_transform", "NONE")
    tensor = context.tensor(scores)
    if kind == "SOFTMAX":
        context.layer("softmax", [scores], tensor, output=output, suffix="probabilities", axis=1, log=False)
    elif kind in ("NONE", "LOGISTIC"):
        context.elementwise([scores], lambda e, v: e("sigmoid", v) if kind == "LOGISTIC" else v, tensor.shape, output=output,
                            suffix="transformed")
    else:
        raise DeclinedError(f"{call} transforms its results by {kind}")


def _linear_regressor(context: Context, call: Call) -> None:
    transformed(context, call, _linear(context, call, call.get("targets", 1)), call.outputs[0])


def _linear_classifier(context: Context, call: Call) -> None:
    labels = call.get("classlabels_ints")
    if not labels or len(np.asarray(call.get("intercepts") or labels)) != len(labels):
        raise DeclinedError(f"{call} has labels that are no numbers, or another number of results than labels")
    scores = _linear(context, call, len(labels))
    rows = context.shape(scores)[0]
    if call.output(0):
        best = context.layer("reduce", [scores], Tensor("i64", (rows, 1)), suffix="best", op="argmax", axes=(1,), select_last=False)
        table = context.new_constant(np.asarray(labels, np.int64), f"{call.outputs[0]}.labels")
        emit_gather(context, table, context.reshape(best, (rows,)), 0, call.outputs[0])
    if call.output(1):
        transformed(context, call, scores, call.outputs[1])


_DOMAIN = "ai.onnx.ml"
OPERATORS: dict[tuple[str, str], Operator] = {
    (_DOMAIN, "ArrayFeatureExtractor"): _feature_extractor,
    (_DOMAIN, "Binarizer"): _binarizer,
    (_DOMAIN, "FeatureVectorizer"): _feature_vectorizer,
    (_DOMAIN, "Imputer"): _imputer,
    (_DOMAIN, "LabelEncoder"): _label_encoder,
    (_DOMAIN, "LinearClassifier"): _linear_classifier,
    (_DOMAIN, "LinearRegressor"): _linear_regressor,
    (_DOMAIN, "Normalizer"): _normalizer,
    (_DOMAIN, "OneHotEncoder"): _one_hot,
    (_DOMAIN, "Scaler"): _scaler,
}
