"""The shape of the code: imports point one way, files stay small, and what is not needed is not imported."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "onnxfuse"
FILES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {
    "model": set(),
    "kernels": {"model"},
    "rewrite": {"kernels", "model"},
    "runtime": {"rewrite", "kernels", "model"},
    "verification": {"runtime", "kernels", "model"},
    "profiling": {"verification", "runtime", "kernels", "model"},
    "benchmark": {"profiling", "verification", "runtime", "kernels", "model"},
    "precision": {"verification", "runtime", "kernels", "model"},
    "contract": {"rewrite", "kernels", "model"},
    "tuning": {"rewrite", "benchmark", "profiling", "verification", "runtime", "kernels", "model"},
    "reporting": {"model"},
    "api": {
        "precision",
        "tuning",
        "contract",
        "benchmark",
        "profiling",
        "verification",
        "runtime",
        "rewrite",
        "kernels",
        "model",
    },
    "viewing": {"api", "reporting", "kernels", "model"},
    "cli": {"viewing", "api", "reporting", "profiling", "model"},
}
"""Each part with the parts that it may use: cli -> api -> benchmark -> profiling -> verification -> runtime -> rewrite
-> kernels -> model. What the command line does with models, the library does; it has its units from `profiling`."""

LINES = 420
"""A file with more lines has more than one idea."""


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere, also inside functions; type checkers' imports excepted."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            node.body = [ast.Pass()]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def relative(path: Path) -> str:
    """Return the path as a test is called."""
    return str(path.relative_to(PACKAGE))


def test_every_part_has_its_place() -> None:
    """A new folder of the package is entered in the table of this test, with what it may import."""
    assert {p.parent.name for p in PACKAGE.glob("*/__init__.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", [f for f in FILES if f.parent != PACKAGE], ids=relative)
def test_imports_point_one_way(path: Path) -> None:
    """No part imports a part above it, or the package's own front door; only the command line does."""
    part = path.relative_to(PACKAGE).parts[0]
    ours = {name for name in imported(path) if name.split(".")[0] == "onnxfuse"}
    for name in ours:
        words = name.split(".")
        target = words[1] if len(words) > 1 else ""
        if target in MAY_IMPORT:
            assert target in MAY_IMPORT[part] | {part}, f"{part} imports {name}"
        else:
            assert part == "cli", f"{part} imports {name}"


@pytest.mark.parametrize("path", [f for f in FILES if f.parent.name == "cli"], ids=relative)
def test_no_command_imports_another(path: Path) -> None:
    """What two of them need is the library's, or printing that stands in a module of its own."""
    from onnxfuse.cli.main import COMMANDS

    others = {name.split(".")[2] for name in imported(path) if name.startswith("onnxfuse.cli.")} & set(COMMANDS)
    assert not others, f"{path.stem} imports the command{'s' * (len(others) > 1)} {', '.join(sorted(others))}"


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.relative_to(PACKAGE).parts[0] in ("rewrite", "model")], ids=relative
)
def test_rewriting_needs_no_cuda_and_no_session(path: Path) -> None:
    """Neither CuPy nor ONNX Runtime, in no function."""
    packages = {name.split(".")[0] for name in imported(path)}
    assert not packages & {"cupy", "cupy_backends", "onnxruntime", "torch"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_has_one_idea(path: Path) -> None:
    """None is longer than the limit, and each says at its top what it is."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_exception_is_swallowed(path: Path) -> None:
    """No `except Exception`, no bare `except`, no handler that only passes; the command line's end tells all."""
    way_out = path == PACKAGE / "cli" / "main.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: bare except"
            assert way_out or "Exception" not in {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}, (
                f"line {node.lineno}: except Exception"
            )
            assert not all(isinstance(s, ast.Pass) for s in node.body), f"line {node.lineno}: swallowed"


def test_importing_onnxfuse_imports_neither_cupy_nor_onnxruntime() -> None:
    """A machine without CUDA can rewrite models, and a help page does not wait for a driver."""
    script = """
import sys
import onnxfuse, onnxfuse.rewrite.pipeline, onnxfuse.rewrite.unfuse, onnxfuse.model.io
heavy = {"cupy", "onnxruntime", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_surface_is_short_and_sorted() -> None:
    """What a user may rely on; functions are callable under their own names."""
    import onnxfuse

    assert sorted(onnxfuse.__all__) == onnxfuse.__all__
    for name in ("explain", "optimize", "register", "session", "unfuse", "verify"):
        assert callable(getattr(onnxfuse, name))


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels" / "templates").rglob("*.py")), ids=relative)
def test_one_emitter_prints_what_surrounds_the_cores(path: Path) -> None:
    """A template tells how each operand is reached; structs of operands, their elements and entry points are emit's."""
    text = path.read_text(encoding="utf-8")
    for words in ("struct Pointers {", "struct Held", ".get(lane)", "Element element(const Held<W>", "PARAMETERS p"):
        assert words not in text, f"{words!r} is printed by kernels/emit/access.py and entry.py"


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "gpu").glob("*.py")), ids=lambda p: p.stem)
def test_what_a_gpu_is_needed_for_can_be_imported_without_one(path: Path) -> None:
    """A script that a sanitizer runs is met by no other test."""
    importlib.import_module(f"tests.gpu.{path.stem}")
