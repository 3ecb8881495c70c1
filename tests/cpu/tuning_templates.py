"""Template libraries for the tests of tuning: few choices, and templates that fail in every way there is.

Measuring children import them by name, `tuning_templates:FAULTY`, this folder being on the path they get.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from sartor.loops.language import Builder
from sartor.templates import TEMPLATES
from sartor.templates.base import Implementation, KernelCall, Pointer, Space
from sartor.templates.elementwise import Elementwise


class Relu:
    """relu of dense f32 values, element by element.

    Parameters
    ----------
    factor
        What results are multiplied by.
    late_factor
        The same for slices that do not begin at 0.
    shift, more
        How many elements results are moved, and how many more than there are get computed.
    before
        Called when a kernel is built.
    """

    def __init__(self, name: str, factor: float = 1.0, late_factor: float | None = None, shift: int = 0, more: int = 0,
                 before: Callable[[], Any] = lambda: None) -> None:
        self.name, self.factor, self.shift, self.more, self.before = name, factor, shift, more, before
        self.late_factor = factor if late_factor is None else late_factor

    def applies(self, problem, device):
        layer = problem.layer
        return layer.kind == "elementwise" and str(layer.expression) == "relu(x0)" and problem.output().dtype == "f32"

    def space(self, problem, device):
        return Space({"knob": (1, 2) if self.name == "right" else (1,)})

    def default(self, problem, device):
        return None

    def pack(self, problem, config, device):
        return ()

    def contiguous(self, problem, value):
        return True

    def in_place(self, problem, value):
        return False

    def build(self, problem, config, device):
        self.before()
        b = Builder("relu")
        x, y = b.pointer("x", "f32"), b.pointer("y", "f32")
        factor = b.select(b.begin.eq(0), self.factor, b.constant(self.late_factor, b.load(x, b.begin).type))
        with b.loop("i", b.begin, b.end) as i:
            b.store(y, i + self.shift, b.maximum(b.load(x, i), 0.0) * factor)
        call = KernelCall(b.finish(), (Pointer(problem.layer.inputs[0]), Pointer(problem.layer.outputs[0])),
                          problem.output().elements + self.more, bytes=2 * problem.output().bytes)
        return Implementation((call,))


class Limited:
    """A template of the product with fewer choices: its default and some values of some knobs."""

    def __init__(self, template: Any, **knobs: tuple[Any, ...]) -> None:
        self._template, self._knobs = template, knobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._template, name)

    def space(self, problem, device):
        whole = self._template.space(problem, device)
        default = self._template.default(problem, device) or next(iter(whole))
        return Space({knob: self._knobs.get(knob, (default[knob],)) for knob in whole.knobs}, whole.constraint)


def _hang():
    while True:
        time.sleep(1)


def _leave():
    sys.stderr.write("no more of this\n")
    sys.stderr.flush()
    os._exit(3)


def _raise():
    raise ValueError("such a template cannot be built")


RIGHT = (Elementwise(), Relu("right"))
FAULTY = (
    Elementwise(),
    Relu("right"),
    Relu("wrong", factor=1.001),
    Relu("by slices", late_factor=1.00001),
    Relu("before", shift=-1),
    Relu("beyond", more=1),
    Relu("away", shift=1 << 40),
    Relu("leaves", before=_leave),
    Relu("raises", before=_raise),
    Relu("hangs", before=_hang),
)
ONLY_FAULTY = (Relu("elementwise", before=_raise), Relu("wrong", factor=2.0))
FEW = tuple(Limited(t, unroll=(1, 2), vectors=(1, 2)) for t in TEMPLATES if t.name in ("elementwise", "pool", "gemm", "convolution"))
