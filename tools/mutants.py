"""Mutation testing: a comparison, a condition, a sum or a number is changed, and the nearest tests must fail.

    python -m tools.mutants onnxfuse/verification/tolerance [--count 40] [--line 102] [--tests tests/unit/verification]

Each mutant is a fork of this process, in which the changed module is compiled in the place of its file: no file is
written, numpy, onnx and pytest are imported once, and the tests are those near the module, nearest first.
That is why it is not mutmut, which copies the tree and runs the whole suite on the copy, nor cosmic-ray, which writes
the mutant into the work tree and has one test command for all modules. What a test starts in another process sees the
module as it is. What lives through a sample of the cases is tried with all of them. A change that no test can see is in
mutants.toml beside this file, with the reason, and is not tried. Prints a line for each survivor; exit 1 where there
are any.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
OPERATORS: Mapping[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip
"""What becomes of each operator."""
NOTES = Path(__file__).with_suffix(".toml")
"""Changes that no test can see, each with its reason, and where modules are tested that no test near them names."""
IMPORTED = ("numpy", "onnx.reference", "onnxruntime", "hypothesis", "pytest")
PATIENCE = 5
"""Times as long as without a mutant: then it hangs, which the tests have noticed."""
NEAREST = 6
"""Files of tests that judge a mutant at most."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module."""

    path: Path
    line: int
    before: str
    after: str
    tree: ast.Module


def equivalent(path: Path) -> set[tuple[str, str, str]]:
    """Return a file's changes that no test can see: line, before, after. ValueError for a line that is gone.

    Lines are known by their text, not by their number, which moves.
    """
    own, source = path.resolve().relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    found = set()
    for entry in tomllib.loads(NOTES.read_text(encoding="utf-8")).get("equivalent", ()):
        if entry["module"] == own:
            if entry["line"] not in map(str.strip, source.splitlines()):
                raise ValueError(f"{NOTES.name}: {own} has no line {entry['line']!r}")
            found.add((entry["line"], entry["before"], entry["after"]))
    return found


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield each change of a file, one at a time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # frozen=True and the like keep a programmer from a mistake, and decide nothing as the program runs.
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    decorators = {id(n) for c in classes for d in c.decorator_list for n in ast.walk(d)}
    for number, node in enumerate(ast.walk(tree)):
        for change in range(_changes(node) if id(node) not in decorators else 0):
            made = copy.deepcopy(tree)
            changed = next(n for k, n in enumerate(ast.walk(made)) if k == number)
            _change(changed, change)
            assert isinstance(node, ast.expr)
            yield Mutant(path, node.lineno, ast.unparse(node), ast.unparse(changed), made)


def _changes(node: ast.AST) -> int:
    """Return in how many ways a node can be changed."""
    if isinstance(node, ast.Compare):
        return len(node.ops)
    if isinstance(node, ast.BoolOp | ast.BinOp):
        return int(type(node.op) in OPERATORS)
    if isinstance(node, ast.Constant):
        return int(type(node.value) in (int, bool))
    return int(isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _change(node: ast.AST, which: int) -> None:
    if isinstance(node, ast.Compare):
        node.ops[which] = OPERATORS[type(node.ops[which])]()
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        ast.fix_missing_locations(node)


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module as its mutant is."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        self.name = name
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module, and no other."""
        if fullname != self.name:
            return None
        package = self.mutant.path.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname, self.mutant.path, loader=self, submodule_search_locations=[] if package else None
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed module."""
        exec(compile(self.mutant.tree, str(self.mutant.path), "exec"), module.__dict__)


def module_name(path: Path) -> str:
    """Return how imports call a file."""
    return ".".join(path.resolve().relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def nearest(path: Path) -> list[Path]:
    """Return the files of tests near a module: that of its name, those of mutants.toml, those that name it, first of
    its folder, and others of its folder."""
    name, own = module_name(path), ROOT / "tests" / "unit" / path.resolve().relative_to(ROOT / "onnxfuse").parent
    package, _, stem = name.rpartition(".")
    words = re.compile(
        rf"from {re.escape(name)} import|from {re.escape(package)} import [^\n]*\b{stem}\b|import {name}\b"
    )
    named = [file for file in (ROOT / "tests" / "unit").rglob("test_*.py") if words.search(file.read_text("utf-8"))]
    by_name = [file for file in [own / f"test_{stem}.py"] if file.is_file()]
    ordered = sorted(named, key=lambda file: (own not in file.parents, file))
    told = tomllib.loads(NOTES.read_text(encoding="utf-8")).get("tests", {})
    elsewhere = [ROOT / file for file in told.get(path.resolve().relative_to(ROOT).as_posix(), ())]
    return [*dict.fromkeys([*by_name, *elsewhere, *ordered, *sorted(own.glob("test_*.py"))])][:NEAREST]


def survives(mutant: Mutant | None, name: str, tests: Sequence[Path], seconds: int = 0, *, sample: bool = True) -> bool:
    """Return whether the tests pass with the mutant in the module's place; with None, whether they pass at all.

    They are ended after so many seconds, if it is not 0. `sample`: a part of the cases of those that have many.
    """
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(seconds)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if mutant is not None:
            sys.meta_path.insert(0, Changed(name, mutant))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu", *(["--sample"] if sample else [])]
        code = pytest.main([*options, *map(str, tests)])
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    return status == 0


def main() -> int:
    """Judge the mutants of the modules that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--count", type=int, help="so many of each module at most, the same ones each time")
    parser.add_argument("--seed", type=int, default=0, help="of what --count takes")
    parser.add_argument("--line", type=int, help="those of this line alone")
    parser.add_argument("--tests", nargs="*", type=Path, help="instead of the nearest")
    arguments = parser.parse_args()
    for name in IMPORTED:
        importlib.import_module(name)
    judged = survived = 0
    for path in [f for p in arguments.paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]:
        tests = arguments.tests or nearest(path)
        explained, lines = equivalent(path), path.read_text(encoding="utf-8").splitlines()
        found = [
            m
            for m in mutants(path)
            if arguments.line in (None, m.line) and (lines[m.line - 1].strip(), m.before, m.after) not in explained
        ]
        if arguments.count is not None and len(found) > arguments.count:
            found = random.Random(arguments.seed).sample(found, arguments.count)
        if not found:
            continue
        began = time.monotonic()
        if not tests or not survives(None, module_name(path), tests):
            print(f"{path}: no tests that pass without a mutant", flush=True)
            survived += 1
            continue
        seconds = 10 + int(PATIENCE * (time.monotonic() - began))
        for mutant in sorted(found, key=lambda m: m.line):
            judged += 1
            name = module_name(path)
            if survives(mutant, name, tests, seconds) and survives(mutant, name, tests, sample=False):
                survived += 1
                print(f"{path}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"{survived} of {judged} mutants survived")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
