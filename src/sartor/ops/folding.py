"""Constant folding while lowering: nodes whose inputs are all constant are computed by onnx's reference implementation, but
conversions by what their layers mean, since ONNX leaves open what becomes of values out of range.

A result that would be much larger than its inputs (a big ConstantOfShape, Expand or Tile) is not computed, so that a small
model file cannot become a huge program; such nodes are lowered like others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir
from onnx.reference import ReferenceEvaluator

from sartor.errors import ModelError
from sartor.graph.reference import evaluate_layer
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.types import from_numpy

CONVERSIONS = ("BitCast", "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear")
SIZE_LIMIT = 1 << 22  # elements a folded result may have, or twice what its inputs have
_CHANGED = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13}  # before these versions they mean what the reference no longer knows
_NOT_FOLDED = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
               "If", "Loop", "Scan")
# What onnx's reference implementation computes wrongly (biases of groups, activations and lengths of recurrences, one axis where
# older versions take several, p = 1, targets that are ignored...): left to layers, whose constants are folded by what they mean.
_MISJUDGED = ("AveragePool", "BatchNormalization", "ConvTranspose", "GRU", "Hardmax", "LogSoftmax", "LpNormalization", "LpPool", "LRN",
              "LSTM", "MaxPool", "NegativeLogLikelihoodLoss", "RNN", "RoiAlign", "Softmax", "SoftmaxCrossEntropyLoss")


def fold(context: Context, call: Call, versions: Mapping[str, int]) -> bool:
    """Gives the node's outputs as constants where all its inputs are; returns whether it did."""
    if call.op_type == "Constant" and not call.domain:
        context.set_constant(call.outputs[0], _constant_value(call))
        return True
    if call.op_type == "Identity" and not call.domain:
        context.alias(call.outputs[0], call.inputs[0])
        return True
    if not call.inputs or call.op_type in (*_NOT_FOLDED, *_MISJUDGED) or not all(context.is_constant(v) for v in call.inputs if v):
        return False
    if not call.domain and call.version < _CHANGED.get(call.op_type, 0):
        return False
    constants = {v: a for v in call.inputs if v and (a := context.constant(v)) is not None}
    if call.op_type == "Slice" and call.input(4) and _starts_before(call, constants):
        return False  # the reference takes nothing where a start lies before the first element, ONNX takes the first
    if (view := _view(call, list(constants.values()))) is not None:
        context.set_constant(call.outputs[0], view)
        return True
    node = onnx_ir.to_proto(call.node)
    for place, name in enumerate(call.inputs):
        node.input[place] = name
    if not _small_enough(node, call, constants, versions):
        return False
    try:
        results = ReferenceEvaluator(node, opsets=dict(versions)).run(None, constants)
    except Exception:  # noqa: BLE001 -- the reference has gaps of every kind; what is wrong with the node shows when it is lowered
        return False
    arrays = [np.asarray(r) for r in results if r is not None and not isinstance(r, (list, dict))]
    if len(arrays) != len(results) or len(results) < len(call.outputs):
        return False
    for name, array in zip(call.outputs, arrays, strict=False):
        if name:
            from_numpy(array.dtype)
            context.set_constant(name, array)
    return True


def convert(context: Context, call: Call, operator: Callable[[Context, Call], None]) -> bool:
    """As `fold`, for a node that converts values: computed by the layers it would become, so that folding rounds as a run does."""
    if not all(context.is_constant(v) for v in call.inputs if v):
        return False
    inner = Context()
    for name in filter(None, call.inputs):
        inner.set_constant(name, _contents(context, name))
    inner.call = call
    try:
        operator(inner, call)
    except DeclinedError:
        return False
    values = dict(inner.graph.constants)
    for layer in inner.graph.layers:
        values.update(evaluate_layer(inner.graph.problem(layer), values, {}))
    context.set_constant(call.outputs[0], values[inner.aliases.get(call.outputs[0], call.outputs[0])])
    return True


def _starts_before(call: Call, constants: Mapping[str, Array]) -> bool:
    """Whether a slice that goes backward starts before the first element."""
    shape, starts, steps = constants[call.inputs[0]].shape, constants[call.inputs[1]].reshape(-1), constants[call.inputs[4]].reshape(-1)
    axes = constants[call.inputs[3]].reshape(-1).tolist() if call.input(3) else range(len(starts))
    return any(step < 0 and start < -shape[axis] for start, step, axis in zip(starts, steps, axes, strict=True))


def _contents(context: Context, name: str) -> Array:
    array = context.constant(name)
    assert array is not None
    return array


def _view(call: Call, arrays: list[Array]) -> Array | None:
    """Squeeze and Unsqueeze of older opsets, whose axes are an attribute, which the reference implementation cannot run."""
    axes = call.get("axes")
    if axes is None or call.op_type not in ("Squeeze", "Unsqueeze") or call.domain:
        return None
    try:
        return np.expand_dims(arrays[0], tuple(axes)) if call.op_type == "Unsqueeze" else np.squeeze(arrays[0], tuple(axes))
    except ValueError as error:
        raise ModelError(f"{call} has axes {axes} that do not fit its input's shape {list(arrays[0].shape)}") from error


def infer(node: onnx.NodeProto, call: Call, types: Mapping[str, onnx.TypeProto], constants: Mapping[str, Array],
          versions: Mapping[str, int]) -> dict[str, onnx.TypeProto]:
    """Types of a node's outputs by onnx's own inference; small constants are shown to it."""
    schema = onnx.defs.get_schema(call.op_type, call.version, call.domain)
    data = {v: onnx.numpy_helper.from_array(a, v) for v, a in constants.items() if a.size <= 1024 and a.dtype != object}
    imports = [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]
    return onnx.shape_inference.infer_node_outputs(schema, node, dict(types), data, opset_imports=imports)


def _small_enough(node: onnx.NodeProto, call: Call, constants: Mapping[str, Array], versions: Mapping[str, int]) -> bool:
    types = {v: onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for v, a in constants.items()}
    try:
        inferred = infer(node, call, types, constants, versions)
    except Exception:  # noqa: BLE001 -- says that the node is broken, in words of its own; lowering it says so in ours
        return False
    allowed = max(SIZE_LIMIT, 2 * sum(a.size for a in constants.values()))
    return all(_elements(t) <= allowed for t in inferred.values())


def _elements(proto: onnx.TypeProto) -> int:
    return prod(d.dim_value or 1 for d in proto.tensor_type.shape.dim)


def _constant_value(call: Call) -> Array:
    """The contents of a Constant node, whichever attribute holds them."""
    for name, value in call.attributes.items():
        if name == "value":
            return np.asarray(value.numpy())
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
        if name in ("value_string", "value_strings"):
            return np.array(value, object)
    raise ModelError(f"{call} has no value")
