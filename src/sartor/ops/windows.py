"""Sizes of sliding windows: padding and output sizes of convolutions and pools, for numbers and symbols alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sartor.errors import ModelError
from sartor.ops.context import Call
from sartor.sizes import Dim, ceildiv, floordiv, maximum, minimum


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window over the spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Dim, ...]  # begins, then ends

    @property
    def extents(self) -> tuple[int, ...]:
        """What one window spans, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def padded(self, sizes: Sequence[Dim]) -> list[Dim]:
        """Input sizes with padding."""
        rank = len(self.kernel)
        return [sizes[i] + self.pads[i] + self.pads[rank + i] for i in range(rank)]


def window(call: Call, kernel: Sequence[int], sizes: Sequence[Dim]) -> Window:
    """The window of a convolution or pool over `sizes`, with automatic padding worked out."""
    rank = len(sizes)
    strides, dilations = _ints(call, "strides", rank), _ints(call, "dilations", rank)
    if len(kernel) != rank:
        raise ModelError(f"{call} has a kernel of {len(kernel)} dimensions, its input has {rank} spatial ones")
    if any(k < 1 for k in kernel):
        raise ModelError(f"{call} has an empty kernel: {list(kernel)}")
    mode = call.get("auto_pad", "NOTSET")
    pads: list[Dim] = [0] * (2 * rank)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            extent = (kernel[i] - 1) * dilations[i] + 1
            pads[i], pads[rank + i] = split_padding(same_padding(sizes[i], strides[i], extent), mode)
    elif mode == "NOTSET":
        pads = list(_pads(call, rank))
    elif mode != "VALID":
        raise ModelError(f"{call} has the unknown auto_pad {mode!r}")
    return Window(tuple(kernel), strides, dilations, tuple(pads))


def same_padding(size: Dim, stride: int, extent: int) -> Dim:
    """Total padding that makes ceil(size / stride) outputs."""
    if stride == 1:
        return extent - 1
    return maximum((ceildiv(size, stride) - 1) * stride + extent - size, 0)


def split_padding(total: Dim, mode: str) -> tuple[Dim, Dim]:
    """Padding before and after; the odd one goes after for SAME_UPPER, before for SAME_LOWER."""
    small = floordiv(total, 2)
    return (small, total - small) if mode == "SAME_UPPER" else (total - small, small)


def output_sizes(shape: Window, sizes: Sequence[Dim], auto_pad: str, ceil: bool = False) -> list[Dim]:
    """How many windows fit."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [ceildiv(s, stride) for s, stride in zip(sizes, shape.strides, strict=True)]
    out = []
    rank = len(sizes)
    for i, (padded, extent) in enumerate(zip(shape.padded(sizes), shape.extents, strict=True)):
        stride = shape.strides[i]
        if not ceil:
            out.append(floordiv(padded - extent, stride) + 1)
            continue
        count = ceildiv(padded - extent, stride) + 1
        last = ceildiv(sizes[i] + shape.pads[i], stride)  # the last window must start inside the input or before it
        after = shape.pads[rank + i]
        out.append(count if isinstance(after, int) and after + stride <= extent else minimum(count, last))
    return out


def _ints(call: Call, name: str, rank: int) -> tuple[int, ...]:
    values = tuple(call.get(name) or [1] * rank)
    if len(values) != rank or any(v < 1 for v in values):
        raise ModelError(f"{call} has {name} {list(values)}; expected {rank} numbers of at least 1")
    return values


def _pads(call: Call, rank: int) -> tuple[int, ...]:
    values = tuple(call.get("pads") or [0] * (2 * rank))
    if len(values) != 2 * rank:
        raise ModelError(f"{call} has pads {list(values)}; expected {2 * rank} numbers")
    return values
