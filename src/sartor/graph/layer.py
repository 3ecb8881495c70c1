"""IR2: the graph of Layers.

Every tensor is a dense row-major array.  Spatial kinds are channels-last: activations are [batch, *spatial, channels]; the
ONNX order is met by explicit `transpose` layers, which passes cancel.  A Layer has a kind, a raw result that the kind defines,
and an `expression` computed on every element of that raw result before it is stored (operand 0 is the raw result, operand k is
`extra[k - 1]`, broadcast to the output's shape).  For `elementwise` the operands are the inputs themselves and `extra` is empty.

kind            inputs                       attributes, and what the raw result is
elementwise     any, broadcast               (none); output shape may exceed every input's (expand)
matmul          A [..., M, K], B [..., K, N] transpose_a, transpose_b: the stored operand has its last two dims swapped; batch
                                             dims broadcast.  Bias, alpha and beta live in the expression.
convolution     X [N, *s, C], W [*k, C/g, O] strides, dilations, pads (begins then ends, Dims), groups.  Bias: expression.
deconvolution   X [N, *s, C], W [*k, C, O/g] strides, dilations, pads (as above), groups; the output's shape says the rest:
                                             y[n, i*stride + k*dilation - pad_begin, (g, o)] += x[n, i, (g, c)] * w[k, (g, c), o]
pool            X [N, *s, C]                 mode (max, average, lp, argmax), kernel, strides, dilations, pads, include_pad, p.  The
                                             output's shape settles ceil mode; the divisor of an average counts elements inside the
                                             padded input (include_pad) or inside the input.  argmax: the place (i64) of the first
                                             maximum in its image's plane, flattened row- or column_major; -1 for none
reduce          X                            op (sum mean max min prod l1 l2 sum_square log_sum log_sum_exp argmax argmin), axes
                                             (sorted), select_last (arg*); reduced dims are kept as 1
softmax         X                            axis, log
normalize       X                            axes, mode (layer: (x - mean) / sqrt(var + epsilon); rms: x / sqrt(mean(x^2) + epsilon)),
                                             epsilon.  Scale and bias: expression.
attention       Q [B, S, H, D], K [B, T, G, D], V [B, T, G, E], mask ("" or broadcast to [B, H, S, T]; f32 added, bool: False = -inf)
                                             scale, causal (query s sees key t <= s + T - S); G divides H.  Result [B, S, H, E];
                                             a query whose scores are all -inf gives NaN, or zeros where zero_unseen
linear_attention  Q [B, T, H, D],            scale.  Each step a matrix S [D, E] of each of G groups of heads fades, S = decay * S (by row
                K [B, T, G, D],              or whole), takes in a key and a value, S += k (outer) beta * (v - S^T k), or v without beta,
                V [B, T, G, E],              and gives scale * S^T q.  All but Q, K and V may be ""; the state is S at first.
                state [B, G, D, E],          Result [B, G, T*H/G + D, E]: of each step the rows of the group's queries, then the last S
                decay [B, T, G, 1 or D],
                beta [B, T, 1 or G]
recurrent       X [S, B, D*G*H],             the time loop of a cell (lstm: G = 4, gru: 3, rnn: 1 gates of H units, in ONNX's order) in D
                R [D, H, G*H], lengths,      directions: reverse (one bool a direction), activations (a direction: (name, alpha, beta)...),
                h [D, B, H], c [D, B, H],    clip (of gates' inputs, or None), linear_before_reset, input_forget.  X holds the inputs'
                bias [D, H],                 products and all biases but that of a linear_before_reset's recurrent product; all but X
                peepholes [D, 3*H]           and R may be "".  Result [S + 1 (lstm: 2), D, B, H]: h after each step, the last h, the last c
transpose       X                            perm
reshape         X                            (none); a view, same elements in order
concat          X...                         axis
slice           X                            starts, steps (one a dim; Dims and non-zero ints); the output's shape settles the ends
pad             X                            before (one a dim, Dims, may be negative), mode (constant reflect edge wrap), value (float)
gather          X, indices                   axis; negative indices count from the end
resize          X                            mode (nearest linear cubic), scales (one a dim: float, a Dim that holds the bits of an f64
                                             where it depends on data, or None for output/input size), roi (or None),
                                             coordinate (half_pixel, pytorch_half_pixel, align_corners, asymmetric, half_pixel_symmetric,
                                             tf_crop_and_resize), nearest (round_prefer_floor round_prefer_ceil floor ceil), cubic_a,
                                             exclude_outside, antialias, extrapolation
scatter         X [D, C], indices [M] (i64), op (none add mul min max): X with row indices[m] replaced by, or combined with,
                updates [M, C]               updates[m], for m in order; an index outside 0...D is passed over
cumulative      X                            op (sum prod), axis, exclusive, reverse: running totals along the axis
topk            X                            axis, largest: places (i64) of the best elements along the axis, best first (among
                                             equals the lower index first), as many as the output has there
fourier         X [A, n, B, p],              inverse, half: the discrete Fourier transform of N points along the second dim, from
                cosines [N], sines [N]       p = 1 (real) or 2 parts, zeros behind the n points, or the first N of them; half: point k above
                                             N/2 is the conjugate of point N - k; inverse: divided by N.  The output's shape says how many
                                             points, and whether real parts alone, are kept; the operands (f64) hold cos and sin of
                                             2 pi k / N
determinant     X [..., N, N]                (none); [...]: the matrices' determinants
regions         X [N, H, W, C], boxes        mode (average, max, bins), scale, offset, sampling: of box (x1, y1, x2, y2) times scale, minus
                [R, 4] (of X's type),        offset, in image images[r], for each cell of the output's grid [R, h, w, C] the mean or
                images [R] (i64)             maximum of sampled points (as RoiAlign has it; sampling is their number a side, 0: as many as
                                             pixels), or the maximum of the pixels of its bin (as MaxRoiPool has it)
nonzero         X [N] (bool)                 places (i64) of the true elements, in order, as many as the output has
order           X [N, M]                     places (i64) of the rows in ascending order: by the first column, then the next; a NaN counts
                                             as larger than all numbers; among equals the lower index first
suppress        boxes [B, N, 4], scores      center.  Result [B, C, N] (i64): for each class the boxes that score more than `least`, best
                [B, C, N], most [1] (i64),   first, those left out that overlap one before by more than `overlap` (intersection over union),
                overlap [1], least [1]       at most `most` of them; then -1.  Boxes are y, x, y, x of opposite corners (center: x, y,
                                             width, height)
trees           X [N, F], thresholds [M],    op (sum, min, max): the votes of the leaves that each row comes to, joined for each target
                nodes [M, 6], roots [T],     [N, targets].  A node: feature, comparison (0...5: <= < >= > = !=, 8 more: or NaN; -1: leaf),
                weights [W], targets [W]     node where it holds, node where not, first and end of a leaf's votes.  All but X are constant
sizes           -                            dims: the i64 vector (or scalar) whose elements are these Dims
iota            -                            (none); the i64 vector 0, 1, 2, ... of the output's length
bind            small vectors                rule, dims (Dims), options, defines ((symbol, place)...): makes sizes known that depend on
                                             data.  The rule, one of `sartor.graph.rules`, is given the inputs' contents and the dims and
                                             gives a size for each symbol.  No output and nothing to compute: a stage of the plan ends here
if              condition or "", captured... then, else: Graphs whose inputs are the captured values; test (one Dim, not 0 = then) where the
                                             condition is "": it depends on sizes alone; defines (as of host)
loop            trip or "", condition or "", body: a Graph from (iteration i64, condition bool, carried..., captured...) to (condition,
                carried..., captured...      carried..., one element of each stack...); carried (how many); while (whether the body's
                                             condition may end it); defines.  Result: carried..., stacks of a first dimension more
scan            count or "", states...,      body: a Graph from (states..., elements..., captured...) to (states..., elements...); states,
                scanned..., captured...      scanned (how many); reverse (a bool for each scanned input), reverse_outputs (for each stack);
                                             defines.  Elements lie along the first dimension; after `count` of them stacks are 0
host            any                          node (serialized NodeProto), domains ({domain: opset version}), captures (names by which the
                                             node's subgraphs know the inputs that follow the node's own), defines (list of
                                             (symbol, output index, dim index): sizes known only once it has run);
                                             run by onnx's reference

A control layer (if, loop, scan) has bodies: graphs of their own, told apart by the layer and the attribute's name.  What a body takes
from outside is one of its inputs, or a constant of its own; the symbols of the graph around it mean the same in it.

Every graph output is made by a layer, or is a graph input of the same name.  `conditions` lists pairs of Dims that the model needs to be
equal and whose equality does not follow from their form (a skip connection around a halving and a doubling): binding checks
them and refuses sizes that break one.  `wants` (None: nothing may) tells where an input's dim of size 1 may be repeated so that they
hold: along symbols that include none of these sets (`sartor.ops.stretch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sartor.graph.expression import Expression
from sartor.graph.tensor import Tensor
from sartor.sizes import Dim, Size, symbols

__all__ = ["BODIES", "KINDS", "OPAQUE", "Graph", "Layer", "Problem", "Tensor"]

KINDS = ("elementwise", "matmul", "convolution", "deconvolution", "pool", "reduce", "softmax", "normalize", "attention",
         "linear_attention", "recurrent", "transpose", "reshape", "concat", "slice", "pad", "gather", "resize", "sizes", "iota", "scatter",
         "cumulative", "topk", "fourier", "determinant", "regions", "trees", "nonzero", "order", "suppress", "bind", "if", "loop", "scan",
         "host")

BODIES: Mapping[str, tuple[str, ...]] = {"if": ("then", "else"), "loop": ("body",), "scan": ("body",)}
"""The attributes of control layers that are graphs."""

OPAQUE = ("bind", "host", *BODIES)
"""Kinds that passes leave as they are: what they compute is not for passes to know."""


@dataclass(frozen=True)
class Layer:
    """One step of the graph.  `inputs` and `outputs` name values ("" for an absent optional one)."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    expression: Expression | None = None
    extra: tuple[str, ...] = ()
    source: tuple[str, ...] = ()  # names of the model's nodes it came from

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs of a control layer, in order."""
        return tuple(self.attributes[name] for name in BODIES.get(self.kind, ()))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """All values read, without absent ones."""
        return tuple(v for v in (*self.inputs, *self.extra) if v)


def layer_symbols(tensors: Mapping[str, Tensor], layer: Layer) -> set[str]:
    """Names of the symbols in the shapes of a layer's values and in its attributes."""
    dims: list[Any] = [d for value in (*layer.reads, *filter(None, layer.outputs)) for d in tensors[value].shape]
    for attribute in layer.attributes.values():
        dims += attribute if isinstance(attribute, tuple | list) else ()
    found = {name for dim in dims if isinstance(dim, Size) for name in symbols(dim)}
    for body in layer.bodies:
        found |= {name for pair in body.conditions for dim in pair for name in symbols(dim)}
        found = found.union(*(layer_symbols(body.tensors, inner) for inner in body.layers))
    return found


@dataclass
class Graph:
    """Layers in order of computation.  `tensors` has every value, constants included; `constants` the contents of constants."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, Tensor]
    constants: dict[str, np.ndarray[Any, Any]]
    layers: list[Layer]
    name: str = ""
    conditions: list[tuple[Dim, Dim]] = field(default_factory=list)
    wants: tuple[frozenset[str], ...] | None = None

    def problem(self, layer: Layer) -> Problem:
        """The layer with the types and constants it needs."""
        names = (*layer.reads, *filter(None, layer.outputs))
        return Problem(layer, {n: self.tensors[n] for n in names}, {n: self.constants[n] for n in names if n in self.constants})


@dataclass(frozen=True)
class Problem:
    """A layer together with the types of its values and its constant operands: all that a template may look at."""

    layer: Layer
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, np.ndarray[Any, Any]]

    def input(self, index: int) -> Tensor:
        return self.tensors[self.layer.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        return self.tensors[self.layer.outputs[index]]

    def extra(self, index: int) -> Tensor:
        return self.tensors[self.layer.extra[index]]

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Contents of input `index` where it is constant."""
        return self.constants.get(self.layer.inputs[index])

    def __getitem__(self, attribute: str) -> Any:
        return self.layer.attributes[attribute]

    def signature(self) -> str:
        """Everything that decides the layer's speed and nothing that does not: the tuning key, as a hash."""
        import hashlib  # here, since loading a program needs neither
        import json

        layer = self.layer
        seen: dict[str, int] = {}
        operands = []
        for name in (*layer.inputs, *layer.extra, *layer.outputs):
            place = seen.setdefault(name, len(seen))
            operands.append([place, str(self.tensors[name]) if name else "", name in self.constants])
        attributes = {k: str(v) for k, v in sorted(layer.attributes.items()) if k not in ("node",)}
        text = json.dumps([layer.kind, operands, attributes, str(layer.expression)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def free_symbols(self) -> set[str]:
        """Symbols in the shapes of its values."""
        return {s for t in self.tensors.values() for d in t.shape for s in symbols(d)}
