"""The check that runs between graph passes: names, order, types and shapes of a graph of layers.

Sizes are compared as formulas: two that differ by a constant are wrong, two whose difference is symbolic may be equal and pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sartor.errors import GraphError
from sartor.graph.expression import BINARY, UNARY, Expression
from sartor.graph.layer import BODIES, KINDS, OPAQUE, Graph, Layer, Tensor, layer_symbols
from sartor.graph.reference_recurrent import GATES
from sartor.graph.rules import RULES
from sartor.sizes import Dim, Size, floordiv, product
from sartor.types import from_numpy

MOVEMENT = ("transpose", "reshape", "concat", "slice", "pad")  # kinds that only move elements and carry no expression
PLAIN = (*MOVEMENT, "sizes", "iota", "recurrent", "linear_attention", "scatter", "cumulative", "topk", "fourier", "determinant",
         "trees", "nonzero", "order", "suppress", *OPAQUE)  # all kinds that carry no expression

_INPUTS = {"matmul": 2, "convolution": 2, "deconvolution": 2, "pool": 1, "reduce": 1, "softmax": 1, "normalize": 1, "recurrent": 7,
           "linear_attention": 6, "transpose": 1, "reshape": 1, "slice": 1, "pad": 1, "gather": 2, "resize": 1, "sizes": 0, "iota": 0,
           "scatter": 3, "cumulative": 1, "topk": 1, "fourier": 3, "determinant": 1, "regions": 3, "trees": 6, "nonzero": 1, "order": 1,
           "suppress": 5}
_ATTRIBUTES = {
    "matmul": ("transpose_a", "transpose_b"), "convolution": ("strides", "dilations", "pads", "groups"),
    "deconvolution": ("strides", "dilations", "pads", "groups"), "pool": ("mode", "kernel", "strides", "dilations", "pads"),
    "reduce": ("op", "axes"), "softmax": ("axis",), "normalize": ("axes", "mode", "epsilon"), "attention": ("scale", "causal"),
    "linear_attention": ("scale",), "recurrent": ("cell", "reverse", "activations", "clip", "linear_before_reset", "input_forget"),
    "transpose": ("perm",), "concat": ("axis",), "slice": ("starts", "steps"), "pad": ("before", "mode"), "gather": ("axis",),
    "resize": ("mode", "scales", "coordinate"), "sizes": ("dims",), "scatter": ("op",),
    "cumulative": ("op", "axis", "exclusive", "reverse"), "topk": ("axis", "largest"),
    "trees": ("op",), "fourier": ("inverse", "half"), "regions": ("mode", "scale", "offset", "sampling"),
    "suppress": ("center",),
    "bind": ("rule", "dims", "defines"),
    "if": ("then", "else"), "loop": ("body", "carried", "while"),
    "scan": ("body", "states", "scanned", "reverse", "reverse_outputs"), "host": ("node", "domains"),
}


def verify(graph: Graph, before: Graph | None = None) -> None:
    """Raises `GraphError`, naming layer and value, where the graph is malformed.

    Checked are: every value has a type, is made once and before it is read; contents of constants have their declared type; kinds,
    attributes, numbers of inputs, element types and shapes agree with the table in `sartor.graph.layer`; expressions are
    well formed, and their operands broadcast to the output.

    Parameters
    ----------
    graph
        The graph to check.
    before
        A graph that passed the check: layers and constants that both have are not looked at again.
    """
    passed = {} if before is None else {layer.name: layer for layer in before.layers}
    known = set(graph.inputs)
    for name, array in graph.constants.items():
        tensor = _tensor(graph, name, "the constant")
        if before is not None and before.constants.get(name) is array and before.tensors.get(name) is tensor:
            known.add(name)
            continue
        if array.shape != tensor.shape or from_numpy(array.dtype) != tensor.dtype:
            raise GraphError(f"the constant {name} holds {from_numpy(array.dtype)}{list(array.shape)}; declared is {tensor}")
        if name in known:
            raise GraphError(f"the value {name} is both an input and a constant")
        known.add(name)
    for name in graph.inputs:
        _tensor(graph, name, "the input")
    names: set[str] = set()
    for layer in graph.layers:
        if layer.name in names:
            raise GraphError(f"two layers are named {layer.name}")
        names.add(layer.name)
        for value in layer.reads:
            _tensor(graph, value, f"layer {layer.name} reads")
            if value not in known:
                raise GraphError(f"layer {layer.name} reads {value}, which is not made before it")
        for value in filter(None, layer.outputs):
            _tensor(graph, value, f"layer {layer.name} makes")
            if value in known:
                raise GraphError(f"layer {layer.name} makes {value}, which exists already")
            known.add(value)
        if before is None or passed.get(layer.name) is not layer or not _same_types(graph, before, layer):
            check_layer(graph, layer)
    _check_order(graph)
    made = {*graph.inputs, *(value for layer in graph.layers for value in layer.outputs)}
    for name in graph.outputs:
        if name not in made and name not in graph.inputs:
            raise GraphError(f"the graph's output {name} is made by no layer")


def _same_types(graph: Graph, before: Graph, layer: Layer) -> bool:
    return all(graph.tensors[v] is before.tensors.get(v) for v in (*layer.reads, *layer.outputs) if v)


def _tensor(graph: Graph, name: str, what: str) -> Tensor:
    if name not in graph.tensors:
        raise GraphError(f"{what} {name}, which has no type")
    return graph.tensors[name]


def differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes cannot be equal."""
    if a == b:
        return False
    difference = a - b
    return isinstance(difference, int) and difference != 0


def _same(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and not any(differ(x, y) for x, y in zip(a, b, strict=True))


def _broadcasts(shape: Sequence[Dim], to: Sequence[Dim]) -> bool:
    rest = to[len(to) - len(shape):]
    return len(shape) <= len(to) and all(x == 1 or not differ(x, y) for x, y in zip(shape, rest, strict=True))


def check_layer(graph: Graph, layer: Layer) -> None:
    """As `verify`, for one layer whose values have types."""
    where = f"layer {layer.name} ({layer.kind})"
    if layer.kind not in KINDS:
        raise GraphError(f"layer {layer.name} has the unknown kind {layer.kind}")
    if missing := [a for a in _ATTRIBUTES.get(layer.kind, ()) if a not in layer.attributes]:
        raise GraphError(f"{where} lacks the attribute {missing[0]}")
    if layer.kind == "bind":
        _check_bind(graph, layer, where)
        return
    if layer.kind not in OPAQUE:
        if len(layer.outputs) != 1 or not layer.outputs[0]:
            raise GraphError(f"{where} has {len(layer.outputs)} outputs; expected one")
        if (count := _INPUTS.get(layer.kind)) is not None and len(layer.inputs) != count:
            raise GraphError(f"{where} has {len(layer.inputs)} inputs; expected {count}")
        if "" in layer.inputs[:{"attention": 3, "linear_attention": 3, "recurrent": 2}.get(layer.kind)]:
            raise GraphError(f"{where} lacks an input")
    if layer.kind in PLAIN and (layer.expression is not None or layer.extra):
        raise GraphError(f"{where} carries an expression, which kinds that only move elements cannot")
    if layer.extra and layer.expression is None:
        raise GraphError(f"{where} has extra operands but no expression")
    if layer.kind in OPAQUE:
        _check_bodies(graph, layer, where)
        return
    inputs = [graph.tensors[n] for n in layer.inputs if n]
    output = graph.tensors[layer.outputs[0]]
    _check_types(graph, layer, inputs, output, where)
    if layer.kind in _SHAPES and not _SHAPES[layer.kind](layer, inputs, output):
        raise GraphError(f"{where} makes {layer.outputs[0]} of type {output} from {', '.join(map(str, inputs)) or 'nothing'}, "
                         "which does not fit")


def _check_bind(graph: Graph, layer: Layer, where: str) -> None:
    if layer.outputs or layer.extra or layer.expression is not None:
        raise GraphError(f"{where} makes sizes known, and yet has outputs or computes something")
    if layer.attributes["rule"] not in RULES:
        raise GraphError(f"{where} has the unknown rule {layer.attributes['rule']!r}")
    for name in layer.inputs:
        if any(isinstance(d, Size) for d in graph.tensors[name].shape):
            raise GraphError(f"{where} reads {name} of type {graph.tensors[name]}, whose number of elements is not known")


def _check_order(graph: Graph) -> None:
    """Raises `GraphError` where a layer uses a size that a layer after it makes known."""
    waiting = {entry[0]: layer.name for layer in graph.layers for entry in layer.attributes.get("defines", ())}
    for layer in graph.layers if waiting else ():
        own = {entry[0] for entry in layer.attributes.get("defines", ())}
        for name in layer_symbols(graph.tensors, layer) - own:
            if name in waiting:
                raise GraphError(f"layer {layer.name} uses the size {name}, which the layer {waiting[name]} after it makes known")
        for name in own:
            del waiting[name]


def _check_bodies(graph: Graph, layer: Layer, where: str) -> None:
    """Checks the bodies of a control layer, and that they take and make as many values as the layer and of its types."""
    for name, body in zip(BODIES.get(layer.kind, ()), layer.bodies, strict=True):
        verify(body)
        before = {"if": 1, "scan": 1, "loop": 0}[layer.kind]  # inputs that the body does not see; a loop's first two it has its own of
        if len(body.inputs) != len(layer.inputs) - before:
            raise GraphError(f"{where} gives its {name} {len(layer.inputs) - before} values; the {name} takes {len(body.inputs)}")
        results = body.outputs[1 if layer.kind == "loop" else 0:]
        if len(results) != len(layer.outputs):
            raise GraphError(f"{where} has {len(layer.outputs)} outputs; its {name} makes {len(results)}")
        for made, output in zip(results, layer.outputs, strict=True):
            if output and body.tensors[made].dtype != graph.tensors[output].dtype:
                raise GraphError(f"{where} has the output {output} of type {graph.tensors[output]}; its {name} makes {body.tensors[made]}")


def _check_types(graph: Graph, layer: Layer, inputs: list[Tensor], output: Tensor, where: str) -> None:
    raw = raw_dtype(layer, inputs)
    if layer.kind == "concat" and any(t.dtype != output.dtype for t in inputs):
        raise GraphError(f"{where} joins values of different types")
    if layer.expression is None:
        if layer.kind == "elementwise":
            raise GraphError(f"{where} has no expression")
        if raw is not None and raw != output.dtype:
            raise GraphError(f"{where} computes {raw}, but its output {layer.outputs[0]} is {output}")
        return
    names = layer.inputs if layer.kind == "elementwise" else ("", *layer.extra)
    if layer.kind == "elementwise" and layer.extra:
        raise GraphError(f"{where} has extra operands; those of an element-wise layer are its inputs")
    check_expression(layer.expression, len(names), where)
    if layer.expression.dtype != output.dtype:
        raise GraphError(f"{where} has an expression of type {layer.expression.dtype}, but its output {layer.outputs[0]} is {output}")
    for index, name in enumerate(names):
        declared = layer.expression.nodes[index].dtype
        if (found := graph.tensors[name].dtype if name else raw) is not None and found != declared:
            raise GraphError(f"{where} has operand {index} {name} of type {found}; its expression expects {declared}")
        if name and not _broadcasts(graph.tensors[name].shape, output.shape):
            raise GraphError(f"{where} has the operand {name} of type {graph.tensors[name]}, which does not broadcast to {output}")


def raw_dtype(layer: Layer, inputs: Sequence[Tensor]) -> str | None:
    """Element type of the raw result; None where the kind does not settle it (integer products)."""
    if layer.kind in ("sizes", "iota", "topk", "nonzero", "order", "suppress"):
        return "i64"
    if layer.kind == "reduce" and layer.attributes["op"] in ("argmax", "argmin"):
        return "i64"
    if layer.kind == "pool" and layer.attributes["mode"] == "argmax":
        return "i64"
    if not inputs or layer.kind in ("elementwise", "trees"):
        return None
    first = inputs[0].dtype
    return None if layer.kind in ("matmul", "convolution", "deconvolution") and first[0] in "iu" else first


def check_expression(expression: Expression, operands: int, where: str) -> None:
    """Raises `GraphError` where an expression is malformed or has another number of operands."""
    if expression.operands != operands:
        raise GraphError(f"{where} has {operands} operands, but its expression takes {expression.operands}")
    for index, node in enumerate(expression.nodes):
        if (node.op == "operand") != (index < operands):
            raise GraphError(f"{where} has an expression whose node {index} is {node.op}")
        expected = 1 if node.op in UNARY else 2 if node.op in BINARY else {"select": 3, "operand": 0, "constant": 0}.get(node.op)
        if expected is None or len(node.args) != expected:
            raise GraphError(f"{where} has an expression with {node.op} of {len(node.args)} arguments")
        if any(not 0 <= a < index for a in node.args):
            raise GraphError(f"{where} has an expression whose node {index} ({node.op}) uses a later one")
        if node.op == "constant" and node.value is None:
            raise GraphError(f"{where} has an expression with a constant of no value")
    if not 0 <= expression.result < len(expression.nodes):
        raise GraphError(f"{where} has an expression without a result")


# --- shapes: check(layer, inputs, output) -> whether they fit -----------------------------------------------------------------


def _matmul(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    a, b = (t.shape for t in inputs)
    if len(a) < 2 or len(b) < 2 or len(output.shape) != max(len(a), len(b)):
        return False
    m, k = (a[-1], a[-2]) if layer.attributes["transpose_a"] else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if layer.attributes["transpose_b"] else (b[-2], b[-1])
    batch = output.shape[:-2]
    return (not differ(k, k2) and _same((m, n), output.shape[-2:]) and _broadcasts(a[:-2], batch) and _broadcasts(b[:-2], batch))


def _window(layer: Layer, size: Dim, kernel: Dim, axis: int) -> Dim:
    pads, rank = layer.attributes["pads"], len(layer.attributes["strides"])
    reach = (kernel - 1) * layer.attributes["dilations"][axis] + 1
    return floordiv(size + pads[axis] + pads[axis + rank] - reach, layer.attributes["strides"][axis]) + 1


def _convolution(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, w, groups, rank = inputs[0].shape, inputs[1].shape, layer.attributes["groups"], len(layer.attributes["strides"])
    if len(x) != rank + 2 or len(w) != rank + 2 or len(layer.attributes["pads"]) != 2 * rank:
        return False
    spatial = [_window(layer, x[i + 1], w[i], i) for i in range(rank)]
    return not differ(w[-2] * groups, x[-1]) and _same((x[0], *spatial, w[-1]), output.shape)


def _deconvolution(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, w, groups, rank = inputs[0].shape, inputs[1].shape, layer.attributes["groups"], len(layer.attributes["strides"])
    return (len(x) == len(w) == len(output.shape) == rank + 2 and len(layer.attributes["pads"]) == 2 * rank
            and not differ(w[-2], x[-1]) and not differ(w[-1] * groups, output.shape[-1]) and not differ(x[0], output.shape[0]))


def _pool(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, rank = inputs[0].shape, len(layer.attributes["kernel"])
    return (len(x) == len(output.shape) == rank + 2 and len(layer.attributes["pads"]) == 2 * rank
            and _same((x[0], x[-1]), (output.shape[0], output.shape[-1])))


def _reduce(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    axes = layer.attributes["axes"]
    return (tuple(sorted(axes)) == tuple(axes) and all(0 <= a < len(inputs[0].shape) for a in axes)
            and _same([1 if i in axes else d for i, d in enumerate(inputs[0].shape)], output.shape))


def _attention(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    if len(inputs) not in (3, 4) or any(len(t.shape) != 4 for t in (*inputs[:3], output)):
        return False
    q, k, v = (t.shape for t in inputs[:3])
    mask = len(inputs) == 3 or _broadcasts(inputs[3].shape, (q[0], q[2], q[1], k[1]))
    return mask and not differ(q[3], k[3]) and _same(k[:3], v[:3]) and _same((*q[:3], v[3]), output.shape)


def _linear_attention(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    given = iter(inputs)
    shapes = [next(given).shape if name else None for name in layer.inputs]
    q, k, v = shapes[:3]
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == len(output.shape) == 4:
        return False
    batch, steps, heads, depth = q
    state, decay, beta = shapes[3:]
    per_row = decay is None or (len(decay) == 4 and _same(decay[:3], v[:3]) and (decay[3] == 1 or not differ(decay[3], depth)))
    rates = beta is None or (len(beta) == 3 and _same(beta[:2], v[:2]) and (beta[2] == 1 or not differ(beta[2], v[2])))
    return (_same(k[:3], v[:3]) and _same((batch, steps, depth), (k[0], k[1], k[3])) and per_row and rates
            and (state is None or _same(state, (batch, v[2], depth, v[3])))
            and _same((batch, v[2], floordiv(steps * heads, v[2]) + depth, v[3]), output.shape))


def _recurrent(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, weights = inputs[0].shape, inputs[1].shape
    if not len(x) == len(weights) == len(output.shape) - 1 == 3 or layer.attributes["cell"] not in GATES:
        return False
    directions, hidden, columns = weights
    wanted = {"lengths": (x[1],), "h": (directions, x[1], hidden), "c": (directions, x[1], hidden), "bias": (directions, hidden),
              "peepholes": (directions, 3 * hidden)}
    given = [shape for shape, name in zip(wanted.values(), layer.inputs[2:], strict=True) if name]
    extra = 2 if layer.attributes["cell"] == "lstm" else 1
    return (all(_same(t.shape, shape) for t, shape in zip(inputs[2:], given, strict=True))
            and not differ(columns, hidden * GATES[layer.attributes["cell"]]) and not differ(x[2], directions * columns)
            and len(layer.attributes["reverse"]) == len(layer.attributes["activations"])
            and not differ(directions, len(layer.attributes["reverse"]))
            and _same((x[0] + extra, directions, x[1], hidden), output.shape))


def _transpose(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    perm = layer.attributes["perm"]
    return sorted(perm) == list(range(len(inputs[0].shape))) and _same([inputs[0].shape[p] for p in perm], output.shape)


def _concat(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    axis = layer.attributes["axis"]
    total: Dim = 0
    if not inputs or any(len(t.shape) != len(output.shape) for t in inputs) or not 0 <= axis < len(output.shape):
        return False
    for tensor in inputs:
        total = total + tensor.shape[axis]
    return all(_same((*t.shape[:axis], total, *t.shape[axis + 1:]), output.shape) for t in inputs)


def _gather(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, indices, axis = inputs[0].shape, inputs[1].shape, layer.attributes["axis"]
    return 0 <= axis < len(x) and inputs[1].dtype in ("i32", "i64") and _same((*x[:axis], *indices, *x[axis + 1:]), output.shape)


def _scatter(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, indices, updates = inputs
    return (len(x.shape) == 2 and _same(x.shape, output.shape) and indices.dtype == "i64" and len(indices.shape) == 1
            and updates.dtype == x.dtype and _same((indices.shape[0], x.shape[1]), updates.shape))


def _topk(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, axis = inputs[0].shape, layer.attributes["axis"]
    return (len(x) == len(output.shape) and 0 <= axis < len(x)
            and all(i == axis or not differ(a, b) for i, (a, b) in enumerate(zip(x, output.shape, strict=True))))


def _fourier(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, cosines, sines = inputs
    return (len(x.shape) == len(output.shape) == 4 and x.shape[3] in (1, 2) and output.shape[3] in (1, 2)
            and _same((x.shape[0], x.shape[2]), (output.shape[0], output.shape[2])) and len(cosines.shape) == 1
            and _same(cosines.shape, sines.shape) and cosines.dtype == sines.dtype == "f64")


def _trees(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, thresholds, nodes, roots, weights, targets = inputs
    return (len(x.shape) == len(output.shape) == 2 and not differ(x.shape[0], output.shape[0]) and thresholds.dtype == x.dtype
            and _same((*thresholds.shape, 6), nodes.shape) and _same(weights.shape, targets.shape) and len(weights.shape) == 1
            and nodes.dtype == roots.dtype == targets.dtype == "i64")


def _regions(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    x, boxes, images = inputs
    return (len(x.shape) == len(output.shape) == 4 and len(boxes.shape) == 2 and len(images.shape) == 1
            and not differ(boxes.shape[1], 4) and not differ(images.shape[0], boxes.shape[0]) and images.dtype == "i64"
            and boxes.dtype == x.dtype and _same((images.shape[0], x.shape[3]), (output.shape[0], output.shape[3]))
            and all(isinstance(d, int) for d in output.shape[1:3]))


def _suppress(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    boxes, scores = inputs[0].shape, inputs[1].shape
    return (len(boxes) == len(scores) == 3 and _same((boxes[0], scores[1], boxes[1]), scores) and _same(scores, output.shape)
            and boxes[2] == 4 and all(t.shape == (1,) for t in inputs[2:]) and inputs[2].dtype == "i64")


def _each_dim(attribute: str) -> Callable[[Layer, list[Tensor], Tensor], bool]:
    def check(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
        return len(layer.attributes[attribute]) == len(inputs[0].shape) == len(output.shape)

    return check


def _unchanged(layer: Layer, inputs: list[Tensor], output: Tensor) -> bool:
    axes = layer.attributes["axes"] if layer.kind == "normalize" else (layer.attributes["axis"],)
    return _same(inputs[0].shape, output.shape) and all(0 <= a < len(output.shape) for a in axes)


_SHAPES: dict[str, Callable[[Layer, list[Tensor], Tensor], bool]] = {
    "elementwise": lambda layer, inputs, output: True,  # operands were checked with the expression
    "matmul": _matmul, "convolution": _convolution, "deconvolution": _deconvolution, "pool": _pool, "reduce": _reduce,
    "softmax": _unchanged, "normalize": _unchanged, "attention": _attention, "linear_attention": _linear_attention,
    "recurrent": _recurrent,
    "transpose": _transpose, "concat": _concat, "gather": _gather,
    "slice": _each_dim("starts"), "pad": _each_dim("before"), "resize": _each_dim("scales"),
    "reshape": lambda layer, inputs, output: not differ(inputs[0].elements, output.elements),
    "sizes": lambda layer, inputs, output: not differ(product(output.shape), len(layer.attributes["dims"])),
    "iota": lambda layer, inputs, output: len(output.shape) == 1,
    "scatter": _scatter, "cumulative": _unchanged, "topk": _topk, "fourier": _fourier, "trees": _trees, "regions": _regions,
    "determinant": lambda layer, inputs, output: (len(inputs[0].shape) >= 2 and not differ(*inputs[0].shape[-2:])
                                                  and _same(inputs[0].shape[:-2], output.shape)),
    "nonzero": lambda layer, inputs, output: inputs[0].dtype == "bool" and len(inputs[0].shape) == len(output.shape) == 1,
    "order": lambda layer, inputs, output: len(inputs[0].shape) == 2 and _same(inputs[0].shape[:1], output.shape),
    "suppress": _suppress,
}
