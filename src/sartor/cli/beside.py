"""A model computed twice, by Sartor and by a reference, with every value in between kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cli.bench import difference
from sartor.errors import OptionError, SartorError
from sartor.graph.layer import Graph
from sartor.graph.reference import bind_layer, bind_sizes, evaluate_graph, evaluate_layer

Array = np.ndarray[Any, Any]


class Ours:
    """A model compiled as it is, and once more so that it gives out every layer's result.

    Attributes
    ----------
    graph, lowered
        The layers that are compiled, and those before any pass.
    program, exposed
        The program, and the one that gives out everything.
    names
        Values that `exposed` gives out.
    """

    def __init__(self, model: Path, threads: int | None, isa: str | None, precision: str) -> None:
        from sartor import compiler

        compiler.check_precision(precision)
        made: dict[str, Any] = {}
        self.graph: Graph = compiler.prepare(str(model), observe=made.__setitem__)
        self.lowered: Graph = made["lower"]
        device, count = compiler.device_for(isa), compiler.thread_count(threads)
        self.names = tuple(dict.fromkeys(v for layer in self.graph.layers for v in layer.outputs if v))
        everything = tuple(dict.fromkeys((*self.graph.outputs, *self.names)))
        self.program = compiler.compile_graph(self.graph, device, threads=count)
        self.exposed = compiler.compile_graph(replace(self.graph, outputs=everything), device, threads=count)

    def values(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs of the program, and of the one that gives out everything."""
        import sartor

        with sartor.Session(self.program) as session, sartor.Session(self.exposed) as other:
            return session.run(feeds), other.run(feeds)


def compare(
    ours: Ours, feeds: Mapping[str, Array], wanted: Mapping[str, Array] | None
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
    reference = dict(wanted) if wanted is not None else _reference_values(ours.graph, feeds)
    rows = []
    for layer, alone in zip(ours.graph.layers, _alone(ours.graph, {**feeds, **values}, feeds), strict=True):
        names = [n for n in layer.outputs if n in reference and reference[n].shape == values[n].shape]
        gap = difference([reference[n] for n in names], [values[n] for n in names]) if names else None
        rows.append({"layer": layer.name, "kind": layer.kind, "value": ", ".join(filter(None, layer.outputs)),
                     "difference": gap, "alone": alone})  # fmt: skip
    final = dict(wanted) if wanted is not None else evaluate_graph(ours.lowered, feeds, wide=True)
    missing = [name for name in outputs if name not in final]
    if missing:
        raise SartorError(f"the other engine gives no output {missing[0]}")
    return rows, {name: difference([np.asarray(final[name])], [array]) for name, array in outputs.items()}


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


def onnxruntime_values(model: Path, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """What ONNX Runtime computes for the model's outputs and those of `names` that are values of the model.

    Raises
    ------
    OptionError
        It is not installed.
    SartorError
        It cannot run the model.
    """
    import onnx

    try:
        import onnxruntime
    except ImportError as problem:
        raise OptionError(f"onnxruntime is not installed ({problem}); pip install onnxruntime") from None
    try:
        proto = onnx.load(str(model))
        made = {name for node in proto.graph.node for name in node.output if name}
        given = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name in made - given)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, dict(feeds))
    except Exception as problem:
        raise SartorError(f"onnxruntime cannot run {model.name}: {str(problem).splitlines()[0]}") from problem
    return dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))
