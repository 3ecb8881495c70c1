"""Renders one kernel as an LLVM function: statements become blocks, operations instructions, variables allocas.

LLVM turns the allocas into registers, so that no phi nodes are needed but those of loop counters.  No fast-math flag is
ever set: a lane's result depends on that lane's operands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sartor.errors import LoopError
from sartor.loops.language import (
    Comment,
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
from sartor.loops.llvm_casts import converted
from sartor.loops.llvm_values import is_unsigned, literal, mangled, memory_type, number, register, splat, vector
from sartor.loops.target import Target
from sartor.types import BYTES

_ARITHMETIC = {
    "add": ("fadd", "add", "add"), "sub": ("fsub", "sub", "sub"), "mul": ("fmul", "mul", "mul"), "div": ("fdiv", "", ""),
    "idiv": ("", "sdiv", "udiv"), "irem": ("", "srem", "urem"), "and": ("", "and", "and"), "or": ("", "or", "or"),
    "xor": ("", "xor", "xor"), "shl": ("", "shl", "shl"), "shr": ("", "ashr", "lshr"),
}  # by float, signed, unsigned
_ROUNDING = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "nearbyint": "roundeven"}
_PREDICATES = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


class Module:
    """What the functions of one module share: declarations and loop metadata."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        vectorize, unroll = '!{!"llvm.loop.vectorize.enable", i1 false}', '!{!"llvm.loop.unroll.disable"}'
        self.metadata = [vectorize, unroll, "!{}", "!{i32 1}"]

    def loop(self, unroll: int) -> str:
        """The metadata node of a loop: never vectorised by LLVM, unrolled as asked."""
        node = len(self.metadata)
        hint = ""
        if unroll == 1:
            hint = ", !1"
        elif unroll > 1:
            hint = f", !{node + 1}"
        self.metadata.append(f"distinct !{{!{node}, !0{hint}}}")
        if unroll > 1:
            self.metadata.append(f'!{{!"llvm.loop.unroll.count", i32 {unroll}}}')
        return f"!{node}"

    def text(self) -> str:
        nodes = [f"!{i} = {body}" for i, body in enumerate(self.metadata)]
        return "\n".join([*self.declarations.values(), *nodes])


class Function:
    """Renders one kernel."""

    def __init__(self, kernel: Kernel, target: Target, module: Module) -> None:
        self.kernel = kernel
        self.target = target
        self.module = module
        self.allocas: list[str] = []
        self.lines: list[str] = []
        self.constants: dict[str, tuple[float | int | bool, str]] = {}
        self.variables: dict[str, Type] = {}
        self.count = 0
        self.block = ".0"
        written = _written_tables(kernel.body)
        self.fixed_rows = {p.name for p in kernel.parameters if p.kind == "rows"} - written

    # --- text ---

    def render(self) -> str:
        """The function definition."""
        self.arguments()
        self.statements(self.kernel.body)
        target = self.target
        attributes = (f'nounwind "no-builtins" "no-trapping-math"="true" "target-cpu"="{target.cpu}" '
                      f'"target-features"="{target.features}" "prefer-vector-width"="{8 * target.vector_bytes}"')
        arguments = "ptr noundef %args, ptr noundef %scratch, i64 noundef %begin, i64 noundef %end"
        head = f'define dso_local void @"{self.kernel.name}"({arguments})'
        body = "\n".join([*self.allocas, *self.lines])
        return f"{head} {attributes} {{\n.0:\n{body}\n  ret void\n}}\n"

    def arguments(self) -> None:
        for slot, parameter in enumerate(self.kernel.parameters):
            kind = "i64" if parameter.kind == "size" else "ptr"
            address = self.new(f"getelementptr i64, ptr %args, i64 {slot}")
            self.line(f"%{parameter.name} = load {kind}, ptr {address}, align 8, !invariant.load !2")

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def name(self) -> str:
        """A fresh name; kernels' own names never start with a dot."""
        self.count += 1
        return f".{self.count}"

    def new(self, text: str) -> str:
        """Emits an instruction and returns its result's name."""
        name = "%" + self.name()
        self.line(f"{name} = {text}")
        return name

    def set(self, op: Op, text: str) -> None:
        """Emits the instruction that makes the result of `op`."""
        self.line(f"%{op.result} = {text}")

    def alias(self, op: Op, name: str) -> None:
        """Makes the result of `op` another name of a value."""
        kind = register(op.type)
        self.set(op, f"bitcast {kind} {name} to {kind}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def call(self, intrinsic: str, result: str, *operands: tuple[str, str]) -> str:
        """The text of a call of an LLVM intrinsic, which is declared; operands are (type, value)."""
        types = ", ".join(t for t, _ in operands)
        self.module.declarations[intrinsic] = f"declare {result} @{intrinsic}({types})"
        return f"call {result} @{intrinsic}({', '.join(f'{t} {v}' for t, v in operands)})"

    def operand(self, item: Operand, type_: Type) -> str:
        """An operand as text: a name, or a constant of `type_`."""
        if not isinstance(item, str):
            return splat(literal(item, type_.scalar), register(Type(type_.scalar)), type_.lanes)
        if item in self.constants:
            value, scalar = self.constants[item]
            return splat(literal(value, scalar), register(Type(scalar)), type_.lanes)
        return f"%{item}"

    def values(self, op: Op) -> list[str]:
        """The operands of an operation all of whose operands are values."""
        return [self.operand(o, t) for o, t in zip(op.operands, op.operand_types, strict=True)]

    def index(self, item: Operand) -> str:
        return self.operand(item, Type("i64"))

    def address(self, op: Op) -> str:
        """The address of element `operands[1]` of buffer `operands[0]`."""
        buffer = f"%{op.operands[0]}"
        if op.operands[1] == 0:
            return buffer
        return self.new(f"getelementptr {memory_type(op.type.scalar)}, ptr {buffer}, i64 {self.index(op.operands[1])}")

    # --- statements ---

    def statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Op):
                _EMIT[statement.code](self, statement)
            elif isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, While):
                self.repeat(statement)
            elif isinstance(statement, If):
                self.branch(statement)
            elif isinstance(statement, DeclareVariable):
                self.variables[statement.name] = statement.type
                self.allocas.append(f"  %{statement.name} = alloca {register(statement.type)}")
            elif isinstance(statement, DeclareLocal):
                align = max(16, self.target.vector_bytes)
                array = f"[{statement.length} x {memory_type(statement.scalar)}]"
                self.allocas.append(f"  %{statement.name} = alloca {array}, align {align}")
            elif isinstance(statement, Comment):
                self.line("; " + statement.text.replace("\n", " "))

    def loop(self, loop: Loop) -> None:
        head, body, done = self.name(), self.name(), self.name()
        start, stop, step = (self.index(x) for x in (loop.start, loop.stop, loop.step))
        before, following = self.block, self.name()
        self.line(f"br label %{head}")
        self.label(head)
        patch = len(self.lines)
        self.line("")
        test = self.new(f"icmp slt i64 %{loop.name}, {stop}")
        self.line(f"br i1 {test}, label %{body}, label %{done}")
        self.label(body)
        self.statements(loop.body)
        self.line(f"%{following} = add nsw i64 %{loop.name}, {step}")
        self.line(f"br label %{head}, !llvm.loop {self.module.loop(loop.unroll)}")
        self.lines[patch] = f"  %{loop.name} = phi i64 [ {start}, %{before} ], [ %{following}, %{self.block} ]"
        self.label(done)

    def repeat(self, loop: While) -> None:
        head, body, done = self.name(), self.name(), self.name()
        self.line(f"br label %{head}")
        self.label(head)
        self.statements(loop.head)
        self.line(f"br i1 {self.operand(loop.condition, Type('bool'))}, label %{body}, label %{done}")
        self.label(body)
        self.statements(loop.body)
        self.line(f"br label %{head}, !llvm.loop {self.module.loop(1)}")
        self.label(done)

    def branch(self, branch: If) -> None:
        then, otherwise, done = self.name(), self.name(), self.name()
        self.line(f"br i1 {self.operand(branch.condition, Type('bool'))}, label %{then}, label %{otherwise}")
        for label, body in ((then, branch.then), (otherwise, branch.otherwise)):
            self.label(label)
            self.statements(body)
            self.line(f"br label %{done}")
        self.label(done)

    # --- operations on values ---

    def constant(self, op: Op) -> None:
        value = op.operands[0]
        if isinstance(value, str):
            raise LoopError(f"kernel {self.kernel.name}: the constant {op.result} has no value")
        self.constants[op.result] = (value, op.type.scalar)

    def arithmetic(self, op: Op) -> None:
        a, b = self.values(op)
        column = 0 if op.type.is_float else 2 if is_unsigned(op.type.scalar) else 1
        self.set(op, f"{_ARITHMETIC[op.code][column]} {register(op.type)} {a}, {b}")

    def extreme(self, op: Op) -> None:
        a, b = self.values(op)
        self.set(op, self.extreme_of(op.code, op.type, a, b))

    def extreme_of(self, code: str, type_: Type, a: str, b: str) -> str:
        """min or max: for floats `a < b ? a : b`, which is one instruction on x86."""
        kind = register(type_)
        if type_.is_float:
            test = self.new(f"fcmp {'olt' if code == 'min' else 'ogt'} {kind} {a}, {b}")
            return f"select {register(type_.of('bool'))} {test}, {kind} {a}, {kind} {b}"
        intrinsic = f"llvm.{'u' if is_unsigned(type_.scalar) else 's'}{code}.{mangled(kind)}"
        return self.call(intrinsic, kind, (kind, a), (kind, b))

    def copysign(self, op: Op) -> None:
        kind = register(op.type)
        self.set(op, self.call(f"llvm.copysign.{mangled(kind)}", kind, *((kind, v) for v in self.values(op))))

    def unary(self, op: Op) -> None:
        (a,), kind = self.values(op), register(op.type)
        name = mangled(kind)
        if op.code == "neg":
            text = f"fneg {kind} {a}"
        elif op.code == "ineg":
            text = f"sub {kind} zeroinitializer, {a}" if op.type.lanes > 1 else f"sub {kind} 0, {a}"
        elif op.code == "not":
            ones = number(1 if op.type.scalar == "bool" else -1, op.type)
            text = f"xor {kind} {a}, {ones}"
        elif op.code == "popcount":
            text = self.call(f"llvm.ctpop.{name}", kind, (kind, a))
        elif op.code == "leading_zeros":
            text = self.call(f"llvm.ctlz.{name}", kind, (kind, a), ("i1", "false"))
        elif op.code == "abs" and is_unsigned(op.type.scalar):
            text = f"bitcast {kind} {a} to {kind}"
        elif op.code == "abs" and not op.type.is_float:
            text = self.call(f"llvm.abs.{name}", kind, (kind, a), ("i1", "false"))
        else:
            text = self.call(f"llvm.{_ROUNDING[op.code]}.{name}", kind, (kind, a))
        self.set(op, text)

    def compare(self, op: Op) -> None:
        a, b = self.values(op)
        type_, predicate = op.operand_types[0], str(op.get("predicate"))
        if type_.is_float:
            test = {"eq": "oeq", "ne": "une"}.get(predicate, f"o{predicate}")
            self.set(op, f"fcmp {test} {register(type_)} {a}, {b}")
            return
        sign = "u" if is_unsigned(type_.scalar) else "s"
        test = f"{sign}{predicate}" if predicate in _PREDICATES else predicate
        self.set(op, f"icmp {test} {register(type_)} {a}, {b}")

    def select(self, op: Op) -> None:
        mask, a, b = self.values(op)
        kind = register(op.type)
        self.set(op, f"select {register(op.operand_types[0])} {mask}, {kind} {a}, {kind} {b}")

    def fma(self, op: Op) -> None:
        (a, b, c), kind = self.values(op), register(op.type)
        if op.type.is_float and self.target.has_fma:
            self.set(op, self.call(f"llvm.fma.{mangled(kind)}", kind, (kind, a), (kind, b), (kind, c)))
            return
        prefix = "f" if op.type.is_float else ""
        product = self.new(f"{prefix}mul {kind} {a}, {b}")
        self.set(op, f"{prefix}add {kind} {product}, {c}")

    def cast(self, op: Op) -> None:
        (a,) = self.values(op)
        self.alias(op, converted(self, a, op.operand_types[0], op.type))

    def bitcast(self, op: Op) -> None:
        (a,) = self.values(op)
        self.set(op, f"bitcast {register(op.operand_types[0])} {a} to {register(op.type)}")

    # --- lanes ---

    def broadcast(self, op: Op) -> None:
        item = op.operands[0]
        if not isinstance(item, str) or item in self.constants:
            self.constants[op.result] = self.constants[item] if isinstance(item, str) else (item, op.type.scalar)
            return
        kind, scalar = register(op.type), register(Type(op.type.scalar))
        first = self.new(f"insertelement {kind} poison, {scalar} %{item}, i32 0")
        self.set(op, f"shufflevector {kind} {first}, {kind} poison, <{op.type.lanes} x i32> zeroinitializer")

    def iota(self, op: Op) -> None:
        scalar, kind = register(Type(op.type.scalar)), register(op.type)
        lanes = ", ".join(f"{scalar} {literal(i, op.type.scalar)}" for i in range(op.type.lanes))
        self.set(op, f"select i1 true, {kind} <{lanes}>, {kind} poison")

    def extract(self, op: Op) -> None:
        (v,) = self.values(op)
        self.set(op, f"extractelement {register(op.operand_types[0])} {v}, i32 {op.get('lane')}")

    def insert(self, op: Op) -> None:
        v, a = self.values(op)
        self.set(op, f"insertelement {register(op.type)} {v}, {register(op.operand_types[1])} {a}, i32 {op.get('lane')}")

    def shuffle(self, op: Op) -> None:
        v, w = self.values(op)
        source, indexes = op.operand_types[0], _indexes(op)
        if source.lanes == 1 or len(indexes) == 1:
            self.shuffle_scalars(op, v, w, source, indexes)
        else:
            self.set(op, self.shuffled(register(source), v, w, indexes))

    def shuffle_scalars(self, op: Op, v: str, w: str, source: Type, indexes: tuple[int, ...]) -> None:
        """A shuffle of scalars, or one that gives a scalar: lane by lane."""
        def pick(index: int) -> str:
            vector = v if index < source.lanes else w
            if source.lanes == 1:
                return vector
            return self.new(f"extractelement {register(source)} {vector}, i32 {index % source.lanes}")

        if len(indexes) == 1:
            self.alias(op, pick(indexes[0]))
            return
        kind, value = register(op.type), "poison"
        for lane, index in enumerate(indexes):
            value = self.new(f"insertelement {kind} {value}, {register(Type(source.scalar))} {pick(index)}, i32 {lane}")
        self.alias(op, value)

    def shuffled(self, kind: str, v: str, w: str, indexes: Sequence[int]) -> str:
        lanes = ", ".join(f"i32 {i}" for i in indexes)
        return f"shufflevector {kind} {v}, {kind} {w}, <{len(indexes)} x i32> <{lanes}>"

    def reduce(self, op: Op) -> None:
        """Halves are combined until one lane is left; where the lanes are odd, the last one is carried along."""
        (v,), type_ = self.values(op), op.operand_types[0]
        code, carried = str(op.get("kind")), []
        while type_.lanes > 1:
            kind, half = register(type_), type_.lanes // 2
            if type_.lanes % 2:
                carried.append(self.new(f"extractelement {kind} {v}, i32 {type_.lanes - 1}"))
            if half == 1:
                low, high = (self.new(f"extractelement {kind} {v}, i32 {i}") for i in (0, 1))
            else:
                low = self.new(self.shuffled(kind, v, "poison", range(half)))
                high = self.new(self.shuffled(kind, v, "poison", range(half, 2 * half)))
            type_ = Type(type_.scalar, half)
            v = self.combined(code, type_, low, high)
        for lane in carried:
            v = self.combined(code, type_, v, lane)
        self.alias(op, v)

    def combined(self, code: str, type_: Type, a: str, b: str) -> str:
        if code in ("min", "max"):
            return self.new(self.extreme_of(code, type_, a, b))
        column = 0 if type_.is_float else 1
        return self.new(f"{_ARITHMETIC[code][column]} {register(type_)} {a}, {b}")

    # --- memory ---

    def load(self, op: Op) -> None:
        self.load_from(op, self.address(op), op.operands[2] if len(op.operands) > 2 else None)

    def load_from(self, op: Op, address: str, mask: Operand | None) -> None:
        memory = vector(memory_type(op.type.scalar), op.type.lanes)
        align = _align(op)
        if mask is None:
            value = self.new(f"load {memory}, ptr {address}, align {align}")
        elif op.type.lanes == 1:
            value = self.scalar_where(mask, memory, address, align)
        else:
            masks = Type("bool", op.type.lanes)
            value = self.new(self.call(f"llvm.masked.load.{mangled(memory)}.p0", memory, ("ptr", address), ("i32", str(align)),
                                       (register(masks), self.operand(mask, masks)), (memory, "zeroinitializer")))
        self.loaded(op, value, memory)

    def loaded(self, op: Op, value: str, memory: str) -> None:
        """Turns what memory holds into the result of `op`."""
        if op.type.scalar == "bool":
            self.set(op, f"icmp ne {memory} {value}, {splat('0', 'i8', op.type.lanes)}")
        else:
            self.alias(op, value)

    def scalar_where(self, mask: Operand, memory: str, address: str, align: int) -> str:
        """A scalar loaded where `mask` is true, else 0."""
        before, then, done = self.block, self.name(), self.name()
        self.line(f"br i1 {self.operand(mask, Type('bool'))}, label %{then}, label %{done}")
        self.label(then)
        value = self.new(f"load {memory}, ptr {address}, align {align}")
        self.line(f"br label %{done}")
        self.label(done)
        zero = "0" if memory[0] == "i" else "0.0"
        return self.new(f"phi {memory} [ {value}, %{then} ], [ {zero}, %{before} ]")

    def store(self, op: Op) -> None:
        address, type_ = self.address(op), op.type
        memory = vector(memory_type(type_.scalar), type_.lanes)
        value = self.operand(op.operands[2], type_)
        if type_.scalar == "bool":
            value = self.new(f"zext {register(type_)} {value} to {memory}")
        hint = ", !nontemporal !3" if op.get("non_temporal") else ""
        plain = f"store {memory} {value}, ptr {address}, align {_align(op)}{hint}"
        if len(op.operands) < 4:
            self.line(plain)
        elif type_.lanes == 1:
            then, done = self.name(), self.name()
            self.line(f"br i1 {self.operand(op.operands[3], Type('bool'))}, label %{then}, label %{done}")
            self.label(then)
            self.line(plain)
            self.line(f"br label %{done}")
            self.label(done)
        else:
            masks = Type("bool", type_.lanes)
            self.line(self.call(f"llvm.masked.store.{mangled(memory)}.p0", "void", (memory, value), ("ptr", address),
                                ("i32", str(_align(op))), (register(masks), self.operand(op.operands[3], masks))))

    def gather(self, op: Op) -> None:
        indexes, lanes, scalar = op.operand_types[0], op.type.lanes, op.type.scalar
        at = converted(self, self.operand(op.operands[1], indexes), indexes, indexes.of("i64"))
        mask = op.operands[2] if len(op.operands) > 2 else None
        kind = vector("ptr", lanes)
        address = self.new(f"getelementptr {memory_type(scalar)}, ptr %{op.operands[0]}, {vector('i64', lanes)} {at}")
        if lanes == 1:
            self.load_from(op, address, mask)
            return
        memory, masks = vector(memory_type(scalar), lanes), Type("bool", lanes)
        chosen = number(1, masks) if mask is None else self.operand(mask, masks)
        value = self.new(self.call(f"llvm.masked.gather.{mangled(memory)}.v{lanes}p0", memory, (kind, address),
                                   ("i32", str(BYTES[scalar])), (register(masks), chosen), (memory, "zeroinitializer")))
        self.loaded(op, value, memory)

    def offset(self, op: Op) -> None:
        at = self.index(op.operands[1])
        self.set(op, f"getelementptr {memory_type(op.type.scalar)}, ptr %{op.operands[0]}, i64 {at}")

    def row(self, op: Op) -> None:
        entry = self.new(f"getelementptr ptr, ptr %{op.operands[0]}, i64 {self.index(op.operands[1])}")
        fixed = ", !invariant.load !2" if op.operands[0] in self.fixed_rows else ""
        self.set(op, f"load ptr, ptr {entry}, align 8{fixed}")

    def set_row(self, op: Op) -> None:
        entry = self.new(f"getelementptr ptr, ptr %{op.operands[0]}, i64 {self.index(op.operands[1])}")
        self.line(f"store ptr %{op.operands[2]}, ptr {entry}, align 8")

    def select_buffer(self, op: Op) -> None:
        mask = self.operand(op.operands[0], Type("bool"))
        self.set(op, f"select i1 {mask}, ptr %{op.operands[1]}, ptr %{op.operands[2]}")

    def read(self, op: Op) -> None:
        self.set(op, f"load {register(op.type)}, ptr %{op.operands[0]}")

    def write(self, op: Op) -> None:
        self.line(f"store {register(op.type)} {self.operand(op.operands[1], op.type)}, ptr %{op.operands[0]}")

    def prefetch(self, op: Op) -> None:
        self.line(self.call("llvm.prefetch.p0", "void", ("ptr", self.address(op)), ("i32", "0"), ("i32", "3"), ("i32", "1")))


_Emitter: TypeAlias = Callable[[Function, Op], None]
_EMIT: dict[str, _Emitter] = {
    **dict.fromkeys(_ARITHMETIC, Function.arithmetic),
    **dict.fromkeys(("min", "max"), Function.extreme),
    **dict.fromkeys(("neg", "ineg", "not", "popcount", "leading_zeros", *_ROUNDING), Function.unary),
    **{
        name: getattr(Function, name)
        for name in ("constant", "copysign", "compare", "select", "fma", "cast", "bitcast", "broadcast", "iota", "extract",
                     "insert", "shuffle", "reduce", "load", "store", "gather", "offset", "row", "set_row", "select_buffer",
                     "read", "write", "prefetch")
    },
}


def _align(op: Op) -> int:
    align = op.get("align")
    return align if isinstance(align, int) else BYTES[op.type.scalar]


def _indexes(op: Op) -> tuple[int, ...]:
    indexes = op.get("indexes")
    return tuple(int(i) for i in indexes) if isinstance(indexes, tuple) else ()


def _written_tables(body: Sequence[Statement]) -> set[str]:
    """Names of the row tables that the kernel itself writes."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, Op):
            if statement.code == "set_row":
                found.add(str(statement.operands[0]))
        elif isinstance(statement, Loop):
            found |= _written_tables(statement.body)
        elif isinstance(statement, While):
            found |= _written_tables(statement.head) | _written_tables(statement.body)
        elif isinstance(statement, If):
            found |= _written_tables(statement.then) | _written_tables(statement.otherwise)
    return found
