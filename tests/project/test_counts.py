"""The table of counts: what is spread is counted, and this checkout is as the pages say."""

from pathlib import Path

import pytest

from tools import counts

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "ops/table.py": "NAMES = ('Relu', 'Tanh')",
    "one.py": """from onnxfuse.other import far
from onnxfuse import ops
NAMES = ('Relu', 'Tanh', 'relu')
MORE = (ops.Relu, ops.Tanh)
ALONE = ops.Relu
class Same: pass
def near(graph): return make_node('Add', graph.fresh('x'))
""",
    "other/__init__.py": "",
    "other/far.py": """from typing import TYPE_CHECKING
from onnxfuse.one import near
if TYPE_CHECKING:
    from onnxfuse.third import Third
class Same: pass
""",
    "third.py": "from onnxfuse.other.far import Same\nclass Third: pass",
}
RULE = """summary = "Some."
[[rewrite]]
shapes = { x = "N 4", y = "N" }
where = ["const(w)", "value(k) == 1"]
about = "rank(x) == 2"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout of a few files, each with what one of the counts counts."""
    for name, text in FILES.items():
        path = tmp_path / "onnxfuse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "some.toml").write_text(RULE)
    return tmp_path


def test_what_is_spread_is_counted(checkout: Path) -> None:
    """Names and tables of operators outside `ops`, classes of one name, circles, nodes by hand, conditions, lines."""
    modules = counts.parsed(checkout)
    assert counts.literals(modules) == "3 in 1 files"
    assert counts.tables(modules) == 2
    assert counts.shared_names(modules) == "2 of 1 names"
    assert counts.circles(modules) == "1 / 1"
    assert counts.calls(modules) == "1, 0, 1"
    assert counts.conditions(checkout) == "3 and 2, 1 files"
    assert counts.lines(checkout).startswith("13: ")


def test_this_checkout_has_no_circles(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a row for each count, by default of its own checkout."""
    counts.main([])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == [title for title, _ in counts.COUNTS]
    assert dict(row[:2] for row in rows[2:])["circles among modules / folders"] == "0 / 0"
