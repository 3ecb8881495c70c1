"""The child process of `running.check_seeds`: reads tasks as JSON lines, writes verdicts as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if "tests" not in sys.modules:  # by hand, since some installed package has a `tests` of its own
    tests = types.ModuleType("tests")
    tests.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = tests
    sys.path.insert(0, str(ROOT / "src"))


def main() -> None:
    from tests.cpu.random_models.running import Verdict, check_seed

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else may print goes to the errors
    for line in sys.stdin:
        seed, only = json.loads(line)
        try:
            verdict = check_seed(seed, tuple(only))
        except BaseException as error:
            verdict = Verdict(seed, "generator", (), f"{type(error).__name__}: {error} {traceback.format_exc()[-300:]}")
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
