"""Runs one template on one problem without planner, program or executor, and holds the result to the reference.

Every buffer ends at an unreadable page and is surrounded by a pattern, rows lie `pitch` apart with a pattern between them,
and scratch starts as NaNs, so that reads and writes out of bounds do not pass unseen.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sartor.devices.device import Device
from sartor.graph.expression import Expression, ExpressionBuilder
from sartor.graph.layer import Layer, Problem, Tensor
from sartor.graph.reference import evaluate_layer
from sartor.loops.language import Kernel
from sartor.loops.llvm import Jit
from sartor.loops.target import Target, target_for
from sartor.sizes import Dim, evaluate
from sartor.templates.base import (
    Argument,
    Config,
    Constant,
    Implementation,
    KernelCall,
    Pitch,
    Pointer,
    RowTable,
    SizeOf,
    Template,
    Workspace,
)
from sartor.types import from_numpy, to_numpy

Array = np.ndarray[Any, Any]
PATTERN = 0xFF  # as a float: NaN
PAGE = mmap.PAGESIZE


# --- problems -------------------------------------------------------------------------------------------------------------


def device(isa: str = "avx2", cores: int = 2) -> Device:
    """A described device of that instruction set."""
    return Device(target_for(isa), cores, 32 << 10, 512 << 10, 32 << 20, name="test")


def problem(kind: str, inputs: Mapping[str, tuple[str, Sequence[Dim]]], output: tuple[str, Sequence[Dim]], *,
            extra: Mapping[str, tuple[str, Sequence[Dim]]] | None = None, expression: Expression | None = None,
            constants: Mapping[str, Array] | None = None, more_outputs: Mapping[str, tuple[str, Sequence[Dim]]] | None = None,
            **attributes: Any) -> Problem:
    """A problem from (dtype, shape) of each value: `problem("softmax", {"x": ("f32", (3, 7))}, ("f32", (3, 7)), axis=1, log=False)`.

    The output is called `y`.  A name "" in `inputs` stands for an absent input.
    """
    described = {**inputs, **(extra or {}), "y": output, **(more_outputs or {})}
    tensors = {name: Tensor(dtype, tuple(shape)) for name, (dtype, shape) in described.items() if name}
    layer = Layer("layer", kind, tuple(inputs), ("y", *(more_outputs or {})), attributes, expression, tuple(extra or {}))
    return Problem(layer, tensors, dict(constants or {}))


def chain(dtypes: Sequence[str], *steps: tuple[Any, ...]) -> Expression:
    """An expression from steps (op, arg...); an arg is an operand's or step's index; a float is a constant of operand 0's type.

    `chain(["f32", "f32"], ("add", 0, 1), ("relu", 2))`: step k has index len(dtypes) + k.
    """
    builder = ExpressionBuilder(dtypes)
    index = list(range(len(dtypes)))
    for op, *args in steps:
        nodes = [builder.constant(a, dtypes[0]) if isinstance(a, float) else index[a] for a in args]
        index.append(builder(op, *nodes))
    return builder.finish(index[-1])


def random_inputs(problem: Problem, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Array]:
    """Random contents for every value read that is not a constant: normal numbers, small integers, fair booleans."""
    generator = np.random.default_rng(seed)
    found = {}
    for name in problem.layer.reads:
        if name in problem.constants or name in found:
            continue
        tensor = problem.tensors[name]
        shape = tuple(evaluate(d, sizes or {}) for d in tensor.shape)
        if tensor.dtype == "bool":
            array = generator.integers(0, 2, shape).astype(bool)
        elif tensor.dtype[0] in "iu":
            array = generator.integers(0 if tensor.dtype[0] == "u" else -9, 10, shape)
        else:
            array = generator.standard_normal(shape)
        found[name] = np.asarray(array).astype(to_numpy(tensor.dtype))
    return found


# --- memory ---------------------------------------------------------------------------------------------------------------


class Guarded:
    """`size` bytes that end at an unreadable page (but for `align`), after a stretch of pattern."""

    def __init__(self, size: int, align: int = 1) -> None:
        self.size = size
        room = -(-size // align) * align
        pages = -(-(room + 64) // PAGE) + 1
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base + pages * PAGE), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.start = pages * PAGE - room
        self.address = base + self.start
        self.bytes = np.frombuffer(self._map, np.uint8, pages * PAGE)
        self.bytes[:] = PATTERN

    def view(self, dtype: Any) -> Array:
        """The memory as a flat array."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self._map, dtype, self.size // dtype.itemsize, self.start)

    def intact(self) -> bool:
        """Whether the surroundings hold the pattern still."""
        return bool((self.bytes[:self.start] == PATTERN).all() and (self.bytes[self.start + self.size:] == PATTERN).all())


class Stored:
    """A value in guarded memory, its rows `pitch` elements apart."""

    def __init__(self, tensor: Tensor, sizes: Mapping[str, int], pitch: int | None) -> None:
        self.shape = tuple(evaluate(d, sizes) for d in tensor.shape)
        self.columns = self.shape[-1] if self.shape else 1
        self.rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        self.pitch = self.columns if pitch is None else pitch
        if self.pitch < self.columns:
            raise ValueError(f"a pitch of {self.pitch} is less than {self.columns} columns")
        self.dtype = to_numpy(tensor.dtype)
        length = (self.rows - 1) * self.pitch + self.columns if self.rows * self.columns else 0
        self.memory = Guarded(length * self.dtype.itemsize)
        self.flat = self.memory.view(self.dtype)

    def matrix(self) -> Array:
        """Rows x columns, strided, into the memory."""
        if not self.rows * self.columns:
            return np.zeros((self.rows, self.columns), self.dtype)
        step = self.dtype.itemsize
        return np.ndarray((self.rows, self.columns), self.dtype, self.flat, 0, (self.pitch * step, step))

    def write(self, array: Array) -> None:
        if array.shape != self.shape:
            raise ValueError(f"an array of shape {array.shape} is given for a value of shape {self.shape}")
        self.matrix()[:] = np.asarray(array, self.dtype).reshape(self.rows, self.columns)

    def read(self) -> Array:
        return np.ascontiguousarray(self.matrix()).reshape(self.shape)

    def gaps_intact(self) -> bool:
        """Whether nothing was written between rows or around the value."""
        raw = self.memory.view(np.uint8).copy()
        step = self.dtype.itemsize
        inside = np.zeros(raw.size, bool)
        for row in range(self.rows if self.columns else 0):
            inside[row * self.pitch * step:(row * self.pitch + self.columns) * step] = True
        return self.memory.intact() and bool((raw[~inside] == PATTERN).all())


_JITS: dict[tuple[str, str], Jit] = {}


def _compiled(kernels: tuple[Kernel, ...], target: Target) -> Jit:
    """The kernels in this process; those of the last calls are kept, as tests bind one kernel to many sizes."""
    key = (target.isa, "\n".join(map(str, kernels)))
    if key not in _JITS:
        if len(_JITS) >= 16:
            _JITS.pop(next(iter(_JITS)))
        _JITS[key] = Jit(kernels, target)
    return _JITS[key]


# --- running --------------------------------------------------------------------------------------------------------------


class Bound:
    """A compiled implementation with its memory: `run` computes, `outputs` reads the results."""

    def __init__(self, template: Template, problem: Problem, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None,
                 on: Device | None = None, config: Config | None = None, pitch: Mapping[str, int] | None = None,
                 over: str | None = None) -> None:
        self.on = on or device()
        self.problem = problem
        self.sizes = dict(sizes or {})
        pitch = pitch or {}
        if not template.applies(problem, self.on):
            raise AssertionError(f"{template.name} does not apply to {problem.layer.kind}")
        if config is None:
            config = template.default(problem, self.on)
        if config is None:
            config = next(iter(template.space(problem, self.on)))
        for name in pitch:
            if template.contiguous(problem, name):
                raise AssertionError(f"{template.name} wants {name} dense, so no pitch can be given")
        self.keep: list[Any] = []
        self.values = {n: Stored(t, self.sizes, pitch.get(n)) for n, t in problem.tensors.items()}
        if over is not None:
            self.values[problem.layer.outputs[0]] = self.values[over]
        for name, array in {**problem.constants, **inputs}.items():
            self.values[name].write(array)
        self.packed = [self._aligned(a) for a in template.pack(problem, config, self.on)]
        self.implementation: Implementation = template.build(problem, config, self.on)
        self.workspaces = [Guarded(evaluate(size, self.sizes), 64) for size in self.implementation.workspaces]
        names = [f"{call.kernel.name}_{i}" for i, call in enumerate(self.implementation.calls)]
        kernels = [type(c.kernel)(n, c.kernel.parameters, c.kernel.body) for n, c in zip(names, self.implementation.calls, strict=True)]
        compiled = _compiled(tuple(kernels), self.on.target)
        self.functions = [compiled.call(n) for n in names]
        self.arguments = [np.array([self._slot(a) for a in call.arguments] or [0], np.int64) for call in self.implementation.calls]
        for call in self.implementation.calls:
            if len(call.arguments) != len(call.kernel.parameters):
                raise AssertionError(f"{call.kernel.name} has {len(call.kernel.parameters)} parameters, {len(call.arguments)} arguments")

    def _aligned(self, array: Array) -> Guarded:
        array = np.ascontiguousarray(array)
        memory = Guarded(array.nbytes, 64)
        memory.view(np.uint8)[:] = array.reshape(-1).view(np.uint8)
        return memory

    def _slot(self, argument: Argument) -> int:
        size = self.sizes
        if isinstance(argument, Pointer):
            stored = self.values[argument.value]
            return int(stored.memory.address + evaluate(argument.offset, size) * stored.dtype.itemsize)
        if isinstance(argument, Pitch):
            return self.values[argument.value].pitch
        if isinstance(argument, SizeOf):
            return evaluate(argument.dim, size)
        if isinstance(argument, RowTable):
            return self._row_table(argument)
        if isinstance(argument, Constant):
            return self.packed[argument.index].address
        if isinstance(argument, Workspace):
            return self.workspaces[argument.index].address
        memory = Guarded(evaluate(argument.bytes, size), 64)
        memory.view(np.uint8)[:] = 0
        self.keep.append(memory)
        return memory.address

    def _row_table(self, table: RowTable) -> int:
        stored = self.values[table.value]
        images, height, pixels, before, after = (evaluate(d, self.sizes) for d in (
            table.images, table.height, table.row_pixels, table.before, table.after))
        addresses = []
        for image in range(images):
            for row in range(-before, height + after):
                inside = 0 <= row < height
                step = (image * height + row) * pixels * stored.pitch * stored.dtype.itemsize
                addresses.append(stored.memory.address + step if inside else 0)
        memory = Guarded(8 * len(addresses))
        memory.view(np.int64)[:] = addresses
        self.keep.append(memory)
        return memory.address

    def run(self, pieces: int = 1) -> None:
        """Computes all calls, each in `pieces` slices, the last one first, each with scratch of its own."""
        for call, function, arguments in zip(self.implementation.calls, self.functions, self.arguments, strict=True):
            for begin, end in reversed(_slices(call, self.sizes, pieces)):
                scratch = Guarded(evaluate(call.scratch, self.sizes), 64)
                function(arguments, scratch.address, begin, end)
                if not scratch.intact():
                    raise AssertionError(f"{call.kernel.name} writes outside its scratch of {scratch.size} bytes")

    def prepare(self) -> Any:
        """A function that runs everything in one piece, for timing."""
        plan = []
        for call, function, arguments in zip(self.implementation.calls, self.functions, self.arguments, strict=True):
            scratch = Guarded(evaluate(call.scratch, self.sizes), 64)
            self.keep.append(scratch)
            plan.append((function, arguments, scratch.address, evaluate(call.extent, self.sizes)))

        def go() -> None:
            for function, arguments, address, extent in plan:
                function(arguments, address, 0, extent)

        return go

    def outputs(self) -> dict[str, Array]:
        """The results; raises where anything around them was written."""
        for name, stored in self.values.items():
            if not stored.gaps_intact():
                raise AssertionError(f"memory around {name} was written")
        return {name: self.values[name].read() for name in self.problem.layer.outputs}


def _slices(call: KernelCall, sizes: Mapping[str, int], pieces: int) -> list[tuple[int, int]]:
    extent, grain = evaluate(call.extent, sizes), max(1, evaluate(call.grain, sizes))
    blocks = -(-extent // grain)
    cuts = sorted({min(extent, grain * (blocks * i // pieces)) for i in range(pieces)} | {0, extent})
    return list(itertools.pairwise(cuts))


def run(template: Template, problem: Problem, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None,
        on: Device | None = None, config: Config | None = None, pieces: int = 1,
        pitch: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Packs, builds, compiles and computes; returns the outputs by name.

    Parameters
    ----------
    inputs
        Arrays by name; constants of the problem need none.
    pieces
        In how many slices each call's extent is computed.
    pitch
        Elements between rows, by value, where it is more than the last dim.
    """
    bound = Bound(template, problem, inputs, sizes, on, config, pitch)
    bound.run(pieces)
    return bound.outputs()


def check_in_place(template: Template, problem: Problem, value: str, sizes: Mapping[str, int] | None = None,
                   pitch: Mapping[str, int] | None = None) -> None:
    """Asserts that the output may lie on the input `value`: the same bits as apart from it."""
    assert template.in_place(problem, value), f"{template.name} does not write over {value}"
    inputs = random_inputs(problem, sizes)
    apart = run(template, problem, inputs, sizes, pitch=pitch)
    for pieces in (1, 3):
        bound = Bound(template, problem, inputs, sizes, pitch=pitch, over=value)
        bound.run(pieces)
        for name, array in bound.outputs().items():
            assert array.tobytes() == apart[name].tobytes(), f"{template.name}: {name} over {value} has other bits"


def check(template: Template, problem: Problem, inputs: Mapping[str, Array] | None = None, sizes: Mapping[str, int] | None = None,
          on: Device | None = None, config: Config | None = None, pitch: Mapping[str, int] | None = None, tolerance: float = 1e-5,
          absolute: float = 1e-6, seed: int = 0, off_by: int = 0) -> dict[str, Array]:
    """Compares a template with the reference, whole and in 3 slices (which must give the same bits); returns the outputs.

    Parameters
    ----------
    tolerance, absolute
        An element may be off by absolute + tolerance * |reference|; booleans must agree.
    off_by
        What integers may be off by.
    """
    inputs = random_inputs(problem, sizes, seed) if inputs is None else inputs
    bound = Bound(template, problem, inputs, sizes, on, config, pitch)
    bound.run(1)
    whole = bound.outputs()
    for name in problem.layer.outputs:
        stored = bound.values[name]
        stored.matrix().view(np.uint8)[:] = 0x55
    bound.run(3)
    parts = bound.outputs()
    wanted = _reference(problem, inputs, dict(sizes or {}))
    for name in problem.layer.outputs:
        same = whole[name].tobytes() == parts[name].tobytes()
        assert same, f"{template.name}: {name} has other bits when computed in slices"
        compare(whole[name], wanted[name], tolerance, absolute, f"{template.name}: {name}", off_by)
    return whole


def _reference(problem: Problem, inputs: Mapping[str, Array], sizes: dict[str, int]) -> dict[str, Array]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        result: Any = evaluate_layer(problem, {**problem.constants, **inputs}, sizes)
    if isinstance(result, Mapping):
        return dict(result)
    return dict(zip(problem.layer.outputs, result if isinstance(result, (list, tuple)) else [result], strict=True))


def compare(got: Array, wanted: Array, tolerance: float, absolute: float, what: str, off_by: int = 0) -> None:
    """Raises `AssertionError` that says where and by how much two arrays differ."""
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what} has shape {got.shape}, wanted {wanted.shape}"
    if got.dtype.kind in "biu":
        bad = got != wanted
        if off_by:
            bad = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) > off_by
    else:
        name = from_numpy(got.dtype)
        loose = max(tolerance, {"f16": 2e-3, "bf16": 2e-2}.get(name, 0.0))
        a, b = got.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):
            bad = ~((np.abs(a - b) <= absolute + loose * np.abs(b)) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
        raise AssertionError(f"{what}: {int(bad.sum())} of {bad.size} elements differ, first at {at}: {got[at]}, wanted {wanted[at]}")


