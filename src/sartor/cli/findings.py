"""What `sartor check` looks for in a model: all of it at once, where a compilation stops at the first problem."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sartor.cli.common import bytes_text
from sartor.errors import ModelError, SartorError, UnsupportedError
from sartor.importers.declared import unknown_attributes

LEVELS = ("unsupported", "host", "suspicious")
HUGE = 256 << 20
"""Bytes from which a constant is worth a word."""

_ROUNDS = 50  # problems of lowering that are looked for, one after the other
_NODE = re.compile(r"node '([^']*)' \(")
_INPUT = re.compile(r"(?:the )?input '([^']*)'")


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing.

    Attributes
    ----------
    level
        `unsupported`: cannot be compiled; `host`: runs without native code; `suspicious`: allowed, but hardly meant.
    where
        The node, tensor or input.
    what
        What is the matter, in a few words.
    """

    level: str
    where: str
    what: str


def examine(path: Path, shapes: Mapping[str, Sequence[int | str]] | None = None) -> list[Finding]:
    """Everything found in the model at `path`, the gravest first.

    Raises
    ------
    ModelError
        The file is not an ONNX model.
    """
    from sartor.cli.models import read_model

    model = read_model(path)
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    found = [*_values(model.graph), *_attributes(model), *_weights(model.graph, path.parent), *_layers(model, path, shapes)]
    return sorted(dict.fromkeys(found), key=lambda f: LEVELS.index(f.level))


# --- what the file says of itself -----------------------------------------------------------------------------------------


def _values(graph: onnx.GraphProto) -> Iterator[Finding]:
    """Inputs and constants that nothing reads, and inputs of which little is said."""
    read = set(_names_read(graph))
    constants = {t.name for t in graph.initializer}
    for value in graph.input:
        if value.name not in read:
            yield Finding("suspicious", f"input {value.name}", "nothing reads it")
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape") and value.name not in constants:
            yield Finding("suspicious", f"input {value.name}", "how many dimensions it has is not said; --shape may say it")
    for tensor in graph.initializer:
        if tensor.name not in read:
            yield Finding("suspicious", f"tensor {tensor.name}", "nothing reads it")


def _attributes(model: onnx.ModelProto) -> Iterator[Finding]:
    """Attributes that their node's operator does not have."""
    versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    for number, node in enumerate(model.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not onnx.defs.has(node.op_type, versions.get(domain, 0), domain):
            continue
        for name in unknown_attributes(node, onnx.defs.get_schema(node.op_type, versions[domain], domain)):
            where = f"node {node.name or f'{node.op_type}_{number}'}"
            yield Finding("suspicious", where, f"{node.op_type} has no attribute {name!r}, which is passed over")


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of all values read by nodes, those of inner graphs too, and given out."""
    for node in graph.node:
        yield from node.input
        for inner in _inner(node):
            yield from _names_read(inner)
    for value in graph.output:
        yield value.name


def _inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All constants with words that name them."""
    for tensor in graph.initializer:
        yield f"tensor {tensor.name}", tensor
    for number, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield f"node {node.name or f'{node.op_type}_{number}'}", attribute.t


def _weights(graph: onnx.GraphProto, folder: Path) -> Iterator[Finding]:
    """Constants that hold what no training leaves on purpose, or a great deal."""
    for where, tensor in _tensors(graph):
        try:
            array = onnx.numpy_helper.to_array(tensor, str(folder))
        except Exception:  # noqa: BLE001  contents that cannot be read are what the importer tells of
            continue
        if array.nbytes >= HUGE:
            yield Finding("suspicious", where, f"holds {bytes_text(array.nbytes)}")
        if array.dtype.kind == "f" or "float" in array.dtype.name:
            values = array if array.dtype.itemsize > 2 else array.astype(np.float32)
            for name, test in (("not a number", np.isnan), ("infinite", np.isinf)):
                if count := int(np.count_nonzero(test(values))):
                    yield Finding("suspicious", where, f"{count} of {array.size} elements are {name}")


# --- what becomes of it ---------------------------------------------------------------------------------------------------


def _layers(model: onnx.ModelProto, path: Path, shapes: Mapping[str, Sequence[int | str]] | None) -> list[Finding]:
    """What stops a compilation, and what of the rest has no native code."""
    from sartor import compiler

    try:
        return _hosts(compiler.prepare(str(path), shapes))
    except SartorError as error:
        first = error
    graph, problems = None, []
    rest = _Rest(model, path.parent)
    for _ in range(_ROUNDS):
        problems.append(Finding("unsupported", *_place(str(first))))
        if not rest.cut(str(first)):
            break
        try:
            graph = compiler.prepare(rest.model, {n: s for n, s in (shapes or {}).items() if n in rest.inputs})
            break
        except SartorError as error:
            first = error
    on_host = compiles(path, shapes)
    if on_host:
        problems = [Finding("host", p.where, f"{p.what}; it and what follows run on the host") for p in problems]
    if rest.skipped and not on_host:
        problems.append(Finding("suspicious", "model", f"{rest.skipped} nodes that need these results could not be examined"))
    return problems + (_hosts(graph) if graph is not None else [])


def compiles(path: Path, shapes: Mapping[str, Sequence[int | str]] | None) -> bool:
    """Whether a model that cannot be lowered as a whole compiles all the same, to run on the host from the first problem on."""
    import sartor

    try:
        sartor.compile(str(path), shapes=shapes)
    except SartorError:
        return False
    return True


def _place(sentence: str) -> tuple[str, str]:
    """The node or input that a sentence is about, and the sentence."""
    if found := _NODE.search(sentence):
        return f"node {found.group(1)}", sentence
    return (f"input {found.group(1)}" if (found := _INPUT.search(sentence)) else "model"), sentence


def _hosts(graph: Any) -> list[Finding]:
    """Layers without native code."""
    from sartor import compiler
    from sartor.templates import choose

    device, found = compiler.device_for(), []
    for layer in graph.layers:
        where = f"node {', '.join(layer.source) or layer.name}"
        types = ", ".join(str(graph.tensors[v]) for v in layer.reads) or "nothing"
        if layer.kind in ("bind", "reshape"):  # nothing to compute
            continue
        if layer.bodies:
            for body in layer.bodies:
                found += [f for f in _hosts(body) if f not in found]
            continue
        if layer.kind == "host":
            operator = onnx.NodeProto.FromString(layer.attributes["node"]).op_type
            found.append(Finding("host", where, f"{operator} of {types} has no native code and runs on the host"))
        else:
            try:
                choice = choose(graph.problem(layer), device)
            except UnsupportedError as error:
                found.append(Finding("unsupported", where, str(error)))
                continue
            if choice is None:
                found.append(Finding("host", where, f"{layer.kind} of {types} has no native code and runs on the host"))
    return found


class _Rest:
    """What is left of a model when nodes with problems are cut out; their results become inputs where their type is known."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.skipped = 0
        try:
            onnx.load_external_data_for_model(self.model, str(folder))
        except Exception:  # noqa: BLE001  then a later sentence says what is wrong with it
            self.model.CopyFrom(model)
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model)
        except Exception:  # noqa: BLE001  a model that onnx cannot follow: only what it states itself is known
            inferred = self.model
        self._types = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
        taken = Counter(node.name for node in self.model.graph.node)
        for number, node in enumerate(self.model.graph.node):
            if not node.name or taken[node.name] > 1:
                node.name = f"{node.name or node.op_type}_{number}"

    @property
    def inputs(self) -> set[str]:
        return {v.name for v in self.model.graph.input}

    def cut(self, sentence: str) -> bool:
        """Takes out the node or input that the sentence names; returns whether there was one and something is left."""
        graph = self.model.graph
        if found := _NODE.search(sentence):
            nodes = [n for n in graph.node if n.name == found.group(1)]
            nodes = nodes or [n for n in graph.node if found.group(1) == "" and f"({n.op_type})" in sentence][:1]
            if not nodes:
                return False
            _replace(graph.node, [n for n in graph.node if n is not nodes[0]])
            _replace(graph.output, [v for v in graph.output if v.name not in nodes[0].output])
            for name in nodes[0].output:
                if name in self._types and self._types[name].type.tensor_type.HasField("shape"):
                    graph.input.append(self._types[name])
        elif found := _INPUT.search(sentence):
            if found.group(1) not in self.inputs:
                return False
            _replace(graph.input, [v for v in graph.input if v.name != found.group(1)])
        else:
            return False
        return self._drop_orphans()

    def _drop_orphans(self) -> bool:
        """Drops what needs values that nothing makes any more."""
        graph = self.model.graph
        made = self.inputs | {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
        made |= {name for node in graph.node for name in node.output}
        kept = list(graph.node)
        while orphans := [n for n in kept if not set(filter(None, (*n.input, *_captured(n)))) <= made]:
            self.skipped += len(orphans)
            names = {name for n in orphans for name in n.output}
            made -= names
            kept = [n for n in kept if not names & set(n.output)]
        _replace(graph.node, kept)
        _replace(graph.output, [v for v in graph.output if v.name in made])
        return bool(graph.output)


def _captured(node: onnx.NodeProto) -> set[str]:
    """Names that the inner graphs of a node take from around it."""
    names: set[str] = set()
    for graph in _inner(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {o for n in graph.node for o in n.output}
        names |= set(filter(None, _names_read(graph))) - own
    return names


def _replace(field: Any, items: Iterable[Any]) -> None:
    """Gives a repeated field other contents."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)
