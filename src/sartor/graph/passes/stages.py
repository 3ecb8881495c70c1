"""Orders layers so that a plan has few stages.

Where a `bind` layer makes sizes known, the plan is cut.  All that do not wait for each other are put side by side, behind what they
need and before all else: then they are one cut.  One that reads nothing but inputs comes first of all.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.graph.layer import Graph, Layer, layer_symbols


def run(graph: Graph) -> Graph:
    """Orders layers (pure: the graph given stays as it was)."""
    if not any(layer.kind == "bind" for layer in graph.layers):
        return graph
    needs = _needs(graph)
    layers = {layer.name: layer for layer in graph.layers}
    depth: dict[str, int] = {}  # how many cuts a layer waits for
    for layer in graph.layers:
        depth[layer.name] = max((depth[n] + _cuts(layers[n]) for n in needs[layer.name]), default=0)
    order: dict[str, Layer] = {}
    for cut in range(max((depth[n] for n in layers if _cuts(layers[n])), default=-1) + 1):
        ending = [layer for layer in graph.layers if _cuts(layer) and depth[layer.name] == cut]
        wanted = _before(ending, needs)
        order |= {layer.name: layer for layer in graph.layers if layer.name in wanted and layer.name not in order}
        order |= {layer.name: layer for layer in sorted(ending, key=lambda layer: layer.kind != "bind")}
    order |= {layer.name: layer for layer in graph.layers if layer.name not in order}
    return replace(graph, layers=list(order.values()))


def _cuts(layer: Layer) -> bool:
    return bool(layer.attributes.get("defines"))


def _needs(graph: Graph) -> dict[str, set[str]]:
    """For each layer those that make what it reads, or sizes it uses."""
    maker = {value: layer.name for layer in graph.layers for value in layer.outputs if value}
    definer = {entry[0]: layer.name for layer in graph.layers for entry in layer.attributes.get("defines", ())}
    return {layer.name: {maker[v] for v in layer.reads if v in maker}
            | {definer[s] for s in layer_symbols(graph.tensors, layer) if s in definer} - {layer.name} for layer in graph.layers}


def _before(layers: list[Layer], needs: dict[str, set[str]]) -> set[str]:
    """All that some layers wait for."""
    found: set[str] = set()
    waiting = [name for layer in layers for name in needs[layer.name]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(needs[name])
    return found
