"""The parts of tuning: which candidate is next, when a result agrees, what arrays catch, how long a child may take."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cpu.harness import chain, device, problem

from sartor.errors import OptionError, SartorError
from sartor.graph.data import problem_to_data
from sartor.graph.layer import Tensor
from sartor.sizes import symbol
from sartor.templates.base import Space
from sartor.tuning import measurer
from sartor.tuning.agreement import disagreement, has_steps, largest_difference
from sartor.tuning.bench import Bench, describe_constant, draw_inputs
from sartor.tuning.guard import Guarded, guarded_copy
from sartor.tuning.measurer import Measurer
from sartor.tuning.messages import LIBRARY, Case, Drawn, Job, ProfileJob, Timing, Verdict
from sartor.tuning.search import Search, choice_key
from sartor.tuning.targets import input_shapes, open_symbols, symbol_values


class Plain:
    """A template in name."""

    def __init__(self, name):
        self.name = name


A, B = Plain("a"), Plain("b")


def search(first=()):
    knobs = {"x": (1, 2, 4, 8), "y": (0, 1)}
    spaces = [(A, Space(knobs, lambda config: config["x"] != 8 or config["y"])), (B, Space({"z": (1, 2, 3)}))]
    return Search(spaces, list(first))


def everything(search, best=None, winners=()):
    found = []
    while (choice := search.next(best, winners)) is not None:
        found.append(choice)
    return found


def test_every_candidate_comes_once():
    found = everything(search())
    assert len(found) == len({choice_key(*choice) for choice in found}) == 7 + 3
    assert {"x": 8, "y": 0} not in [config for _, config in found]


def test_the_default_comes_first_and_what_was_tried_never():
    one = search([(A, {"x": 4, "y": 1}), (B, {"z": 2})])
    one.tried.add(choice_key(B, {"z": 2}))
    found = everything(one)
    assert found[0] == (A, {"x": 4, "y": 1})
    assert (B, {"z": 2}) not in found
    assert len(found) == 9
    assert one.exhausted


def test_a_candidate_put_back_comes_again():
    one = search()
    found = everything(one)
    one.put_back(found[0])
    assert not one.exhausted
    assert everything(one) == [found[0]]


def test_neighbours_of_the_best_and_winners_come_early():
    wide = Search([(A, Space({k: tuple(range(10)) for k in "uvwxyz"}))], [])
    best = (A, dict.fromkeys("uvwxyz", 5))
    winner, foreign = (A, dict.fromkeys("uvwxyz", 3)), (A, dict.fromkeys("uvwxyz", 77))
    found = [wide.next(best, [foreign, winner, (B, {"z": 1})]) for _ in range(20)]
    assert winner in found
    assert foreign not in found
    near = [config for _, config in found if sum(value != 5 for value in config.values()) == 1]
    assert len(near) >= 10


# --- agreement --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "fine", "bad"), [("f4", 1e-5, 1e-3), ("f8", 1e-11, 1e-7), ("f2", 2e-3, 2e-2)])
def test_floats_agree_within_their_rounding(dtype, fine, bad):
    wanted = np.linspace(-2, 2, 101)
    assert disagreement(wanted, (wanted + fine).astype(dtype)) == ""
    assert "101 of 101 elements differ" in disagreement(wanted, (wanted + 2 * bad).astype(dtype))


def test_what_is_no_number_must_be_so_in_the_same_places():
    wanted = np.array([1.0, np.nan, np.inf, 1e300])
    same = np.array([1.0, np.nan, np.inf, np.inf], np.float32)
    assert disagreement(wanted, same) == ""
    for place, value in ((0, np.nan), (1, 0.0), (2, -np.inf), (3, 1.0)):
        other = same.copy()
        other[place] = value
        assert "1 of 4 elements" in disagreement(wanted, other)


def test_integers_agree_exactly_but_for_steps():
    wanted = np.arange(20000)
    other = wanted.copy()
    other[7] += 1
    assert "1 of 20000 elements" in disagreement(wanted, other)
    assert disagreement(wanted, other, steps=True) == ""
    other[:10] += 2
    assert disagreement(wanted, other, steps=True)
    assert "shape" in disagreement(wanted, wanted[1:])


def test_where_rounding_may_decide():
    shape = ("f32", (8,))
    assert not has_steps(problem("elementwise", {"x": shape}, shape, expression=chain(["f32"], ("exp", 0))))
    assert has_steps(problem("elementwise", {"x": shape}, shape, expression=chain(["f32"], ("floor", 0))))
    assert has_steps(problem("elementwise", {"x": shape}, ("bool", (8,)), expression=chain(["f32", "f32"], ("lt", 0, 1))))
    assert has_steps(problem("reduce", {"x": ("f32", (8, 3))}, ("i64", (8, 1)), op="argmax", axes=(1,)))


def test_difference_of_whole_outputs():
    first = np.array([1.0, -4.0, 2.0], np.float32)
    assert largest_difference(first, first + np.float32(0.5)) == pytest.approx(0.125)
    assert largest_difference(first, np.array([1.0, np.nan, 2.0], np.float32)) == np.inf
    assert largest_difference(np.arange(3), np.zeros(3, int)) == 0.0


# --- memory -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 5), (), (0, 3), (4096,)])
def test_guarded_arrays_hold_what_they_are_given(shape):
    given = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    copy = guarded_copy(given)
    assert np.array_equal(copy, given)
    guarded = Guarded(shape, np.dtype(np.float32))
    assert np.isnan(guarded.array).all()
    guarded.array[...] = 0
    assert guarded.intact
    guarded._bytes[guarded._start - 1] = 0
    assert not guarded.intact
    guarded.reset()
    assert guarded.intact


def test_reading_past_a_guarded_array_ends_the_process():
    code = """
import ctypes, numpy as np
from sartor.tuning.guard import Guarded
a = Guarded((5, 3), np.dtype(np.float32)).array
print(ctypes.string_at(a.ctypes.data + a.nbytes - 1, 1), flush=True)
ctypes.string_at(a.ctypes.data + a.nbytes, 1)
"""
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, env=environment)
    assert done.stdout
    assert done.returncode < 0


# --- contents ---------------------------------------------------------------------------------------------------------------------


def test_indices_lie_inside_what_they_index():
    n = symbol("n")
    layer = problem("gather", {"x": ("f32", (n, 4)), "i": ("i64", (50,))}, ("f32", (50, 4)), axis=0)
    feeds = draw_inputs(layer, {"n": 3}, np.random.default_rng(0))
    assert feeds["x"].shape == (3, 4)
    assert set(feeds["i"].tolist()) == {-3, -2, -1, 0, 1, 2}


def test_large_constants_are_drawn_alike():
    rng = np.random.default_rng(0)
    drawn = describe_constant((rng.standard_normal((300, 40)) * 0.1 + 3).astype(np.float32))
    assert drawn.mean == pytest.approx(3, abs=0.01)
    assert drawn.spread == pytest.approx(0.1, rel=0.05)
    assert describe_constant(np.array([4, -7, 2])) == Drawn(low=-7, high=4)
    assert describe_constant(np.array([np.nan, 1.0], np.float32)) == Drawn()


def test_copies_of_a_layer_differ_in_contents_only():
    layer = problem("matmul", {"x": ("f32", (5, 40)), "w": ("f32", (40, 70))}, ("f32", (5, 70)), transpose_a=False, transpose_b=False)
    case = Case("k", problem_to_data(layer), {"w": Drawn()}, ({},), 3, 1)
    bench = Bench(case)
    assert bench.layers == ("copy 0", "copy 1", "copy 2")
    weights = list(bench.graph.constants.values())
    assert [w.shape for w in weights] == [(40, 70)] * 3
    assert not np.array_equal(weights[0], weights[1])
    assert bench.bytes == 3 * 4 * (40 * 70 + 5 * 40)


def test_sizes_come_from_the_shapes_to_tune_for():
    n, m = symbol("n"), symbol("m")
    inputs = {"x": Tensor("f32", (n, 3, m)), "y": Tensor("f32", (m, 2))}
    sizes = symbol_values(inputs, {"x": (4, 3, 9)})
    assert sizes == {"n": 4, "m": 9}
    assert symbol_values(inputs, {}) == {"n": 1, "m": 1}
    assert open_symbols(inputs, {}) == ["m", "n"]
    assert open_symbols(inputs, {"y": (9, 2)}) == ["n"]
    assert input_shapes(inputs, sizes) == {"x": (4, 3, 9), "y": (9, 2)}
    with pytest.raises(OptionError):
        symbol_values(inputs, {"x": (4, 5, 9)})
    with pytest.raises(OptionError):
        symbol_values(inputs, {"x": (4, 3, 9), "y": (8, 2)})


# --- children -----------------------------------------------------------------------------------------------------------------------


def job(number=0, template="elementwise", library=LIBRARY):
    layer = problem("elementwise", {"x": ("f32", (16, 8))}, ("f32", (16, 8)), expression=chain(["f32"], ("relu", 0)))
    case = Case("k", problem_to_data(layer), {}, ({},), 2, 5)
    return Job(0, number, case, device("sse4"), 1, library, template, {"unroll": 1})


def test_children_share_messages_and_keep_what_they_built():
    with Measurer(2) as children:
        answers = children.share([job(number) for number in range(3)])
        assert [answer[1] for answer in answers] == [Verdict("built")] * 3
        for number, (child, _) in enumerate(answers):
            timed = children.ask(Timing(number), child)
            assert timed.status == "ok"
            assert all(0 < sample < 1 for sample in timed.samples[0])
        assert children.ask(ProfileJob("/nowhere", ())).status == "error"


def test_no_answer_is_waited_for_after_the_time_is_up():
    with Measurer(1) as children:
        assert children.ask(Timing(99)).status == "error"
        start = time.monotonic()
        assert children.share([job(), job(1)], until=start) == [None, None]
        assert children.ask(job(), until=start) is None
        assert time.monotonic() - start < 20
        assert children.ask(job()) == Verdict("built")


def test_what_is_not_the_candidates_fault_ends_the_run():
    with Measurer(1) as children, pytest.raises(SartorError, match="the template gemm is not in nowhere:AT_ALL"):
        children.ask(job(template="gemm", library="nowhere:AT_ALL"))


def test_a_child_that_does_not_start_is_no_candidates_fault(monkeypatch):
    monkeypatch.setattr(measurer, "_COMMAND", (sys.executable, "-c", "raise SystemExit('no such thing')"))
    with Measurer(1) as children, pytest.raises(SartorError, match=r"does not start.*exit code 1: no such thing"):
        children.ask(job())


def test_a_child_ends_with_its_tuner(tmp_path):
    code = """
import os, signal, sys
from sartor.tuning.measurer import Measurer
from sartor.tuning.messages import Timing
children = Measurer(1)
children.ask(Timing(0))
print(children._children[0]._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p), "SARTOR_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    child = Path("/proc", done.stdout.strip())
    limit = time.monotonic() + 10
    while (state := _state(child)) not in ("", "Z") and time.monotonic() < limit:
        time.sleep(0.05)
    assert state in ("", "Z")


def _state(folder):
    try:
        return folder.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
