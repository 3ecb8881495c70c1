"""What one call costs from Python: a network of one Add on 16 floats, on Sartor and ONNX Runtime in turns in one process.

    python benchmarks/call_overhead.py [--calls 20000] [--rounds 30]

Prints the median microseconds a call of each and their ratio.  One thread each; the sums are checked once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime

import sartor


def add_model() -> onnx.ModelProto:
    """y = x + 1, for 16 floats."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [16])
    one = onnx.numpy_helper.from_array(np.ones(16, np.float32), "one")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "one"], ["y"])], "add", [x], [y], [one])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Time of one call, the mean over many."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = add_model()
    ours = sartor.Session(sartor.compile(model, threads=1))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.arange(16, dtype=np.float32)}
    assert np.array_equal(ours.run(feeds)["y"], theirs.run(None, feeds)[0])
    times: dict[str, list[float]] = {"sartor": [], "onnxruntime": []}
    for _ in range(args.rounds):
        times["sartor"].append(microseconds(lambda: ours.run(feeds), args.calls))
        times["onnxruntime"].append(microseconds(lambda: theirs.run(None, feeds), args.calls))
    figures = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["sartor"], times["onnxruntime"], strict=True))
    if args.json:
        print(json.dumps({f"{name}_us": value for name, value in figures.items()} | {"ratio": ratio}))
    else:
        print(f"one call: Sartor {figures['sartor']:.2f} us, ONNX Runtime {figures['onnxruntime']:.2f} us, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
