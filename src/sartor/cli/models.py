"""What the verbs ask of model files and programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sartor.errors import ModelError, OptionError

Shapes = Mapping[str, tuple[int | str, ...]]


def read_model(path: Path) -> Any:
    """The `onnx.ModelProto` in `path`, without external data.

    Raises
    ------
    ModelError
        When it is not an ONNX file.
    """
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except OSError as problem:
        raise ModelError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except Exception as problem:  # noqa: BLE001  protobuf's errors have no common base
        raise ModelError(f"{path} is not an ONNX model ({problem})") from None


def _inputs(model: Any) -> dict[str, list[int | str] | None]:
    """The dimensions of each true input, None where the model does not say how many; those without a name as programs have it, `x.0`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, list[int | str] | None] = {}
    for info in model.graph.input:
        if info.name not in constants:
            kind = info.type.tensor_type
            dims = [_dimension(dim, f"{info.name}.{axis}") for axis, dim in enumerate(kind.shape.dim)]
            found[info.name] = dims if kind.HasField("shape") else None
    return found


def _dimension(dim: Any, unnamed: str) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.dim_param not in ("", "?", "-1", "None") else unnamed


def settle_shapes(path: Path, shapes: Shapes, dims: Mapping[str, int]) -> dict[str, list[int | str]]:
    """The dimensions of every input, with the sizes that the options give.

    Raises
    ------
    OptionError
        When the options name something the model does not have, or contradict it.
    """
    inputs = _inputs(read_model(path))
    for name, shape in shapes.items():
        if name not in inputs:
            raise OptionError(f"{path.name} has no input {name}; it has {', '.join(inputs)}")
        if (own := inputs[name]) is None:
            continue
        if len(shape) != len(own):
            raise OptionError(f"input {name} has {len(own)} dimensions, but the shape given has {len(shape)}")
        for axis, (old, new) in enumerate(zip(own, shape, strict=True)):
            if isinstance(old, int) and old != new:
                raise OptionError(f"dimension {axis} of input {name} is {old}, not {new}")
    wanted = {name: list(shapes[name]) if name in shapes else all_dims for name, all_dims in inputs.items()}
    names = {dim for side in (inputs, wanted) for all_dims in side.values() for dim in all_dims or () if isinstance(dim, str)}
    for name in dims:
        if name not in names:
            raise OptionError(f"{path.name} has no symbolic dimension {name}; it has {', '.join(sorted(names)) or 'none'}")
    return {
        name: [dims.get(d, d) if isinstance(d, str) else d for d in all_dims]
        for name, all_dims in wanted.items()
        if all_dims is not None
    }


def unknown_ranks(path: Path, shapes: Shapes) -> dict[str, tuple[int | str, ...]]:
    """Of `shapes` those of inputs of which the model does not say how many dimensions they have."""
    inputs = _inputs(read_model(path))
    return {name: shape for name, shape in shapes.items() if name in inputs and inputs[name] is None}


def concrete_shapes(path: Path, shapes: Shapes, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input, as the options settle it, with 1 for what they do not."""
    settled = settle_shapes(path, shapes, dims)
    return {name: tuple(1 if isinstance(d, str) else d for d in all_dims) for name, all_dims in settled.items()}


def facts(program: Any) -> dict[str, Any]:
    """What there is to say of a program in a few numbers."""
    layers = [layer for layer in program.layers if not layer.operator]
    return {
        "name": program.name,
        "isa": program.isa,
        "precision": program.precision,
        "threads": program.threads,
        "inputs": {name: str(tensor) for name, tensor in program.inputs.items()},
        "outputs": {name: str(tensor) for name, tensor in program.outputs.items()},
        "layers": len(program.layers),
        "kernels": len(program.kernels),
        "tuned_layers": sum(layer.tuned for layer in layers),
        "code_bytes": program.code_bytes,
        "weight_bytes": int(program.weights.nbytes),
        "fallbacks": list(program.fallbacks),
    }
