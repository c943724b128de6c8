"""The lines about lower precision: the verdict, and the nodes that stay float32 with their reasons."""

from typing import Any

from onnxfuse.api.optimize.precision_screen import precision
from tests.support.screens import lines


def kept(*types: str) -> list[dict[str, str]]:
    """Return nodes that were kept in these types."""
    return [{"op": "Exp", "node": f"n{i}", "type": t, "reason": "[bold]it overflows"} for i, t in enumerate(types)]


def facts(*types: str, nodes: int = 9, **more: Any) -> dict[str, Any]:
    """Return the facts of a conversion."""
    return {
        "summary": "most in float16", "hint": "", "kept": kept(*types), "nodes": nodes, "clamped": [], "doubled": [],
        **more,
    }  # fmt: skip


def test_nodes_are_listed_up_to_a_limit() -> None:
    """And say how to see the others."""
    found = facts("float32", "bfloat16", "float32")
    rows = [f"  - Exp n{i} stays {t}: [bold]it overflows" for i, t in enumerate(("float32", "bfloat16", "float32"))]
    assert lines(precision(found, 2)) == [
        "precision: most in float16", *rows[:2], "  - 1 more: onnxfuse explain OUT.onnx --all, or --json",
    ]  # fmt: skip
    assert lines(precision(found, 3)) == lines(precision(found, None)) == ["precision: most in float16", *rows]


def test_a_conversion_of_nothing_is_a_warning() -> None:
    """Every node in float32; one in another type is none."""
    for types, color in ((("float32",) * 2, "yellow"), (("float32", "bfloat16"), "green"), (("float32",), "green")):
        (first, *_) = precision(facts(*types, nodes=2))
        assert f"[bold {color}]" in str(first)


def test_hints_masks_and_weights_have_lines_of_their_own() -> None:
    """Where there are some."""
    assert lines(precision(facts(hint="give real inputs", clamped=["m"], doubled=["w", "v"]))) == [
        "precision: most in float16", "  -> give real inputs",
        "  mask constants clamped to its range, without effect on the result: m", "  weights stored in two types: w, v",
    ]  # fmt: skip
