"""Tensors of eight dimensions, and of none, through every kind of layer that takes them, beside onnx's reference."""

import numpy as np
import pytest

import sartor

onnx = pytest.importorskip("onnx.reference") and pytest.importorskip("onnx")
oh, onh = onnx.helper, onnx.numpy_helper
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPE = (2, 3, 1, 2, 3, 2, 1, 5)
RNG = np.random.default_rng(8)
X = RNG.standard_normal(SHAPE).astype(np.float32)
CUBE = RNG.standard_normal((2, 2, 3, 2, 2, 2, 3, 2)).astype(np.float32)  # no dimension of 1

LEAST = np.iinfo(np.int64).min


def indices(*rows):
    return np.array(rows, np.int64)


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def run(operator, feeds, constants=(), outputs=1, symbolic=False, opset=21, **attributes):
    """Outputs of a model of one node from the reference and from Sartor; `constants` names the inputs that are constant."""
    names = [n if feeds[n] is not None else "" for n in feeds]
    values = [oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), [f"{n}{i}" for i in range(a.ndim)] if symbolic else a.shape)
              for n, a in feeds.items() if a is not None and n not in constants]
    made = [f"y{i}" for i in range(outputs)]
    graph = oh.make_graph([oh.make_node(operator, names, made, **attributes)], "g", values, [onnx.ValueInfoProto(name=n) for n in made],
                          [onh.from_array(feeds[n], n) for n in constants])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)
    given = {n: a for n, a in feeds.items() if a is not None and n not in constants}
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, given)
    program = sartor.compile(model, threads=2)
    assert not program.fallbacks
    with sartor.Session(program) as session:
        return wanted, list(session.run(given).values())


def check(operator, feeds, constants=(), **options):
    wanted, got = run(operator, feeds, constants, **options)
    for a, b in zip(wanted, got, strict=True):
        a = np.asarray(a)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)


MASKS = [RNG.integers(0, 2, 8) for _ in range(4)]
"""Which dimensions of an operand are 1."""


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("operator", ["Add", "Where"])
def test_broadcasting(operator, symbolic):
    if symbolic:  # a size of which nothing is said is not 1
        feeds = {"x": CUBE, "z": normal(*CUBE.shape)}
    else:
        feeds = {n: normal(*np.where(mask, 1, CUBE.shape)) for n, mask in zip("xz", MASKS, strict=False)}
    check(operator, {"c": feeds["x"] > 0, **feeds} if operator == "Where" else feeds, symbolic=symbolic)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_broadcasting_of_one_operand(mask):
    check("Sub", {"x": CUBE, "z": normal(*np.where(mask, 1, CUBE.shape))})
    check("Mul", {"x": normal(*np.where(mask, 1, CUBE.shape)[3:]), "z": CUBE})


@pytest.mark.parametrize("perm", [RNG.permutation(8).tolist() for _ in range(6)] + [[7, 6, 5, 4, 3, 2, 1, 0]], ids=str)
def test_transpose(perm):
    check("Transpose", {"x": CUBE}, perm=perm)
    check("Transpose", {"x": CUBE.astype(np.int8)}, perm=perm, symbolic=True)


@pytest.mark.parametrize("axes", [[0, 2, 4, 6], [1, 3, 5, 7], [7], [0], [1, 2, 5], [0, 1, 2, 3, 4, 5, 6, 7]], ids=str)
def test_reduce(axes):
    check("ReduceSum", {"x": CUBE, "a": np.array(axes)}, ["a"], keepdims=0)
    check("ReduceMax", {"x": X, "a": np.array(axes)}, ["a"], symbolic=True)


@pytest.mark.parametrize("axis", [0, 3, 6, 7])
def test_along_an_axis(axis):
    other = list(CUBE.shape)
    other[axis] = 4
    check("Concat", {"x": CUBE, "z": normal(*other)}, axis=axis)
    check("Softmax", {"x": CUBE}, axis=axis)
    check("ArgMax", {"x": CUBE}, axis=axis, keepdims=0)
    check("CumSum", {"x": CUBE, "a": np.array(axis)}, ["a"], reverse=1)
    check("TopK", {"x": CUBE, "k": np.array([2])}, ["k"], outputs=2, axis=axis)
    check("Gather", {"x": CUBE, "i": indices([0, -1], [1, 0])[:, :, None] * np.ones(1, np.int64)}, axis=axis)
    check("GatherElements", {"x": CUBE, "i": np.zeros(CUBE.shape, np.int64) - 1}, axis=axis)
    check("ScatterElements", {"x": CUBE, "i": np.zeros(CUBE.shape, np.int64), "u": np.ones_like(CUBE)}, axis=axis, reduction="max")
    check("LayerNormalization", {"x": CUBE, "s": normal(*CUBE.shape[axis:])}, axis=axis)
    check("Split", {"x": CUBE}, outputs=2, num_outputs=2, axis=axis)


@pytest.mark.parametrize("symbolic", [False, True])
def test_slice_and_pad(symbolic):
    begin, end, step = indices(*[[0, 2, -1, 0, 1, 1, 2, 0], [2, LEAST, LEAST, 1, 2, 2, 3, 9], [1, -1, -2, 1, 1, 1, 1, 1]])
    axes = np.arange(8)
    check("Slice", {"x": CUBE, "b": begin, "e": end, "a": axes, "s": step}, ["b", "e", "a", "s"], symbolic=symbolic)
    pads = np.array([1, 0, 2, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 2, 1])
    for mode in ("constant", "edge", "wrap"):
        check("Pad", {"x": CUBE, "p": pads}, ["p"], mode=mode, symbolic=symbolic)
    check("Pad", {"x": CUBE, "p": np.minimum(pads, 1)}, ["p"], mode="reflect")


def test_places_of_several_dimensions():
    places = np.stack([RNG.integers(-d, d, (4, 2)) for d in CUBE.shape], axis=-1)
    check("GatherND", {"x": CUBE, "i": places})
    check("GatherND", {"x": CUBE, "i": places[..., :5]})
    check("GatherND", {"x": CUBE, "i": np.zeros((2, 2, 3, 1), np.int64)}, batch_dims=2)
    unique = np.array(np.unravel_index([3, 17, 41, 95], CUBE.shape[:6])).T
    check("ScatterND", {"x": CUBE, "i": unique, "u": normal(4, 3, 2)})
    check("ScatterND", {"x": CUBE, "i": np.concatenate([unique, unique])[:, :6], "u": normal(8, 3, 2)}, reduction="add")


def test_sizes():
    check("Expand", {"x": X, "s": np.array([2, 3, 4, 2, 3, 2, 3, 5])}, ["s"])
    check("Tile", {"x": X, "s": np.array([1, 2, 3, 1, 2, 1, 2, 1])}, ["s"])
    check("Reshape", {"x": X, "s": np.array([5, 1, 2, 3, 3, 1, 2, 2])}, ["s"])
    check("Reshape", {"x": X, "s": np.array([0, -1])}, ["s"], symbolic=True)
    check("Unsqueeze", {"x": X[0, 0], "s": np.array([0, 7])}, ["s"])
    check("Squeeze", {"x": X, "s": np.array([2, 6])}, ["s"])
    check("Flatten", {"x": X}, axis=4, symbolic=True)


def test_matmul():
    a, b = normal(2, 1, 3, 1, 2, 1, 4, 5), normal(1, 2, 3, 2, 1, 1, 5, 6)
    check("MatMul", {"a": a, "b": b})
    check("MatMul", {"a": a, "b": b[0, 0, 0]}, ["b"])
    check("MatMul", {"a": a, "b": b[0, 0, 0, 0, 0, 0]}, ["b"], symbolic=True)
    check("MatMul", {"a": a[0, 0, 0, 0, 0, 0, 0], "b": b})
    check("Einsum", {"a": CUBE, "b": CUBE}, equation="abcdefgh,abcdefgh->ah")


def test_choices_and_tests():
    check("NonZero", {"x": CUBE > 1})
    check("Compress", {"x": CUBE, "c": np.array([True, False, True])}, axis=2)
    check("OneHot", {"i": RNG.integers(0, 3, (2, 1, 2, 1, 3, 2, 2)), "d": np.array(3), "v": np.float32([0, 1])}, ["d", "v"])
    check("Trilu", {"x": CUBE}, upper=0)
    check("Shape", {"x": CUBE}, symbolic=True)


SCALAR = np.array(1.5, np.float32)


@pytest.mark.parametrize(
    ("operator", "feeds", "options"),
    [
        ("Exp", {"x": SCALAR}, {}),
        ("Add", {"x": SCALAR, "z": np.array(2, np.float32)}, {}),
        ("Where", {"c": np.array(True), "x": SCALAR, "z": CUBE}, {}),
        ("Transpose", {"x": SCALAR}, {}),
        ("ReduceSum", {"x": SCALAR}, {}),
        ("ReduceL2", {"x": SCALAR}, {"keepdims": 0}),
        ("ReduceMax", {"x": SCALAR}, {"keepdims": 0}),
        ("Expand", {"x": SCALAR, "s": np.array([2, 3])}, {"constants": ["s"]}),
        ("Reshape", {"x": SCALAR, "s": np.array([1] * 8)}, {"constants": ["s"]}),
        ("Reshape", {"x": SCALAR, "s": np.zeros(0, np.int64)}, {"constants": ["s"]}),
        ("Unsqueeze", {"x": SCALAR, "s": np.array([0, 1])}, {"constants": ["s"]}),
        ("Squeeze", {"x": SCALAR.reshape(1, 1)}, {}),
        ("Gather", {"x": CUBE, "i": np.array(-1)}, {"axis": 4}),
        ("GatherND", {"x": CUBE[0, 0, 0, 0, 0, 0, 0], "i": np.array([1])}, {}),
        ("ScatterND", {"x": normal(3), "i": np.array([1]), "u": SCALAR}, {}),
        ("Flatten", {"x": SCALAR}, {"axis": 0}),
        ("Clip", {"x": CUBE, "a": SCALAR - 2, "b": SCALAR}, {}),
        ("Cast", {"x": SCALAR}, {"to": onnx.TensorProto.INT8}),
        ("MatMul", {"a": normal(4), "b": normal(4)}, {}),
        ("Shape", {"x": SCALAR}, {}),
        ("Size", {"x": SCALAR}, {}),
        ("Range", {"a": np.array(0), "b": np.array(5), "c": np.array(2)}, {}),
        ("NonZero", {"x": SCALAR.reshape(1)}, {}),
        ("IsNaN", {"x": SCALAR}, {}),
        ("Einsum", {"a": normal(3), "b": normal(3)}, {"equation": "i,i->"}),
        ("Identity", {"x": SCALAR}, {}),
        ("Softplus", {"x": SCALAR}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scalars(operator, feeds, options):
    check(operator, feeds, **options)
