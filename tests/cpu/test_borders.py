"""What comes in from outside: options, arrays, sizes, and numbers that are none.  Each ends in a right answer or one sentence."""

import numpy as np
import onnx
import pytest

import sartor
from sartor.cli.main import run as command_line
from sartor.errors import FeedError, ModelError, OptionError, SartorError

oh, onh, F = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones((2, 3), np.float32)


def value(name, shape, dtype=F):
    return oh.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, constants=None, opset=21):
    weights = [onh.from_array(np.asarray(c), n) for n, c in (constants or {}).items()]
    graph = oh.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)


def sum_model():
    nodes = [oh.make_node("Add", ["x", "b"], ["y"]), oh.make_node("Relu", ["y"], ["z"])]
    return model(nodes, [value("x", ["n", 3]), value("b", ["n", 3])], ["y", "z"])


@pytest.fixture(scope="module")
def session():
    return sartor.Session(sartor.compile(sum_model(), threads=1))


def misaligned():
    return np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "array",
    [np.asfortranarray(X), X[::-1], X[:, ::-1], np.arange(36, dtype=np.float32).reshape(6, 6)[::3, ::2], misaligned(),
     np.broadcast_to(np.float32(2), (2, 3)), np.zeros((0, 3), np.float32), np.ma.masked_array(X, mask=X > 3), X.view(np.matrix)],
)
def test_arrays_of_any_layout(session, array):
    b = np.ones((len(array), 3), np.float32)
    got = session.run({"x": array, "b": b})
    np.testing.assert_array_equal(got["y"], np.asarray(array) + b)
    assert type(got["y"]) is np.ndarray


@pytest.mark.parametrize(
    "array",
    [X.astype(">f4"), X.astype(np.float64), X.astype(object), X.tolist(), np.float32(1), X[0], X[None], X[:, :2], None, "x", X > 1,
     X.astype(complex), np.zeros((2, 3), [("a", "f4")]), np.empty((0, 1 << 40), np.float32), memoryview(X), np.ones((5, 3), np.float32)],
)
def test_arrays_that_do_not_fit(session, array):
    with pytest.raises(FeedError, match=r"the input [xb] "):
        session.run({"x": array, "b": B})


@pytest.mark.parametrize("feeds", [{}, {"x": X}, {"x": X, "b": B, "c": B}, {1: X, "b": B}, None, [X, B]])
def test_feeds_that_are_none(session, feeds):
    session.run({"x": X, "b": B})  # so that a plan is there already
    with pytest.raises(FeedError):
        session.run(feeds)


def test_outputs_that_cannot_be_written(session):
    memory, locked = np.zeros(20, np.float32), X.copy()
    locked.flags.writeable = False
    for out in ({"y": memory[:6].reshape(2, 3), "z": memory[3:9].reshape(2, 3)}, {"y": locked}, {"y": np.zeros((2, 3))}, [X],
                {"y": np.zeros((3, 2), np.float32)}, {"y": np.zeros((4, 6), np.float32)[::2, ::2]}, {"q": X}, {"y": None}):
        with pytest.raises(FeedError):
            session.run({"x": X, "b": B}, out=out)
    x = X.copy()
    got = session.run({"x": x, "b": B}, out={"y": x})  # an input as an output's place
    assert got["y"] is x
    np.testing.assert_array_equal(got["z"], np.maximum(X + B, 0))


@pytest.mark.parametrize(
    "options",
    [{"threads": 0}, {"threads": -1}, {"threads": 10**9}, {"threads": "2"}, {"threads": 1.5}, {"isa": "x"}, {"isa": ""}, {"isa": 5},
     {"precision": "fp16"}, {"precision": None}, {"shapes": {"x": (1,)}}, {"shapes": {"q": (1, 3)}}, {"shapes": {"x": (-1, 3)}},
     {"shapes": {"x": (1.5, 3)}}, {"shapes": {"x": None}}, {"shapes": {"x": "ab"}}, {"shapes": [1]}, {"shapes": {"x": ("", 3)}},
     {"shapes": {"x": ("2", 3)}}, {"shapes": {1: (1, 3)}}, {"shapes": {"x": ("a", 3), "b": ("b", 3)}}],
    ids=str,
)
def test_impossible_options(options):
    with pytest.raises(OptionError):
        sartor.compile(sum_model(), **options)


def test_sizes_of_inputs_by_number_and_name():
    nodes = [oh.make_node("Relu", ["x"], ["y"])]
    known = model(nodes, [value("x", ["n", 3, "h", "w"])], ["y"])
    unknown = model(nodes, [value("x", None)], ["y"])
    for one in (known, unknown):
        program = sartor.compile(one, shapes={"x": (1, 3, "height", np.int64(4))}, threads=1)
        assert str(program.inputs["x"]) == "f32[1, 3, height, 4]"
        got = sartor.Session(program).run({"x": -np.ones((1, 3, 0, 4), np.float32)})["y"]
        assert got.shape == (1, 3, 0, 4)
    with pytest.raises(ModelError, match="larger than any memory"):
        sartor.compile(known, shapes={"x": (1 << 62, 3, 1, 1)})
    two = model([oh.make_node("Relu", ["x"], ["r"]), oh.make_node("Add", ["r", "x"], ["y"])], [value("x", None)], ["y"])
    on_host = sartor.Session(sartor.compile(two))  # where no number of dimensions is known, the host takes what comes
    for shape in ((2, 3), (4,), ()):
        np.testing.assert_array_equal(on_host.run({"x": np.ones(shape, np.float32)})["y"], np.full(shape, 2, np.float32))


@pytest.mark.parametrize("shape", ["x=1x3xhxw", "x=1,3,height,next", "x=1, 3, h, w"])
def test_sizes_by_name_on_the_command_line(tmp_path, capsys, shape):
    for name, dims in (("known", ["n", 3, "h", "w"]), ("unknown", None)):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model([oh.make_node("Relu", ["x"], ["y"])], [value("x", dims)], ["y"]).SerializeToString())
        output = tmp_path / f"{name}.sartor"
        assert command_line(["compile", str(path), "-o", str(output), "--threads", "1", "--shape", shape]) == 0
        dims = [d.strip() for d in shape[2:].split("," if "," in shape else "x")]
        assert str(sartor.load(output).program.inputs["x"]) == f"f32[{', '.join(dims)}]"
    capsys.readouterr()
    for wrong in ("x=1x3", "x=1xx3x4", "x=1x-3x4x4", "x", "x=1x3x4.5x4", "y=1x3x4x4", "x=1xcx4x4"):
        assert command_line(["compile", str(tmp_path / "known.onnx"), "-o", str(output), "--shape", wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()[-1]) > 10


def test_sizes_that_must_be_equal_and_are_not():
    both = model([oh.make_node("Add", ["x", "b"], ["y"])], [value("x", ["n", 3]), value("b", ["m", 3])], ["y"])
    session = sartor.Session(sartor.compile(both, threads=1))
    np.testing.assert_array_equal(session.run({"x": X, "b": B})["y"], X + B)
    with pytest.raises(FeedError, match="two tensors that are combined would have"):
        session.run({"x": X, "b": np.ones((4, 3), np.float32)})


def test_sizes_that_no_memory_holds():
    nodes = [oh.make_node("Expand", ["x", "s"], ["e"]), oh.make_node("Add", ["e", "x"], ["y"])]
    grown = model([oh.make_node("Shape", ["x"], ["d"]), oh.make_node("Mul", ["d", "k"], ["s"]), *nodes], [value("x", ["n", 1])], ["y"],
                  {"k": np.array([1, 1 << 40])})
    session = sartor.Session(sartor.compile(grown, threads=1))
    for rows in (1, 1000):
        with pytest.raises(SartorError, match=r"not enough memory|which no array can have"):
            session.run({"x": np.ones((rows, 1), np.float32)})


SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5, 3e38, 1e-30, np.nan, 7.0, -np.inf]).reshape(3, 4)


@pytest.mark.parametrize("operator", ["Relu", "Abs", "Neg", "Exp", "Sigmoid", "Tanh", "Sqrt", "Reciprocal", "Floor", "Sign", "Erf",
                                      "IsNaN", "IsInf", "Softplus", "Log", "Round", "HardSigmoid", "LeakyRelu", "Elu"])
def test_numbers_that_are_none_element_by_element(operator):
    from onnx.reference import ReferenceEvaluator

    one = model([oh.make_node(operator, ["x"], ["y"])], [value("x", [3, 4])], ["y"])
    got = sartor.Session(sartor.compile(one, threads=1)).run({"x": SPECIAL})["y"]
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(one).run(None, {"x": SPECIAL})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("ReduceMax", {}), ("ReduceMin", {}), ("ReduceSum", {}), ("ReduceMean", {}), ("Softmax", {}), ("ArgMax", {}), ("ArgMin", {}),
     ("Clip", {}), ("Max", {}), ("Min", {}), ("MaxPool", {}), ("AveragePool", {})],
)
def test_numbers_that_are_none_among_others(operator, attributes):
    """NaN wins in maxima and minima, and an index is that of a NaN, as in NumPy; a max pool passes over it, as in ONNX Runtime.

    ONNX leaves it open; its reference gives either in a pool, as the order has it.
    """
    x = SPECIAL.copy()
    if operator in ("ReduceSum", "ReduceMean", "Softmax", "AveragePool"):
        x[1] = 1
    inputs, constants = ["x"], {}
    shape = [3, 4]
    if operator in ("Max", "Min"):
        inputs, constants = ["x", "k"], {"k": np.float32([0, np.nan, 1, -np.inf])}
    elif operator == "Clip":
        inputs, constants = ["x", "low", "high"], {"low": np.float32(-1), "high": np.float32(2)}
    elif "Pool" in operator:
        shape, attributes = [1, 1, 3, 4], {"kernel_shape": [1, 2], "strides": [1, 2]}
    elif operator.startswith("Arg"):
        attributes = {"axis": 1, "keepdims": 0}
    elif operator.startswith("Reduce"):
        inputs, constants = ["x", "axes"], {"axes": np.array([1])}
    x = x.reshape(shape)
    one = model([oh.make_node(operator, inputs, ["y"], **attributes)], [value("x", shape)], ["y"], constants)
    got = sartor.Session(sartor.compile(one, threads=1)).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        wanted = {
            "ReduceMax": lambda: x.max(1, keepdims=True), "ReduceMin": lambda: x.min(1, keepdims=True),
            "ReduceSum": lambda: x.sum(1, keepdims=True), "ReduceMean": lambda: x.mean(1, keepdims=True),
            "Softmax": lambda: np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True),
            "ArgMax": lambda: x.argmax(1), "ArgMin": lambda: x.argmin(1), "Clip": lambda: np.clip(x, -1, 2),
            "Max": lambda: np.maximum(x, constants["k"]), "Min": lambda: np.minimum(x, constants["k"]),
            "MaxPool": lambda: np.fmax(x[..., ::2], x[..., 1::2]), "AveragePool": lambda: x.reshape(1, 1, 3, 2, 2).mean(-1),
        }[operator]()
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
