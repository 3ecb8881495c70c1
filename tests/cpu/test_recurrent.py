"""LSTM, GRU and RNN, compiled and run, against ONNX Runtime and, where it has no such kernel, against the reference in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import sartor
import sartor.errors

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def feeds_of(op: str, steps: int, batch: int, size: int, hidden: int, directions: int, given: str, dtype: Any = np.float32,
             layout: int = 0) -> dict[str, Array]:
    """Inputs of the operator in its order; `given` has a letter for each optional one (bias, lengths, h, c, peepholes)."""
    generator = np.random.default_rng(steps + 10 * batch + 100 * hidden)
    gates = GATES[op]

    def normal(*shape: int) -> Array:
        return (generator.standard_normal(shape) * 0.5).astype(dtype)

    feeds = {"x": normal(steps, batch, size), "w": normal(directions, gates * hidden, size), "r": normal(directions, gates * hidden, hidden)}
    optional = {"b": normal(directions, 2 * gates * hidden), "l": generator.integers(1, steps + 1, batch).astype(np.int32),
                "h": normal(directions, batch, hidden), "c": normal(directions, batch, hidden), "p": normal(directions, 3 * hidden)}
    if layout:
        feeds["x"] = np.ascontiguousarray(feeds["x"].swapaxes(0, 1))
        optional["h"], optional["c"] = (np.ascontiguousarray(optional[k].swapaxes(0, 1)) for k in "hc")
    return {**feeds, **{k: v for k, v in optional.items() if k in given}}


def model_of(op: str, feeds: dict[str, Array], constant: str = "wrbp", symbolic: bool = True, opset: int = 14,
             **attributes: Any) -> onnx.ModelProto:
    order = ["x", "w", "r", "b", "l", "h", *(["c", "p"] if op == "LSTM" else [])]
    inputs = [k if k in feeds else "" for k in order]
    outputs = ["y", "y_h", *(["y_c"] if op == "LSTM" else [])]
    hidden = feeds["r"].shape[-1]
    node = oh.make_node(op, inputs, outputs, "node", hidden_size=hidden, **attributes)
    values = []
    for name, array in feeds.items():
        if name not in constant:
            dims: list[Any] = list(array.shape)
            if symbolic and name == "x":
                dims[:2] = ["first", "second"]
            elif symbolic and name in "lhc":
                dims = [None] * array.ndim
                dims[-1] = dims[-1] if name == "l" else hidden
            values.append(oh.make_tensor_value_info(name, oh.np_dtype_to_tensor_dtype(array.dtype), dims))
    results = [oh.make_empty_tensor_value_info(n) for n in outputs]
    dtype = oh.np_dtype_to_tensor_dtype(feeds["x"].dtype)
    results = [oh.make_tensor_value_info(n, dtype, [None] * (4 if n == "y" else 3)) for n in outputs]
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in feeds.items() if n in constant]
    graph = oh.make_graph([node], "g", values, results, weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=9)


def check(op: str, feeds: dict[str, Array], constant: str = "wrbp", symbolic: bool = True, tolerance: float = 2e-5,
          wanted: list[Array] | None = None, **attributes: Any) -> None:
    """Compiles and compares all outputs; nothing may be left to the host."""
    model = model_of(op, feeds, constant, symbolic, **attributes)
    fed = {k: v for k, v in feeds.items() if k not in constant}
    if wanted is None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, fed)
    program = sartor.compile(model)
    assert not program.fallbacks
    got = sartor.Session(program).run(fed)
    for name, mine, theirs in zip(("y", "y_h", "y_c"), got.values() if isinstance(got, dict) else got, wanted, strict=False):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions_lengths_and_states(op: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    check(op, feeds_of(op, 5, 7, 3, 13, directions, "blhcp" if op == "LSTM" else "blh"), direction=direction)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 1), (1, 67), (4, 16), (6, 9)])
def test_sizes_with_weights_as_inputs(op: str, batch: int, hidden: int) -> None:
    check(op, feeds_of(op, 3, batch, 5, hidden, 1, "b"), constant="", symbolic=False)


def test_gru_linear_before_reset() -> None:
    check("GRU", feeds_of("GRU", 4, 3, 5, 11, 2, "bh"), direction="bidirectional", linear_before_reset=1)
    check("GRU", feeds_of("GRU", 4, 1, 5, 8, 1, "b"), constant="", linear_before_reset=1)


@pytest.mark.parametrize("attributes", [{"input_forget": 1}, {"clip": 0.3}])
def test_lstm_attributes(attributes: dict[str, Any]) -> None:
    check("LSTM", feeds_of("LSTM", 4, 3, 5, 10, 1, "b"), **attributes)


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_clip(op: str) -> None:
    check(op, feeds_of(op, 4, 3, 5, 10, 1, "b"), clip=0.3)


@pytest.mark.parametrize(("names", "alpha", "beta"), [
    (["Relu", "Softsign"], [], []), (["LeakyRelu", "ThresholdedRelu"], [0.2, 0.1], []), (["Affine", "ScaledTanh"], [0.7, 0.8], [0.1, 0.9]),
    (["Elu", "HardSigmoid"], [0.5, 0.3], [0.4]), (["Softplus", "Sigmoid"], [], [])])
def test_activations(names: list[str], alpha: list[float], beta: list[float]) -> None:
    numbers = {name: given for name, given in (("activation_alpha", alpha), ("activation_beta", beta)) if given}
    check("RNN", feeds_of("RNN", 4, 3, 5, 10, 2, "b"), direction="bidirectional", activations=names, **numbers)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float16, 4e-3)])
def test_batch_first_and_other_types(op: str, dtype: Any, tolerance: float) -> None:
    plain = feeds_of(op, 4, 3, 5, 9, 2, "bhc" if op == "LSTM" else "bh", np.float32)
    import onnxruntime

    feeds = {k: v.astype(dtype) for k, v in plain.items()}
    same = {k: v.astype(np.float32) for k, v in feeds.items()}
    model = model_of(op, same, direction="bidirectional")
    fed = {k: v for k, v in same.items() if k not in "wrbp"}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)
    turned = [wanted[0].transpose(2, 0, 1, 3), *(w.swapaxes(0, 1) for w in wanted[1:])]
    for name in {"x", "h", "c"} & set(feeds):
        feeds[name] = np.ascontiguousarray(feeds[name].swapaxes(0, 1))
    check(op, feeds, direction="bidirectional", layout=1, wanted=turned, tolerance=max(tolerance, 2e-5))


def test_lengths_outside_the_sequence_are_harmless() -> None:
    feeds = feeds_of("LSTM", 3, 2, 4, 5, 1, "bl")
    model = model_of("LSTM", feeds, direction="reverse")
    session = sartor.Session(sartor.compile(model))
    long = session.run({"x": feeds["x"], "l": np.array([99, -3], np.int32)})
    full = session.run({"x": feeds["x"], "l": np.array([3, 0], np.int32)})
    for a, b in zip(*(r.values() if isinstance(r, dict) else r for r in (long, full)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("attributes", "message"), [
    ({"direction": "sideways"}, "the direction 'sideways'"), ({"direction": "bidirectional"}, "1 and 2, along input 1"),
    ({"activations": ["Tanh"]}, "1 activations; expected 3"), ({"activations": ["Tanh", "Tanh", "Step"]}, "unknown activation 'step'")])
def test_wrong_attributes_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(sartor.errors.ModelError, match=message):
        sartor.compile(model_of("LSTM", feeds_of("LSTM", 3, 2, 4, 5, 1, "b"), **attributes))
