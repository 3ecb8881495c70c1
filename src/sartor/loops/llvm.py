"""Renders loop programs as LLVM IR and compiles them to objects that refer to nothing outside themselves.

    ir = render([kernel], target)      text
    data = compile_ir(ir, target)      an ELF object, position independent, without undefined symbols
    calls = jit([kernel], target)      for tests and measurements on this machine

Each kernel becomes `void name(ptr args, ptr scratch, i64 begin, i64 end)`.  f16 and bf16 values travel as i16, `bool` as i1 in
registers and i8 in memory.  No fast-math flag is ever set: a lane's result depends on that lane's operands alone.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import llvmlite.binding as llvm

from sartor.errors import LoopError
from sartor.loops.language import (
    BYTES,
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
from sartor.loops.target import Target
from sartor.loops.verify import verify

_REGISTER = {"bool": "i1", "f16": "i16", "bf16": "i16", "f32": "float", "f64": "double"}
_ARITHMETIC = {
    "add": ("fadd", "add", "add"), "sub": ("fsub", "sub", "sub"), "mul": ("fmul", "mul", "mul"), "div": ("fdiv", "", ""),
    "idiv": ("", "sdiv", "udiv"), "irem": ("", "srem", "urem"), "and": ("", "and", "and"), "or": ("", "or", "or"),
    "xor": ("", "xor", "xor"), "shl": ("", "shl", "shl"), "shr": ("", "ashr", "lshr"),
}  # by float, signed, unsigned
_ROUNDING = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "nearbyint": "roundeven"}
_PREDICATES = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _is_unsigned(scalar: str) -> bool:
    return scalar[0] == "u" or scalar == "bool"


def _register(type_: Type) -> str:
    """The LLVM type of a value in registers."""
    return _vector(_REGISTER.get(type_.scalar, f"i{8 * BYTES[type_.scalar]}"), type_.lanes)


def _memory(scalar: str) -> str:
    """The LLVM type of an element in memory."""
    return "i8" if scalar == "bool" else _register(Type(scalar))


def _vector(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def _mangled(llvm_type: str) -> str:
    """How an intrinsic's name spells a type: `<8 x float>` is v8f32."""
    text = llvm_type.replace("float", "f32").replace("double", "f64").replace("half", "f16")
    return re.sub(r"<(\d+) x (\w+)>", r"v\1\2", text)


def _float_bits(value: float) -> int:
    """The bits of `value` rounded to f32; beyond the range it is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int.from_bytes(packed, "little")


def _half_bits(value: float) -> int:
    try:
        packed = struct.pack("<e", value)
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00
    return int.from_bytes(packed, "little")


def _bfloat_bits(value: float) -> int:
    bits = _float_bits(value)
    if value != value:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _literal(value: float | int | bool, scalar: str) -> str:
    """A constant as LLVM IR spells it."""
    if scalar == "bool":
        return "true" if value else "false"
    if scalar == "f16":
        return str(_half_bits(float(value)))
    if scalar == "bf16":
        return str(_bfloat_bits(float(value)))
    if scalar == "f32":
        value = struct.unpack("<f", _float_bits(float(value)).to_bytes(4, "little"))[0]
    if scalar in ("f32", "f64"):
        return f"0x{int.from_bytes(struct.pack('<d', float(value)), 'little'):016X}"
    return str(int(value))


def _splat(literal: str, llvm_scalar: str, lanes: int) -> str:
    return literal if lanes == 1 else "<" + ", ".join([f"{llvm_scalar} {literal}"] * lanes) + ">"


class _Module:
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


class _Function:
    """Renders one kernel."""

    def __init__(self, kernel: Kernel, target: Target, module: _Module) -> None:
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
        kind = _register(op.type)
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
            return _splat(_literal(item, type_.scalar), _register(Type(type_.scalar)), type_.lanes)
        if item in self.constants:
            value, scalar = self.constants[item]
            return _splat(_literal(value, scalar), _register(Type(scalar)), type_.lanes)
        return f"%{item}"

    def number(self, value: float, type_: Type) -> str:
        return _splat(_literal(value, type_.scalar), _register(Type(type_.scalar)), type_.lanes)

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
        return self.new(f"getelementptr {_memory(op.type.scalar)}, ptr {buffer}, i64 {self.index(op.operands[1])}")

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
                self.allocas.append(f"  %{statement.name} = alloca {_register(statement.type)}")
            elif isinstance(statement, DeclareLocal):
                align = max(16, self.target.vector_bytes)
                array = f"[{statement.length} x {_memory(statement.scalar)}]"
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
        column = 0 if op.type.is_float else 2 if _is_unsigned(op.type.scalar) else 1
        self.set(op, f"{_ARITHMETIC[op.code][column]} {_register(op.type)} {a}, {b}")

    def extreme(self, op: Op) -> None:
        a, b = self.values(op)
        self.set(op, self.extreme_of(op.code, op.type, a, b))

    def extreme_of(self, code: str, type_: Type, a: str, b: str) -> str:
        """min or max: for floats `a < b ? a : b`, which is one instruction on x86."""
        kind = _register(type_)
        if type_.is_float:
            test = self.new(f"fcmp {'olt' if code == 'min' else 'ogt'} {kind} {a}, {b}")
            return f"select {_register(type_.of('bool'))} {test}, {kind} {a}, {kind} {b}"
        intrinsic = f"llvm.{'u' if _is_unsigned(type_.scalar) else 's'}{code}.{_mangled(kind)}"
        return self.call(intrinsic, kind, (kind, a), (kind, b))

    def copysign(self, op: Op) -> None:
        kind = _register(op.type)
        self.set(op, self.call(f"llvm.copysign.{_mangled(kind)}", kind, *((kind, v) for v in self.values(op))))

    def unary(self, op: Op) -> None:
        (a,), kind = self.values(op), _register(op.type)
        name = _mangled(kind)
        if op.code == "neg":
            text = f"fneg {kind} {a}"
        elif op.code == "ineg":
            text = f"sub {kind} zeroinitializer, {a}" if op.type.lanes > 1 else f"sub {kind} 0, {a}"
        elif op.code == "not":
            ones = self.number(1 if op.type.scalar == "bool" else -1, op.type)
            text = f"xor {kind} {a}, {ones}"
        elif op.code == "popcount":
            text = self.call(f"llvm.ctpop.{name}", kind, (kind, a))
        elif op.code == "leading_zeros":
            text = self.call(f"llvm.ctlz.{name}", kind, (kind, a), ("i1", "false"))
        elif op.code == "abs" and _is_unsigned(op.type.scalar):
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
            self.set(op, f"fcmp {test} {_register(type_)} {a}, {b}")
            return
        sign = "u" if _is_unsigned(type_.scalar) else "s"
        test = f"{sign}{predicate}" if predicate in _PREDICATES else predicate
        self.set(op, f"icmp {test} {_register(type_)} {a}, {b}")

    def select(self, op: Op) -> None:
        mask, a, b = self.values(op)
        kind = _register(op.type)
        self.set(op, f"select {_register(op.operand_types[0])} {mask}, {kind} {a}, {kind} {b}")

    def fma(self, op: Op) -> None:
        (a, b, c), kind = self.values(op), _register(op.type)
        if op.type.is_float and self.target.has_fma:
            self.set(op, self.call(f"llvm.fma.{_mangled(kind)}", kind, (kind, a), (kind, b), (kind, c)))
            return
        prefix = "f" if op.type.is_float else ""
        product = self.new(f"{prefix}mul {kind} {a}, {b}")
        self.set(op, f"{prefix}add {kind} {product}, {c}")

    def cast(self, op: Op) -> None:
        (a,) = self.values(op)
        self.alias(op, self.converted(a, op.operand_types[0], op.type))

    def converted(self, a: str, source: Type, to: Type) -> str:
        """Value conversion; f16 and bf16 go through f32."""
        single = source.of("f32")
        if source.scalar == to.scalar:
            return a
        if source.scalar in ("f16", "bf16"):
            wide = self.half_to_single(a, source) if source.scalar == "f16" else self.bfloat_to_single(a, source)
            return self.converted(wide, single, to)
        if to.scalar in ("f16", "bf16"):
            narrow = self.converted(a, source, single)
            return self.single_to_half(narrow, single) if to.scalar == "f16" else self.single_to_bfloat(narrow, single)
        have, want = _register(source), _register(to)
        if to.scalar == "bool":
            test = "fcmp une" if source.is_float else "icmp ne"
            return self.new(f"{test} {have} {a}, {self.number(0, source)}")
        if source.is_float and to.is_float:
            return self.new(f"{'fpext' if to.scalar == 'f64' else 'fptrunc'} {have} {a} to {want}")
        if source.is_float:
            return self.new(f"{'fptoui' if _is_unsigned(to.scalar) else 'fptosi'} {have} {a} to {want}")
        if to.is_float:
            return self.new(f"{'uitofp' if _is_unsigned(source.scalar) else 'sitofp'} {have} {a} to {want}")
        if have == want:
            return a
        wider = source.scalar == "bool" or BYTES[to.scalar] > BYTES[source.scalar]
        extend = "zext" if _is_unsigned(source.scalar) else "sext"
        return self.new(f"{extend if wider else 'trunc'} {have} {a} to {want}")

    # --- 16-bit floats, by integers where the processor has no instruction ---

    def integer(self, text: str, type_: Type, a: str, constant: int) -> str:
        """`text` of `a` and a constant, both unsigned `type_`."""
        return self.new(f"{text} {_register(type_)} {a}, {self.number(constant, type_)}")

    def bfloat_to_single(self, a: str, source: Type) -> str:
        bits, single = source.of("u32"), source.of("f32")
        wide = self.new(f"zext {_register(source)} {a} to {_register(bits)}")
        high = self.integer("shl", bits, wide, 16)
        return self.new(f"bitcast {_register(bits)} {high} to {_register(single)}")

    def single_to_bfloat(self, a: str, single: Type) -> str:
        """Round to nearest even by adding just under half; a NaN keeps its sign and stays a NaN."""
        bits, mask = single.of("u32"), _register(single.of("bool"))
        kind = _register(bits)
        x = self.new(f"bitcast {_register(single)} {a} to {kind}")
        high = self.integer("lshr", bits, x, 16)
        odd = self.integer("and", bits, high, 1)
        half = self.integer("add", bits, odd, 0x7FFF)
        rounded = self.integer("lshr", bits, self.new(f"add {kind} {x}, {half}"), 16)
        quiet = self.integer("or", bits, high, 0x40)
        nan = self.new(f"fcmp uno {_register(single)} {a}, {a}")
        chosen = self.new(f"select {mask} {nan}, {kind} {quiet}, {kind} {rounded}")
        return self.new(f"trunc {kind} {chosen} to {_register(single.of('bf16'))}")

    def half_to_single(self, a: str, source: Type) -> str:
        bits, single, lanes = source.of("u32"), source.of("f32"), source.lanes
        kind, floats, mask = _register(bits), _register(single), _register(source.of("bool"))
        if self.target.has_half:
            half = self.new(f"bitcast {_register(source)} {a} to {_vector('half', lanes)}")
            return self.new(f"fpext {_vector('half', lanes)} {half} to {floats}")
        # Exponents are rebased; infinities and NaNs once more; subnormals are normalised by a subtraction of floats.
        wide = self.new(f"zext {_register(source)} {a} to {kind}")
        magnitude = self.integer("shl", bits, self.integer("and", bits, wide, 0x7FFF), 13)
        exponent = self.integer("and", bits, magnitude, 0x7C00 << 13)
        normal = self.integer("add", bits, magnitude, 112 << 23)
        special = self.integer("add", bits, normal, 112 << 23)
        shifted = self.new(f"bitcast {kind} {self.integer('add', bits, normal, 1 << 23)} to {floats}")
        small = self.new(f"fsub {floats} {shifted}, {self.number(2.0**-14, single)}")
        small = self.new(f"bitcast {floats} {small} to {kind}")
        is_special = self.integer("icmp eq", bits, exponent, 0x7C00 << 13)
        is_small = self.integer("icmp eq", bits, exponent, 0)
        value = self.new(f"select {mask} {is_special}, {kind} {special}, {kind} {normal}")
        value = self.new(f"select {mask} {is_small}, {kind} {small}, {kind} {value}")
        sign = self.integer("shl", bits, self.integer("and", bits, wide, 0x8000), 16)
        value = self.new(f"or {kind} {value}, {sign}")
        return self.new(f"bitcast {kind} {value} to {floats}")

    def single_to_half(self, a: str, single: Type) -> str:
        bits, lanes, half = single.of("u32"), single.lanes, _register(single.of("f16"))
        kind, floats, mask = _register(bits), _register(single), _register(single.of("bool"))
        if self.target.has_half:
            narrow = self.new(f"fptrunc {floats} {a} to {_vector('half', lanes)}")
            return self.new(f"bitcast {_vector('half', lanes)} {narrow} to {half}")
        # Round to nearest even: normal numbers by integers, subnormal ones by adding a float whose last place is 2^-24.
        x = self.new(f"bitcast {floats} {a} to {kind}")
        sign = self.integer("and", bits, x, 0x80000000)
        magnitude = self.new(f"xor {kind} {x}, {sign}")
        odd = self.integer("and", bits, self.integer("lshr", bits, magnitude, 13), 1)
        biased = self.integer("add", bits, magnitude, (0xFFF - (112 << 23)) & 0xFFFFFFFF)
        normal = self.integer("lshr", bits, self.new(f"add {kind} {biased}, {odd}"), 13)
        as_float = self.new(f"bitcast {kind} {magnitude} to {floats}")
        shifted = self.new(f"fadd {floats} {as_float}, {self.number(0.5, single)}")
        small = self.integer("sub", bits, self.new(f"bitcast {floats} {shifted} to {kind}"), _float_bits(0.5))
        is_small = self.integer("icmp ult", bits, magnitude, 113 << 23)
        is_large = self.integer("icmp uge", bits, magnitude, 0x47800000)
        is_nan = self.integer("icmp ugt", bits, magnitude, 0x7F800000)
        large = self.new(f"select {mask} {is_nan}, {kind} {self.number(0x7E00, bits)}, {kind} {self.number(0x7C00, bits)}")
        value = self.new(f"select {mask} {is_small}, {kind} {small}, {kind} {normal}")
        value = self.new(f"select {mask} {is_large}, {kind} {large}, {kind} {value}")
        value = self.new(f"or {kind} {value}, {self.integer('lshr', bits, sign, 16)}")
        return self.new(f"trunc {kind} {value} to {half}")

    def bitcast(self, op: Op) -> None:
        (a,) = self.values(op)
        self.set(op, f"bitcast {_register(op.operand_types[0])} {a} to {_register(op.type)}")

    # --- lanes ---

    def broadcast(self, op: Op) -> None:
        item = op.operands[0]
        if not isinstance(item, str) or item in self.constants:
            self.constants[op.result] = self.constants[item] if isinstance(item, str) else (item, op.type.scalar)
            return
        kind, scalar = _register(op.type), _register(Type(op.type.scalar))
        first = self.new(f"insertelement {kind} poison, {scalar} %{item}, i32 0")
        self.set(op, f"shufflevector {kind} {first}, {kind} poison, <{op.type.lanes} x i32> zeroinitializer")

    def iota(self, op: Op) -> None:
        scalar, kind = _register(Type(op.type.scalar)), _register(op.type)
        lanes = ", ".join(f"{scalar} {_literal(i, op.type.scalar)}" for i in range(op.type.lanes))
        self.set(op, f"select i1 true, {kind} <{lanes}>, {kind} poison")

    def extract(self, op: Op) -> None:
        (v,) = self.values(op)
        self.set(op, f"extractelement {_register(op.operand_types[0])} {v}, i32 {op.get('lane')}")

    def insert(self, op: Op) -> None:
        v, a = self.values(op)
        self.set(op, f"insertelement {_register(op.type)} {v}, {_register(op.operand_types[1])} {a}, i32 {op.get('lane')}")

    def shuffle(self, op: Op) -> None:
        v, w = self.values(op)
        source, indexes = op.operand_types[0], _indexes(op)
        if source.lanes == 1 or len(indexes) == 1:
            self.shuffle_scalars(op, v, w, source, indexes)
        else:
            self.set(op, self.shuffled(_register(source), v, w, indexes))

    def shuffle_scalars(self, op: Op, v: str, w: str, source: Type, indexes: tuple[int, ...]) -> None:
        """A shuffle of scalars, or one that gives a scalar: lane by lane."""
        def pick(index: int) -> str:
            vector = v if index < source.lanes else w
            if source.lanes == 1:
                return vector
            return self.new(f"extractelement {_register(source)} {vector}, i32 {index % source.lanes}")

        if len(indexes) == 1:
            self.alias(op, pick(indexes[0]))
            return
        kind, value = _register(op.type), "poison"
        for lane, index in enumerate(indexes):
            value = self.new(f"insertelement {kind} {value}, {_register(Type(source.scalar))} {pick(index)}, i32 {lane}")
        self.alias(op, value)

    def shuffled(self, kind: str, v: str, w: str, indexes: Sequence[int]) -> str:
        lanes = ", ".join(f"i32 {i}" for i in indexes)
        return f"shufflevector {kind} {v}, {kind} {w}, <{len(indexes)} x i32> <{lanes}>"

    def reduce(self, op: Op) -> None:
        """Halves are combined until one lane is left; where the lanes are odd, the last one is carried along."""
        (v,), type_ = self.values(op), op.operand_types[0]
        code, carried = str(op.get("kind")), []
        while type_.lanes > 1:
            kind, half = _register(type_), type_.lanes // 2
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
        return self.new(f"{_ARITHMETIC[code][column]} {_register(type_)} {a}, {b}")

    # --- memory ---

    def load(self, op: Op) -> None:
        self.load_from(op, self.address(op), op.operands[2] if len(op.operands) > 2 else None)

    def load_from(self, op: Op, address: str, mask: Operand | None) -> None:
        memory = _vector(_memory(op.type.scalar), op.type.lanes)
        align = _align(op)
        if mask is None:
            value = self.new(f"load {memory}, ptr {address}, align {align}")
        elif op.type.lanes == 1:
            value = self.scalar_where(mask, memory, address, align)
        else:
            masks = Type("bool", op.type.lanes)
            value = self.new(self.call(f"llvm.masked.load.{_mangled(memory)}.p0", memory, ("ptr", address), ("i32", str(align)),
                                       (_register(masks), self.operand(mask, masks)), (memory, "zeroinitializer")))
        self.loaded(op, value, memory)

    def loaded(self, op: Op, value: str, memory: str) -> None:
        """Turns what memory holds into the result of `op`."""
        if op.type.scalar == "bool":
            self.set(op, f"icmp ne {memory} {value}, {_splat('0', 'i8', op.type.lanes)}")
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
        memory = _vector(_memory(type_.scalar), type_.lanes)
        value = self.operand(op.operands[2], type_)
        if type_.scalar == "bool":
            value = self.new(f"zext {_register(type_)} {value} to {memory}")
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
            self.line(self.call(f"llvm.masked.store.{_mangled(memory)}.p0", "void", (memory, value), ("ptr", address),
                                ("i32", str(_align(op))), (_register(masks), self.operand(op.operands[3], masks))))

    def gather(self, op: Op) -> None:
        indexes, lanes, scalar = op.operand_types[0], op.type.lanes, op.type.scalar
        at = self.converted(self.operand(op.operands[1], indexes), indexes, indexes.of("i64"))
        mask = op.operands[2] if len(op.operands) > 2 else None
        kind = _vector("ptr", lanes)
        address = self.new(f"getelementptr {_memory(scalar)}, ptr %{op.operands[0]}, {_vector('i64', lanes)} {at}")
        if lanes == 1:
            self.load_from(op, address, mask)
            return
        memory, masks = _vector(_memory(scalar), lanes), Type("bool", lanes)
        chosen = self.number(1, masks) if mask is None else self.operand(mask, masks)
        value = self.new(self.call(f"llvm.masked.gather.{_mangled(memory)}.v{lanes}p0", memory, (kind, address),
                                   ("i32", str(BYTES[scalar])), (_register(masks), chosen), (memory, "zeroinitializer")))
        self.loaded(op, value, memory)

    def offset(self, op: Op) -> None:
        at = self.index(op.operands[1])
        self.set(op, f"getelementptr {_memory(op.type.scalar)}, ptr %{op.operands[0]}, i64 {at}")

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
        self.set(op, f"load {_register(op.type)}, ptr %{op.operands[0]}")

    def write(self, op: Op) -> None:
        self.line(f"store {_register(op.type)} {self.operand(op.operands[1], op.type)}, ptr %{op.operands[0]}")

    def prefetch(self, op: Op) -> None:
        self.line(self.call("llvm.prefetch.p0", "void", ("ptr", self.address(op)), ("i32", "0"), ("i32", "3"), ("i32", "1")))


_Emitter: TypeAlias = Callable[[_Function, Op], None]
_EMIT: dict[str, _Emitter] = {
    **dict.fromkeys(_ARITHMETIC, _Function.arithmetic),
    **dict.fromkeys(("min", "max"), _Function.extreme),
    **dict.fromkeys(("neg", "ineg", "not", "popcount", "leading_zeros", *_ROUNDING), _Function.unary),
    **{
        name: getattr(_Function, name)
        for name in ("constant", "copysign", "compare", "select", "fma", "cast", "bitcast", "broadcast", "iota", "extract",
                     "insert", "shuffle", "reduce", "load", "store", "gather", "offset", "row", "set_row", "select_buffer", "read",
                     "write", "prefetch")
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


def render(kernels: Sequence[Kernel], target: Target) -> str:
    """The LLVM IR of `kernels`, one function each.

    Raises
    ------
    LoopError
        When a kernel is malformed or two have the same name.
    """
    names = [k.name for k in kernels]
    if len(set(names)) < len(names):
        raise LoopError(f"two kernels of one module are called {next(n for n in names if names.count(n) > 1)}")
    for kernel in kernels:
        verify(kernel)
    module = _Module()
    functions = [_Function(kernel, target, module).render() for kernel in kernels]
    return "\n".join([f'target triple = "{target.triple}"', "", *functions, module.text(), ""])


# --- compiling ------------------------------------------------------------------------------------------------------------


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target) -> Any:
    _initialize()
    chosen = llvm.Target.from_triple(target.triple)
    return chosen.create_target_machine(cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small")


def _optimized(ir: str, machine: Any) -> Any:
    """The module after LLVM's passes; LLVM vectorises nothing by itself."""
    module = llvm.parse_assembly(ir)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def compile_ir(ir: str, target: Target) -> bytes:
    """An ELF object of the IR `render` made: position independent, no undefined symbols."""
    machine = _machine(target)
    data: bytes = machine.emit_object(_optimized(ir, machine))
    return data


def assembly(ir: str, target: Target) -> str:
    """The assembly text of the IR `render` made, with LLVM's comments on spills."""
    machine = _machine(target)
    machine.set_asm_verbosity(True)
    text: str = machine.emit_assembly(_optimized(ir, machine))
    return text


def count_spills(asm: str) -> int:
    """How many times registers are stored to the stack for want of registers, in text made by `assembly`."""
    saves = re.compile(r"\s+(stp|str)\s+[xd]\d+")  # AArch64 marks the saves of a function's entry as spills too
    return sum("Spill" in line and not saves.match(line) for line in asm.splitlines())


class Jit:
    """Kernels compiled into this process, for tests and measurements; they live as long as the object.

    Parameters
    ----------
    kernels
        What to compile.
    target
        An instruction set this processor has.
    """

    def __init__(self, kernels: Sequence[Kernel], target: Target) -> None:
        self.object = compile_ir(render(kernels, target), target)
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        self._engine = llvm.create_mcjit_compiler(empty, _machine(target))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(self.object))
        self._engine.finalize_object()
        self.addresses: dict[str, int] = {k.name: self._engine.get_function_address(k.name) for k in kernels}

    def call(self, name: str) -> Callable[[Any, int, int, int], None]:
        """The kernel `name` as a function of (int64 array of argument slots, address of scratch, begin, end)."""
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        function = prototype(self.addresses[name])

        def call(args: Any, scratch: int, begin: int, end: int, *, keep: Jit = self) -> None:
            function(args.ctypes.data, scratch, begin, end)

        return call


def jit(kernels: Sequence[Kernel], target: Target) -> dict[str, Callable[[Any, int, int, int], None]]:
    """The kernels as Python callables; see `Jit.call`."""
    compiled = Jit(kernels, target)
    return {k.name: compiled.call(k.name) for k in kernels}
