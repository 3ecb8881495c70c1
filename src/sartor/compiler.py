"""Compiles a model to a program.  The stages, in order:

import    the file as an `onnx_ir.Model`              sartor.importers.onnx.load
lower     a graph of layers                           sartor.ops.lowering.lower
optimize  the graph after all passes                  sartor.graph.passes.optimize
choose    a template and configuration a layer        sartor.templates.choose
store     which values are views of which others      sartor.fitting.storage.plan_storage
build     loop programs, packed weights, steps        sartor.compiling.reuse, sartor.compiling.steps
units     LLVM IR of each distinct kernel             sartor.compiling.kernels
link      objects, compiled or cached, as one image   sartor.compiling.kernels, sartor.loops.objects
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sartor.compiling.kernels import KernelCompiler, executor_unit, kernel_unit
from sartor.compiling.reuse import Builder
from sartor.compiling.steps import StepBuilder, is_copy, layer_problem
from sartor.compiling.weights import WeightsBuilder, aligned_bytes
from sartor.devices.device import Device
from sartor.devices.probe import device_for as _device_for
from sartor.devices.probe import host_device
from sartor.errors import OptionError, UnsupportedError
from sartor.fitting.plan import Blueprint, Part
from sartor.fitting.storage import Traits, plan_storage
from sartor.graph.layer import BODIES, OPAQUE, Graph, Layer, Problem, Tensor
from sartor.loops.language import Kernel
from sartor.loops.objects import link
from sartor.runtime.program import LayerInfo, Program, Tail
from sartor.runtime.threads import MAX_THREADS, available_threads
from sartor.templates import choose
from sartor.templates.base import Config, Template
from sartor.types import BYTES

if TYPE_CHECKING:
    import onnx
    import onnx_ir

Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"
Choice: TypeAlias = tuple[Template, Config]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Told (stage, what is done, what there is to do)."""

Observer: TypeAlias = Callable[[str, Any], None]
"""Told (stage, what it made): a model, graphs, choices by layer, a storage, kernels, units by symbol, an image."""

PRECISIONS = ("fp32",)


def compile(
    model: Model,
    *,
    threads: int | None = None,
    precision: str = "fp32",
    isa: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    device: Device | None = None,
    choices: Mapping[str, Choice] | None = None,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> Program:
    """Compiles a model.

    Parameters
    ----------
    model
        An ONNX file: its path, its bytes, or a `ModelProto`.
    threads
        How many threads runs use; by default the cores this process may use.
    precision
        Arithmetic of the kernels: "fp32".
    isa
        Instruction set to make code for (`sse4`, `avx2`, `avx512`, `neon`); by default the best of this machine.
    shapes
        Sizes of inputs that replace the model's; symbols not named stay symbols.
    device
        A described machine to compile for, instead of `isa`.
    choices
        Template and configuration by layer name, where the default is not wanted.
    progress, observe
        Called as the stages go on, and with what each made.

    Returns
    -------
    Program
        To save, or to run with `sartor.Session`.

    Raises
    ------
    ModelError, UnsupportedError, OptionError
        The model is broken, needs what is not supported, or an option has an impossible value.
    """
    check_precision(precision)
    if isa is not None and device is not None:
        raise OptionError("isa and device both say what to compile for; give one of them")
    count = thread_count(threads)
    shapes = checked_shapes(shapes)
    device = device or device_for(isa)
    from sartor.importers.onnx import load

    imported = load(model)
    (observe or _ignore)("import", imported)
    try:
        graph = _lowered(imported, shapes, observe)
    except UnsupportedError as reason:
        return _compile_split(imported, shapes or {}, device, reason, count, precision)
    return compile_graph(graph, device, choices, threads=count, precision=precision, progress=progress, observe=observe)


def prepare(model: Model, shapes: Mapping[str, Sequence[int | str]] | None = None, *, observe: Observer | None = None) -> Graph:
    """The optimised graph of a model: what `compile_graph` takes.

    Raises
    ------
    ModelError, UnsupportedError, OptionError
        As for `compile`; also `UnsupportedError` for a model with values that no layer can have, which `compile` leaves to the host.
    """
    from sartor.importers.onnx import load

    shapes = checked_shapes(shapes)
    imported = load(model)
    (observe or _ignore)("import", imported)
    return _lowered(imported, shapes, observe)


def prepare_head(
    model: Model, shapes: Mapping[str, Sequence[int | str]] | None = None, *, observe: Observer | None = None
) -> tuple[Graph, bytes | None]:
    """As `prepare`; of a model with values that no layer can have, the part in front of them, and the rest as a serialized model."""
    from sartor.importers.onnx import load
    from sartor.ops.split import split

    shapes = checked_shapes(shapes)
    imported = load(model)
    try:
        return _lowered(imported, shapes, observe), None
    except UnsupportedError as reason:
        parts = split(imported, shapes, reason, lambda head, sizes: _lowered(head, sizes, observe))
        return parts.head or _nothing(parts.name), parts.tail


def _nothing(name: str) -> Graph:
    return Graph((), (), {}, {}, [], name)


def _lowered(imported: onnx_ir.Model, shapes: Mapping[str, Sequence[int | str]] | None, observe: Observer | None) -> Graph:
    from sartor.graph.passes import optimize
    from sartor.ops.lowering import lower

    note = observe or _ignore
    graph = lower(imported, shapes)
    for name, tensor in graph.tensors.items():
        if tensor.dtype not in BYTES:
            error = UnsupportedError(f"the value {name!r} has elements of type {tensor.dtype}, which no layer can hold")
            error.values = (name,)
            raise error
    note("lower", graph)
    graph = optimize(graph)
    note("optimize", graph)
    return graph


def _compile_split(
    imported: onnx_ir.Model,
    shapes: Mapping[str, Sequence[int | str]],
    device: Device,
    reason: UnsupportedError,
    threads: int,
    precision: str,
) -> Program:
    """A program that runs the model on the host, as a whole or from some node on, because of `reason`."""
    import logging

    from sartor.ops.split import split

    model = split(imported, shapes, reason, lambda head, sizes: _lowered(head, sizes, None))
    how = "in part" if model.head else "as a whole"
    logging.getLogger("sartor").warning("%s runs %s on the host: %s", model.name or "the model", how, reason)
    program = compile_graph(model.head or _nothing(model.name), device, threads=threads, precision=precision)
    start = len(program.weights)
    weights = aligned_bytes(start + len(model.tail))
    weights[:start], weights[start:] = program.weights, np.frombuffer(model.tail, np.uint8)
    return replace(
        program,
        inputs=model.inputs,
        outputs=model.outputs,
        layers=program.layers
        + tuple(LayerInfo(n, "host", i, o, source=(n,), operator=operator) for n, operator, i, o in model.nodes),
        weights=weights,
        tail=Tail(start, program.inputs, program.outputs),
    )


def device_for(isa: str | None = None) -> Device:
    """This machine, or what `isa` names; see `sartor.devices.probe`."""
    return host_device(proved=True) if isa is None else _device_for(isa)


def thread_count(threads: int | None) -> int:
    """How many threads to compile for.

    Raises
    ------
    OptionError
        `threads` is not between 1 and the most a run may have.
    """
    if threads is None:
        return available_threads()
    if not isinstance(threads, int | np.integer) or not 1 <= threads <= MAX_THREADS:
        raise OptionError(f"a program cannot run on {threads} threads; expected 1 to {MAX_THREADS}")
    return threads


def checked_shapes(shapes: Mapping[str, Sequence[int | str]] | None) -> dict[str, tuple[int | str, ...]]:
    """Sizes given for inputs, as they should be.

    Raises
    ------
    OptionError
        They are no mapping of names to whole numbers and names of symbols.
    """
    found: dict[str, tuple[int | str, ...]] = {}
    if not isinstance(shapes or {}, Mapping):
        raise OptionError(f"shapes must map names of inputs to their sizes, not be a {type(shapes).__name__}")
    for name, sizes in (shapes or {}).items():
        if isinstance(sizes, str) or not isinstance(sizes, Iterable):
            raise OptionError(f"shapes give the input {name!r} a {type(sizes).__name__}; expected a list of sizes")
        wrong = [d for d in sizes if not (isinstance(d, int | np.integer) or (isinstance(d, str) and d and not d.isdigit()))]
        if wrong:
            raise OptionError(f"shapes give the input {name!r} the size {wrong[0]!r}; expected a whole number or a name")
        found[name] = tuple(d if isinstance(d, str) else int(d) for d in sizes)
    return found


def check_precision(precision: str) -> None:
    """Raises `OptionError` for an arithmetic there is none of."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision {precision} is not possible; possible is {', '.join(PRECISIONS)}")


def compile_graph(
    graph: Graph,
    device: Device,
    choices: Mapping[str, Choice] | None = None,
    *,
    threads: int = 1,
    precision: str = "fp32",
    tuned: AbstractSet[str] = frozenset(),
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> Program:
    """Compiles a graph of layers.

    Parameters
    ----------
    graph
        As `prepare` makes it; not changed.
    device
        What to compile for.
    choices
        Template and configuration by layer name; the others get their default.
    threads
        How many threads runs use.
    precision
        Noted in the program.
    tuned
        Names of the layers whose choice was measured.
    progress, observe
        As for `compile`.
    """
    note = observe or _ignore
    with KernelCompiler(device.target) as compiler:
        compiler.add(executor_unit(device.target))
        assembly = _Assembly(device, compiler, dict(choices or {}), tuned, progress)
        blueprint = assembly.add(graph, note)
        note("build", assembly.kernels)
        note("units", compiler.units)
        objects = compiler.finish(progress and partial(progress, "compile"))
    image = link(objects)
    note("link", image)
    return Program(
        name=graph.name,
        isa=device.target.isa,
        machine=image.machine,
        threads=threads,
        precision=precision,
        inputs={name: graph.tensors[name] for name in graph.inputs},
        outputs={name: graph.tensors[name] for name in graph.outputs},
        layers=tuple(assembly.infos),
        versions=_versions(),
        blueprint=blueprint,
        kernels=tuple(assembly.symbols),
        symbols=image.symbols,
        weights=assembly.weights.finish(),
        image=image.code,
        parts=tuple(part for part in assembly.parts if part is not None),
    )


class _Assembly:
    """A program in the making: its graph and the bodies in it share kernels, weights and the list of layers."""

    def __init__(
        self, device: Device, compiler: KernelCompiler, given: Mapping[str, Choice], tuned: AbstractSet[str], progress: Progress | None
    ) -> None:
        self.device, self.compiler, self.given, self.tuned, self.progress = device, compiler, given, tuned, progress
        self.builder = Builder(device)
        self.weights = WeightsBuilder()
        self.kernels: list[Kernel] = []
        self.symbols: list[str] = []
        self.infos: list[LayerInfo] = []
        self.parts: list[Part | None] = []

    def add(self, graph: Graph, note: Observer, within: str = "") -> Blueprint:
        """The blueprint of a graph; `within` is put before the names of the layers of a body."""
        chosen = _Choices(graph, self.device, self.given, within)
        storage = plan_storage(graph, chosen.traits)
        note("choose", chosen.found)
        note("store", storage)
        steps = StepBuilder(graph, storage, self.weights, self.kernels)
        for place, (layer, stage) in enumerate(zip(storage.layers, storage.stages, strict=True)):
            problem = layer_problem(layer, storage.tensors, graph.constants)
            choice, number, name = chosen.choice(layer, problem), len(self.infos), within + layer.name
            self.infos.append(_info(problem, name, choice, name in self.tuned))
            parts = [self._part(body, f"{name}/{which}/") for body, which in zip(layer.bodies, BODIES.get(layer.kind, ()), strict=True)]
            steps.add_layer(number, problem, stage, self.builder.build(problem, *choice) if choice else None, parts)
            for kernel in self.kernels[len(self.symbols) :]:
                self.symbols.append(self.compiler.add(kernel_unit(kernel, self.device.target)))
            if self.progress and not within:
                self.progress("build", place + 1, len(storage.layers))
        return steps.finish(body=bool(within))

    def _part(self, body: Graph, within: str) -> int:
        number = len(self.parts)
        self.parts.append(None)
        sides = [{name: body.tensors[name] for name in names} for names in (body.inputs, body.outputs)]
        self.parts[number] = Part(sides[0], sides[1], self.add(body, _ignore, within))
        return number


@dataclass
class _Choices:
    """The choice made for each layer, made when first asked for; `within` comes before names in `given`."""

    graph: Graph
    device: Device
    given: Mapping[str, Choice]
    within: str = ""
    found: dict[str, Choice | None] = field(default_factory=dict)

    def choice(self, layer: Layer, problem: Problem) -> Choice | None:
        """Template and configuration; None for a step on the host and for one that runs bodies."""
        if layer.name not in self.found:
            chosen = None if layer.kind in OPAQUE else choose(problem, self.device)
            self.found[layer.name] = self.given.get(self.within + layer.name, chosen)
        return self.found[layer.name]

    def traits(self, layer: Layer, tensors: Mapping[str, Tensor]) -> Traits:
        """What the implementation asks of the layer's operands."""
        problem = layer_problem(layer, tensors, self.graph.constants)
        if (choice := self.choice(layer, problem)) is None:
            return Traits(native=False)
        template, values = choice[0], dict.fromkeys((*layer.reads, *filter(None, layer.outputs)))
        return Traits(
            frozenset(v for v in values if template.contiguous(problem, v)),
            frozenset(v for v in layer.reads if template.in_place(problem, v)),
        )


def _info(problem: Problem, name: str, choice: Choice | None, tuned: bool) -> LayerInfo:
    layer = problem.layer
    reads, made = ([f"{v} {problem.tensors[v]}" for v in side if v] for side in ((*layer.inputs, *layer.extra), layer.outputs))
    plain = layer.expression is None or layer.expression.is_identity
    return LayerInfo(
        name,
        layer.kind,
        tuple(reads),
        tuple(made),
        choice[0].name if choice else "",
        dict(choice[1]) if choice else {},
        tuned,
        layer.source,
        "" if plain else str(layer.expression),
        "" if choice or layer.kind == "bind" else _operator(layer),
        is_copy(layer),
    )


def _operator(layer: Layer) -> str:
    """The name of what a host step computes; "" for a layer that runs bodies."""
    if layer.kind in BODIES:
        return ""
    if layer.kind != "host":
        return layer.kind
    import onnx

    return str(onnx.NodeProto.FromString(layer.attributes["node"]).op_type)


def _versions() -> dict[str, str]:
    import llvmlite

    import sartor

    return {"sartor": sartor.__version__, "llvmlite": llvmlite.__version__, "numpy": np.__version__}


def _ignore(stage: str, made: Any) -> None:
    pass
