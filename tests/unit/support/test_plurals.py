"""Counts in words, and no message that counts without them."""

import ast
import re
from pathlib import Path

import onnxfuse
from onnxfuse.support.plurals import agreeing, plural

SOURCES = sorted(Path(onnxfuse.__file__).parent.rglob("*.py"))

SYMBOLIC = (
    "cuda/templates",
    "cuda/launch_programs",
    "symbolic",
    "codegen/program",
    "codegen/operators",
    "codegen/emit/lower_movement.py",
    "cuda/planning/limits.py",
    "cuda/planning/launch_plan.py",
)
"""Where a number may be a formula that is evaluated later, and cannot be asked whether it is one."""

PLURALS = re.compile(
    r"^ ([a-z-]+ )?(nodes|rules|cases|models|rows|places|ops|kernels|launches|fusions|attempts|reasons|files|errors)\b"
)


def test_one_is_one_and_all_else_several() -> None:
    """Numbers and what can be counted."""
    assert [plural(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    told = [plural("ab", noun) for noun in ("near miss", "launch", "axis", "library", "day")]
    assert told == ["2 near misses", "2 launches", "2 axes", "2 libraries", "2 days"]
    assert [agreeing(some, "is", "are") for some in ([], [0], [0, 0])] == ["are", "is", "are"]
    assert [agreeing(0, "is", "are", of=of) for of in (1, 2)] == ["is", "are"]


def test_no_text_counts_without_the_helper() -> None:
    """`{n} nodes` in a text is wrong where n is 1."""
    found = []
    for path in (p for p in SOURCES if not any(part in p.as_posix() for part in SYMBOLIC)):
        for text in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.JoinedStr)):
            for one, then in zip(text.values, text.values[1:], strict=False):
                if not isinstance(one, ast.FormattedValue) or not isinstance(then, ast.Constant):
                    continue
                told, plural = ast.unparse(one.value), PLURALS.match(str(then.value))
                if plural and not told.isupper() and not one.format_spec and "counted(" not in told:
                    found.append(f"{path.name}, line {one.lineno}: {{{told}}}{plural[0]}")
    assert not found
