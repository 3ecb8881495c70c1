"""Which values need no memory of their own: views, pieces of a concatenation, results computed in place, the caller's arrays.

Every value has a `Place`: a root, an offset and a pitch.  Row r (all dimensions but the last, flattened) and column c of the
value are element `offset + r * pitch + c` of the root.  A root is a buffer of the arena, an array of the caller or a constant.

Values that share a root form a tree of links: a slice lies inside its input, an input of a concatenation inside its result,
a reshaped value on the original.  Each link is made only where the whole tree still gives every layer what its kernel can
take (`Traits`): some need an operand dense.  What cannot be linked stays a layer that copies, or gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sartor.graph.expression import identity
from sartor.graph.layer import Graph, Layer, Tensor, layer_symbols
from sartor.sizes import Dim, product

RootKind: TypeAlias = Literal["arena", "input", "output", "constant"]


@dataclass(frozen=True)
class Place:
    """Where a value lies in its root; offset and pitch in elements."""

    root: str
    offset: Dim
    pitch: Dim


@dataclass(frozen=True)
class Traits:
    """What the implementation chosen for a layer asks of its operands: those that must be dense, and the inputs its output may
    overwrite.  A host step (`native` false) reads and writes any place."""

    dense: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    native: bool = True


@dataclass(frozen=True)
class Storage:
    """The outcome.

    Attributes
    ----------
    layers
        Those that compute or copy something, in order.
    tensors
        Types of all values, copies included.
    places
        Of every value.
    roots
        Of each root, its kind and its number among the inputs or outputs (0 for others).
    outputs
        The values that hold the model's outputs, in order.
    stages
        For each layer, how many layers before it define sizes that are known only once they have run.
    known
        For each value, the stage from which on its size is known.
    """

    layers: tuple[Layer, ...]
    tensors: Mapping[str, Tensor]
    places: Mapping[str, Place]
    roots: Mapping[str, tuple[RootKind, int]]
    outputs: tuple[str, ...]
    stages: tuple[int, ...]
    known: Mapping[str, int]


@dataclass(frozen=True)
class _Link:
    """A value lies in `parent` from this row and column on; `flat`: in rows of its own length, so `parent` must be dense."""

    parent: str
    row: Dim = 0
    column: Dim = 0
    flat: bool = False


def plan_storage(graph: Graph, traits: Callable[[Layer, Mapping[str, Tensor]], Traits]) -> Storage:
    """Decides where each value of `graph` lies.

    Parameters
    ----------
    graph
        Layers in order; not changed.
    traits
        What the implementation of a layer asks for, given the types of the graph's values and of the copies made here.  It is
        asked for the graph's layers and for the copies.
    """
    planner = _Planner(graph, traits)
    planner.link_views()
    planner.link_concats()
    planner.claim_outputs()
    planner.link_in_place()
    return planner.finish()


class _Planner:
    def __init__(self, graph: Graph, traits: Callable[[Layer, Mapping[str, Tensor]], Traits]) -> None:
        self.graph = graph
        self.tensors = dict(graph.tensors)
        self.layers = list(graph.layers)
        self._ask = traits
        self._traits: dict[str, Traits] = {}
        self.links: dict[str, _Link] = {}
        self.children: dict[str, list[str]] = {}
        self.copies_before: dict[str, list[Layer]] = {}  # name of a layer -> layers to put before it
        self.copies_after: dict[str, list[Layer]] = {}
        self.gone: set[str] = set()  # names of layers that became views
        self.fixed: dict[str, tuple[RootKind, int]] = dict.fromkeys(graph.constants, ("constant", 0))
        self.fixed |= {name: ("input", i) for i, name in enumerate(graph.inputs)}
        self.outputs = list(graph.outputs)
        self.producer = {v: layer for layer in graph.layers for v in layer.outputs if v}
        self.users: dict[str, list[Layer]] = {}
        for layer in graph.layers:
            self._add_user(layer)
        self.stage = dict.fromkeys((*graph.inputs, *graph.constants), 0)
        stage = 0
        known: set[str] = set()  # sizes that the bind layers just before make known
        self.ending: dict[str, int] = {}  # of layers that make sizes known: the stage they end
        for layer in graph.layers:
            symbols = {entry[0] for entry in layer.attributes.get("defines", ())}
            if layer.kind == "bind" and known and not known & layer_symbols(graph.tensors, layer):
                self.ending[layer.name] = stage - 1  # the same cut as that of the layer before
                known |= symbols
            elif symbols:
                self.ending[layer.name] = stage
                known = symbols if layer.kind == "bind" else set()
                stage += 1
            else:
                known = set()
            self.stage |= dict.fromkeys(layer.outputs, stage)

    def _add_user(self, layer: Layer) -> None:
        for value in {*layer.reads, *layer.outputs}:
            if value:
                self.users.setdefault(value, []).append(layer)

    # --- questions ---

    def traits(self, layer: Layer) -> Traits:
        if layer.name not in self._traits:
            self._traits[layer.name] = self._ask(layer, self.tensors)
        return self._traits[layer.name]

    def needs_dense(self, value: str) -> bool:
        """Whether a layer that stays takes the value only dense."""
        return any(value in self.traits(layer).dense for layer in self.users.get(value, ()) if layer.name not in self.gone)

    def top(self, value: str) -> str:
        """The value whose storage this one lies in."""
        while value in self.links:
            value = self.links[value].parent
        return value

    def tree(self, top: str) -> Iterator[tuple[str, Place]]:
        """All values stored in `top`, with their places, parents first."""
        return self.below(top, Place(top, 0, self.tensors[top].columns))

    def below(self, value: str, place: Place) -> Iterator[tuple[str, Place]]:
        """A value that lies at `place` and all values stored in it, parents first."""
        stack = [(value, place)]
        while stack:
            value, place = stack.pop()
            yield value, place
            for child in self.children.get(value, ()):
                stack.append((child, self._inside(place, child, self.links[child])))

    def _inside(self, parent: Place, child: str, link: _Link) -> Place:
        tensor = self.tensors[child]
        pitch = tensor.columns if link.flat or tensor.rows == 1 else parent.pitch
        return Place(parent.root, parent.offset + link.row * parent.pitch + link.column, pitch)

    def place(self, value: str) -> Place:
        chain = [value]
        while chain[-1] in self.links:
            chain.append(self.links[chain[-1]].parent)
        place = Place(chain[-1], 0, self.tensors[chain[-1]].columns)
        for child in reversed(chain[:-1]):
            place = self._inside(place, child, self.links[child])
        return place

    def is_dense(self, value: str, place: Place) -> bool:
        return place.pitch == self.tensors[value].columns

    def covers(self, value: str, top: str) -> bool:
        """Whether the value is all of `top`, in order and dense."""
        place = self.place(value)
        same_size = self.tensors[value].elements == self.tensors[top].elements
        return place.offset == 0 and self.is_dense(value, place) and same_size

    # --- links ---

    def try_link(self, value: str, link: _Link) -> bool:
        """Makes a link if the parent, and everything stored in the value, can then be used as its layers ask."""
        self.links[value] = link
        self.children.setdefault(link.parent, []).append(value)
        parent = self.place(link.parent)
        fits = self.is_dense(link.parent, parent) or not (link.flat or self.needs_dense(link.parent))
        for member, place in self.below(value, self._inside(parent, value, link)) if fits else ():
            if self.is_dense(member, place):
                continue
            if self.needs_dense(member) or any(self.links[c].flat for c in self.children.get(member, ())):
                fits = False
                break
        if not fits:
            self.unlink(value)
        return fits

    def unlink(self, value: str) -> None:
        self.children[self.links.pop(value).parent].remove(value)

    def link_views(self) -> None:
        """Reshapes, and slices of consecutive elements or columns."""
        for layer in self.layers:
            if layer.kind not in ("reshape", "slice", "transpose") or self._computes(layer):
                continue
            source, result = layer.inputs[0], layer.outputs[0]
            if "string" in (self.tensors[source].dtype, self.tensors[result].dtype):
                continue
            link = self._slice_link(layer) if layer.kind == "slice" else self._reshape_link(layer)
            if link is not None:
                self.gone.add(layer.name)
                if self.try_link(result, link):
                    continue
                if layer.kind == "reshape":
                    self._reshape_a_copy(layer)
                else:
                    self.gone.discard(layer.name)

    def _computes(self, layer: Layer) -> bool:
        return layer.expression is not None and not layer.expression.is_identity

    def _reshape_link(self, layer: Layer) -> _Link | None:
        source, result = layer.inputs[0], layer.outputs[0]
        if layer.kind == "transpose":
            shape = self.tensors[source].shape
            kept = [axis for axis in layer.attributes["perm"] if shape[axis] != 1]
            if kept != sorted(kept):
                return None
        same = self.tensors[source].columns == self.tensors[result].columns
        return _Link(source, flat=not same)

    def _reshape_a_copy(self, layer: Layer) -> None:
        """A reshape of what does not lie dense: it is copied first, and the result is a view of the copy."""
        source, result = layer.inputs[0], layer.outputs[0]
        copy = self._copy(source, f"{layer.name}/{source}", self.stage[result])
        self.copies_before.setdefault(layer.name, []).append(copy)
        self.try_link(result, _Link(copy.outputs[0], flat=True))

    def _slice_link(self, layer: Layer) -> _Link | None:
        source, result = self.tensors[layer.inputs[0]], self.tensors[layer.outputs[0]]
        starts, steps = layer.attributes["starts"], layer.attributes["steps"]
        if not result.shape or any(step != 1 and size != 1 for step, size in zip(steps, result.shape, strict=True)):
            return None
        row: Dim = 0
        inside = False  # whether a dimension before has more than one element: then all of the next must be there
        for axis, size in enumerate(result.shape[:-1]):
            if inside and size != source.shape[axis]:
                return None
            inside = inside or size != 1
            row = row + starts[axis] * product(source.shape[axis + 1 : -1])
        return _Link(layer.inputs[0], row, starts[-1])

    def link_concats(self) -> None:
        """Concatenations whose inputs can be written where they belong, last ones first: they hold those before them."""
        for layer in reversed(self.graph.layers):
            if layer.kind == "concat" and not self._computes(layer) and self.tensors[layer.outputs[0]].dtype != "string":
                self._link_concat(layer)

    def _pieces(self, layer: Layer) -> list[tuple[str, _Link]] | None:
        """Where each input would lie in the result; None when not in rows and columns."""
        result, axis = layer.outputs[0], layer.attributes["axis"]
        shape = self.tensors[result].shape
        axis %= len(shape)
        last = axis == len(shape) - 1
        if not last and any(d != 1 for d in shape[:axis]):
            return None
        pieces: list[tuple[str, _Link]] = []
        at: Dim = 0
        for value in layer.inputs:
            pieces.append((value, _Link(result, 0, at) if last else _Link(result, at)))
            tensor = self.tensors[value]
            at = at + (tensor.columns if last else tensor.rows)
        return pieces

    def _link_concat(self, layer: Layer) -> None:
        pieces = self._pieces(layer)
        if pieces is None:
            return
        self.gone.add(layer.name)
        if (joined := self._joined(layer, pieces)) is not None and self.try_link(layer.outputs[0], joined):
            return
        linked: list[str] = []
        copies: list[tuple[Layer, _Link]] = []
        for value, link in pieces:
            if (moved := self._link_piece(value, link)) is not None:
                linked.append(moved)
            else:
                copies.append((self._copy(value, f"{layer.name}/{value}", self.stage[layer.outputs[0]]), link))
        if linked and all(self.try_link(copy.outputs[0], link) for copy, link in copies):
            self.copies_before[layer.name] = [copy for copy, _ in copies]
            return
        for value in (*linked, *(copy.outputs[0] for copy, _ in copies)):
            if value in self.links:
                self.unlink(value)
        for copy, _ in copies:
            self._drop(copy)
        self.gone.discard(layer.name)

    def _joined(self, layer: Layer, pieces: Sequence[tuple[str, _Link]]) -> _Link | None:
        """A link for the result where all pieces lie side by side in one value already, as it will look like."""
        chains = [dict(self._ancestors(value)) for value, _ in pieces]
        for parent, start in chains[0].items():
            if self.stage[parent] != self.stage[layer.outputs[0]] and parent not in self.fixed:
                continue
            if all(
                (at := chain.get(parent)) is not None
                and at.row - start.row == link.row
                and at.column - start.column == link.column
                for chain, (_, link) in zip(chains, pieces, strict=True)
            ):
                return start
        return None

    def _ancestors(self, value: str) -> Iterator[tuple[str, _Link]]:
        """The values that this one is a block of rows and columns of, each with the link that would say so."""
        row: Dim = 0
        column: Dim = 0
        while value in self.links and not self.links[value].flat:
            link = self.links[value]
            row, column, value = row + link.row, column + link.column, link.parent
            yield value, _Link(value, row, column)

    def _link_piece(self, value: str, link: _Link) -> str | None:
        """Puts an input of a concatenation where it belongs, by moving the whole of what it lies in; returns what was moved."""
        top = self.top(value)
        if top in self.fixed or top == self.top(link.parent) or not self.covers(value, top):
            return None
        if self.stage[top] != self.stage[link.parent]:
            return None  # the size of the result may not be known yet when this input is made
        if self.tensors[top].columns != self.tensors[value].columns:
            # Rows of another length must lie one after another: whole rows of the result, or a part of its only one.
            if self.tensors[value].columns != self.tensors[link.parent].columns and self.tensors[link.parent].rows != 1:
                return None
            link = replace(link, flat=True)
        return top if self.try_link(top, link) else None

    # --- copies ---

    def _copy(self, value: str, name: str, stage: int) -> Layer:
        """A new layer of that stage that copies `value`; its output is called `name`."""
        while name in self.tensors:
            name += "'"
        self.tensors[name] = self.tensors[value]
        self.stage[name] = stage
        source = self.producer[value].source if value in self.producer else ()
        layer = Layer(f"copy {name}", "elementwise", (value,), (name,), {}, identity(self.tensors[value].dtype), (), source)
        self._add_user(layer)
        return layer

    def _drop(self, copy: Layer) -> None:
        self.users[copy.inputs[0]].remove(copy)
        del self.tensors[copy.outputs[0]], self.users[copy.outputs[0]]

    def claim_outputs(self) -> None:
        """Outputs are made in the caller's arrays where they are whole, dense values of their own; the others are copied.

        What is made in an earlier stage is copied too: the caller's array is there only once the output's size is known.
        """
        for index, name in enumerate(self.outputs):
            top = self.top(name)
            if top in self.fixed or self.stage[top] != self.stage[name] or not self.covers(name, top):
                copy = self._copy(name, f"{name}/output", self.stage[name])
                top = self.outputs[index] = copy.outputs[0]
                maker = self.producer[name].name if name in self.producer else ""
                self.copies_after.setdefault(maker, []).append(copy)
            self.fixed[top] = ("output", index)

    # --- in place ---

    def link_in_place(self) -> None:
        """Results over inputs that nobody reads any more."""
        layers = self._final_layers()
        made = {v: i for i, layer in enumerate(layers) for v in layer.outputs if v}
        read = {v: i for i, layer in enumerate(layers) for v in layer.reads}
        needed = {v: max(read.get(v, -1), made.get(v, -1) + 1) for v in (*made, *read)}  # from which layer on it may be overwritten
        last: dict[str, int] = {}  # of a top, the latest of those of all that is stored in it
        for index, layer in enumerate(layers):
            result = layer.outputs[0] if layer.outputs else ""
            if not result or result in self.links or result in self.fixed:
                continue
            for source in layer.reads:
                if source not in self.traits(layer).in_place:
                    continue
                top = self.top(source)
                if top not in last:
                    last[top] = max(needed.get(member, -1) for member, _ in self.tree(top))
                if last[top] <= index and self._may_overwrite(layer, source, top):
                    # The source is all of its top, so that the result may lie in that: chains of results stay shallow.
                    if self.try_link(result, _Link(top, flat=self.tensors[top].columns != self.tensors[result].columns)):
                        last[top] = max(last[top], *(needed.get(member, -1) for member in self._stored_in(result)))
                        break

    def _stored_in(self, value: str) -> list[str]:
        return [member for member, _ in self.below(value, self.place(value))]

    def _may_overwrite(self, layer: Layer, source: str, top: str) -> bool:
        result = layer.outputs[0]
        if top in self.fixed or self.stage[top] != self.stage[result]:
            return False
        size = self.tensors[source].elements
        if size != self.tensors[result].elements or size != self.tensors[top].elements:
            return False
        if self.tensors[source].dtype != self.tensors[result].dtype:
            return False
        return not any(other != source and self.top(other) == top for other in layer.reads)

    # --- result ---

    def _final_layers(self) -> list[Layer]:
        layers: list[Layer] = []
        for layer in self.layers:
            layers += self.copies_before.get(layer.name, ())
            if layer.name not in self.gone:
                layers.append(layer)
            layers += self.copies_after.get(layer.name, ())
        return layers + self.copies_after.get("", [])

    def finish(self) -> Storage:
        layers = self._final_layers()
        used = {*self.graph.inputs, *self.outputs, *(v for layer in layers for v in (*layer.reads, *layer.outputs) if v)}
        tops = {self.top(v) for v in used}
        places = {v: place for top in tops for v, place in self.tree(top)}
        roots = {top: self.fixed.get(top, ("arena", 0)) for top in tops}
        stages = tuple(self._stage_of(layer) for layer in layers)
        return Storage(tuple(layers), self.tensors, places, roots, tuple(self.outputs), stages, self.stage)

    def _stage_of(self, layer: Layer) -> int:
        """A layer that defines sizes belongs to the stage it ends."""
        return self.ending[layer.name] if layer.name in self.ending else self.stage[next(v for v in layer.outputs if v)]
