"""Lower-precision conversion: the verdict, and each node that stayed float32, with its reason."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from onnxfuse.support.screen import LIMIT, Blocks, Line


def precision(facts: Mapping[str, Any], limit: int | None = LIMIT) -> Blocks:
    """Yield the facts of `Lowered.as_dict`, with up to `limit` nodes."""
    kept = facts["kept"]
    nothing = len(kept) == facts["nodes"] and all(one["type"] == "float32" for one in kept)
    color = "yellow" if nothing else "green"
    yield Line(f"[bold {color}]precision:[/] {escape(facts['summary'])}", fold=True)
    if facts["hint"]:
        yield Line(f"  -> {escape(facts['hint'])}", fold=True)
    for one in kept[:limit]:
        yield Line(f"  - {escape(one['op'])} {escape(one['node'])} stays {one['type']}: {escape(one['reason'])}")
    if limit is not None and len(kept) > limit:
        rest = f"  - {len(kept) - limit} more"
        yield Line(rest, "dim", fold=True, hint=": onnxfuse explain OUT.onnx --all, or --json")
    for title, names in (
        ("mask constants clamped to its range, without effect on the result", facts["clamped"]),
        ("weights stored in two types", facts["doubled"]),
    ):
        if names:
            yield Line(f"  {title}: {escape(', '.join(names))}")
