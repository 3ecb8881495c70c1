"""Imports point one way, and what runs a program carries neither the compiler nor the tuner."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sartor

SOURCE = Path(sartor.__file__).parent

# What each room may import of the others (its own, and the plain modules at the top, always).
ALLOWED = {
    "loops": set(),
    "devices": {"loops"},
    "graph": set(),
    "importers": {"graph"},
    "ops": {"graph", "importers"},
    "fitting": {"graph"},
    "runtime": {"fitting", "graph", "devices"},
    "templates": {"graph", "loops", "devices"},
    "compiling": {"templates", "graph", "loops", "devices", "fitting"},
    "tuning": {"templates", "compiling", "graph", "loops", "devices", "runtime", "fitting", "importers", "ops"},
    "compat": {"runtime", "graph"},
    "cli": {"tuning", "templates", "compiling", "runtime", "fitting", "graph", "loops", "devices", "compat", "importers", "ops"},
}
EXTRA = {"devices.rates": {"runtime"}}  # measures by running; nothing of the runtime imports it
PLAIN = {"sizes", "types", "errors", "cache"}  # at the top, importing none of the rooms
FACE = {"compiler"}  # at the top, importing any of them


def modules():
    return sorted(p for p in SOURCE.rglob("*.py"))


def name_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports_of(path, top_level_only=False):
    """Names of sartor's modules and of others' packages that a file imports, `sartor.` cut off of the former."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    ours, others = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module in {"sartor", *_packages()}
                else [node.module]
            )
        else:
            continue
        for name in names:
            if name == "sartor" or name.startswith("sartor."):
                ours.add(name.removeprefix("sartor").lstrip("."))
            else:
                others.add(name.split(".")[0])
    return ours, others


def _packages():
    return {f"sartor.{room}" for room in ALLOWED}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path):
    name = name_of(path)
    room = name.split(".")[0]
    if "." not in name:
        allowed = set() if name in PLAIN else set(ALLOWED) | FACE
    else:
        assert room in ALLOWED, f"{room} is a room docs/architecture.md does not name"
        allowed = ALLOWED[room] | EXTRA.get(name, set()) | {room} | (FACE if room in ("cli", "compat", "tuning") else set())
    for imported in imports_of(path)[0]:
        first = imported.split(".")[0]
        is_module = first and ((SOURCE / first).is_dir() or (SOURCE / f"{first}.py").is_file())
        if is_module and first not in PLAIN:
            assert first in allowed, f"{name} imports {imported}"


@pytest.mark.parametrize("room", ["runtime", "fitting"])
def test_the_runtime_carries_no_compiler(room):
    for path in (SOURCE / room).rglob("*.py"):
        _, others = imports_of(path)
        assert not others & {"llvmlite", "onnx_ir", "click", "rich"}, path
        assert "onnx" not in imports_of(path, top_level_only=True)[1], f"{path}: onnx only where a host step needs it"


@pytest.mark.parametrize("room", ["graph", "ops", "importers", "templates"])
def test_only_loops_and_devices_speak_llvm(room):
    for path in (SOURCE / room).rglob("*.py"):
        assert "llvmlite" not in imports_of(path)[1], path


def loaded_by(code):
    """Modules loaded in a new interpreter after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code + "\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    return set(done.stdout.split())


HEAVY = {
    "llvmlite",
    "onnx",
    "onnx_ir",
    "sympy",
    "click",
    "rich",
    "sqlite3",
    "sartor.tuning",
    "sartor.templates",
    "sartor.loops.llvm",
    "sartor.compiler",
    "sartor.compiling",
    "sartor.importers",
    "sartor.ops",
}


def test_importing_sartor_is_light():
    assert not loaded_by("import sartor") & (HEAVY | {"numpy", "sartor.runtime"})


def test_loading_a_program_imports_no_compiler(tmp_path):
    onnx = pytest.importorskip("onnx")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "relu.sartor"
    sartor.compile(model).save(str(path))
    code = f"import sartor, numpy\ns = sartor.load({str(path)!r})\nassert s(numpy.ones((3, 4), numpy.float32)).shape == (3, 4)"
    assert not loaded_by(code) & HEAVY


def test_every_module_says_what_it_is_for():
    silent = [name_of(p) for p in modules() if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent
