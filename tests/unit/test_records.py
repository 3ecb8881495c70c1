"""The store of measurements: nothing added is lost, whoever else writes and whatever happens to the file."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from sartor.tuning import records as module
from sartor.tuning.records import Record, Records, source_hash

RECORD = Record("s", {"n": 2}, "machine", 2, "gemm", "abc", {"tile": "6x2", "kc": 0}, "ok", "", 0.5, (0.5, 0.7), 1.0)


def run(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment)


def test_records_come_back_as_they_were(tmp_path):
    wrong = replace(RECORD, config={"kc": 1, "tile": "6x2"}, status="wrong", reason="it is", seconds=None, samples=())
    with Records(tmp_path / "new" / "r.sqlite") as records:
        records.add(RECORD)
        records.add(wrong, replace(RECORD, sizes={}), replace(RECORD, threads=1), replace(RECORD, device="other"))
    with Records(tmp_path / "new" / "r.sqlite") as records:
        assert list(records.find("s", {"n": 2}, "machine", 2)) == [RECORD, wrong]
        assert len(list(records.find("s", {}, "machine", 2))) == 1
        assert not list(records.find("t", {}, "machine", 2))
        assert len(records) == 5


def test_a_record_outlives_its_process(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from sartor.tuning.records import Record, Records
records = Records(Path(sys.argv[1]))
records.add(Record("s", {}, "d", 1, "t", "x", {}, "ok"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, tmp_path / "r").wait() == -signal.SIGKILL
    with Records(tmp_path / "r") as records:
        assert len(records) == 1


def test_several_processes_write_at_once(tmp_path):
    code = """
import sys
from pathlib import Path
from sartor.tuning.records import Record, Records
with Records(Path(sys.argv[1])) as records:
    for number in range(30):
        records.add(Record(sys.argv[2], {}, "d", 1, "t", "x", {"number": number}, "ok"))
"""
    writers = [run(code, tmp_path / "r", name) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    with Records(tmp_path / "r") as records:
        assert [len(list(records.find(name, {}, "d", 1))) for name in ("a", "b", "c")] == [30, 30, 30]


def test_a_damaged_file_is_put_aside(tmp_path, caplog):
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"this was never a database" * 100)
    with Records(path) as records:
        records.add(RECORD)
        assert len(records) == 1
    assert "put aside as r.sqlite.damaged-" in caplog.text
    assert any(p.read_bytes().startswith(b"this was") for p in tmp_path.glob("r.sqlite.damaged-*"))


def test_without_a_place_to_write_measuring_goes_on(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with Records(tmp_path / "file" / "r.sqlite") as records:
        records.add(RECORD)
        assert len(records) == 1
    assert "cannot be kept" in caplog.text


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A module that imports one of the product's templates; writing it anew forgets its hash."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(more=""):
        source_hash.cache_clear()
        (tmp_path / "made_up_template.py").write_text(f"from sartor.templates.pool import Pool\n{more}")
        return source_hash("made_up_template")

    yield write
    source_hash.cache_clear()


def test_the_hash_of_a_template_follows_its_sources(template, monkeypatch):
    first = template()
    assert template("# something else\n") != first
    assert template() == first
    read, seen = module._source, []

    def changed(name):
        seen.append(name)
        source = read(name)
        return source + b"\n# changed" if source and name == edited else source

    monkeypatch.setattr(module, "_source", changed)
    for edited in ("sartor.templates.base", "sartor.loops.language", "sartor.loops.llvm"):  # noqa: B007
        assert template() != first
    assert not any(name.startswith(("sartor.runtime", "sartor.graph")) for name in seen)
