"""What the verbs ask of model files and programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sartor.errors import ModelError, OptionError

Shapes = Mapping[str, tuple[int, ...]]


def read_model(path: Path, with_data: bool = False) -> Any:
    """The `onnx.ModelProto` in `path`, external data only if `with_data`.

    Raises
    ------
    ModelError
        When it is not an ONNX file.
    """
    import onnx

    try:
        return onnx.load(str(path), load_external_data=with_data)
    except OSError as problem:
        raise ModelError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except Exception as problem:  # noqa: BLE001  protobuf's errors have no common base
        raise ModelError(f"{path} is not an ONNX model ({problem})") from None


def _inputs(model: Any) -> dict[str, Any]:
    """The dimensions of each true input, as protobuf messages."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return {info.name: info.type.tensor_type.shape.dim for info in model.graph.input if info.name not in constants}


def _settle(path: Path, inputs: Mapping[str, Any], shapes: Shapes, dims: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """For each input, the size of those symbolic dimensions that the options settle."""
    for name, shape in shapes.items():
        if name not in inputs:
            raise OptionError(f"{path.name} has no input {name}; it has {', '.join(inputs)}")
        if len(shape) != len(inputs[name]):
            raise OptionError(f"input {name} has {len(inputs[name])} dimensions, but the shape given has {len(shape)}")
    names = {dim.dim_param for all_dims in inputs.values() for dim in all_dims if dim.dim_param}
    for name in dims:
        if name not in names:
            raise OptionError(f"{path.name} has no symbolic dimension {name}; it has {', '.join(sorted(names)) or 'none'}")
    settled: dict[str, dict[int, int]] = {}
    for name, all_dims in inputs.items():
        settled[name] = {}
        for place, dim in enumerate(all_dims):
            size = shapes[name][place] if name in shapes else dims.get(dim.dim_param)
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                if name in shapes and size != dim.dim_value:
                    raise OptionError(f"dimension {place} of input {name} is {dim.dim_value}, not {size}")
            elif size is not None:
                settled[name][place] = size
    return settled


def input_shapes(path: Path, shapes: Shapes, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input, symbols settled by the options or 1."""
    inputs = _inputs(read_model(path))
    settled = _settle(path, inputs, shapes, dims)
    return {
        name: tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else settled[name].get(place, 1)
            for place, dim in enumerate(all_dims)
        )
        for name, all_dims in inputs.items()
    }


def fix_sizes(path: Path, shapes: Shapes, dims: Mapping[str, int]) -> Any:
    """The model with the symbolic dimensions that the options settle made constant."""
    model = read_model(path, with_data=True)
    inputs = _inputs(model)
    for name, places in _settle(path, inputs, shapes, dims).items():
        for place, size in places.items():
            inputs[name][place].dim_value = size
    return model


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
