"""Program files whose header says something else, with checksum and seal made right again: found when loaded or bound.

What numbers a kernel gets as sizes and how far it goes is as much code as its instructions, and is trusted with them; so
the damage here is to everything else: what refers to what, names, types, places, and the structure as such.
"""

import copy
import json
import zlib

import numpy as np
import pytest
from tests.cpu.networks import chain, program

from sartor.errors import SartorError
from sartor.fitting.plan import SIZE
from sartor.runtime import program as file_format
from sartor.runtime.program import Program
from sartor.runtime.session import Session

X = np.linspace(-1, 1, 42, dtype=np.float32).reshape(7, 6)
ABSURD = (-(1 << 70), -(1 << 62), -2, -1, 0, 1, 2, 7, 1000, 1 << 31, 1 << 62, 1 << 70, None, True, 1.5, "x", "", [], [1], {}, [[]])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("headers") / "chain.sartor"
    program(chain(), threads=1).save(path)
    return path


def parts(path):
    """The header, and what follows it."""
    data = path.read_bytes()
    length = file_format._PREFIX.unpack_from(data)[3]
    start = file_format._PREFIX.size
    return json.loads(data[start : start + length]), data[file_format._place(start + length) :]


def write(path, text, rest):
    """A file with this header, whose checksums are right."""
    prefix = file_format._PREFIX.pack(file_format.MAGIC, file_format.FORMAT, zlib.crc32(text), len(text), *file_format._seal(text))
    head = prefix + text
    path.write_bytes(head + bytes(file_format._place(len(head)) - len(head)) + rest)


def places(data, path=()):
    """Paths to everything within JSON data."""
    yield path
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*path, key))


def trusted(header):
    """Paths to the numbers that only the code could tell to be wrong: formulas of sizes, and which of them is meant."""
    blueprint = header["blueprint"]
    found = {("blueprint", "slots", 2, i) for i, kind in enumerate(blueprint["slots"][0])}
    found |= {("blueprint", "slots", 0, i) for i, kind in enumerate(blueprint["slots"][0])}
    found |= {("blueprint", "slots", 1, i) for i, kind in enumerate(blueprint["slots"][0])}
    found |= {("blueprint", "steps", i, k) for i in range(len(blueprint["steps"])) for k in (0, 2, 3, 4, 5, 6, 7)}
    found |= {("blueprint", "buffers", i, 0) for i in range(len(blueprint["buffers"]))}
    found |= set(places(blueprint["formulas"], ("blueprint", "formulas")))
    found |= set(places(blueprint["stages"], ("blueprint", "stages")))
    found |= set(places(blueprint["tables"], ("blueprint", "tables")))
    found |= {("blueprint", "buffers", i, k) for i in range(len(blueprint["buffers"])) for k in (2, 3)}
    found |= set(places(header["symbols"], ("symbols",))) | set(places(header["kernels"], ("kernels",)))
    found |= {p for p in places(blueprint["values"], ("blueprint", "values")) if len(p) > 3 and p[3] > 1}
    return found


def changed(header, place, value):
    header = copy.deepcopy(header)
    if not place:
        return value
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return header


def outcome(path):
    """"refused", or the results of a run."""
    try:
        return {name: array.tobytes() for name, array in Session(Program.load(path)).run({"x": X}).items()}
    except SartorError as error:
        assert "\n" not in str(error)
        return "refused"


def attempt(file, path, random):
    """What became of a header with one thing in it exchanged."""
    header, rest = parts(file)
    untouchable = trusted(header)
    candidates = [place for place in places(header) if place not in untouchable]
    place = candidates[random.integers(len(candidates))]
    value = ABSURD[random.integers(len(ABSURD))]
    write(path, json.dumps(changed(header, place, value), separators=(",", ":")).encode(), rest)
    try:
        return outcome(path), (place, value)
    except Exception as error:
        raise AssertionError(f"{place} = {value!r} ends in {type(error).__name__}: {error}") from error


def attempts(file, folder, seeds):
    """How many headers were refused; the others must compute what they did before."""
    wanted, refused = outcome(file), 0
    for seed in seeds:
        path = folder / f"{seed}.sartor"  # a new file each time: the one before may still be mapped
        got, what = attempt(file, path, np.random.default_rng(seed))
        refused += got == "refused"
        assert got == "refused" or list(got.values()) == list(wanted.values()), (seed, what)
        path.unlink()
    return refused


def test_headers_that_say_something_else_are_refused_or_right(file, tmp_path):
    assert attempts(file, tmp_path, range(300)) > 100


@pytest.mark.slow
def test_many_headers_that_say_something_else_are_refused_or_right(file, tmp_path):
    assert attempts(file, tmp_path, range(1000, 6000)) > 2000


def test_a_header_that_was_edited_is_refused_whatever_its_checksum(file, tmp_path):
    header, rest = parts(file)
    write(tmp_path / "same.sartor", json.dumps(header, separators=(",", ":")).encode(), rest)
    assert outcome(tmp_path / "same.sartor") != "refused"
    text = json.dumps(header | {"name": "another"}, separators=(",", ":")).encode()
    path = tmp_path / "edited.sartor"
    write(path, text, rest)
    data = bytearray(path.read_bytes())
    data[file_format._PREFIX.size - 8 : file_format._PREFIX.size] = file.read_bytes()[file_format._PREFIX.size - 8 :][:8]
    path.write_bytes(data)
    with pytest.raises(SartorError, match="its header is not the one it was made with"):
        Program.load(path)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("blueprint", "steps", 0, 0), 99, "its steps refer to what is not there"),
        (("blueprint", "steps", 0, 2), -1, "its steps refer to what is not there"),
        (("blueprint", "steps", 0, 3), 1 << 40, "its steps refer to what is not there"),
        (("blueprint", "steps", 0, 4), 1 << 70, "a number is missing, or is none"),
        (("blueprint", "slots", 1, 0), 77, "its places refer to what is not there"),
        (("blueprint", "slots", 2, 0), -5, "its arguments refer to what is not there"),
        (("blueprint", "formulas", "a", 3), 1 << 62, "refer to what is not there|outside of its value|64 bits"),
        (("blueprint", "values", 0, 2, 0), 10**6, "its shapes refer to what is not there"),
        (("blueprint", "buffers", 0, 1), 9, "its buffers refer to what is not there"),
        (("blueprint", "stages", 0, 0, 1), 50, "its stages refer to what is not there"),
        (("blueprint", "conditions"), [[0, 1 << 20]], "its conditions refer to what is not there"),
        (("kernels", 0), "nothing", "its code lacks 1 of its kernels"),
        (("symbols",), {}, "its code lacks"),
        (("code",), [-1, 0], "it has"),
        (("threads",), "two", "its threads, names or versions are none"),
    ],
)
def test_what_refers_to_nothing_is_named(file, tmp_path, place, value, sentence):
    header, rest = parts(file)
    path = tmp_path / "wrong.sartor"
    write(path, json.dumps(changed(header, place, value), separators=(",", ":")).encode(), rest)
    with pytest.raises(SartorError, match=sentence):
        Session(Program.load(path)).run({"x": X})


def test_places_beyond_a_value_are_found_when_sizes_are_bound(file, tmp_path):
    header, rest = parts(file)
    blueprint = header["blueprint"]
    far = len(blueprint["formulas"]["op"])
    for column, entry in (("op", 0), ("a", 1 << 40), ("b", 0)):
        blueprint["formulas"][column].append(entry)
    for number, kind in enumerate(blueprint["slots"][0]):
        if kind != SIZE:
            wrong = changed(header, ("blueprint", "slots", 2, number), far)
            path = tmp_path / f"{number}.sartor"
            write(path, json.dumps(wrong, separators=(",", ":")).encode(), rest)
            with pytest.raises(SartorError, match=r"outside of its value|its weights refer"):
                Session(Program.load(path)).run({"x": X})


def test_headers_that_are_no_headers(file, tmp_path):
    _, rest = parts(file)
    for number, text in enumerate((b"", b"[]", b"null", b"{}", b"[" * 100000, b"1" * 5000, b"\xff", b'{"isa": []}', b'"x"', b"{")):
        path = tmp_path / f"{number}.sartor"
        write(path, text, rest)
        with pytest.raises(SartorError, match="damaged"):
            Program.load(path)
