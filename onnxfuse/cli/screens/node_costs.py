"""Print what the candidates for a node cost."""

from collections.abc import Sequence

import rich.console
from rich.markup import escape

from onnxfuse.api.explain.node_costs import CandidateCost, NodeCost
from onnxfuse.cli.base.console import plain_table, print_table
from onnxfuse.support.plurals import plural

DECIDED = {"measured": "decided by measured times", "estimate": "decided by estimates", "rule": "decided by the rule"}


def show(node: str, costs: Sequence[NodeCost], console: rich.console.Console, limit: int | None) -> None:
    """Print each fused op that takes the node, and up to `limit` candidates for it, fastest first."""
    if not costs:
        console.print(f"[bold]{escape(node)}[/]: no fused op takes it, so the library runs it", soft_wrap=True)
    for one in costs:
        shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in one.shapes)
        heading = f"[bold]{escape(one.op)}[/] (rule {escape(one.rule)}) of {shapes} on {one.arch}"
        console.print(f"{heading}: {DECIDED[one.decided_by]}; {escape(one.note)}", soft_wrap=True)
        table = plain_table("candidate", "us", "", right=("us",))
        for candidate in _shown(one.candidates, limit):
            time = "" if candidate.microseconds is None else f"{candidate.microseconds:.1f}"
            chosen = "chosen" if candidate.is_chosen else candidate.failed
            table.add_row(escape(candidate.name), time, escape(chosen))
        if one.candidates:
            print_table(console, table, ("candidate", ""))
        if limit is not None and len(one.candidates) > limit:
            console.print(f"... and {plural(len(one.candidates) - limit, 'more candidate')}: --all", style="dim")


def _shown(candidates: Sequence[CandidateCost], limit: int | None) -> list[CandidateCost]:
    """Return the first candidates, and the chosen one if it is not among them."""
    first = candidates[:limit]
    return [*first, *(c for c in candidates[len(first) :] if c.is_chosen)]
