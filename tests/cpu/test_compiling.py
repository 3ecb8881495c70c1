"""Compiling: what is cached, what is shared, what runs in child processes, and what is told on the way."""

import os
import stat

import numpy as np
import pytest
from tests.cpu.networks import chain, elementwise, graph, program

from sartor import compiler
from sartor.compiling import kernels
from sartor.compiling.kernels import KernelCompiler, Unit, executor_unit, kernel_unit, object_key
from sartor.compiling.reuse import Builder
from sartor.compiling.weights import ALIGNMENT, WeightsBuilder
from sartor.compiling.worker import Workers
from sartor.errors import LoopError
from sartor.graph.layer import Layer
from sartor.loops.language import Builder as LoopBuilder
from sartor.loops.objects import link
from sartor.loops.target import target_for
from sartor.runtime.session import Session
from sartor.sizes import symbol
from sartor.templates import choose

TARGET = target_for("avx2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SARTOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def units(count):
    """Kernels that differ in a number."""
    made = []
    for number in range(count):
        b = LoopBuilder("scale")
        x = b.pointer("x", "f32")
        with b.loop("i", b.begin, b.end) as i:
            b.store(x, i, b.load(x, i) * float(number))
        made.append(kernel_unit(b.finish(), TARGET))
    return made


def compiled(made, processes):
    with KernelCompiler(TARGET, processes) as compiler_:
        for unit in made:
            compiler_.add(unit)
        return compiler_.finish()


@pytest.fixture
def no_llvm(monkeypatch):
    """Makes compiling anything an error."""

    def refuse(*args):
        raise AssertionError("this should have been in the cache")

    monkeypatch.setattr(kernels.llvm, "compile_ir", refuse)
    monkeypatch.setattr(Workers, "compile", refuse)


def test_names_come_from_the_text():
    first, second = units(2)
    assert first.symbol != second.symbol
    assert first == units(1)[0]
    assert f'@"{first.symbol}"' in first.ir


def test_equal_units_are_one():
    made = units(2)
    with KernelCompiler(TARGET, 1) as compiler_:
        assert [compiler_.add(u) for u in (*made, made[0])] == [made[0].symbol, made[1].symbol, made[0].symbol]
        assert len(compiler_.finish()) == 2


def test_objects_are_cached(own_cache, request):
    made = units(2)
    first = compiled(made, 1)
    assert len(list(own_cache.iterdir())) == 2
    request.getfixturevalue("no_llvm")
    assert compiled(made, 1) == first


def test_a_damaged_cache_is_compiled_anew(own_cache):
    made = units(1)
    first = compiled(made, 1)
    (path,) = own_cache.iterdir()
    for content in (b"", b"short", path.read_bytes()[:-1], path.read_bytes().replace(b"ELF", b"FLE")):
        path.write_bytes(content)
        assert compiled(made, 1) == first
    assert path.read_bytes()[16:] == first[0]


def test_a_cache_that_cannot_be_written_is_done_without(own_cache, monkeypatch):
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("not a folder")
    assert len(compiled(units(1), 1)) == 1
    assert own_cache.read_text() == "not a folder"


def test_the_target_is_part_of_the_key():
    (unit,) = units(1)
    assert object_key(unit, TARGET) != object_key(unit, target_for("sse4"))


def test_children_compile_the_same_objects(own_cache):
    made = [executor_unit(TARGET), *units(6)]
    told = []
    with KernelCompiler(TARGET, 2) as compiler_:
        for unit in made:
            compiler_.add(unit)
        objects = compiler_.finish(lambda *state: told.append(state))
    assert told == [(n, 7) for n in range(1, 8)]
    for path in own_cache.iterdir():
        path.unlink()
    assert compiled(made, 1) == objects
    assert {u.symbol for u in made} <= set(link(objects).symbols)


def test_text_that_llvm_refuses_is_an_error_in_a_child_too():
    broken = [Unit(f"k{i}", "this is no LLVM IR") for i in range(6)]
    with pytest.raises(LoopError, match="k0 does not compile"):
        compiled(broken, 2)


def test_a_child_that_ends_is_an_error(monkeypatch):
    workers = Workers(TARGET)
    monkeypatch.setattr(workers, "_command", ["/bin/sh", "-c", "exit 7"])
    with pytest.raises(LoopError, match="exit code 7"):
        workers.compile("k", "")
    workers.close()


# --- what layers share ----------------------------------------------------------------------------------------------------


def two_scales(first, second):
    """Two layers alike but for their constants."""
    n = symbol("n")
    layers = [elementwise("one", "mul", ("x", "j"), "a"), elementwise("two", "mul", ("a", "k"), "y")]
    return graph(
        {"x": (n, 64), "a": (n, 64), "y": (n, 64), "j": (64,), "k": (64,)}, ("x",), ("y",), layers, {"j": first, "k": second}
    )


def test_equal_layers_share_a_kernel():
    made = program(two_scales(np.full(64, 2, np.float32), np.full(64, 3, np.float32)))
    assert len(set(made.kernels)) == 1
    x = np.ones((5, 64), np.float32)
    assert (Session(made)(x) == 6).all()


def test_layers_alike_are_built_once():
    device = compiler.device_for()
    g = two_scales(np.full(64, 2, np.float32), np.full(64, 3, np.float32))
    template, config = choose(g.problem(g.layers[0]), device)
    calls = []

    class Counted:
        name = template.name
        pack = template.pack

        def build(self, *args):
            calls.append(args)
            return template.build(*args)

    builder = Builder(device)
    first, second = (builder.build(g.problem(layer), Counted(), config) for layer in g.layers)
    assert len(calls) == 1
    assert first.implementation.calls[0].kernel is second.implementation.calls[0].kernel
    assert {a.value for a in second.implementation.calls[0].arguments if hasattr(a, "value")} == {"a", "k", "y"}


def test_weights_are_aligned_and_equal_ones_kept_once():
    weights = WeightsBuilder()
    arrays = [
        np.arange(5, dtype=np.float32),
        np.ones((3, 7), np.float16),
        np.arange(5, dtype=np.float32),
        np.array(3, np.int64),
        np.arange(6, dtype=np.float32)[::2],
        np.empty(0, np.float32),
    ]
    places = [weights.add(a) for a in arrays]
    assert places[0] == places[2]
    assert len(set(places)) == 5
    block = weights.finish()
    assert block.ctypes.data % ALIGNMENT == 0
    for place, array in zip(places, arrays, strict=True):
        assert place % ALIGNMENT == 0
        found = np.frombuffer(block, array.dtype, array.size, place)
        assert (found == np.ravel(array)).all()


# --- the whole ------------------------------------------------------------------------------------------------------------


def test_compiling_again_compiles_nothing(request):
    program(chain())
    request.getfixturevalue("no_llvm")
    program(chain())


def test_stages_and_progress_are_told():
    seen, told = [], []
    program(chain(), observe=lambda stage, made: seen.append((stage, made)), progress=lambda *state: told.append(state))
    assert [stage for stage, _ in seen] == ["choose", "store", "build", "units", "link"]
    assert told[-1][0] == "compile"
    assert told[-1][1] == told[-1][2]
    assert ("build", 5, 5) in told


def test_given_choices_are_used():
    g = chain()
    device = compiler.device_for()
    template, config = choose(g.problem(g.layers[0]), device)
    other = next(c for c in template.space(g.problem(g.layers[0]), device) if c != config)
    made = compiler.compile_graph(g, device, {"relu": (template, other)}, tuned={"relu"})
    (info,) = [layer for layer in made.layers if layer.name == "relu"]
    assert (info.config, info.tuned) == (other, True)
    assert not any(layer.tuned for layer in made.layers if layer.name != "relu")


def test_files_are_as_readable_as_others(tmp_path):
    made = program(chain())
    old = os.umask(0o027)
    try:
        made.save(tmp_path / "p.sartor")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "p.sartor").stat().st_mode) == 0o640


def test_a_layer_no_template_computes_runs_on_the_host():
    layers = [Layer("sum", "matmul", ("x", "x"), ("y",), {"transpose_a": False, "transpose_b": True})]
    g = graph({"x": (3, 4), "y": (3, 3)}, ("x",), ("y",), layers, dtypes={"x": "i64", "y": "i64"})
    made = program(g)
    x = np.arange(12).reshape(3, 4)
    assert (Session(made)(x) == x @ x.T).all()
    assert made.fallbacks in ((), ("sum (matmul)",))
