"""What each ONNX operator means: one file a family, each with a table from (domain, operator) to the function that lowers it."""

from __future__ import annotations

from sartor.ops import (
    attention,
    contrib,
    contrib_attention,
    contrib_quantized,
    convolution,
    einsum,
    elementwise,
    indexing,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    scatter,
    signal,
    training,
)
from sartor.ops.elementwise import Operator

OPERATORS: dict[tuple[str, str], Operator] = {
    **attention.OPERATORS,
    **contrib.OPERATORS,
    **contrib_attention.OPERATORS,
    **contrib_quantized.OPERATORS,
    **convolution.OPERATORS,
    **einsum.OPERATORS,
    **elementwise.OPERATORS,
    **indexing.OPERATORS,
    **matmul.OPERATORS,
    **movement.OPERATORS,
    **normalization.OPERATORS,
    **pooling.OPERATORS,
    **quantization.OPERATORS,
    **recurrent.OPERATORS,
    **reduction.OPERATORS,
    **regions.OPERATORS,
    **resize.OPERATORS,
    **sampling.OPERATORS,
    **scatter.OPERATORS,
    **signal.OPERATORS,
    **training.OPERATORS,
}
