"""A model computed twice, by Sartor and by a reference, with every value in between kept."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cli.arrays import parts, save_arrays
from sartor.cli.bench import difference
from sartor.cli.engines import Engine
from sartor.errors import OptionError, SartorError, UnsupportedError
from sartor.graph.layer import Graph
from sartor.graph.reference import bind_layer, bind_sizes, evaluate_graph, evaluate_layer

Array = np.ndarray[Any, Any]

_LARGE = 1 << 30  # bytes from which a model's weights go to a file beside it, which can hold more than 2 GB


class Ours:
    """A model compiled as it is, and once more so that it gives out every layer's result.

    Attributes
    ----------
    graph, lowered
        The layers that are compiled, and those before any pass.
    tail
        The part behind them, which onnx's reference runs, as a serialized model; None where there is none.
    program, exposed
        The program, and the one of the layers alone that gives out everything.
    names
        Values that `exposed` gives out.
    """

    def __init__(
        self, model: Path, threads: int | None, isa: str | None, precision: str, shapes: Mapping[str, tuple[int | str, ...]] | None = None
    ) -> None:
        from sartor import compiler

        compiler.check_precision(precision)
        made: dict[str, Any] = {}
        self.graph, self.tail = compiler.prepare_head(str(model), shapes, observe=made.__setitem__)
        _require_repeatable(self.graph)
        self.lowered: Graph = made["lower"] if self.graph.layers else self.graph
        device, count = compiler.device_for(isa), compiler.thread_count(threads)
        self.names = tuple(dict.fromkeys(v for layer in self.graph.layers for v in layer.outputs if v))
        everything = tuple(dict.fromkeys((*self.graph.outputs, *self.names)))
        if self.tail is None:
            self.program = compiler.compile_graph(self.graph, device, threads=count)
        else:
            self.program = compiler.compile(str(model), threads=threads, isa=isa, shapes=shapes)
        self.exposed = compiler.compile_graph(replace(self.graph, outputs=everything), device, threads=count)

    def values(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The outputs of the program, and of the one that gives out everything."""
        import sartor

        with sartor.Session(self.program) as session, sartor.Session(self.exposed) as other:
            return session.run(feeds), other.run({name: feeds[name] for name in self.graph.inputs})

    def wanted(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """The outputs by the reference: the layers in float64, then what runs on the host."""
        final: dict[str, Any] = evaluate_graph(self.lowered, {name: feeds[name] for name in self.graph.inputs}, wide=True)
        if self.tail is None:
            return final
        import onnx
        from onnx.reference import ReferenceEvaluator

        from sartor.graph.host_operators import operators

        evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(self.tail), new_ops=operators())
        values = {**feeds, **final}
        results = evaluator.run(None, {name: values[name] for name in evaluator.input_names})
        return {**values, **dict(zip(evaluator.output_names, results, strict=True))}


_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")


def _require_repeatable(graph: Graph) -> None:
    """Raises `UnsupportedError` for a graph that computes something else each time."""
    import onnx

    for layer in graph.layers:
        for body in layer.bodies:
            _require_repeatable(body)
        if layer.kind == "host":
            node = onnx.NodeProto.FromString(layer.attributes["node"])
            if node.op_type in _RANDOM and not any(a.name == "seed" for a in node.attribute):
                raise UnsupportedError(
                    f"the node {node.name or layer.name} ({node.op_type}) draws other random numbers each time, so that no two "
                    "computations of the model can be compared; give it a seed"
                )


def compare(
    ours: Ours, feeds: Mapping[str, Array], wanted: Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """How far each layer's result, and each output, is from the reference.

    Parameters
    ----------
    ours
        The model.
    feeds
        Its inputs.
    wanted
        Values of another engine by name; None for the reference in float64.

    Returns
    -------
    rows, outputs
        For each layer its name, kind, value, the difference relative to the largest element (None where the other engine has
        no such value), and the difference it makes alone; the difference of each output.
    """
    outputs, values = ours.values(feeds)
    own = {name: feeds[name] for name in ours.graph.inputs}
    reference = dict(wanted) if wanted is not None else _reference_values(ours.graph, own)
    rows = []
    for layer, alone in zip(ours.graph.layers, _alone(ours.graph, {**own, **values}, own), strict=True):
        names = [n for n in layer.outputs if n in reference and reference[n].shape == values[n].shape]
        gap = difference([reference[n] for n in names], [values[n] for n in names]) if names else None
        rows.append({"layer": layer.name, "kind": layer.kind, "value": ", ".join(filter(None, layer.outputs)),
                     "difference": gap, "alone": alone})  # fmt: skip
    final = dict(wanted) if wanted is not None else ours.wanted(feeds)
    missing = [name for name in outputs if name not in final]
    if missing:
        raise SartorError(f"the other engine gives no output {missing[0]}")
    return rows, {name: difference(_arrays(final[name]), _arrays(value)) for name, value in outputs.items()}


def _arrays(value: Any) -> list[Array]:
    """The arrays in a value, which may be a sequence or a map."""
    return [array for _, array in parts("", value)]


def _reference_values(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every layer's result in float64, from the inputs on."""
    return evaluate_graph(replace(graph, outputs=tuple(dict.fromkeys(v for y in graph.layers for v in y.outputs if v))), feeds, True)


def _alone(graph: Graph, values: Mapping[str, Array], feeds: Mapping[str, Array]) -> list[float]:
    """The difference each layer makes when the reference is given the inputs that the layer was given."""
    sizes: dict[str, int] = {}
    for name, array in feeds.items():
        bind_sizes(graph.tensors[name].shape, array.shape, sizes, f"the input {name}")
    gaps = []
    for layer in graph.layers:
        if layer.kind == "bind":
            bind_layer(layer, [values[n] if n in values else graph.constants[n] for n in layer.inputs], sizes)
            gaps.append(0.0)
            continue
        names = [n for n in layer.outputs if n]
        for name in names:
            bind_sizes(graph.tensors[name].shape, values[name].shape, sizes, f"the value {name}")
        results = evaluate_layer(graph.problem(layer), values, sizes, wide=True)
        gaps.append(difference([results[n] for n in names], [values[n] for n in names]))
    return gaps


def onnxruntime_values(model: Path, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Any]:
    """What ONNX Runtime computes for the model's outputs and those of `names` that are values of the model, in a process of its own.

    Raises
    ------
    OptionError
        It is not installed.
    SartorError
        It cannot run the model.
    """
    import onnx

    if find_spec("onnxruntime") is None:
        raise OptionError("onnxruntime is not installed; pip install onnxruntime")
    proto = onnx.load(str(model))
    made = {name for node in proto.graph.node for name in node.output if name}
    given = [value.name for value in proto.graph.output]
    more = [name for name in names if name in made - set(given)]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    with tempfile.TemporaryDirectory() as folder:
        exposed, inputs = Path(folder) / "model.onnx", Path(folder) / "feeds.npz"
        onnx.save(proto, str(exposed), save_as_external_data=proto.ByteSize() > _LARGE, location="weights")
        save_arrays(inputs, feeds)
        engine = Engine("onnxruntime", exposed, 1, "fp32", inputs)
        try:
            outputs = engine.values()
        finally:
            engine.close()
    return dict(zip((*given, *more), outputs, strict=True))
