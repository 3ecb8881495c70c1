"""Program files damaged at random: each is refused in one sentence, or computes what it did before."""

import time

import numpy as np
import pytest
from tests.cpu.networks import chain, program

from sartor.errors import ProgramError
from sartor.runtime.program import Program
from sartor.runtime.session import Session

X = np.linspace(-1, 1, 42, dtype=np.float32).reshape(7, 6)
LIMIT = 10.0
"""Seconds of the process's own time, of which a busy machine lets a step take a few times as much as an idle one; no step takes more
than a second there, and what explodes takes minutes."""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "chain.sartor"
    program(chain(), threads=1).save(path)
    return path


def damaged(data, random):
    """Bytes changed, left out, put in or exchanged, or the end cut off; half of the time near the start."""
    data = bytearray(data)
    place = int(random.integers(64 if random.integers(2) else len(data)))
    length = int(random.integers(1, 65))
    match random.integers(6):
        case 0:
            data[place] = random.integers(256)
        case 1:
            data[place] ^= 1 << int(random.integers(8))
        case 2:
            del data[place : place + length]
        case 3:
            data[place:place] = random.bytes(length)
        case 4:
            data[place : place + length] = random.bytes(len(data[place : place + length]))
        case _:
            del data[place:]
    return bytes(data)


def attempt(file, folder, seeds):
    """How many damaged programs were refused."""
    data, refused = file.read_bytes(), 0
    wanted = {name: array.tobytes() for name, array in Session(Program.load(file)).run({"x": X}).items()}
    for seed in seeds:
        path = folder / f"{seed}.sartor"  # a new file each time: the one before may still be mapped
        path.write_bytes(damaged(data, np.random.default_rng(seed)))
        start = time.process_time()
        try:
            got = Session(Program.load(path)).run({"x": X})
        except ProgramError as error:
            refused += 1
            assert "\n" not in str(error), (seed, error)
            assert str(path) in str(error), (seed, error)
        except Exception as error:
            raise AssertionError(f"damage {seed} ends in {type(error).__name__}: {error}") from error
        else:
            assert {name: array.tobytes() for name, array in got.items()} == wanted, seed
        assert time.process_time() - start < LIMIT, seed
        path.unlink()
    return refused


def test_damaged_programs_are_refused_or_right(file, tmp_path):
    assert attempt(file, tmp_path, range(300)) > 200


@pytest.mark.slow
def test_many_damaged_programs_are_refused_or_right(file, tmp_path):
    assert attempt(file, tmp_path, range(1000, 6000)) > 3000
