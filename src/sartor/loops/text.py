"""Prints a kernel as text a person can read: indented loops, infix arithmetic, constants in place.

    kernel scale(x: *f32, y: *f32)
      for i in begin .. end step 8:
        t1: f32x8 = x[i +8]
        t2: f32x8 = t1 * 2.0
        y[i +8] = t2
"""

from __future__ import annotations

from collections.abc import Sequence

from sartor.loops.language import Comment, DeclareLocal, DeclareVariable, If, Kernel, Loop, Op, Operand, Statement, While

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "idiv": "//", "irem": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "shr": ">>",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_PREFIX = {"neg": "-", "ineg": "-", "not": "~"}


def render(kernel: Kernel) -> str:
    """The text of `kernel`, without a newline at its end."""
    return _Printer().kernel(kernel)


class _Printer:
    def __init__(self) -> None:
        self.constants: dict[str, str] = {}

    def kernel(self, kernel: Kernel) -> str:
        kinds = {"pointer": "*{}", "size": "size", "rows": "rows {}"}
        parameters = ", ".join(f"{p.name}: {kinds[p.kind].format(p.scalar)}" for p in kernel.parameters)
        return "\n".join([f"kernel {kernel.name}({parameters})", *self.block(kernel.body)])

    def block(self, body: Sequence[Statement]) -> list[str]:
        lines = [line for statement in body for line in self.statement(statement)]
        return ["  " + line for line in lines]

    def statement(self, statement: Statement) -> list[str]:
        if isinstance(statement, Op):
            return self.operation(statement)
        if isinstance(statement, Loop):
            step = "" if statement.step == 1 else f" step {self.name(statement.step)}"
            unroll = f" unroll {statement.unroll}" if statement.unroll else ""
            head = f"for {statement.name} in {self.name(statement.start)} .. {self.name(statement.stop)}{step}{unroll}:"
            return [head, *self.block(statement.body)]
        if isinstance(statement, While):
            test = ["while:", *self.block(statement.head), f"  proceed {self.name(statement.condition)}"]
            return [*test, *self.block(statement.body)]
        if isinstance(statement, If):
            otherwise = ["else:", *self.block(statement.otherwise)] if statement.otherwise else []
            return [f"if {self.name(statement.condition)}:", *self.block(statement.then), *otherwise]
        return [self.declaration(statement)]

    def declaration(self, statement: DeclareVariable | DeclareLocal | Comment) -> str:
        if isinstance(statement, DeclareVariable):
            return f"var {statement.name}: {statement.type}"
        if isinstance(statement, DeclareLocal):
            return f"local {statement.name}: {statement.scalar}[{statement.length}]"
        return f"# {statement.text}"

    def name(self, item: Operand) -> str:
        return self.constants.get(item, item) if isinstance(item, str) else repr(item)

    def operation(self, op: Op) -> list[str]:
        if op.code == "constant" or (op.code == "broadcast" and op.operands[0] in self.constants):
            self.constants[op.result] = self.name(op.operands[0])
            return []
        names = [self.name(o) for o in op.operands]
        if op.code == "store":
            masked = f" where {names[3]}" if len(names) > 3 else ""
            return [f"{self.element(op, names)} = {names[2]}{masked}{self.facts(op, 'align', 'non_temporal')}"]
        if op.code == "write":
            return [f"{names[0]} = {names[1]}"]
        if op.code == "set_row":
            return [f"{names[0]}[{names[1]}] = &{names[2]}"]
        if op.code == "prefetch":
            return [f"prefetch {self.element(op, names)}"]
        kind = f"*{op.type}" if op.code in ("offset", "row", "select_buffer") else str(op.type)
        return [f"{op.result}: {kind} = {self.expression(op, names)}"]

    def element(self, op: Op, names: Sequence[str]) -> str:
        return f"{names[0]}[{names[1]}{f' +{op.type.lanes}' if op.type.lanes > 1 else ''}]"

    def facts(self, op: Op, *names: str) -> str:
        known = [(n, op.get(n)) for n in names]
        text = ", ".join(n if v is True else f"{n} {v}" for n, v in known if v)
        return f"  ({text})" if text else ""

    def expression(self, op: Op, names: Sequence[str]) -> str:
        code = op.code
        if code in _INFIX:
            return f"{names[0]} {_INFIX[code]} {names[1]}"
        if code in _PREFIX:
            return f"{_PREFIX[code]}{names[0]}"
        if code == "compare":
            return f"{names[0]} {_COMPARISONS[str(op.get('predicate'))]} {names[1]}"
        if code == "fma":
            return f"{names[0]} * {names[1]} + {names[2]}"
        if code in ("select", "select_buffer"):
            return f"{names[0]} ? {names[1]} : {names[2]}"
        if code == "load":
            return self.element(op, names) + self.where(names) + self.facts(op, "align")
        if code == "gather":
            return f"{names[0]}[{names[1]}]{self.where(names)}"
        if code == "row":
            return f"{names[0]}[{names[1]}]"
        if code == "offset":
            return f"{names[0]} + {names[1]}"
        if code == "read":
            return names[0]
        attributes = [f"{name} {value}" for name, value in op.attributes]
        return f"{code}({', '.join([*names, *attributes])})"

    def where(self, names: Sequence[str]) -> str:
        return f" where {names[2]}" if len(names) > 2 else ""
