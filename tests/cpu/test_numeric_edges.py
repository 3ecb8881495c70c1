"""Operators at the edges of their types: integers whose steps are larger than the result, errors that round to one, NaN constants."""

from math import erf

import numpy as np
import pytest
from onnx import helper, numpy_helper

import sartor


def run(op, feeds, constants=(), opset=13, **attributes):
    """The node's result; constants are its last operands."""
    names = [f"x{i}" for i in range(len(feeds))]
    held = [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants)]
    node = helper.make_node(op, [*names, *(c.name for c in held)], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in zip(names, feeds, strict=True)]
    graph = helper.make_graph([node], "edge", inputs, [helper.make_empty_tensor_value_info("y")], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return sartor.Session(sartor.compile(model, threads=1)).run(dict(zip(names, feeds, strict=True)))["y"]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_error_function_of_integers_reaches_one(dtype):
    x = np.array([0, 1, 3, 4, 5, 100], dtype)
    assert run("Erf", [x], opset=9).tolist() == [0, 0, 0, 1, 1, 1]
    if np.dtype(dtype).kind == "i":
        assert run("Erf", [-x], opset=9).tolist() == [0, 0, 0, -1, -1, -1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_error_function_of_large_numbers_is_one(dtype):
    x = np.array([4, 6, 7, 1000, np.inf, -4, -6, -np.inf], dtype)
    expected = np.array([erf(v) for v in x]).astype(dtype)
    np.testing.assert_array_equal(run("Erf", [x]), expected)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_norms_and_means_of_integers_do_not_overflow(dtype, keepdims):
    x = np.array([[300_000, 400_000], [2_000_000_000, 0]], dtype)
    shape = (2, 1) if keepdims else (2,)
    expected = np.array([500_000, 2_000_000_000], dtype).reshape(shape)
    np.testing.assert_array_equal(run("ReduceL2", [x], axes=[1], keepdims=keepdims), expected)
    big = np.array([[2_000_000_000, 2_000_000_000], [-7 if dtype != np.uint32 else 7, 2]], dtype)
    mean = np.array([2_000_000_000, -2 if dtype != np.uint32 else 4], dtype).reshape(shape)
    np.testing.assert_array_equal(run("ReduceMean", [big], axes=[1], keepdims=keepdims), mean)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_constant_that_is_no_number_wins(op, dtype):
    x = np.array([1, -2, np.nan], dtype)
    assert np.isnan(run(op, [x], [np.array(np.nan, dtype)])).all()
    np.testing.assert_array_equal(run(op, [x], [np.array(0.5, dtype)]), getattr(np, op.lower() + "imum")(x, dtype(0.5)))
