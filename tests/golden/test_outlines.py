"""What `onnxfuse explain` finds in small graphs of real exporters: a fusion that is lost is a line of the diff.

`make golden` writes the outlines anew; what changes is reviewed like code.
"""

from collections import Counter
from pathlib import Path

import onnx
import pytest

from onnxfuse.explanation.explaining import explain
from tests.golden.graphs import graphs
from tests.support.small import ops

OUTLINES = Path(__file__).with_name("outlines")
GRAPHS = graphs()


def outline(model: onnx.ModelProto) -> str:
    """Return the fusions as `explain` orders them, and the operators that are left, each on a line."""
    found = explain(model)
    assert found.optimized is not None
    fused = Counter[tuple[str, str]]()
    for count, rule, nodes, *_ in found.fused():
        fused[rule, nodes] += int(count)
    left = Counter(name for name in ops(found.optimized) if not name.startswith("{"))
    lines = [
        f"{len(model.graph.node)} nodes -> {len(found.optimized.graph.node)}",
        *(f"{count!s:3}  {rule}: {nodes}" for (rule, nodes), count in fused.items()),
        *(f"{count:3}  left: {name}" for name, count in sorted(left.items())),
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_outline_is_as_it_was(name: str, request: pytest.FixtureRequest) -> None:
    """To the line; `make golden` rewrites it where a change is meant."""
    file, found = OUTLINES / f"{name}.txt", outline(GRAPHS[name]())
    if request.config.getoption("--update-golden"):
        file.write_text(found, encoding="utf-8")
    assert file.is_file(), f"{name} has no outline yet: make golden"
    assert found == file.read_text(encoding="utf-8"), "make golden rewrites outlines, if this is meant"


def test_no_outline_is_of_no_graph() -> None:
    """A graph that goes takes its outline with it; most graphs have something that fuses."""
    assert {file.stem for file in OUTLINES.glob("*.txt")} == {*GRAPHS}
    fused = [file for file in OUTLINES.glob("*.txt") if len(file.read_text(encoding="utf-8").splitlines()) > 1]
    assert len(fused) == len(GRAPHS) >= 60
