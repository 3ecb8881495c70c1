"""The operation template library: one file an algorithm, listed in one tuple."""

from __future__ import annotations

from typing import Any

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.templates.attention import Attention
from sartor.templates.base import Template
from sartor.templates.convolution import CONVOLUTION
from sartor.templates.cumulative import Cumulative
from sartor.templates.deconvolution import DECONVOLUTION
from sartor.templates.depthwise import DEPTHWISE, GROUPED
from sartor.templates.determinant import Determinant
from sartor.templates.elementwise import Elementwise
from sartor.templates.fourier import Fourier
from sartor.templates.gather import Gather
from sartor.templates.gemm import GEMM
from sartor.templates.linear_attention import LinearAttention
from sartor.templates.matmul import MATMUL
from sartor.templates.matvec import MATVEC
from sartor.templates.movement import Concat, Pad, Slice
from sartor.templates.normalize import Normalize
from sartor.templates.places import Nonzero, Order, Suppress
from sartor.templates.pool import Pool
from sartor.templates.recurrent import Recurrent
from sartor.templates.reduce import Reduce
from sartor.templates.reduce_index import ReduceIndex
from sartor.templates.regions import Regions
from sartor.templates.resize import Resize
from sartor.templates.scatter import Scatter
from sartor.templates.sizes import Iota, Sizes
from sartor.templates.softmax import Softmax
from sartor.templates.topk import TopK
from sartor.templates.transpose import Transpose
from sartor.templates.trees import Trees
from sartor.templates.winograd import WINOGRAD

TEMPLATES: tuple[Template, ...] = (
    Elementwise(),
    MATVEC,
    GEMM,
    MATMUL,
    DEPTHWISE,
    GROUPED,
    WINOGRAD,
    CONVOLUTION,
    DECONVOLUTION,
    Pool(),
    Reduce(),
    ReduceIndex(),
    Softmax(),
    Normalize(),
    Attention(),
    LinearAttention(),
    Recurrent(),
    Transpose(),
    Concat(),
    Slice(),
    Pad(),
    Gather(),
    Resize(),
    Sizes(),
    Iota(),
    Scatter(),
    Cumulative(),
    TopK(),
    Fourier(),
    Determinant(),
    Regions(),
    Trees(),
    Nonzero(),
    Order(),
    Suppress(),
)
"""All templates.  Where nothing was measured, the first one that applies and has a default is taken."""


def candidates(problem: Problem, device: Device) -> list[Template]:
    """The templates that can compute the layer on `device`, in order of preference."""
    return [template for template in TEMPLATES if template.applies(problem, device)]


def choose(problem: Problem, device: Device) -> tuple[Template, dict[str, Any]] | None:
    """The template and configuration taken where nothing was measured; None where no template applies."""
    for template in candidates(problem, device):
        if (config := template.default(problem, device)) is not None:
            return template, config
    return None
