"""What a processing unit is: a frozen description, found by asking and measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.loops.target import Target


@dataclass(frozen=True)
class Device:
    """One processing unit.

    Sizes are in bytes, rates in operations or bytes a second.  `measured` holds what micro-benchmarks found (empty when a
    device is only described, as when compiling for another machine); see `sartor.devices.probe`.
    """

    target: Target
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    name: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Identifies what may share tuning records: processor, instruction set, core count and cache sizes."""
        return f"{self.name}/{self.target.isa}/{self.cores}/{self.l1_bytes}/{self.l2_bytes}/{self.l3_bytes}"

    def lanes(self, scalar: str) -> int:
        """Vector lanes of an element type."""
        return self.target.lanes(scalar)
