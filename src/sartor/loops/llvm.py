"""Renders loop programs as LLVM IR and compiles them to objects that refer to nothing outside themselves.

    ir = render([kernel], target)      text
    data = compile_ir(ir, target)      an ELF object, position independent, without undefined symbols
    calls = jit([kernel], target)      for tests and measurements on this machine

Each kernel becomes `void name(ptr args, ptr scratch, i64 begin, i64 end)`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from sartor.errors import LoopError
from sartor.loops.language import Kernel
from sartor.loops.llvm_function import Function, Module
from sartor.loops.target import Target
from sartor.loops.verify import verify

_PASSES = (
    "always_inliner", "global_dead_code_eliminate", "sroa", "instruction_combine", "simplify_cfg", "loop_simplify", "lcssa",
    "loop_rotate", "loop_unroll", "instruction_combine", "simplify_cfg", "aggressive_dce",
)
"""What LLVM's middle end does.  Kernels are written with everything hoisted and unrolled already; the whole -O2 takes four times as
long and makes code of the same speed."""


def render(kernels: Sequence[Kernel], target: Target, *, checked: bool = False) -> str:
    """The LLVM IR of `kernels`, one function each; the verifier looks at them first, unless the caller knows them `checked`.

    Raises
    ------
    LoopError
        When a kernel is malformed or two have the same name.
    """
    names = [k.name for k in kernels]
    if len(set(names)) < len(names):
        raise LoopError(f"two kernels of one module are called {next(n for n in names if names.count(n) > 1)}")
    for kernel in () if checked else kernels:
        verify(kernel)
    module = Module()
    functions = [Function(kernel, target, module).render() for kernel in kernels]
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
    """The module after `_PASSES`; LLVM vectorises nothing by itself."""
    module = llvm.parse_assembly(ir)
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    manager = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
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
    """How many times vector registers are stored to the stack for want of registers, in text made by `assembly`.

    Integers that are kept on the stack outside the innermost loop are cheap and not counted.
    """
    spill = re.compile(r"(16|32|64)-byte (Folded )?Spill")
    saves = re.compile(r"\s+(stp|str)\s+[xd]\d+")  # AArch64 marks the saves of a function's entry as spills too
    return sum(bool(spill.search(line)) and not saves.match(line) for line in asm.splitlines())


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
