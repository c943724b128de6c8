"""Mutation testing: a comparison, a condition, a sum or a number is changed, and the nearest tests must fail.

    python -m tools.mutants onnxfuse/verification/tolerance [--count 40] [--line 102] [--tests tests/unit/verification]

The module is compiled once with all its mutants in it, each behind a switch. Tests are collected and run without any,
which says which tests reach which mutant; then each mutant is a fork of that process with its switch on, in which the
tests that reach it run, the shortest first. No file is written, and nothing is imported again. A mutant of what runs
while the module is imported is a fork of its own, as the switch would come too late.
That is why it is not mutmut, which copies the tree and runs the whole suite on the copy, nor cosmic-ray, which writes
the mutant into the work tree and has one test command for all modules. What a test starts in another process sees the
module as it is. First the file of tests that has the module's name is asked (tests/unit mirrors the package), then what
lives is tried with those of its neighbours, then with all cases where a sample was taken. A change that no test can see
is in mutants.toml beside this file, with the reason, and is not tried. Prints a line for each survivor; exit 1 where
there are any.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tools import mirror

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
SWITCH = "__mutant__"
"""What a changed module calls its switches."""
DELETING = frozenset({"shutil.rmtree", "os.remove", "os.rmdir"})
"""Python's audit events of what deletes."""
OWN_FILES = frozenset({"__pycache__", ".hypothesis"})
"""Folders of Python and the tests."""
NEAREST = 6
"""Files of tests that judge a mutant at most."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module."""

    path: Path
    line: int
    before: str
    after: str
    number: int
    """Of the changed node, as `ast.walk` counts."""
    change: int
    """Which of the changes of that node."""

    def tree(self) -> ast.Module:
        """Return the changed module."""
        made = ast.parse(self.path.read_text(encoding="utf-8"))
        _change(next(itertools.islice(ast.walk(made), self.number, None)), self.change)
        return made


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
            assert isinstance(node, ast.expr)
            changed = copy.deepcopy(node)
            _change(changed, change)
            yield Mutant(path, node.lineno, ast.unparse(node), ast.unparse(changed), number, change)


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
    """Gives one module as `tree` has it, with `reached` as the function that its switches call."""

    def __init__(self, path: Path, tree: ast.Module, reached: Callable[[int], bool] | None = None) -> None:
        self.path = path
        self.tree = tree
        self.reached = reached

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module, and no other."""
        if fullname != module_name(self.path):
            return None
        package = self.path.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=[] if package else None
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed module."""
        module.__dict__[SWITCH] = self.reached
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


class Switched(ast.NodeTransformer):
    """Writes `switch(number) ? mutant : as it is` for each of the mutants that an expression has."""

    def __init__(self, found: Sequence[Mutant], tree: ast.Module) -> None:
        numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
        self.of_node: dict[int, list[tuple[int, int]]] = {}
        by_number = {number: key for key, number in numbers.items()}
        for index, mutant in enumerate(found):
            self.of_node.setdefault(by_number[mutant.number], []).append((index, mutant.change))

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node with the switches of its mutants around it."""
        if isinstance(node, ast.pattern):  # it holds constants, and no other expression can stand for them
            return node
        changed = list[tuple[int, Any]]()
        for index, change in self.of_node.get(id(node), ()):
            mutant = copy.deepcopy(node)
            _change(mutant, change)
            changed.append((index, mutant))
        made = self.generic_visit(node)
        for index, mutant in changed:
            assert isinstance(made, ast.expr)
            called = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(index)], [])
            made = ast.copy_location(ast.IfExp(called, mutant, made), node)
        return made


class Judge:
    """A plugin of pytest that runs the collected tests once for each mutant, and returns which live."""

    def __init__(self, count: int, answer: int) -> None:
        self.active = -1
        self.failed = False
        self.now = ""
        """The test that runs; empty while modules are imported."""
        self.reached_by: dict[int, set[str]] = {index: set() for index in range(count)}
        self.answer = answer
        """A pipe: which mutants live, which are decided at import, as JSON; or null where tests fail without any."""

    def switch(self, index: int) -> bool:
        """Note that a mutant is reached, and return whether it is on."""
        self.reached_by[index].add(self.now)
        return index == self.active

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure."""
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests without a mutant, then those that reach it for each."""
        items = list(session.items)
        imported = {index for index, tests in self.reached_by.items() if tests}
        told = _forked(lambda: self._without(items))
        if session.testsfailed or told is None or told["failed"]:
            os.write(self.answer, b"null")
            return True
        took, reached_by = told["took"], {int(index): set(tests) for index, tests in told["reached_by"].items()}
        alive = []
        for index in sorted(reached_by.keys() - imported):
            tests = sorted((i for i in items if i.nodeid in reached_by[index]), key=lambda i: took[i.nodeid])
            seconds = 10 + int(PATIENCE * sum(took[i.nodeid] for i in tests))
            if _forked(partial(self._with, index, tests), seconds) == "alive":
                alive.append(index)
        os.write(self.answer, json.dumps({"alive": alive, "imported": sorted(imported)}).encode())
        return True

    def _without(self, items: Sequence[Any]) -> object:
        took = {}
        for item, following in itertools.zip_longest(items, items[1:]):
            self.now, began = item.nodeid, time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            took[self.now] = time.monotonic() - began
        reached = {index: sorted(tests - {""}) for index, tests in self.reached_by.items()}
        return {"failed": self.failed, "took": took, "reached_by": reached}

    def _with(self, index: int, items: Sequence[Any]) -> object:
        self.active = index
        for item, following in itertools.zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return "killed"
        return "alive"


def stay_in_temporary_folders() -> None:
    """Refuse to delete anything else in this process and its forks, for good: what cleans up may be the mutant.

    Of code that deletes the folders it has made, one took every folder that there was for its own.
    """
    inside = os.path.realpath(tempfile.gettempdir())

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DELETING and arguments[1] in (None, -1):  # relative to a folder: part of one that was asked about
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(inside + os.sep) and not OWN_FILES.intersection(Path(path).parts):
                raise PermissionError(f"a mutant would delete {path}")

    sys.addaudithook(refuse)


def _forked(work: Callable[[], object], seconds: int = 0) -> Any:
    """Return what `work` returns in a fork of this process, None where it dies or takes longer than so many seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(seconds)
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def _pytest(tests: Sequence[Path], *, sample: bool, plugins: Sequence[object] = ()) -> int:
    """Run tests silently, until one fails."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu", *(["--sample"] if sample else [])]
    return int(pytest.main([*options, *map(str, tests)], plugins=list(plugins)))


def judge(path: Path, found: Sequence[Mutant], tests: Sequence[Path], *, sample: bool) -> list[Mutant] | None:
    """Return the mutants of a module with which the tests pass; None where they fail without any."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def all_of_them() -> object:
        stay_in_temporary_folders()
        reading, writing = os.pipe()
        plugin = Judge(len(found), writing)
        switched = ast.fix_missing_locations(Switched(found, tree).visit(tree))
        sys.meta_path.insert(0, Changed(path, cast(ast.Module, switched), plugin.switch))
        _pytest(tests, sample=sample, plugins=[plugin])
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return json.loads(pipe.read() or "null")

    told = _forked(all_of_them)
    if told is None:
        return None
    alive = [found[index] for index in told["alive"]]
    once = [found[index] for index in told["imported"]]
    began = time.monotonic()
    if once and not _passes(path, ast.parse(path.read_text(encoding="utf-8")), tests, sample=sample):
        return None
    seconds = 10 + int(PATIENCE * (time.monotonic() - began))
    return alive + [m for m in once if _passes(path, m.tree(), tests, seconds, sample=sample)]


def _passes(path: Path, tree: ast.Module, tests: Sequence[Path], seconds: int = 0, *, sample: bool) -> bool:
    """Return whether tests pass with a module as `tree` has it."""

    def run() -> object:
        stay_in_temporary_folders()
        sys.meta_path.insert(0, Changed(path, tree))
        return _pytest(tests, sample=sample) == 0

    return _forked(run, seconds) is True


def module_name(path: Path) -> str:
    """Return how imports call a file."""
    return ".".join(path.resolve().relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def nearest(path: Path) -> list[Path]:
    """Return the files of tests near a module: its own (`tools.mirror`), those of mutants.toml, and those that name it,
    first of its folder; all of its folder where there are none."""
    name, folder = module_name(path), ROOT / "tests" / "unit" / path.resolve().relative_to(ROOT / "onnxfuse").parent
    package, _, stem = name.rpartition(".")
    words = re.compile(
        rf"from {re.escape(name)} import|from {re.escape(package)} import [^\n]*\b{stem}\b|import {name}\b"
    )
    named = [file for file in (ROOT / "tests" / "unit").rglob("test_*.py") if words.search(file.read_text("utf-8"))]
    own = mirror.own_tests(path)
    ordered = sorted(named, key=lambda file: (folder not in file.parents, file))
    told = tomllib.loads(NOTES.read_text(encoding="utf-8")).get("tests", {})
    elsewhere = [ROOT / file for file in told.get(path.resolve().relative_to(ROOT).as_posix(), ())]
    found = [*([] if own is None else [own]), *elsewhere, *ordered] or sorted(folder.glob("test_*.py"))
    return [*dict.fromkeys(found)][:NEAREST]


def survivors(path: Path, found: Sequence[Mutant], tests: Sequence[Path]) -> list[Mutant] | None:
    """Return the mutants that the tests do not see, the first of them asked first; None where they fail without any."""
    alive = list(found)
    for files, sample in ((tests[:1], True), (tests, True), (tests, False)):
        if alive:
            remaining = judge(path, alive, files, sample=sample)
            if remaining is None:
                return None
            alive = remaining
    return alive


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
        alive = survivors(path, found, tests) if tests else None
        if alive is None:
            print(f"{path}: no tests that pass without a mutant", flush=True)
            survived += 1
            continue
        judged += len(found)
        survived += len(alive)
        for mutant in sorted(alive, key=lambda m: m.line):
            print(f"{path}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"{survived} of {judged} mutants survived")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
