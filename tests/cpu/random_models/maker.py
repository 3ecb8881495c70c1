"""Random small ONNX models from a seed: what an operator's entry in the tables works with.

A model grows node by node.  An entry draws operands (values that exist already where one fits, else new inputs or initializers) and
attributes, and the node is run at once by onnx's reference implementation, so that element types and sizes of its results are known
to the nodes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper
from tests.cpu.random_models.fills import Fill, normal
from tests.cpu.random_models.reference import Evaluator

Array: TypeAlias = "np.ndarray[Any, Any]"

NAMES = {  # of element types in onnx's schemas
    "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class SkipError(Exception):
    """Raised by an entry that finds nothing to make here."""


@dataclass
class Source:
    """A value that is fed, or an initializer: how its elements are drawn, and the symbols its sizes are known by."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill
    constant: bool
    symbols: dict[int, str] = field(default_factory=dict)


@dataclass
class Maker:
    """A model being made."""

    rng: np.random.Generator
    opset: int
    sources: dict[str, Source] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)  # values later nodes shall not take: their elements have a meaning of their own
    notes: list[str] = field(default_factory=list)

    # --- drawing ---------------------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        """An integer of low...high, both included."""
        return int(self.rng.integers(low, high + 1))

    def real(self, low: float, high: float) -> float:
        return float(np.float32(self.rng.uniform(low, high)))

    def size(self) -> int:
        """A small size; now and then 0, 1, or one that fills vectors."""
        return int(self.one((1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 17))) if not self.chance(0.03) else 0

    def shape(self, low: int = 0, high: int = 8, limit: int = 3000) -> tuple[int, ...]:
        """A shape of a rank in low...high (mostly small ones) and at most `limit` elements."""
        rank = int(np.clip(self.one((0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8)), low, high))
        sizes = [self.size() for _ in range(rank)]
        while np.prod(sizes, dtype=np.int64) > limit:
            place = int(np.argmax(sizes))
            sizes[place] = max(1, sizes[place] // 2)
        return tuple(sizes)

    def axis(self, rank: int) -> int:
        return self.number(-rank, rank - 1)

    def axis_sign(self, axis: int, rank: int) -> int:
        """The axis, counted from the end now and then."""
        return axis - rank if self.chance(0.4) else axis

    def axes(self, rank: int, low: int = 0) -> list[int]:
        """Distinct axes, some negative."""
        count = self.number(min(low, rank), rank)
        return [int(a) - (rank if self.chance(0.3) else 0) for a in self.rng.permutation(rank)[:count]]

    # --- what the schemas allow ------------------------------------------------------------------------------------------

    def schema(self, op: str) -> Any:
        return onnx.defs.get_schema(op, self.opset)

    def types(self, op: str, place: int, among: Sequence[str] | None = None) -> list[str]:
        """Element types that the operator takes as input `place`."""
        schema = self.schema(op)
        allowed = {t[7:-1] for t in schema.inputs[min(place, len(schema.inputs) - 1)].types if t.startswith("tensor(")}
        names = [NAMES[t] for t in sorted(allowed) if t in NAMES]
        names = [n for n in names if among is None or n in among]
        if not names:
            raise SkipError(f"{op} takes none of the types")
        return names

    def type(self, op: str, place: int = 0, among: Sequence[str] | None = None) -> str:
        """An element type for input `place`, f32 more often than others."""
        names = self.types(op, place, among)
        return "float32" if "float32" in names and self.chance(0.5) else self.one(names)

    def has(self, op: str, attribute: str) -> bool:
        return attribute in self.schema(op).attributes

    def inputs_of(self, op: str) -> int:
        return len(self.schema(op).inputs)

    # --- operands --------------------------------------------------------------------------------------------------------

    def any(self, types: Sequence[str], low: int = 0, high: int = 8, fill: Fill = normal, limit: int = 3000) -> str:
        """An operand of one of these types and a rank in low...high."""
        fitting = [n for n, a in self.values.items() if n not in self.hidden and a.dtype.name in types and low <= a.ndim <= high
                   and a.size <= limit]
        if fitting and self.chance(0.75):
            return str(self.one(fitting[-4:]))
        dtype = "float32" if "float32" in types and self.chance(0.5) else self.one(types)
        return self.new(dtype, self.shape(low, high, limit), fill)

    def tensor(self, dtype: str, shape: Sequence[int], fill: Fill = normal, *, constant: float = 0.35) -> str:
        """An operand of exactly this type and shape."""
        fitting = [n for n, a in self.values.items() if n not in self.hidden and a.dtype.name == dtype and a.shape == tuple(shape)]
        if fitting and self.chance(0.6):
            return str(self.one(fitting))
        return self.new(dtype, shape, fill, constant=constant)

    def new(self, dtype: str, shape: Sequence[int], fill: Fill = normal, *, constant: float = 0.2, hidden: bool = False) -> str:
        """A new input, or with the probability `constant` an initializer; `hidden` from other operators."""
        name = f"{'c' if (fixed := self.chance(constant)) else 'x'}{len(self.sources)}"
        self.sources[name] = Source(name, dtype, tuple(shape), fill, fixed)
        self.values[name] = np.asarray(fill(self.rng, dtype, tuple(shape)))
        if self.values[name].shape != tuple(shape) or self.values[name].dtype.name != dtype:
            raise AssertionError(f"{fill} made {self.values[name].dtype}{self.values[name].shape}, not {dtype}{tuple(shape)}")
        if hidden:
            self.hidden.add(name)
        return name

    def given(self, values: Any, dtype: str = "int64", *, constant: float = 0.9) -> str:
        """An operand of these contents (axes, sizes, scales): mostly an initializer, else an input that is fed the same always."""
        array = np.array(values, dtype=np.dtype(dtype) if dtype != "bfloat16" else bfloat16())
        return self.new(dtype, array.shape, lambda rng, dtype, shape: array, constant=constant, hidden=True)

    def broadcasting(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with `shape`: some sizes 1, leading ones left out, now and then more of them."""
        out = [1 if self.chance(0.3) else d for d in shape]
        out = out[self.number(0, len(out)) if self.chance(0.4) else 0 :]
        if len(shape) < 8 and self.chance(0.15):
            out = [self.number(1, 3), *([1] * (len(shape) - len(out))), *out]
        return tuple(out)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def dtype_of(self, name: str) -> str:
        return str(self.values[name].dtype.name)

    # --- nodes -----------------------------------------------------------------------------------------------------------

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, *, wanted: Sequence[bool] | None = None, **attributes: Any) -> None:
        """Appends a node; attributes that this version of the operator lacks are left out."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        place = len(self.nodes)
        names = [f"v{place}_{k}" if wanted is None or wanted[k] else "" for k in range(outputs)]
        known = {k: v for k, v in attributes.items() if v is not None and self.has(op, k)}
        node = helper.make_node(op, list(inputs), names, name=f"n{place}", **known)
        results = Evaluator(node, self.opset).run([self.values[n] if n else None for n in inputs])
        types = self._inferred(node)
        for name, result in zip(names, results, strict=True):
            if not name:
                continue
            dtype, shape = types.get(name, (result.dtype.name, None))
            if dtype != result.dtype.name:
                raise TypeError(f"the reference makes {result.dtype} where the schema says {dtype}")
            if shape is not None and (len(shape) != result.ndim or any(s not in (None, d) for s, d in zip(shape, result.shape, strict=True))):
                raise ValueError(f"the reference makes the shape {result.shape} where the schema says {shape}")
            self.values[name] = result
        self.nodes.append(node)


    def _inferred(self, node: onnx.NodeProto) -> dict[str, tuple[str, list[int | None] | None]]:
        """Types and shapes of the node's results by onnx's own inference, which also refuses what is not allowed."""
        kinds = {n: helper.make_tensor_type_proto(_kind(self.values[n].dtype), self.values[n].shape) for n in node.input if n}
        data = {n: onnx.numpy_helper.from_array(self.values[n]) for n in node.input if n in self.sources and self.sources[n].constant}
        imports = [helper.make_opsetid("", self.opset)]
        found = onnx.shape_inference.infer_node_outputs(self.schema(node.op_type), node, kinds, data, opset_imports=imports)
        out = {}
        for name, kind in found.items():
            tensor = kind.tensor_type
            dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim] if tensor.HasField("shape") else None
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            out[name] = (dtype, dims)
        return out


def _kind(dtype: np.dtype[Any]) -> int:
    return int(onnx.TensorProto.BFLOAT16 if dtype.name == "bfloat16" else helper.np_dtype_to_tensor_dtype(dtype))


def bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


Make: TypeAlias = Callable[[Maker, str], None]


@dataclass(frozen=True)
class Entry:
    """One operator: how nodes of it are made, and how near a right result must be.

    Attributes
    ----------
    make
        Appends a node of the operator to the maker's model.
    ulps
        By how many units in the last place a result may be off for operands that are exact; 0 for what is moved, selected or counted.
    spread
        By how many units in the last place operands are shifted to find out how far rounding within the operator may carry
        (sums, several steps); 0 where each result is one operation on its operands.
    wide
        Whether the operator on operands of double precision means the same, so that the expected result can be had more exactly.
    within
        The magnitude of what is computed on the way to the result (an exponential from which 1 is taken), rounded like the result.
    precision
        The element type whose rounding counts, where it is not the result's.
    unspecified
        Tells from a node and its operands which elements of its first result ONNX leaves open; one answer without dimensions
        holds for all results.
    weight
        How often it is drawn.
    """

    make: Make
    ulps: float = 2
    spread: float = 0
    within: float = 0
    precision: str = ""
    wide: bool = True
    unspecified: Callable[[onnx.NodeProto, Sequence[Any]], Any] | None = None
    weight: float = 1


@dataclass(frozen=True)
class RandomModel:
    """A model made from a seed, and what to feed it."""

    seed: int
    model: onnx.ModelProto
    sources: Mapping[str, Source]
    feeds: tuple[Mapping[str, Array], ...]
    opset: int
    operators: tuple[str, ...]
    notes: list[str] = field(default_factory=list)  # what the reference could not run while the model was made
