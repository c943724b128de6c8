"""The HTML around the graphs of a model: tools, a drawing for each side, and what the drawing leaves out."""

from typing import Any

from onnxfuse.reporting.graph_html import graph_html


def graph(*ops: str, constants: int = 0, **more: Any) -> dict[str, Any]:
    """Return a graph of nodes of these operators."""
    return {"nodes": [{"op": op, **more} for op in ops], "constants": constants}


def test_one_side_has_one_pane() -> None:
    """And no choice of sides, nor anything to unfold."""
    text = graph_html(3, {"before": graph("input", "Relu", "output")})
    assert text.count("<figure>") == 1
    assert 'data-graph="3" data-side="before"' in text
    assert "<b>before</b> 1 node<" in text
    assert "data-show-side" not in text
    assert "data-unfold" not in text
    assert 'data-find="3"' in text


def test_two_sides_can_be_chosen() -> None:
    """Both at first; colors are of the rules at first."""
    text = graph_html(0, {"before": graph("Relu"), "after": graph("Neg")})
    assert text.count("<figure>") == 2
    assert '<button data-show-side="both" aria-pressed="true">' in text
    assert '<button data-show-side="after" aria-pressed="false">' in text
    assert '<button data-colour="rules" aria-pressed="true">' in text
    assert 'aria-label="show side"' in text


def test_fused_ops_can_be_unfolded() -> None:
    """Where either side has one."""
    text = graph_html(0, {"before": graph("Relu"), "after": graph("A_1", fused=True)})
    assert "data-unfold" in text


def test_constants_are_counted_and_not_drawn() -> None:
    """Inputs and outputs are drawn and not counted."""
    one = graph_html(0, {"<b>": graph("input", "Relu", "output", constants=1)})
    assert "<b>&lt;b&gt;</b> 2 nodes, 1 of them a Constant, not drawn<" in one
    assert "4 nodes, 3 of them Constants, not drawn" in graph_html(0, {"b": graph("Relu", constants=3)})
