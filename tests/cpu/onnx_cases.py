"""onnx's own backend test, prepared to run through `sartor.compat.onnx_backend`."""

import sys
import unittest
from unittest import mock

from sartor.compat import onnx_backend


def cases(module):
    """The test classes of onnx's backend test by category."""
    from onnx.backend.test import BackendTest

    # Pictures for ImageDecoder are made with Pillow where it can be imported, and not every build of it can write them all.
    with mock.patch.dict(sys.modules, {"PIL.Image": None}):
        return BackendTest(onnx_backend.SartorBackend, module).test_cases


def outcome(case, name):
    """What is wrong with one case, as the last line of its error; "" where it passes, None where onnx skips it."""
    result = unittest.TestResult()
    case(name).run(result)
    if result.skipped or not result.testsRun:
        return None
    problems = result.failures + result.errors
    return (problems[0][1].strip().splitlines() or ["failed"])[-1] if problems else ""
