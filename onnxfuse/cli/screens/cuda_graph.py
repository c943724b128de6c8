"""Screen of `onnxfuse explain --graph`: what prevents a CUDA graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import rich.console
from rich.markup import escape

from onnxfuse.support.plurals import agreeing, plural

if TYPE_CHECKING:
    from onnxfuse.runtime.sessions.capture import Blocker, Capture


def show(capture: "Capture", console: rich.console.Console, limit: int | None) -> None:
    """Print the verdict, each reason with its nodes and advice, and values that a replay does not recompute."""
    console.print(f"[bold {'green' if capture.ok else 'red'}]{escape(capture.summary)}[/]", soft_wrap=True)
    _print("blocked by", capture.blocking, console, limit)
    _print("not recomputed in a replay:", capture.frozen, console, limit)
    if capture.ok:
        if capture.on_cpu:
            console.print(
                f"{plural(capture.on_cpu, 'node')} of arithmetic on shapes "
                f"{agreeing(capture.on_cpu, 'stays on the CPU and blocks', 'stay on the CPU and block')} nothing",
                style="dim",
            )
        if capture.dims:
            console.print(f"one graph for each set of sizes of {escape(', '.join(capture.dims))}", style="dim")
        console.print("next: onnxfuse.runner(model) captures and replays; onnxfuse bench times it", style="dim")


def _print(title: str, reasons: "Sequence[Blocker]", console: rich.console.Console, limit: int | None) -> None:
    for reason in reasons:
        console.print()
        console.print(f"[bold]{title} {escape(reason.kind)}[/]: {escape(reason.why)}", soft_wrap=True)
        for node in reason.nodes[:limit]:
            console.print(f"  {node}", markup=False, soft_wrap=True)
        if limit is not None and len(reason.nodes) > limit:
            console.print(f"  ... and {len(reason.nodes) - limit} more: --all", style="dim")
        console.print(f"  next: {escape(reason.mend)}", style="dim", soft_wrap=True)
