"""IR3: the loop language.  A `Kernel` is a tree of typed statements, built by plain Python calls on a `Builder`.

A kernel computes `kernel(args, scratch, begin, end)`: `args` is an array of 8-byte slots (pointers, sizes, row tables), `scratch`
the calling thread's slab, and `begin..end` the slice of the parallel extent to compute.  A kernel knows nothing of threads,
neighbours or the network.

    b = Builder("scale")
    x, y = b.pointer("x", "f32"), b.pointer("y", "f32")
    with b.loop("i", b.begin, b.end) as i:
        b.store(y, i, b.load(x, i) * 2.0)
    kernel = b.finish()

Statements are in SSA form: each operation makes one `Value`; what changes (accumulators) is a `Variable`.  Loops, branches
and local arrays are structured.  Python `for` loops over the builder are unrolled code.  `print(kernel)` gives readable text.

Scalar types: `bool` (one byte in memory), `i8 i16 i32 i64`, `u8 u16 u32 u64`, `f16 bf16 f32 f64`, and the codes of 8 bits and
fewer (`f8e4m3fn`, `i4`, ...), bytes which `Builder.cast` alone understands.  `Type(scalar, lanes)` is a vector when
lanes > 1.  Arithmetic between a scalar and a vector broadcasts the scalar; Python numbers become constants of the other
operand's type.  f16, bf16 and codes are for loads, stores, casts and moves of lanes; arithmetic is done in wider types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sartor.errors import LoopError
from sartor.types import BYTES, CODED

FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
SCALARS = ("bool", *SIGNED, *UNSIGNED, *FLOATS, *CODED)

# Operations on values of one type, by what they need.  Integer division and remainder truncate, as in C.
# min(a, b) is `a < b ? a : b` and max(a, b) is `a > b ? a : b`: where an operand is NaN, or both are zeros, the result is b.
# Shifts by the width or more, division by zero and casts of floats out of an integer's range are undefined.
BINARY_ANY = ("add", "sub", "mul", "min", "max")
BINARY_FLOAT = ("div", "copysign")
BINARY_INTEGER = ("idiv", "irem", "and", "or", "xor", "shl", "shr")  # shr is arithmetic for signed, logical for unsigned
UNARY_FLOAT = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "nearbyint")  # nearbyint: ties to even
UNARY_INTEGER = ("ineg", "not", "popcount", "leading_zeros")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")  # ordered for floats, except ne, which is true for NaN
REDUCTIONS = ("add", "mul", "min", "max", "and", "or")


@dataclass(frozen=True)
class Type:
    """A scalar (`lanes == 1`) or a vector of scalars."""

    scalar: str
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.scalar not in SCALARS or self.lanes < 1:
            raise LoopError(f"{self.scalar} x {self.lanes} is not a type of the loop language; scalars are {', '.join(SCALARS)}")

    @property
    def is_float(self) -> bool:
        return self.scalar in FLOATS

    @property
    def is_narrow(self) -> bool:
        """Whether this is a 16-bit float or a code of 8 bits and fewer, which have no arithmetic."""
        return self.scalar in ("f16", "bf16") or self.scalar in CODED

    @property
    def bytes(self) -> int:
        return BYTES[self.scalar] * self.lanes

    def of(self, scalar: str) -> Type:
        """The same number of lanes of another scalar."""
        return Type(scalar, self.lanes)

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"{self.scalar}x{self.lanes}"


I64 = Type("i64")
Number: TypeAlias = "Value | int | float | bool"


@dataclass(eq=False)
class Value:
    """The result of one operation.  Arithmetic operators emit operations on the builder the value came from."""

    name: str
    type: Type
    builder: Builder = field(repr=False)

    def __add__(self, o: Number) -> Value:
        return self.builder.binary("add", self, o)

    def __radd__(self, o: Number) -> Value:
        return self.builder.binary("add", o, self)

    def __sub__(self, o: Number) -> Value:
        return self.builder.binary("sub", self, o)

    def __rsub__(self, o: Number) -> Value:
        return self.builder.binary("sub", o, self)

    def __mul__(self, o: Number) -> Value:
        return self.builder.binary("mul", self, o)

    def __rmul__(self, o: Number) -> Value:
        return self.builder.binary("mul", o, self)

    def __truediv__(self, o: Number) -> Value:
        return self.builder.binary("div", self, o)

    def __rtruediv__(self, o: Number) -> Value:
        return self.builder.binary("div", o, self)

    def __floordiv__(self, o: Number) -> Value:
        return self.builder.binary("idiv", self, o)

    def __mod__(self, o: Number) -> Value:
        return self.builder.binary("irem", self, o)

    def __and__(self, o: Number) -> Value:
        return self.builder.binary("and", self, o)

    def __or__(self, o: Number) -> Value:
        return self.builder.binary("or", self, o)

    def __xor__(self, o: Number) -> Value:
        return self.builder.binary("xor", self, o)

    def __lshift__(self, o: Number) -> Value:
        return self.builder.binary("shl", self, o)

    def __rshift__(self, o: Number) -> Value:
        return self.builder.binary("shr", self, o)

    def __neg__(self) -> Value:
        return self.builder.unary("neg" if self.type.is_float else "ineg", self)

    def __invert__(self) -> Value:
        return self.builder.unary("not", self)

    def __lt__(self, o: Number) -> Value:
        return self.builder.compare("lt", self, o)

    def __le__(self, o: Number) -> Value:
        return self.builder.compare("le", self, o)

    def __gt__(self, o: Number) -> Value:
        return self.builder.compare("gt", self, o)

    def __ge__(self, o: Number) -> Value:
        return self.builder.compare("ge", self, o)

    def eq(self, o: Number) -> Value:
        return self.builder.compare("eq", self, o)

    def ne(self, o: Number) -> Value:
        return self.builder.compare("ne", self, o)

    def __bool__(self) -> bool:
        raise LoopError(f"{self.name} is known only when the kernel runs; use Builder.select or Builder.branch")


@dataclass(frozen=True, eq=False)
class Buffer:
    """An address and the scalar type of what lies there.  `length` is the number of elements where it is known (local arrays)."""

    name: str
    scalar: str
    builder: Builder = field(repr=False)
    length: int | None = None

    def at(self, offset: Number) -> Buffer:
        """The buffer that starts `offset` elements later."""
        return self.builder.offset(self, offset)


@dataclass(frozen=True, eq=False)
class Variable:
    """A mutable scalar or vector in registers; `get` and `set` emit a read and a write."""

    name: str
    type: Type
    builder: Builder = field(repr=False)

    def get(self) -> Value:
        return self.builder.emit("read", self.type, (self.name,))

    def set(self, value: Number) -> None:
        self.builder.assign(self, value)


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of row addresses (argument kind `rows`)."""

    name: str
    scalar: str
    builder: Builder = field(repr=False)

    def row(self, index: Number) -> Buffer:
        """The buffer whose address is entry `index` of the table."""
        return self.builder.row(self, index)


# --- statements -----------------------------------------------------------------------------------------------------------

Operand: TypeAlias = "str | int | float | bool"


@dataclass(frozen=True)
class Op:
    """One operation.  `result` is "" for stores.  Operands are names of values, buffers or variables, or Python numbers, which
    are constants of the operation's operand type.  `attributes` are compile-time facts: lanes, align, indexes, non_temporal.

    code        operands                     result type         meaning
    <binary>    a, b                         type of a           see BINARY_*
    <unary>     a                            type of a           see UNARY_*
    compare     a, b  (predicate=)           bool x lanes        see COMPARISONS
    select      mask, a, b                   type of a           mask is bool, scalar or of as many lanes
    fma         a, b, c                      type of a           a * b + c (one rounding where the machine has it, else two)
    cast        a                            any, same lanes     value conversion; float to int truncates; to bool is `!= 0`
    bitcast     a                            same bytes          reinterprets bits
    broadcast   a                            vector              all lanes are a
    iota        -                            vector              0, 1, 2, ...
    extract     v  (lane=)                   scalar
    insert      v, a  (lane=)                vector
    shuffle     v, w  (indexes=)             vector              lanes of v then w, by constant index
    reduce      v  (kind=)                   scalar              in a fixed order; see REDUCTIONS
    load        buffer, index[, mask]        scalar or vector    masked-off lanes read as 0 and touch no memory
    store       buffer, index, value[, mask] -
    gather      buffer, indexes(i64 or i32 vector)[, mask]       vector
    offset      buffer, index                a buffer            pointer arithmetic, in elements
    constant    a number                     any
    row         rows, index                  a buffer            loads an address
    set_row     rows, index, buffer          -                   stores an address
    select_buffer mask (scalar), a, b        a buffer
    read        variable                     its type
    write       variable, value              -
    prefetch    buffer, index                -
    """

    result: str
    code: str
    type: Type
    operands: tuple[Operand, ...]
    operand_types: tuple[Type, ...] = ()
    attributes: tuple[tuple[str, object], ...] = ()

    def get(self, name: str, default: object = None) -> object:
        """The attribute `name`."""
        return dict(self.attributes).get(name, default)


@dataclass(frozen=True)
class Loop:
    """`for name in range(start, stop, step)`, in i64.

    `unroll` is a hint of how many copies of the body to make (1: none more, 0: let the back end choose).
    """

    name: str
    start: Operand
    stop: Operand
    step: Operand
    body: tuple[Statement, ...]
    unroll: int = 0


@dataclass(frozen=True)
class While:
    """Runs `body` as long as the `bool` value `condition`, computed by `head`, is true."""

    head: tuple[Statement, ...]
    condition: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    """Runs `then` where the `bool` value `condition` is true, else `otherwise`."""

    condition: str
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class DeclareVariable:
    """A mutable register, to be written before it is read."""

    name: str
    type: Type


@dataclass(frozen=True)
class DeclareLocal:
    """A local array on the stack: `length` elements, aligned for the widest vector."""

    name: str
    scalar: str
    length: int


@dataclass(frozen=True)
class Comment:
    """A note that every renderer keeps."""

    text: str


Statement: TypeAlias = Op | Loop | While | If | DeclareVariable | DeclareLocal | Comment


@dataclass(frozen=True)
class Parameter:
    """One 8-byte slot of `args`: a `pointer` to `scalar`s, a `size` (i64), or `rows`, the address of a table of such pointers."""

    name: str
    kind: Literal["pointer", "size", "rows"]
    scalar: str = "i64"


@dataclass(frozen=True)
class Kernel:
    """A finished loop program.  `begin`, `end` and `scratch` are names defined in the body's scope."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        from sartor.loops.text import render

        return render(self)


class Builder:
    """Builds one kernel: declare the arguments, emit statements, `finish`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: list[Parameter] = []
        self._blocks: list[list[Statement]] = [[]]
        self._heads: list[tuple[Statement, ...]] = []
        self._names: set[str] = set()
        self.begin = Value("begin", I64, self)
        self.end = Value("end", I64, self)
        self._names |= {"begin", "end", "scratch", "args"}

    # --- names and arguments ---

    def fresh(self, stem: str = "t") -> str:
        """A name not used in this kernel yet."""
        name, n = stem, 1
        if stem in ("t", "p") or stem in self._names:
            n = len(self._names)
            name = f"{stem}{n}"
        while name in self._names:
            n += 1
            name = f"{stem}{n}"
        self._names.add(name)
        return name

    def pointer(self, name: str, scalar: str) -> Buffer:
        """Declares the next argument slot: the address of a buffer of `scalar`s."""
        name = self.fresh(name)
        self.parameters.append(Parameter(name, "pointer", scalar))
        return Buffer(name, scalar, self)

    def size(self, name: str) -> Value:
        """Declares the next argument slot: an i64."""
        name = self.fresh(name)
        self.parameters.append(Parameter(name, "size"))
        return Value(name, I64, self)

    def rows(self, name: str, scalar: str) -> Rows:
        """Declares the next argument slot: the address of a table of row addresses."""
        name = self.fresh(name)
        self.parameters.append(Parameter(name, "rows", scalar))
        return Rows(name, scalar, self)

    def scratch(self, scalar: str, byte_offset: Number = 0) -> Buffer:
        """The calling thread's slab from `byte_offset` on (64-byte aligned at 0)."""
        base = Buffer("scratch", "u8", self)
        moved = self.offset(base, byte_offset)
        return self.retype(moved, scalar)

    def retype(self, buffer: Buffer, scalar: str) -> Buffer:
        """The same address, holding another scalar type."""
        return Buffer(buffer.name, scalar, self, None)

    # --- emitting ---

    def append(self, statement: Statement) -> None:
        self._blocks[-1].append(statement)

    def emit(self, code: str, type: Type, operands: Sequence[Operand], operand_types: Sequence[Type] = (), stem: str = "t",
             **attributes: object) -> Value:
        """Appends an operation and returns its result."""
        name = self.fresh(stem)
        self.append(Op(name, code, type, tuple(operands), tuple(operand_types), tuple(sorted(attributes.items()))))
        return Value(name, type, self)

    def comment(self, text: str) -> None:
        self.append(Comment(text))

    def constant(self, value: float | int | bool, type: Type) -> Value:
        """A constant; vector types get it in all lanes."""
        if type.lanes > 1:
            return self.broadcast(self.constant(value, Type(type.scalar)), type.lanes)
        if isinstance(value, float) and not type.is_float:
            raise LoopError(f"kernel {self.name}: the constant {value} is not a whole number, but {type} is wanted")
        number = float(value) if type.is_float else bool(value) if type.scalar == "bool" else int(value)
        return self.emit("constant", type, (number,))

    def unify(self, *items: Number) -> list[Value]:
        """The operands as values of one type: numbers become constants, scalars are broadcast to vectors."""
        types = [i.type for i in items if isinstance(i, Value)]
        if not types:
            raise LoopError(f"kernel {self.name}: an operation needs at least one operand that is not a Python number")
        scalars = {t.scalar for t in types}
        if len(scalars) > 1:
            raise LoopError(f"kernel {self.name}: operands of types {', '.join(map(str, types))} are mixed; cast them first")
        lanes = {t.lanes for t in types} - {1}
        if len(lanes) > 1:
            raise LoopError(f"kernel {self.name}: vectors of {sorted(lanes)} lanes are mixed")
        want = Type(types[0].scalar, lanes.pop() if lanes else 1)
        out = []
        for item in items:
            value = item if isinstance(item, Value) else self.constant(item, want)
            out.append(value if value.type.lanes == want.lanes else self.broadcast(value, want.lanes))
        return out

    def _undefined(self, code: str, type: Type) -> LoopError:
        hint = "; cast it to a wider type first" if type.is_narrow else ""
        return LoopError(f"kernel {self.name}: {code} is not defined for {type}{hint}")

    def binary(self, code: str, a: Number, b: Number) -> Value:
        """`code` of BINARY_*; division is `div` for floats and `idiv` for integers."""
        x, y = self.unify(a, b)
        allowed = BINARY_ANY + (BINARY_FLOAT if x.type.is_float else BINARY_INTEGER)
        if code not in allowed or (x.type.scalar == "bool" and code not in ("and", "or", "xor")) or x.type.is_narrow:
            raise self._undefined(code, x.type)
        return self.emit(code, x.type, (x.name, y.name), (x.type, y.type))

    def unary(self, code: str, a: Value) -> Value:
        allowed = UNARY_FLOAT if a.type.is_float else ("not",) if a.type.scalar == "bool" else (*UNARY_INTEGER, "abs")
        if code not in allowed or a.type.is_narrow:
            raise self._undefined(code, a.type)
        return self.emit(code, a.type, (a.name,), (a.type,))

    def compare(self, predicate: str, a: Number, b: Number) -> Value:
        """`a` predicate `b`, lane by lane; see COMPARISONS."""
        x, y = self.unify(a, b)
        if predicate not in COMPARISONS or x.type.is_narrow:
            raise self._undefined(predicate, x.type)
        return self.emit("compare", x.type.of("bool"), (x.name, y.name), (x.type, y.type), predicate=predicate)

    def minimum(self, a: Number, b: Number) -> Value:
        return self.binary("min", a, b)

    def maximum(self, a: Number, b: Number) -> Value:
        return self.binary("max", a, b)

    def select(self, mask: Value, a: Number, b: Number) -> Value:
        """a where mask else b."""
        x, y = self.unify(a, b) if isinstance(a, Value) or isinstance(b, Value) else (a, b)
        if not isinstance(x, Value) or not isinstance(y, Value):
            raise LoopError(f"kernel {self.name}: select needs a value, not two Python numbers; use Builder.constant")
        if mask.type.lanes > 1 and x.type.lanes == 1:
            x, y = self.broadcast(x, mask.type.lanes), self.broadcast(y, mask.type.lanes)
        if mask.type.scalar != "bool" or mask.type.lanes not in (1, x.type.lanes):
            raise LoopError(f"kernel {self.name}: select wants a bool mask of 1 or {x.type.lanes} lanes, not {mask.type}")
        return self.emit("select", x.type, (mask.name, x.name, y.name), (mask.type, x.type, y.type))

    def fma(self, a: Number, b: Number, c: Number) -> Value:
        """a * b + c."""
        x, y, z = self.unify(a, b, c)
        if x.type.is_narrow or x.type.scalar == "bool":
            raise self._undefined("fma", x.type)
        return self.emit("fma", x.type, (x.name, y.name, z.name), (x.type,) * 3)

    def cast(self, a: Value, scalar: str) -> Value:
        """Value conversion; the same type is returned unchanged."""
        from sartor.loops import codes

        if a.type.scalar == scalar:
            return a
        if codes.converts(a.type.scalar, scalar):
            return codes.converted(self, a, scalar)
        return self.emit("cast", a.type.of(scalar), (a.name,), (a.type,))

    def bitcast(self, a: Value, scalar: str) -> Value:
        if BYTES[scalar] != BYTES[a.type.scalar] or "bool" in (scalar, a.type.scalar):
            raise LoopError(f"kernel {self.name}: bitcast from {a.type} to {scalar} changes the size or is of bool; use cast")
        return self.emit("bitcast", a.type.of(scalar), (a.name,), (a.type,))

    def broadcast(self, a: Value, lanes: int) -> Value:
        return a if a.type.lanes == lanes else self.emit("broadcast", Type(a.type.scalar, lanes), (a.name,), (a.type,))

    def first_lanes(self, count: Number, lanes: int) -> Value:
        """A mask that is true in the first `count` lanes (none where `count` is below 1): the mask of a loop's remainder."""
        total = count if isinstance(count, Value) else self.constant(count, I64)
        limit = self.cast(self.maximum(self.minimum(total, lanes), 0), "i32")
        return self.iota(lanes, "i32") < limit

    def iota(self, lanes: int, scalar: str = "i64") -> Value:
        """0, 1, 2, ... (a scalar 0 for one lane)."""
        return self.constant(0, Type(scalar)) if lanes == 1 else self.emit("iota", Type(scalar, lanes), ())

    def extract(self, v: Value, lane: int) -> Value:
        return self.emit("extract", Type(v.type.scalar), (v.name,), (v.type,), lane=lane)

    def insert(self, v: Value, a: Number, lane: int) -> Value:
        x = a if isinstance(a, Value) else self.constant(a, Type(v.type.scalar))
        return self.emit("insert", v.type, (v.name, x.name), (v.type, x.type), lane=lane)

    def shuffle(self, v: Value, w: Value, indexes: Sequence[int]) -> Value:
        return self.emit("shuffle", Type(v.type.scalar, len(indexes)), (v.name, w.name), (v.type, w.type), indexes=tuple(indexes))

    def reduce(self, kind: str, v: Value) -> Value:
        """Combines the lanes of a vector (a scalar is returned unchanged)."""
        if kind not in REDUCTIONS:
            raise LoopError(f"kernel {self.name}: {kind} is not a reduction; {', '.join(REDUCTIONS)} are")
        bitwise = kind in ("and", "or")
        if v.type.is_narrow or (v.type.is_float and bitwise) or (v.type.scalar == "bool" and not bitwise):
            raise self._undefined(f"reduce {kind}", v.type)
        return v if v.type.lanes == 1 else self.emit("reduce", Type(v.type.scalar), (v.name,), (v.type,), kind=kind)

    # --- memory ---

    def _index(self, index: Number) -> Operand:
        if isinstance(index, Value):
            if index.type != I64:
                raise LoopError(f"kernel {self.name}: an index must be i64, not {index.type}")
            return index.name
        return int(index)

    def load(self, buffer: Buffer, index: Number = 0, lanes: int = 1, mask: Value | None = None,
             align: int | None = None) -> Value:
        """`lanes` consecutive elements from `index` on.  `align` in bytes, by default one element's."""
        operands: list[Operand] = [buffer.name, self._index(index)]
        if mask is not None:
            operands.append(mask.name)
        return self.emit("load", Type(buffer.scalar, lanes), operands, () if mask is None else (mask.type,), align=align)

    def store(self, buffer: Buffer, index: Number, value: Number, mask: Value | None = None, align: int | None = None,
              non_temporal: bool = False) -> None:
        """Writes the lanes of `value` to consecutive elements from `index` on.

        `non_temporal` passes by the caches; it wants `align` to be the vector's size and takes no mask.
        """
        v = value if isinstance(value, Value) else self.constant(value, Type(buffer.scalar))
        if v.type.scalar != buffer.scalar:
            raise LoopError(f"kernel {self.name}: a {v.type} is stored to {buffer.name}, which holds {buffer.scalar}")
        operands: list[Operand] = [buffer.name, self._index(index), v.name]
        if mask is not None:
            operands.append(mask.name)
        types = (v.type,) if mask is None else (v.type, mask.type)
        attributes = (("align", align), ("non_temporal", non_temporal))
        self.append(Op("", "store", v.type, tuple(operands), types, attributes))

    def gather(self, buffer: Buffer, indexes: Value, mask: Value | None = None) -> Value:
        """The elements at `indexes` (i32 or i64), in elements from the start of `buffer`; masked-off lanes are 0."""
        operands = [buffer.name, indexes.name, *([] if mask is None else [mask.name])]
        types = (indexes.type,) if mask is None else (indexes.type, mask.type)
        return self.emit("gather", indexes.type.of(buffer.scalar), operands, types)

    def prefetch(self, buffer: Buffer, index: Number = 0) -> None:
        self.append(Op("", "prefetch", Type(buffer.scalar), (buffer.name, self._index(index))))

    def offset(self, buffer: Buffer, index: Number) -> Buffer:
        """Pointer arithmetic: the buffer `index` elements further."""
        if isinstance(index, int) and index == 0:
            return buffer
        value = self.emit("offset", Type(buffer.scalar), (buffer.name, self._index(index)), stem="p")
        return Buffer(value.name, buffer.scalar, self)

    def row(self, rows: Rows, index: Number) -> Buffer:
        value = self.emit("row", Type(rows.scalar), (rows.name, self._index(index)), stem="p")
        return Buffer(value.name, rows.scalar, self)

    def select_buffer(self, mask: Value, a: Buffer, b: Buffer) -> Buffer:
        """Address a where mask (a scalar) else b."""
        value = self.emit("select_buffer", Type(a.scalar), (mask.name, a.name, b.name), stem="p")
        return Buffer(value.name, a.scalar, self)

    def table(self, name: str, length: int, scalar: str) -> Rows:
        """A local table of `length` row addresses of `scalar`s; fill it with `set_row`."""
        name = self.fresh(name)
        self.append(DeclareLocal(name, "u64", length))
        return Rows(name, scalar, self)

    def scratch_table(self, scalar: str, byte_offset: Number = 0) -> Rows:
        """A table of row addresses kept in the thread's slab."""
        return Rows(self.scratch("u64", byte_offset).name, scalar, self)

    def set_row(self, rows: Rows, index: Number, buffer: Buffer) -> None:
        """Writes the address of `buffer` to entry `index` of a table."""
        self.append(Op("", "set_row", Type(rows.scalar), (rows.name, self._index(index), buffer.name)))

    def local(self, name: str, scalar: str, length: int) -> Buffer:
        """A small array on the stack."""
        name = self.fresh(name)
        self.append(DeclareLocal(name, scalar, length))
        return Buffer(name, scalar, self, length)

    def variable(self, name: str, initial: Value) -> Variable:
        """A mutable register that starts as `initial`."""
        name = self.fresh(name)
        self.append(DeclareVariable(name, initial.type))
        variable = Variable(name, initial.type, self)
        self.assign(variable, initial)
        return variable

    def assign(self, variable: Variable, value: Number) -> None:
        v = value if isinstance(value, Value) else self.constant(value, variable.type)
        if v.type.lanes == 1 and variable.type.lanes > 1:
            v = self.broadcast(v, variable.type.lanes)
        if v.type != variable.type:
            raise LoopError(f"kernel {self.name}: a {v.type} is assigned to {variable.name}, which is {variable.type}")
        self.append(Op("", "write", v.type, (variable.name, v.name), (v.type,)))

    # --- structure ---

    @contextmanager
    def loop(self, name: str, start: Number, stop: Number, step: Number = 1, unroll: int = 0) -> Iterator[Value]:
        """`for name in range(start, stop, step)`; step is positive."""
        first, last, by = (self._index(x) for x in (start, stop, step))
        name = self.fresh(name)
        self._blocks.append([])
        yield Value(name, I64, self)
        self.append(Loop(name, first, last, by, tuple(self._blocks.pop()), unroll))

    @contextmanager
    def branch(self, condition: Value) -> Iterator[None]:
        """Code that runs where `condition` (a scalar bool) is true; follow with `otherwise` for the other case."""
        if condition.type != Type("bool"):
            raise LoopError(f"kernel {self.name}: a branch wants a scalar bool, not {condition.type}")
        self._blocks.append([])
        yield
        self.append(If(condition.name, tuple(self._blocks.pop())))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the branch just ended."""
        last = self._blocks[-1][-1] if self._blocks[-1] else None
        if not isinstance(last, If) or last.otherwise:
            raise LoopError(f"kernel {self.name}: otherwise must follow a branch directly")
        self._blocks.append([])
        yield
        body = tuple(self._blocks.pop())
        self._blocks[-1][-1] = If(last.condition, last.then, body)

    @contextmanager
    def repeat_while(self) -> Iterator[list[Value]]:
        """A while loop: `with b.repeat_while() as test:` compute the condition, `b.proceed(test, condition)`, then the body."""
        self._blocks.append([])
        test: list[Value] = []
        yield test
        body = self._blocks.pop()
        if not test:
            raise LoopError(f"kernel {self.name}: a while loop has no condition; call Builder.proceed")
        head = self._heads.pop()
        self.append(While(head, test[0].name, tuple(body)))

    def proceed(self, test: list[Value], condition: Value) -> None:
        """Ends the head of a while loop: its body, which follows, runs as long as `condition` is true."""
        if condition.type != Type("bool"):
            raise LoopError(f"kernel {self.name}: a while loop wants a scalar bool, not {condition.type}")
        self._heads.append(tuple(self._blocks[-1]))
        self._blocks[-1] = []
        test.append(condition)

    def finish(self) -> Kernel:
        """The kernel, as data."""
        if len(self._blocks) != 1:
            raise LoopError(f"kernel {self.name}: a loop or branch is still open")
        return Kernel(self.name, tuple(self.parameters), tuple(self._blocks[0]))
