"""Operators whose sizes depend on data: natively, beside onnx's reference, with sizes that change from run to run."""

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import sartor
from sartor.errors import SartorError
from sartor.graph.reference import evaluate_graph

RNG = np.random.default_rng(3)
X = RNG.standard_normal((3, 4, 6)).astype(np.float32)


def model(body, opset=21):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["":{opset}]> g {body}')


def ints(*values):
    return np.array(values, np.int64)


def check(proto, feeds, tmp_path=None, tolerance=1e-5):
    """Compares runs of one session, for each of `feeds`, with onnx's reference; nothing may run on the host."""
    program = sartor.compile(proto, threads=2)
    assert program.fallbacks == ()
    if tmp_path is not None:
        program.save(tmp_path / "p.sartor")
        program = sartor.Program.load(tmp_path / "p.sartor")
    reference, graph = ReferenceEvaluator(proto), sartor.compiler.prepare(proto)
    for feed in feeds:
        same(evaluate_graph(graph, feed), reference.run(None, feed), tolerance)
    with sartor.Session(program) as session:
        for feed in (*feeds, *feeds):
            same(session.run(feed), reference.run(None, feed), tolerance)


def same(got, wanted, tolerance):
    for array, other in zip(got.values(), wanted, strict=True):
        assert array.shape == other.shape
        assert array.dtype == other.dtype
        np.testing.assert_allclose(array.astype(np.float64), other.astype(np.float64), tolerance, tolerance)


def refuses(proto, feed, *words):
    """The run ends in one sentence with these words, and the session still works afterwards."""
    with sartor.Session(sartor.compile(proto, threads=1)) as session, pytest.raises(SartorError) as problem:
        session.run(feed)
    text = str(problem.value)
    assert "\n" not in text
    for word in words:
        assert word in text


# --- views -----------------------------------------------------------------------------------------------------------------

RESHAPE = "(float[a,4,6] x, int64[2] s) => (float[p,q] z) { r = Relu(x)  y = Reshape(r, s)  z = Neg(y) }"


def test_reshape_resolves_zero_and_the_open_dimension(tmp_path):
    feeds = [{"x": X[:n], "s": s} for n, s in ((3, ints(12, 6)), (3, ints(-1, 3)), (2, ints(0, -1)), (1, ints(24, 1)), (0, ints(0, 4)))]
    check(model(RESHAPE), feeds, tmp_path)


def test_reshape_with_zeros_allowed():
    proto = model("(float[a,4] x, int64[3] s) => (float[p,q,r] y) { y = Reshape<allowzero=1>(x, s) }")
    check(proto, [{"x": X[0, :0, :4], "s": ints(3, 0, 7)}, {"x": X[0, :2, :4], "s": ints(2, 2, 2)}])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (ints(5, 5), ["(Reshape) cannot turn the shape [3, 4, 6] into [5, 5]"]),
        (ints(-1, -1), ["leaves two dimensions open"]),
        (ints(-1, 7), ["cannot turn"]),
        (ints(-2, -36), ["the size -2"]),
        (ints(1 << 33, 1 << 33), ["cannot turn"]),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape, words):
    refuses(model(RESHAPE), {"x": X, "s": shape}, *words)


def test_a_shape_computed_by_the_model():
    proto = model("""(float[a,b] x, float[2] f) => (float[p,q] y) {
        r = Relu(x)  c = Cast<to=7>(f)  y = Reshape(r, c) }""")
    check(proto, [{"x": X[0], "f": np.array([8, 3], np.float32)}, {"x": X[0], "f": np.array([-1, 2], np.float32)}])


def test_squeeze_and_unsqueeze_along_axes_of_the_run():
    proto = model("(float[1,a,1] x, int64[1] i) => (float[p,q] y) { y = Squeeze(x, i) }")
    check(proto, [{"x": X[:1, :, :1], "i": ints(0)}, {"x": X[:1, :3, :1], "i": ints(-1)}])
    refuses(proto, {"x": X[:1, :, :1], "i": ints(1)}, "drops dimension 1, which has 4 elements")
    proto = model("(float[a,b] x, int64[2] i) => (float[p,q,r,s] y) { y = Unsqueeze(x, i) }")
    check(proto, [{"x": X[0], "i": i} for i in (ints(0, 1), ints(-1, 0), ints(3, 1))])
    refuses(proto, {"x": X[0], "i": ints(1, 1)}, "an axis twice")
    refuses(proto, {"x": X[0], "i": ints(0, 4)}, "the axis 4 for 4 dimensions")


# --- repeating and filling -------------------------------------------------------------------------------------------------


def test_expand_and_tile():
    proto = model("(float[a,1,b] x, int64[3] s) => (float[p,q,r] y) { r = Relu(x)  y = Expand(r, s) }")
    feeds = [(X[:, :1], ints(1, 5, 6)), (X[:1, :1], ints(4, 2, 1)), (X[:, :1, :1], ints(3, 1, 7)), (X[:1, :1], ints(0, 3, 1))]
    check(proto, [{"x": x, "s": s} for x, s in feeds])
    refuses(proto, {"x": X[:, :1], "s": ints(2, 1, 1)}, "cannot expand the shape [3, 1, 6] to [2, 1, 1]")
    refuses(proto, {"x": X[:1, :1, :1], "s": ints(1 << 40, 1 << 10, 1)}, "there is not enough memory", "1099511627776")
    refuses(proto, {"x": X[:1, :1, :1], "s": ints(1 << 50, 1 << 50, 1)}, "which no array can have")
    proto = model("(float[a,b] x, int64[2] s) => (float[p,q] y) { y = Tile(x, s) }")
    check(proto, [{"x": X[0], "s": s} for s in (ints(2, 3), ints(1, 1), ints(0, 2))])
    refuses(proto, {"x": X[0], "s": ints(2, -1)}, "(Tile) is given the size -1")


def test_a_filled_tensor_and_ranges():
    proto = model("(int64[2] s) => (int32[p,q] y) { y = ConstantOfShape<value = int32[1] {7}>(s) }")
    check(proto, [{"s": s} for s in (ints(2, 3), ints(0, 3), ints(5, 1))])
    for dtype, numpy_type in (("float", np.float32), ("double", np.float64), ("int64", np.int64), ("int16", np.int16)):
        proto = model(f"({dtype} a, {dtype} b, {dtype} c) => ({dtype}[n] y) {{ y = Range(a, b, c) }}")
        counts = [(0, 5, 1), (5, 0, -2), (3, 3, 1), (4, 0, 1)] + [(0, 0.6, 0.2), (1, 2, 0.3)] * (numpy_type in (np.float32, np.float64))
        check(proto, [dict(zip("abc", np.array(c, numpy_type), strict=True)) for c in counts])
    refuses(proto, dict(zip("abc", np.array((0, 5, 0), np.int16), strict=True)), "is to count from 0 to 5 by 0")


def test_one_hot_vectors_of_any_depth():
    proto = model("(int64[n] i, int64 d, float[2] v) => (float[n,m] y) { y = OneHot(i, d, v) }")
    values = np.array([0.5, 2], np.float32)
    check(proto, [{"i": ints(0, 2, -1), "d": np.array(d, np.int64), "v": values} for d in (3, 5, 0)])


# --- cutting and padding ---------------------------------------------------------------------------------------------------

SLICE = "(float[a,b,6] x, int64[2] s, int64[2] e, int64[2] i, int64[2] t) => (float[p,q,r] y) {{ r = Relu(x)  y = Slice(r, {}) }}"
FAR = (1 << 63) - 1


def test_slices_between_places_of_the_run():
    cuts = [((0, 1), (2, 3)), ((-2, 0), (FAR, -1)), ((2, 5), (1, 9)), ((-9, -3), (9, -1)), ((0, 0), (0, -FAR))]
    feeds = [{"x": X, "s": ints(*s), "e": ints(*e), "i": ints(0, 2), "t": ints(1, 1)} for s, e in cuts]
    check(model(SLICE.format("s, e")), feeds)
    check(model(SLICE.format("s, e, i")), [*feeds, feeds[0] | {"i": ints(-1, 1)}])


def test_slices_by_steps_of_the_run():
    cuts = [((0, 1), (3, 5), (1, 2)), ((-1, 5), (-FAR, 0), (-1, -2)), ((2, 0), (0, FAR), (-2, 3)), ((0, 4), (0, 4), (5, -1))]
    feeds = [{"x": X, "s": ints(*s), "e": ints(*e), "i": ints(0, 2), "t": ints(*t)} for s, e, t in cuts]
    proto = model(SLICE.format("s, e, i, t"))
    check(proto, [*feeds, feeds[1] | {"i": ints(1, -3)}])
    refuses(proto, feeds[0] | {"t": ints(0, 1)}, "(Slice) is given a step of 0")
    proto = model(SLICE.replace("x, int64", "x, int64", 1).format("s, e, k, t").replace("{ r", "{ k = Constant<value_ints=[2,0]>()  r"))
    check(proto, feeds)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_of_the_run(mode):
    proto = model(f'(float[a,4,b] x, int64[4] p, float v, int64[2] i) => (float[u,v0,w] y) {{ r = Relu(x)  y = Pad<mode="{mode}">(r, p, v, i) }}')
    pads = [((1, 2, 0, 3), (0, 2)), ((0, 0, 0, 0), (1, 2)), ((2, 1, 1, 3), (-1, 1))]
    if mode == "constant":  # the reference cannot cut
        pads.append(((-1, 2, -1, -4), (2, 1)))
    given = [{"x": X, "p": ints(*p), "v": np.float32(1.5), "i": ints(*i)} for p, i in pads]
    if mode == "constant":
        cut = given.pop()
        with sartor.Session(sartor.compile(proto)) as session:
            wanted = np.pad(np.maximum(X, 0), ((0, 0), (2, 0), (0, 0)), constant_values=1.5)[:, :2, 1:-1]
            np.testing.assert_array_equal(session.run(cut)["y"], wanted)
        refuses(proto, cut | {"p": ints(0, -5, 0, 0)}, "off a dimension of 4")
    check(proto, given)


def test_a_pad_with_a_value_of_the_run_and_known_pads():
    proto = model("(int64[a,b] x, int64 v) => (int64[u,w] y) { p = Constant<value_ints=[1,0,0,2]>()  y = Pad(x, p, v) }")
    check(proto, [{"x": ints(*range(6)).reshape(2, 3), "v": np.array(v, np.int64)} for v in (7, -1)])


def test_a_pad_of_a_value_no_float_holds():
    proto = model("(int64[a] x) => (int64[u] y) { p = Constant<value_ints=[1,1]>()  v = Constant<value_int=9007199254740993>()  y = Pad(x, p, v) }")
    with sartor.Session(sartor.compile(proto)) as session:
        np.testing.assert_array_equal(session.run({"x": ints(5)})["y"], ints(9007199254740993, 5, 9007199254740993))


def test_centred_crops_and_pads():
    proto = model("(float[a,b,6] x, int64[2] s) => (float[p,q,6] y) { y = CenterCropPad<axes=[0,1]>(x, s) }")
    check(proto, [{"x": X, "s": s} for s in (ints(2, 3), ints(5, 1), ints(6, 7), ints(3, 4), ints(1, 9))])


def test_pieces_of_the_run():
    proto = model("(float[a,b] x, int64[3] s) => (float[p,b] u, float[q,b] v, float[r,b] w) { u, v, w = Split<axis=0>(x, s) }")
    check(proto, [{"x": X[0], "s": s} for s in (ints(1, 2, 1), ints(4, 0, 0), ints(0, 1, 3))])
    refuses(proto, {"x": X[0], "s": ints(1, 1, 1)}, "(Split) is to cut 4 elements into pieces of [1, 1, 1]")
    refuses(proto, {"x": X[0], "s": ints(5, -1, 0)}, "the size -1")


def test_the_best_k():
    proto = model("(float[a,b] x, int64[1] k) => (float[a,m] v, int64[a,m] i) { v, i = TopK(x, k) }")
    check(proto, [{"x": X[0], "k": ints(k)} for k in (1, 6, 3, 0)])
    refuses(proto, {"x": X[0], "k": ints(7)}, "(TopK) is to take 7 of 6 elements")
    refuses(proto, {"x": X[0], "k": ints(-1)}, "the size -1")


# --- reductions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceLogSumExp", "ReduceL2"])
def test_reductions_along_axes_of_the_run(operator, keep):
    outputs = "float[p,q,r] y" if keep else "float[p] y"
    proto = model(f"(float[a,b,c] x, int64[2] i) => ({outputs}) {{ y = {operator}<keepdims={keep}>(x, i) }}")
    feeds = [{"x": X[:n], "i": i} for n in (3, 1) for i in (ints(0, 1), ints(-1, 0), ints(2, 1))]
    check(proto, [*feeds, {"x": X[:0], "i": ints(1, 2)}])
    refuses(proto, {"x": X, "i": ints(0, 3)}, f"({operator}) is given the axis 3 for 3 dimensions")


def test_a_reduction_along_no_axes():
    for noop in (0, 1):
        proto = model(f"(float[a,b] x, int64[0] i) => (float[p,q] y) {{ y = ReduceSum<noop_with_empty_axes={noop}>(x, i) }}")
        check(proto, [{"x": X[0], "i": ints()}])


# --- resizing --------------------------------------------------------------------------------------------------------------

RESIZE = "(float[a,b,6] x, float[{}] f, int64[{}] s) => (float[p,q,r] y) {{ n = Relu(x)  y = Resize<{}>(n, , {}) }}"
MODES = ['mode="nearest"', 'mode="linear"', 'mode="cubic", exclude_outside=1', 'mode="linear", antialias=1', 'mode="cubic", antialias=1']


@pytest.mark.parametrize("mode", MODES)
def test_resizing_to_sizes_of_the_run(mode):
    feeds = [{"x": X, "s": ints(*s), "f": np.ones(3, np.float32)} for s in ((3, 7, 3), (2, 3, 13), (3, 4, 6), (6, 1, 1))]
    check(model(RESIZE.format(3, 3, mode, ", s")), feeds, tolerance=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_resizing_by_scales_of_the_run(mode):
    options = 'coordinate_transformation_mode="align_corners", axes=[2,1], ' if "cubic" in mode else "axes=[2,1], "
    feeds = [{"x": X, "f": np.array(f, np.float32), "s": ints(1, 1)} for f in ((2, 0.5), (0.6, 1.3), (1, 1), (0.34, 3))]
    proto = model(RESIZE.format(2, 2, options + mode, "f"))
    check(proto, feeds, tolerance=1e-4)
    refuses(proto, feeds[0] | {"f": np.array([0, 1], np.float32)}, "(Resize) is given the scales [0.0, 1.0]")


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resizing_that_keeps_the_aspect_ratio(policy):
    options = f'keep_aspect_ratio_policy="{policy}", axes=[1,2], mode="linear"'
    feeds = [{"x": X, "s": ints(*s), "f": np.ones(2, np.float32)} for s in ((7, 8), (3, 9), (4, 6))]
    check(model(RESIZE.format(2, 2, options, ", s")), feeds, tolerance=1e-4)


CROP = 'mode="linear", coordinate_transformation_mode="tf_crop_and_resize", axes=[1,2], extrapolation_value=9.0'
REGIONS = [(0.4, 0.6, 0.6, 0.8), (0.0, 0.0, 1.0, 1.0), (-0.5, 0.25, 1.5, 0.75)]


def test_sizes_of_a_region_of_the_run():
    proto = model(f"""(float[a,4,6] x, float[4] roi, int64[2] s) => (float[a,t,u] z) {{
        n = Relu(x)  z = Resize<{CROP}>(n, roi, , s) }}""")
    check(proto, [{"x": X, "roi": np.array(r, np.float32), "s": ints(3, 3)} for r in REGIONS], tolerance=1e-4)


@pytest.mark.parametrize("region", REGIONS)
def test_a_scaled_region_of_the_run(region):
    """ONNX's sentence counts the region's own size in, which its reference does not."""
    known = ", ".join(map(str, region))
    bound = model(f"(float[a,4,6] x, float[4] roi, float[2] f) => (float[a,q,r] y) {{ n = Relu(x)  y = Resize<{CROP}>(n, roi, f) }}")
    fixed = model(f"""(float[a,4,6] x) => (float[a,q,r] y) {{ n = Relu(x)
        roi = Constant<value = float[4] {{{known}}}>()  f = Constant<value = float[2] {{4.0, 5.0}}>()  y = Resize<{CROP}>(n, roi, f) }}""")
    feeds = {"x": X, "roi": np.array(region, np.float32), "f": np.array([4, 5], np.float32)}
    with sartor.Session(sartor.compile(bound)) as session, sartor.Session(sartor.compile(fixed)) as other:
        wanted = other.run({"x": X})["y"]
        assert wanted.size
        np.testing.assert_array_equal(session.run(feeds)["y"], wanted)


def test_upsampling_by_scales_of_the_run():
    proto = model('(float[a,b] x, float[2] f) => (float[p,q] y) { y = Upsample<mode="nearest">(x, f) }', 9)
    with sartor.Session(sartor.compile(proto)) as session:
        np.testing.assert_array_equal(session.run({"x": X[0], "f": np.array([2, 3], np.float32)})["y"], X[0].repeat(2, 0).repeat(3, 1))
    refuses(proto, {"x": X[0], "f": np.array([2, 0.5], np.float32)}, "(Upsample) is given the scales [2.0, 0.5]")


def test_blocks_of_the_run_become_an_image():
    proto = model("""(float[n,c,l] x, int64[2] i, int64[2] k) => (float[n,d,p,q] y) {
        r = Neg(x)  y = Col2Im<strides=[2,1], pads=[1,0,1,1], dilations=[1,2]>(r, i, k) }""")
    feeds = []
    for image, block, channels in (((5, 6), (3, 2), 2), ((4, 5), (1, 1), 1), ((3, 9), (2, 3), 3)):
        windows = [(image[0] + 2 - block[0]) // 2 + 1, image[1] + 1 - 2 * (block[1] - 1)]
        shape = (2, channels * block[0] * block[1], windows[0] * windows[1])
        feeds.append({"x": RNG.standard_normal(shape).astype(np.float32), "i": ints(*image), "k": ints(*block)})
    check(proto, feeds)
    refuses(proto, feeds[0] | {"i": ints(9, 6)}, "the network cannot work at the sizes")
    refuses(proto, feeds[0] | {"k": ints(0, 2)}, "the network cannot work at the sizes")


# --- what follows ----------------------------------------------------------------------------------------------------------


def test_sizes_of_the_run_may_turn_out_to_be_one():
    proto = model("""(float[n] x, float[m] u, int64[2] s, int64[2] t, float[3,4] w) => (float[a,b] y, float[c,d] z) {
        p = Reshape(x, s)  q = Reshape(u, t)  y = Add(p, w)  z0 = Mul(q, p)  z = Sub(z0, q) }""")
    shapes = [((3, 4), (3, 1)), ((1, 4), (5, 1)), ((1, 1), (2, 3)), ((3, 1), (1, 1)), ((3, 4), (0, 4)), ((3, 1), (3, 0))]
    feeds = [{"x": np.arange(np.prod(s), dtype=np.float32), "u": np.ones(np.prod(t), np.float32), "s": ints(*s), "t": ints(*t),
              "w": X[:, :, 0]} for s, t in shapes if 0 not in t]  # fmt: skip
    check(proto, feeds)
    refuses(proto, feeds[0] | {"x": feeds[0]["x"][:8], "s": ints(2, 4)}, "would have 2 and 3 elements in one dimension")
    refuses(proto, feeds[0] | {"u": np.ones(8, np.float32), "t": ints(2, 4)}, "the network cannot work at the sizes")


def test_places_of_the_run_are_one_cut_at_the_start():
    proto = model("""(float[a,4,b] x, int64[3] s, int64[1] i, int64[1] e, int64[6] p) => (float[l,m,n] y) {
        r = Exp(x)  h = Relu(r)  c = Slice(h, i, e)  q = Pad(c, p)  y = Reshape(q, s) }""")
    program = sartor.compile(proto, threads=1)
    assert len(program.blueprint.stages) == 4  # the pad waits for the sizes of the slice, the reshape for those of the pad
    proto = model("""(float[a,4] x, int64[2] s, int64[2] t, int64[1] i, int64[1] e) => (float[l,m] y, float[n,o] z, float[c,o2] w) {
        r = Exp(x)  y = Reshape(r, s)  h = Relu(r)  z = Reshape(h, t)  w = Slice(h, i, e) }""")
    program = sartor.compile(proto, threads=1)
    assert [len(stage) for stage in program.blueprint.stages] == [3, len(program.blueprint.stages[1])]
    feeds = [{"x": X[0], "s": ints(*s), "t": ints(*t), "i": ints(i), "e": ints(4)} for s, t, i in (((2, -1), (8, 3), 1), ((6, 4), (-1, 1), 0))]
    check(model("""(float[a,6] x, int64[2] s, int64[2] t, int64[1] i, int64[1] e) => (float[l,m] y, float[n,o] z, float[c,o2] w) {
        r = Sigmoid(x)  y = Reshape(r, s)  h = Relu(r)  z = Reshape(h, t)  w = Slice(h, i, e) }"""), feeds)


def test_sizes_of_the_run_inside_of_a_body():
    proto = model("""(float[a,b] x, int64[2] s, bool c) => (float[p,q] y) {
        r = Relu(x)
        y = If(c) <then_branch = t () => (float[p,q] u) { u = Reshape(r, s) }, else_branch = e () => (float[p,q] v) { v = Neg(r) }> }""")
    check(proto, [{"x": X[0], "s": ints(*s), "c": np.array(c)} for s, c in (((8, 3), True), ((2, -1), True), ((1, 1), False))])


def test_plans_profiles_and_checks_of_such_a_model(tmp_path, capsys):
    import json

    import onnx

    from sartor.cli import main

    proto = model(RESHAPE)
    with sartor.Session(sartor.compile(proto, threads=1)) as session:
        assert [task.host for task in session.plan({"x": (3, 4, 6), "s": (2,)}).tasks] == [False] * 2
        assert set(session.profile({"x": X, "s": ints(8, 9)})) == {task.layer for task in session.plan({"x": (3, 4, 6), "s": (2,)}).tasks}
        with pytest.raises(SartorError, match="the array for the output z has the shape"):
            session.run({"x": X, "s": ints(8, 9)}, out={"z": np.empty((9, 8), np.float32)})
        given = np.empty((8, 9), np.float32)
        assert session.run({"x": X, "s": ints(8, 9)}, out={"z": given})["z"] is given
    onnx.save(proto, tmp_path / "m.onnx")
    assert main.run(["check", str(tmp_path / "m.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["host"] == 0


def test_a_host_step_of_another_rank_than_declared_is_refused():
    proto = model("(float16[n,m] x) => (float16[p,q] y) { h = HardSigmoid(x)  y = Squeeze(h) }", 11)
    refuses(proto, {"x": np.zeros((1, 9), np.float16)}, "cannot work at the sizes n = 1, m = 9", "1 dimensions; expected 2")
