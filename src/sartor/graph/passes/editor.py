"""What passes rewrite a graph with: a copy of it that knows who makes and who reads each value.

A pass makes an `Editor` of the graph it is given, changes that, and returns `finish()`; the graph it was given stays as it was.
Layers may be added anywhere: `finish` sorts them by what they need, keeps the given order where it can, and drops values and
constants that nothing names any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sartor.errors import GraphError
from sartor.graph.expression import Expression, identity
from sartor.graph.layer import Graph, Layer, Tensor, layer_symbols
from sartor.sizes import Dim
from sartor.types import from_numpy

Array: TypeAlias = np.ndarray[Any, Any]


class Editor:
    """A graph being rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = dict(graph.tensors)
        self.constants = dict(graph.constants)
        self.outputs = graph.outputs
        self._layers: dict[str, Layer] = {}
        self._position: dict[str, int] = {}
        self._producer: dict[str, str] = {}
        self._readers: dict[str, dict[str, None]] = {}
        self._counter = 0
        for index, layer in enumerate(graph.layers):
            self._insert(layer, index)

    # --- looking -----------------------------------------------------------------------------------------------------------

    def layers(self, *kinds: str) -> list[Layer]:
        """The layers there are now, of the given kinds (of all kinds where none is given), in order."""
        chosen = [layer for layer in self._layers.values() if not kinds or layer.kind in kinds]
        return sorted(chosen, key=lambda layer: self._position[layer.name])

    def each(self, *kinds: str) -> Iterator[Layer]:
        """The layers of the given kinds in order, each as it is when its turn comes; removed and new ones are passed over."""
        for layer in self.layers(*kinds):
            if layer.name in self._layers:
                yield self._layers[layer.name]

    def named(self, name: str) -> Layer | None:
        """The layer of a name; None where there is none."""
        return self._layers.get(name)

    def refreshed(self, layer: Layer) -> Layer | None:
        """The layer of this name as it is now; None where it was removed."""
        return self._layers.get(layer.name)

    def position(self, layer: Layer) -> int:
        return self._position[layer.name]

    def producer(self, value: str) -> Layer | None:
        """The layer that makes a value; None for inputs and constants."""
        name = self._producer.get(value)
        return None if name is None else self._layers[name]

    def readers(self, value: str) -> list[Layer]:
        """The layers that read a value, each once."""
        return [self._layers[name] for name in self._readers.get(value, ())]

    def sole_reader(self, value: str) -> Layer | None:
        """The only layer that reads a value which is no output of the graph; None where there is no such layer."""
        readers = self._readers.get(value, {})
        return self._layers[next(iter(readers))] if len(readers) == 1 and value not in self.outputs else None

    def shape(self, value: str) -> tuple[Dim, ...]:
        return self.tensors[value].shape

    def same_shape(self, a: str, b: str) -> bool:
        """Whether two values have one shape: by its form, or because binding refuses sizes for which it is not (`conditions`)."""
        left, right = self.shape(a), self.shape(b)
        return len(left) == len(right) and all(x == y or self._equal(x, y) for x, y in zip(left, right, strict=True))

    def _equal(self, a: Dim, b: Dim) -> bool:
        known, grown = {a}, True
        while grown and b not in known:
            more = {y for pair in self.graph.conditions for x, y in (pair, pair[::-1]) if x in known}
            grown = not more <= known
            known |= more
        return b in known

    def constant(self, value: str) -> Array | None:
        return self.constants.get(value)

    # --- changing ----------------------------------------------------------------------------------------------------------

    def _insert(self, layer: Layer, position: int) -> None:
        if layer.name in self._layers:
            raise GraphError(f"two layers are named {layer.name}")
        self._layers[layer.name] = layer
        self._position[layer.name] = position
        for value in layer.outputs:
            if value:
                self._producer[value] = layer.name
        for value in layer.reads:
            self._readers.setdefault(value, {})[layer.name] = None

    def remove(self, layer: Layer) -> None:
        """Takes a layer out; its outputs are then made by nothing."""
        layer = self._layers.pop(layer.name)
        for value in layer.outputs:
            if self._producer.get(value) == layer.name:
                del self._producer[value]
        for value in layer.reads:
            self._readers.get(value, {}).pop(layer.name, None)

    def update(self, layer: Layer, **changes: Any) -> Layer:
        """Changes some fields of a layer, in the same place, and returns the new layer."""
        position, new = self._position[layer.name], replace(self._layers[layer.name], **changes)
        self.remove(layer)
        self._insert(new, position)
        return new

    def unique(self, base: str) -> str:
        """A name, made from `base`, that no value and no layer has."""
        base = base.split("~", maxsplit=1)[0]
        while True:
            self._counter += 1
            name = f"{base}~{self._counter}"
            if name not in self.tensors and name not in self._layers:
                return name

    def value(self, tensor: Tensor, base: str) -> str:
        """A new value's name."""
        name = self.unique(base)
        self.tensors[name] = tensor
        return name

    def add_constant(self, array: Array, base: str) -> str:
        """A new constant's name."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        name = self.value(Tensor(from_numpy(array.dtype), array.shape), base)
        self.constants[name] = array
        return name

    def emit(self, kind: str, inputs: Sequence[str], tensor: Tensor, near: Layer, *, output: str | None = None,
             expression: Expression | None = None, extra: Sequence[str] = (), source: Sequence[str] | None = None,
             attributes: Mapping[str, Any] | None = None) -> str:
        """Adds a layer with one output at the place of `near`, which may have been removed, and returns the output's name."""
        if output is None:
            output = self.value(tensor, near.outputs[0])
        else:
            self.tensors[output] = tensor
        layer = Layer(self.unique(near.name), kind, tuple(inputs), (output,), dict(attributes or {}), expression, tuple(extra),
                      tuple(near.source if source is None else source))
        self._insert(layer, self._position[near.name])
        return output

    def transpose(self, value: str, perm: Sequence[int], near: Layer) -> str:
        """The value with its dims permuted: itself for the identity, a new constant for a constant, else a new layer's output."""
        if tuple(perm) == tuple(range(len(perm))):
            return value
        if (array := self.constant(value)) is not None:
            return self.add_constant(np.transpose(array, perm), value)
        tensor = self.tensors[value]
        result = Tensor(tensor.dtype, tuple(tensor.shape[p] for p in perm))
        for reader in self.readers(value):
            if reader.kind == "transpose" and tuple(reader.attributes["perm"]) == tuple(perm):
                return reader.outputs[0]
        return self.emit("transpose", [value], result, near, attributes={"perm": tuple(perm)})

    def reshape(self, value: str, shape: Sequence[Dim], near: Layer) -> str:
        """The value in another shape: itself where it has that shape, a new constant for a constant, else a new layer's output."""
        tensor = self.tensors[value]
        if tensor.shape == tuple(shape):
            return value
        if (array := self.constant(value)) is not None and all(isinstance(d, int) for d in shape):
            return self.add_constant(array.reshape([int(d) for d in shape if isinstance(d, int)]), value)
        for reader in self.readers(value):
            if reader.kind == "reshape" and self.tensors[reader.outputs[0]].shape == tuple(shape):
                return reader.outputs[0]
        return self.emit("reshape", [value], Tensor(tensor.dtype, tuple(shape)), near)

    def redirect(self, old: str, new: str) -> str:
        """Lets everything that reads `old`, whose maker must have been removed, read `new`; returns the name it then reads.

        Where `old` is an output of the graph, the name goes over to what makes `new`, or to a copy of it.
        """
        self._rename_reads(old, new)
        if old not in self.outputs:
            return new
        maker = self.producer(new)
        if maker is not None and new not in self.outputs and self.tensors[new] == self.tensors[old]:
            self.update(maker, outputs=_renamed(maker.outputs, new, old))
            self._rename_reads(new, old)
            return old
        copy = Layer(self.unique(old), "elementwise", (new,), (old,), {}, identity(self.tensors[old].dtype))
        self._insert(copy, 0 if maker is None else self._position[maker.name])
        return new

    def _rename_reads(self, old: str, new: str) -> None:
        for reader in self.readers(old):
            self.update(reader, inputs=_renamed(reader.inputs, old, new), extra=_renamed(reader.extra, old, new))

    def replace_value(self, layer: Layer, new: str) -> str:
        """Removes a layer of one output, whose readers then read `new`; returns the name they read in the end."""
        output = layer.outputs[0]
        self.remove(layer)
        return self.redirect(output, new)

    # --- the end -----------------------------------------------------------------------------------------------------------

    def finish(self) -> Graph:
        """The rewritten graph."""
        layers = self._sorted()
        named = {*self.graph.inputs, *self.outputs, *(v for layer in layers for v in (*layer.reads, *layer.outputs))}
        return replace(self.graph, layers=layers, tensors={n: t for n, t in self.tensors.items() if n in named},
                       constants={n: a for n, a in self.constants.items() if n in named})

    def _sorted(self) -> list[Layer]:
        order = {name: index for index, name in enumerate(self._layers)}
        waiting = {name: {m for v in layer.reads if (m := self._producer.get(v)) is not None} for name, layer in self._layers.items()}
        definer = {entry[0]: name for name, layer in self._layers.items() for entry in layer.attributes.get("defines", ())}
        for name, layer in self._layers.items() if definer else ():
            waiting[name] |= {definer[s] for s in layer_symbols(self.tensors, layer) if s in definer} - {name}
        after: dict[str, list[str]] = {}
        for name, makers in waiting.items():
            for maker in makers:
                after.setdefault(maker, []).append(name)
        ready = [(self._position[name], order[name], name) for name, makers in waiting.items() if not makers]
        heapq.heapify(ready)
        out: list[Layer] = []
        while ready:
            _, _, name = heapq.heappop(ready)
            out.append(self._layers[name])
            for reader in after.get(name, ()):
                waiting[reader].discard(name)
                if not waiting[reader]:
                    heapq.heappush(ready, (self._position[reader], order[reader], reader))
        if len(out) != len(self._layers):
            raise GraphError(f"a pass has made a cycle through layer {next(n for n, makers in waiting.items() if makers)}")
        return out


def _renamed(values: Iterable[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if v == old else v for v in values)


def merged_source(*layers: Layer) -> tuple[str, ...]:
    """The model's nodes that several layers came from, each once."""
    return tuple(dict.fromkeys(name for layer in layers for name in layer.source))
