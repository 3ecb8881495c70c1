"""The passes that turn the graph as imported into the graph that templates compute: one file a pass, one tuple that lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sartor.graph.layer import BODIES, Graph, Layer
from sartor.graph.passes import (
    affine,
    attention,
    canonical,
    constants,
    dead,
    duplicates,
    fuse,
    identities,
    movement,
    narrow,
    norms,
    onehot,
    pads,
    parallel,
    reshapes,
    scalars,
    softmaxes,
    stages,
    transposes,
)
from sartor.graph.verify import verify

CLEAN: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("scalars", scalars.run),
    ("identities", identities.run),
    ("constants", constants.run),
    ("duplicates", duplicates.run),
    ("dead", dead.run),
)

MOVE: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("movement", movement.run),
    ("transposes", transposes.run),
    ("dead", dead.run),
)

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    *CLEAN,
    *MOVE,
    ("reshapes", reshapes.run),
    ("dead", dead.run),
    ("norms", norms.run),
    ("softmaxes", softmaxes.run),
    ("attention", attention.run),
    *CLEAN,
    ("canonical", canonical.run),
    *MOVE,
    ("pads", pads.run),
    *CLEAN,
    ("fuse", fuse.run),
    ("reshapes", reshapes.run),
    ("dead", dead.run),
    ("narrow", narrow.run),
    ("fuse", fuse.run),
    ("affine", affine.run),
    ("parallel", parallel.run),
    ("onehot", onehot.run),
    ("fuse", fuse.run),
    ("affine", affine.run),
    *CLEAN,
    ("stages", stages.run),
)


def optimize(graph: Graph, observe: Callable[[str, Graph], None] | None = None) -> Graph:
    """Runs all passes in order and verifies the graph before the first and after each; bodies of control layers come last.

    Parameters
    ----------
    graph
        The graph as lowered; it stays as it was.
    observe
        Called after each pass with its name and the graph it made.

    Raises
    ------
    GraphError
        The graph, or what a pass made of it, is malformed.
    """
    verify(graph)
    for name, function in PASSES:
        before, graph = graph, function(graph)
        verify(graph, before)
        if observe is not None:
            observe(name, graph)
    return replace(graph, layers=[_with_bodies(layer) for layer in graph.layers])


def _with_bodies(layer: Layer) -> Layer:
    """A control layer with its bodies optimised; another layer as it is."""
    if layer.kind not in BODIES:
        return layer
    return replace(layer, attributes={**layer.attributes, **{n: optimize(layer.attributes[n]) for n in BODIES[layer.kind]}})
