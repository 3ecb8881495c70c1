"""A small valid model for every operator of ai.onnx in every version of it that computes on tensors.

`RECIPES` maps an operator to a function of the version that gives one node: what it reads by name (arrays of a run, then constants),
its attributes, and how many outputs it has.  The data is the same for all versions, so that the newest version says what all compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Node:
    """One node: inputs by name in order (None for an absent one), which of them are constants, attributes, number of outputs."""

    inputs: dict[str, Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    outputs: int = 1


Recipe = Callable[[int], Node]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Normal numbers, or small integers."""
    generator = np.random.default_rng(seed + len(shape))
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(1, 9, shape).astype(dtype)


X = numbers(2, 3, 4)
IMAGE = numbers(1, 4, 6, 6)
P = np.abs(X) + 1.5


def one(x: Array = X, **attributes: Any) -> Recipe:
    """An operator of one input."""
    return lambda v: Node({"x": x}, attributes)


def two(a: Array, b: Array, **attributes: Any) -> Recipe:
    return lambda v: Node({"a": a, "b": b}, attributes)


def aligned(kind: Any = np.float32) -> Recipe:
    """Before opset 7 the second operand is aligned to an axis of the first by attributes."""
    a, b = numbers(2, 3, 4, dtype=kind), numbers(3, seed=1, dtype=kind)
    if kind is bool:
        a, b = numbers(2, 3, 4) > 0, numbers(3, seed=1) > 0
    return lambda v: Node({"a": a, "b": b}, {"broadcast": 1, "axis": 1}) if v < 7 else Node({"a": a, "b": b[:, None]})


def equal(v: int) -> Node:
    """Floats only from opset 11 on."""
    return aligned(np.int32)(v)


def reduction(since: int) -> Recipe:
    """Axes are an attribute before they are an input."""
    def recipe(v: int) -> Node:
        if v < since:
            return Node({"x": P}, {"axes": [0, 2], "keepdims": 0})
        return Node({"x": P, "axes": np.array([0, 2])}, {"keepdims": 0}, ("axes",))

    return recipe


def convolution(op: str) -> Recipe:
    w = numbers(4, 4, 3, 3, seed=1) if op == "ConvTranspose" else numbers(5, 4, 3, 3, seed=1)
    return lambda v: Node({"x": IMAGE, "w": w, "b": numbers(w.shape[1 if op == "ConvTranspose" else 0], seed=2)},
                          {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}, ("w", "b"))


def recurrent(gates: int, outputs: int) -> Recipe:
    feeds = {"x": numbers(5, 2, 3), "w": numbers(2, gates * 4, 3, seed=1) * 0.3, "r": numbers(2, gates * 4, 4, seed=2) * 0.3,
             "b": numbers(2, gates * 8, seed=3) * 0.3}
    return lambda v: Node(dict(feeds), {"hidden_size": 4, "direction": "bidirectional", **({"output_sequence": 1} if v < 7 else {})},
                          ("w", "r", "b"), outputs)


def padded(v: int) -> Node:
    pads = [0, 1, 0, 1, 0, 2]
    if v < 11:
        return Node({"x": X}, {"paddings" if v < 2 else "pads": pads, "value": 1.5})
    return Node({"x": X, "pads": np.array(pads), "value": np.array(1.5, np.float32)}, {}, ("pads", "value"))


def clipped(v: int) -> Node:
    if v < 11:
        return Node({"x": X}, {"min": -0.5, "max": 0.7})
    return Node({"x": X, "low": np.array(-0.5, np.float32), "high": np.array(0.7, np.float32)}, {}, ("low", "high"))


def sliced(v: int) -> Node:
    if v < 10:
        return Node({"x": X}, {"starts": [1, -3], "ends": [9, -1], "axes": [1, 2]})
    return Node({"x": X, "s": np.array([1, -3]), "e": np.array([9, -1]), "a": np.array([1, 2])}, {}, ("s", "e", "a"))


def cut(v: int) -> Node:
    if v == 1:
        return Node({"x": X, "split": np.array([1, 3], np.float32)}, {"axis": 2}, ("split",), 2)
    if v < 13:
        return Node({"x": X}, {"axis": 2, "split": [1, 3]}, (), 2)
    return Node({"x": X, "split": np.array([1, 3])}, {"axis": 2}, ("split",), 2)


def by_axes(x: Array, axes: list[int]) -> Recipe:
    return lambda v: Node({"x": x}, {"axes": axes}) if v < 13 else Node({"x": x, "axes": np.array(axes)}, {}, ("axes",))


def tiled(v: int) -> Node:
    if v < 6:
        return Node({"x": X, "tiles": np.array(3, np.float32), "axis": np.array(1, np.float32)}, {}, ("tiles", "axis"))
    return Node({"x": X, "repeats": np.array([1, 3, 1])}, {}, ("repeats",))


def best(v: int) -> Node:
    if v < 10:
        return Node({"x": X}, {"k": 2, "axis": 2}, (), 2)
    return Node({"x": X, "k": np.array([2])}, {"axis": 2}, ("k",), 2)


def reshaped(v: int) -> Node:
    return Node({"x": X}, {"shape": [4, -1]}) if v < 5 else Node({"x": X, "shape": np.array([4, -1])}, {}, ("shape",))


def enlarged(v: int) -> Node:
    if v < 7:
        return Node({"x": IMAGE}, {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"})
    if v < 9:
        return Node({"x": IMAGE}, {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"})
    return Node({"x": IMAGE, "scales": np.array([1, 1, 2, 3], np.float32)}, {"mode": "nearest"}, ("scales",))


def resized(v: int) -> Node:
    scales = np.array([1, 1, 2, 3], np.float32)
    if v < 11:
        return Node({"x": IMAGE, "scales": scales}, {"mode": "nearest"}, ("scales",))
    return Node({"x": IMAGE, "roi": np.zeros(0, np.float32), "scales": scales},
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, ("roi", "scales"))


def normalised_batch(v: int) -> Node:
    more = {n: np.abs(numbers(3, seed=i)) + 0.5 for i, n in enumerate(("scale", "bias", "mean", "variance"))}
    attributes = {"consumed_inputs": [0] * 5} if v < 6 else {}
    return Node({"x": X, **more}, attributes | ({"is_test": 1} if v < 7 else {}), tuple(more))


def with_consumed(recipe: Recipe) -> Recipe:
    """Before opset 6 many operators had the attribute `consumed_inputs`, which says nothing."""
    def changed(v: int) -> Node:
        node = recipe(v)
        if v < 6:
            node.attributes = {**node.attributes, "consumed_inputs": [0] * len(node.inputs)}
        return node

    return changed


def sloped(v: int) -> Node:
    """A vector has one slope a channel before opset 7, and is broadcast like any other operand later."""
    slope = numbers(3, seed=1)
    return Node({"x": X, "slope": slope if v < 7 else slope[:, None]})


def kept(v: int) -> Node:
    return Node({"x": X}, {"is_test": 1} if v < 7 else {})


def transformed(v: int) -> Node:
    x = numbers(2, 6, 2)
    return Node({"x": x}, {"axis": 1}) if v < 20 else Node({"x": x, "n": None, "axis": np.array(1)}, {}, ("axis",))


def multiplied(v: int) -> Node:
    feeds = {"a": numbers(3, 4), "b": numbers(4, 5, seed=1), "c": numbers(5, seed=2)}
    return Node(feeds, {"alpha": 0.5, **({"broadcast": 1} if v < 7 else {})})


def grouped(v: int) -> Node:
    """One scale a group in opset 18, one a channel from opset 21 on: here the same for both."""
    count = 2 if v < 21 else 4
    return Node({"x": IMAGE, "s": np.full(count, 1.5, np.float32), "b": np.full(count, 0.5, np.float32)}, {"num_groups": 2})


def scattered(v: int) -> Node:
    return Node({"x": X, "i": np.array([[[1, 0, 2, 1]]]), "u": numbers(1, 1, 4, seed=3)}, {"axis": 1})


def regions(v: int) -> Node:
    return Node({"x": IMAGE, "boxes": np.array([[0, 0, 4, 5], [1, 1, 3, 3]], np.float32), "images": np.array([0, 0])},
                {"output_height": 2, "output_width": 2, **({"coordinate_transformation_mode": "output_half_pixel"} if v >= 16 else {})})


def shifted(x: Array, **attributes: Any) -> Recipe:
    def recipe(v: int) -> Node:
        scale, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
        return Node({"x": x, "scale": scale, "zero": zero}, attributes, ("scale", "zero"))

    return recipe


def quantized(matrix: bool) -> Recipe:
    a = numbers(3, 4, dtype=np.uint8) if matrix else numbers(1, 2, 5, 5, dtype=np.uint8)
    b = numbers(4, 5, seed=1, dtype=np.uint8) if matrix else numbers(3, 2, 3, 3, seed=1, dtype=np.uint8)
    scale, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
    inputs = {"a": a, "as": scale, "az": zero, "b": b, "bs": scale, "bz": zero, "ys": np.array(2.5, np.float32), "yz": zero}
    return lambda v: Node(dict(inputs), {}, tuple(n for n in inputs if n != "a"))


SCALAR = np.array(2.0, np.float32)
FRACTION = np.tanh(X) * 0.9
MASK = X > 0
Q = numbers(1, 2, 3, 8)
_UNARY = {
    **dict.fromkeys(("Abs", "Ceil", "Cos", "Cosh", "Atan", "Asinh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
                     "Identity", "IsInf", "IsNaN", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
                     "Sin", "Sinh", "Softplus", "Softsign", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Celu", "Transpose", "Flatten",
                     "NonZero", "Shape", "Size"), X),
    **dict.fromkeys(("Acos", "Asin", "Atanh"), FRACTION), **dict.fromkeys(("Acosh", "Log", "Reciprocal", "Sqrt"), P),
    "Not": MASK, "BitwiseNot": numbers(2, 3, dtype=np.int32), "Det": numbers(2, 3, 3),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), IMAGE),
}
RECIPES: dict[str, Recipe] = {
    **{op: with_consumed(one(x)) if op in ("Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Reciprocal",
                                           "Relu", "Selu", "Sigmoid", "Sqrt", "Tanh") else one(x) for op, x in _UNARY.items()},
    **{op: with_consumed(aligned()) if op != "Pow" else aligned() for op in ("Add", "Sub", "Mul", "Div")},
    **{op: aligned(bool) for op in ("And", "Or", "Xor")}, "Equal": equal,
    **{op: aligned() for op in ("Greater", "Less")}, "GreaterOrEqual": two(X, X[:1]), "LessOrEqual": two(X, X[:1]),
    "Pow": lambda v: Node({"a": P, "b": numbers(3, seed=1)}, {"broadcast": 1, "axis": 1}) if v < 7 else
    Node({"a": P, "b": numbers(3, seed=1)[:, None]}),
    **{op: with_consumed(lambda v: Node({"a": X, "b": X + 1, "c": -X})) for op in ("Max", "Min", "Mean", "Sum")},
    **{f"Reduce{op}": reduction(13 if op == "Sum" else 18)
       for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
    "AffineGrid": lambda v: Node({"t": numbers(2, 2, 3), "size": np.array([2, 3, 4, 5])}, {}, ("size",)),
    "ArgMax": one(X, axis=1), "ArgMin": one(X, axis=-1 + 3), "Attention": lambda v: Node({"q": Q, "k": Q + 1, "v": Q * 2}),
    "AveragePool": one(IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "BatchNormalization": normalised_batch, "BitCast": one(X, to=6), "BitShift": two(numbers(2, 3, dtype=np.uint32),
                                                                                    numbers(2, 3, seed=1, dtype=np.uint32), direction="LEFT"),
    **{f"Bitwise{op}": two(numbers(2, 3, dtype=np.int32), numbers(3, dtype=np.int32)) for op in ("And", "Or", "Xor")},
    **{f"{op}Window": lambda v: Node({"n": np.array(10)}) for op in ("Blackman", "Hamming", "Hann")},
    "Cast": lambda v: Node({"x": X}, {"to": "INT32" if v < 6 else 6}), "CastLike": two(X, np.zeros(1, np.int32)),
    "CausalConvWithState": lambda v: Node({"x": numbers(1, 4, 6), "w": numbers(4, 1, 3, seed=1)}, {}, ("w",), 2),
    "CenterCropPad": lambda v: Node({"x": X, "shape": np.array([2, 5, 2])}, {}, ("shape",)), "Clip": with_consumed(clipped),
    "Col2Im": lambda v: Node({"x": numbers(1, 8, 9), "i": np.array([4, 4]), "b": np.array([2, 2])}, {}, ("i", "b")),
    "Compress": two(X, np.array([True, False, True]), axis=1), "Concat": two(X, X + 1, axis=1),
    "Constant": lambda v: Node({}, {"value": X}),
    "ConstantOfShape": lambda v: Node({"s": np.array([2, 3])}, {}, ("s",)), "Conv": convolution("Conv"),
    "ConvInteger": two(numbers(1, 2, 5, 5, dtype=np.uint8), numbers(3, 2, 3, 3, dtype=np.uint8)),
    "ConvTranspose": convolution("ConvTranspose"),
    **{op: lambda v: Node({"x": X, "axis": np.array(1)}, {}, ("axis",)) for op in ("CumProd", "CumSum")}, "DFT": transformed,
    "DeformConv": lambda v: Node({"x": numbers(1, 2, 4, 4), "w": numbers(2, 2, 2, 2, seed=1), "o": numbers(1, 8, 3, 3, seed=2)}),
    "DepthToSpace": one(IMAGE, blocksize=2), "DequantizeLinear": shifted(numbers(2, 3, dtype=np.uint8)), "Dropout": with_consumed(kept),
    "DynamicQuantizeLinear": lambda v: Node({"x": X}, {}, (), 3), "Einsum": two(numbers(3, 4), numbers(4, 5), equation="ij,jk->ki"),
    "Expand": lambda v: Node({"x": X[:, :1], "s": np.array([2, 3, 4])}, {}, ("s",)), "EyeLike": one(numbers(3, 4), k=1),
    "GRU": recurrent(3, 2), "Gather": two(X, np.array([[2, 0], [1, 1]]), axis=1),
    "GatherElements": two(X, np.array([[[1, 0, 2, 1]], [[0, 0, 1, 2]]]), axis=1), "GatherND": two(X, np.array([[1, 2], [0, 0]])),
    "Gemm": multiplied, "GridSample": lambda v: Node({"x": IMAGE, "g": np.tanh(numbers(1, 3, 3, 2))}, {"mode": "bilinear" if v < 20 else "linear"}),
    "GroupNormalization": grouped, "Hardmax": one(numbers(3, 5), axis=1),
    "InstanceNormalization": with_consumed(lambda v: Node({"x": IMAGE, "s": numbers(4), "b": numbers(4, seed=1)})), "LRN": one(IMAGE, size=3),
    "LSTM": recurrent(4, 3), "LayerNormalization": lambda v: Node({"x": X, "s": numbers(4), "b": numbers(4, seed=1)}),
    "LinearAttention": lambda v: Node({"q": numbers(1, 3, 8), "k": numbers(1, 3, 8, seed=1), "v": numbers(1, 3, 8, seed=2)},
                                      {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, (), 2),
    "LogSoftmax": one(numbers(3, 5), axis=1), "LpNormalization": one(X, axis=1), "LpPool": one(IMAGE, kernel_shape=[2, 2]),
    "MatMul": two(numbers(2, 3, 4), numbers(4, 5)), "MatMulInteger": two(numbers(3, 4, dtype=np.uint8), numbers(4, 5, dtype=np.uint8)),
    "MaxPool": one(IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "MaxRoiPool": two(IMAGE, np.array([[0, 0, 0, 4, 5]], np.float32), pooled_shape=[2, 2]),
    "MaxUnpool": two(numbers(1, 1, 2, 2), np.array([[[[1, 2], [8, 15]]]]), kernel_shape=[2, 2], strides=[2, 2]),
    "MeanVarianceNormalization": one(IMAGE),
    "MelWeightMatrix": lambda v: Node({"n": np.array(4), "d": np.array(16), "r": np.array(8000), "l": np.array(0, np.float32),
                                       "h": np.array(4000, np.float32)}),
    "Mod": two(numbers(2, 3, dtype=np.int32), numbers(2, 3, seed=4, dtype=np.int32)),
    "NegativeLogLikelihoodLoss": two(numbers(3, 5), np.array([1, 0, 4])),
    "NonMaxSuppression": lambda v: Node({"b": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 5, 1, 6]]], np.float32),
                                         "s": np.array([[[0.9, 0.8, 0.7]]], np.float32), "n": np.array([3]), "i": np.array([0.5], np.float32),
                                         "t": np.array([0.0], np.float32)}),
    "OneHot": lambda v: Node({"i": np.array([1, 0, 2]), "d": np.array(3), "v": np.array([0, 1], np.float32)}, {}, ("d", "v")),
    "PRelu": with_consumed(sloped), "Pad": padded, "QLinearConv": quantized(False), "QLinearMatMul": quantized(True),
    "QuantizeLinear": shifted(X), "RMSNormalization": two(X, numbers(4)), "RNN": recurrent(1, 2),
    "Range": lambda v: Node({"s": np.array(1, np.int64), "l": np.array(9), "d": np.array(3)}),
    "Reshape": reshaped, "Resize": resized, "ReverseSequence": two(X, np.array([1, 2, 2]), time_axis=0, batch_axis=1), "RoiAlign": regions,
    "RotaryEmbedding": lambda v: Node({"x": Q, "c": numbers(1, 3, 4), "s": numbers(1, 3, 4, seed=1)}),
    "STFT": lambda v: Node({"x": numbers(1, 20, 1), "step": np.array(4), "w": numbers(8)}, {}, ("step",)),
    "Scatter": scattered, "ScatterElements": scattered,
    "ScatterND": lambda v: Node({"x": X, "i": np.array([[1, 2], [0, 1]]), "u": numbers(2, 4, seed=3)}),
    "Softmax": one(numbers(3, 5), axis=1), "SoftmaxCrossEntropyLoss": lambda v: Node({"x": numbers(3, 5), "l": np.array([1, 0, 4])}, {}, (), 2),
    "Slice": sliced, "SpaceToDepth": one(IMAGE, blocksize=2), "Split": cut, "Squeeze": by_axes(numbers(2, 1, 3, 1), [1, 3]),
    "SwiGLU": two(X, X + 1), "TensorScatter": lambda v: Node({"c": numbers(2, 3, 5, 4), "u": numbers(2, 3, 2, 4, seed=1), "w": np.array([1, 3])}),
    "TfIdfVectorizer": lambda v: Node({"x": np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8])}, {
        "mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}),
    "Tile": tiled, "TopK": best, "Trilu": one(X), "Unique": lambda v: Node({"x": np.array([2, 1, 1, 3], np.float32)}, {}, (), 4),
    "Unsqueeze": by_axes(X, [0, 2]), "Upsample": enlarged, "Where": lambda v: Node({"c": MASK, "a": X, "b": X[:1]}),
}
ELSEWHERE = {
    "control flow, which other tests have": ("If", "Loop", "Scan"),
    "sequences and optionals, which no layer holds": (
        "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
        "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"),
    "strings and pictures": ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
    "random": ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}
"""Operators without a recipe, by the reason."""
