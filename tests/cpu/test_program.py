"""Program files: what is kept, what is refused, and that a program is the same everywhere."""

import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from tests.cpu.networks import chain, chain_reference, program
from tests.cpu.test_session import found_graph

import sartor
from sartor.devices.processor import host_isas
from sartor.errors import OptionError, ProgramError
from sartor.runtime.program import MAGIC, Program
from sartor.runtime.session import Session


@pytest.fixture(scope="module")
def compiled():
    return program(chain(), threads=2)


@pytest.fixture
def saved(compiled, tmp_path):
    path = tmp_path / "chain.sartor"
    compiled.save(path)
    return path


X = np.linspace(-1, 1, 42, dtype=np.float32).reshape(7, 6)


def same_results(a, b):
    one, two = Session(a).run({"x": X}), Session(b).run({"x": X})
    assert all(one[k].tobytes() == two[k].tobytes() for k in one)


def test_a_saved_program_is_the_same_program(compiled, saved):
    loaded = Program.load(saved)
    assert loaded.layers == compiled.layers
    assert loaded.inputs == compiled.inputs
    assert loaded.outputs == compiled.outputs
    assert loaded.blueprint == compiled.blueprint
    assert (loaded.isa, loaded.threads, loaded.precision, loaded.name) == (compiled.isa, compiled.threads, "fp32", "chain")
    assert "chain" in repr(loaded)
    same_results(compiled, loaded)
    np.testing.assert_allclose(sartor.load(saved).run({"x": X})["y"], chain_reference(X)["y"], rtol=1e-6)


def test_a_loaded_program_can_be_saved_again(saved, tmp_path):
    loaded = Program.load(saved)
    loaded.save(tmp_path / "again.sartor")
    assert (tmp_path / "again.sartor").read_bytes() == saved.read_bytes()


def test_host_steps_and_stages_are_kept(tmp_path):
    first = program(found_graph())
    first.save(tmp_path / "found.sartor")
    second = Program.load(tmp_path / "found.sartor")
    assert second.fallbacks == first.fallbacks
    x = np.array([1, 0, 2, -1], np.float32)
    assert Session(second).run({"x": x})["y"].tolist() == [2, 4, 1, 0, 2, 0]


def test_replacing_the_file_does_not_disturb_who_has_it_open(compiled, saved, tmp_path):
    loaded = Program.load(saved)
    program(found_graph()).save(saved)
    same_results(compiled, loaded)
    loaded.save(tmp_path / "copy.sartor")
    same_results(compiled, Program.load(tmp_path / "copy.sartor"))


def test_compiling_again_gives_the_same_file(saved, tmp_path):
    program(chain(), threads=2).save(tmp_path / "again.sartor")
    assert (tmp_path / "again.sartor").read_bytes() == saved.read_bytes()


def test_a_new_process_gives_the_same_bits(compiled, saved, tmp_path):
    np.save(tmp_path / "x.npy", X)
    code = (
        f"import sartor, numpy\nsession = sartor.load({str(saved)!r})\n"
        f"print(session.run({{'x': numpy.load({str(tmp_path / 'x.npy')!r})}})['y'].tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert bytes.fromhex(done.stdout) == Session(compiled).run({"x": X})["y"].tobytes()


# --- refusals -------------------------------------------------------------------------------------------------------------


def test_what_is_no_program_is_refused(tmp_path):
    for content in (b"", b"SAR", b"\x08\x07\x12\x04onnx" * 100):
        (tmp_path / "no.sartor").write_bytes(content)
        with pytest.raises(ProgramError, match="is not a Sartor program"):
            Program.load(tmp_path / "no.sartor")
    with pytest.raises(ProgramError, match=r"cannot be opened: No such file"):
        Program.load(tmp_path / "missing.sartor")
    with pytest.raises(ProgramError, match="cannot be opened"):
        Program.load(tmp_path)


def test_newer_formats_are_refused(saved):
    data = bytearray(saved.read_bytes())
    struct.pack_into("<I", data, len(MAGIC), 99)
    saved.write_bytes(data)
    with pytest.raises(ProgramError, match=r"format 99, made by a newer Sartor; this one reads format \d"):
        Program.load(saved)


def test_files_cut_short_are_refused(saved):
    data = saved.read_bytes()
    for length in (9, 20, 31, 32, 40, 2000, len(data) // 2, len(data) - 5000, len(data) - 100, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(ProgramError, match="damaged"):
            Program.load(saved)
    saved.write_bytes(data + b"more")
    with pytest.raises(ProgramError, match="damaged"):
        Program.load(saved)


def test_damage_anywhere_is_found(saved):
    data = saved.read_bytes()
    sizes = json.loads(data[32 : 32 + struct.unpack_from("<Q", data, 16)[0]])
    used = set(range(32, 32 + struct.unpack_from("<Q", data, 16)[0], 997))
    code = -(-(32 + struct.unpack_from("<Q", data, 16)[0]) // 4096) * 4096
    used |= set(range(code, code + sizes["code"][0], 499)) | {len(data) - 1, len(data) - sizes["weights"][0]}
    for place in sorted(used):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        with pytest.raises(ProgramError, match="damaged"):
            Program.load(saved)


def test_a_header_that_lacks_something_is_refused(saved):
    data = saved.read_bytes()
    length = struct.unpack_from("<Q", data, 16)[0]
    header = json.loads(data[32 : 32 + length])
    del header["kernels"]
    text = json.dumps(header).encode()
    text += b" " * (length - len(text))
    prefix = bytearray(data[:32])
    struct.pack_into("<I", prefix, 12, zlib.crc32(text))
    saved.write_bytes(prefix + text + data[32 + length :])
    with pytest.raises(ProgramError, match="damaged"):
        Program.load(saved)


def test_a_lesser_machine_is_refused(saved, compiled, monkeypatch):
    best = host_isas()[-1]
    if best == "neon":
        pytest.skip("one instruction set only")
    sentence = f"needs the instruction set {best}, which this machine lacks \\(it has sse4\\)"
    with pytest.raises(ProgramError, match=sentence):
        Program.load(saved, isas=("sse4",))
    monkeypatch.setenv("SARTOR_ISA", "sse4")
    for attempt in (lambda: sartor.load(saved), lambda: Program.load(saved), lambda: Session(compiled)):
        with pytest.raises(ProgramError, match=sentence):
            attempt()


def test_another_processor_family_is_refused(tmp_path):
    other = "neon" if host_isas()[-1] != "neon" else "avx2"
    made = program(chain(), isa=other)
    made.save(tmp_path / "other.sartor")
    for attempt in (lambda: Program.load(tmp_path / "other.sartor"), lambda: Session(made)):
        with pytest.raises(ProgramError, match=f"made for {made.machine} processors; this machine is"):
            attempt()
    assert Program.load(tmp_path / "other.sartor", isas=(other,)).layers == made.layers  # to look at


@pytest.mark.parametrize("isa", ["sse4", "avx2"])
def test_lesser_instruction_sets_run_here(isa):
    if isa not in host_isas():
        pytest.skip(f"this machine has no {isa}")
    made = program(chain(), isa=isa)
    assert made.isa == isa
    np.testing.assert_allclose(Session(made).run({"x": X})["y"], chain_reference(X)["y"], rtol=1e-6)


def test_saving_leaves_no_partial_file(compiled, tmp_path):
    with pytest.raises(ProgramError, match="cannot be written"):
        compiled.save(tmp_path / "no folder" / "p.sartor")
    folder = tmp_path / "p.sartor"
    folder.mkdir()
    with pytest.raises(ProgramError, match="cannot be written"):
        compiled.save(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["p.sartor"]
    assert not list(folder.iterdir())


def test_impossible_options_are_refused():
    with pytest.raises(OptionError, match="precision int4 is not possible; possible is fp32"):
        sartor.compile(b"", precision="int4")
    with pytest.raises(OptionError, match="0 threads"):
        sartor.compile(b"", threads=0)
    with pytest.raises(OptionError, match="mmx"):
        sartor.compile(b"", isa="mmx")
