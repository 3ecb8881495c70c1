"""Operators of the domain com.microsoft on reals: fused products, convolutions, activations and normalisations, and packed weights.

ONNX Runtime's optimiser and its exporters write these.  onnx has no reference for them, so each form that has no layers here is
refused by name.  Attention is in `contrib_attention`, what works on quantised integers in `contrib_quantized`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from sartor.errors import GraphError, ModelError, UnsupportedError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.graph.verify import check_layer
from sartor.ops import elementwise, indexing, movement, pooling, reduction, sampling
from sartor.ops.context import Call, Context
from sartor.ops.convolution import channels_first, channels_last, convolve
from sartor.ops.elementwise import Operator
from sartor.ops.matmul import gemm, multiply
from sartor.ops.numbers import axis_of
from sartor.sizes import Dim, floordiv

DOMAIN = "com.microsoft"


def unsupported(call: Call, what: str) -> UnsupportedError:
    """The refusal of a form of an operator."""
    return UnsupportedError(f"{call} of the domain {call.domain!r} {what}, which is not supported")


def check(context: Context, call: Call, first: int) -> None:
    """Holds the layers from number `first` on, which a node was lowered to, to their kinds, where onnx does not declare its operator."""
    if onnx.defs.has(call.op_type, call.version, call.domain):
        return
    for layer in context.graph.layers[first:]:
        try:
            check_layer(context.graph, layer)
            if layer.kind in ("matmul", "convolution") and len({context.dtype(v) for v in layer.inputs}) > 1:
                raise GraphError("its factors have elements of different types")
        except GraphError as error:
            inputs = ", ".join(str(context.tensor(v)) if v else "none" for v in call.inputs)
            raise ModelError(f"{call} does not fit its inputs ({inputs}): {error}") from error


def temporary(context: Context, call: Call, suffix: str) -> str:
    """A new value's name."""
    return context.unique(f"{call.output(0) or call.name}.{suffix}")


def also(table: Mapping[tuple[str, str], Operator], name: str, version: int, **fixed: Any) -> Operator:
    """An operator that means what ONNX's of this name does in an opset version, with some attributes fixed."""
    operator = table["", name]

    def lower(context: Context, call: Call) -> None:
        operator(context, replace(call, version=version, attributes={**call.attributes, **fixed}))

    return lower


# --- element-wise ----------------------------------------------------------------------------------------------------------


def gelu(e: ExpressionBuilder, x: int, approximate: bool) -> int:
    """Gelu of a node, by the error function or by tanh."""
    dtype = e.nodes[x].dtype
    if approximate:
        cube = e("mul", e("mul", x, x), x)
        bent = e("add", x, e("mul", e.constant(0.044715, dtype), cube))
        inner = e("tanh", e("mul", e.constant(math.sqrt(2 / math.pi), dtype), bent))
    else:
        inner = e("erf", e("mul", x, e.constant(math.sqrt(0.5), dtype)))
    return e("mul", e("mul", e.constant(0.5, dtype), x), e("add", inner, e.constant(1.0, dtype)))


def _of_sum(formula: Callable[[ExpressionBuilder, int], int]) -> Operator:
    """A function of the sum of the inputs that are given, broadcast to the first."""
    def lower(context: Context, call: Call) -> None:
        operands = [v for v in call.inputs if v]

        def build(e: ExpressionBuilder, out: int, *others: int) -> int:
            for other in others:
                out = e("add", out, other)
            return formula(e, out)

        context.elementwise(operands, build, context.broadcast([context.shape(v) for v in operands]), output=call.outputs[0])

    return lower


def _quick_gelu(context: Context, call: Call) -> None:
    alpha, dtype = float(call.get("alpha", 1.702)), context.dtype(call.inputs[0])
    context.elementwise(call.inputs[:1], lambda e, x: e("mul", x, e("sigmoid", e("mul", x, e.constant(alpha, dtype)))),
                        context.shape(call.inputs[0]), output=call.outputs[0])


def _bias_split_gelu(context: Context, call: Call) -> None:
    """The first half of the channels times Gelu of the second."""
    x, bias = call.inputs
    tensor = context.tensor(x)
    half = floordiv(tensor.columns, 2)
    context.same(tensor.columns, half * 2, "the channels")
    total = context.elementwise([x, bias], lambda e, a, b: e("add", a, b), tensor.shape, suffix="sum")
    part = (*tensor.shape[:-1], half)
    zeros: list[Dim] = [0] * (len(part) - 1)
    halves = [movement.emit_slice(context, total, [*zeros, start], [1] * len(part), part) for start in (0, half)]
    context.elementwise(halves, lambda e, a, b: e("mul", a, gelu(e, b, approximate=False)), part, output=call.outputs[0])


_PARAMETERS = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
               "ScaledTanh": ("alpha", "beta"), "Affine": ("alpha", "beta"), "Selu": ("alpha", "gamma"), "Clip": ("min", "max")}
"""Activations that fused operators name with parameters, in order."""


def activated(context: Context, call: Call, value: str) -> None:
    """Makes the node's output of `value` by the activation that the node names."""
    name = call.get("activation") or ""
    if not name:
        context.alias(call.outputs[0], value)
        return
    operator = elementwise.OPERATORS.get(("", name))
    if operator is None:
        raise unsupported(call, f"names the activation {name!r}")
    order = _PARAMETERS.get(name, ())
    given = {n: float(value) for n, value in zip(order, call.get("activation_params") or (), strict=False)}
    given.update({n: float(call.attributes[f"activation_{n}"]) for n in order if f"activation_{n}" in call.attributes})
    operator(context, replace(call, op_type=name, version=6 if name == "Clip" else 22, inputs=(value,), outputs=call.outputs[:1],
                              attributes=given))


# --- products and convolutions ---------------------------------------------------------------------------------------------


def _turned(context: Context, call: Call, value: str, last: bool, batch: bool) -> str:
    """A factor with its first dimension moved behind the batch's, or its last two swapped."""
    rank = len(context.shape(value))
    perm = [*range(1, rank - 1), 0, rank - 1] if batch and rank > 2 else list(range(rank))
    if last and rank > 1:
        perm[-2:] = perm[:-3:-1]
    return context.transpose(value, perm, suffix="turned")


def fused_product(context: Context, call: Call) -> str:
    """The product of FusedMatMul, as a new value."""
    factors = tuple(_turned(context, call, v, bool(call.get(f"trans{side}", 0)), bool(call.get(f"transBatch{side}", 0)))
                    for v, side in zip(call.inputs[:2], "AB", strict=True))
    product = temporary(context, call, "product")
    multiply(context, replace(call, inputs=factors, outputs=(product,)))
    return product


def _fused_matmul(context: Context, call: Call) -> None:
    product = fused_product(context, call)
    alpha, dtype = float(call.get("alpha", 1.0)), context.dtype(product)
    if alpha != 1:
        product = context.elementwise([product], lambda e, x: e("mul", x, e.constant(alpha, dtype)), context.shape(product),
                                      suffix="scaled")
    activated(context, call, product)


def _fused_gemm(context: Context, call: Call) -> None:
    product = temporary(context, call, "product")
    gemm(context, replace(call, outputs=(product,)))
    activated(context, call, product)


def _gemm_fast_gelu(context: Context, call: Call) -> None:
    product = temporary(context, call, "product")
    multiply(context, replace(call, inputs=call.inputs[:2], outputs=(product,)))
    _of_sum(lambda e, x: gelu(e, x, approximate=True))(context, replace(call, inputs=(product, *call.inputs[2:])))


def _convolution(last: bool) -> Operator:
    """Convolution, then a residual to add (the fourth input) and an activation; `last` where channels are last on both sides."""
    def lower(context: Context, call: Call) -> None:
        x, product = call.inputs[0], temporary(context, call, "product")
        rank = len(context.shape(x))
        if last:
            x = context.transpose(x, channels_first(rank), suffix="channels_first")
        convolve(context, replace(call, inputs=(x, *call.inputs[1:3]), outputs=(product,)))
        if last:
            product = context.transpose(product, channels_last(rank), suffix="channels_last")
        if call.input(3):
            product = context.elementwise([product, call.inputs[3]], lambda e, a, b: e("add", a, b), context.shape(product),
                                          suffix="sum")
        activated(context, call, product)

    return lower


def last_to_first(operator: Operator) -> Operator:
    """An operator on images with channels first, for one whose channels are last on both sides."""
    def lower(context: Context, call: Call) -> None:
        rank, made = len(context.shape(call.inputs[0])), temporary(context, call, "channels_first")
        x = context.transpose(call.inputs[0], channels_first(rank), suffix="channels_first")
        operator(context, replace(call, inputs=(x, *call.inputs[1:]), outputs=(made,)))
        context.transpose(made, channels_last(rank), output=call.outputs[0])

    return lower


# --- normalisations --------------------------------------------------------------------------------------------------------


def normalized(context: Context, call: Call, x: str, scale: str, bias: str, *, mode: str, epsilon: float, output: str) -> None:
    """Layer or RMS normalisation along the last dimension."""
    tensor = context.tensor(x)
    extra = [v for v in (scale, bias) if v]
    e = ExpressionBuilder([tensor.dtype, *(context.dtype(v) for v in extra)])
    out = 0
    for place, op in enumerate(["mul"] * bool(scale) + ["add"] * bool(bias), 1):
        out = e(op, out, e("cast", place, dtype=tensor.dtype) if e.nodes[place].dtype != tensor.dtype else place)
    context.layer("normalize", [x], tensor, output=output, suffix="" if output else "normalized", extra=extra,
                  expression=e.finish(out) if extra else None, axes=(len(tensor.shape) - 1,), mode=mode, epsilon=epsilon)


def statistics(context: Context, call: Call, x: str, mode: str, epsilon: float, mean: str, inverse: str) -> None:
    """Mean, and one over the root of the variance or mean square, along the last dimension, as outputs of these names."""
    tensor = context.tensor(x)
    kept = Tensor(tensor.dtype, (*tensor.shape[:-1], 1))
    axes = (len(kept.shape) - 1,)
    if mode == "layer":
        middle = context.layer("reduce", [x], kept, output=mean or None, suffix="mean", op="mean", axes=axes, select_last=False)
        x = context.elementwise([x, middle], lambda e, a, b: e("sub", a, b), tensor.shape, suffix="centred")
    if inverse:
        square = context.elementwise([x], lambda e, a: e("mul", a, a), tensor.shape, suffix="squares")
        e = ExpressionBuilder([tensor.dtype])
        root = e.finish(e("reciprocal", e("sqrt", e("add", 0, e.constant(epsilon, tensor.dtype)))))
        context.layer("reduce", [square], kept, output=inverse, suffix="deviation", expression=root, op="mean", axes=axes,
                      select_last=False)


def _skip_normalization(mode: str) -> Operator:
    """Normalisation of the sum of input, skip and bias; the sum may be an output too."""
    def lower(context: Context, call: Call) -> None:
        x, skip, gamma = call.inputs[:3]
        beta, bias = (call.input(3), call.input(4)) if mode == "layer" else ("", call.input(3))
        epsilon = float(call.get("epsilon", 1e-12))
        operands = [v for v in (x, skip, bias) if v]

        def build(e: ExpressionBuilder, out: int, *others: int) -> int:
            for other in others:
                out = e("add", out, other)
            return out

        total = context.elementwise(operands, build, context.shape(x), output=call.output(3) or None, suffix="sum")
        if call.output(1) or call.output(2):
            statistics(context, call, total, mode, epsilon, call.output(1), call.output(2))
        normalized(context, call, total, gamma, beta, mode=mode, epsilon=epsilon, output=call.outputs[0])

    return lower


def simplified(context: Context, call: Call) -> None:
    """SimplifiedLayerNormalization, which ONNX Runtime puts in ONNX's own domain."""
    x, epsilon = call.inputs[0], float(call.get("epsilon", 1e-5))
    rank = len(context.shape(x))
    if axis_of(call.get("axis", -1), rank, call) != rank - 1:
        raise unsupported(call, "normalises more than the last dimension")
    if call.output(1):
        statistics(context, call, x, "rms", epsilon, "", call.outputs[1])
    normalized(context, call, x, call.input(1), "", mode="rms", epsilon=epsilon, output=call.outputs[0])


def _embed_normalization(context: Context, call: Call) -> None:
    """The sum of embeddings of words, places and segments, normalised."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (call.input(i) for i in range(9))
    tables = [indexing.emit_gather(context, words, ids, 0, None)]
    shape = context.shape(tables[0])
    if positions:
        tables.append(indexing.emit_gather(context, places, positions, 0, None))
    else:
        width = context.shape(places)[1]
        tables.append(movement.emit_slice(context, places, [0, 0], [1, 1], (context.shape(ids)[1], width)))
    if segments:
        tables.append(indexing.emit_gather(context, kinds, segments, 0, None))

    def build(e: ExpressionBuilder, out: int, *others: int) -> int:
        for other in others:
            out = e("add", out, other)
        return out

    total = context.elementwise(tables, build, shape, output=call.output(2) or None, suffix="sum")
    normalized(context, call, total, gamma, beta, mode="layer", epsilon=float(call.get("epsilon", 1e-12)), output=call.outputs[0])
    if call.output(1):
        mask_index(context, call, ids, mask, call.outputs[1])


def mask_index(context: Context, call: Call, ids: str, mask: str, output: str) -> None:
    """How many ones each row of the mask has (i32); without a mask none."""
    batch, length = context.shape(ids)
    if not mask:
        context.elementwise([context.arange(batch)], lambda e, x: e.constant(0, "i32"), (batch,), output=output)
        return
    ones = context.elementwise([mask], lambda e, m: e("cast", e("eq", m, e.constant(1, context.dtype(mask))), dtype="i32"),
                               (batch, length), suffix="ones")
    counts = context.layer("reduce", [ones], Tensor("i32", (batch, 1)), suffix="counts", op="sum", axes=(1,), select_last=False)
    context.reshape(counts, (batch,), output=output)


def _group_normalization(skip: bool) -> Operator:
    """Groups of channels of each image normalised, scaled and shifted by channel, by default with channels last."""
    def lower(context: Context, call: Call) -> None:
        x, gamma, beta = call.inputs[:3]
        last, groups = bool(call.get("channels_last", 1)), call["groups"]
        rank = len(context.shape(x))
        if skip:
            x = _with_skip(context, call)
        if last:
            x = context.transpose(x, channels_first(rank), suffix="channels_first")
        batch, channels, *sizes = context.shape(x)
        if groups < 1 or (isinstance(channels, int) and channels % groups):
            raise ModelError(f"{call} has {groups} groups for {channels} channels")
        dtype = context.dtype(x)
        flat: Dim = floordiv(channels, groups)
        for size in sizes:
            flat = flat * size
        grouped = context.reshape(x, (batch, groups, flat), suffix="groups")
        made = context.layer("normalize", [grouped], Tensor(dtype, (batch, groups, flat)), axes=(2,), mode="layer",
                             epsilon=float(call.get("epsilon", 1e-5)))
        made = context.reshape(made, (batch, channels, *sizes), suffix="channels")
        per_channel = (channels, *[1] * len(sizes))
        swish = call.get("activation", 0) == 1

        def build(e: ExpressionBuilder, value: int, scale: int, shift: int) -> int:
            out = e("add", e("mul", value, e("cast", scale, dtype=dtype)), e("cast", shift, dtype=dtype))
            return e("mul", out, e("sigmoid", out)) if swish else out

        operands = [made, context.reshape(gamma, per_channel), context.reshape(beta, per_channel)]
        made = context.elementwise(operands, build, (batch, channels, *sizes), output=None if last else call.outputs[0],
                                   suffix="scaled" if last else "")
        if last:
            context.transpose(made, channels_last(rank), output=call.outputs[0])

    return lower


def _with_skip(context: Context, call: Call) -> str:
    """The sum of X, a skip, which may be of one place only, and a bias by channel."""
    x, skip, bias = call.inputs[0], call.inputs[3], call.input(4)
    shape, last = context.shape(x), bool(call.get("channels_last", 1))
    if len(context.shape(skip)) == 2:
        batch, channels = context.shape(skip)
        ones = (1,) * (len(shape) - 2)
        skip = context.reshape(skip, (batch, *ones, channels) if last else (batch, channels, *ones))
    operands = [x, skip]
    if bias:
        operands.append(bias if last else context.reshape(bias, (*context.shape(bias), *[1] * (len(shape) - 2))))

    def build(e: ExpressionBuilder, out: int, *others: int) -> int:
        for other in others:
            out = e("add", out, other)
        return out

    return context.elementwise(operands, build, shape, output=call.output(1) or None, suffix="sum")


# --- the rest --------------------------------------------------------------------------------------------------------------


def _bias_softmax(context: Context, call: Call) -> None:
    """Softmax, over all dimensions from the axis on, of data and bias; the bias lacks dimensions inside the batch or before it."""
    x, bias = call.inputs
    shape = context.shape(x)
    total = context.elementwise([x, bias], lambda e, a, b: e("add", a, b), context.broadcast([shape, context.shape(bias)]),
                                suffix="sum")
    reduction.softmax(log=False)(context, replace(call, version=11, inputs=(total,), attributes={"axis": call.get("axis", 1)}))


def _expand_dims(context: Context, call: Call) -> None:
    x = call.inputs[0]
    shape = context.shape(x)
    axis = context.require_ints(call.inputs[1])[0]
    if not -len(shape) - 1 <= axis <= len(shape):
        raise ModelError(f"{call} has the axis {axis}, its input has {len(shape)} dimensions")
    place = axis if axis >= 0 else len(shape) + 1 + axis
    context.reshape(x, (*shape[:place], 1, *shape[place:]), output=call.outputs[0])


def _distances(context: Context, call: Call) -> None:
    """Distances between each row of A and each of B."""
    a, b = call.inputs
    metric = call.get("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise unsupported(call, f"has the metric {metric!r}")
    (rows, width), (others, inner) = context.shape(a), context.shape(b)
    context.same(width, inner, "the width of rows")
    dtype = context.dtype(a)
    whole = (rows, others, width)
    left, right = context.reshape(a, (rows, 1, width)), context.reshape(b, (1, others, width))
    apart = context.elementwise([left, right], lambda e, x, y: e("mul", e("sub", x, y), e("sub", x, y)), whole, suffix="squares")
    e = ExpressionBuilder([dtype])
    made = context.layer("reduce", [apart], Tensor(dtype, (rows, others, 1)), suffix="distances", op="sum", axes=(2,),
                         expression=e.finish(e("sqrt", 0)) if metric == "euclidean" else None, select_last=False)
    context.reshape(made, (rows, others), output=call.outputs[0])


def operators(names: Sequence[tuple[str, Operator]]) -> dict[tuple[str, str], Operator]:
    """A table of operators of the domain."""
    return {(DOMAIN, name): operator for name, operator in names}


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "SimplifiedLayerNormalization"): simplified,
    **operators([
        ("BiasAdd", _of_sum(lambda e, x: x)),
        ("BiasGelu", _of_sum(lambda e, x: gelu(e, x, approximate=False))),
        ("BiasSoftmax", _bias_softmax),
        ("BiasSplitGelu", _bias_split_gelu),
        ("CDist", _distances),
        ("ExpandDims", _expand_dims),
        ("EmbedLayerNormalization", _embed_normalization),
        ("FastGelu", _of_sum(lambda e, x: gelu(e, x, approximate=True))),
        ("FusedConv", _convolution(last=False)),
        ("FusedGemm", _fused_gemm),
        ("FusedMatMul", _fused_matmul),
        ("FusedMatMulActivation", _fused_matmul),
        ("GatherND", also(indexing.OPERATORS, "GatherND", 11)),
        ("Gelu", _of_sum(lambda e, x: gelu(e, x, approximate=False))),
        ("GemmFastGelu", _gemm_fast_gelu),
        ("GridSample", also(sampling.OPERATORS, "GridSample", 16)),
        ("GroupNorm", _group_normalization(skip=False)),
        ("NhwcConv", _convolution(last=True)),
        ("NhwcFusedConv", _convolution(last=True)),
        ("NhwcMaxPool", last_to_first(pooling.pool("max"))),
        ("Pad", also(movement.OPERATORS, "Pad", 13)),
        ("QuickGelu", _quick_gelu),
        ("SkipGroupNorm", _group_normalization(skip=True)),
        ("SkipLayerNormalization", _skip_normalization("layer")),
        ("SkipSimplifiedLayerNormalization", _skip_normalization("rms")),
        ("TransposeMatMul", _fused_matmul),
        ("Trilu", also(indexing.OPERATORS, "Trilu", 14)),
    ]),
}
