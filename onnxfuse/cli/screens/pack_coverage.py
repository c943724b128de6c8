"""Screen for a kernel pack: GPUs, ranges, and shapes planned at run time."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from onnxfuse.cli.base.console import plain_table
from onnxfuse.support.plurals import agreeing, plural


def show(facts: dict[str, Any], console: Console) -> None:
    """Print a new pack; `facts` is its `--json` output."""
    count = sum(t["kernels"] for t in facts["targets"].values())
    console.print(
        f"[bold green]compiled:[/] {plural(count, 'kernel')}, {megabytes(facts['bytes'])}, in "
        f"{facts['seconds']:.1f} s: "
        f"{escape(facts['target'])}",
        soft_wrap=True,
    )
    covered(facts, console)


def covered(facts: dict[str, Any], console: Console) -> None:
    """Print the coverage of a new or existing pack from its `facts`."""
    table = plain_table("for", "kernels", "size", right=("kernels", "size"))
    for name, target in facts["targets"].items():
        later = " and later" if name.startswith("compute_") else ""
        table.add_row(f"{escape(name)}{later}", str(target["kernels"]), megabytes(target["bytes"]))
    console.print(table)
    assumed = set(facts.get("assumed", ()))
    for name, (low, high) in facts["ranges"].items():
        console.print(f"{escape(name)}: {low}..{high}{' (assumed: --shape)' if name in assumed else ''}")
    programs = facts["programs"]
    uncovered = [p for p in programs if p["left"]]
    shapes = sum(p["shapes"] for p in programs)
    if not uncovered:
        console.print(
            f"{plural(shapes, 'shape')} of {plural({p['op'] for p in programs}, 'op')} "
            f"{agreeing(shapes, 'is', 'are')} covered, each evaluated"
        )
    for p in {(p["op"], p["why"]): p for p in uncovered}.values():
        console.print(
            f"[yellow]not covered:[/] {p['left']} of {plural(p['shapes'], 'shape')} of {escape(p['op'])} "
            f"{agreeing(p['left'], 'is planned at run time', 'are planned at run time')}: "
            f"{escape(p['why'])}",
            soft_wrap=True,
        )
    if not all(p["whole"] for p in programs):
        console.print("[yellow]note:[/] some ops have too many shapes to check each; a sample was checked")
    for op, why in facts["without"].items():
        console.print(f"no kernel of {escape(op)}: {escape(why)}", style="dim", soft_wrap=True)


def megabytes(size: int) -> str:
    """Format a size for people."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
