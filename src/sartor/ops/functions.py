"""Operators that onnx itself defines by a body of simpler ones: where no layers exist for a node, its body is lowered instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx.inliner
import onnx_ir

from sartor.ops.context import Call, Context
from sartor.ops.host import type_proto
from sartor.sizes import Dim

_KEPT = ("Bernoulli", "Range", "SequenceMap")  # their bodies are loops or random, no gain over the operator itself
_DOMAIN = "sartor.body"


def expand(context: Context, call: Call, versions: Mapping[str, int]) -> tuple[onnx_ir.Graph, dict[str, int]] | None:
    """The nodes of the operator's body, and the opset versions they are written in; None where it has none.

    Inputs and outputs of the body have the names of the node's own; all other names are new.
    """
    if call.op_type in _KEPT or not onnx.defs.has(call.op_type, call.version, call.domain):
        return None
    node = onnx_ir.to_proto(call.node)
    for place, name in enumerate(call.inputs):
        node.input[place] = name
    function = _body(context, call, node)
    if function is None:
        return None
    imports = {"": onnx.defs.onnx_opset_version(), **versions, **{entry.domain: entry.version for entry in function.opset_import}}
    function.domain, function.name = _DOMAIN, call.op_type
    node.domain = _DOMAIN
    _add_defaults(node, onnx.defs.get_schema(call.op_type, call.version, call.domain))
    _rename(function, context, call)
    graph = onnx.GraphProto(name=call.name, node=[node])
    graph.input.extend(onnx.ValueInfoProto(name=v) for v in dict.fromkeys(v for v in call.inputs if v))
    graph.output.extend(onnx.ValueInfoProto(name=v) for v in call.outputs if v)
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in {**imports, _DOMAIN: 1}.items()]
    model = onnx.helper.make_model(graph, functions=[function], opset_imports=opsets)
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except Exception:  # noqa: BLE001 -- the body does not fit the node (missing optional inputs); the node then stays whole
        return None
    return onnx_ir.from_proto(inlined).graph, imports


def _add_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Spells out attributes that the body refers to and the node leaves at their defaults."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)


def _body(context: Context, call: Call, node: onnx.NodeProto) -> onnx.FunctionProto | None:
    schema: Any = onnx.defs.get_schema(call.op_type, call.version, call.domain)  # its stub leaves the functions out
    if schema.has_function:
        fitting = [v for v in schema.function_opset_versions if v <= call.version]
        function = schema.get_function_with_opset_version(max(fitting)) if fitting else None
        if isinstance(function, onnx.FunctionProto):  # the schema's own: a copy
            function = function.SerializeToString()
        return onnx.FunctionProto.FromString(function) if function else None
    if not schema.has_context_dependent_function:
        return None
    known: dict[str, Dim] = {}
    types = [type_proto(context.tensor(v), known).SerializeToString() if v else b"" for v in call.inputs]
    fitting = [v for v in schema.context_dependent_function_opset_versions if v <= call.version]
    if not fitting:
        return None
    text = schema.get_context_dependent_function_with_opset_version(max(fitting), node.SerializeToString(), types)
    return onnx.FunctionProto.FromString(text) if text else None


def _rename(function: onnx.FunctionProto, context: Context, call: Call) -> None:
    """Gives the values inside the body names that are new to the graph."""
    outer = {*function.input, *function.output}
    names: dict[str, str] = {}
    for node in function.node:
        node.name = node.name or node.op_type
        for name in node.output:
            if name and name not in outer:
                names[name] = context.unique(f"{call.outputs[0] or call.name}.{name}")
    for node in function.node:
        _replace(node, names)
        node.name = f"{call.name}.{node.name}"


def _replace(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(v, v) for v in node.input]
    node.output[:] = [names.get(v, v) for v in node.output]
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for inner in graph.node:
                _replace(inner, names)
