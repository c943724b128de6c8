"""Which file of tests stands for a module, and which modules have none: tests/unit mirrors the package.

    python -m tools.mirror          # modules without a file of tests of their own, those with most decisions first

`onnxfuse/files/io.py` is tested by `tests/unit/files/test_io.py`. What commands show may be tested as they show it,
`tests/cli/test_NAME.py`, of the module's name or of a command that imports it, and a template by the emulator,
`tests/emulator/test_NAME.py`, of the module's name or of the template's. A module of few decisions needs none of its
own: declarations, entries and what only forwards are tested by laws over all of them, and by what uses them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "onnxfuse", ROOT / "tests"
COMMANDS = PACKAGE / "cli" / "commands"
BEHIND_COMMANDS = ("api", "authoring", "cli", "contract", "deploy", "explanation", "reporting", "viewing")
"""Packages of what commands call and print."""
DECISIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.comprehension, ast.BoolOp, ast.Compare, ast.Try, ast.Match)
FEW = 8
"""A module of fewer decisions needs no tests of its own."""


def places(module: Path) -> list[Path]:
    """Return the files that may be a module's tests, whether they exist or not, nearest first."""
    inside = module.resolve().relative_to(PACKAGE)
    name = f"test_{inside.name}"
    found = [TESTS / "unit" / inside.parent / name, TESTS / "cli" / name]
    if inside.parts[0] in BEHIND_COMMANDS:
        commands = [c for c, imported in _imported().items() if ".".join(inside.with_suffix("").parts) in imported]
        found += [TESTS / "cli" / f"test_{command}.py" for command in commands]
    if inside.parts[:2] == ("cuda", "templates") and len(inside.parts) > 3:
        found += [TESTS / "emulator" / name, TESTS / "emulator" / f"test_{inside.parts[2]}.py"]
    return found


@cache
def _imported() -> dict[str, set[str]]:
    """Return the modules of the package that each command's module imports, by the command."""
    return {file.stem: set(_imports(file)) for file in sorted(COMMANDS.glob("*.py"))}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("onnxfuse."):
            module = node.module.removeprefix("onnxfuse.")
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def own_tests(module: Path) -> Path | None:
    """Return the file of tests that stands for a module; None if there is none."""
    return next((place for place in places(module) if place.is_file()), None)


def decisions(module: Path) -> int:
    """Return how many comparisons, conditions and loops a module has."""
    return sum(isinstance(node, DECISIONS) for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))))


def without() -> dict[Path, int]:
    """Return the modules that make decisions and have no tests of their own, with how many they make."""
    counts = {m: decisions(m) for m in PACKAGE.rglob("*.py") if m.name != "__init__.py" and own_tests(m) is None}
    return dict(sorted(((m, n) for m, n in counts.items() if n >= FEW), key=lambda one: (-one[1], one[0])))


if __name__ == "__main__":
    for path, count in without().items():
        print(f"{count:4d}  {path.relative_to(ROOT)}")
