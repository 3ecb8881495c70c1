"""Both of PyTorch's exporters, and the comparison of what we make of their models with PyTorch."""

import contextlib
import inspect
import io
import logging
import warnings

import numpy as np
import torch
from tests.slow.torch_networks import Case, nms_translation

import sartor


def exported(case: Case, exporter: str, dynamic: bool):
    """The module with weights that keep activations near 1, and the bytes of the model file."""
    torch.manual_seed(0)
    module = case.build().eval()
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.2)
            norm.running_var.uniform_(0.5, 1.5)
    arguments = case.arguments()[0]
    names = [f"in_{i}" for i in range(len(arguments))]
    target = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            if exporter == "torchscript":
                torch.onnx.export(module, arguments, target, dynamo=False, opset_version=case.opset or 18, input_names=names,
                                  dynamic_axes=dict(zip(names, case.dynamic, strict=True)) if dynamic else None)
                return module, target.getvalue()
            shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in case.dynamic) if dynamic else None
            if shapes and any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values()):
                shapes = (shapes,)
            table = nms_translation() if case.name.startswith("detector") else None
            program = torch.onnx.export(module, arguments, dynamo=True, opset_version=case.opset or 20, dynamic_shapes=shapes, verbose=False,
                                        input_names=names, custom_translation_table=table)
            return module, program.model_proto.SerializeToString()
        finally:
            logging.disable(logging.NOTSET)


def numpy_of(tensor):
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.array(tensor.detach().numpy(), order="C")


def flattened(out):
    return [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]


def error_of(ours, wanted):
    """The largest difference relative to the largest output; for integers and truth values, whether they differ."""
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{ours.shape} for {wanted.dtype}{wanted.shape}"
    if not wanted.size or wanted.dtype.kind in "biu":
        return float(not np.array_equal(ours, wanted))
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    return float(np.abs(a - b)[finite].max(initial=0) / max(np.abs(b[finite]).max(initial=0), 1e-30))


def measured(case: Case, exporter: str, dynamic: bool):
    """The worst error over all arguments, and the program's fallbacks."""
    module, model = exported(case, exporter, dynamic)
    program = sartor.compile(model, threads=2)
    worst = 0.0
    with sartor.Session(program) as session:
        for arguments in case.arguments()[: None if dynamic else 1]:
            with torch.no_grad():
                wanted = [numpy_of(t) for t in flattened(module(*arguments))]
            feeds = {name: numpy_of(t) for name, t in zip(program.inputs, arguments, strict=True)}
            ours = list(session.run(feeds).values())
            assert len(ours) == len(wanted)
            for a, b in zip(ours, wanted, strict=True):
                found = error_of(a, b)
                assert not isinstance(found, str), found
                worst = max(worst, found)
    return worst, program.fallbacks
