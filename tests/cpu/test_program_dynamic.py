"""Models whose sizes become known only while they run, beside ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import parser

import sartor

onnxruntime = pytest.importorskip("onnxruntime")

FOUND = """<ir_version: 8, opset_import: ["":17]>
g (float[n,4] x) => (float[k,2] y, float z) {
  a = Relu(x)
  nz = NonZero(a)
  t = Transpose<perm=[1,0]>(nz)
  v = GatherND(a, t)
  s = ReduceSum<keepdims=0>(v)
  c = Constant<value_floats=[1.0,1.0]>()
  f = Cast<to=1>(t)
  y = Mul(f, c)
  z = Add(s, s)
}"""

LOOP = """<ir_version: 8, opset_import: ["":17]>
g (float[n,4] x, int64 m) => (float[n,4] y) {
  cond = Constant<value = bool {1}>()
  y = Loop(m, cond, x) <body = b (int64 i, bool c, float[n,4] s) => (bool co, float[n,4] so) {
    co = Identity(c) one = Constant<value_float=1.5>() so = Mul(s, one)
  }>
}"""

CHOSEN = """<ir_version: 8, opset_import: ["":17]>
g (float[n,8] x, int64[1] k) => (float[n,r] v, int64[n,r] i) {
  a = Softmax(x)
  v, i = TopK(a, k)
}"""

RESHAPED = """<ir_version: 8, opset_import: ["":17]>
g (float[n,8] x, int64[2] s) => (float[a,b] y) {
  r = Relu(x)
  q = Reshape(r, s)
  y = Exp(q)
}"""

TWICE = """<ir_version: 8, opset_import: ["":17]>
g (float[n,4] x) => (int64[1,k] w) {
  nz = NonZero(x)
  one = Constant<value_ints=[0]>()
  two = Constant<value_ints=[1]>()
  rows = Gather<axis=0>(nz, one)
  columns = Gather<axis=0>(nz, two)
  sums = Add(rows, columns)
  w0 = NonZero(sums)
  w = Gather<axis=0>(w0, two)
}"""


def x_of(rows, columns):
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    return np.where(np.abs(x) < 0.3, 0, x).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (FOUND, [{"x": x_of(n, 4)} for n in (3, 5, 3)]),
        (LOOP, [{"x": x_of(n, 4), "m": np.array(n)} for n in (3, 5)]),
        (CHOSEN, [{"x": x_of(n, 8), "k": np.array([k])} for n, k in ((3, 2), (5, 8), (3, 2))]),
        (RESHAPED, [{"x": x_of(n, 8), "s": np.array(s)} for n, s in ((3, (4, 6)), (5, (8, -1)))]),
        (TWICE, [{"x": x_of(n, 4)} for n in (2, 6)]),
    ],
    ids=["found", "loop", "chosen", "reshaped", "twice"],
)
def test_sizes_of_the_run(text, feeds, tmp_path):
    model = parser.parse_model(text)
    onnx.checker.check_model(model)
    program = sartor.compile(model, threads=2)
    program.save(tmp_path / "p.sartor")
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for session in (sartor.Session(program), sartor.load(tmp_path / "p.sartor")):
        for each in feeds:
            for found, want in zip(session.run(each).values(), reference.run(None, each), strict=True):
                assert found.dtype == want.dtype
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
