"""One engine in a process of its own, and the side that talks to it.

    python -m sartor.cli.engines ENGINE MODEL THREADS PRECISION FEEDS

ENGINE is sartor, onnxruntime or openvino; FEEDS an `.npz` file with the inputs.  The child's first line is JSON with how long it
took to be ready and where its outputs are; then each line read is a number of runs and answered with a JSON list of seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sartor.errors import SartorError

Run = Callable[[], list[Any]]


class Engine:
    """An engine's process, ready to run bursts.

    Raises
    ------
    SartorError
        When the engine is not installed or fails to load the model; its own words are in the message.
    """

    def __init__(self, name: str, model: Path, threads: int, precision: str, feeds: Path) -> None:
        self.name = name
        self.seconds: list[float] = []
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115  a pipe nobody reads could stop the engine
        command = [sys.executable, "-m", "sartor.cli.engines", name, str(model), str(threads), precision, str(feeds)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True, env=environment
        )
        self.ready: dict[str, Any] = self._answer(None)

    def burst(self, runs: int) -> list[float]:
        """Seconds of each of `runs` runs, one right after another."""
        return [float(s) for s in self._answer(f"{runs}\n")]

    def outputs(self) -> list[Any]:
        """The arrays in the outputs of the first run, in the model's order."""
        from sartor.cli.arrays import load_arrays

        return list(load_arrays(Path(self.ready["outputs"])).values())

    def values(self) -> list[Any]:
        """The outputs of the first run, in the model's order; of a sequence or map the list of its arrays."""
        from sartor.cli.arrays import load_arrays

        arrays = load_arrays(Path(self.ready["outputs"]))
        found: list[Any] = []
        for number in range(self.ready["count"]):
            inner = [array for name, array in arrays.items() if name.startswith(f"{number}/")]
            found.append(arrays.get(str(number), inner))
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        with self._process, self._words:
            pass  # closes the pipes and waits

    def _answer(self, line: str | None) -> Any:
        assert self._process.stdin and self._process.stdout
        try:
            if line:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._words.seek(0)
            words = self._words.read().strip().splitlines()
            self.close()
            reason = f"signal {-code} ended it" if code < 0 else words[-1] if words else f"exit status {code}"
            raise SartorError(f"{self.name} failed: {reason}")
        return json.loads(answer)


def _sartor(model: str, threads: int, precision: str, feeds: Mapping[str, Any]) -> Run:
    import sartor
    from sartor.cli.common import is_program

    if is_program(Path(model)):
        session = sartor.load(model, threads=threads)
    else:
        session = sartor.Session(sartor.compile(model, threads=threads, precision=precision))
    return lambda: list(session.run(feeds).values())


def _onnxruntime(model: str, threads: int, precision: str, feeds: Mapping[str, Any]) -> Run:
    import onnxruntime

    del precision  # it computes what the model says
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(None, feeds))


def _openvino(model: str, threads: int, precision: str, feeds: Mapping[str, Any]) -> Run:
    import openvino

    options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision == "fp32":
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = openvino.Core().compile_model(model, "CPU", options)
    request = compiled.create_infer_request()
    count = len(compiled.outputs)

    def run() -> list[Any]:
        result = request.infer(feeds)
        return [result[i] for i in range(count)]

    return run


ENGINES = {"sartor": _sartor, "onnxruntime": _onnxruntime, "openvino": _openvino}


def serve(name: str, model: str, threads: int, precision: str, feeds_path: str) -> None:
    """What the child does."""
    from sartor.cli.arrays import load_arrays, save_arrays

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engines print must not mix with the answers
    feeds = load_arrays(Path(feeds_path))
    start = time.perf_counter()
    try:
        run = ENGINES[name](model, threads, precision, feeds)
        outputs = run()
    except ImportError as problem:
        sys.exit(f"{name} is not installed ({problem}); pip install 'sartor[bench]'")
    except SartorError as problem:
        sys.exit(str(problem))
    ready = time.perf_counter() - start
    path = f"{feeds_path}.{name}.npz"
    save_arrays(Path(path), {str(number): output for number, output in enumerate(outputs)})
    print(json.dumps({"ready_seconds": ready, "outputs": path, "count": len(outputs)}), file=answers, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
