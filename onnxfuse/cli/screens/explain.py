"""Screens of `onnxfuse explain`: what fuses in a model and what does not, near misses, and what happened to a node."""

import rich.console
from rich.markup import escape

from onnxfuse.api.deploy.compiling import PackInspection
from onnxfuse.api.explain.explaining import Explained
from onnxfuse.cli.base.console import print_rows
from onnxfuse.cli.screens import pack_coverage, tuning
from onnxfuse.cli.screens.precision import print_precision
from onnxfuse.support.plurals import plural


def show(explained: Explained, console: rich.console.Console, limit: int | None) -> None:
    """Print what fuses and what does not, and what is known of kernels, precision and times."""
    report = explained.report
    fusions, _, rest = explained.summary.partition(":")
    console.print(f"[bold green]{fusions}[/]:{rest}")
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    print_rows(console, "in the file", ("came from", "first", "kernel"), explained.fused_rows(), limit)
    print_rows(console, "fused", ("nodes", "first at", "grew no further because"), explained.fused(), limit)
    print_rows(console, "lost", ("nodes", "first at", "because"), explained.conflict_rows(), limit)
    print_rows(console, "not fused", ("from", "first stopped at", "because it"), explained.not_fused(), limit)
    print_rows(console, "optional", ("nodes", "first at", "request with"), explained.optional_rows(), limit)
    if explained.inside:
        console.print("why a fused op is not larger: onnxfuse explain of the original, or --at NODE here", style="dim")
    if explained.pack is not None:
        _show_pack(explained.pack, console)
    if explained.lowered is not None:
        print_precision(explained.lowered.as_dict(), console, limit)
    if explained.tuned is not None:
        tuning.print_summary(explained.tuned, explained.file, console)
        tuning.print_candidates(explained.tuned, console, limit)


def _show_pack(pack: PackInspection, console: rich.console.Console) -> None:
    console.print(f"[bold]kernels[/] {escape(str(pack.path))}: {pack_coverage.megabytes(pack.size)}", soft_wrap=True)
    if pack.fault:
        console.print(
            f"[yellow]not used:[/] it {escape(pack.fault)}. Build it again: {escape(pack.mend)}", soft_wrap=True
        )
    if pack.facts is not None:
        pack_coverage.covered(pack.as_dict(), console)


def show_nearest(explained: Explained, console: rich.console.Console, limit: int | None) -> None:
    """Print the near misses outside any fused op, grouped if equal."""
    count, rows = explained.nearest(everything=limit is None)
    console.print(f"[bold]{plural(count, 'near miss')}[/] of {plural(rows, 'kind')}, nearest first")
    print_rows(console, "places", ("matched", "first stopped at", "because it -> what would help"), rows, limit)


def show_nodes(explained: Explained, name: str, console: rich.console.Console, limit: int | None) -> None:
    """Print what happened to one node, and every rule's furthest attempt that involved it."""
    request = explained.requests[name]
    events, rows = explained.at(name, everything=limit is None)
    no_event = (
        "folded or removed by a built-in pass: onnxfuse rules lists them" if request.is_removed else "no rule took it"
    )
    many = f" ({plural(request.nodes, 'node')})" if len(request.nodes) > 1 and not request.inside else ""
    console.print(f"[bold]{escape(name)}[/]{many}: {escape('; '.join(events) or no_event)}", soft_wrap=True)
    for one in request.inside[:limit]:
        console.print(f"{escape(one.node)} replaces {escape(', '.join(one.original_nodes))}", soft_wrap=True)
        console.print("its body:", style="dim")
        console.print("\n".join(f"  {line}" for line in one.body), markup=False, soft_wrap=True)
    if not rows and not events and not request.is_removed:
        for note in explained.report.notes:
            console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
        if not explained.report.notes:
            console.print("no rule starts at its operator", style="dim")
    print_rows(console, "lost", ("nodes", "first at", "because"), explained.conflict_rows(name), limit)
    print_rows(console, "matched", ("stopped at", "because it -> what would help"), rows, limit)
    print_rows(console, "optional", ("nodes", "first at", "request with"), explained.optional_rows(name), limit)
