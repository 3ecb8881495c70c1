"""The backend interface of the onnx package, which tools that try models on any engine expect:

    import sartor.compat.onnx_backend as backend

    outputs = backend.prepare(onnx.load("model.onnx"), device="CPU").run([x])

`onnx.backend.test.BackendTest(backend)` runs onnx's own cases through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from sartor.errors import FeedError, OptionError, SartorError, UnsupportedError

__all__ = ["SartorBackend", "SartorRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


class SartorRep(BackendRep):
    """A model that is ready to run.

    Attributes
    ----------
    session
        The `sartor.Session` that runs it; `session.program.fallbacks` lists what is not native.
    """

    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Computes the network.

        Parameters
        ----------
        inputs
            Arrays in the order of the model's inputs, a mapping of names to arrays, or one array for a single input.
        options
            Accepted, as the interface has them, and without effect.

        Returns
        -------
        tuple
            The outputs in the model's order, which can also be read by name: `outputs["y"]`, `outputs.y`.

        Raises
        ------
        FeedError
            Number, types or sizes of the inputs are wrong.
        """
        outputs = self.session.run(self._feeds(inputs))
        made: tuple[Any, ...] = namedtupledict("Outputs", list(outputs))(*outputs.values())
        return made

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        names = list(self.session.program.inputs)
        if isinstance(inputs, Mapping):
            return dict(inputs)
        if isinstance(inputs, np.ndarray | np.generic):
            inputs = [inputs]
        if not isinstance(inputs, Sequence):
            raise FeedError(f"inputs must come as a list of arrays or a mapping of names to arrays, not as {type(inputs).__name__}")
        if len(inputs) != len(names):
            raise FeedError(f"{len(inputs)} inputs came; the model has {len(names)}: {', '.join(names)}")
        return {name: _array(value) for name, value in zip(names, inputs, strict=True)}


class SartorBackend(Backend):
    """Compiles models for this machine's processor and runs them."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> bool:
        """Whether the model can be compiled; steps without native code count as able."""
        from sartor import compiler

        try:
            compiler.prepare(model)
        except SartorError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> SartorRep:
        """Compiles a model.

        Parameters
        ----------
        model
            What `onnx.load` gives, or a file's path or bytes.
        device
            "CPU".
        options
            `threads` is followed; others are accepted, as the interface has them, and without effect.

        Raises
        ------
        ModelError, UnsupportedError, OptionError
            The model is broken, needs what is not supported, or the device is not the processor.
        """
        import sartor

        if not cls.supports_device(device):
            raise OptionError(f"device {device} is not possible; possible is CPU")
        return SartorRep(sartor.Session(sartor.compile(model, threads=options.get("threads"))))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """Compiles a model and runs it once; see `prepare` and `SartorRep.run`."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Runs one node.

        Parameters
        ----------
        node
            The node.
        inputs
            Arrays in the order of the node's inputs that are not absent, or a mapping of names to arrays.
        device
            "CPU".
        outputs_info
            Types and shapes of the outputs; not needed.
        options
            `opset_version`, by default the newest that onnx knows; others as for `prepare`.

        Raises
        ------
        ModelError, UnsupportedError, OptionError, FeedError
            As for `prepare` and `SartorRep.run`.
        """
        names = list(dict.fromkeys(filter(None, node.input)))
        if isinstance(inputs, Mapping):
            arrays = [inputs[name] for name in names if name in inputs]
        else:
            arrays = [inputs] if isinstance(inputs, np.ndarray | np.generic) else list(inputs)
        if len(arrays) != len(names):
            raise FeedError(f"{len(arrays)} inputs came; the node {node.op_type} has {len(names)}: {', '.join(names)}")
        arrays = [np.asarray(_array(a)) for a in arrays]
        given = [_value_info(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)]
        made = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        version = options.pop("opset_version", None) or onnx.defs.onnx_opset_version()
        imports = _imports(node.domain, version)
        model = onnx.helper.make_model(onnx.helper.make_graph([node], node.op_type, given, made), opset_imports=imports)
        return cls.run_model(model, arrays, device, **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is the processor: "CPU", or "CPU:0"."""
        kind, _, number = device.partition(":")
        return kind == "CPU" and number in ("", "0")


def _imports(domain: str, version: int) -> list[onnx.OperatorSetIdProto]:
    """The default domain in `version` and, for a node of another, the newest of its own."""
    if domain in ("", "ai.onnx"):
        return [onnx.helper.make_opsetid("", version)]
    known = [schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain]
    if not known:
        raise UnsupportedError(f"the domain {domain!r} has no operators that are known here")
    return [onnx.helper.make_opsetid("", version), onnx.helper.make_opsetid(domain, max(known))]


def _value_info(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if dtype.kind in "OUS" else onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def _array(value: Any) -> Any:
    """Plain numbers as arrays; arrays, and values that are no tensors, as they are."""
    return np.asarray(value) if isinstance(value, bool | int | float | np.generic) else value


is_compatible = SartorBackend.is_compatible
prepare = SartorBackend.prepare
run_model = SartorBackend.run_model
run_node = SartorBackend.run_node
supports_device = SartorBackend.supports_device
