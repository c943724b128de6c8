"""Screen of what prevents a CUDA graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.support.screen import Blocks, Line

if TYPE_CHECKING:
    from onnxfuse.runtime.sessions.capture import Blocker, Capture


def screen(capture: "Capture", limit: int | None) -> Blocks:
    """Yield the verdict, each reason with its nodes and advice, and values that a replay does not recompute."""
    yield Line(f"[bold {'green' if capture.ok else 'red'}]{escape(capture.summary)}[/]")
    yield from _reasons("blocked by", capture.blocking, limit)
    yield from _reasons("not recomputed in a replay:", capture.frozen, limit)
    if capture.ok:
        if capture.on_cpu:
            yield Line(
                f"{plural(capture.on_cpu, 'node')} of arithmetic on shapes "
                f"{agreeing(capture.on_cpu, 'stays on the CPU and blocks', 'stay on the CPU and block')} nothing",
                style="dim",
                fold=True,
            )
        if capture.dims:
            yield Line(f"one graph for each set of sizes of {escape(', '.join(capture.dims))}", style="dim", fold=True)
        yield Line("next: onnxfuse.runner(model) captures and replays; onnxfuse bench times it", style="dim", fold=True)


def _reasons(title: str, reasons: "Sequence[Blocker]", limit: int | None) -> Blocks:
    for reason in reasons:
        yield Line()
        yield Line(f"[bold]{title} {escape(reason.kind)}[/]: {escape(reason.why)}")
        for node in reason.nodes[:limit]:
            yield Line(f"  {escape(node)}")
        if limit is not None and len(reason.nodes) > limit:
            yield Line(f"  ... and {len(reason.nodes) - limit} more", "dim", fold=True, hint=": --all")
        yield Line(f"  next: {escape(reason.mend)}", style="dim")
