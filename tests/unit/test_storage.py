"""Which values become views, pieces of concatenations, results in place, and arrays of the caller."""

import numpy as np

from sartor.fitting.storage import Traits, plan_storage
from sartor.graph.expression import ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.sizes import symbol


def relu():
    e = ExpressionBuilder(["f32"])
    return e.finish(e("relu", 0))


def unary(name, source, result):
    return Layer(name, "elementwise", (source,), (result,), {}, relu())


def concat(name, sources, result, axis=-1):
    return Layer(name, "concat", tuple(sources), (result,), {"axis": axis})


def piece(name, source, result, starts, steps=None):
    return Layer(name, "slice", (source,), (result,), {"starts": tuple(starts), "steps": tuple(steps or [1] * len(starts))})


def reshape(name, source, result):
    return Layer(name, "reshape", (source,), (result,))


def graph(shapes, layers, inputs=("x",), outputs=("y",), constants=None):
    tensors = {name: Tensor("f32", tuple(shape)) for name, shape in shapes.items()}
    return Graph(tuple(inputs), tuple(outputs), tensors, dict(constants or {}), list(layers))


def plan(graph, dense=(), in_place=(), host=()):
    """With kernels that take any pitch and nothing in place, but for the (layer, value) pairs given."""

    def traits(layer, tensors):
        return Traits(
            frozenset(v for name, v in dense if name == layer.name),
            frozenset(v for name, v in in_place if name == layer.name),
            layer.name not in host,
        )

    return plan_storage(graph, traits)


def where(storage, value):
    place = storage.places[value]
    return place.root, place.offset, place.pitch


def names(storage):
    return [layer.name for layer in storage.layers]


def test_a_reshape_is_a_view_and_vanishes():
    g = graph(
        {"x": (2, 6), "a": (2, 6), "b": (3, 4), "y": (3, 4)}, [unary("f", "x", "a"), reshape("r", "a", "b"), unary("g", "b", "y")]
    )
    storage = plan(g)
    assert names(storage) == ["f", "g"]
    assert where(storage, "b") == ("a", 0, 4)
    assert storage.roots["x"] == ("input", 0)
    assert storage.roots["y"] == ("output", 0)


def test_inputs_of_a_concatenation_are_columns_of_its_result():
    n = symbol("n")
    g = graph(
        {"x": (n, 5), "a": (n, 5), "b": (n, 3), "c": (n, 8), "y": (n, 8)},
        [
            unary("f", "x", "a"),
            piece("p", "x", "b", (0, 1)),
            unary("f2", "b", "b2"),
            concat("c", ("a", "b2"), "c"),
            unary("g", "c", "y"),
        ],
    )
    g.tensors["b2"] = Tensor("f32", (n, 3))
    storage = plan(g)
    assert names(storage) == ["f", "f2", "g"]
    assert where(storage, "a") == ("c", 0, 8)
    assert where(storage, "b2") == ("c", 5, 8)
    assert where(storage, "b") == ("x", 1, 5)


def test_a_kernel_that_needs_dense_results_keeps_a_copy():
    g = graph(
        {"x": (4, 5), "a": (4, 5), "b": (4, 5), "c": (4, 10), "y": (4, 10)},
        [unary("f", "x", "a"), unary("f2", "x", "b"), concat("c", ("a", "b"), "c"), unary("g", "c", "y")],
    )
    storage = plan(g, dense=[("f2", "b")])
    assert names(storage) == ["f", "f2", "copy c/b", "g"]
    assert where(storage, "a") == ("c", 0, 10)
    assert where(storage, "b") == ("b", 0, 5)
    assert where(storage, "c/b") == ("c", 5, 10)
    assert names(plan(g, dense=[("f", "a"), ("f2", "b")])) == ["f", "f2", "c", "g"]


def test_a_consumer_that_needs_it_dense_keeps_a_value_out_of_the_concatenation():
    g = graph(
        {"x": (4, 5), "a": (4, 5), "b": (4, 5), "c": (4, 10), "y": (4, 10), "z": (4, 5)},
        [unary("f", "x", "a"), unary("h", "a", "z"), unary("f2", "x", "b"), concat("c", ("a", "b"), "c"), unary("g", "c", "y")],
        outputs=("y", "z"),
    )
    assert where(plan(g), "a") == ("c", 0, 10)
    assert where(plan(g, dense=[("h", "a")]), "a") == ("a", 0, 5)


def test_concatenation_along_rows_gives_contiguous_pieces():
    g = graph(
        {"x": (1, 4, 5), "a": (1, 4, 5), "b": (1, 4, 5), "c": (1, 8, 5), "y": (1, 8, 5)},
        [unary("f", "x", "a"), unary("f2", "x", "b"), concat("c", ("a", "b"), "c", 1), unary("g", "c", "y")],
    )
    storage = plan(g, dense=[("f", "a"), ("f2", "b")])
    assert names(storage) == ["f", "f2", "g"]
    assert where(storage, "b") == ("c", 20, 5)


def test_concatenation_along_rows_of_several_images_is_a_copy():
    g = graph(
        {"x": (2, 4, 5), "a": (2, 4, 5), "c": (2, 8, 5), "y": (2, 8, 5)},
        [unary("f", "x", "a"), concat("c", ("a", "a"), "c", 1), unary("g", "c", "y")],
    )
    assert "c" in names(plan(g))


def test_a_value_concatenated_with_itself_is_copied_once():
    g = graph(
        {"x": (4, 5), "a": (4, 5), "c": (4, 10), "y": (4, 10)},
        [unary("f", "x", "a"), concat("c", ("a", "a"), "c"), unary("g", "c", "y")],
    )
    storage = plan(g)
    assert names(storage) == ["f", "copy c/a", "g"]
    assert {storage.places["a"].offset, storage.places["c/a"].offset} == {0, 5}


def dense_block(outer):
    """Features concatenated again and again, each time with one more, as DenseNet does."""
    shapes = {"x": (*outer, 4), "f0": (*outer, 4), "y": (*outer, 1)}
    layers = [unary("f0", "x", "f0")]
    for i in range(1, 4):
        shapes |= {f"c{i}": (*outer, 4 * i), f"f{i}": (*outer, 4)}
        layers += [concat(f"c{i}", [f"f{k}" for k in range(i)], f"c{i}"), Layer(f"f{i}", "matmul", (f"c{i}",), (f"f{i}",))]
    layers.append(Layer("y", "matmul", ("f3", "c3"), ("y",)))
    return graph(shapes, layers)


def test_repeated_concatenation_of_growing_lists_needs_one_buffer():
    storage = plan(dense_block((7,)))
    assert names(storage) == ["f0", "f1", "f2", "f3", "y"]
    assert [where(storage, f"f{i}") for i in range(3)] == [("c3", 4 * i, 12) for i in range(3)]
    assert where(storage, "c2") == ("c3", 0, 12)
    assert where(storage, "c1") == ("c3", 0, 12)


def test_nested_concatenations_need_one_buffer():
    shapes = {"x": (7, 4), "a": (7, 4), "b": (7, 4), "c1": (7, 8), "d": (7, 4), "c2": (7, 12), "y": (7, 12)}
    g = graph(
        shapes,
        [
            unary("a", "x", "a"),
            unary("b", "x", "b"),
            concat("c1", ("a", "b"), "c1"),
            Layer("d", "matmul", ("c1",), ("d",)),
            concat("c2", ("d", "c1"), "c2"),
            unary("y", "c2", "y"),
        ],
    )
    storage = plan(g)
    assert names(storage) == ["a", "b", "d", "y"]
    assert where(storage, "b") == ("c2", 8, 12)
    assert where(storage, "c1") == ("c2", 4, 12)


def test_slices_of_rows_and_columns_are_views_others_are_not():
    shapes = {"x": (1, 8, 6), "rows": (1, 3, 6), "columns": (1, 8, 2), "both": (1, 3, 2), "steps": (1, 4, 6), "y": (1, 1, 1)}
    g = graph(
        shapes,
        [
            piece("rows", "x", "rows", (0, 2, 0)),
            piece("columns", "x", "columns", (0, 0, 4)),
            piece("both", "x", "both", (0, 2, 4)),
            piece("steps", "x", "steps", (0, 0, 0), (1, 2, 1)),
            Layer("y", "matmul", ("rows", "columns", "both", "steps"), ("y",)),
        ],
    )
    storage = plan(g)
    assert names(storage) == ["steps", "y"]
    assert where(storage, "rows") == ("x", 12, 6)
    assert where(storage, "columns") == ("x", 4, 6)
    assert where(storage, "both") == ("x", 16, 6)
    several = graph(
        {"x": (2, 8, 6), "rows": (2, 3, 6), "y": (1,)},
        [piece("rows", "x", "rows", (0, 2, 0)), Layer("y", "matmul", ("rows",), ("y",))],
    )
    assert names(plan(several)) == ["rows", "y"]


def test_a_slice_that_is_reshaped_is_copied_when_rows_are_not_whole():
    g = graph(
        {"x": (4, 6), "a": (4, 2), "b": (8,), "y": (8,)},
        [piece("p", "x", "a", (0, 2)), reshape("r", "a", "b"), unary("y", "b", "y")],
    )
    storage = plan(g)
    assert names(storage) == ["copy r/a", "y"]
    assert where(storage, "a") == ("x", 2, 6)
    assert where(storage, "b") == ("r/a", 0, 8)


def test_rows_reshaped_to_another_length_are_no_columns_of_a_concatenation():
    g = graph(
        {"x": (2, 4, 4), "a": (2, 4, 4), "b": (2, 16), "c": (2, 32), "y": (2, 32)},
        [unary("f", "x", "a"), reshape("r", "a", "b"), concat("j", ["b", "b"], "c"), unary("g", "c", "y")],
    )
    storage = plan(g)
    assert where(storage, "a") == ("a", 0, 4)  # two images of 16 elements would lie 32 apart in the result, its rows 4 apart


def test_outputs_that_are_views_inputs_or_repeated_are_copied():
    g = graph(
        {"x": (4, 6), "a": (4, 6), "b": (24,), "p": (4, 2)},
        [unary("f", "x", "a"), reshape("r", "a", "b"), piece("p", "a", "p", (0, 2))],
        outputs=("a", "b", "p", "x"),
    )
    storage = plan(g)
    assert storage.roots["a"] == ("output", 0)
    assert names(storage) == ["f", "copy b/output", "copy p/output", "copy x/output"]
    assert [storage.roots[o] for o in storage.outputs] == [("output", i) for i in range(4)]


def test_a_reshaped_output_is_made_in_the_callers_array():
    g = graph({"x": (4, 6), "a": (4, 6), "y": (24,)}, [unary("f", "x", "a"), reshape("r", "a", "y")])
    storage = plan(g)
    assert names(storage) == ["f"]
    assert storage.roots["a"] == ("output", 0)


def test_a_constant_output_is_copied():
    g = graph({"x": (4,), "k": (4,)}, [], outputs=("k",), constants={"k": np.zeros(4, np.float32)})
    assert names(plan(g)) == ["copy k/output"]


def test_results_overwrite_inputs_nobody_reads_again():
    g = graph(
        {"x": (4, 6), "a": (4, 6), "b": (4, 6), "c": (4, 6), "y": (4, 6)},
        [unary("a", "x", "a"), unary("b", "a", "b"), unary("c", "b", "c"), Layer("y", "matmul", ("b", "c"), ("y",))],
    )
    storage = plan(g, in_place=[("a", "x"), ("b", "a"), ("c", "b"), ("y", "c")])
    assert where(storage, "b") == ("a", 0, 6)
    assert where(storage, "c") == ("c", 0, 6)  # b is read later
    assert where(storage, "a") == ("a", 0, 6)  # x is the caller's
    assert storage.roots["y"] == ("output", 0)


def test_no_result_overwrites_a_piece_of_what_is_read_later():
    g = graph(
        {"x": (4, 6), "a": (4, 6), "b": (4, 6), "c": (4, 12), "d": (4, 6), "y": (4, 12)},
        [
            unary("a", "x", "a"),
            unary("b", "x", "b"),
            unary("d", "a", "d"),
            concat("c", ("a", "b"), "c"),
            Layer("y", "matmul", ("c", "d"), ("y",)),
        ],
    )
    storage = plan(g, in_place=[("d", "a")])
    assert where(storage, "d") == ("d", 0, 6)


def test_an_identity_of_types_is_not_written_in_place_of_other_types():
    g = graph(
        {"x": (4,), "a": (4,), "b": (4,), "y": (4,)},
        [
            unary("a", "x", "a"),
            Layer("b", "elementwise", ("a",), ("b",), {}, identity("i32")),
            Layer("y", "matmul", ("b",), ("y",)),
        ],
    )
    g.tensors["b"] = Tensor("i32", (4,))
    assert where(plan(g, in_place=[("b", "a")]), "b") == ("b", 0, 4)


def test_a_transpose_that_moves_only_ones_is_a_view():
    g = graph(
        {"x": (1, 6, 4), "a": (6, 1, 4), "b": (4, 6, 1), "y": (1,)},
        [
            Layer("t", "transpose", ("x",), ("a",), {"perm": (1, 0, 2)}),
            Layer("u", "transpose", ("x",), ("b",), {"perm": (2, 1, 0)}),
            Layer("y", "matmul", ("a", "b"), ("y",)),
        ],
    )
    assert names(plan(g)) == ["u", "y"]


def test_sizes_found_in_the_run_start_a_new_stage():
    found = symbol("found")
    host = Layer("h", "host", ("x",), ("h",), {"defines": [("found", 0, 0)]})
    g = graph(
        {"x": (4, 6), "h": (found, 6), "a": (4, 6), "c": (found + 4, 6), "y": (found + 4, 6)},
        [unary("a", "x", "a"), host, concat("c", ("a", "h"), "c", 0), unary("y", "c", "y")],
    )
    storage = plan(g, host=("h",))
    assert storage.stages[:2] == (0, 0)
    assert set(storage.stages[2:]) == {1}
    assert where(storage, "a")[0] == "a"  # made before the size of the result is known
    assert storage.known["h"] == 1


def test_an_output_that_views_what_an_earlier_stage_made_is_copied():
    found = symbol("found")
    host = Layer("h", "host", ("x",), ("h",), {"defines": [("found", 0, 0)]})
    g = graph(
        {"x": (4, 6), "h": (found, 6), "a": (4, 6), "y": (24,), "z": (found, 6)},
        [unary("a", "x", "a"), host, reshape("r", "a", "y"), unary("z", "h", "z")],
        outputs=("y", "z"),
    )
    storage = plan(g, host=("h",))
    assert storage.roots["a"] == ("arena", 0)  # the caller's array for y is made only when stage 1 is bound
    assert storage.roots[storage.outputs[0]] == ("output", 0)
    assert storage.outputs[0] != "y"
