"""The texts and figures that `sartor inspect` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sartor.cli.common import is_program, open_program, say
from sartor.cli.feeds import settle_sizes
from sartor.cli.models import facts
from sartor.errors import OptionError
from sartor.loops.target import ISAS
from sartor.sizes import evaluate


def open_any(model: Path, threads: int | None, isa: str | None, precision: str) -> Any:
    """The program in or of `model`; also one made for another machine, since it is only looked at."""
    from sartor.runtime.program import Program

    if is_program(model) and not isa:
        return Program.load(model, isas=ISAS)
    return open_program(model, threads, isa, precision)


def comment(stage: str) -> str:
    """What starts a comment in a stage's text."""
    return {"loops": "#", "llvm": ";", "asm": "#"}[stage]


# --- texts of the making --------------------------------------------------------------------------------------------------


def layer_texts(model: Path, stage: str | None, names: Sequence[str], isa: str | None) -> dict[str, str]:
    """For each layer (of those named, or all) the text of a stage: its definition, loop programs, LLVM IR or assembly.

    Raises
    ------
    OptionError
        When `model` is a program, which keeps none of these, or no layer is named so.
    """
    from sartor import compiler

    if is_program(model):
        raise OptionError(f"{model} is a program, which holds machine code only; give the model it was made of")
    graph, _ = compiler.prepare_head(str(model))
    device = compiler.device_for(isa)
    within = dict(_nested(graph, ""))
    layers = [(name, *within[name]) for name in (layer.name for layer in _named([layer for layer, _ in within.values()], names))]
    if stage == "layers":
        return {name: _definition(layer, owner.tensors) for name, layer, owner in layers}
    return {name: _code(owner.problem(layer), device, stage or "loops") for name, layer, owner in layers if not layer.bodies}


def _nested(graph: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """All layers, those of bodies after the layer they belong to, by the names a program has for them; each with its graph."""
    from dataclasses import replace

    from sartor.graph.layer import BODIES

    for layer in graph.layers:
        name = prefix + layer.name
        yield name, (replace(layer, name=name), graph)
        for which, body in zip(BODIES.get(layer.kind, ()), layer.bodies, strict=True):
            yield from _nested(body, f"{name}/{which}/")


def _named(layers: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """The layers called or made from `names`; all for none."""
    layers = list(layers)
    if not names:
        return layers
    found = [layer for layer in layers if layer.name in names or set(names) & set(layer.source)]
    missing = [n for n in names if not any(n == layer.name or n in layer.source for layer in found)]
    if missing:
        from difflib import get_close_matches

        close = get_close_matches(missing[0], [layer.name for layer in layers], 3)
        hint = f"; similar are {', '.join(close)}" if close else ""
        raise OptionError(f"there is no layer {missing[0]}{hint}")
    return found


def _definition(layer: Any, tensors: Any) -> str:
    def value(name: str) -> str:
        return f"{name}: {tensors[name]}" if name else "none"

    attributes = "".join(f", {k}={v}" for k, v in layer.attributes.items() if k not in ("node", "then", "else", "body"))
    text = f"{', '.join(map(value, layer.outputs))} = {layer.kind}({', '.join(map(value, layer.inputs))}{attributes})"
    if layer.expression is not None and not layer.expression.is_identity:
        extra = f" with {', '.join(f'x{i} = {value(n)}' for i, n in enumerate(layer.extra, 1))}" if layer.extra else ""
        text += f"\n    then {layer.expression}{extra}"
    return text


def _code(problem: Any, device: Any, stage: str) -> str:
    """The kernels of one layer as text."""
    from sartor.loops.llvm import assembly, render
    from sartor.templates import choose

    if (choice := choose(problem, device)) is None:
        return f"{comment(stage)} no kernel: this layer runs on the host"
    template, config = choice
    kernels = {call.kernel.name: call.kernel for call in template.build(problem, config, device).calls}
    head = f"{comment(stage)} {template.name} {' '.join(f'{k}={v}' for k, v in config.items())}".rstrip()
    if stage == "loops":
        return "\n".join([head, *map(str, kernels.values())])
    text = render(list(kernels.values()), device.target)
    return f"{head}\n{text if stage == 'llvm' else assembly(text, device.target)}"


# --- figures of a program -------------------------------------------------------------------------------------------------


def chosen(program: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """What a program keeps of its layers."""
    return [
        {
            "layer": info.name,
            "kind": info.kind,
            "inputs": list(info.inputs),
            "outputs": list(info.outputs),
            "template": info.template,
            "config": dict(info.config),
            "tuned": info.tuned,
            "source": list(info.source),
            "expression": info.expression,
            "operator": info.operator,
        }
        for info in _named(program.layers, names)
    ]


def overview(
    program: Any, shapes: Sequence[tuple[str, tuple[int | str, ...]]], dims: Sequence[tuple[str, int]], names: Sequence[str]
) -> dict[str, Any]:
    """All there is to show of a program at given sizes: facts, layers with their work, memory, tasks."""
    sizes, assumed = settle_sizes(program.inputs, dict(shapes), dict(dims))
    if assumed:
        say(f"note: {', '.join(f'{n} = 1' for n in assumed)}; other sizes by --dim or --shape")
    plan = _plan(program, {name: tuple(evaluate(d, sizes) for d in tensor.shape) for name, tensor in program.inputs.items()})
    tasks = [
        {
            "layer": t.layer,
            "kind": t.kind,
            "host": t.host,
            "extent": t.extent,
            "grain": t.grain,
            "multiply_adds": t.multiply_adds,
            "working_set": t.working_set,
        }
        for t in (plan.tasks if plan else ())
    ]
    rows = chosen(program, names)
    for row in rows:
        own = [t for t in tasks if t["layer"] == row["layer"]]
        row["flop"] = 2 * sum(t["multiply_adds"] for t in own) if plan else None
        row["working_set"] = max((t["working_set"] for t in own), default=0) if plan else None
    memory = (
        {}
        if plan is None
        else {
            "arena_bytes": plan.arena_bytes,
            "lower_bound": plan.lower_bound,
            "scratch_bytes": plan.scratch_bytes,
            "multiply_adds": plan.multiply_adds,
        }
    )
    kept = {row["layer"] for row in rows}
    return {
        "program": facts(program),
        "sizes": sizes,
        "layers": rows,
        "memory": memory,
        "tasks": [t for t in tasks if t["layer"] in kept],
    }


def _plan(program: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    """The plan for these shapes; None where this machine cannot make one (a program for another machine)."""
    import sartor
    from sartor.errors import ProgramError

    try:
        with sartor.Session(program) as session:
            return session.plan(shapes)
    except ProgramError as problem:
        say(f"note: no plan: {problem}")
        return None
