"""All of onnx's own backend test, but for the failures that `onnx_known_failures.json` lists with their reasons.

`SARTOR_UPDATE_KNOWN=1 make test-slow` writes the list anew, to be looked at and committed.
"""

import json
import os
from pathlib import Path

import pytest
from tests.cpu import onnx_cases

pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
KNOWN = Path(__file__).with_name("onnx_known_failures.json")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What is wrong with each case by its name, "" where it passes."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
    found = {}
    for case in onnx_cases.cases(__name__).values():
        names = [name for name in dir(case) if name.startswith("test_") and name.endswith("_cpu")]
        found |= {name: outcome for name in sorted(names) if (outcome := onnx_cases.outcome(case, name)) is not None}
    patch.undo()
    if os.environ.get("SARTOR_UPDATE_KNOWN"):
        known = json.loads(KNOWN.read_text())
        failures = {name: known.get(name, reason) for name, reason in sorted(found.items()) if reason}
        KNOWN.write_text(json.dumps(failures, indent=1) + "\n")
    return found


def test_cases_fail_only_where_it_is_known(outcomes):
    known = json.loads(KNOWN.read_text())
    assert len(outcomes) > 1500
    assert not {name: reason for name, reason in outcomes.items() if reason and name not in known}


def test_known_failures_are_failures_still(outcomes):
    known = json.loads(KNOWN.read_text())
    known = [name for name in known if "image_decoder" not in name]  # what those need, a machine may have
    assert not [name for name in known if not outcomes.get(name)], "these pass by now, or are gone: take them off the list"


def test_every_known_failure_has_a_reason():
    assert all(json.loads(KNOWN.read_text()).values())
