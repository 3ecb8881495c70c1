"""Checks a kernel before it is rendered: names, types, masks, steps, and the bounds of local arrays.

Indexes are followed as intervals where they come from constants and loops with constant bounds.  An access to a local array
is refused when its interval is bounded and leaves the array; under a branch, a while loop or a mask, which may exclude the
bad indexes, only when it lies outside altogether.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NoReturn, TypeAlias

from sartor.errors import LoopError
from sartor.loops.language import (
    BINARY_ANY,
    BINARY_FLOAT,
    BINARY_INTEGER,
    COMPARISONS,
    REDUCTIONS,
    UNARY_FLOAT,
    UNARY_INTEGER,
    DeclareLocal,
    DeclareVariable,
    If,
    Kernel,
    Loop,
    Op,
    Operand,
    Statement,
    Type,
    While,
)
from sartor.types import BYTES

Interval: TypeAlias = tuple[float, float]  # both ends included; an int, or infinite
_ANY: Interval = (-inf, inf)
_I64, _BOOL = Type("i64"), Type("bool")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class _Name:
    """What a name stands for.  A buffer in a local array knows the array, its size and where in it it starts (in bytes)."""

    kind: str  # value, variable, buffer
    type: Type
    interval: Interval = _ANY
    array: str = ""
    size: int = 0


def verify(kernel: Kernel) -> None:
    """Checks `kernel`.

    Raises
    ------
    LoopError
        With the kernel, the loops around the fault, the operation and the buffer or value that is wrong.
    """
    _Verifier(kernel).check()


def _product(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _hull(*points: float) -> Interval:
    return min(points), max(points)


def _combine(code: str, a: Interval, b: Interval) -> Interval:
    """The interval of an integer operation."""
    if code == "add":
        return a[0] + b[0], a[1] + b[1]
    if code == "sub":
        return a[0] - b[1], a[1] - b[0]
    if code == "mul":
        return _hull(*(_product(x, y) for x in a for y in b))
    if code == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if code == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if code in ("idiv", "irem", "shl", "shr") and b[0] == b[1] and a[0] >= 0 and 0 <= b[0] < 2**62:
        return _by_constant(code, a, int(b[0]))
    return _ANY


def _by_constant(code: str, a: Interval, b: int) -> Interval:
    """The interval of a division, remainder or shift of non-negative numbers by a constant."""
    if code in ("shl", "shr"):
        if b > 62:
            return _ANY
        factor = 1 << b
        return (a[0] * factor, a[1] * factor) if code == "shl" else (a[0] // factor, a[1] // factor if a[1] < inf else inf)
    if b == 0:
        return _ANY
    if code == "irem":
        return (0, min(a[1], b - 1)) if a[1] >= b else a
    return a[0] // b, a[1] // b if a[1] < inf else inf


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[str, _Name] = {}
        self.seen: set[str] = set()
        self.scopes: list[list[str]] = [[]]
        self.loops: list[str] = []
        self.guards = 0

    def check(self) -> None:
        if not _NAME.fullmatch(self.kernel.name):
            self.fail(f"{self.kernel.name!r} is not a name; letters, digits, _ and . are allowed")
        self.define("begin", _Name("value", _I64))
        self.define("end", _Name("value", _I64))
        self.define("scratch", _Name("buffer", Type("u8")))
        for parameter in self.kernel.parameters:
            kind = "value" if parameter.kind == "size" else "buffer"
            self.define(parameter.name, _Name(kind, _I64 if kind == "value" else Type(parameter.scalar)))
        self.block(self.kernel.body)

    def fail(self, what: str) -> NoReturn:
        where = f", loop {' / '.join(self.loops)}" if self.loops else ""
        raise LoopError(f"kernel {self.kernel.name}{where}: {what}")

    # --- names ---

    def define(self, name: str, what: _Name) -> None:
        if not _NAME.fullmatch(name) or name == "args":
            self.fail(f"{name!r} may not be used as a name")
        if name in self.seen:
            self.fail(f"{name} is defined twice")
        self.seen.add(name)
        self.names[name] = what
        self.scopes[-1].append(name)

    def find(self, name: Operand, kind: str) -> _Name:
        known = self.names.get(name) if isinstance(name, str) else None
        if known is None:
            self.fail(f"{name} is {'used outside the block it is defined in' if name in self.seen else 'not defined'}")
        if known.kind != kind:
            self.fail(f"{name} is a {known.kind}, but a {kind} is wanted")
        return known

    def typed(self, item: Operand, type_: Type, role: str) -> Interval:
        """Checks that a value is of a type; numbers are.  Returns its interval."""
        if not isinstance(item, str):
            return (item, item)
        known = self.find(item, "value")
        if known.type != type_:
            self.fail(f"{role} {item} is {known.type}, but {type_} is wanted")
        return known.interval

    # --- statements ---

    def block(self, body: Sequence[Statement]) -> None:
        self.open()
        for statement in body:
            self.statement(statement)
        self.close()

    def open(self) -> None:
        self.scopes.append([])

    def close(self) -> None:
        for name in self.scopes.pop():
            del self.names[name]

    def repeat(self, loop: While) -> None:
        """The body of a while loop sees what its head defines."""
        self.open()
        for statement in loop.head:
            self.statement(statement)
        self.typed(loop.condition, _BOOL, "the condition")
        self.block(loop.body)
        self.close()

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, Op):
            self.operation(statement)
        elif isinstance(statement, Loop):
            self.loop(statement)
        elif isinstance(statement, While):
            self.guards += 1
            self.repeat(statement)
            self.guards -= 1
        elif isinstance(statement, If):
            self.typed(statement.condition, _BOOL, "the condition")
            self.guards += 1
            self.block(statement.then)
            self.block(statement.otherwise)
            self.guards -= 1
        elif isinstance(statement, DeclareVariable):
            self.define(statement.name, _Name("variable", statement.type))
        elif isinstance(statement, DeclareLocal):
            self.local(statement)

    def local(self, local: DeclareLocal) -> None:
        if local.length < 1:
            self.fail(f"the local array {local.name} has {local.length} elements")
        size = local.length * BYTES[local.scalar]
        self.define(local.name, _Name("buffer", Type(local.scalar), (0, 0), local.name, size))

    def loop(self, loop: Loop) -> None:
        start, stop, step = (self.typed(x, _I64, "the loop bound") for x in (loop.start, loop.stop, loop.step))
        if step[1] < 1 or (loop.step == step[0] and step[0] < 1):
            self.fail(f"the step {loop.step} of loop {loop.name} is not positive")
        last = stop[1] - 1
        if start[0] == start[1] and step[0] == step[1] and last < inf:
            last = start[0] + (last - start[0]) // step[0] * step[0]
        empty = last < start[0]
        self.guards += empty
        self.loops.append(loop.name)
        self.open()
        self.define(loop.name, _Name("value", _I64, (start[0], max(last, start[0]))))
        self.block(loop.body)
        self.close()
        self.loops.pop()
        self.guards -= empty

    # --- operations ---

    def operation(self, op: Op) -> None:
        check = _CHECKS.get(op.code)
        if check is None:
            self.fail(f"{op.code} is not an operation")
        known = check(self, op)
        if (known is None) != (op.result == ""):
            self.fail(f"{op.code} {'has no' if known is None else 'needs a'} result")
        if known is not None:
            self.define(op.result, known)

    def operands(self, op: Op, count: int) -> list[Interval]:
        """Checks the operands of an operation on values against the types it states."""
        if len(op.operands) != count or len(op.operand_types) != count:
            self.fail(f"{op.code} has {len(op.operands)} operands, not {count}")
        return [self.typed(o, t, f"operand of {op.code}") for o, t in zip(op.operands, op.operand_types, strict=True)]

    def require(self, holds: bool, op: Op, what: str) -> None:
        if not holds:
            self.fail(f"{op.code} {op.result or op.operands[0]}: {what}")

    def constant(self, op: Op) -> _Name:
        value = op.operands[0]
        self.require(not isinstance(value, str), op, "a constant must be a number")
        integer = isinstance(value, int) and not op.type.is_float
        return _Name("value", op.type, (value, value) if integer and isinstance(value, int) else _ANY)

    def binary(self, op: Op) -> _Name:
        a, b = self.operands(op, 2)
        scalar = op.type.scalar
        allowed = BINARY_ANY + (BINARY_FLOAT if op.type.is_float else BINARY_INTEGER)
        self.require(op.code in allowed and not op.type.is_narrow, op, f"not defined for {op.type}")
        self.require(scalar != "bool" or op.code in ("and", "or", "xor"), op, "not defined for bool")
        self.require(all(t == op.type for t in op.operand_types), op, f"operands must be {op.type}")
        return _Name("value", op.type, _combine(op.code, a, b) if op.type == _I64 else _ANY)

    def unary(self, op: Op) -> _Name:
        self.operands(op, 1)
        allowed = UNARY_FLOAT if op.type.is_float else ("not",) if op.type.scalar == "bool" else (*UNARY_INTEGER, "abs")
        self.require(op.code in allowed and not op.type.is_narrow, op, f"not defined for {op.type}")
        self.require(op.operand_types[0] == op.type, op, f"the operand must be {op.type}")
        return _Name("value", op.type)

    def compare(self, op: Op) -> _Name:
        self.operands(op, 2)
        a, b = op.operand_types
        self.require(op.get("predicate") in COMPARISONS and not a.is_narrow, op, f"{op.get('predicate')} of {a} is not defined")
        self.require(a == b and op.type == a.of("bool"), op, f"{a} and {b} cannot give {op.type}")
        return _Name("value", op.type)

    def select(self, op: Op) -> _Name:
        _, x, y = self.operands(op, 3)
        mask, a, b = op.operand_types
        self.require(mask.scalar == "bool" and mask.lanes in (1, a.lanes), op, f"the mask is {mask}, the values {a}")
        self.require(a == b == op.type, op, f"{a} and {b} cannot give {op.type}")
        return _Name("value", op.type, _hull(*x, *y))

    def fma(self, op: Op) -> _Name:
        a, b, c = self.operands(op, 3)
        defined = all(t == op.type for t in op.operand_types) and not op.type.is_narrow and op.type.scalar != "bool"
        self.require(defined, op, f"not defined for {', '.join(map(str, op.operand_types))}")
        return _Name("value", op.type, _combine("add", _combine("mul", a, b), c) if op.type == _I64 else _ANY)

    def cast(self, op: Op) -> _Name:
        (a,) = self.operands(op, 1)
        source = op.operand_types[0]
        self.require(source.lanes == op.type.lanes, op, f"{source} and {op.type} differ in lanes")
        kept = not source.is_float and op.type == _I64 and source.scalar in ("u8", "u16", "u32", "bool", "i8", "i16", "i32")
        return _Name("value", op.type, a if kept else _ANY)

    def bitcast(self, op: Op) -> _Name:
        self.operands(op, 1)
        source = op.operand_types[0]
        legal = source.bytes == op.type.bytes and "bool" not in (source.scalar, op.type.scalar)
        self.require(legal, op, f"{source} cannot be read as {op.type}")
        return _Name("value", op.type)

    def broadcast(self, op: Op) -> _Name:
        self.typed(op.operands[0], Type(op.type.scalar), "operand of broadcast")
        return _Name("value", op.type)

    def iota(self, op: Op) -> _Name:
        self.require(not op.type.is_float and op.type.scalar != "bool", op, f"not defined for {op.type}")
        return _Name("value", op.type)

    def extract(self, op: Op) -> _Name:
        self.operands(op, 1)
        self.lane(op, op.operand_types[0])
        self.require(op.type == Type(op.operand_types[0].scalar), op, f"gives a scalar, not {op.type}")
        return _Name("value", op.type)

    def insert(self, op: Op) -> _Name:
        self.operands(op, 2)
        vector, scalar = op.operand_types
        self.lane(op, vector)
        self.require(vector == op.type and scalar == Type(vector.scalar), op, f"{scalar} does not fit in {vector}")
        return _Name("value", op.type)

    def lane(self, op: Op, vector: Type) -> None:
        lane = op.get("lane")
        self.require(vector.lanes > 1, op, f"needs a vector, not {vector}")
        self.require(isinstance(lane, int) and 0 <= lane < vector.lanes, op, f"{vector} has no lane {lane}")

    def shuffle(self, op: Op) -> _Name:
        self.operands(op, 2)
        v, w = op.operand_types
        indexes = op.get("indexes")
        self.require(v == w and v.scalar == op.type.scalar, op, f"{v} and {w} cannot give {op.type}")
        legal = isinstance(indexes, tuple) and len(indexes) == op.type.lanes and all(0 <= i < 2 * v.lanes for i in indexes)
        self.require(legal, op, f"{indexes} are not {op.type.lanes} lanes of {2 * v.lanes}")
        return _Name("value", op.type)

    def reduce(self, op: Op) -> _Name:
        self.operands(op, 1)
        source, kind = op.operand_types[0], op.get("kind")
        bitwise = kind in ("and", "or")
        legal = kind in REDUCTIONS and not source.is_narrow and not (source.is_float and bitwise)
        self.require(legal and (source.scalar != "bool" or bitwise), op, f"{kind} is not defined for {source}")
        self.require(op.type == Type(source.scalar), op, f"gives {source.scalar}, not {op.type}")
        return _Name("value", op.type)

    # --- memory ---

    def load(self, op: Op) -> _Name:
        masked = len(op.operands) > 2
        if masked:
            self.typed(op.operands[2], Type("bool", op.type.lanes), "the mask")
        self.access(op, masked)
        return _Name("value", op.type)

    def store(self, op: Op) -> None:
        masked = len(op.operands) > 3
        self.typed(op.operands[2], op.type, "the value stored")
        if masked:
            self.typed(op.operands[3], Type("bool", op.type.lanes), "the mask")
        self.access(op, masked)

    def access(self, op: Op, masked: bool) -> None:
        """An access of `op.type` at element `operands[1]` of buffer `operands[0]`."""
        align = op.get("align")
        legal = align is None or (isinstance(align, int) and align > 0 and align & (align - 1) == 0)
        self.require(legal, op, f"the alignment {align} is not a power of two")
        buffer = self.moved(op)
        if not buffer.array:
            return
        low, high = buffer.interval
        wide = op.type.bytes
        outside = high < 0 or low >= buffer.size
        leaves = (-inf < low < 0) or (inf > high > buffer.size - wide)
        if outside or (leaves and not masked and not self.guards):
            what = f"{op.code} {op.result}".rstrip()
            self.fail(f"{what}: bytes {low} to {high + wide} of the local array {buffer.array}, which has {buffer.size}")

    def moved(self, op: Op) -> _Name:
        """The buffer `operands[1]` elements after buffer `operands[0]`."""
        buffer = self.find(op.operands[0], "buffer")
        at = self.typed(op.operands[1], _I64, "the index")
        width = BYTES[op.type.scalar]
        interval = _combine("add", buffer.interval, _combine("mul", at, (width, width)))
        return replace(buffer, interval=interval, type=Type(op.type.scalar))

    def gather(self, op: Op) -> _Name:
        self.find(op.operands[0], "buffer")
        indexes = op.operand_types[0]
        self.typed(op.operands[1], indexes, "the indexes")
        if len(op.operands) > 2:
            self.typed(op.operands[2], Type("bool", op.type.lanes), "the mask")
        self.require(indexes.scalar in ("i32", "i64") and indexes.lanes == op.type.lanes, op, f"{indexes} cannot index {op.type}")
        return _Name("value", op.type)

    def prefetch(self, op: Op) -> None:
        self.moved(op)

    def offset(self, op: Op) -> _Name:
        return self.moved(op)

    def row(self, op: Op) -> _Name:
        self.access(replace(op, type=Type("u64")), masked=False)
        return _Name("buffer", op.type)

    def set_row(self, op: Op) -> None:
        self.find(op.operands[2], "buffer")
        self.access(replace(op, type=Type("u64")), masked=False)

    def select_buffer(self, op: Op) -> _Name:
        self.typed(op.operands[0], _BOOL, "the condition")
        for item in op.operands[1:]:
            self.find(item, "buffer")
        return _Name("buffer", op.type)

    def read(self, op: Op) -> _Name:
        variable = self.find(op.operands[0], "variable")
        self.require(variable.type == op.type, op, f"{op.operands[0]} is {variable.type}, not {op.type}")
        return _Name("value", op.type)

    def write(self, op: Op) -> None:
        variable = self.find(op.operands[0], "variable")
        self.require(variable.type == op.type, op, f"{op.operands[0]} is {variable.type}, not {op.type}")
        self.typed(op.operands[1], op.type, "the value written")


_Check: TypeAlias = Callable[[_Verifier, Op], "_Name | None"]
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys((*BINARY_ANY, *BINARY_FLOAT, *BINARY_INTEGER), _Verifier.binary),
    **dict.fromkeys((*UNARY_FLOAT, *UNARY_INTEGER), _Verifier.unary),
    **{
        name: getattr(_Verifier, name)
        for name in ("constant", "compare", "select", "fma", "cast", "bitcast", "broadcast", "iota", "extract", "insert",
                     "shuffle", "reduce", "load", "store", "gather", "prefetch", "offset", "row", "set_row", "select_buffer",
                     "read", "write")
    },
}
