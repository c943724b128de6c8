"""Lower-precision conversion: the verdict, and each node that stayed float32, with its reason."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

SCREEN = 12
"""Number of nodes listed without --all."""


def print_precision(facts: Mapping[str, Any], console: Console, limit: int | None = SCREEN) -> None:
    """Print the facts of `Lowered.as_dict`."""
    kept = facts["kept"]
    nothing = len(kept) == facts["nodes"] and all(one["type"] == "float32" for one in kept)
    color = "yellow" if nothing else "green"
    console.print(f"[bold {color}]precision:[/] {escape(facts['summary'])}", soft_wrap=True)
    if facts["hint"]:
        console.print(f"  -> {escape(facts['hint'])}", soft_wrap=True)
    for one in kept[:limit]:
        console.print(
            f"  - {escape(one['op'])} {escape(one['node'])} stays {one['type']}: {escape(one['reason'])}",
            soft_wrap=True,
        )
    if limit is not None and len(kept) > limit:
        console.print(f"  - {len(kept) - limit} more: onnxfuse explain OUT.onnx --all, or --json", style="dim")
    for title, names in (
        ("mask constants clamped to its range, without effect on the result", facts["clamped"]),
        ("weights stored in two types", facts["doubled"]),
    ):
        if names:
            console.print(f"  {title}: {escape(', '.join(names))}", soft_wrap=True)
