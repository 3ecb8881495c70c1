"""Where onnx's reference implementation is wrong, lacks a case or takes too long: what is asked instead, and why.

Each line of `INSTEAD` is (operator, when, instead, why).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

Meaning: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"
Make: TypeAlias = "Callable[[onnx.NodeProto, int], Meaning]"


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def explicit(node: onnx.NodeProto, opset: int) -> Meaning:
    """A pool with its padding in numbers: as many windows as strides begin, what is missing at the ends, never less than nothing."""
    from tests.cpu.random_models.reference import Evaluator

    given = attributes(node)
    upper = given.pop("auto_pad") == b"SAME_UPPER"
    given.pop("ceil_mode", None)  # the number of windows is given
    kernel = given["kernel_shape"]

    def run(operands: Sequence[Any]) -> list[Any]:
        before, after = [], []
        for i, size in enumerate(operands[0].shape[2:]):
            stride, reach = given.get("strides", [1] * 8)[i], (kernel[i] - 1) * given.get("dilations", [1] * 8)[i] + 1
            pad = max((-(-size // stride) - 1) * stride + reach - size, 0)
            before.append(pad // 2 if upper else pad - pad // 2)
            after.append(pad - before[-1])
        other = helper.make_node(node.op_type, node.input, node.output, **{**given, "pads": before + after})
        return list(Evaluator(other, opset).run(operands))

    return run


def biased(node: onnx.NodeProto, opset: int) -> Meaning:
    """A transposed convolution without its bias, which is added after."""
    from tests.cpu.random_models.reference import Evaluator

    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.input[2]
    evaluator = Evaluator(plain, opset)

    def run(operands: Sequence[Any]) -> list[Any]:
        (y,) = evaluator.run(operands[:2])
        return [(y + operands[2].reshape(-1, *[1] * (y.ndim - 2))).astype(y.dtype)]

    return run


def double_erf(node: onnx.NodeProto, opset: int) -> Meaning:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return lambda operands: [erf(operands[0].astype(np.float64)).astype(operands[0].dtype)]


def paired(node: onnx.NodeProto, opset: int) -> Meaning:
    """An unpooling whose places are as many as its elements."""
    from tests.cpu.random_models.reference import Evaluator

    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.name = "paired"

    def run(operands: Sequence[Any]) -> list[Any]:
        if operands[0].shape != operands[1].shape:
            raise ValueError("places and elements differ in shape")
        return list(Evaluator(plain, opset).run(operands))

    return run


def onnxruntime(node: onnx.NodeProto, opset: int) -> Meaning:
    """ONNX Runtime, in the operands' own types (single precision where they come in double, which it often lacks)."""
    import onnxruntime as ort

    sessions: dict[Any, Any] = {}

    def run(operands: Sequence[Any]) -> list[Any]:
        arrays = {n: a for n, a in zip(node.input, operands, strict=False) if n}
        wide = any(a.dtype == np.float64 for a in arrays.values())
        given = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}
        key = tuple((n, a.dtype.str, a.ndim) for n, a in given.items())
        if key not in sessions:
            inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)
                      for n, a in given.items()]
            made = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
            graph = helper.make_graph([node], "one", inputs, made)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", min(opset, 21))], ir_version=10)
            options = ort.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            sessions[key] = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = iter(sessions[key].run(None, given))
        out = [next(found) if n else None for n in node.output]
        return [o.astype(np.float64) if wide and o is not None and o.dtype == np.float32 else o for o in out]

    return run


def coerced(node: onnx.NodeProto, opset: int) -> Meaning:
    """Softmax and kin before version 13: along all dimensions from `axis` on, as one."""
    axis = attributes(node).get("axis", 1)
    flat = onnx.NodeProto()
    flat.CopyFrom(node)
    del flat.attribute[:]
    flat.attribute.append(helper.make_attribute("axis", 1))
    from tests.cpu.random_models.reference import Evaluator

    evaluator = Evaluator(flat, max(opset, 13))

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        if not -x.ndim <= axis < x.ndim:
            raise ValueError("no such axis")
        rows = int(np.prod(x.shape[: axis % x.ndim], dtype=np.int64))
        return [y.reshape(x.shape) for y in evaluator.run([x.reshape(rows, -1)])]

    return run


def log_softmax(node: onnx.NodeProto, opset: int) -> Meaning:
    """x - max - log(sum(e^(x - max)))."""
    axis = attributes(node).get("axis", -1)

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        if not x.size:
            return [x]
        kind = np.float64 if x.dtype == np.float64 else np.float32
        with np.errstate(all="ignore"):
            less = x.astype(kind) - x.astype(kind).max(axis=axis, keepdims=True)
            return [(less - np.log(np.exp(less).sum(axis=axis, keepdims=True))).astype(x.dtype)]

    return run


def error_function(node: onnx.NodeProto, opset: int) -> Meaning:
    """erf of doubles in double precision, else in single."""
    each = np.vectorize(math.erf, otypes=["d"])

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        return [(each(x) if x.dtype == np.float64 else each(x).astype(np.float32)).astype(x.dtype)]

    return run


def integer_norm(node: onnx.NodeProto, opset: int) -> Meaning:
    """The root of the sum of squares of integers, which are widened before."""
    from tests.cpu.random_models.reference import Evaluator

    evaluator = Evaluator(node, opset, plain=True)

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        if x.dtype.kind not in "iu":
            return list(evaluator.run(operands))
        (y,) = evaluator.run([x.astype(np.float64), *operands[1:]])
        with np.errstate(all="ignore"):
            return [y.astype(x.dtype)]

    return run


def weighted(node: onnx.NodeProto, opset: int) -> Meaning:
    """A loss with weights spelled out."""
    from tests.cpu.random_models.reference import Evaluator

    full = onnx.NodeProto()
    full.CopyFrom(node)
    full.input.append("weights of one")
    evaluator = Evaluator(full, opset)
    return lambda operands: evaluator.run([*operands, np.ones(operands[0].shape[1], operands[0].dtype)])


def absolute_norm(node: onnx.NodeProto, opset: int) -> Meaning:
    """The norm for p = 1."""
    axis = attributes(node).get("axis", -1)

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        norm = np.abs(x).sum(axis=axis, keepdims=True)
        with np.errstate(all="ignore"):
            return [np.where(norm == 0, 0, x / norm).astype(x.dtype)]

    return run


def local_response(node: onnx.NodeProto, opset: int) -> Meaning:
    """LRN as its schema has it."""
    given = {"alpha": float(np.float32(1e-4)), "beta": 0.75, "bias": 1.0, **attributes(node)}
    below, above = (given["size"] - 1) // 2, given["size"] // 2

    def run(operands: Sequence[Any]) -> list[Any]:
        x = operands[0]
        count = x.shape[1]
        sums = np.stack([(x[:, max(0, c - below) : min(count, c + above + 1)] ** 2).sum(axis=1) for c in range(count)], axis=1)
        return [(x / (given["bias"] + given["alpha"] / given["size"] * sums) ** given["beta"]).astype(x.dtype)]

    return run


def as_newer(version: int) -> Make:
    """As in a newer version, which says the same."""

    def make(node: onnx.NodeProto, opset: int) -> Meaning:
        from tests.cpu.random_models.reference import Evaluator

        return Evaluator(node, version).run

    return make


def group_norm(node: onnx.NodeProto, opset: int) -> Meaning:
    """Groups of channels, each less its mean and over its deviation."""
    given = {"epsilon": float(np.float32(1e-5)), **attributes(node)}

    def run(operands: Sequence[Any]) -> list[Any]:
        x, scale, bias = operands
        kind = np.float64 if x.dtype == np.float64 else np.float32
        rows = x.astype(kind).reshape(x.shape[0], given["num_groups"], -1)
        rows = (rows - rows.mean(axis=2, keepdims=True)) / np.sqrt(rows.var(axis=2, keepdims=True) + kind(given["epsilon"]))
        each = x.shape[1] // scale.shape[0]  # before version 21 one number a group
        shape = (-1, *[1] * (x.ndim - 2))
        factor, shift = (v.astype(kind).repeat(each).reshape(shape) for v in (scale, bias))
        return [(rows.reshape(x.shape) * factor + shift).astype(x.dtype)]

    return run


def indexed(node: onnx.NodeProto, opset: int) -> Meaning:
    """The places of the largest elements by ONNX Runtime, which finds them among the elements' ranks, of whatever type they are."""
    from tests.cpu.random_models.reference import Evaluator

    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.output[1]
    values, ranked = Evaluator(plain, opset), onnxruntime(node, opset)

    def run(operands: Sequence[Any]) -> list[Any]:
        x = np.asarray(operands[0])
        _, ranks = np.unique(x.astype(np.float64), return_inverse=True)
        return [*values.run(operands), ranked([ranks.reshape(x.shape).astype(np.float32)])[1]]

    return run


def scaled(node: onnx.NodeProto, opset: int) -> Meaning:
    """Attention whose scale is multiplied into the queries, beside the default one over the square root of the heads' width."""
    from tests.cpu.random_models.reference import Evaluator

    given = attributes(node)
    scale = given.pop("scale")
    evaluator = Evaluator(helper.make_node(node.op_type, node.input, node.output, **given), opset)

    def run(operands: Sequence[Any]) -> list[Any]:
        q = operands[0]
        width = q.shape[3] if q.ndim == 4 else q.shape[2] // given["q_num_heads"]
        return evaluator.run([(q * (scale * np.sqrt(float(width)))).astype(q.dtype), *operands[1:]])

    return run


def _indexed(node: onnx.NodeProto, opset: int) -> bool:
    return len(node.output) > 1 and node.output[1] != ""


def _recurrent(node: onnx.NodeProto, opset: int) -> bool:
    given = attributes(node)
    return any(k in given for k in ("activations", "clip", "input_forget")) or (len(node.input) > 4 and node.input[4] != "")


def _grouped_bias(node: onnx.NodeProto, opset: int) -> bool:
    return attributes(node).get("group", 1) > 1 and len(node.input) > 2


def _unweighted(node: onnx.NodeProto, opset: int) -> bool:
    return attributes(node).get("ignore_index") == -1 and len(node.input) < 3


def _first_norm(node: onnx.NodeProto, opset: int) -> bool:
    return attributes(node).get("p") == 1


def _backwards(node: onnx.NodeProto, opset: int) -> bool:
    return len(node.input) > 4


def _own_scale(node: onnx.NodeProto, opset: int) -> bool:
    return bool(attributes(node).get("scale"))


def _same(node: onnx.NodeProto, opset: int) -> bool:
    return attributes(node).get("auto_pad", b"").startswith(b"SAME")


def _before(version: int) -> Callable[[onnx.NodeProto, int], bool]:
    return lambda node, opset: opset < version


def _always(node: onnx.NodeProto, opset: int) -> bool:
    return True


INSTEAD: tuple[tuple[tuple[str, ...], Callable[[onnx.NodeProto, int], bool], Make, str], ...] = (
    (("LSTM", "GRU", "RNN"), _recurrent, onnxruntime, "it ignores activations, clip, input_forget and sequence_lens"),
    (("Softmax", "LogSoftmax", "Hardmax"), _before(13), coerced, "it takes one axis where versions before 13 take all from it on"),
    (("ConvTranspose",), _grouped_bias, biased, "it adds each group the first group's bias"),
    (("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _unweighted, weighted, "it counts elements that ignore_index = -1 names"),
    (("LogSoftmax",), _always, log_softmax, "it takes the logarithm of Softmax, of which small elements are nothing"),
    (("Erf",), _always, error_function, "it rounds doubles to single precision"),
    (("ReduceL2",), _always, integer_norm, "it squares integers in their own type, where they overflow"),
    (("LpNormalization",), _first_norm, absolute_norm, "it adds the elements instead of their absolute values"),
    (("LRN",), _always, local_response, "it computes as many channels as there are images"),
    (("Slice",), _backwards, onnxruntime, "a start before the first element is cut to the first element where a step is negative"),
    (("BatchNormalization",), _before(14), as_newer(15), "it trains where a node has one output and so does not"),
    (("DynamicQuantizeLinear",), _always, onnxruntime, "an input of zeros has the scale 1/255 there, 1 in ONNX Runtime, 0 in the schema"),
    (("MaxPool",), _indexed, indexed, "it counts places within one channel, and makes them -1 in padding"),
    (("MaxPool", "AveragePool", "LpPool"), _same, explicit, "its padding is wrong with dilations, and less than nothing with long strides"),
    (("Attention",), _own_scale, scaled, "it takes the square root of a given scale in single precision"),
    (("RoiAlign",), _before(16), onnxruntime, "it moves places by half a pixel, as only newer versions do"),
    (("GroupNormalization",), _always, group_norm, "it cannot run the body it has it defined by"),
    (("Erf",), _always, double_erf, "it computes in single precision whatever comes"),
    (("MaxUnpool",), lambda node, opset: node.name != "paired", paired, "it takes places of another shape than the elements"),
    (("GlobalLpPool", "MaxRoiPool"), _always, onnxruntime, "it lacks the operator"),
)


def instead(node: onnx.NodeProto, opset: int) -> Meaning | None:
    """What to ask in place of the reference, if not the reference."""
    for operators, when, make, _ in INSTEAD:
        if node.op_type in operators and when(node, opset):
            return make(node, opset)
    return None
