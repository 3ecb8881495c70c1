"""Element-wise expressions as loop code: the one place where every template's epilogue is written.

`emit_expression` computes an expression on vectors of any number of lanes.  `Epilogue` also fetches the operands: it
classifies each extra operand against the output's shape, so that the usual ones (a scalar, a bias of columns, a
residual of the output's shape, one number a row) cost no address arithmetic.

f16, bf16 and the small floats are held in f32 from load to store, integers of fewer than 8 bits in bytes; casts to them round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sartor.errors import LoopError
from sartor.graph.expression import Expression, Node
from sartor.graph.layer import Problem, Tensor
from sartor.loops import math as functions
from sartor.loops.language import Buffer, Builder, Number, Type, Value
from sartor.sizes import Dim, minimum
from sartor.templates.base import Argument
from sartor.templates.cast_code import bitcast, cast
from sartor.templates.slots import Slots
from sartor.types import working

__all__ = ["Broadcast", "Epilogue", "Operand", "classify", "emit_expression", "present_in", "widen", "working"]



def widen(builder: Builder, value: Value) -> Value:
    """`value` in the type it is computed in."""
    return builder.cast(value, working(value.type.scalar))


def emit_expression(builder: Builder, expression: Expression, operands: Sequence[Value]) -> Value:
    """Emits `expression` on `operands` (scalars or vectors; scalars are broadcast where they meet vectors).

    Parameters
    ----------
    operands
        One value an operand, of the operand's type or the type that is computed in.

    Returns
    -------
    Value
        Of the expression's dtype, with as many lanes as the widest operand.
    """
    lanes = max((o.type.lanes for o in operands), default=1)
    values: list[Value] = []
    narrow: dict[int, Value] = {}  # results of casts in the form in which they are stored
    for node, operand in zip(expression.nodes, operands, strict=False):
        values.append(builder.cast(operand, working(node.dtype)))
    for index, node in enumerate(expression.nodes[expression.operands:], expression.operands):
        if node.op == "cast":
            narrow[index] = cast(builder, values[node.args[0]], node, expression.nodes[node.args[0]].dtype)
            values.append(builder.cast(narrow[index], working(node.dtype)))
        else:
            values.append(_emit(builder, expression, node, values))
    result = narrow.get(expression.result, values[expression.result])
    return builder.broadcast(builder.cast(result, expression.dtype), lanes)


def _emit(builder: Builder, expression: Expression, node: Node, values: list[Value]) -> Value:
    """One node."""
    kind = Type(working(node.dtype))
    if node.op == "constant":
        value = node.value if node.value is not None and not isinstance(node.value, str) else 0
        return builder.constant(value if kind.is_float or kind.scalar == "bool" else int(value), kind)
    args = [values[i] for i in node.args]
    nodes = [expression.nodes[i] for i in node.args]
    if node.op == "bitcast":
        return bitcast(builder, args[0], nodes[0].dtype, node.dtype)
    if node.op == "select":
        return builder.select(args[0], args[1], args[2])
    if node.op == "is_inf":
        return _is_inf(builder, args[0], str(node.value or "both"))
    if len(args) == 1:
        return _unary(builder, node.op, args[0])
    a, b = args
    if a.type.scalar != b.type.scalar:
        b = builder.cast(b, a.type.scalar)
    a, b = builder.unify(a, b)
    return _binary(builder, node.op, a, b, [n.value if n.op == "constant" else None for n in nodes])


# --- one argument ---------------------------------------------------------------------------------------------------------


def _unary(b: Builder, op: str, x: Value) -> Value:
    if x.type.is_float:
        return _unary_float(b, op, x)
    if op in ("not", "bit_not"):
        return ~x
    if op in ("floor", "ceil", "round"):
        return x
    signed = x.type.scalar.startswith("i")
    if op == "is_nan":
        return b.constant(False, x.type.of("bool"))
    if x.type.scalar == "bool" and op in ("abs", "sign", "relu"):
        return x
    if op == "neg":
        return -x
    if op == "abs":
        return b.unary("abs", x) if signed else x
    if op == "relu":
        return b.maximum(x, 0)
    if op == "sign":
        positive = b.cast(x > 0, x.type.scalar)
        return positive - b.cast(x < 0, x.type.scalar) if signed else positive
    result = _unary_float(b, op, b.cast(x, "f64"))
    if op == "erf":  # as a single: what is 1 to its precision is 1, not a little less, which would be cut to 0
        result = b.cast(result, "f32")
    return b.cast(result, x.type.scalar)


def _unary_float(b: Builder, op: str, x: Value) -> Value:
    if op in ("neg", "abs", "sqrt", "floor", "ceil"):
        return b.unary(op, x)
    if op == "round":
        return b.unary("nearbyint", x)
    if op == "reciprocal":
        return 1.0 / x
    if op == "relu":
        return b.maximum(0.0, x)  # in this order a NaN stays
    if op == "sign":
        return b.select(x > 0.0, 1.0, b.select(x < 0.0, -1.0, x))
    if op == "is_nan":
        return x.ne(x)
    if op not in functions.FUNCTIONS:
        raise LoopError(f"kernel {b.name}: the operation {op} is not defined for {x.type}")
    return functions.FUNCTIONS[op](b, x)


def _is_inf(b: Builder, x: Value, which: str) -> Value:
    if not x.type.is_float:
        return b.constant(False, x.type.of("bool"))
    if which == "positive":
        return x.eq(float("inf"))
    return x.eq(float("-inf")) if which == "negative" else b.unary("abs", x).eq(float("inf"))


# --- two arguments --------------------------------------------------------------------------------------------------------

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITS = {"and": "and", "or": "or", "xor": "xor", "bit_and": "and", "bit_or": "or", "bit_xor": "xor"}
_LOGICAL = {"add": "or", "mul": "and", "min": "and", "max": "or", "sub": "xor"}


def _binary(b: Builder, op: str, x: Value, y: Value, constants: list[object]) -> Value:
    if op in _COMPARISONS:
        return b.compare(op, x, y)
    if op in _BITS:
        return b.binary(_BITS[op], x, y)
    if x.type.scalar == "bool":
        return b.binary(_LOGICAL[op], x, y)
    if op in ("add", "sub", "mul"):
        return b.binary(op, x, y)
    if x.type.is_float:
        return _binary_float(b, op, x, y, constants)
    return _binary_integer(b, op, x, y)


def _binary_float(b: Builder, op: str, x: Value, y: Value, constants: list[object]) -> Value:
    if op == "div":
        return x / y
    if op in ("min", "max"):
        return _extreme(b, op, x, y, constants)
    if op in ("fmod", "mod"):
        return _remainder(b, op, x, y)
    if op == "pow":
        return _power(b, x, y, constants[1])
    if op == "atan2":
        return _atan2(b, x, y)
    raise LoopError(f"kernel {b.name}: the operation {op} is not defined for {x.type}")


def _power(b: Builder, x: Value, y: Value, exponent: object) -> Value:
    """x ** y; the exponents that models write out are products and roots."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x * x
    if exponent == 3:
        return x * x * x
    if exponent == -1:
        return 1.0 / x
    return functions.pow_(b, x, y)


def _atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y): the arc tangent of the smaller by the larger coordinate, turned into its octant."""
    width, height = b.unary("abs", x), b.unary("abs", y)
    larger, smaller = b.maximum(width, height), b.minimum(width, height)
    ratio = b.select(larger.eq(0.0), 0.0, b.select(smaller.eq(float("inf")), 1.0, smaller / larger))
    angle = functions.atan(b, ratio)
    angle = b.select(height > width, math.pi / 2 - angle, angle)
    angle = b.select(b.binary("copysign", 1.0, x) < 0.0, math.pi - angle, angle)
    angle = b.binary("copysign", angle, y)
    return b.select(x.ne(x) | y.ne(y), x + y, angle)


def _extreme(b: Builder, op: str, x: Value, y: Value, constants: list[object]) -> Value:
    """min or max that keeps a NaN of either side; the bare operation gives its second operand for NaNs."""
    plain = [isinstance(c, (int, float)) and not math.isnan(c) for c in constants]
    if plain[0]:
        return b.binary(op, x, y)
    if plain[1]:
        return b.binary(op, y, x)
    return b.select(x.ne(x), x, b.binary(op, x, y))


def _remainder(b: Builder, op: str, x: Value, y: Value) -> Value:
    """x - y * trunc(x / y), exact, in f64 while the quotient is below 2^53; fmod has the sign of x, mod of y."""
    scalar = x.type.scalar
    p, q = b.cast(x, "f64"), b.cast(y, "f64")
    if scalar != "f64":
        p = _brought_near(b, p, q)
    r = b.fma(-b.unary("trunc", p / q), q, p)
    # The rounded quotient may be one too large in magnitude: then the remainder has the wrong sign.
    r = b.select((r * p) < 0.0, r + b.binary("copysign", b.unary("abs", q), p), r)
    r = b.select(b.unary("abs", q).eq(float("inf")), b.select(b.unary("abs", p).eq(float("inf")), r, p), r)
    if op == "fmod":
        r = b.binary("copysign", r, p)
    else:
        r = b.select((r * q) < 0.0, r + q, r)
        r = b.select(r.eq(0.0), b.binary("copysign", r, q), r)
    return b.cast(r, scalar)


def _brought_near(b: Builder, p: Value, q: Value) -> Value:
    """p, which like q has the digits of an f32, less multiples of q, so that few bits of the quotient are left; rarely needed."""
    near = b.variable("near", p)
    far = (b.unary("abs", p) >= b.unary("abs", q) * 2.0**28) & (b.unary("abs", p) < float("inf")) & q.ne(0.0)
    with b.branch(b.reduce("or", far)):
        rest = b.unary("abs", p)
        for step in range(9, 0, -1):
            multiple = b.unary("abs", q) * 2.0 ** (28 * step)
            rest = rest - b.unary("trunc", rest / multiple) * multiple  # 28 and 24 bits: exact
            rest = b.select(rest < 0.0, rest + multiple, rest)
        near.set(b.select(far, b.binary("copysign", rest, p), p))
    return near.get()


def _binary_integer(b: Builder, op: str, x: Value, y: Value) -> Value:
    signed = x.type.scalar.startswith("i")
    if op in ("min", "max"):
        return b.binary(op, x, y)
    if op in ("shift_left", "shift_right"):
        bits = 8 * Type(x.type.scalar).bytes
        inside = (y >= 0) & (y < bits) if signed else y < bits
        shifted = b.binary("shl" if op == "shift_left" else "shr", x, b.select(inside, y, 0))
        return b.select(inside, shifted, 0)
    if op == "pow":
        return _integer_power(b, x, y)
    if op in ("div", "mod", "fmod"):
        return _integer_division(b, op, x, y, signed)
    return b.cast(_binary_float(b, op, b.cast(x, "f64"), b.cast(y, "f64"), [None, None]), x.type.scalar)


def _integer_division(b: Builder, op: str, x: Value, y: Value, signed: bool) -> Value:
    """Quotient (truncated) or remainder, 0 for a divisor of 0; processors trap on that and on the least number / -1."""
    zero = y.eq(0)
    minus = y.eq(-1) if signed else None
    safe = b.select(zero if minus is None else zero | minus, 1, y)
    if op == "div":
        q = b.binary("idiv", x, safe)
        q = q if minus is None else b.select(minus, -x, q)
        return b.select(zero, 0, q)
    r = b.binary("irem", x, safe)  # 0 for the guarded divisors
    if op == "mod" and signed:
        r = b.select(r.ne(0) & (r < 0).ne(y < 0), r + y, r)
    return r


def _integer_power(b: Builder, x: Value, y: Value) -> Value:
    """x ** y by squaring; exponents above 63 matter only by their parity, negative ones truncate 1 / x ** -y."""
    power, factor = b.broadcast(b.constant(1, Type(x.type.scalar)), x.type.lanes), x
    exponent = b.select(y > 63, (y & 1) + 62, y)
    for step in range(6):
        power = b.select((exponent & 1).ne(0), power * factor, power)
        exponent = exponent >> 1
        if step < 5:
            factor = factor * factor
    if not x.type.scalar.startswith("i"):
        return power
    inverse = b.select(x.eq(1), 1, b.select(x.eq(-1), b.select((y & 1).eq(0), x * x, x), 0))
    return b.select(y < 0, inverse, power)


# --- operands of an epilogue ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broadcast:
    """How an operand lies against the output it is broadcast to.

    Attributes
    ----------
    groups
        Of the dims but the last, innermost first: (size in the output, stride in rows of the operand).
    column
        Stride along the last dim, in elements: 0 or 1, or a formula that gives 0 or 1.
    """

    groups: tuple[tuple[Dim, Dim], ...]
    column: Dim

    @property
    def kind(self) -> str:
        """scalar, column, row, full or general."""
        if isinstance(self.column, int):
            if not self.groups:
                return "column" if self.column else "scalar"
            if len(self.groups) == 1 and self.groups[0][1] == 1:
                return "full" if self.column else "row"
        return "general"


def present_in(size: Dim, out: Dim) -> Dim:
    """1 where the operand has this dim of the output, 0 where it is broadcast along it."""
    if isinstance(size, int):
        return 0 if size == 1 else 1
    return 1 if size == out else minimum(size - 1, 1)


def classify(operand: Tensor, output: Tensor) -> Broadcast:
    """How `operand` is broadcast to the shape of `output` (right-aligned)."""
    out = output.shape or (1,)
    shape = operand.shape or (1,)
    shape = shape[max(0, len(shape) - len(out)):]
    shape = (1,) * (len(out) - len(shape)) + shape
    column = 0 if out[-1] == 1 else present_in(shape[-1], out[-1])
    groups: list[tuple[Dim, Dim]] = []
    outer: Dim = 1  # rows of the operand inside the dims seen so far
    joined = None  # what the last group is: 0, 1, or None where its size must stay by itself
    for size, extent in zip(shape[-2::-1], out[-2::-1], strict=True):
        if extent == 1:
            continue
        present = present_in(size, extent)
        if groups and joined is not None and joined == present:
            groups[-1] = (groups[-1][0] * extent, groups[-1][1])
        else:
            groups.append((extent, outer * present))
            joined = present if isinstance(present, int) else None
        outer = outer * size
    if all(stride == 0 for _, stride in groups):
        groups.clear()
    return Broadcast(tuple(groups), column)


class Operand:
    """One broadcast operand of a kernel: its argument slots, and loads by the output's row and column."""

    def __init__(self, slots: Slots, value: str, output: Tensor, name: str) -> None:
        builder = slots.builder
        self.builder = builder
        self.broadcast = classify(slots.problem.tensors[value], output)
        self.kind = self.broadcast.kind
        self.buffer: Buffer = slots.pointer(name, value)
        self.pitch: Number = 0
        self.groups: list[tuple[Number, Number]] = []
        self.column: Number = self.broadcast.column if isinstance(self.broadcast.column, int) else 1
        if self.broadcast.groups:
            self.pitch = slots.pitch(f"{name}_pitch", value)
        if self.kind == "general":
            self.groups = [(slots.known("extent", size), slots.known("stride", stride)) for size, stride in self.broadcast.groups]
            self.column = slots.known("column_stride", self.broadcast.column)
        self.value = widen(builder, builder.load(self.buffer)) if self.kind == "scalar" else None

    def row_offset(self, row: Number) -> Number:
        """Elements from the operand's start to the row that meets the output's flattened `row`."""
        if self.kind in ("scalar", "column"):
            return 0
        if self.kind in ("full", "row"):
            return row * self.pitch
        rest, total = row, None
        for place, (size, stride) in enumerate(self.groups):
            last = place + 1 == len(self.groups)
            quotient = rest if last else rest // size  # type: ignore[operator]
            if not (isinstance(stride, int) and stride == 0):
                index = rest if last else rest - quotient * size
                part = index if isinstance(stride, int) and stride == 1 else index * stride
                total = part if total is None else total + part
            rest = quotient
        return 0 if total is None else total * self.pitch

    def load(self, row: Number, column: Number, lanes: int, mask: Value | None = None) -> Value:
        """The operand's elements for the output's columns `column...column + lanes` of `row`, in the type they are computed in.

        A scalar where all lanes are the same.
        """
        return self.load_at(self.row_offset(row), column, lanes, mask)

    def load_at(self, offset: Number, column: Number, lanes: int, mask: Value | None = None) -> Value:
        """As `load`, from a row whose `row_offset` is known."""
        if self.value is not None:
            return self.value
        b = self.builder
        if isinstance(self.column, Value):
            return widen(b, self._load_either(offset, column, lanes, mask))
        if self.column == 0:
            return widen(b, b.load(self.buffer, offset))
        return widen(b, b.load(self.buffer, offset + column, lanes, mask))

    def _load_either(self, offset: Number, column: Number, lanes: int, mask: Value | None) -> Value:
        """A load along columns where it is known only when the kernel runs whether the operand has them."""
        b = self.builder
        found = b.variable("operand", b.constant(0, Type(self.buffer.scalar, lanes)))
        whole = self.column.eq(1) if isinstance(self.column, Value) else b.constant(True, Type("bool"))
        with b.branch(whole):
            found.set(b.load(self.buffer, offset + column, lanes, mask))
        with b.otherwise():
            found.set(b.load(self.buffer, offset))
        return found.get()


class Epilogue:
    """The expression of a layer as code on vectors of raw results.

    Constructing it declares the argument slots of the layer's `extra` operands on `builder` and loads those that are
    scalars, so construct it before any loop.

    Examples
    --------
    >>> epilogue = Epilogue(builder, problem)
    ... builder.store(y, row * pitch + column, epilogue.apply(raw, row, column, lanes, mask), mask)
    ... KernelCall(builder.finish(), (Pointer(...), ..., *epilogue.arguments()), ...)
    """

    def __init__(self, builder: Builder, problem: Problem, slots: Slots | None = None) -> None:
        self.builder = builder
        self.output = problem.output()
        self.expression = problem.layer.expression
        self._own = slots is None
        self._slots = Slots(builder, problem) if slots is None else slots
        self.operands = [Operand(self._slots, value, self.output, f"extra{i}") for i, value in enumerate(problem.layer.extra)]

    @property
    def is_identity(self) -> bool:
        """Whether raw results are stored as they are."""
        return self.expression is None or self.expression.is_identity

    def arguments(self) -> tuple[Argument, ...]:
        """What binding puts into the slots, in the order of their declaration; nothing where they are among slots that were given."""
        return self._slots.arguments if self._own else ()

    @property
    def columns_only(self) -> bool:
        """Whether all operands are scalars or the same in all rows."""
        return all(operand.kind in ("scalar", "column") for operand in self.operands)

    def apply_down(self, raw: Value, column: Number) -> Value:
        """The output's elements in one column of neighbouring rows; only where `columns_only`."""
        if self.expression is None:
            return self.builder.cast(raw, self.output.dtype)
        loaded = [operand.load_at(0, column, 1) for operand in self.operands]
        result = emit_expression(self.builder, self.expression, [raw, *loaded])
        return self.builder.broadcast(self.builder.cast(result, self.output.dtype), raw.type.lanes)

    def apply(self, raw: Value, row: Number, column: Number, lanes: int, mask: Value | None = None) -> Value:
        """The output's elements, of the output's type, ready to be stored.

        Parameters
        ----------
        raw
            `lanes` raw results, of the raw type (f32 for 16-bit floats).
        row
            Row of the output, i64: its index in all dims but the last, flattened.
        column
            Index of the first lane in the output's last dim.
        mask
            Lanes that exist; operands are read for them alone.
        """
        if self.expression is None:
            return self.builder.broadcast(self.builder.cast(raw, self.output.dtype), lanes)
        loaded = [operand.load(row, column, lanes, mask) for operand in self.operands]
        result = emit_expression(self.builder, self.expression, [raw, *loaded])
        return self.builder.broadcast(self.builder.cast(result, self.output.dtype), lanes)

