"""The importer under libFuzzer, which follows what the bytes reach: nothing but our own errors comes out.  Needs atheris (extra `fuzz`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SECONDS = int(os.environ.get("SARTOR_FUZZ_SECONDS", "60"))

FUZZER = """
import sys
import atheris
with atheris.instrument_imports(include=["sartor"]):
    from sartor.compiler import prepare
    from sartor.errors import SartorError
import logging, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

def one(data):
    try:
        prepare(data)
    except SartorError:
        pass

atheris.Setup(sys.argv, one)
atheris.Fuzz()
"""


def test_the_importer_under_a_guided_fuzzer(tmp_path):
    pytest.importorskip("atheris", reason="atheris has no wheel for every platform; the extra `fuzz` asks for it")
    from tests.unit.test_damaged_models import one_node, small_model

    corpus = tmp_path / "corpus"
    corpus.mkdir()
    models = [small_model(), one_node("Conv", {"x": [[1, 1, 4, 4]], "w": [[1, 1, 3, 3]]}, {}), one_node("Tile", {"x": [[2]]}, {"r": [3]})]
    for number, model in enumerate(models):
        (corpus / str(number)).write_bytes(model.SerializeToString())
    script = tmp_path / "fuzz.py"
    script.write_text(FUZZER)
    limits = [f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=1500", f"-artifact_prefix={tmp_path}/"]
    source = str(Path(__file__).parents[2] / "src")
    paths = os.pathsep.join([source, *filter(None, sys.path)])
    done = subprocess.run([sys.executable, str(script), *limits, str(corpus)], capture_output=True, text=True, check=False,
                          timeout=SECONDS + 120, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr[-3000:]
