"""onnx's own backend test on a representative few cases; tests/slow runs them all."""

import numpy as np
import pytest
from tests.cpu import onnx_cases

from sartor.compat import onnx_backend
from sartor.errors import FeedError, ModelError, OptionError, UnsupportedError

onnx = pytest.importorskip("onnx")
helper = onnx.helper

CASES = (
    "abs", "add_bcast", "add", "and_bcast3v1d", "argmax_keepdims_example", "averagepool_2d_pads", "batchnorm_epsilon",
    "basic_conv_with_padding", "bitcast_bool_to_uint8", "cast_FLOAT_to_DOUBLE", "cast_FLOAT16_to_INT4", "cast_FLOAT_to_FLOAT8E4M3FN",
    "cast_e8m0_FLOAT_to_FLOAT8E8M0", "cast_no_saturate_FLOAT_to_FLOAT8E5M2", "castlike_FLOAT_to_BFLOAT16", "clip_default_min", "concat_3d_axis_negative_2", "constant",
    "conv_with_strides_and_asymmetric_padding", "convtranspose_pads", "cumsum_1d", "depthtospace_example",
    "dequantizelinear_e4m3fn", "dequantizelinear_uint2", "dropout_default", "einsum_batch_matmul", "elu", "equal_bcast", "expand_dim_changed", "flatten_axis2", "gather_1",
    "gather_negative_indices", "gemm_all_attributes", "gelu_tanh_1", "globalaveragepool", "hardswish", "instancenorm_example",
    "layer_normalization_4d_axis2", "logsoftmax_axis_1", "matmul_4d", "maxpool_2d_ceil", "mod_mixed_sign_int32",
    "nonzero_example", "pow_bcast_array", "prelu_broadcast", "quantizelinear_blocked_symmetric", "quantizelinear_float4e2m1", "reduce_mean_keepdims_example", "reshape_negative_dim",
    "resize_upsample_scales_linear", "shape_start_1", "sigmoid", "slice_neg_steps", "softmax_axis_0", "split_equal_parts_2d_opset13",
    "squeeze_negative_axes", "tile", "transpose_all_permutations_3", "unsqueeze_three_axes", "where_example",
)


@pytest.fixture(scope="module")
def found():
    """onnx's cases for single nodes."""
    return onnx_cases.cases(__name__)["OnnxBackendNodeModelTest"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_case_of_onnx(found, name):
    assert onnx_cases.outcome(found, f"test_{name}_cpu") == ""


def tanh_model():
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("inputs", [[X], X, {"x": X}, (X,)], ids=["list", "array", "mapping", "tuple"])
def test_inputs_come_in_any_of_the_usual_forms(inputs):
    outputs = onnx_backend.prepare(tanh_model()).run(inputs)
    assert isinstance(outputs, tuple)
    np.testing.assert_allclose(outputs[0], np.tanh(X), rtol=1e-5)
    assert outputs["y"] is outputs[0]


def test_one_model_and_one_node_run_at_once():
    np.testing.assert_allclose(onnx_backend.run_model(tanh_model(), [X])[0], np.tanh(X), rtol=1e-5)
    node = helper.make_node("Clip", ["x", "", "top"], ["y"])
    made = onnx_backend.run_node(node, [X, np.float32(1)])
    np.testing.assert_array_equal(made[0], np.minimum(X, 1))
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=0)
    first, second = onnx_backend.run_node(node, {"x": X}, opset_version=11)
    np.testing.assert_array_equal(np.concatenate([first, second]), X)


def test_devices_are_the_processor():
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(OptionError, match="device CUDA is not possible"):
        onnx_backend.prepare(tanh_model(), "CUDA")


def test_what_is_wrong_is_said_in_a_sentence():
    with pytest.raises(FeedError, match="2 inputs came; the model has 1: x"):
        onnx_backend.prepare(tanh_model()).run([X, X])
    with pytest.raises(FeedError, match="not as int"):
        onnx_backend.prepare(tanh_model()).run(3)
    with pytest.raises(FeedError, match="1 inputs came; the node Add has 2"):
        onnx_backend.run_node(helper.make_node("Add", ["x", "z"], ["y"]), [X])
    with pytest.raises(ModelError, match="Nonsense"):
        onnx_backend.run_node(helper.make_node("Nonsense", ["x"], ["y"]), [X])
    with pytest.raises(UnsupportedError, match=r"com\.example"):
        onnx_backend.run_node(helper.make_node("Magic", ["x"], ["y"], domain="com.example"), [X])


def test_compatible_is_what_can_be_compiled():
    assert onnx_backend.is_compatible(tanh_model())
    broken = tanh_model()
    broken.graph.node[0].op_type = "Nonsense"
    assert not onnx_backend.is_compatible(broken)
