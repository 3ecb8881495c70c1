"""All operators that random models are made of, and those that they are not, with the reason."""

from __future__ import annotations

import onnx
from tests.cpu.random_models import elementwise, indexing, movement, products, reduction, spatial
from tests.cpu.random_models.maker import Entry

OPERATORS: dict[str, Entry] = {
    **elementwise.OPERATORS,
    **movement.OPERATORS,
    **indexing.OPERATORS,
    **reduction.OPERATORS,
    **spatial.OPERATORS,
    **products.OPERATORS,
}

LEFT_OUT = {
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
                    "random numbers: no two implementations agree"),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), "bodies of nodes: made by tests of their own"),
    **dict.fromkeys(("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
                     "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
                    "sequences and optionals: run by the reference itself"),
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "ImageDecoder"),
                    "strings and files: run by the reference itself"),
}  # fmt: skip


def available(opset: int) -> dict[str, Entry]:
    """The operators that exist in a version of the operator set and are not withdrawn there."""
    found = {}
    for op, entry in OPERATORS.items():
        try:
            schema = onnx.defs.get_schema(op, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            found[op] = entry
    return found
