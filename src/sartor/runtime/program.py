"""The program file: kernels as linked code, packed weights, the blueprint of the plan, and what was chosen for each layer.

    magic, format version, header bytes, checksum and seal           32 bytes
    header                                                           JSON
    code                                                             at a multiple of 4096
    weights                                                          at a multiple of 4096

A program is executable code: load only what you trust.  Checksums find damage, not malice.  The seal is a second digest of the
header: its numbers steer native code as much as the code itself, so a header that something edited is refused too.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from ctypes import string_at
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sartor.devices import processor
from sartor.errors import ProgramError
from sartor.fitting.checks import check_blueprint
from sartor.fitting.plan import Blueprint, Part
from sartor.graph.tensor import Tensor
from sartor.runtime.image import Code, load_code, map_weights
from sartor.sizes import from_data, to_data

MAGIC = b"SARTOR\x1a\n"
FORMAT = 2
"""Version of the file format; a file with a larger one is refused, and so is one with a smaller."""

_PREFIX = struct.Struct("<8sIIQII")  # magic, format, checksum of the header, its bytes, its seal
_PAGE = 4096
_CHECKED_WEIGHTS = 32 << 20  # bytes; larger weights are checked by length alone, so that loading stays lazy


@dataclass(frozen=True)
class LayerInfo:
    """What became of one layer.

    Attributes
    ----------
    name, kind
        As in the graph.
    inputs, outputs
        Its values as text: `name f32[1, 56, 56, 64]`.
    template, config
        The algorithm and its knobs; "" for a host step.
    tuned
        Whether measurements chose it.
    source
        Names of the model's nodes it came from.
    expression
        The element-wise work fused into it, as text.
    operator
        For a host step: the ONNX operator or kind of layer.
    copies
        Whether it only moves data.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    tuned: bool = False
    source: tuple[str, ...] = ()
    expression: str = ""
    operator: str = ""
    copies: bool = False


class Tail(NamedTuple):
    """The part of a model that onnx's reference implementation runs: a `ModelProto` at the end of the weights.

    Attributes
    ----------
    start
        Where in the weights it starts.
    head_inputs, head_outputs
        Types of what the kernels before it read and make; none where all of the model is here.
    """

    start: int
    head_inputs: Mapping[str, Tensor]
    head_outputs: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled network, immutable.

    Attributes
    ----------
    name
        Of the model.
    isa, machine
        The instruction set and processor family its code is made for.
    threads
        How many threads sessions run it on.
    precision
        Arithmetic of the kernels.
    inputs, outputs
        Types and shapes by name; shapes may have symbols.
    layers
        What became of each layer, in order of computation.
    versions
        Of what made it.
    tail
        The part of the model, if any, that runs after the kernels by onnx's reference implementation.
    parts
        The plans of bodies of control flow, which the blueprint's control steps and those of other parts run.
    """

    name: str
    isa: str
    machine: str
    threads: int
    precision: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    layers: tuple[LayerInfo, ...]
    versions: Mapping[str, str]
    blueprint: Blueprint = field(repr=False)
    kernels: tuple[str, ...] = field(repr=False)
    symbols: Mapping[str, int] = field(repr=False)
    weights: NDArray[np.uint8] = field(repr=False)
    image: bytes | None = field(default=None, repr=False)
    path: str = ""
    code_place: tuple[int, int] = field(default=(0, 0), repr=False)
    tail: Tail | None = None
    parts: tuple[Part, ...] = field(default=(), repr=False)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The steps that are not compiled kernels, as `layer (operator)`."""
        return tuple(f"{layer.name} ({layer.operator})" for layer in self.layers if layer.operator)

    @cached_property
    def code(self) -> Code:
        """The code, made executable in this process; whether this machine has the instructions is not looked at here."""
        if self.image is not None:
            return load_code(self.image, self.symbols)
        return load_code(self.path, self.symbols, *self.code_place)

    @property
    def code_bytes(self) -> int:
        """Size of the code."""
        return len(self.image) if self.image is not None else self.code_place[1]

    def part(self, number: int) -> Program:
        """A body as a program of its own, of the same code and weights."""
        part = self.parts[number]
        program = replace(self, inputs=part.inputs, outputs=part.outputs, blueprint=part.blueprint, tail=None)
        program.__dict__["code"] = self.code  # which is loaded already; the file may have been replaced since
        return program

    def __repr__(self) -> str:
        shapes = [", ".join(f"{name}: {tensor}" for name, tensor in side.items()) for side in (self.inputs, self.outputs)]
        fallbacks = f", {len(self.fallbacks)} fallbacks" if self.fallbacks else ""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        facts = f"{len(self.layers)} layers, {self.isa}, {self.precision}, {threads}{fallbacks}"
        return f"<Program {self.name or 'unnamed'}: {shapes[0]} -> {shapes[1]}; {facts}>"

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to `path`, whole or not at all.

        Raises
        ------
        ProgramError
            The file cannot be written.
        """
        import tempfile
        from pathlib import Path

        target = Path(path)
        code = self.image if self.image is not None else string_at(self.code.base, self.code_place[1])
        header = self._header(code)
        text = json.dumps(header, separators=(",", ":")).encode()
        try:
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
                try:
                    file.write(_PREFIX.pack(MAGIC, FORMAT, zlib.crc32(text), len(text), *_seal(text)) + text)
                    start = _place(_PREFIX.size + len(text))
                    for part in (code, self.weights.data):
                        file.write(bytes(start - file.tell()))
                        file.write(part)
                        start = _place(file.tell())
                    file.flush()
                    _give_usual_mode(file.fileno())
                    os.replace(file.name, target)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as problem:
            raise ProgramError(f"the program cannot be written to {target}: {problem.strerror or problem}") from None

    def _header(self, code: bytes) -> dict[str, Any]:
        return {
            "name": self.name,
            "isa": self.isa,
            "machine": self.machine,
            "threads": self.threads,
            "precision": self.precision,
            "inputs": _tensors_to_data(self.inputs),
            "outputs": _tensors_to_data(self.outputs),
            "layers": [asdict(layer) for layer in self.layers],
            "versions": dict(self.versions),
            "blueprint": self.blueprint.to_data(),
            "kernels": list(self.kernels),
            "symbols": dict(self.symbols),
            "code": [len(code), zlib.crc32(code)],
            "weights": [len(self.weights), zlib.crc32(self.weights.data)],
            "tail": self.tail
            and [self.tail.start, _tensors_to_data(self.tail.head_inputs), _tensors_to_data(self.tail.head_outputs)],
            "parts": [[_tensors_to_data(p.inputs), _tensors_to_data(p.outputs), p.blueprint.to_data()] for p in self.parts],
        }

    @staticmethod
    def load(path: str | os.PathLike[str], *, isas: tuple[str, ...] | None = None) -> Program:
        """Opens a program file.  Code and weights are mapped, not read, and shared with other processes that have them open.

        Parameters
        ----------
        path
            Of a file that `save` wrote.
        isas
            Instruction sets to accept programs for; by default those this machine has.  A session checks again.

        Raises
        ------
        ProgramError
            It is no program, damaged, of a newer format, or for another kind of machine.
        """
        name = os.fspath(path)
        try:
            return _load(name, isas)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
            raise ProgramError(f"{name} is damaged: its header is not complete ({type(problem).__name__}: {problem})") from None
        except OSError as problem:
            raise ProgramError(f"{name} cannot be opened: {problem.strerror or problem}") from None


def _load(name: str, isas: tuple[str, ...] | None) -> Program:
    """The program in a file; errors of all kinds where its header does not have what it should."""
    header, start, size = _read_header(name)
    if isas is None:
        check_machine(header["isa"], header["machine"], name)
    elif header["isa"] not in isas:
        raise ProgramError(_lack(name, header["isa"], isas))
    code_bytes, code_sum = header["code"]
    weights_bytes, weights_sum = header["weights"]
    weights_start = _place(start + code_bytes)
    if min(code_bytes, weights_bytes) < 0 or (
        size != weights_start + weights_bytes and not (weights_bytes == 0 and size >= start + code_bytes)
    ):
        raise ProgramError(f"{name} is damaged: it has {size} bytes, expected {weights_start + weights_bytes}")
    if zlib.crc32(_read_part(name, start, code_bytes)) != code_sum:
        raise ProgramError(f"{name} is damaged: its code does not match its checksum")
    weights = map_weights(name, weights_start, weights_bytes) if weights_bytes else np.empty(0, np.uint8)
    if weights_bytes <= _CHECKED_WEIGHTS and zlib.crc32(weights.data) != weights_sum:
        raise ProgramError(f"{name} is damaged: its weights do not match their checksum")
    program = _from_header(header, weights, name, (start, code_bytes))
    try:
        _check(program)
    except ProgramError as problem:
        raise ProgramError(f"{name} is damaged: {problem}") from None
    program.__dict__["code"] = load_code(name, program.symbols, start, code_bytes)  # now: the file may be replaced later
    return program


def _check_types(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], plan: Blueprint) -> None:
    """Raises `ProgramError` where inputs and outputs are not those of the plan."""
    for side, numbers in ((inputs, plan.inputs), (outputs, plan.outputs)):
        types = [(len(t.shape), t.dtype) for t in side.values()]
        if types != [(len(plan.values[n].shape), plan.values[n].dtype) for n in numbers]:
            raise ProgramError("its inputs and outputs have other types than its plan")
    if tuple(inputs) != tuple(plan.values[n].name for n in plan.inputs) or tuple(outputs) != plan.output_names:
        raise ProgramError("its inputs and outputs have other names than its plan")


def _check(program: Program) -> None:
    """Raises `ProgramError` where parts of the header do not fit each other."""
    parts = [(tuple(part.inputs.values()), len(part.outputs)) for part in program.parts]
    for number, plan in enumerate((program.blueprint, *(part.blueprint for part in program.parts))):
        check_blueprint(plan, len(program.kernels), len(program.layers), len(program.weights), parts, number)
    for part in program.parts:
        _check_types(part.inputs, part.outputs, part.blueprint)
    tail = program.tail
    if tail is not None and not 0 <= tail.start <= len(program.weights):
        raise ProgramError("its last part starts where no weights are")
    inputs, outputs = (tail.head_inputs, tail.head_outputs) if tail else (program.inputs, program.outputs)
    _check_types(inputs, outputs, program.blueprint)
    missing = [kernel for kernel in program.kernels if kernel not in program.symbols]
    if missing or not all(type(place) is int for place in program.symbols.values()):
        raise ProgramError(f"its code lacks {len(missing)} of its kernels")
    facts = (program.name, program.isa, program.machine, program.precision)
    if type(program.threads) is not int or program.threads < 1 or not all(isinstance(fact, str) for fact in facts):
        raise ProgramError("its threads, names or versions are none")


def check_machine(isa: str, machine: str, what: str) -> None:
    """Makes sure that code for `isa` runs on this machine.

    Raises
    ------
    ProgramError
        It does not; the sentence names what the program needs and what there is.
    """
    if machine != processor.machine():
        raise ProgramError(f"{what} is made for {machine} processors; this machine is {processor.machine()}")
    found = processor.host_isas()
    if isa not in found:
        raise ProgramError(_lack(what, isa, found))


def _lack(what: str, isa: str, found: tuple[str, ...]) -> str:
    return (
        f"{what} needs the instruction set {isa}, which this machine lacks (it has {', '.join(found)}); "
        f'compile the model again with isa="{found[-1]}"'
    )


def _read_header(name: str) -> tuple[dict[str, Any], int, int]:
    """The header, where the code starts, and the file's size."""
    try:
        with open(name, "rb") as file:
            prefix = file.read(_PREFIX.size)
            size = os.fstat(file.fileno()).st_size
            if prefix[: len(MAGIC)] != MAGIC:
                raise ProgramError(f"{name} is not a Sartor program")
            if len(prefix) < _PREFIX.size:
                raise ProgramError(f"{name} is damaged: it ends after {size} bytes")
            _, version, checksum, length, *seal = _PREFIX.unpack(prefix)
            if version != FORMAT:
                age = "a newer" if version > FORMAT else "an older"
                raise ProgramError(f"{name} has format {version}, made by {age} Sartor; this one reads format {FORMAT}")
            text = file.read(length) if length <= size else b""
    except OSError as problem:
        raise ProgramError(f"{name} cannot be opened: {problem.strerror or problem}") from None
    if len(text) < length or zlib.crc32(text) != checksum:
        raise ProgramError(f"{name} is damaged: its header is cut short or does not match its checksum")
    if _seal(text) != tuple(seal):
        raise ProgramError(f"{name} is damaged: its header is not the one it was made with")
    header: dict[str, Any] = json.loads(text)
    return header, _place(_PREFIX.size + length), size


def _seal(text: bytes) -> tuple[int, int]:
    """Two digests beside the checksum; those of `hashlib` are better but cost 8 ms to import."""
    return zlib.adler32(text), zlib.crc32(text[::-1])


def _from_header(header: Mapping[str, Any], weights: NDArray[np.uint8], path: str, code_place: tuple[int, int]) -> Program:
    plain: list[dict[str, Any]] = header["layers"]
    layers = tuple(LayerInfo(**_frozen(layer)) for layer in plain)
    return Program(
        header["name"],
        header["isa"],
        header["machine"],
        header["threads"],
        header["precision"],
        _tensors_from_data(header["inputs"]),
        _tensors_from_data(header["outputs"]),
        layers,
        header["versions"],
        Blueprint.from_data(header["blueprint"]),
        tuple(header["kernels"]),
        header["symbols"],
        weights,
        None,
        path,
        code_place,
        _tail_from_data(header.get("tail")),
        tuple(
            Part(_tensors_from_data(inputs), _tensors_from_data(outputs), Blueprint.from_data(blueprint))
            for inputs, outputs, blueprint in header.get("parts", ())
        ),
    )


def _tail_from_data(data: list[Any] | None) -> Tail | None:
    return Tail(data[0], _tensors_from_data(data[1]), _tensors_from_data(data[2])) if data else None


def _frozen(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _tensors_to_data(tensors: Mapping[str, Tensor]) -> list[Any]:
    return [[name, t.dtype, [to_data(d) for d in t.shape]] for name, t in tensors.items()]


def _tensors_from_data(data: list[Any]) -> dict[str, Tensor]:
    return {name: Tensor(dtype, tuple(from_data(d) for d in shape)) for name, dtype, shape in data}


def _read_part(path: str, start: int, length: int) -> bytes:
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), length, start)
    if len(data) < length:
        raise ProgramError(f"{path} is damaged: it ends before byte {start + length}")
    return data


def _place(position: int) -> int:
    return -(-position // _PAGE) * _PAGE


def _give_usual_mode(descriptor: int) -> None:
    """The permissions any new file would have, which a temporary file has not."""
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(descriptor, 0o666 & ~mask)
