"""Fourier transforms against NumPy, by way of onnx's reference."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import pytest
from onnx import parser
from tests.unit.ops_harness import check, kinds, lower_model, make_model, rand

import sartor
from sartor.errors import ModelError

LAST = {"x": -1}  # the parts of a number


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("options", [{}, {"inverse": 1}, {"onesided": 1}], ids=str)
def test_dft(opset, parts, options):
    if parts == 2 and options.get("onesided"):
        return
    check("DFT", {"x": rand(2, 12, 3, parts)}, opset=opset, fixed=LAST, **options, **({"axis": 1} if opset < 20 else {}))


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -4])
def test_axis_as_input(axis):
    check("DFT", {"x": rand(4, 5, 6, 2)}, {"n": np.array(7), "axis": np.array(axis)}, opset=20, fixed=LAST, tolerance=1e-4)
    check("DFT", {"x": rand(4, 5, 6, 1)}, {"axis": np.array(axis)}, opset=20, fixed=LAST, order=["x", "", "axis"], onesided=1, tolerance=1e-4)


def test_axis_known_in_the_run():
    for axis in (1, -2, 0):
        feeds = {"x": rand(3, 4, 5, 2), "axis": np.array(axis)}
        check("DFT", feeds, opset=20, fixed=LAST, order=["x", "", "axis"], tolerance=1e-4)
        check("DFT", feeds | {"x": rand(3, 4, 5, 1)}, opset=20, fixed=LAST, order=["x", "", "axis"], tolerance=1e-4, onesided=1)
        check("DFT", feeds, {"n": np.array(6)}, opset=20, fixed=LAST, order=["x", "n", "axis"], tolerance=1e-4, onesided=1, inverse=1)


@pytest.mark.parametrize("length", [None, 9, 10, 20, 5])
def test_real_signal_from_half_a_spectrum(length):
    constants = {} if length is None else {"n": np.array(length)}
    check("DFT", {"x": rand(2, 6, 2)}, constants, opset=20, fixed=LAST, inverse=1, onesided=1, tolerance=1e-4)


def test_many_points_have_their_powers_computed():
    graph = check("DFT", {"x": rand(1, 70000, 1)}, opset=20, fixed=LAST, tolerance=2e-2, symbolic=False)
    assert "iota" in kinds(graph)


def test_what_no_transform_has():
    for feeds, constants, order in (({"x": rand(2, 3)}, {}, None), ({"x": rand(2, 3, 1)}, {"n": np.array(0)}, None),
                                    ({"x": rand(2, 3, 1)}, {"axis": np.array(2)}, ["x", "", "axis"])):
        node = oh.make_node("DFT", order or [*feeds, *constants], ["y"])
        with pytest.raises(ModelError):
            lower_model(make_model([node], feeds, ["y"], constants, 20))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("given", ["window", "length", "both", "none"])
def test_stft(given, onesided):
    signal = {"x": rand(2, 40, 1)}
    constants = {"step": np.array(6), "window": np.hanning(16).astype(np.float32), "n": np.array(16)}
    order = {"window": ["x", "step", "window"], "length": ["x", "step", "", "n"], "both": ["x", "step", "window", "n"],
             "none": ["x", "step"]}[given]
    check("STFT", signal, {k: v for k, v in constants.items() if k in order}, order=order, fixed=LAST, onesided=onesided, tolerance=1e-4)


def test_stft_with_sizes_of_the_run():
    feeds = {"x": rand(2, 40, 1), "step": np.array(6), "n": np.array(10)}
    check("STFT", feeds, fixed=LAST, order=["x", "step", "", "n"], tolerance=1e-4)


@pytest.mark.parametrize("dtype", [1, 10, 11])
@pytest.mark.parametrize("sizes", [(8, 32, 8192), (20, 128, 16000), (3, 7, 100)], ids=str)
def test_mel_weights(sizes, dtype):
    feeds = {n: np.array(v) for n, v in zip(("bands", "points", "rate"), sizes, strict=True)}
    feeds |= {"low": np.array(0, np.float32), "high": np.array(sizes[2] / 2, np.float32)}
    check("MelWeightMatrix", feeds, output_datatype=dtype, tolerance=1e-3 if dtype == 10 else 1e-5)


def test_stft_of_complex_signals_and_windows_of_the_run():
    check("STFT", {"x": rand(2, 30, 2), "w": rand(8)}, {"step": np.array(3)}, order=["x", "step", "w"], fixed=LAST, onesided=0, tolerance=1e-4)


def test_stft_refuses_a_length_of_frames_that_is_not_its_window_s():
    proto = parser.parse_model('<ir_version: 10, opset_import: ["":21]> g (float[1,n,1] x, float[m] w, int64 l) => (float[1,f,k,2] y) '
                               "<int64 s = {4}> { y = STFT(x, s, w, l) }")
    feeds = {"x": rand(1, 19, 1), "w": rand(4), "l": np.array(4)}
    with sartor.Session(sartor.compile(proto, threads=1)) as session:
        assert session.run(feeds)["y"].shape == (1, 4, 3, 2)
        with pytest.raises(sartor.FeedError, match="3 and 4 elements"):
            session.run({**feeds, "l": np.array(3)})
