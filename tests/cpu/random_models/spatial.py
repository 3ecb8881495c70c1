"""Random nodes of operators on images: convolutions, pools, resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tests.cpu.random_models.fills import between, distinct, normal, small, uniform
from tests.cpu.random_models.maker import Entry, Maker, SkipError

Window = dict[str, Any]


def window(m: Maker, spatial: tuple[int, ...], kernel: tuple[int, ...], *, ceil: bool = False, dilate: bool = True) -> Window:
    """Strides, dilations and padding in any of the ways to give them; at least one window fits."""
    rank = len(spatial)
    out: Window = {}
    dilations = [1] * rank
    if dilate and m.chance(0.4):
        dilations = [m.number(1, 2) for _ in range(rank)]
        out["dilations"] = dilations
    if m.chance(0.6):
        out["strides"] = [m.number(1, 3) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    manner = m.one(("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
    pads = [0] * (2 * rank)
    if manner == "pads":
        pads = [m.number(0, k - 1) for k in (*kernel, *kernel)]
        out["pads"] = pads
    elif manner != "none":
        out["auto_pad"] = manner
    if not manner.startswith("SAME") and any(r > s + a + b for r, s, a, b in zip(reach, spatial, pads, pads[rank:], strict=False)):
        raise SkipError("no window fits")
    if ceil and m.chance(0.4):
        out["ceil_mode"] = m.number(0, 1)
    return out


def image(m: Maker, op: str, place: int = 0, *, channels: int | None = None, low: int = 1, high: int = 3, fill: Any = normal,
          types: list[str] | None = None) -> tuple[str, tuple[int, ...]]:
    """An operand [N, C, *spatial] with at least one element in each image."""
    x = m.any(types or m.types(op, place), low=low + 2, high=high + 2, fill=fill, limit=2000)
    shape = m.shape_of(x)
    if 0 in shape[1:] or (channels is not None and shape[1] % channels):
        shape = (shape[0], channels or m.number(1, 6), *(m.number(1, 9) for _ in shape[2:]))
        x = m.new(m.dtype_of(x), shape, fill)
    return x, shape


def kernel_for(m: Maker, spatial: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(m.number(1, min(4, s + 1)) for s in spatial)


def convolution(m: Maker, op: str) -> None:
    group = m.one((1, 1, 1, 2, 3))
    x, shape = image(m, op, channels=group)
    if m.chance(0.2):
        group = shape[1]
    kernel = kernel_for(m, shape[2:])
    options = window(m, shape[2:], kernel)
    outputs = group * m.number(1, 4)
    dtype = m.dtype_of(x)
    inputs = [x, m.tensor(dtype, (outputs, shape[1] // group, *kernel), normal, constant=0.8)]
    if m.chance(0.5):
        inputs.append(m.tensor(dtype, (outputs,), normal, constant=0.8))
    m.node(op, inputs, group=group if group > 1 or m.chance(0.3) else None,
           kernel_shape=kernel if m.chance(0.7) else None, **options)


def conv_integer(m: Maker, op: str) -> None:
    x, shape = image(m, op, high=2)
    kernel = kernel_for(m, shape[2:])
    options = window(m, shape[2:], kernel)
    outputs, other = m.number(1, 4), m.one(m.types(op, 1))
    inputs = [x, m.new(other, (outputs, shape[1], *kernel), normal, constant=0.8)]
    if m.chance(0.7):
        inputs.append(m.given(m.number(0, 9), m.dtype_of(x)))
        if m.chance(0.5):
            inputs.append(m.given(m.number(0, 9), other) if m.chance(0.6) else m.new(other, (outputs,), between(0, 5), constant=0.8))
    m.node(op, inputs, kernel_shape=kernel if m.chance(0.7) else None, **options)


def deconvolution(m: Maker, op: str) -> None:
    group = m.one((1, 1, 1, 2, 3))
    x, shape = image(m, op, channels=group)
    kernel = kernel_for(m, shape[2:])
    rank = len(kernel)
    strides = [m.number(1, 3) for _ in kernel]
    dilations = [m.number(1, 2) if m.chance(0.3) else 1 for _ in kernel]
    options: Window = {"strides": strides, "dilations": dilations}
    full = [(s - 1) * t + (k - 1) * d + 1 for s, t, k, d in zip(shape[2:], strides, kernel, dilations, strict=True)]
    manner = m.one(("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "output_shape"))
    if manner == "pads":
        options["pads"] = [m.number(0, min((f - 1) // 2, 2)) for f in (*full, *full)]
    elif manner == "output_shape":
        options["output_shape"] = [m.number(max(1, f - 2), f) for f in full]
    elif manner != "none":
        if any(f < s * t for f, s, t in zip(full, shape[2:], strides, strict=True)):
            raise SkipError("more than the windows cover")
        options["auto_pad"] = manner
    if manner in ("pads", "none") and m.chance(0.4):
        options["output_padding"] = [m.number(0, max(strides[i], dilations[i]) - 1) for i in range(rank)]
    outputs = m.number(1, 4)
    dtype = m.dtype_of(x)
    inputs = [x, m.tensor(dtype, (shape[1], outputs, *kernel), normal, constant=0.8)]
    if m.chance(0.5):
        inputs.append(m.tensor(dtype, (outputs * group,), normal, constant=0.8))
    m.node(op, inputs, group=group if group > 1 else None, kernel_shape=kernel if m.chance(0.7) else None, **options)


def pool(m: Maker, op: str) -> None:
    x, shape = image(m, op, fill=distinct if m.chance(0.2) and op == "MaxPool" else normal)
    kernel = kernel_for(m, shape[2:])
    dilate = m.has(op, "dilations")
    options = window(m, shape[2:], kernel, ceil=m.has(op, "ceil_mode"), dilate=dilate)
    if op == "MaxPool":
        two = m.opset >= 8 and m.chance(0.4)
        order = m.number(0, 1) if m.chance(0.3) else None
        m.node(op, [x], 2 if two else 1, kernel_shape=kernel, storage_order=order, **options)
    elif op == "AveragePool":
        m.node(op, [x], kernel_shape=kernel, count_include_pad=m.number(0, 1) if m.chance(0.6) else None, **options)
    else:
        m.node(op, [x], kernel_shape=kernel, p=m.number(1, 3) if m.chance(0.7) else None, **options)


def global_pool(m: Maker, op: str) -> None:
    x, _ = image(m, op, types=["float32"] if op == "GlobalLpPool" else None)  # ONNX Runtime's
    m.node(op, [x], p=m.number(1, 3) if m.chance(0.7) else None)


def unpool(m: Maker, op: str) -> None:
    """What a max pool took apart: places without overlap."""
    rank = m.number(1, 3)
    kernel = tuple(m.number(1, 3) for _ in range(rank))
    small_shape = tuple(m.number(1, 3) for _ in range(rank))
    lead = (m.number(1, 2), m.number(1, 3))
    spatial = tuple(s * k for s, k in zip(small_shape, kernel, strict=True))

    def places(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(lead))
        size, own = int(np.prod(spatial)), int(np.prod(small_shape))
        return np.stack([rng.permutation(size)[:own] + size * i for i in range(count)]).reshape(shape).astype(np.int64)

    inputs = [m.new(m.type(op), (*lead, *small_shape), normal), m.new("int64", (*lead, *small_shape), places, hidden=True)]
    if m.chance(0.3):
        inputs.append(m.given([*lead, *spatial]))
    m.node(op, inputs, kernel_shape=kernel, strides=kernel)


SCALES = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)  # exact, since the reference and others round a size times another scale differently
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def resize(m: Maker, op: str) -> None:
    if op == "Upsample":
        upsample(m, op)
        return
    mode = m.one(("nearest", "nearest", "linear", "cubic"))
    coordinate = m.one((*COORDINATES, *(("tf_half_pixel_for_nn",) if m.opset in (11, 12) else ()),
                        *(("tf_crop_and_resize",) if m.opset >= 11 else ()), *(("half_pixel_symmetric",) if m.opset >= 19 else ())))
    x = m.any(m.types(op, 0), low=1, high=5, limit=600)
    shape = m.shape_of(x)
    if 0 in shape:
        raise SkipError("nothing to resize")
    rank = len(shape)
    axes = sorted(int(a) for a in m.rng.permutation(rank)[: m.number(1, rank)])
    if mode == "cubic" and m.dtype_of(x) in ("uint8", "bool"):
        raise SkipError("cubic sums that leave the type's range")
    listed = m.opset >= 18 and m.chance(0.4)
    targets = [m.one(SCALES) if a in axes and shape[a] > 1 else m.one((1.0, 2.0)) if a in axes else 1.0
               for a in range(rank)]
    shown = [m.axis_sign(a, rank) for a in axes] if listed else None
    scales = [targets[a] for a in axes] if listed else targets
    if m.opset == 10:
        m.node(op, [x, m.given(scales, "float32")], mode=m.one(("nearest", "linear")))
        return
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinate, "axes": shown}
    if mode == "nearest" and m.chance(0.7):
        attributes["nearest_mode"] = m.one(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = m.one((None, -0.5, -0.75))
    if mode in ("linear", "cubic"):
        attributes["exclude_outside"] = m.one((None, 0, 1)) if mode == "cubic" else None
        attributes["antialias"] = m.number(0, 1) if m.opset >= 18 and m.chance(0.4) else None
    roi = ""
    if coordinate == "tf_crop_and_resize":
        starts, ends = [m.real(-0.2, 0.4) for _ in scales], [m.real(0.6, 1.2) for _ in scales]
        roi = m.given([*starts, *ends], "float32")
        attributes["extrapolation_value"] = m.one((None, 2.5))
        attributes["antialias"] = None
    if m.chance(0.5):
        m.node(op, [x, roi, m.given(scales, "float32")], **attributes)
        return
    base = axes if listed else range(rank)
    sizes = [max(1, int(shape[a] * t)) for a, t in zip(base, scales, strict=True)]
    if m.opset >= 18 and m.chance(0.3) and coordinate != "tf_crop_and_resize":
        attributes["keep_aspect_ratio_policy"] = m.one(("stretch", "not_larger", "not_smaller"))
    empty = "" if m.opset >= 13 else m.given([], "float32", constant=1.0)
    roi = roi or ("" if m.opset >= 13 else m.given([], "float32", constant=1.0))
    m.node(op, [x, roi, empty, m.given(sizes)], **attributes)


def unspecified_resize(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """What is not finite, since the reference multiplies what it does not take by 0; sums that are cut to integers, where a rounding decides."""
    x = operands[0]
    nearest = next((a.s for a in node.attribute if a.name == "mode"), b"nearest") == b"nearest"
    return np.array(not np.isfinite(x.astype(np.float64)).all() or (x.dtype.kind in "iu" and not nearest))


def upsample(m: Maker, op: str) -> None:
    x = m.any(m.types(op, 0), low=2, high=4, limit=500)
    if 0 in m.shape_of(x):
        raise SkipError("nothing to resize")
    scales = [1.0, 1.0, *(m.one((1.0, 2.0, 3.0)) for _ in m.shape_of(x)[2:])]
    mode = m.one(("nearest", "linear"))
    if m.opset < 9:
        m.node(op, [x], mode=mode, scales=scales)
    else:
        m.node(op, [x, m.given(scales, "float32")], mode=mode)


def grid_sample(m: Maker, op: str) -> None:
    rank = 2 if m.opset < 20 else m.number(2, 3)
    x, shape = image(m, op, low=rank, high=rank, types=m.types(op, 0, ("float32", "float64", "float16")))
    mode = m.one(("bilinear", "nearest", "bicubic") if m.opset < 20 else ("linear", "nearest", *(("cubic",) if rank == 2 else ())))
    grid = m.new(m.dtype_of(x) if m.opset < 22 or m.chance(0.7) else m.one(m.types(op, 1, ("float32", "float64"))),
                 (shape[0], *(m.number(1, 4) for _ in range(rank)), rank), uniform(-1.3, 1.3), hidden=True)
    m.node(op, [x, grid], mode=mode if m.chance(0.8) else None, padding_mode=m.one((None, "zeros", "border", "reflection")),
           align_corners=m.one((None, 0, 1)))


def affine_grid(m: Maker, op: str) -> None:
    rank = m.number(2, 3)
    batch = m.number(1, 2)
    theta = m.new(m.one(m.types(op, 0, ("float32", "float64"))), (batch, rank, rank + 1), small)
    m.node(op, [theta, m.given([batch, 2, *(m.number(1, 4) for _ in range(rank))])], align_corners=m.one((None, 0, 1)))


def boxes(m: Maker, dtype: str, count: int, *, batched: int = 0) -> str:
    def fill(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        low, extent = rng.uniform(0, 4, (shape[0], 2)), rng.uniform(0.5, 6, (shape[0], 2))
        parts = [low, low + extent]
        if batched:
            parts = [rng.integers(0, batched, (shape[0], 1)), *(np.round(p) for p in parts)]
        return np.concatenate(parts, axis=1).astype(kind)

    return m.new(dtype, (count, 5 if batched else 4), fill, hidden=True)


def roi_align(m: Maker, op: str) -> None:
    dtype = m.one(m.types(op, 0, ("float32", "float64"))) if m.opset >= 16 else "float32"
    x, shape = image(m, op, low=2, high=2, types=[dtype])
    if shape[0] == 0:
        raise SkipError("no image")
    count = m.number(1, 3)
    ids = m.new("int64", (count,), between(0, shape[0] - 1), hidden=True)
    m.node(op, [x, boxes(m, dtype, count), ids], mode=m.one((None, "avg", "max")), output_height=m.number(1, 3), output_width=m.number(1, 3),
           sampling_ratio=m.number(0, 3), spatial_scale=m.one((None, 0.5, 1.0)),
           coordinate_transformation_mode=m.one((None, "half_pixel", "output_half_pixel")))


def max_roi_pool(m: Maker, op: str) -> None:
    x, shape = image(m, op, low=2, high=2, types=["float32"])
    if shape[0] == 0:
        raise SkipError("no image")
    m.node(op, [x, boxes(m, "float32", m.number(1, 3), batched=shape[0])], pooled_shape=[m.number(1, 3), m.number(1, 3)])


def deform_conv(m: Maker, op: str) -> None:
    offset_groups = m.number(1, 2)
    dtype = m.one(m.types(op, 0, ("float32", "float64")))
    shape = (m.number(1, 2), offset_groups * m.number(1, 2), m.number(1, 4), m.number(1, 4))  # the reference is slow
    x = m.tensor(dtype, shape)
    kernel = tuple(m.number(1, min(2, s)) for s in shape[2:])
    outputs = m.number(1, 3)
    pads = [m.number(0, 1)] * 4
    out = [s + 2 * pads[0] - k + 1 for s, k in zip(shape[2:], kernel, strict=True)]
    places = offset_groups * kernel[0] * kernel[1]
    inputs = [x, m.new(dtype, (outputs, shape[1], *kernel), normal, constant=0.8),
              m.new(dtype, (shape[0], 2 * places, *out), small, hidden=True)]
    if m.chance(0.5):
        inputs.append(m.new(dtype, (outputs,), normal))
        if m.chance(0.5):
            inputs.append(m.new(dtype, (shape[0], places, *out), small))
    m.node(op, inputs, kernel_shape=kernel, pads=pads, offset_group=offset_groups)


def col2im(m: Maker, op: str) -> None:
    rank = m.number(1, 3)
    block = [m.number(1, 3) for _ in range(rank)]
    dilations = [m.number(1, 2) for _ in block]
    strides = [m.number(1, 2) for _ in block]
    pads = [m.number(0, 1) for _ in (*block, *block)]
    picture = [(k - 1) * d + 1 + m.number(0, 4) for k, d in zip(block, dilations, strict=True)]
    count = [(s + pads[i] + pads[i + rank] - (k - 1) * d - 1) // t + 1
             for i, (s, k, d, t) in enumerate(zip(picture, block, dilations, strides, strict=True))]
    x = m.tensor(m.type(op, 0, ("float32", "float64", "float16", "int32", "int64")),
                 (m.number(1, 2), m.number(1, 3) * int(np.prod(block)), int(np.prod(count))))
    m.node(op, [x, m.given(picture), m.given(block)], strides=strides, pads=pads, dilations=dilations)


def causal_convolution(m: Maker, op: str) -> None:
    batch, channels, length, width = m.number(1, 2), m.number(1, 5), m.number(1, 6), m.number(1, 4)
    dtype = m.type(op)
    inputs = [m.tensor(dtype, (batch, channels, length)), m.new(dtype, (channels, 1, width), normal, constant=0.8)]
    inputs.append(m.new(dtype, (channels,), normal, constant=0.8) if m.chance(0.5) else "")
    if m.chance(0.5):
        inputs.append(m.new(dtype, (batch, channels, width - 1), normal))
    m.node(op, inputs, 2, activation=m.one((None, "none", "silu", "swish")))


def unspecified_pool(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """Images with NaN, by which the reference marks padding."""
    return np.array(np.isnan(operands[0].astype(np.float64)).any())


def unspecified_convolution(node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
    """Images that are not finite under a dilated kernel, in whose gaps the reference multiplies by 0."""
    dilated = any(a.name == "dilations" and max(a.ints) > 1 for a in node.attribute)
    return np.array(dilated and not np.isfinite(operands[0].astype(np.float64)).all())


SUMS = {
    "Conv": convolution, "ConvTranspose": deconvolution, "DeformConv": deform_conv, "CausalConvWithState": causal_convolution,
    "AveragePool": pool, "LpPool": pool, "GlobalAveragePool": global_pool, "GlobalLpPool": global_pool, "Resize": resize,
    "Upsample": resize, "GridSample": grid_sample, "AffineGrid": affine_grid, "RoiAlign": roi_align, "Col2Im": col2im,
}  # fmt: skip
OPERATORS: dict[str, Entry] = {
    **{op: Entry(make, ulps=4, spread=8) for op, make in SUMS.items()},
    "Conv": Entry(convolution, ulps=4, spread=8, weight=3, unspecified=unspecified_convolution),
    "AveragePool": Entry(pool, ulps=4, spread=8, unspecified=unspecified_pool),
    "Resize": Entry(resize, ulps=4, spread=8, weight=3, unspecified=unspecified_resize),
    "GridSample": Entry(grid_sample, ulps=4, spread=8, precision="float32"),
    "DeformConv": Entry(deform_conv, ulps=4, spread=8, precision="float32"),  # the reference works out places in it
    "MaxPool": Entry(pool, ulps=0, unspecified=unspecified_pool),
    **{op: Entry(make, ulps=0) for op, make in {
        "GlobalMaxPool": global_pool, "MaxUnpool": unpool, "MaxRoiPool": max_roi_pool, "ConvInteger": conv_integer,
    }.items()},
}  # fmt: skip
