"""The shape of the code: who may import whom, which library lives where, how long a file and a function may be."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Each package may import itself and those to its left.
LAYERS = {
    "kernels": (),
    "models": ("kernels",),
    "convert": ("kernels", "models"),
    "pearl_cli": ("kernels", "models", "convert"),
}
# convert and pearl_cli stand side by side; a command of the program may call the converter, never the other way.
DEMO_SCRIPTS = ("models/demo/train", "models/demo/evaluate", "models/demo/export")  # run once, to make the shipped file
LIBRARY_HOMES = {
    "numba": ("kernels/cpu/",),
    "llvmlite": ("kernels/cpu/",),
    "triton": ("kernels/gpu/",),
    "torch": ("kernels/gpu/", *DEMO_SCRIPTS, "pearl_cli/predict/train"),
    "transformers": DEMO_SCRIPTS,
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def source_files() -> list[Path]:
    return sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also those inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            else:
                yield node.lineno, node.module or ""


def import_faults(name: str, source: str) -> list[str]:
    """What is wrong with the imports of the file `name` (a path from the root)."""
    package = name.split("/")[0]
    faults = []
    for line, module in imports_of(source):
        top = module.split(".")[0]
        if module.startswith("."):
            faults.append(f"{name}:{line}: relative import {module}")
        elif top in LAYERS and top != package and top not in LAYERS[package]:
            faults.append(f"{name}:{line}: {package} imports {module}")
        elif top in LIBRARY_HOMES and not name.startswith(LIBRARY_HOMES[top]):
            faults.append(f"{name}:{line}: {top} is imported outside {', '.join(LIBRARY_HOMES[top]) or 'the tests'}")
    return faults


def size_faults(name: str, source: str) -> list[str]:
    faults = []
    n_lines = source.count("\n")
    if n_lines > MAX_FILE_LINES:
        faults.append(f"{name}: {n_lines} lines, at most {MAX_FILE_LINES}")
    if not name.startswith("kernels/"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    faults.append(f"{name}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return faults


def test_imports_point_one_way_and_libraries_stay_at_home() -> None:
    faults = [fault for path in source_files() for fault in import_faults(relative(path), path.read_text("utf-8"))]
    assert not faults, "\n".join(faults)


def test_files_and_functions_are_short() -> None:
    faults = [fault for path in source_files() for fault in size_faults(relative(path), path.read_text("utf-8"))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("package", LAYERS)
def test_packages_resolve_to_this_repository(package: str) -> None:
    """Another distribution may be called `kernels`; the import must not find it."""
    assert Path(importlib.import_module(package).__file__ or "").parent == ROOT / package


def import_cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules of `graph` that reach themselves."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(graph.get(module, ()))
        return seen

    return sorted(module for module in graph if module in reachable(module))


def test_no_import_goes_in_a_circle() -> None:
    names = {relative(path)[:-3].replace("/", ".").removesuffix(".__init__"): path for path in source_files()}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        for node in ast.parse(path.read_text("utf-8")).body:  # imports inside functions run later and close no circle
            if isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                dotted = {f"{node.module}.{alias.name}" for alias in node.names}
                targets = dotted if dotted <= names.keys() else dotted | {node.module or ""}
            else:
                continue
            graph[name] |= targets & names.keys()
    assert import_cycles(graph) == []


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("kernels/a.py", "import models.gguf", "kernels imports models.gguf"),
        ("models/a.py", "def f():\n    from pearl_cli import engine", "models imports pearl_cli"),
        ("models/a.py", "from . import gguf", "relative import"),
        ("models/a.py", "import numba", "numba is imported outside"),
        ("pearl_cli/engine.py", "import torch.nn", "torch is imported outside"),
        ("kernels/cpu/a.py", "import triton", "triton is imported outside"),
    ],
)
def test_the_walker_sees_each_fault(name: str, source: str, fault: str) -> None:
    (found,) = import_faults(name, source)
    assert fault in found


def test_the_walker_lets_right_imports_pass() -> None:
    assert import_faults("kernels/cpu/a.py", "import numba\nfrom kernels.backend import Weight") == []
    assert import_faults("pearl_cli/a.py", "import models.gguf, convert.pipeline, numpy") == []


def test_the_size_check_sees_long_files_and_functions() -> None:
    assert "501 lines" in size_faults("models/a.py", "x = 1\n" * 501)[0]
    long_function = "def f():\n" + "    x = 1\n" * 60
    assert "61 lines" in size_faults("models/a.py", long_function)[0]
    assert size_faults("kernels/a.py", long_function) == []


def test_the_circle_check_sees_a_circle() -> None:
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
