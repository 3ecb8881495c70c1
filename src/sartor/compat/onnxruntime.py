"""A face like ONNX Runtime's, so that a program that uses it changes one import:

    import sartor.compat.onnxruntime as onnxruntime

    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": x})

Models are compiled with symbolic sizes; the same model is compiled once in a process.  Options that steer ONNX Runtime's
own optimisers, memory arenas and logs are accepted and change nothing; the thread count is followed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from sartor.compat.signature import ModelMetadata, NodeArg, Signature, read_signature, type_string
from sartor.errors import FeedError, ModelError, OptionError, SartorError
from sartor.types import to_numpy

__version__ = "1.23.0"  # of the interface this follows

Fail = SartorError
InvalidArgument = FeedError
NoSuchFile = InvalidGraph = InvalidProtobuf = ModelError

_PROVIDER = "CPUExecutionProvider"
_programs: dict[str, tuple[Any, Signature]] = {}
_lock = threading.Lock()


class GraphOptimizationLevel(IntEnum):
    """Accepted; Sartor always optimises."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted; layers run one after another, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass
class SessionOptions:
    """The usual options; `intra_op_num_threads` is followed (0: all cores this process may use), the rest has no effect."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = ""
    optimized_model_filepath: str = ""
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict, repr=False)
    _dimensions: dict[str, int] = field(default_factory=dict, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise OptionError(f"there is no session configuration entry {key}")
        return self._entries[key]

    def has_session_config_entry(self, key: str) -> bool:
        return key in self._entries

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Remembered; programs serve all sizes, so that nothing has to be fixed."""
        self._dimensions[name] = value

    add_free_dimension_override_by_denotation = add_free_dimension_override_by_name

    def register_custom_ops_library(self, path: str) -> None:
        raise OptionError(f"libraries of operators made for ONNX Runtime cannot be used: {path}")


@dataclass
class RunOptions:
    """Accepted without effect, but for `terminate`, which makes a run fail at once."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = False
    _entries: dict[str, str] = field(default_factory=dict, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise OptionError(f"there is no run configuration entry {key}")
        return self._entries[key]


class OrtValue:
    """A tensor in memory."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        if device_type != "cpu":
            raise OptionError(f"values live on the cpu, not on {device_type}:{device_id}")
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        return OrtValue.ortvalue_from_numpy(np.empty(tuple(shape), element_type), device_type, device_id)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def update_inplace(self, array: np.ndarray[Any, Any]) -> None:
        self._array[...] = array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return type_string(self._array.dtype)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True


class IOBinding:
    """Inputs and outputs bound to arrays, for `InferenceSession.run_with_iobinding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        if device_type != "cpu":
            raise OptionError(f"outputs live on the cpu, not on {device_type}:{device_id}")
        self._outputs[name] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[name] = value

    def run(self, run_options: RunOptions | None = None) -> None:
        """Runs and keeps the outputs; those bound to a value are written into it."""
        names = list(self._outputs) or None
        targets = {name: value.numpy() for name, value in self._outputs.items() if value is not None}
        results = self._session._run(names, self._inputs, run_options, targets)
        self._outputs = {name: OrtValue(array) for name, array in zip(names or self._session.output_names, results, strict=True)}

    def get_outputs(self) -> list[OrtValue]:
        return [value for value in self._outputs.values() if value is not None]

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        return [value.numpy().copy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""


class InferenceSession:
    """A model ready to run, with the methods of ONNX Runtime's session.

    Parameters
    ----------
    path_or_bytes
        An ONNX file, its contents, or a program file of Sartor's.
    sess_options
        See `SessionOptions`.
    providers, provider_options
        Execution providers asked for; any that is not the CPU is passed over with a warning, as ONNX Runtime does.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        import sartor

        self._options = sess_options or SessionOptions()
        self.set_providers(providers, provider_options)
        program, self._signature = _program_of(path_or_bytes, self._options.intra_op_num_threads or None)
        self.program = program
        self._session = sartor.Session(program)
        self.input_names = [arg.name for arg in self._signature.inputs]
        self.output_names = [arg.name for arg in self._signature.outputs]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Computes the outputs of the given names (all for None or none), in that order.

        Raises
        ------
        FeedError
            When inputs are missing or have wrong names, types or sizes, or an output has no such name.
        """
        return self._run(output_names, input_feed, run_options, {})

    def _run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None,
        out: Mapping[str, np.ndarray[Any, Any]],
    ) -> list[np.ndarray[Any, Any]]:
        if run_options is not None and run_options.terminate:
            raise SartorError("the run was asked to terminate by its options")
        names = output_names or self.output_names
        for name in names:
            if name not in self.output_names:
                raise FeedError(f"the model has no output {name}; it has {', '.join(self.output_names)}")
        feeds = {name: self._array(name, value) for name, value in input_feed.items() if value is not None or self._optional(name)}
        results = self._session.run(feeds, out=dict(out)) if out else self._session.run(feeds)
        return [results[name] for name in names]

    def _optional(self, name: str) -> bool:
        """Whether an input takes None."""
        tensor = self.program.inputs.get(name)
        return tensor is not None and tensor.dtype.startswith("optional(")

    def _array(self, name: str, value: Any) -> Any:
        """An input as an array; lists take the type that is expected, arrays keep theirs, and so do values that are no tensors."""
        if isinstance(value, OrtValue):
            return value.numpy()
        tensor = self.program.inputs.get(name)
        if tensor is not None and tensor.opaque:
            return value
        if isinstance(value, list | tuple | int | float | bool) and tensor is not None:
            return np.array(value, to_numpy(tensor.dtype))
        return np.asarray(value)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        return [OrtValue(array) for array in self.run(output_names, input_dict_ort_values, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run(run_options)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def get_inputs(self) -> list[NodeArg]:
        return list(self._signature.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._signature.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return self._signature.metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {_PROVIDER: {}}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Warns of providers there are not."""
        del provider_options  # nothing of the CPU's is of use here
        asked = [p if isinstance(p, str) else p[0] for p in providers or ()]
        if missing := [name for name in asked if name != _PROVIDER]:
            warnings.warn(f"not available: {', '.join(missing)}; running on {_PROVIDER}", stacklevel=3)

    def disable_fallback(self) -> None:
        """Nothing to fall back from."""

    def enable_fallback(self) -> None:
        """Nothing to fall back to."""

    def end_profiling(self) -> str:
        raise OptionError("profiles are not written as files; see Session.profile")


def get_available_providers() -> list[str]:
    """The one provider there is."""
    return [_PROVIDER]


def get_all_providers() -> list[str]:
    """The one provider there is."""
    return [_PROVIDER]


def get_device() -> str:
    """Where models run."""
    return "CPU"


def get_version_string() -> str:
    """The version of the interface this follows."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Accepted without effect: Sartor logs through Python's `logging`."""
    del severity


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted without effect: Sartor logs through Python's `logging`."""
    del verbosity


def set_seed(seed: int) -> None:
    """Accepted without effect: random operators follow their own seeds."""
    del seed


def disable_telemetry_events() -> None:
    """There are none."""


def enable_telemetry_events() -> None:
    """There are none."""


def _program_of(model: str | os.PathLike[str] | bytes, threads: int | None) -> tuple[Any, Signature]:
    """The compiled model and its signature; the same contents are compiled once for a thread count."""
    import sartor
    from sartor.runtime.program import MAGIC, Program

    source: str | bytes
    if isinstance(model, bytes | bytearray | memoryview):
        source = contents = bytes(model)
        folder = ""  # external data lie beside a file
    else:
        source = os.fspath(model)
        if not os.path.isfile(source):
            raise NoSuchFile(f"there is no model file {source}")
        folder, contents = os.path.dirname(os.path.realpath(source)), Path(source).read_bytes()
    if isinstance(source, str) and contents.startswith(MAGIC):
        program = Program.load(source)
        return program, read_signature(None, program)
    key = f"{hashlib.sha256(contents).hexdigest()}/{folder}/{threads}"
    with _lock:
        if key not in _programs:
            program = sartor.compile(source, threads=threads)
            _programs[key] = (program, read_signature(contents, program))
        return _programs[key]
