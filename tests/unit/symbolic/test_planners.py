"""Planners compute with traced integers by what keeps track of them: docs/dev/INTEGERS.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "onnxfuse"
PLANNERS = sorted(p for room in ("cuda/templates", "codegen") for p in (PACKAGE / room).rglob("*.py"))
UNTRACKED = {"math.gcd": "branching.gcd", "math.isqrt": "a comparison", "operator.index": "branching.settled"}
"""Functions of Python that take an integer's bare value, and what takes their place."""


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each place that loses track of a traced integer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in UNTRACKED:
            yield node.lineno, f"{name}: {UNTRACKED[name]}"
        if isinstance(node, ast.FunctionDef):
            cached = any(ast.unparse(d).startswith(("lru_cache", "cache")) for d in node.decorator_list)
            sizes = [a.arg for a in node.args.args if a.annotation and "Shape" in ast.unparse(a.annotation)]
            if cached and sizes:
                yield node.lineno, f"a cache hashes {sizes[0]}: branching.remembered"


def test_no_planner_loses_track_of_an_integer() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {fault}"
        for path in PLANNERS
        for line, fault in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(PLANNERS) > 100
    assert found == []


def test_the_faults_are_seen() -> None:
    text = """
@lru_cache(8)
def plan(op: FusedOp, shapes: tuple[Shape, ...]) -> int:
    return math.gcd(shapes[0][0], 8)
"""
    assert sorted(line for line, _ in faults(ast.parse(text))) == [3, 4]
