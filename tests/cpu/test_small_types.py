"""Models with types of 8 bits and fewer, and with conversions, as whole programs beside onnx's reference."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from onnx.reference import ReferenceEvaluator
from tests.cpu import harness
from tests.unit.ops_harness import make_model

import sartor
from sartor.errors import ModelError
from sartor.graph.expression import identity
from sartor.graph.reference import evaluate_layer
from sartor.templates import TEMPLATES
from sartor.types import CODED, FORMATS, from_numpy, limits, to_numpy, width

RNG = np.random.default_rng(5)
NUMBERS = {name: int(oh.np_dtype_to_tensor_dtype(to_numpy(name))) for name in (*CODED, "f32", "f16", "bf16", "f64", "i32", "u8", "i64", "bool")}
QUANTISED = ["f8e4m3fn", "f8e5m2fnuz", "f6e2m3", "f4e2m1", "i4", "u4", "i2"]


def compiled(nodes, feeds, outputs=("y",), constants=None, opset=25):
    """The model and its program, in which nothing runs on the host."""
    model = make_model(nodes, feeds, list(outputs), constants, opset=opset)
    program = sartor.compile(model)
    assert not program.fallbacks
    return model, program


def run(nodes, feeds, outputs=("y",), constants=None, opset=25):
    return sartor.Session(compiled(nodes, feeds, outputs, constants, opset)[1]).run(feeds)


def beside_reference(nodes, feeds, outputs=("y",), constants=None, opset=25):
    """Runs a model, holds it to onnx's reference, and returns its outputs."""
    model, program = compiled(nodes, feeds, outputs, constants, opset)
    got = sartor.Session(program).run(feeds)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, feeds)
    for name, value in zip(outputs, wanted, strict=True):
        assert same(got[name], np.asarray(value)), name
    return got


def same(got, wanted):
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    return got.dtype == wanted.dtype and got.shape == wanted.shape and np.array_equal(a, b, equal_nan=True)


def codes(name, *shape):
    return RNG.integers(0, 1 << width(name), shape).astype(np.uint8).view(to_numpy(name))


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2", "f8e8m0", "f4e2m1", "i4", "u2"])
def test_moving_elements_moves_bytes(name):
    x = codes(name, 2, 3, 37)
    sizes = {"rows": np.array([37, -1]), "pads": np.array([0, 0, 1, 1, 0, 2]), "front": np.array([0]), "filled": np.array([2, 5])}
    fill = np.array(1, np.float32).astype(to_numpy(name))
    nodes = [
        oh.make_node("Identity", ["x"], ["identity"]), oh.make_node("Reshape", ["x", "rows"], ["reshape"]),
        oh.make_node("Transpose", ["x"], ["transpose"], perm=[2, 0, 1]), oh.make_node("Unsqueeze", ["x", "front"], ["unsqueeze"]),
        oh.make_node("Pad", ["x", "pads", "fill"], ["pad"]), oh.make_node("Flatten", ["x"], ["flatten"]),
        oh.make_node("ConstantOfShape", ["filled"], ["constant"], value=onh.from_array(fill.reshape(1))),
    ]
    outputs = [n.output[0] for n in nodes]
    got = run(nodes, {"x": x}, outputs, {**sizes, "fill": fill}, opset=28)
    wanted = {
        "identity": x, "reshape": x.reshape(37, -1), "transpose": x.transpose(2, 0, 1), "unsqueeze": x[None],
        "pad": np.pad(x.view(np.uint8), ((0, 1), (0, 0), (1, 2)), constant_values=fill.view(np.uint8).item()).view(x.dtype),
        "flatten": x.reshape(2, -1), "constant": np.full((2, 5), fill),
    }
    for output in outputs:
        assert got[output].dtype == x.dtype and got[output].shape == wanted[output].shape, output
        assert got[output].tobytes() == wanted[output].tobytes(), output


@pytest.mark.parametrize("name", ["f8e5m2", "i4"])
def test_layers_that_move_elements_move_bytes(name):
    """Kinds that ONNX has no operators of for these types, but passes make."""
    x, more = codes(name, 3, 37), codes(name, 3, 5)
    kinds = [
        ("concat", {"x": x, "more": more}, np.concatenate([x, more], 1), {"axis": 1}),
        ("slice", {"x": x}, x[:, 1:30], {"starts": (0, 1), "steps": (1, 1)}),
        ("gather", {"x": x, "places": np.array([3, -1, 0])}, x[:, [3, -1, 0]], {"axis": 1}),
        ("elementwise", {"x": x[:1]}, np.broadcast_to(x[:1], (4, 37)), {"expression": identity(name)}),
    ]
    for kind, inputs, wanted, attributes in kinds:
        types = {n: (from_numpy(a.dtype), a.shape) for n, a in inputs.items()}
        problem = harness.problem(kind, types, (name, wanted.shape), **attributes)
        template = next(t for t in TEMPLATES if t.applies(problem, harness.device()))
        bound = harness.Bound(template, problem, inputs)
        bound.run(3)
        assert bound.outputs()["y"].tobytes() == np.ascontiguousarray(wanted).tobytes(), kind
        assert evaluate_layer(problem, inputs, {})["y"].tobytes() == np.ascontiguousarray(wanted).tobytes(), kind


def test_a_program_with_small_types_is_kept_in_a_file(tmp_path):
    x, w = codes("f8e5m2", 4, 6), codes("i4", 6)
    _, program = compiled([oh.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), oh.make_node("Identity", ["w"], ["z"])], {"x": x}, ("y", "z"), {"w": w})
    path = tmp_path / "model.sartor"
    program.save(path)
    got = sartor.load(path).run({"x": x})
    assert got["y"].tobytes() == x.T.tobytes() and got["z"].dtype == w.dtype
    assert got["z"].astype(int).tolist() == w.astype(int).tolist()


@pytest.mark.parametrize("name", [n for n in FORMATS if n.startswith("f8")])
def test_special_values_of_float8(name):
    x = np.arange(256, dtype=np.uint8).view(to_numpy(name))
    got = run([oh.make_node("IsNaN", ["x"], ["n"]), oh.make_node("IsInf", ["x"], ["i"])], {"x": x}, ("n", "i"))
    wide = x.astype(np.float32)
    assert np.array_equal(got["n"], np.isnan(wide)) and np.array_equal(got["i"], np.isinf(wide)) and got["n"].any()


# --- conversions -----------------------------------------------------------------------------------------------------------


def awkward(name):
    """Values at which conversions go wrong: ends, ties, zeros, NaNs, numbers out of range."""
    if name in CODED:
        return np.arange(1 << width(name), dtype=np.uint8).view(to_numpy(name))
    if name == "bool":
        return np.array([True, False] * 20)
    if name[0] in "iu":
        least, most = limits(name)
        values = [least, most, 0, 1, 2, 7, 8, 15, 16, 100, 127, most // 2, most // 3] + [v for v in (-1, -8, -9, -100) if v >= least]
        return np.array(values * 3, to_numpy(name))
    reals = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.75, 7.6, 8.0, -9.0, 17.0, 127.5, 255.5, 447.9, 464.0, 465.0, 6e4, 6.2e4, 7e4, -7e4,
             3e9, -3e9, 1e19, 2e19, -1e19, 1e38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 6e-8, 3e-8, 5.97e-8, -1e-7, 1e-5, 2.0**-10]
    with np.errstate(over="ignore"):
        return np.array(reals, to_numpy(name))


@pytest.mark.parametrize("source", ["f32", "bf16", "f64", "i64", "f8e4m3fn", "i4"])
def test_folding_gives_the_bits_of_a_run(source):
    x = awkward(source)
    nodes, outputs = [], []
    for to in ("f16", "bf16", "i32", "u8", "bool", "f8e4m3fn", "f8e8m0", "f4e2m1", "i4"):
        for saturate in (1, 0) if to.startswith("f8") else (1,):
            if to != source:
                outputs.append(f"{to}.{saturate}")
                nodes.append(oh.make_node("Cast", ["x"], [outputs[-1]], to=NUMBERS[to], **({} if saturate else {"saturate": 0})))
    ran = run(nodes, {"x": x}, outputs)
    folded = run(nodes, {}, outputs, {"x": x})
    for output in outputs:
        bits = ran[output].tobytes() == folded[output].tobytes()
        assert bits or same(ran[output], folded[output]), f"{source} to {output}: {ran[output]} in a run, {folded[output]} folded"


def test_sixteen_bits_survive_a_run():
    """Denormals too, which arithmetic takes for 0."""
    x = np.arange(1 << 16, dtype=np.uint16)
    for name in ("f16", "bf16"):
        half = x.view(to_numpy(name))
        nodes = [oh.make_node("Cast", ["x"], ["wide"], to=NUMBERS["f32"]), oh.make_node("Cast", ["wide"], ["kept"], to=NUMBERS[name])]
        got = run(nodes, {"x": half}, ("wide", "kept"))
        with np.errstate(invalid="ignore"):
            assert same(got["wide"], half.astype(np.float32)) and same(got["kept"], half)
        with np.errstate(invalid="ignore"):
            back = run([oh.make_node("Cast", ["x"], ["y"], to=NUMBERS[name])], {"x": got["wide"]})["y"]
            assert same(back, half)
    wide = np.array([2.0**-24, 2.0**-25, 2.0**-25 * (1 + 2.0**-40), 2.0**-15, 2.0**-14 * (1 - 2.0**-12)])
    got = run([oh.make_node("Cast", ["x"], ["y"], to=NUMBERS["f16"])], {"x": wide})["y"]
    assert same(got, wide.astype(np.float16))


def test_cast_like_and_round_modes():
    x = np.array([0.3, 1.0, 1.4, 1.5, 1.6, 500.0, 70000.0], np.float32)
    like = {name: np.zeros(1, np.float32).astype(to_numpy(name)) for name in ("f8e4m3fn", "i4", "bf16")}
    nodes = [oh.make_node("CastLike", ["x", name], [f"y{name}"]) for name in like]
    beside_reference(nodes, {"x": x}, [f"y{n}" for n in like], like)
    loose = run([oh.make_node("CastLike", ["x", "l"], ["y"], saturate=0)], {"x": x}, constants={"l": like["f8e4m3fn"]})["y"]
    assert np.isnan(loose.astype(np.float32)[-2:]).all()
    for mode, wanted in (("up", [126, 127, 128, 128, 128]), ("down", [125, 127, 127, 127, 127]), ("nearest", [125, 127, 127, 128, 128])):
        node = oh.make_node("Cast", ["x"], ["y"], to=NUMBERS["f8e8m0"], round_mode=mode)
        assert run([node], {"x": x})["y"].view(np.uint8)[:5].tolist() == wanted


@pytest.mark.parametrize(("source", "to"), [("bool", "u8"), ("u8", "bool"), ("f16", "u16"), ("u16", "bf16"), ("f8e5m2", "u8"), ("i8", "f8e4m3fn"),
                                            ("f32", "i32"), ("i4", "u4"), ("f4e2m1", "u4"), ("u2", "i2"), ("i64", "f64"), ("bool", "i8")])
def test_the_same_bits_as_another_type(source, to):
    kind = to_numpy(source)
    bits = np.arange(1 << min(16, width(source)), dtype=np.uint16)
    x = bits.astype(f"u{kind.itemsize}").view(kind) if source != "bool" else bits % 2 != 0
    number = int(oh.np_dtype_to_tensor_dtype(to_numpy(to)))
    for feeds, constants in (({"x": x}, {}), ({}, {"x": x})):
        got = run([oh.make_node("BitCast", ["x"], ["y"], to=number)], feeds, constants=constants, opset=26)["y"]
        wanted = x.view(np.uint8) != 0 if to == "bool" else x.view(to_numpy(to))
        assert got.dtype == wanted.dtype
        assert got.astype(np.uint8).tolist() == wanted.astype(np.uint8).tolist() if width(to) < 8 else got.tobytes() == wanted.tobytes()


def test_layers_that_differ_in_a_type_between_do_not_share_a_kernel():
    x = np.linspace(-3, 3, 40, dtype=np.float32)
    between = ("f16", "bf16", "f8e4m3fn", "f8e5m2", "i32", "u8", "i4")
    nodes = [oh.make_node("Cast", ["x"], [f"m{t}"], to=NUMBERS[t]) for t in between]
    nodes += [oh.make_node("Cast", [f"m{t}"], [t], to=NUMBERS["f32"]) for t in between]
    got = run(nodes, {"x": np.abs(x)}, between)
    for kind in between:
        assert same(got[kind], np.abs(x).astype(to_numpy(kind)).astype(np.float32)), kind


# --- quantisation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTISED)
def test_quantisation(name):
    """For the tensor, by axis and in blocks; with zero points, and without."""
    x = (RNG.standard_normal((3, 6, 10)) * 8).astype(np.float32)
    scales = {"one": np.float32(0.75), "axis": RNG.uniform(0.2, 2, 6).astype(np.float32),
              "block": RNG.uniform(0.2, 2, (3, 2, 10)).astype(np.float32)}
    zeros = {f"{k}.zero": np.ones(s.shape, np.float32).astype(to_numpy(name)) if name[0] in "iu" else np.zeros(s.shape, to_numpy(name))
             for k, s in scales.items()}
    nodes, outputs = [], []
    for kind in scales:
        block = {"block_size": 3} if kind == "block" else {}
        nodes += [oh.make_node("QuantizeLinear", ["x", kind, f"{kind}.zero"], [f"{kind}.q"], axis=1, **block),
                  oh.make_node("QuantizeLinear", ["x", kind], [f"{kind}.p"], axis=1, output_dtype=NUMBERS[name], **block),
                  oh.make_node("DequantizeLinear", [f"{kind}.q", kind, f"{kind}.zero"], [f"{kind}.d"], axis=1, **block),
                  oh.make_node("DequantizeLinear", [f"{kind}.p", kind], [f"{kind}.e"], axis=1, output_dtype=NUMBERS["f16"], **block)]
        outputs += [f"{kind}.{end}" for end in "qpde"]
    beside_reference(nodes, {"x": x}, outputs, {**scales, **zeros}, opset=28)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.07, 1 / 3])
def test_quotients_are_rounded_as_divisions(scale):
    """The reciprocal of the scale would round ties the other way."""
    x = ((np.arange(-60, 60) + 0.5) * np.float32(scale)).astype(np.float32)
    for kind in (np.float32, np.float16):
        feeds, constants = {"x": x.astype(kind)}, {"s": kind(scale), "z": np.int8(3)}
        beside_reference([oh.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], feeds, constants=constants, opset=21)
        beside_reference([oh.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=NUMBERS["f8e4m3fn"])], feeds,
                         constants={"s": kind(scale)}, opset=21)


def test_scales_that_are_powers_of_two_and_whole_numbers():
    x = (RNG.standard_normal((4, 32)) * 5).astype(np.float32)
    scale = np.array([0.25, 1, 2, 0.5], np.float32).astype(to_numpy("f8e8m0")).reshape(4, 1)
    q = run([oh.make_node("QuantizeLinear", ["x", "s"], ["y"], axis=1, block_size=32, output_dtype=NUMBERS["f4e2m1"])], {"x": x},
            constants={"s": scale})["y"]
    wanted = (x / scale.astype(np.float32)).astype(to_numpy("f4e2m1"))
    assert same(q, wanted)
    node = oh.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=32, output_dtype=NUMBERS["f32"])
    assert same(run([node], {"q": q}, constants={"s": scale})["y"], wanted.astype(np.float32) * scale.astype(np.float32))
    whole = RNG.integers(-300, 300, (5, 7)).astype(np.int32)
    beside_reference([oh.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], {"x": whole},
                     constants={"s": np.float32(2.5), "z": np.int8(-3)}, opset=25)


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("per_row", [False, True])
def test_products_of_float8(name, per_row):
    """By ONNX's words; its reference takes the numbers for integers."""
    kind = to_numpy(name)
    a, b = RNG.standard_normal((5, 40)).astype(kind), RNG.standard_normal((40, 7)).astype(kind)
    scales = {"as": RNG.uniform(0.5, 2, 5 if per_row else ()).astype(np.float32), "bs": np.float32(0.5), "ys": np.float32(0.75)}
    zeros = {"az": np.zeros(scales["as"].shape, kind), "bz": np.zeros((), kind), "yz": np.zeros((), kind)}
    got = run([oh.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])], {"a": a}, constants={"b": b, **scales, **zeros})["y"]
    factor = scales["as"].reshape(-1, 1) * np.float32(0.5) / np.float32(0.75)
    exact = a.astype(np.float64) @ b.astype(np.float64) * factor
    most = FORMATS[name].maximum
    assert same(got, np.clip(exact, -most, most).astype(kind))


@pytest.mark.parametrize("name", ["i4", "u4", "i8", "i2", "f8e4m3fn", "f4e2m1"])
def test_quantised_weights_are_dequantised_while_compiling(name):
    """A product with constant weights is one layer, whatever the weights were stored in."""
    if name == "i8":
        w, zero = RNG.integers(-128, 128, (64, 48)).astype(np.int8), np.full((2, 48), 3, np.int8)
    else:
        w = codes(name, 64, 48) if name != "f8e4m3fn" else RNG.standard_normal((64, 48)).astype(to_numpy(name))
        zero = np.zeros((2, 48), to_numpy(name))
    scale = RNG.uniform(0.01, 0.1, (2, 48)).astype(np.float32)
    nodes = [oh.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=32), oh.make_node("MatMul", ["x", "d"], ["y"])]
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    _, program = compiled(nodes, {"x": x}, constants={"w": w, "s": scale, "z": zero})
    assert [layer.kind for layer in program.layers] == ["matmul"]
    weights = (w.astype(np.float32) - zero.astype(np.float32).repeat(32, 0)) * scale.repeat(32, 0)
    np.testing.assert_allclose(sartor.Session(program).run({"x": x})["y"], x @ weights, rtol=1e-4, atol=1e-4)


def test_files_of_arrays_hold_small_types_as_raw_bytes(tmp_path, capsys):
    """NumPy's files have no names for types of ml_dtypes; what the command writes it can read."""
    from sartor.cli import main

    x = codes("f8e5m2", 3, 5)
    _, program = compiled([oh.make_node("Identity", ["x"], ["y"])], {"x": x})
    program.save(tmp_path / "m.sartor")
    np.save(tmp_path / "x.npy", x.view("V1"))
    for source in ("x.npy", "out.npz"):
        assert main.run(["run", str(tmp_path / "m.sartor"), "--input", f"x={tmp_path / source}", "-o", str(tmp_path / "out.npz"), "--json"]) == 0
        assert '"float8_e5m2"' in capsys.readouterr().out
        with np.load(tmp_path / "out.npz") as outputs:
            assert outputs["y"].tobytes() == x.tobytes()


def test_whole_numbers_of_64_bits_stay_exact():
    """Where a constant of a model becomes a number of a layer."""
    big = np.array((1 << 62) + 1, np.int64)
    x = np.array([[(1 << 53) + 1, -5]], np.int64)
    nodes = [oh.make_node("Pad", ["x", "pads", "big"], ["p"]), oh.make_node("Add", ["x", "big"], ["a"]), oh.make_node("Max", ["x", "big"], ["m"])]
    beside_reference(nodes, {"x": x}, ("p", "a", "m"), {"pads": np.array([0, 1, 1, 0]), "big": big})


def test_a_mode_of_rounding_nobody_knows_is_refused():
    node = oh.make_node("Cast", ["x"], ["y"], to=NUMBERS["f8e8m0"], round_mode="sideways")
    with pytest.raises(ModelError, match="'sideways'; modes are up, down and nearest"):
        compiled([node], {"x": np.ones(3, np.float32)})
