"""Matrix products: MatMul, Gemm, and Einsum of two operands."""

from __future__ import annotations

from sartor.errors import ModelError
from sartor.graph.expression import ExpressionBuilder
from sartor.graph.layer import Tensor
from sartor.ops.context import Call, Context
from sartor.ops.elementwise import Operator


def multiply(context: Context, call: Call) -> None:
    a, b = call.inputs
    left, right = context.shape(a), context.shape(b)
    if not left or not right:
        raise ModelError(f"{call} needs operands of at least one dimension, it has {context.tensor(a)} and {context.tensor(b)}")
    if len(left) == 1:
        a = context.reshape(a, (1, *left), suffix="row")
    if len(right) == 1:
        b = context.reshape(b, (*right, 1), suffix="column")
    *batch_a, rows, inner_a = context.shape(a)
    *batch_b, inner_b, columns = context.shape(b)
    context.same(inner_a, inner_b, "the inner dimension")
    batch = context.broadcast([batch_a, batch_b])
    result = Tensor(context.dtype(a), (*batch, rows, columns))
    flat = len(left) == 1 or len(right) == 1
    made = context.layer("matmul", [a, b], result, output=None if flat else call.outputs[0], transpose_a=False, transpose_b=False)
    if flat:
        shape = (*batch, *([rows] if len(left) > 1 else []), *([columns] if len(right) > 1 else []))
        context.reshape(made, shape, output=call.outputs[0])


def gemm(context: Context, call: Call) -> None:
    a, b = call.inputs[:2]
    transpose_a, transpose_b = bool(call.get("transA", 0)), bool(call.get("transB", 0))
    shapes = [context.shape(a), context.shape(b)]
    if any(len(s) != 2 for s in shapes):
        raise ModelError(f"{call} needs two matrices, it has {context.tensor(a)} and {context.tensor(b)}")
    rows, inner_a = shapes[0][::-1] if transpose_a else shapes[0]
    inner_b, columns = shapes[1][::-1] if transpose_b else shapes[1]
    context.same(inner_a, inner_b, "the inner dimension")
    dtype, alpha, beta = context.dtype(a), call.get("alpha", 1.0), call.get("beta", 1.0)
    number = float if dtype in ("f32", "f64", "f16", "bf16") else int
    bias = call.input(2) if beta != 0 else ""
    e = ExpressionBuilder([dtype, dtype] if bias else [dtype])
    out = 0 if alpha == 1 else e("mul", 0, e.constant(number(alpha), dtype))
    if bias:
        context.broadcast([context.shape(bias), (rows, columns)])
        out = e("add", out, 1 if beta == 1 else e("mul", 1, e.constant(number(beta), dtype)))
    context.layer("matmul", [a, b], Tensor(dtype, (rows, columns)), output=call.outputs[0],
                  expression=e.finish(out) if out else None, extra=(bias,) if bias else (), transpose_a=transpose_a,
                  transpose_b=transpose_b)


def _determinant(context: Context, call: Call) -> None:
    x = call.inputs[0]
    tensor = context.tensor(x)
    if len(tensor.shape) < 2:
        raise ModelError(f"{call} has an input of type {tensor}, which is no matrix")
    context.same(tensor.shape[-2], tensor.shape[-1], "the sides of a matrix")
    context.layer("determinant", [x], Tensor(tensor.dtype, tensor.shape[:-2]), output=call.outputs[0])


OPERATORS: dict[tuple[str, str], Operator] = {("", "Det"): _determinant, ("", "Gemm"): gemm, ("", "MatMul"): multiply}
