"""Small graphs for the tests of passes: a builder, and random graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sartor.graph.expression import PREDICATES, ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.graph.reference import evaluate_graph
from sartor.graph.verify import verify
from sartor.sizes import Dim, evaluate, symbol
from sartor.types import from_numpy

Array = np.ndarray[Any, Any]


class Build:
    """A graph made layer by layer; every method returns the name of the value it makes."""

    def __init__(self, seed: int = 0) -> None:
        self.graph = Graph((), (), {}, {}, [])
        self.rng = np.random.default_rng(seed)

    def name(self, base: str) -> str:
        return f"{base}{len(self.graph.tensors)}"

    def shape(self, value: str) -> tuple[Dim, ...]:
        return self.graph.tensors[value].shape

    def input(self, *shape: Dim, dtype: str = "f32") -> str:
        name = self.name("in")
        self.graph.tensors[name] = Tensor(dtype, shape)
        self.graph.inputs = (*self.graph.inputs, name)
        return name

    def constant(self, array: Any) -> str:
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = self.name("c")
        self.graph.tensors[name] = Tensor(from_numpy(array.dtype), array.shape)
        self.graph.constants[name] = array
        return name

    def draw(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def layer(self, kind: str, inputs: Sequence[str], shape: Sequence[Dim], dtype: str = "f32", **attributes: Any) -> str:
        name = self.name(kind)
        self.graph.tensors[name] = Tensor(dtype, tuple(shape))
        self.graph.layers.append(Layer(f"layer {name}", kind, tuple(inputs), (name,), attributes, source=(f"node {name}",)))
        return name

    def op(self, op: str, *values: str | float, shape: Sequence[Dim] | None = None) -> str:
        """An element-wise operation on values and numbers."""
        names = list(dict.fromkeys(v for v in values if isinstance(v, str)))
        types = [self.graph.tensors[n].dtype for n in names]
        e = ExpressionBuilder(types)
        dtype = next(t for t in types if t != "bool") if op == "select" else types[0]
        index = [names.index(v) if isinstance(v, str) else e.constant(v, dtype) for v in values]
        expression = e.finish(e(op, *index, dtype="bool" if op in PREDICATES else dtype))
        if shape is None:
            shape = broadcast([self.shape(n) for n in names])
        name = self.layer("elementwise", names, shape, expression.dtype)
        self._set(expression=expression)
        return name

    def copy(self, value: str, shape: Sequence[Dim] | None = None) -> str:
        tensor = self.graph.tensors[value]
        name = self.layer("elementwise", [value], tensor.shape if shape is None else shape, tensor.dtype)
        self._set(expression=identity(tensor.dtype))
        return name

    def _set(self, **changes: Any) -> None:
        self.graph.layers[-1] = replace(self.graph.layers[-1], **changes)

    def transpose(self, value: str, *perm: int) -> str:
        shape = self.shape(value)
        return self.layer("transpose", [value], [shape[p] for p in perm], self.graph.tensors[value].dtype, perm=perm)

    def reshape(self, value: str, *shape: Dim) -> str:
        return self.layer("reshape", [value], shape, self.graph.tensors[value].dtype)

    def convolution(self, value: str, columns: int, kernel: Sequence[int], pad: int = 0, groups: int = 1) -> str:
        """Channels last, stride 1, random weights."""
        shape = self.shape(value)
        weights = self.draw(*kernel, int(str(shape[-1])) // groups, columns)
        space = [d + 2 * pad - k + 1 for d, k in zip(shape[1:-1], kernel, strict=True)]
        rank = len(kernel)
        return self.layer("convolution", [value, weights], (shape[0], *space, columns), strides=(1,) * rank, dilations=(1,) * rank,
                          pads=(pad,) * (2 * rank), groups=groups)

    def convolution_first(self, value: str, columns: int, kernel: int, pad: int = 0) -> str:
        """As a model with channels first has it: between two transposes."""
        return self.transpose(self.convolution(self.transpose(value, 0, 2, 3, 1), columns, (kernel, kernel), pad), 0, 3, 1, 2)

    def matmul(self, a: str, b: str, transpose_a: bool = False, transpose_b: bool = False) -> str:
        left, right = list(self.shape(a)), list(self.shape(b))
        rows = left[-1] if transpose_a else left[-2]
        columns = right[-2] if transpose_b else right[-1]
        batch = broadcast([left[:-2], right[:-2]])
        return self.layer("matmul", [a, b], (*batch, rows, columns), transpose_a=transpose_a, transpose_b=transpose_b)

    def reduce(self, value: str, op: str, *axes: int) -> str:
        shape = [1 if i in axes else d for i, d in enumerate(self.shape(value))]
        return self.layer("reduce", [value], shape, op=op, axes=axes, select_last=False)

    def softmax(self, value: str, axis: int) -> str:
        return self.layer("softmax", [value], self.shape(value), axis=axis, log=False)

    def concat(self, values: Sequence[str], axis: int) -> str:
        shape = list(self.shape(values[0]))
        shape[axis] = sum((self.shape(v)[axis] for v in values[1:]), shape[axis])
        return self.layer("concat", values, shape, axis=axis)

    def slice(self, value: str, axis: int, start: Dim, count: Dim, step: int = 1) -> str:
        shape = list(self.shape(value))
        starts, steps = [0] * len(shape), [1] * len(shape)
        shape[axis], starts[axis], steps[axis] = count, start, step  # type: ignore[call-overload]
        return self.layer("slice", [value], shape, starts=tuple(starts), steps=tuple(steps))

    def finish(self, *outputs: str) -> Graph:
        self.graph.outputs = outputs
        verify(self.graph)
        return self.graph


def broadcast(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for axis in range(rank):
        dims = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
        out.append(next((d for d in dims if d != 1), 1))
    return tuple(out)


def feeds_for(graph: Graph, seed: int = 0, **sizes: int) -> dict[str, Array]:
    """Random inputs; symbols have the sizes given."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        shape = [evaluate(d, sizes) for d in tensor.shape]
        values = rng.standard_normal(shape) if tensor.dtype[0] == "f" else rng.integers(0, 2 if tensor.dtype == "bool" else 5, shape)
        out[name] = np.asarray(values).astype({"f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": bool}[tensor.dtype])
    return out


def rewritten(graph: Graph, run: Callable[[Graph], Graph], tolerance: float = 1e-5, **sizes: int) -> Graph:
    """What a pass makes of the graph; fails unless it is well formed, computes the same, and left the graph it was given alone."""
    layers, tensors, constants = list(graph.layers), dict(graph.tensors), dict(graph.constants)
    after = run(graph)
    verify(after)
    assert graph.layers == layers
    assert graph.tensors == tensors
    assert graph.constants.keys() == constants.keys()
    assert after.inputs == graph.inputs
    assert after.outputs == graph.outputs
    feeds = feeds_for(graph, **sizes)
    expected, found = evaluate_graph(graph, feeds, wide=True), evaluate_graph(after, feeds, wide=True)
    for name in graph.outputs:
        assert found[name].shape == expected[name].shape
        scale = float(np.abs(expected[name]).max()) if expected[name].dtype.kind == "f" and expected[name].size else 1.0
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=tolerance * max(scale, 1e-6))
    return after


def kinds(graph: Graph) -> list[str]:
    """Kinds of the layers, sorted."""
    return sorted(layer.kind for layer in graph.layers)


def only(graph: Graph, kind: str) -> Layer:
    """The one layer of a kind."""
    (layer,) = [layer for layer in graph.layers if layer.kind == kind]
    return layer


def random_graph(seed: int, steps: int = 14, symbolic: bool = False) -> Graph:
    """A random graph on values of four dims, of the kinds that passes move, merge and fuse; with symbols n and h where asked for."""
    b = Build(seed)
    rng = np.random.default_rng(seed)
    n: Dim = symbol("n") if symbolic else 2
    h: Dim = symbol("h") if symbolic else 4
    values = [b.input(n, 3, h, 4), b.input(n, h, 4, 3), b.input(1, 3, 1, 1)]
    for _ in range(steps):
        v = values[int(rng.integers(max(0, len(values) - 4), len(values)))] if rng.random() < 0.7 else values[int(rng.integers(len(values)))]
        values.append(_random_step(b, rng, v, values))
    leaves = [v for v in values if not any(v in layer.reads for layer in b.graph.layers) and v not in b.graph.inputs]
    extra = [v for v in values[3:] if rng.random() < 0.1]
    return b.finish(*dict.fromkeys(leaves + extra))


def _random_step(b: Build, rng: np.random.Generator, v: str, values: list[str]) -> str:
    shape = b.shape(v)
    rank = len(shape)
    axis = int(rng.integers(rank))
    size = shape[axis]
    choice = int(rng.integers(17))
    last = shape[-1]
    if choice == 0:
        return b.op(str(rng.choice(["relu", "sigmoid", "neg", "tanh", "abs"])), v)
    if choice == 1:
        return b.op(str(rng.choice(["add", "mul", "sub", "max"])), v, float(rng.choice([0.0, 1.0, 2.0, -0.5])))
    if choice in (2, 3):
        kept = [d if isinstance(d, int) and rng.random() < 0.5 else 1 for d in shape]
        return b.op(str(rng.choice(["add", "mul", "sub"])), *rng.permutation([v, b.draw(*kept[int(rng.integers(rank)):])]).tolist())
    if choice in (4, 5):
        others = [o for o in values if len(b.shape(o)) == rank and all(x == y or y == 1 for x, y in zip(shape, b.shape(o), strict=True))]
        return b.op(str(rng.choice(["add", "mul", "sub", "min"])), *rng.permutation([v, str(rng.choice(others))]).tolist())
    if choice in (6, 7):
        return b.transpose(v, *map(int, rng.permutation(rank)))
    if choice == 8:
        order = list(shape)
        if rank > 2 and rng.random() < 0.6:
            first = max(axis, 1) - 1
            order[first:first + 2] = [order[first] * order[first + 1]]
        else:
            order.insert(axis, 1)
        return b.reshape(v, *order) if len(order) < 6 else b.op("relu", v)
    if choice == 9 and rank == 4 and isinstance(last, int):
        small = any(not isinstance(d, int) or d < 3 for d in shape[1:3])
        return b.convolution(v, int(rng.integers(1, 6)), (1, 1) if small else (3, 3), pad=0)
    if choice == 10 and rank == 4 and isinstance(shape[1], int):
        return b.convolution_first(v, int(rng.integers(1, 6)), 1)
    if choice == 11 and isinstance(last, int):
        return b.matmul(v, b.draw(last, int(rng.integers(1, 6))))
    if choice == 12:
        return b.reduce(v, str(rng.choice(["sum", "mean", "max"])), axis)
    if choice == 13:
        return b.softmax(v, axis)
    if choice == 14:
        return b.concat([v, v], axis)
    if choice == 15 and isinstance(size, int) and size > 1:
        start = int(rng.integers(size - 1))
        return b.slice(v, axis, start, int(rng.integers(1, size - start + 1)))
    if choice == 16 and size != 1 and rank == 4:
        before = tuple(int(i == axis) for i in range(rank))
        return b.layer("pad", [v], [d + 2 * p for d, p in zip(shape, before, strict=True)], before=before, mode="constant", value=0.0)
    return b.op("relu", v)
