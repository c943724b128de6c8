"""Screen for a kernel pack: GPUs, ranges, and shapes planned at run time."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.support.screen import Blocks, Line, Rows, plain_table
from onnxfuse.support.units import megabytes


def compiled(facts: Mapping[str, Any]) -> Blocks:
    """Yield a new pack; `facts` is its `--json` output."""
    count = sum(t["kernels"] for t in facts["targets"].values())
    yield Line(
        f"[bold green]compiled:[/] {plural(count, 'kernel')}, {megabytes(facts['bytes'])}, in "
        f"{facts['seconds']:.1f} s: "
        f"{escape(facts['target'])}"
    )
    yield from covered(facts)


def covered(facts: Mapping[str, Any]) -> Blocks:
    """Yield the coverage of a new or existing pack from its `facts`."""
    table = plain_table("for", "kernels", "size", right=("kernels", "size"))
    for name, target in facts["targets"].items():
        later = " and later" if name.startswith("compute_") else ""
        table.add_row(f"{escape(name)}{later}", str(target["kernels"]), megabytes(target["bytes"]))
    yield Rows(table)
    assumed = set(facts.get("assumed", ()))
    for name, (low, high) in facts["ranges"].items():
        hint = " (assumed: --shape)" if name in assumed else ""
        yield Line(f"{escape(name)}: {low}..{high}", fold=True, hint=hint)
    programs = facts["programs"]
    uncovered = [p for p in programs if p["left"]]
    shapes = sum(p["shapes"] for p in programs)
    if not uncovered:
        those = " of what has a kernel" if facts["without"] else ""
        yield Line(
            f"all sizes in these ranges are covered{those}: {plural(shapes, 'combination')} of "
            f"{plural({p['op'] for p in programs}, 'fused op')}, sizes and GPU checked",
            fold=True,
        )
    for p in {(p["op"], p["why"]): p for p in uncovered}.values():
        yield Line(
            f"[yellow]not covered:[/] {p['left']} of {plural(p['shapes'], 'shape')} of {escape(p['op'])} "
            f"{agreeing(p['left'], 'is planned at run time', 'are planned at run time')}: "
            f"{escape(p['why'])}"
        )
    if not all(p["whole"] for p in programs):
        yield Line("[yellow]note:[/] some ops have too many shapes to check each; a sample was checked", fold=True)
    for op, why in facts["without"].items():
        yield Line(f"no kernel of {escape(op)}, which ONNX Runtime computes: {escape(why)}", style="dim")
