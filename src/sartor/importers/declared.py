"""Holds a node to its operator's declaration: how many inputs and outputs, which attributes, of which types."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.defs import OpSchema


def undeclared(node: onnx.NodeProto, schema: OpSchema) -> str:
    """What of a node is not as declared, in words that follow its name; "" where all is.

    Attributes the operator does not have mean nothing to it: they are told of by `sartor check`, not refused.
    """
    for side, names, least, most in (("inputs", node.input, schema.min_input, schema.max_input),
                                     ("outputs", node.output, schema.min_output, schema.max_output)):
        count = len(names)
        while count and not names[count - 1]:
            count -= 1
        if not least <= len(names) or count > most:
            expected = f"{least}" if least == most else f"at least {least}" if most > 1 << 16 else f"{least} to {most}"
            return f"has {len(names)} {side}; expected {expected}"
    given = {attribute.name: attribute for attribute in node.attribute}
    if len(given) < len(node.attribute):
        return "has an attribute twice"
    for name, declared in schema.attributes.items():
        attribute, kind = given.get(name), _number(declared.type)
        if attribute is None:
            if declared.required:
                return f"lacks the attribute {name!r}"
        elif attribute.type not in (kind, onnx.AttributeProto.UNDEFINED) and not attribute.ref_attr_name:
            return (f"has the attribute {name!r} of type {_words(attribute.type)}; expected is {_words(kind)}")
    return ""


def unknown_attributes(node: onnx.NodeProto, schema: OpSchema) -> list[str]:
    """Names of the attributes that the operator does not have."""
    return [attribute.name for attribute in node.attribute if attribute.name not in schema.attributes]


def declared_part(node: onnx.NodeProto, schema: OpSchema) -> onnx.NodeProto:
    """The node without attributes that the operator does not have."""
    unknown = unknown_attributes(node, schema)
    part = onnx.NodeProto()
    part.CopyFrom(node)
    del part.attribute[:]
    part.attribute.extend(attribute for attribute in node.attribute if attribute.name not in unknown)
    return part


def _number(kind: Any) -> int:
    return int(kind)


def _words(kind: int) -> str:
    return str(onnx.AttributeProto.AttributeType.Name(kind)).lower()
