"""What operators meant in the first releases of ONNX: the schema text of each version, written out in NumPy."""

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

from sartor.graph.reference import evaluate_graph
from sartor.importers.onnx import load
from sartor.ops.lowering import lower

CASES = {}
RNG = np.random.default_rng(0)


def case(name, op, opset, feeds, *expected, **attributes):
    """One node: its inputs by name, what it makes."""
    assert name not in CASES
    CASES[name] = (op, opset, feeds, expected, attributes)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def aligned(b, axis):
    return b.reshape(b.shape + (1,) * (4 - axis - b.ndim))


def per_channel(v):
    return v.reshape(1, -1, 1, 1)


def flattened(function):
    """A function of rows, over all dimensions from the axis on."""
    def apply(x, axis):
        return function(x.reshape(int(np.prod(x.shape[:axis])), -1)).reshape(x.shape)
    return apply


@flattened
def softmax(y):
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@flattened
def hardmax(y):
    return (np.arange(y.shape[1]) == y.argmax(1)[:, None]).astype(y.dtype)


def pooled(x, size, stride, function):
    places = [[x[:, :, i:i + size, j:j + size] for j in range(0, x.shape[3] - size + 1, stride)] for i in range(0, x.shape[2] - size + 1, stride)]
    return np.stack([np.stack([function(w) for w in row], -1) for row in places], -2)


def normalized(x, mean, variance, scale, bias):
    return (x - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias


A = normal(2, 3, 4, 5)
FUNCTIONS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
for op, function in FUNCTIONS.items():
    for version in (1, 6):
        for shape, axis in (((), None), ((5,), None), ((4, 5), None), ((3, 4), 1), ((2,), 0), ((3,), 1), ((3,), -3), ((1, 1), None), ((3, 1), 1)):
            b = np.asarray(normal(*shape), np.float32) + np.float32(3)
            where = {} if axis is None else {"axis": axis}
            case(f"{op}-{version} {shape} {axis}", op, version, {"a": A, "b": b}, function(A, aligned(b, 4 - b.ndim if axis is None else axis % 4)),
                 broadcast=1, **where)
        case(f"{op}-{version} plain", op, version, {"a": A, "b": A + 7}, function(A, A + 7), **({"consumed_inputs": [0, 0]} if version == 1 else {}))
B = normal(3, 4)
case("Pow-1", "Pow", 1, {"a": abs(A), "b": B}, abs(A) ** aligned(B, 1), broadcast=1, axis=1)
for op, function in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items():
    case(f"{op}-1", op, 1, {"a": A > 0, "b": B > 0}, function(A > 0, aligned(B > 0, 1)), broadcast=1, axis=1)
for op, function in {"Less": np.less, "Greater": np.greater}.items():
    case(f"{op}-1", op, 1, {"a": A, "b": B}, function(A, aligned(B, 1)), broadcast=1, axis=1)
INTS, MORE = RNG.integers(0, 3, (2, 3, 4, 5)).astype(np.int32), RNG.integers(0, 3, (3, 4)).astype(np.int32)
case("Equal-1", "Equal", 1, {"a": INTS, "b": MORE}, np.equal(INTS, aligned(MORE, 1)), broadcast=1, axis=1)
X, W, C = normal(3, 4), normal(4, 5), normal(5)
for version in (1, 6):
    case(f"Gemm-{version}", "Gemm", version, {"a": X, "b": W, "c": C}, 0.5 * X @ W + 2 * C, alpha=0.5, beta=2.0, broadcast=1)
    case(f"Gemm-{version} whole", "Gemm", version, {"a": X, "b": W, "c": X @ W}, 3 * X @ W, beta=2.0)
    case(f"Gemm-{version} transposed", "Gemm", version, {"a": X.T.copy(), "b": W.T.copy(), "c": C}, X @ W + C, transA=1, transB=1, broadcast=1)
case("Gemm-7", "Gemm", 7, {"a": X, "b": W, "c": C}, X @ W + C)

case("Reshape-1", "Reshape", 1, {"a": A}, A.reshape(2, -1, 5), shape=[0, -1, 5], consumed_inputs=[0])
case("Pad-1", "Pad", 1, {"a": A}, np.pad(A, [(0, 0), (1, 0), (2, 1), (0, 3)], constant_values=1.5), paddings=[0, 1, 2, 0, 0, 0, 1, 3], value=1.5)
case("Pad-2", "Pad", 2, {"a": A}, np.pad(A, [(0, 0), (1, 0), (2, 1), (0, 3)], mode="reflect"), pads=[0, 1, 2, 0, 0, 0, 1, 3], mode="reflect")
case("Upsample-1", "Upsample", 1, {"a": A}, A.repeat(2, 2).repeat(3, 3), height_scale=2.0, width_scale=3.0)
case("Upsample-7", "Upsample", 7, {"a": A}, A.repeat(2, 2).repeat(3, 3), scales=[1.0, 1.0, 2.0, 3.0])
case("Upsample-9", "Upsample", 9, {"a": A, "known": np.array([1, 1, 2, 3], np.float32)}, A.repeat(2, 2).repeat(3, 3))
case("Resize-10", "Resize", 10, {"a": A, "known": np.array([1, 1, 2, 2], np.float32)}, A.repeat(2, 2).repeat(2, 3))
S, T, M, V = normal(3), normal(3), normal(3), abs(normal(3)) + np.float32(0.5)
STATISTICS = {"x": A, "s": S, "b": T, "m": M, "v": V}
WANTED = normalized(A, *map(per_channel, (M, V, S, T)))
case("BatchNormalization-1", "BatchNormalization", 1, STATISTICS, WANTED, is_test=1, consumed_inputs=[0, 0, 0, 1, 1], spatial=1)
case("BatchNormalization-6", "BatchNormalization", 6, STATISTICS, WANTED, is_test=1)
case("BatchNormalization-7", "BatchNormalization", 7, STATISTICS, WANTED)
PLACES = {"x": A, "s": normal(3, 4, 5), "b": normal(3, 4, 5), "m": normal(3, 4, 5), "v": abs(normal(3, 4, 5)) + np.float32(0.5)}
for version, others in ((1, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}), (6, {"is_test": 1}), (7, {})):
    case(f"BatchNormalization-{version} places", "BatchNormalization", version, PLACES,
         normalized(A, PLACES["m"], PLACES["v"], PLACES["s"], PLACES["b"]), spatial=0, **others)
case("InstanceNormalization-1", "InstanceNormalization", 1, {"x": A, "s": S, "b": T},
     normalized(A, A.mean((2, 3), keepdims=True), A.var((2, 3), keepdims=True), per_channel(S), per_channel(T)), consumed_inputs=[0, 0, 0])
case("MeanVarianceNormalization-9", "MeanVarianceNormalization", 9, {"a": A}, (A - A.mean((0, 2, 3), keepdims=True)) / A.std((0, 2, 3), keepdims=True))
case("LpNormalization-1", "LpNormalization", 1, {"a": A}, A / np.sqrt((A * A).sum(1, keepdims=True)), axis=1, p=2)
ONES = np.ones_like(A)
case("Dropout-1", "Dropout", 1, {"a": A}, A, ONES, is_test=1, ratio=0.3, consumed_inputs=[0])
case("Dropout-6", "Dropout", 6, {"a": A}, A, ONES, is_test=1)
case("Dropout-7", "Dropout", 7, {"a": A}, A, ONES)
case("Dropout-10", "Dropout", 10, {"a": A}, A, ONES > 0)
case("Dropout-12", "Dropout", 12, {"a": A}, A, ONES > 0)
case("Split-1", "Split", 1, {"a": A}, A[:, :1], A[:, 1:], axis=1, split=[1, 2])
case("Split-1 input", "Split", 1, {"a": A, "known": np.array([1, 2], np.float32)}, A[:, :1], A[:, 1:], axis=1)
case("Split-1 even", "Split", 1, {"a": A}, A[:, :, :2], A[:, :, 2:], axis=2)
case("Split-2", "Split", 2, {"a": A}, A[:, :1], A[:, 1:], axis=1, split=[1, 2])
case("Split-2 even", "Split", 2, {"a": A}, A[:1], A[1:])
case("Squeeze-1", "Squeeze", 1, {"a": A[:, None]}, A, axes=[1])
case("Squeeze-1 all", "Squeeze", 1, {"a": A[:, None]}, A)
case("Unsqueeze-1", "Unsqueeze", 1, {"a": A}, A[:, None, :, :, :, None], axes=[1, 5])
for word, dtype in (("INT32", np.int32), ("int64", np.int64), ("FLOAT16", np.float16), ("DOUBLE", np.float64), ("BOOL", np.bool_)):
    case(f"Cast-1 {word}", "Cast", 1, {"a": A * 3}, (A * 3).astype(dtype), to=word)
case("Concat-1", "Concat", 1, {"a": A, "b": A}, np.concatenate([A, A], 1))
case("Concat-1 axis", "Concat", 1, {"a": A, "b": A}, np.concatenate([A, A], 2), axis=2)
case("Concat-4", "Concat", 4, {"a": A, "b": A}, np.concatenate([A, A], 3), axis=3)
for version, axes in ((1, (None, 0, 1, 2, 3)), (11, (None, 0, 1, -2, -1))):
    for axis in axes:
        where, place = ({}, 1) if axis is None else ({"axis": axis}, axis % 4)
        case(f"Softmax-{version} {axis}", "Softmax", version, {"a": A}, softmax(A, place), **where)
        case(f"LogSoftmax-{version} {axis}", "LogSoftmax", version, {"a": A}, np.log(softmax(A, place)), **where)
        case(f"Hardmax-{version} {axis}", "Hardmax", version, {"a": A}, hardmax(A, place), **where)
case("Clip-1", "Clip", 1, {"a": A}, np.clip(A, -0.5, 0.5), min=-0.5, max=0.5, consumed_inputs=[0])
case("Clip-1 below", "Clip", 1, {"a": A}, np.maximum(A, -0.5), min=-0.5)
case("Clip-6", "Clip", 6, {"a": A.astype(np.float16)}, np.minimum(A.astype(np.float16), np.float16(0.5)), max=0.5)
BEST = np.argsort(-A, 3, kind="stable")[..., :2]
case("TopK-1", "TopK", 1, {"a": A}, np.take_along_axis(A, BEST, 3), BEST, k=2)
case("TopK-10", "TopK", 10, {"a": A, "known": np.array([2])}, np.take_along_axis(A, BEST, 3), BEST)
case("Slice-1", "Slice", 1, {"a": A}, A[:, 1:3, -2:], starts=[1, -2], ends=[3, 2**63 - 1], axes=[1, 2])
case("Slice-1 first axes", "Slice", 1, {"a": A}, A[0:1, 1:3], starts=[0, 1], ends=[1, 1000])
case("Tile-1", "Tile", 1, {"a": A, "known": np.array([2], np.float32), "known too": np.array([1], np.float32)}, np.tile(A, (1, 2, 1, 1)))
case("Tile-6", "Tile", 6, {"a": A, "known": np.array([1, 2, 1, 3])}, np.tile(A, (1, 2, 1, 3)))
POSITIVE = abs(A) + np.float32(0.1)
for op, function in {"Relu": lambda x: np.maximum(x, 0), "Abs": np.abs, "Ceil": np.ceil, "Exp": np.exp, "Floor": np.floor, "Neg": np.negative,
                     "Reciprocal": lambda x: 1 / x, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh, "Log": np.log, "Sqrt": np.sqrt}.items():
    x = POSITIVE if op in ("Log", "Sqrt", "Reciprocal") else A
    case(f"{op}-1", op, 1, {"a": x}, function(x), consumed_inputs=[0])
case("Elu-1", "Elu", 1, {"a": A}, np.where(A < 0, 0.7 * (np.exp(A) - 1), A), alpha=0.7, consumed_inputs=[0])
case("LeakyRelu-1", "LeakyRelu", 1, {"a": A}, np.where(A < 0, 0.2 * A, A), alpha=0.2, consumed_inputs=[0])
case("HardSigmoid-1", "HardSigmoid", 1, {"a": A}, np.clip(0.2 * A + 0.5, 0, 1), consumed_inputs=[0])
case("Selu-1", "Selu", 1, {"a": A}, 1.0507 * np.where(A > 0, A, 1.6732 * (np.exp(A) - 1)), consumed_inputs=[0])
case("Selu-6", "Selu", 6, {"a": A}, 1.0507009873554805 * np.where(A > 0, A, 1.6732632423543772 * (np.exp(A) - 1)))
SLOPE = abs(S)
case("PRelu-1", "PRelu", 1, {"a": A, "s": SLOPE}, np.where(A < 0, A * per_channel(SLOPE), A), consumed_inputs=[0, 0])
case("PRelu-6", "PRelu", 6, {"a": A, "s": SLOPE[:1]}, np.where(A < 0, A * SLOPE[0], A))
case("PRelu-7", "PRelu", 7, {"a": A, "s": SLOPE.reshape(3, 1, 1)}, np.where(A < 0, A * per_channel(SLOPE), A))
case("Max-1", "Max", 1, {"a": A, "b": -A, "c": A * 2}, abs(A) * np.where(A > 0, 2, 1).astype(np.float32), consumed_inputs=[0, 0, 0])
case("Min-1", "Min", 1, {"a": A, "b": -A, "c": A * 2}, -abs(A) * np.where(A < 0, 2, 1).astype(np.float32), consumed_inputs=[0, 0, 0])
case("Sum-1", "Sum", 1, {"a": A, "b": -A, "c": A * 2}, A * 2, consumed_inputs=[0, 0, 0])
case("Mean-1", "Mean", 1, {"a": A, "b": -A, "c": A * 2}, A * 2 / 3, consumed_inputs=[0, 0, 0])
Z = normal(1, 2, 6, 7)
BORDER = [(0, 0), (0, 0), (1, 1), (1, 1)]
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2]}
case("AveragePool-1", "AveragePool", 1, {"x": Z}, pooled(Z, 3, 2, lambda w: w.mean((2, 3))), **WINDOW)
case("AveragePool-1 padded", "AveragePool", 1, {"x": Z}, pooled(np.pad(Z, BORDER), 3, 2, lambda w: w.sum((2, 3)))
     / pooled(np.pad(np.ones_like(Z), BORDER), 3, 2, lambda w: w.sum((2, 3))), pads=[1, 1, 1, 1], **WINDOW)
case("AveragePool-7", "AveragePool", 7, {"x": Z}, pooled(np.pad(Z, BORDER), 3, 2, lambda w: w.mean((2, 3))), pads=[1, 1, 1, 1], count_include_pad=1, **WINDOW)
case("MaxPool-1", "MaxPool", 1, {"x": Z}, pooled(Z, 3, 2, lambda w: w.max((2, 3))), **WINDOW)
case("LpPool-1", "LpPool", 1, {"x": Z}, pooled(Z, 3, 2, lambda w: (abs(w) ** 3).sum((2, 3)) ** (1 / 3)), p=3.0, **WINDOW)
case("LpPool-2", "LpPool", 2, {"x": Z}, pooled(Z, 3, 2, lambda w: np.sqrt((w**2).sum((2, 3)))), p=2, **WINDOW)
case("GlobalLpPool-1", "GlobalLpPool", 1, {"x": Z}, (abs(Z) ** 3).sum((2, 3), keepdims=True) ** (1 / 3), p=3.0)
case("GlobalLpPool-2", "GlobalLpPool", 2, {"x": Z}, np.sqrt((Z**2).sum((2, 3), keepdims=True)))
case("Flatten-1", "Flatten", 1, {"a": A}, A.reshape(6, 20), axis=2)
D = normal(1, 8, 2, 3)
case("DepthToSpace-1", "DepthToSpace", 1, {"x": D}, D.reshape(1, 2, 2, 2, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6), blocksize=2)
case("ReduceSum-1", "ReduceSum", 1, {"a": A}, A.sum((1, 3)), axes=[1, 3], keepdims=0)
case("ReduceSum-1 all", "ReduceSum", 1, {"a": A}, A.sum(keepdims=True))
case("ReduceMean-11", "ReduceMean", 11, {"a": A}, A.mean(-1, keepdims=True), axes=[-1])
case("ReduceLogSumExp-1", "ReduceLogSumExp", 1, {"a": A}, np.log(np.exp(A).sum(1)), axes=[1], keepdims=0)
case("ArgMax-1", "ArgMax", 1, {"a": A}, A.argmax(2), axis=2, keepdims=0)
case("Gather-1", "Gather", 1, {"a": A, "i": np.array([2, 0])}, A[:, [2, 0]], axis=1)
U = normal(2, 3)
PUT = np.zeros((3, 3), np.float32)
np.put_along_axis(PUT, PLACE := np.array([[1, 0, 2], [0, 2, 1]]), U, 0)
case("Scatter-9", "Scatter", 9, {"d": np.zeros((3, 3), np.float32), "i": PLACE, "u": U}, PUT, axis=0)
case("Constant-1", "Constant", 1, {}, B, value=onh.from_array(B, "v"))
case("Shape-1", "Shape", 1, {"a": A}, np.array([2, 3, 4, 5]))
case("Size-1", "Size", 1, {"a": A}, np.array(120))
case("Transpose-1", "Transpose", 1, {"a": A}, A.T.copy())
case("Expand-8", "Expand", 8, {"a": A[:1, :, :1, :1], "known": np.array([2, 1, 4, 6])}, np.broadcast_to(A[:1, :, :1, :1], (2, 3, 4, 6)))
case("OneHot-9", "OneHot", 9, {"i": np.array([0, 2, 1]), "known": np.array([3]), "v": np.array([0, 1], np.float32)}, np.eye(3, dtype=np.float32)[[0, 2, 1]])
case("Mod-10", "Mod", 10, {"a": A, "b": np.full_like(A, 0.7)}, np.fmod(A, np.float32(0.7)), fmod=1)

# Operators on trial, which ONNX dropped later.
case("Affine", "Affine", 1, {"a": A}, A * 2 + 0.5, alpha=2.0, beta=0.5)
case("ScaledTanh", "ScaledTanh", 1, {"a": A}, 1.5 * np.tanh(0.5 * A), alpha=1.5, beta=0.5)
case("ParametricSoftplus", "ParametricSoftplus", 1, {"a": A}, 1.5 * np.log(1 + np.exp(0.5 * A)), alpha=1.5, beta=0.5)
case("ThresholdedRelu-1", "ThresholdedRelu", 1, {"a": A}, np.where(A > 0.3, A, 0), alpha=0.3)
case("ThresholdedRelu-10", "ThresholdedRelu", 10, {"a": A}, np.where(A > 0.3, A, 0), alpha=0.3)
case("Scale", "Scale", 1, {"a": A}, A * 0.25, scale=0.25)
case("ImageScaler", "ImageScaler", 7, {"a": A}, A * 0.25 + per_channel(np.array([1, 2, 3], np.float32)), scale=0.25, bias=[1.0, 2.0, 3.0])
case("Crop", "Crop", 1, {"a": A}, A[:, :, 1:3, 2:4], border=[2, 1, 1, 1])
case("Crop to a size", "Crop", 1, {"a": A}, A[:, :, 1:3, 2:4], border=[2, 1, 1, 1], scale=[2, 2])
case("ConstantFill", "ConstantFill", 1, {}, np.full((2, 3), 1.5, np.float32), shape=[2, 3], value=1.5)
case("ConstantFill of a shape", "ConstantFill", 1, {"known": np.array([2, 3])}, np.full((2, 3), 1.5, np.float32), input_as_shape=1, value=1.5)
case("ConstantFill like", "ConstantFill", 1, {"a": A}, np.full((2, 3, 4, 5, 7), 3, np.int32), value=3.0, dtype=6, extra_shape=[7])
case("GivenTensorFill", "GivenTensorFill", 1, {}, np.arange(6, dtype=np.float32).reshape(2, 3), shape=[2, 3], values=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
case("DynamicSlice", "DynamicSlice", 1, {"a": A, "known": np.array([1, 2]), "known too": np.array([3, 4]), "axes known": np.array([1, 3])}, A[:, 1:3, :, 2:4])


def ways(feeds):
    """Which inputs are fed: all that may be, the first one, none."""
    free = [name for name in feeds if "known" not in name]
    return dict.fromkeys([tuple(free), tuple(free[:1]), ()])


@pytest.mark.parametrize(("name", "fed"), [(name, fed) for name, (_, _, feeds, _, _) in CASES.items() for fed in ways(feeds)])
def test_an_old_operator(name, fed):
    op, opset, feeds, expected, attributes = CASES[name]
    outputs = [f"y{i}" for i in range(len(expected))]
    fed = {k: feeds[k] for k in fed}
    inputs = [oh.make_tensor_value_info(k, oh.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in fed.items()]
    weights = [onh.from_array(v, k) for k, v in feeds.items() if k not in fed]
    node = oh.make_node(op, list(feeds), outputs, name="node", **attributes)
    graph = oh.make_graph([node], "g", inputs, [oh.make_empty_tensor_value_info(v) for v in outputs], weights)
    lowered = lower(load(oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=3)))
    assert "host" not in [layer.kind for layer in lowered.layers]
    made = evaluate_graph(lowered, fed)
    for output, wanted in zip(outputs, expected, strict=True):
        assert made[output].shape == wanted.shape
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(made[output], wanted, strict=True)
        else:
            np.testing.assert_allclose(made[output], wanted, rtol=2e-3 if wanted.dtype == np.float16 else 2e-5, atol=2e-5)


def test_exporters_write_element_types_that_only_newer_opsets_have():
    values = [oh.make_tensor_value_info(name, oh.TensorProto.BFLOAT16, shape) for name, shape in (("x", [1, 2, 4, 4]), ("w", [3, 2, 1, 1]))]
    graph = oh.make_graph([oh.make_node("Conv", ["x", "w"], ["y"])], "g", values, [oh.make_empty_tensor_value_info("y")])
    lowered = lower(load(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)])))
    assert "host" not in [layer.kind for layer in lowered.layers]
    assert str(lowered.tensors["y"]) == "bf16[1, 3, 4, 4]"
