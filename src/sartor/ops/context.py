"""What an operator function works with while a model is lowered: the values known so far, and the means to emit Layers.

A value is known by its name in IR1.  Of every value the context knows element type and shape (`tensor`), of some the contents:
constants as arrays (`constant`), small integer values that were computed from shapes as arrays of Dims (`content`).  The latter
exist as tensors only once a layer reads them: `value` makes them then, as a `sizes` layer or a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from sartor.errors import ModelError, UnsupportedError
from sartor.graph.expression import Expression, ExpressionBuilder, identity
from sartor.graph.layer import Graph, Layer, Tensor
from sartor.ops.assume import Facts, assumed
from sartor.ops.numbers import Ratio, decoded, fraction, plain, simpler
from sartor.sizes import Atom, Dim, Size, maximum, minimum, product, symbol, symbols
from sartor.types import BYTES, from_numpy, to_numpy

Array: TypeAlias = "np.ndarray[Any, Any]"
Build: TypeAlias = Callable[..., int]

FLOATS = ("f32", "f64", "f16")
ARANGE_LIMIT = 1 << 16  # elements up to which 0, 1, 2, ... is a constant of the program
CONTENT_LIMIT = 4096  # elements up to which integer constants are also seen as contents


class DeclinedError(Exception):
    """Raised by an operator function that has no layers for this case: the node becomes a `host` layer."""


@dataclass(frozen=True)
class Call:
    """One node of the model: its operator, the values it reads ("" for absent ones) and makes, its attributes as plain data."""

    op_type: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    node: Any = field(default=None, compare=False, repr=False)  # the onnx_ir.Node

    def input(self, index: int) -> str:
        """Name of an input; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Name of an output; "" where nobody reads it."""
        return self.outputs[index] if index < len(self.outputs) else ""

    def __getitem__(self, attribute: str) -> Any:
        if attribute not in self.attributes:
            raise ModelError(f"node {self.name!r} ({self.op_type}) lacks the attribute {attribute!r}")
        return self.attributes[attribute]

    def get(self, attribute: str, default: Any = None) -> Any:
        """The attribute's value, or `default` where it is not given (in single precision, as attributes are)."""
        value = self.attributes.get(attribute, default)
        return float(np.float32(value)) if isinstance(value, float) else value

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op_type})"


class Context:
    """The graph in the making.

    The context of a body knows the one `around` it, from which values are taken when they are first named: constants and
    contents as they are, others as inputs of the body (`captured`).  `facts` are what is known of sizes there.
    """

    def __init__(self, name: str = "", around: Context | None = None, facts: Facts | None = None) -> None:
        self.graph = Graph((), (), {}, {}, [], name)
        self.around = around
        self.facts: dict[Atom, Dim] = {**(around.facts if around else {}), **(facts or {})}
        self.captured: list[str] = []
        self.created: set[str] = set()  # symbols made here
        self.contents: dict[str, Array] = {}
        self.aliases: dict[str, str] = {}
        self.sequences: dict[str, tuple[str, ...]] = {}  # sequences as the names of what they hold
        self.call = Call("", "", 0, "", (), (), {})
        self._names: dict[str, int] = around._names if around else {}  # those taken, with the number to try next
        self._lazy: dict[str, Any] = {}  # constants not read yet: onnx_ir tensors
        self._derived: dict[tuple[Any, ...], str] = {}
        self._symbols: dict[str, int] = around._symbols if around else {}
        self.told: set[str] = around.told if around else set()  # symbols of which the network knows the size as a number
        self._layer_names: dict[str, int] = around._layer_names if around else {}
        self._bound: set[str] = set()  # symbols that depend on data
        self._made: set[str] = set()  # contents that exist as tensors too

    # --- values ------------------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> Tensor:
        """Element type and shape of a value."""
        name = self.aliases.get(name, name)
        if name in self.graph.tensors:
            return self.graph.tensors[name]
        if name in self.sequences:
            raise UnsupportedError(f"{self.call} needs the sequence {name!r}, which no layer can hold")
        raise ModelError(f"{self.call} needs the value {name!r}, which nothing makes")

    def sequence(self, name: str) -> tuple[str, ...] | None:
        """What a sequence holds; None where the value is none, or not known."""
        return self.sequences.get(self.aliases.get(name, name))

    def shape(self, name: str) -> tuple[Dim, ...]:
        return self.tensor(name).shape

    def dtype(self, name: str) -> str:
        return self.tensor(name).dtype

    def constant(self, name: str) -> Array | None:
        """Contents of a value that is constant."""
        name = self.aliases.get(name, name)
        if name in self._lazy:
            tensor = self._lazy.pop(name)
            try:
                shape = tuple(int(d) for d in tensor.shape)
                self.graph.constants[name] = decoded(np.ascontiguousarray(tensor.numpy()).reshape(shape))
            except (AssertionError, OSError, TypeError, ValueError) as error:
                raise ModelError(f"the contents of tensor {name!r} cannot be read: {error}") from error
        return self.graph.constants.get(name)

    def is_constant(self, name: str) -> bool:
        name = self.aliases.get(name, name)
        return name in self.graph.constants or name in self._lazy

    def content(self, name: str) -> Array | None:
        """Contents of a small value as an object array of Dims (of bools for bool values), where they are known."""
        name = self.aliases.get(name, name)
        if name in self.contents:
            return self.contents[name]
        if self.tensor(name).dtype not in ("i64", "i32", "bool", *FLOATS):
            return None
        if 0 in self.tensor(name).shape and not any(isinstance(d, Size) for d in self.tensor(name).shape):
            return np.empty(self.tensor(name).shape, object)
        if not self.is_constant(name):
            return None
        if (array := self.constant(name)) is None or array.size > CONTENT_LIMIT:
            return None
        out = np.empty(array.shape, object)
        out.reshape(-1)[:] = [fraction(x) if isinstance(x, float) else x for x in array.reshape(-1).tolist()]
        return out

    def dims(self, name: str) -> list[Dim] | None:
        """Contents of a small integer value, flat; None where they are not known."""
        content = self.content(name)
        if content is None or any(not isinstance(d, int | Size) for d in content.reshape(-1)):
            return None
        return list(content.reshape(-1))

    def require_dims(self, name: str) -> list[Dim]:
        """As `dims`; raises `DeclinedError` where the contents are not known."""
        if (dims := self.dims(name)) is None:
            raise DeclinedError(f"{self.call} needs the contents of {name!r}")
        return dims

    def require_ints(self, name: str) -> list[int]:
        """As `ints`; raises `DeclinedError` where the contents are not plain numbers."""
        if (ints := self.ints(name)) is None:
            raise DeclinedError(f"{self.call} needs the contents of {name!r}")
        return ints

    def require_constant(self, name: str) -> Array:
        """As `constant`; raises `DeclinedError` where the value is not constant."""
        if (array := self.constant(name)) is None:
            raise DeclinedError(f"{self.call} needs the contents of {name!r}")
        return array

    def ints(self, name: str) -> list[int] | None:
        """Contents of a small integer value where all are plain numbers."""
        dims = self.dims(name) or []
        ints = [d for d in dims if isinstance(d, int)]
        return ints if self.dims(name) is not None and len(ints) == len(dims) else None

    def value(self, name: str) -> str:
        """The name to read a value by in a layer; makes a tensor of a value of which only the contents exist."""
        name = self.aliases.get(name, name)
        if self.is_constant(name):
            self.constant(name)
        elif name in self.contents and name not in self._made:
            self._made.add(name)
            self._materialize(name, self.contents[name])
        return name

    def _materialize(self, name: str, content: Array) -> None:
        """Emits the layers that make a tensor of known contents: sizes, and for other forms and types what follows them."""
        tensor, flat = self.graph.tensors[name], list(content.reshape(-1))
        denominators = [d.denominator if isinstance(d, Ratio) else 1 for d in flat]
        dims = tuple(d.numerator if isinstance(d, Ratio) else d for d in flat)
        steps: list[tuple[str, Tensor, dict[str, Any], Expression | None]] = []
        vector = content.shape if content.ndim <= 1 else (len(flat),)
        steps.append(("sizes", Tensor("i64", vector), {"dims": dims}, None))
        if content.ndim > 1:
            steps.append(("reshape", Tensor("i64", content.shape), {}, None))
        if tensor.dtype != "i64":
            build = ExpressionBuilder(["i64"])
            steps.append(("elementwise", tensor, {}, build.finish(build("cast", 0, dtype=tensor.dtype))))
        extra: list[str] = []
        if any(d != 1 for d in denominators):
            array = np.array(denominators, to_numpy(tensor.dtype)).reshape(content.shape)
            extra = [self.new_constant(array, f"{name}.denominators")]
            build = ExpressionBuilder([tensor.dtype, tensor.dtype])
            steps.append(("elementwise", tensor, {}, build.finish(build("div", 0, 1))))
        read: tuple[str, ...] = ()
        for number, (kind, result, attributes, expression) in enumerate(steps):
            last = number == len(steps) - 1
            made = name if last else self.unique(f"{name}.{kind}")
            self.graph.tensors[made] = result
            reads = (*read, *extra) if last else read
            self.append(Layer(self.unique_layer(f"{name}.{kind}"), kind, reads, (made,), attributes, expression, (),
                              (self.call.name,)))
            read = (made,)

    # --- bodies ------------------------------------------------------------------------------------------------------------

    def knows(self, name: str) -> bool:
        """Whether there is such a value here."""
        name = self.aliases.get(name, name)
        return name in self.graph.tensors or name in self.contents or name in self.sequences or self.is_constant(name)

    def take(self, name: str) -> None:
        """Makes a value of the graph around known here, where it is not yet and there is one."""
        around = self.around
        if around is None or not name or self.knows(name):
            return
        around.take(name)
        if (target := around.aliases.get(name, name)) != name:
            self.take(target)
            self.alias(name, target)
        elif (items := around.sequence(name)) is not None:
            for item in items:
                self.take(item)
            self.sequences[name] = items
        elif name in around._lazy:
            self.set_lazy_constant(name, around._lazy[name], around.dtype(name))
        elif (array := around.constant(name)) is not None:
            self.set_constant(name, array)
        elif name in around.contents:
            self.set_content(name, around.contents[name], around.dtype(name))
        elif name in around.graph.tensors:
            tensor = around.graph.tensors[name]
            self.graph.tensors[name] = Tensor(tensor.dtype, tuple(assumed(d, self.facts) for d in tensor.shape))
            self.captured.append(name)

    def assume(self, facts: Facts) -> None:
        """Writes what is known from now on into all shapes and contents."""
        self.facts.update(facts)
        for name, tensor in self.graph.tensors.items():
            shape = tuple(assumed(d, self.facts) for d in tensor.shape)
            if shape != tensor.shape:
                self.graph.tensors[name] = Tensor(tensor.dtype, shape)
        for name in sorted(set(self.contents) - self._made):
            self.set_content(name, self.contents.pop(name), self.dtype(name))

    # --- making values -----------------------------------------------------------------------------------------------------

    def unique(self, base: str) -> str:
        """`base`, with a number appended where it is taken."""
        return _free(base, self._names)

    def unique_layer(self, base: str) -> str:
        """A layer's name: `base`, with a number appended where it is taken."""
        return _free(base, self._layer_names)

    def mark(self) -> tuple[Any, ...]:
        """The state to go back to by `rewind`."""
        return len(self.graph.layers), len(self.graph.conditions), set(self._made), set(self.contents)

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Takes back the layers, conditions and contents that came after `mark`."""
        layers, conditions, self._made, contents = mark
        del self.graph.layers[layers:]
        del self.graph.conditions[conditions:]
        for name in set(self.contents) - contents:
            del self.contents[name]

    def reserve(self, name: str) -> None:
        """Marks a name of the model as taken."""
        self._names.setdefault(name, 1)

    def symbol(self, base: str) -> Size:
        """A fresh symbol."""
        name = _free(base, self._symbols)
        self.created.add(name)
        return symbol(name)

    def reserve_symbol(self, name: str) -> None:
        self._symbols.setdefault(name, 1)

    def alias(self, name: str, of: str) -> None:
        """Lets `name` stand for the existing value `of`."""
        of = self.aliases.get(of, of)
        self.aliases[name] = of

    def set_content(self, name: str, content: Array, dtype: str = "i64") -> None:
        """Gives a value by its contents, an object array of Dims."""
        known = [assumed(d, self.facts) if isinstance(d, Size) else d for d in content.reshape(-1)]
        flat = [plain(d) for d in known]
        if not any(isinstance(d, Size | Ratio) for d in flat):
            self.set_constant(name, np.array(flat, to_numpy(dtype)).reshape(content.shape))
            return
        self.told.update(*(symbols(d) for d in known if isinstance(d, Size)),
                         *(symbols(d.numerator) for d in known if isinstance(d, Ratio)))
        self.graph.tensors[name] = Tensor(dtype, content.shape)
        self.contents[name] = np.empty(content.shape, object)
        self.contents[name].reshape(-1)[:] = known

    def set_constant(self, name: str, array: Array) -> str:
        """Gives a value by its contents."""
        array = np.asarray(array)
        array = decoded(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        self.graph.tensors[name] = Tensor(from_numpy(array.dtype), array.shape)
        self.graph.constants[name] = array
        return name

    def move_aside(self, name: str) -> str:
        """Moves the contents of a constant to a new name, so that a layer can make its old one; returns the new name."""
        moved = self.unique(f"{name}.constant")
        self.graph.constants[moved] = self.graph.constants.pop(name)
        return moved

    def set_lazy_constant(self, name: str, tensor: Any, dtype: str) -> None:
        """Gives a value by an onnx_ir tensor that is read when first needed."""
        self.graph.tensors[name] = Tensor(dtype, tuple(int(d) for d in tensor.shape))
        self._lazy[name] = tensor

    def new_constant(self, array: Array, base: str) -> str:
        """A constant under a name of its own, made from `base`."""
        return self.set_constant(self.unique(base), array)

    def derived_constant(self, name: str, key: tuple[Any, ...], make: Callable[[Array], Array], base: str) -> str | None:
        """A constant computed from the constant `name`, once for each `key`; None where `name` is not constant."""
        key = (self.aliases.get(name, name), *key)
        if key not in self._derived:
            if (array := self.constant(name)) is None:
                return None
            self._derived[key] = self.new_constant(make(array), base)
        return self._derived[key]

    # --- layers ------------------------------------------------------------------------------------------------------------

    def append(self, layer: Layer) -> None:
        self.graph.layers.append(layer)

    def layer(self, kind: str, inputs: Sequence[str], result: Tensor, *, output: str | None = None, suffix: str = "",
              expression: Expression | None = None, extra: Sequence[str] = (), **attributes: Any) -> str:
        """Emits a layer with one output and returns the output's name.

        `output` is the value it makes; left out, the value is a new one, named after the node's first output and `suffix`
        (or the kind).
        """
        own = next(filter(None, self.call.outputs), None)  # the layer that makes the node's first output has the node's name
        label = suffix or ("" if output and output == own else output or kind)
        if output is None:
            output = self.unique(f"{self.call.output(0)}.{label}")
        name = self.unique_layer(f"{self.call.name}.{label}") if label else self.call.name
        self.graph.tensors[output] = result
        reads = tuple(self.value(v) if v else "" for v in inputs)
        extras = tuple(self.value(v) for v in extra)
        self.append(Layer(name, kind, reads, (output,), attributes, expression, extras, (self.call.name,)))
        return output

    def elementwise(self, operands: Sequence[str], build: Build, shape: Sequence[Dim], *, output: str | None = None,
                    suffix: str = "") -> str:
        """Emits an elementwise layer; `build(expression builder, operand indices...)` returns the result's node.

        Constants of one element become constants of the expression.
        """
        scalars = {v: a for v in operands if self.is_constant(v) and self.tensor(v).elements == 1
                   and self.dtype(v) in BYTES and (a := self.constant(v)) is not None}
        read = list(dict.fromkeys(v for v in operands if v not in scalars)) or [operands[0]]
        e = ExpressionBuilder([self.dtype(v) for v in read])
        index = [read.index(v) if v in read else e.constant(scalars[v].item(), self.dtype(v)) for v in operands]
        expression = e.finish(build(e, *index))
        return self.layer("elementwise", read, Tensor(expression.dtype, tuple(shape)), output=output, suffix=suffix,
                          expression=expression)

    def copy(self, value: str, output: str) -> str:
        """Emits a layer that copies a value."""
        tensor = self.tensor(value)
        return self.layer("elementwise", [value], tensor, output=output, expression=identity(tensor.dtype))

    def transpose(self, value: str, perm: Sequence[int], *, output: str | None = None, suffix: str = "transpose") -> str:
        """Emits a transpose; permutes a constant at once."""
        if tuple(perm) == tuple(range(len(perm))) and output is None:
            return self.aliases.get(value, value)
        if output is None and self.is_constant(value):
            made = self.derived_constant(value, ("transpose", *perm), lambda a: np.ascontiguousarray(a.transpose(perm)),
                                         f"{value}.{suffix}")
            if made is not None:
                return made
        tensor = self.tensor(value)
        result = Tensor(tensor.dtype, tuple(tensor.shape[p] for p in perm))
        return self.layer("transpose", [value], result, output=output, suffix="" if output else suffix, perm=tuple(perm))

    def reshape(self, value: str, shape: Sequence[Dim], *, output: str | None = None, suffix: str = "reshape") -> str:
        """Emits a reshape; reshapes a constant at once.  Where sizes are symbols, that the elements are as many becomes a condition."""
        tensor = self.tensor(value)
        self.same(product(tensor.shape), product(shape), "its elements")
        if output is None and tensor.shape == tuple(shape):
            return self.aliases.get(value, value)
        if output is None and self.is_constant(value) and not any(isinstance(d, Size) for d in shape):
            ints = [int(d) for d in shape if not isinstance(d, Size)]
            made = self.derived_constant(value, ("reshape", *ints), lambda a: a.reshape(ints), f"{value}.{suffix}")
            if made is not None:
                return made
        return self.layer("reshape", [value], Tensor(tensor.dtype, tuple(shape)), output=output,
                          suffix="" if output else suffix)

    def broadcastable(self, value: str, shape: Sequence[Dim]) -> str:
        """`value`, reshaped where one of its sizes is at most 1 and `shape`, to which it broadcasts, has another there."""
        own = self.shape(value)
        places = zip(own, shape[len(shape) - len(own):], strict=True)
        wanted = [1 if d != n and _at_most_one(d) else d for d, n in places]
        return value if tuple(wanted) == own else self.reshape(value, wanted, suffix="ones")

    # --- sizes -------------------------------------------------------------------------------------------------------------

    def bind(self, rule: str, inputs: Sequence[str], count: int, dims: Sequence[Dim] = (), **options: Any) -> list[Dim]:
        """Sizes that depend on data: emits a `bind` layer and returns the `count` sizes that its rule finds when the model runs.

        Raises `DeclinedError` where the number of elements it is to read is itself not known.
        """
        for name in inputs:
            if any(isinstance(d, Size) for d in self.shape(name)) or self.dtype(name) == "string":
                raise DeclinedError(f"{self.call} needs the contents of {name!r}, which may be of any length")
        found: list[Dim] = [self.symbol(f"{self.call.output(0)}.{rule}_{place}") for place in range(count)]
        self._bound |= {str(symbol) for symbol in found}
        if count:
            defines = tuple((str(symbol), place) for place, symbol in enumerate(found))
            attributes = {"rule": rule, "dims": tuple(dims), "options": {**options, "what": str(self.call)}, "defines": defines}
            self.append(Layer(self.unique_layer(f"{self.call.name}.bind"), "bind", tuple(map(self.value, inputs)), (), attributes,
                              None, (), (self.call.name,)))
        return found

    def known_sizes(self, name: str) -> list[Dim]:
        """Contents of a value that holds sizes, flat; where they are not known, they are from here on, as symbols."""
        if (dims := self.dims(name)) is not None:
            return dims
        elements = self.tensor(name).elements
        if not isinstance(elements, int):
            raise DeclinedError(f"{self.call} needs the contents of {name!r}, which may be of any length")
        dims = self.bind("sizes", [name], elements)
        if self.dtype(name) in ("i64", "i32"):
            name = self.aliases.get(name, name)
            content = np.empty(len(dims), object)
            content[:] = dims
            self.contents[name] = content.reshape(self.static_shape(name))
            self._made.add(name)
        return dims

    def static_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value; raises `DeclinedError` where a dimension is symbolic."""
        shape = self.shape(name)
        if any(isinstance(d, Size) for d in shape):
            raise DeclinedError(f"{self.call} needs to know the shape of {name!r}")
        return tuple(int(d) for d in shape if not isinstance(d, Size))

    def same(self, a: Dim, b: Dim, what: str) -> Dim:
        """The common value of two sizes that must be equal; notes a condition where that cannot be told from their form.

        Raises `ModelError` where they cannot be equal.
        """
        if a == b:
            return a
        if isinstance(a - b, int):
            raise ModelError(f"{self.call} joins sizes that differ, {a} and {b}, along {what}")
        if (a, b) not in self.graph.conditions and (b, a) not in self.graph.conditions:
            self.graph.conditions.append((a, b))
        return simpler(a, b)

    def _note_one(self, dim: Dim) -> None:
        if dim != 1:
            self.same(dim, 1, "an axis that is broadcast")

    def require_at_least(self, a: Dim, b: Dim) -> None:
        """Notes the condition a >= b where that cannot be told from the form of the sizes."""
        if isinstance(gap := a - b, int) and gap < 0:
            raise ModelError(f"{self.call} needs a dimension of at least {b} where it has {a}")
        if maximum(a, b) != a:
            self.same(maximum(a, b), a, "an axis")

    def size_value(self, dim: Dim) -> str:
        """A size as an i64 scalar value."""
        name = self.unique(f"{self.call.output(0)}.size")
        content = np.empty((), object)
        content[()] = dim
        self.set_content(name, content)
        return name

    def arange(self, dim: Dim) -> str:
        """The i64 vector 0, 1, ... dim - 1."""
        if isinstance(dim, int) and dim <= ARANGE_LIMIT:
            return self.new_constant(np.arange(dim, dtype=np.int64), f"{self.call.output(0)}.iota")
        return self.layer("iota", [], Tensor("i64", (dim,)))

    def broadcast(self, shapes: Sequence[Sequence[Dim]], bound: bool = False) -> tuple[Dim, ...]:
        """The shape that all `shapes` broadcast to.

        Sizes of which it is not known whether they are 1 are taken not to be, but for `bound` those that depend on data.
        """
        rank = max((len(s) for s in shapes), default=0)
        out: list[Dim] = []
        for axis in range(rank):
            common: Dim = 1
            for shape in shapes:
                place = axis - rank + len(shape)
                dim = shape[place] if place >= 0 else 1
                if common == 1 or (_at_most_one(common) and dim != 1):
                    self._note_one(common)
                    common = dim
                elif dim != 1 and common != dim and _at_most_one(dim):
                    self._note_one(dim)
                elif dim != 1:
                    loose = bound and common != dim and not self._bound.isdisjoint(symbols(common) | symbols(dim))
                    common = self._joined(common, dim) if loose else self.same(common, dim, f"dimension {axis}")
            out.append(common)
        return tuple(out)


    def _joined(self, a: Dim, b: Dim) -> Dim:
        """What two sizes broadcast to, of which either may turn out to be 1."""
        if isinstance(b, int):
            a, b = b, a
        out = a if isinstance(a, int) else _unless_one(a, b)
        self.graph.conditions.append((_unless_one(b, out), out))
        return out


def _free(base: str, taken: dict[str, int]) -> str:
    """`base`, with a number appended where it is taken; `taken` maps names to the number to try next for each."""
    name, number = base, taken.get(base, 1)
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken[base] = number
    taken.setdefault(name, 1)
    return name


def _unless_one(a: Dim, b: Dim) -> Dim:
    """`a`, or `b` where `a` is 1."""
    one = minimum(a, 1) - minimum(maximum(a - 1, 0), 1)  # 1 where a is 1, else 0
    return a + one * (b - a)


def _at_most_one(dim: Dim) -> bool:
    """Whether a size is the smaller of 1 and a formula, as that of a slice of the first element."""
    if not isinstance(dim, Size) or len(dim.terms) != 1:
        return False
    (atoms, factor), = dim.terms
    return factor == 1 and len(atoms) == 1 and atoms[0].op == "min" and 1 in atoms[0].args
