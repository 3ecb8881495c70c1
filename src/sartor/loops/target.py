"""What the renderers must know about the processor a kernel is made for: a frozen description, found by name."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.errors import OptionError
from sartor.types import BYTES

ISAS = ("sse4", "avx2", "avx512", "neon")
"""Instruction sets kernels can be made for, by the names programs and records use."""

_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"


@dataclass(frozen=True)
class Target:
    """An instruction set level and how LLVM is told of it.

    Attributes
    ----------
    isa
        One of `ISAS`.
    triple, cpu, features
        What LLVM's target machine is made from.
    vector_bytes, vector_registers
        Size and number of the vector registers.
    has_fma
        Whether multiply-add with one rounding is an instruction.
    """

    isa: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int
    has_fma: bool

    def lanes(self, scalar: str) -> int:
        """How many `scalar`s fill one vector register."""
        return self.vector_bytes // BYTES[scalar]

    @property
    def is_x86(self) -> bool:
        return self.isa != "neon"

    @property
    def has_half(self) -> bool:
        """Whether f16 is converted to and from f32 by instructions."""
        return self.isa != "sse4"


def target_for(isa: str, triple: str | None = None) -> Target:
    """The target of the name `isa`, on Linux unless `triple` says otherwise.

    Raises
    ------
    OptionError
        When `isa` is not one of `ISAS`.
    """
    if isa == "sse4":
        return Target(isa, triple or _X86, "x86-64-v2", "", 16, 16, False)
    if isa == "avx2":
        return Target(isa, triple or _X86, "x86-64-v3", "", 32, 16, True)
    if isa == "avx512":
        # x86-64-v4 prefers 256-bit vectors unless told otherwise, which would split ours.
        return Target(isa, triple or _X86, "x86-64-v4", "-prefer-256-bit", 64, 32, True)
    if isa == "neon":
        return Target(isa, triple or _ARM, "generic", "+neon,+fp-armv8", 16, 32, True)
    raise OptionError(f"{isa} is not an instruction set Sartor knows; known are {', '.join(ISAS)}")
