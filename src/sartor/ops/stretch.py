"""Which sizes of 1 may be fed where the network, broadcasting, takes two sizes to be equal.

Where the sizes of two values that are broadcast have different names, a lowered graph takes them to be one size, and its kernels are
those of equal sizes.  ONNX also allows one of them to be 1.  Then the input with the 1 is repeated to the other size before the run
(`Binder.fitted`), which gives the same results, if all that comes of the repetition is broadcast where it counts.

So the dims of each value that are repeated together with an input's dim are followed through the graph: each has a set of symbols, and
really is as large as the graph takes it to be where one of them was fed so.  Layers that compute each place along a dim alike hand the
sets on, and join those of operands; whatever else reads a value wants its dims as they are.  Those wants (`wants`) are what a program
keeps: inputs may be repeated along some symbols if no want lies wholly within them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from sartor.graph.layer import Graph, Layer, layer_symbols
from sartor.sizes import Dim, Size, product, symbol, symbols

Set: TypeAlias = frozenset[str]
Sets: TypeAlias = tuple[Set, ...]
"""For each dim of a value the symbols it is repeated with; none where it is 1 or surely has its size."""

NONE: Set = frozenset()


def wants(graph: Graph, told: Iterable[str]) -> tuple[Set, ...] | None:
    """The sets of symbols of which one must have been fed in full size; None where there is nothing to repeat.

    `told` are the symbols whose sizes the network knows by their numbers, not only as sizes of values.
    """
    own = {name for v in graph.inputs for d in graph.tensors[v].shape for name in symbols(d) if d == symbol(name)}
    loose = {name for pair in graph.conditions for d in pair for name in symbols(d) if d == symbol(name)} & own
    if not loose:
        return None
    walk = _Walk(graph, loose)
    walk.want([frozenset({name}) for name in told])
    for layer in graph.layers:
        walk.step(layer)
    walk.want(s for v in graph.outputs for s in walk.sets(v))
    least = {s for s in walk.wanted if not any(other < s for other in walk.wanted)}
    if all(frozenset({name}) in least for name in loose):
        return None
    return tuple(sorted(least, key=sorted))


class _Walk:
    def __init__(self, graph: Graph, loose: set[str]) -> None:
        self.graph, self.loose = graph, loose
        self.wanted: set[Set] = set()
        self._sets: dict[str, Sets] = {}
        for v in graph.inputs:
            names = [symbols(d) for d in graph.tensors[v].shape]
            self._sets[v] = tuple(frozenset(n) if len(n) == 1 and d == symbol(*n) else NONE
                                  for n, d in zip(names, graph.tensors[v].shape, strict=True))  # fmt: skip
            self.want(frozenset({name}) for n, s in zip(names, self._sets[v], strict=True) if not s for name in n)

    def sets(self, value: str) -> Sets:
        return self._sets.get(value) or (NONE,) * len(self.graph.tensors[value].shape)

    def want(self, sets: Iterable[Set]) -> None:
        """Only sets of symbols that could all be repeated say anything."""
        self.wanted |= {s for s in sets if s and s <= self.loose}

    def step(self, layer: Layer) -> None:
        """Gives the layer's outputs their sets, and notes what it wants."""
        shapes = {v: self.graph.tensors[v].shape for v in (*layer.reads, *filter(None, layer.outputs))}
        if layer.kind == "elementwise":
            out, = layer.outputs
            self._sets[out] = self.joined(shapes[out], layer.inputs)
            return
        passed = _passed(layer, self.graph)
        for v in dict.fromkeys(layer.inputs):
            if v:
                self.want(s for axis, s in enumerate(self.sets(v)) if axis not in passed.get(v, {}))
        there = {name for v in layer.reads for d in shapes[v] for name in symbols(d)}
        self.want(frozenset({name}) for name in layer_symbols(self.graph.tensors, layer) - there)
        for v in filter(None, layer.outputs):
            found: list[Set] = []
            for place, dim in enumerate(shapes[v]):
                raw = [self._at(r, axis) for r, places in passed.items() for axis, to in places.items() if to == place]
                more = [self._at(e, axis) for e in layer.extra if (axis := place - len(shapes[v]) + len(shapes[e])) >= 0]
                found.append(_join(raw + more, dim) if raw else NONE)
            self._sets[v] = tuple(found)

    def _at(self, value: str, axis: int) -> tuple[Set, Dim]:
        return self.sets(value)[axis], self.graph.tensors[value].shape[axis]

    def joined(self, shape: Sequence[Dim], operands: Sequence[str]) -> Sets:
        """What values that are broadcast to `shape` give it; a size that comes of none of them is wanted itself."""
        found: list[Set] = []
        for place, dim in enumerate(shape):
            axes = [(v, place - len(shape) + len(self.sets(v))) for v in operands]
            here = [self._at(v, axis) for v, axis in axes if axis >= 0]
            if all(d == 1 for _, d in here) and isinstance(dim, Size):
                self.want(frozenset({name}) for name in symbols(dim))
            found.append(_join(here, dim))
        return tuple(found)


def _join(operands: Sequence[tuple[Set, Dim]], dim: Dim) -> Set:
    """The set of a dim that operands with these sets and sizes have in common."""
    if isinstance(dim, int) or any(not s and d != 1 for s, d in operands):
        return NONE
    return frozenset().union(*(s for s, _ in operands))


def _passed(layer: Layer, graph: Graph) -> dict[str, dict[int, int]]:
    """For each value a layer reads the dims along which it computes each place alike, and the output's dims they become.

    A value that is read twice is wanted as it is, unless both times it is read alike.
    """
    shapes = [graph.tensors[v].shape if v else () for v in layer.inputs]
    out = graph.tensors[layer.outputs[0]].shape if layer.outputs and layer.outputs[0] else ()
    if len(set(layer.inputs)) != len(layer.inputs) or not shapes:
        return {}
    first = layer.inputs[0]
    if layer.kind == "transpose":
        return {first: {axis: place for place, axis in enumerate(layer.attributes["perm"])}}
    if layer.kind == "reshape":
        return {first: _kept(shapes[0], out)}
    if layer.kind in ("reduce", "normalize", "softmax"):
        axes = layer.attributes["axes"] if "axes" in layer.attributes else (layer.attributes["axis"],)
        rank = len(shapes[0])
        return {first: {i: i for i in range(rank) if i not in [axis % rank for axis in axes]}}
    if layer.kind == "gather":
        axis = layer.attributes["axis"]
        return {layer.inputs[1]: {i: axis + i for i in range(len(shapes[1]))}}
    if layer.kind == "slice":
        whole = zip(shapes[0], out, layer.attributes["starts"], layer.attributes["steps"], strict=True)
        return {first: {i: i for i, (d, to, start, step) in enumerate(whole) if d == to and start == 0 and step == 1}}
    if layer.kind == "matmul":
        left, right = (len(s) for s in shapes)
        row = left - (1 if layer.attributes["transpose_a"] else 2)
        column = right - (2 if layer.attributes["transpose_b"] else 1)
        return {first: {i: i - left + len(out) for i in range(left - 2)} | {row: len(out) - 2},
                layer.inputs[1]: {i: i - right + len(out) for i in range(right - 2)} | {column: len(out) - 1}}
    if layer.kind == "attention" and len(layer.inputs) == 4 and layer.inputs[3]:
        (batch, steps, heads, _), seen = shapes[0], shapes[1][1]  # these are wanted: where they are not 1, they settle a mask's size
        scores = (batch, heads, steps, seen)[4 - len(shapes[3]):]
        return {layer.inputs[3]: {i: -1 for i, d in enumerate(scores) if d != 1}}
    return {}


def _kept(before: Sequence[Dim], after: Sequence[Dim]) -> dict[int, int]:
    """The dims that a reshape leaves as they are, with as many elements before and behind them."""
    ends = {(product(after[:i]), d, product(after[i + 1:])): i for i, d in enumerate(after) if d != 1}
    found = {i: ends.get((product(before[:i]), d, product(before[i + 1:]))) for i, d in enumerate(before) if d != 1}
    return {i: place for i, place in found.items() if place is not None}
