"""Products, reductions, normalisations, movement and indexing against onnx's reference."""

from __future__ import annotations

import itertools

import numpy as np
import onnx.helper as oh
import pytest
from tests.unit.ops_harness import check, kinds, lower_model, make_model, rand

from sartor.errors import ModelError
from sartor.graph.reference import evaluate_graph
from sartor.sizes import evaluate, symbol

X = rand(2, 3, 4)


def ints(*values):
    return np.array(values, np.int64)


# --- products --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 5)), ((2, 3, 4), (4,)),
])
def test_matmul(a, b):
    check("MatMul", {"a": rand(*a)}, {"b": rand(*b)}, symbolic=1 not in a, tolerance=1e-4)
    check("MatMul", {"a": rand(*a), "b": rand(*b)}, symbolic=False, tolerance=1e-4)


@pytest.mark.parametrize("transposes", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("shape", "factors"), [((3, 5), (1.0, 1.0)), ((5,), (0.5, 2.0)), ((3, 1), (1.0, 0.5)), ((), (2.0, 1.0)),
                                               ((1, 5), (1.0, 0.0)), (None, (0.3, 1.0))])
def test_gemm(transposes, shape, factors):
    a, b = rand(*((3, 4), (4, 3))[transposes[0]]), rand(*((4, 5), (5, 4))[transposes[1]])
    constants = {"b": b, **({"c": rand(*shape)} if shape is not None else {})}
    check("Gemm", {"a": a}, constants, tolerance=1e-4, transA=transposes[0], transB=transposes[1], alpha=factors[0],
          beta=factors[1])


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("i,j->ij", [(3,), (4,)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ijk->j", [(2, 3, 4)]), ("i,i->", [(3,), (3,)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]), ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("bij,bjk", [(2, 3, 4), (2, 4, 5)]), ("ijk,jil->kl", [(2, 3, 4), (3, 2, 5)]), ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
])
def test_einsum(equation, shapes):
    feeds = {f"x{i}": rand(*s) for i, s in enumerate(shapes)}
    check("Einsum", feeds, symbolic=False, tolerance=1e-4, equation=equation)
    if len(shapes) == 1:
        check("Einsum", feeds, tolerance=1e-4, equation=equation)


@pytest.mark.parametrize("shape", ["4d", "3d"])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("extra", [{}, {"is_causal": 1}, {"scale": 0.3}, {"mask": "bool"}, {"mask": "float"}])
def test_attention(shape, groups, extra):
    q, k, v = rand(2, 4, 5, 8), rand(2, groups, 5, 8), rand(2, groups, 5, 6)
    attributes = {n: a for n, a in extra.items() if n != "mask"}
    if shape == "3d":
        q, k, v = (t.transpose(0, 2, 1, 3).reshape(2, 5, -1) for t in (q, k, v))
        attributes |= {"q_num_heads": 4, "kv_num_heads": groups}
    feeds = {"q": q, "k": k, "v": v}
    if "mask" in extra:
        mask = rand(5, 5)
        feeds["mask"] = (mask > -1) | np.eye(5, dtype=bool) if extra["mask"] == "bool" else mask
    graph = check("Attention", feeds, opset=23, symbolic=False, tolerance=1e-4, **attributes)
    assert "attention" in kinds(graph)


# --- reductions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions(op, keep):
    x = np.abs(X) + 0.1
    check(f"Reduce{op}", {"x": x}, {"axes": ints(-1, 0)}, keepdims=keep)
    check(f"Reduce{op}", {"x": x}, keepdims=keep)


def test_reductions_of_older_opsets_and_of_nothing():
    check("ReduceSum", {"x": X}, opset=11, axes=[1, -1], expected=[X.sum((1, 2), keepdims=True)])
    check("ReduceMax", {"x": X}, opset=13, axes=[0], keepdims=0, expected=[X.max(0)])
    check("ReduceSum", {"x": X}, {"axes": ints()}, noop_with_empty_axes=1)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reductions(op, last):
    x = np.array([[1, 3, 3, 0], [2, 2, 0, 0]], np.float32)
    for axis in (0, 1, -1):
        for keep in (0, 1):
            check(op, {"x": x}, axis=axis, keepdims=keep, select_last_index=last)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op, axis):
    check(op, {"x": X}, axis=axis)
    flat = X.reshape(int(np.prod(X.shape[:axis % 3])), -1)
    shifted = np.exp(flat - flat.max(1, keepdims=True))
    soft = shifted / shifted.sum(1, keepdims=True)
    old = {"Softmax": soft, "LogSoftmax": np.log(soft), "Hardmax": (flat == flat.max(1, keepdims=True)).astype(np.float32)}[op]
    check(op, {"x": X}, opset=11, axis=axis % 3, expected=[old.reshape(X.shape)])


# --- normalisations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("constant", [True, False])
def test_batch_normalisation(shape, constant):
    statistics = {"s": rand(3), "b": rand(3), "m": rand(3), "v": np.abs(rand(3)) + 0.1}
    if constant:
        graph = check("BatchNormalization", {"x": rand(*shape)}, statistics, epsilon=1e-3)
        assert kinds(graph) == ["elementwise"]
    else:
        check("BatchNormalization", {"x": rand(*shape), **statistics}, symbolic=False)


@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_layer_normalisation(axis):
    check("LayerNormalization", {"x": X}, {"s": rand(*X.shape[axis:]), "b": rand(*X.shape[axis:])}, axis=axis, tolerance=1e-4)
    check("LayerNormalization", {"x": X}, {"s": rand(*X.shape[axis:])}, axis=axis, tolerance=1e-4)
    root = X / np.sqrt(np.mean(X * X, axis=tuple(range(axis % 3, 3)), keepdims=True) + 1e-5)
    scale = rand(*X.shape[axis:])
    check("RMSNormalization", {"x": X}, {"s": scale}, opset=23, axis=axis, tolerance=1e-4, expected=[root * scale])


def test_layer_normalisation_with_its_statistics():
    graph = check("LayerNormalization", {"x": X}, {"s": rand(4), "b": rand(4)}, outputs=3, tolerance=1e-4)
    assert set(graph.outputs) == {"y0", "y1", "y2"}


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 4, 3)])
def test_instance_and_group_normalisation(shape):
    check("InstanceNormalization", {"x": rand(*shape)}, {"s": rand(6), "b": rand(6)}, tolerance=1e-4)
    check("GroupNormalization", {"x": rand(*shape)}, {"s": rand(6), "b": rand(6)}, opset=21, num_groups=3, tolerance=1e-4)
    x, s, b = rand(*shape), rand(3), rand(3)
    grouped = x.reshape(2, 3, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    check("GroupNormalization", {"x": x}, {"s": s, "b": b}, opset=18, num_groups=3, tolerance=1e-4,
          expected=[(normal * s[:, None] + b[:, None]).reshape(shape)])


@pytest.mark.parametrize("size", [1, 3, 4, 5])
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0, 0.6])
def test_local_response(size, beta):
    x = rand(2, 7, 3, 3)
    places = [(max(0, c - (size - 1) // 2), c + size // 2 + 1) for c in range(7)]
    sums = np.stack([(x[:, a:b] ** 2).sum(1) for a, b in places], 1)
    check("LRN", {"x": x}, size=size, alpha=0.1, beta=beta, bias=1.5, expected=[x / (1.5 + 0.1 / size * sums) ** beta])


def test_other_normalisations():
    x = rand(2, 3, 4, 5)
    mean, square = x.mean((0, 2, 3), keepdims=True), (x * x).mean((0, 2, 3), keepdims=True)
    check("MeanVarianceNormalization", {"x": x}, tolerance=1e-4, expected=[(x - mean) / np.sqrt(square - mean * mean)])
    check("LpNormalization", {"x": X}, axis=1, p=1, expected=[X / np.abs(X).sum(1, keepdims=True)])
    zero = np.zeros((2, 3), np.float32)
    check("LpNormalization", {"x": zero}, axis=1, p=2, expected=[zero])


# --- movement --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 4), (0, -1), (-1,), (2, 3, 2, 2), (0, 0, 2, -1), (4, -1)])
def test_reshape(shape):
    check("Reshape", {"x": X}, {"s": ints(*shape)})


def test_reshape_keeps_symbols():
    node = oh.make_node("Reshape", ["x", "s"], ["y"])
    graph = lower_model(make_model([node], {"x": X}, ["y"], {"s": ints(0, -1, 8)}, dims={"x": ["n", "t", 64]}))
    assert str(graph.tensors["y"]) == "f32[n, 8*t, 8]"
    graph = lower_model(make_model([node], {"x": X}, ["y"], {"s": ints(-1, 6, 6)}, dims={"x": ["n", 12, 12]}))
    assert str(graph.tensors["y"]) == "f32[4*n, 6, 6]"


def test_reshape_that_cannot_be():
    with pytest.raises(ModelError, match="cannot turn"):
        lower_model(make_model([oh.make_node("Reshape", ["x", "s"], ["y"])], {"x": X}, ["y"], {"s": ints(-1, 7)}))
    with pytest.raises(ModelError, match="differ"):
        lower_model(make_model([oh.make_node("Reshape", ["x", "s"], ["y"])], {"x": X}, ["y"], {"s": ints(5, 7)}))


def test_views():
    for axis in (0, 1, 2, 3, -1):
        check("Flatten", {"x": X}, axis=axis)
    check("Squeeze", {"x": rand(1, 3, 1)}, {"axes": ints(0, -1)})
    check("Squeeze", {"x": rand(1, 3, 1)}, symbolic=False)
    check("Squeeze", {"x": rand(1, 3, 1)}, opset=11, axes=[2], expected=None, symbolic=False)
    check("Unsqueeze", {"x": X}, {"axes": ints(0, -1)})
    check("Unsqueeze", {"x": X}, opset=11, axes=[1, 4], expected=[X[:, None, :, :, None]])


@pytest.mark.parametrize("perm", [None, [1, 0, 2], [2, 1, 0], [0, 1, 2]])
def test_transpose(perm):
    check("Transpose", {"x": X}, **({"perm": perm} if perm else {}))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    check("Concat", {"x": X, "y": X}, symbolic=False, axis=axis)
    check("Concat", {"x": X}, {"c": X}, axis=axis)
    check("Concat", {"x": X}, axis=axis)


def test_split():
    x = rand(7, 6)
    check("Split", {"x": x}, {"sizes": ints(1, 2, 4)}, outputs=3)
    check("Split", {"x": x}, outputs=3, axis=1, num_outputs=3)
    check("Split", {"x": x}, outputs=3, symbolic=False, num_outputs=3)  # the last part is smaller
    check("Split", {"x": x}, opset=11, outputs=2, axis=-1, split=[2, 4], expected=[x[:, :2], x[:, 2:]])
    check("Split", {"x": x}, opset=11, outputs=2, axis=1, expected=[x[:, :3], x[:, 3:]])


FAR = np.iinfo(np.int64).max


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), [
    ([1], [3], None, None), ([0, 1], [9, -1], [1, 2], None), ([-2], [FAR], [2], None), ([-3], [-1], [-1], None),
    ([0], [FAR], [2], [2]), ([-1], [-FAR], [2], [-1]), ([3], [0], [2], [-1]), ([FAR], [-FAR], [2], [-2]), ([2], [1], [2], None),
    ([1], [FAR], [2], [3]), ([0], [100], [2], None), ([-100], [3], [1], None),
])
def test_slice(starts, ends, axes, steps):
    x = rand(4, 5, 6)
    constants = {"starts": ints(*starts), "ends": ints(*ends)}
    if axes is not None:
        constants["axes"] = ints(*axes)
    if steps is not None:
        constants["steps"] = ints(*steps)
    check("Slice", {"x": x}, constants, symbolic=-100 not in starts)


def test_slice_of_older_opsets():
    check("Slice", {"x": X}, opset=9, starts=[0, 1], ends=[1, -1], axes=[0, 2], expected=[X[:1, :, 1:-1]])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode):
    constants = {"pads": ints(1, 0, 2, 0, 2, 1)}
    check("Pad", {"x": X}, constants, opset=19, mode=mode)
    if mode == "constant":
        check("Pad", {"x": X}, {**constants, "v": np.array(3, np.float32)}, opset=19)
        check("Pad", {"x": X}, {"pads": ints(1, 2), "v": np.array(3, np.float32), "axes": ints(-1)}, opset=19)
        check("Pad", {"x": X}, opset=9, pads=[0, 1, 0, 0, 0, 2], value=2.0,
              expected=[np.pad(X, [(0, 0), (1, 0), (0, 2)], constant_values=2)])


def test_pad_crops_where_it_is_negative():
    check("Pad", {"x": X}, {"pads": ints(0, -1, 1, 0, 0, -2)}, expected=[np.pad(X, [(0, 0), (0, 0), (1, 0)])[:, 1:, :-2]])


def test_expand_and_tile():
    check("Expand", {"x": rand(3, 1)}, {"s": ints(2, 1, 4)}, symbolic=False)
    check("Expand", {"x": rand(3, 4)}, {"s": ints(1, 1)})
    check("Tile", {"x": X}, {"r": ints(2, 1, 3)})
    check("Tile", {"x": X}, {"r": ints(1, 1, 1)})


def test_dropout_does_nothing():
    check("Dropout", {"x": X}, opset=12, expected=[X])
    check("Dropout", {"x": X}, opset=12, outputs=2, expected=[X, np.ones(X.shape, bool)])


# --- indexing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [np.array(1), np.array(-1), ints(2, 0, -1), np.array([[0, 1], [1, -3]], np.int32)])
@pytest.mark.parametrize("axis", [1, -2])
def test_gather(indices, axis):
    check("Gather", {"x": X}, {"i": indices}, axis=axis)
    check("Gather", {"x": X, "i": indices}, axis=axis, symbolic=False)


def test_one_index_is_a_slice():
    assert kinds(check("Gather", {"x": X}, {"i": np.array(-1)}, axis=2)) == ["slice", "reshape"]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    indices = np.random.default_rng(0).integers(-2, 2, (2, 3, 2))
    check("GatherElements", {"x": X}, {"i": indices}, runtime=True, axis=axis)
    check("GatherElements", {"x": X, "i": indices}, runtime=True, axis=axis)


@pytest.mark.parametrize(("shape", "batch"), [((2, 3), 0), ((5, 1), 0), ((2, 4, 2), 0), ((2, 2), 1), ((2, 6, 1), 1),
                                              ((2, 3, 1), 2)])
def test_gather_nd(shape, batch):
    indices = np.random.default_rng(0).integers(-2, 2, shape)
    check("GatherND", {"x": X}, {"i": indices}, batch_dims=batch, symbolic=batch == 0)
    check("GatherND", {"x": X, "i": indices.astype(np.int64)}, batch_dims=batch, symbolic=False)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis):
    constants = {"depth": np.array(5, np.int64), "values": np.array([-1, 2], np.float32)}
    check("OneHot", {"i": np.array([[0, 4, -1], [2, 3, -5]], np.int64)}, constants, axis=axis)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-1, 0, 2])
def test_triangles(upper, k):
    check("Trilu", {"x": X}, {"k": np.array(k, np.int64)}, upper=upper)


def test_eye():
    for k in (-1, 0, 2):
        check("EyeLike", {"x": rand(3, 4)}, k=k)
    check("EyeLike", {"x": rand(3, 4)}, dtype=7)


def test_range_of_a_symbolic_length():
    nodes = [oh.make_node("Shape", ["x"], ["s"], start=1, end=2), oh.make_node("Squeeze", ["s"], ["n"]),
             oh.make_node("Constant", [], ["zero"], value_int=3), oh.make_node("Constant", [], ["two"], value_int=2),
             oh.make_node("Range", ["zero", "n", "two"], ["y"])]
    graph = lower_model(make_model(nodes, {"x": X}, ["y"], dims={"x": ["a", "b", 4]}))
    assert "host" not in kinds(graph)
    for length in (0, 1, 4, 9):
        got = evaluate_graph(graph, {"x": np.zeros((2, length, 4), np.float32)})["y"]
        np.testing.assert_array_equal(got, np.arange(3, length, 2))


def test_fills_of_a_symbolic_shape():
    nodes = [oh.make_node("Shape", ["x"], ["s"]), oh.make_node("ConstantOfShape", ["s"], ["y"],
                                                               value=oh.make_tensor("v", 6, [1], [7]))]
    graph = lower_model(make_model(nodes, {"x": X}, ["y"], dims={"x": ["a", "b", 4]}))
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": X})["y"], np.full(X.shape, 7, np.int32))


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ii->i", [(4, 4)]), ("ii->", [(3, 3)]), ("iji->j", [(3, 2, 3)]), ("...ii->...i", [(2, 3, 4, 4)]), ("ii,ij->ij", [(3, 3), (3, 2)]),
    ("iij,jk->ik", [(2, 2, 3), (3, 4)]), ("iii->i", [(3, 3, 3)]), ("ij,jk->ik", [(2, 1), (3, 4)]), ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("bij,bj->bi", [(1, 2, 3), (4, 3)]), (",ij->i", [(), (2, 3)]), ("ij->", [(2, 3)])])
def test_einsum_of_diagonals_and_broadcast_sums(equation, shapes):
    feeds = {f"x{i}": rand(*shape) for i, shape in enumerate(shapes)}
    check("Einsum", feeds, equation=equation, symbolic=len(set(equation)) == len(equation) and 1 not in {d for s in shapes for d in s})


@pytest.mark.parametrize("size", [3, 9, 11, 1000])
def test_responses_of_few_and_many_channels(size):
    x = rand(2, 12, 3, 4)
    options = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 2.0}
    if size < 20:
        graph = check("LRN", {"x": x}, runtime=True, **options)
    else:
        expected = x / (2 + 0.3 / size * (x * x).sum(1, keepdims=True)) ** 0.6
        graph = check("LRN", {"x": x}, expected=[expected.astype(np.float32)], symbolic=False, **options)
    assert len(graph.layers) < 20


FAR = 1 << 62


@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_places_outside_of_a_symbolic_dimension(step):
    """They are the first or the last element, as NumPy has it; a start before the first is the first whichever way it goes."""
    from sartor.ops.context import Context
    from sartor.ops.movement import slice_axis

    places = (-FAR, -5, -4, -2, -1, 0, 1, 2, 5, FAR)
    for dim, sizes in ((symbol("n"), range(9)), (symbol("n") * 2 + 1, range(5)), (symbol("n") + 3, range(5))):
        for start, end in itertools.product(places, places):
            context = Context()
            begin, count = slice_axis(context, dim, start, end, step)
            for n in sizes:
                length = evaluate(dim, {"n": n})
                if any(evaluate(a, {"n": n}) != evaluate(b, {"n": n}) for a, b in context.graph.conditions):
                    assert n == 0  # what only empty inputs are too short for is held, for the sake of simple formulas
                    continue
                taken = range(*slice(max(start, -length), end, step).indices(length))
                assert evaluate(count, {"n": n}) == len(taken), (dim, n, start, end)
                assert not taken or evaluate(begin, {"n": n}) == taken.start, (dim, n, start, end)
                assert -1 <= evaluate(begin, {"n": n}) <= length


def test_slices_that_are_surely_inside_have_simple_formulas():
    from sartor.ops.context import Context
    from sartor.ops.movement import slice_axis

    n = symbol("n")
    for dim, start, end, wanted in ((n, -1, FAR, (n - 1, 1)), (n, 1, FAR, (1, n - 1)), (n, 0, -1, (0, n - 1)), (n + 3, -3, FAR, (n, 3)),
                                    (n * 2 + 1, 1, -1, (1, n * 2 - 1)), (n * 2 - 1, 1, FAR, (1, n * 2 - 2))):  # fmt: skip
        assert slice_axis(Context(), dim, start, end, 1) == wanted


def test_places_in_dimensions_beyond_32_bits():
    from sartor.ops.context import Context
    from sartor.ops.movement import slice_axis

    size = (1 << 31) + 100
    for dim in (size, symbol("n")):
        begin, count = slice_axis(Context(), dim, size - 3, size - 1, 1)
        assert (evaluate(begin, {"n": size}), evaluate(count, {"n": size})) == (size - 3, 2)
    assert slice_axis(Context(), 7, 2, (1 << 31) - 1, 1) == (2, 5)
    assert slice_axis(Context(), symbol("n"), 0, 10**9, 1) == (0, symbol("n"))
