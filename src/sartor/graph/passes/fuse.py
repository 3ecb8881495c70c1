"""Element-wise fusion: element-wise layers become part of the layer that makes their operand, or of each other.

An element-wise layer whose operand is the raw or finished result of a layer that nothing else reads becomes that layer's
expression (of several such operands the one made last takes it, so that a residual sum ends in the later branch).  Else it is
inlined where it is read: by its only reader, or by all of them where computing it again costs less than storing it.
"""

from __future__ import annotations

from sartor.graph.layer import Graph, Layer
from sartor.graph.passes.algebra import RAW, cost, expression_of, operands, substitute, with_operands
from sartor.graph.passes.editor import Editor, merged_source
from sartor.graph.verify import PLAIN, raw_dtype
from sartor.types import working

MOST_OPERANDS = 8  # of one expression: each takes a pointer and registers
MOST_NODES = 64
CHEAP = 4  # cost up to which an element-wise layer is computed again rather than stored
CHEAP_BROADCAST = 2  # the same where it is then computed for more elements than it has


def run(graph: Graph) -> Graph:
    """Fuses element-wise layers (pure: the graph given stays as it was)."""
    editor = Editor(graph)
    changed = True
    while changed:
        changed = False
        for layer in editor.each("elementwise"):
            if _into_maker(editor, layer) or _into_readers(editor, layer):
                changed = True
    return editor.finish()


def carries_expression(layer: Layer) -> bool:
    """Whether the layer may compute an expression on its result."""
    return layer.kind not in PLAIN


def _fits(values: tuple[str, ...], nodes: int) -> bool:
    return len(values) <= MOST_OPERANDS and nodes <= MOST_NODES


def _reads_bits(layer: Layer) -> bool:
    """Whether the layer reads the bits of values that are not computed with as they are stored, so that it must read them itself."""
    nodes = layer.expression.nodes if layer.expression is not None else ()
    types = {t for n in nodes if n.op == "bitcast" for t in (n.dtype, nodes[n.args[0]].dtype)}
    return any(working(t) != t for t in types)


def _into_maker(editor: Editor, layer: Layer) -> bool:
    """Makes the layer part of the expression of the last of its makers that nothing else reads."""
    if _reads_bits(layer):
        return False
    output = layer.outputs[0]
    makers = []
    for value in layer.inputs:
        maker = editor.producer(value)
        if (maker is not None and maker.kind != "elementwise" and carries_expression(maker)
                and editor.sole_reader(value) is layer and editor.same_shape(value, output)):
            makers.append((editor.position(maker), maker))
    for _, maker in sorted(makers, key=lambda pair: pair[0], reverse=True):
        value = maker.outputs[0]
        raw = raw_dtype(maker, [editor.tensors[v] for v in maker.inputs if v]) or editor.tensors[value].dtype
        assert layer.expression is not None
        inner = (operands(maker), expression_of(maker, raw))
        names, expression = substitute(layer.inputs, layer.expression, {value: inner}, (RAW,))
        if _fits(names, len(expression.nodes)):
            editor.remove(layer)
            editor.update(maker, **with_operands(maker, names, expression, outputs=layer.outputs, source=merged_source(maker, layer)))
            return True
    return False


def _into_readers(editor: Editor, layer: Layer) -> bool:
    """Inlines the layer into all layers that read it as an operand of their expressions; whether it is gone then."""
    output = layer.outputs[0]
    readers = editor.readers(output)
    assert layer.expression is not None
    if not readers or output in editor.outputs or _reads_bits(layer):
        return False
    free = layer.expression.is_identity
    if not free and (len(readers) > 1 and not _cheap_again(editor, layer)):
        return False
    merged = []
    for reader in readers:
        values = operands(reader) if reader.expression is not None else ()
        if output not in values or (reader.kind != "elementwise" and output in reader.inputs):
            continue
        same_size = editor.same_shape(reader.outputs[0], output)
        if not same_size and cost(layer.expression) > CHEAP_BROADCAST:
            continue
        first = () if reader.kind == "elementwise" else (RAW,)
        assert reader.expression is not None
        if len(reader.expression.nodes) > MOST_NODES:  # it will not become smaller; the attempt takes its square
            continue
        names, expression = substitute(values, reader.expression, {output: (layer.inputs, layer.expression)}, first)
        if _fits(names, len(expression.nodes)):
            merged.append((reader, names, expression))
    if len(merged) < len(readers) and not (free and merged):
        return False
    for reader, names, expression in merged:
        editor.update(reader, **with_operands(reader, names, expression, source=merged_source(layer, reader)))
    if len(merged) == len(readers):
        editor.remove(layer)
    return True


def _cheap_again(editor: Editor, layer: Layer) -> bool:
    """Whether several readers had better compute the layer than read it: it is cheap and reads no more than it makes."""
    whole = [v for v in layer.inputs if editor.same_shape(v, layer.outputs[0])]
    assert layer.expression is not None
    return cost(layer.expression) <= CHEAP and len(whole) <= 1 and len(editor.readers(layer.outputs[0])) <= 4
