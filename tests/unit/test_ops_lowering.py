"""Lowering as a whole: symbols, shape arithmetic, conditions, names, folding, branches, what is left to the host."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from tests.unit.ops_harness import holds, kinds, lower_model, make_model, rand, run_runtime

from sartor.errors import ModelError, OptionError, UnsupportedError
from sartor.graph.reference import evaluate_graph
from sartor.sizes import symbol

X = rand(2, 3, 4)


def node(op, inputs, outputs, **attributes):
    return oh.make_node(op, inputs.split(), outputs.split(), **attributes)


def ints(*values):
    return np.array(values, np.int64)


def lowered(nodes, feeds, outputs="y", constants=None, dims=None, opset=18, **kwargs):
    return lower_model(make_model(nodes, feeds, outputs.split(), constants, opset, dims), **kwargs)


def test_operators_of_the_table_exist():
    from sartor.importers.onnx import EXPERIMENTAL
    from sartor.ops import OPERATORS

    retired = {name for name in EXPERIMENTAL if not onnx.defs.has(name)}
    foreign = {"SimplifiedLayerNormalization"}  # by ONNX Runtime's optimiser
    own = {name for domain, name in OPERATORS if domain != "com.microsoft" and not onnx.defs.has(name, domain)}
    assert own == retired | foreign


def test_operators_of_the_foreign_domain_exist():
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    from sartor.ops import OPERATORS

    known = {schema.name for schema in runtime.get_all_operator_schema() if schema.domain == "com.microsoft"}
    assert {name for domain, name in OPERATORS if domain == "com.microsoft"} <= known


# --- inputs ----------------------------------------------------------------------------------------------------------------


def test_named_unnamed_and_repeated_dimensions():
    dims = {"x": ["batch", None, 4], "z": ["batch", "?", "?"]}
    graph = lowered([node("Neg", "x", "y"), node("Neg", "z", "u")], {"x": X, "z": X}, "y u", dims=dims)
    assert str(graph.tensors["x"]) == "f32[batch, x.1, 4]"
    assert str(graph.tensors["z"]) == "f32[batch, z.1, z.2]"


def test_fresh_symbols_avoid_those_of_the_model():
    graph = lowered([node("Neg", "x", "y")], {"x": X}, dims={"x": ["x.1", None, 4]})
    assert str(graph.tensors["x"]) == "f32[x.1, x.1_1, 4]"


def test_given_shapes_replace_the_model_s():
    dims = {"x": ["n", 3, 4], "z": ["n", 3, 4]}
    nodes = [node("Add", "x z", "y")]
    graph = lowered(nodes, {"x": X, "z": X}, dims=dims, shapes={"x": [8, 3, "w"]})
    assert str(graph.tensors["x"]) == "f32[8, 3, w]"
    assert str(graph.tensors["z"]) == "f32[8, 3, 4]"  # n is 8 everywhere
    assert graph.conditions == [(symbol("w"), 4)]


@pytest.mark.parametrize(("shapes", "words"), [
    ({"q": [1]}, "'q'; the model's inputs are 'x'"), ({"x": [1, 2]}, "2 sizes, it has 3"), ({"x": [1, 1, -3]}, "-3"),
    ({"x": [1, 2, 4]}, "two sizes"),
])
def test_shapes_that_cannot_be(shapes, words):
    with pytest.raises(OptionError, match=words):
        lowered([node("Neg", "x", "y")], {"x": X}, dims={"x": ["n", "n", 4]}, shapes=shapes)


def test_inputs_that_are_no_tensors():
    graph = oh.make_graph([node("SequenceAt", "s i", "y")], "g",
                          [oh.make_tensor_sequence_value_info("s", 1, [2]), oh.make_tensor_value_info("i", 7, [])],
                          [oh.make_tensor_value_info("y", 1, [2])])
    with pytest.raises(UnsupportedError, match="'s' is no tensor"):
        lower_model(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)]))


# --- shape arithmetic ------------------------------------------------------------------------------------------------------


def test_sizes_flow_from_shape_to_reshape():
    nodes = [node("Shape", "x", "s"), node("Gather", "s one", "t"), node("Unsqueeze", "t zero", "t1"),
             node("Concat", "minus t1 eight", "shape", axis=0), node("Reshape", "x shape", "y")]
    constants = {"one": np.array(1), "zero": ints(0), "minus": ints(-1), "eight": ints(8)}
    graph = lowered(nodes, {"x": rand(2, 3, 16)}, constants=constants, dims={"x": ["n", "t", 16]})
    assert kinds(graph) == ["reshape"]
    assert str(graph.tensors["y"]) == "f32[2*n, t, 8]"
    assert graph.conditions == []


@pytest.mark.parametrize(("op", "value", "expected"), [
    ("Add", 3, "f32[n + 3]"), ("Sub", 1, "f32[n - 1]"), ("Mul", 2, "f32[2*n]"), ("Div", 2, "f32[(n // 2)]"),
    ("Mod", 3, "f32[(n % 3)]"),
    ("Max", 4, "f32[max(4, n)]"), ("Min", 4, "f32[min(4, n)]"),
])
def test_arithmetic_on_sizes(op, value, expected):
    nodes = [node("Shape", "x", "s"), node(op, "s c", "t"), node("ConstantOfShape", "t", "y")]
    graph = lowered(nodes, {"x": rand(5)}, constants={"c": ints(value)}, dims={"x": ["n"]})
    assert str(graph.tensors["y"]) == expected


def test_sizes_computed_in_floating_point():
    """As PyTorch's interpolate exports them: cast, times the scale, floor, cast back."""
    nodes = [node("Shape", "x", "s", start=2), node("Cast", "s", "f", to=1), node("Mul", "f c", "g"), node("Floor", "g", "h"),
             node("Cast", "h", "i", to=7), node("Shape", "x", "front", end=2), node("Concat", "front i", "sizes", axis=0),
             node("Resize", "x   sizes", "y")]
    nodes[-1].input[:] = ["x", "", "", "sizes"]
    graph = lowered(nodes, {"x": rand(1, 2, 4, 4)}, constants={"c": np.array([2.0, 1.5], np.float32)},
                    dims={"x": [1, 2, "h", "w"]})
    assert kinds(graph) == ["resize"]
    assert str(graph.tensors["y"]) == "f32[1, 2, 2*h, (w // 2) + w]"


def test_where_on_sizes_is_decided_at_once():
    """As PyTorch's expand exports it: minus one stands for the input's own size."""
    nodes = [node("Shape", "x", "s"), node("Equal", "wanted minus", "free"), node("Where", "free s wanted", "t"),
             node("Expand", "x t", "y")]
    graph = lowered(nodes, {"x": rand(3, 1)}, constants={"wanted": ints(-1, 7), "minus": ints(-1)}, dims={"x": ["n", 1]})
    assert kinds(graph) == ["elementwise"]
    assert str(graph.tensors["y"]) == "f32[n, 7]"


def test_sizes_that_layers_read_become_values():
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Mul", "f half", "g"), node("Unsqueeze", "s zero", "m")]
    graph = lowered(nodes, {"x": X}, "s g m", constants={"half": np.array(0.5, np.float32), "zero": ints(0)},
                    dims={"x": ["a", "b", 4]})
    got = evaluate_graph(graph, {"x": X})
    np.testing.assert_array_equal(got["s"], [2, 3, 4])
    np.testing.assert_array_equal(got["g"], np.array([1, 1.5, 2], np.float32))
    np.testing.assert_array_equal(got["m"], [[2, 3, 4]])
    assert got["s"].dtype == got["m"].dtype == np.int64


def test_known_sizes_become_constants():
    graph = lowered([node("Shape", "x", "s"), node("Size", "x", "n")], {"x": X}, "s n")
    got = evaluate_graph(graph, {"x": X})
    np.testing.assert_array_equal(got["s"], [2, 3, 4])
    assert got["n"] == 24


def test_undecided_sizes_are_computed_when_it_runs():
    nodes = [node("Shape", "x", "s"), node("Equal", "s c", "e"), node("Cast", "e", "y", to=6)]
    graph = lowered(nodes, {"x": X}, constants={"c": ints(2)}, dims={"x": ["a", 3, "b"]})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": X})["y"], [1, 0, 0])


def test_slices_by_sizes():
    nodes = [node("Shape", "x", "s", start=1, end=2), node("Slice", "table zero s zero", "y")]
    graph = lowered(nodes, {"x": X}, constants={"table": rand(10, 4), "zero": ints(0)}, dims={"x": ["n", "t", 4]})
    assert str(graph.tensors["y"]) == "f32[min(10, t), 4]"


# --- conditions ------------------------------------------------------------------------------------------------------------


def test_sizes_that_must_be_equal_become_conditions():
    nodes = [node("MaxPool", "x", "p", kernel_shape=[2], strides=[2]), node("Resize", "p", "u"),
             node("Concat", "x u", "y", axis=1)]
    nodes[1].input[:] = ["p", "", "scales"]
    graph = lowered(nodes, {"x": rand(1, 2, 8)}, constants={"scales": np.array([1, 1, 2], np.float32)}, dims={"x": [1, 2, "w"]})
    assert str(graph.tensors["y"]) == "f32[1, 4, w]"
    assert [holds(graph, {"w": w}) for w in (6, 7, 8)] == [True, False, True]


def test_sizes_that_cannot_be_equal_are_refused():
    nodes = [node("Slice", "x one far zero", "t"), node("Add", "x t", "y")]
    constants = {"one": ints(1), "far": ints(np.iinfo(np.int64).max), "zero": ints(0)}
    with pytest.raises(ModelError, match="joins sizes that differ, n and n - 1"):
        lowered(nodes, {"x": rand(5)}, constants=constants, dims={"x": ["n"]})


def test_broadcasting_with_symbols():
    graph = lowered([node("Add", "x z", "y")], {"x": X, "z": rand(3, 1)}, dims={"x": ["a", "b", "c"], "z": ["b", 1]})
    assert (str(graph.tensors["y"]), graph.conditions) == ("f32[a, b, c]", [])
    graph = lowered([node("Add", "x z", "y")], {"x": X}, constants={"z": rand(4)}, dims={"x": ["a", "b", "c"]})
    assert (str(graph.tensors["y"]), graph.conditions) == ("f32[a, b, 4]", [(symbol("c"), 4)])


# --- names and outputs -----------------------------------------------------------------------------------------------------


def test_names_are_readable_unique_and_the_same_every_time():
    nodes = [node("Conv", "x w", "a", name="first"), node("Relu", "a", "b", name="first"), node("Conv", "b v", "y")]
    build = lambda: lowered(nodes, {"x": rand(1, 2, 5, 5)}, constants={"w": rand(2, 2, 1, 1), "v": rand(2, 2, 1, 1)})  # noqa: E731
    names = [layer.name for layer in build().layers]
    assert names == ["first.channels_last", "first.convolution", "first", "first_1", "Conv_2.channels_last", "Conv_2.convolution",
                     "Conv_2"]
    assert names == [layer.name for layer in build().layers]
    assert build().name == "g"


def test_outputs_keep_their_names():
    nodes = [node("Identity", "x", "same"), node("Neg", "x", "n"), node("Identity", "n", "m"), node("Identity", "w", "c")]
    graph = lowered(nodes, {"x": X}, "same m c w n", constants={"w": rand(3)})
    assert graph.outputs == ("same", "m", "c", "w", "n")
    got = evaluate_graph(graph, {"x": X})
    np.testing.assert_array_equal(got["same"], X)
    np.testing.assert_array_equal(got["m"], -X)
    np.testing.assert_array_equal(got["c"], got["w"])


def test_an_identity_at_the_end_costs_nothing():
    graph = lowered([node("Neg", "x", "n"), node("Identity", "n", "y")], {"x": X})
    assert kinds(graph) == ["elementwise"]
    assert graph.layers[0].outputs == ("y",)


def test_what_nothing_needs_is_dropped():
    graph = lowered([node("Neg", "x", "y"), node("Exp", "x", "z"), node("Add", "z w", "u")], {"x": X}, constants={"w": rand(4)})
    assert kinds(graph) == ["elementwise"]
    assert set(graph.tensors) == {"x", "y"}
    assert graph.constants == {}


# --- folding, branches, host -----------------------------------------------------------------------------------------------


def test_constants_are_folded():
    nodes = [node("Transpose", "w", "t"), node("Mul", "t two", "u"), node("MatMul", "x u", "y")]
    w = rand(5, 4)
    graph = lowered(nodes, {"x": X}, constants={"w": w, "two": np.array(2, np.float32)})
    assert kinds(graph) == ["matmul"]
    np.testing.assert_allclose(graph.constants["u"], w.T * 2)


def test_small_files_do_not_become_huge_programs():
    nodes = [node("ConstantOfShape", "s", "c"), node("ReduceSum", "c", "r"), node("Add", "x r", "y")]
    graph = lowered(nodes, {"x": X}, constants={"s": ints(1 << 20, 1 << 20)})
    assert sum(a.nbytes for a in graph.constants.values()) < 1 << 20


def branches():
    y = [oh.make_empty_tensor_value_info("o")]
    then = oh.make_graph([node("Add", "x w", "o")], "then", [], y, [onh.from_array(np.float32(1), "w")])
    other = oh.make_graph([node("Neg", "x", "o")], "else", [], y)
    return node("If", "c", "y", then_branch=then, else_branch=other)


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_of_a_known_condition_is_taken(condition):
    graph = lowered([branches()], {"x": X}, constants={"c": np.array(condition)})
    assert kinds(graph) == ["elementwise"]
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": X})["y"], X + 1 if condition else -X)


def test_a_branch_decided_by_sizes():
    nodes = [node("Shape", "x", "s", start=2), node("Equal", "s four", "e"), node("Squeeze", "e", "c"), branches()]
    graph = lowered(nodes, {"x": X}, constants={"four": ints(4)}, dims={"x": ["a", "b", 4]})
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": X})["y"], X + 1)


def test_an_undecided_branch_is_a_layer_with_bodies_that_reads_what_they_capture():
    graph = lowered([branches()], {"x": X, "c": np.array(True)}, dims={"x": ["a", "b", 4]})
    layer, = graph.layers
    assert (layer.kind, layer.inputs) == ("if", ("c", "x"))
    assert [kinds(body) for body in layer.bodies] == [["elementwise"], ["elementwise"]]
    assert str(graph.tensors["y"]) == "f32[a, b, 4]"


def test_host_layers_keep_symbols():
    graph = lowered([node("RandomUniformLike", "x", "y", low=2.0, high=3.0)], {"x": X}, dims={"x": ["a", "b", 4]})
    layer, = graph.layers
    assert (layer.kind, layer.attributes["defines"]) == ("host", [])
    assert layer.attributes["domains"] == {"": 18}
    assert onnx.NodeProto.FromString(layer.attributes["node"]).op_type == "RandomUniformLike"
    assert str(graph.tensors["y"]) == "f32[a, b, 4]"
    drawn = evaluate_graph(graph, {"x": X})["y"]
    assert drawn.shape == X.shape and (drawn >= 2).all() and (drawn <= 3).all()


def test_sizes_that_depend_on_data_get_symbols():
    graph = lowered([node("NonZero", "x", "i"), node("Transpose", "i", "y")], {"x": X})
    assert "host" not in kinds(graph)
    layer = next(layer for layer in graph.layers if layer.kind == "bind")
    (name, place), = layer.attributes["defines"]
    assert (place, layer.attributes["rule"], layer.outputs) == (0, "sizes", ())
    assert str(graph.tensors["y"]) == f"i64[{name}, 3]"
    names = [node("StringSplit", "x", "i c"), node("Identity", "i", "y")]
    graph = lowered(names, {"x": np.array(["a b", "c"], object)}, opset=20)
    (name, output, axis), = graph.layers[0].attributes["defines"]
    assert (graph.layers[0].kind, output, axis) == ("host", 0, 1)
    assert str(graph.tensors["y"]) == f"string[2, {name}]"


def test_operators_are_lowered_by_their_bodies():
    feeds = {"scores": rand(3, 5), "labels": ints(0, 4, 2)}
    model = make_model([node("SoftmaxCrossEntropyLoss", "scores labels", "y")], feeds, ["y"])
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    np.testing.assert_allclose(evaluate_graph(graph, feeds)["y"], run_runtime(model, feeds)[0], rtol=1e-5)


def test_strings_go_to_the_host():
    feeds = {"a": np.array(["x", "y"], object)}
    graph = lowered([node("Equal", "a b", "y")], feeds, constants={"b": np.array(["x", "z"], object)}, opset=19)
    assert kinds(graph) == ["host"]


def test_types_without_compiled_code_are_named():
    with pytest.raises(UnsupportedError, match="complex64"):
        lowered([node("BitCast", "x", "f", to=14), node("BitCast", "f", "y", to=11)], {"x": X.astype(np.float64)}, opset=26)


# --- networks of published packages ----------------------------------------------------------------------------------------


def packaged(package, path):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]) / path


@pytest.mark.parametrize(("package", "path", "shapes"), [
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", [(1, 3, 48, 32), (2, 3, 48, 41)]),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", [(1, 3, 32, 64)]),
    ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", [(2, 3, 48, 192)]),
    ("magika", "models/standard_v3_3/model.onnx", [(2, 2048)]),
])
def test_networks_lower_once_for_all_sizes(package, path, shapes):
    model = onnx.load(packaged(package, path))
    graph = lower_model(model)
    assert "host" not in kinds(graph)
    name = graph.inputs[0]
    for shape in shapes:
        x = rand(*shape) if graph.tensors[name].dtype == "f32" else np.abs(rand(*shape, dtype=np.int32))
        wanted, = run_runtime(model, {name: x})
        got = evaluate_graph(graph, {name: x})[graph.outputs[0]]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-4 * max(1e-2, float(np.abs(wanted).max())))
