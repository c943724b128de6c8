"""Screens of `onnxfuse explain`: what fuses in a model and what does not, near misses, and what happened to a node."""

from typing import TYPE_CHECKING

from rich.markup import escape

from onnxfuse.api.optimize.precision_screen import precision
from onnxfuse.api.optimize.screen import remaining
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, advice, counted_rows, more_rows

if TYPE_CHECKING:
    from onnxfuse.explanation.explaining import Explained


def whole_model(explained: "Explained", limit: int | None) -> Blocks:
    """Yield what fuses and what does not, and what is known of kernels, precision and times."""
    report = explained.report
    verdict, _, rest = explained.summary.partition(":")
    yield Line(f"[bold green]{verdict}[/]:{escape(rest)}", fold=True)
    if line := str(explained.quantized or ""):
        yield Line(escape(line), fold=True)
    for note in report.notes:
        yield Line(f"[yellow]note:[/] {escape(note)}")
    if explained.optimized is not None:
        yield from [Line()] * bool(explained.remaining.kinds)
        yield from remaining(explained.remaining.as_dict(), limit, "--at NODE; what nearly fused: --near")
    yield from counted_rows("in the file", ("came from", "first", "kernel"), explained.fused_rows(), limit)
    yield from counted_rows("applied", ("nodes", "first at", "grew no further because"), explained.fused(), limit)
    yield from counted_rows("lost", ("nodes", "first at", "because"), explained.conflict_rows(), limit)
    yield from counted_rows("optional", ("nodes", "first at", "request with"), explained.optional_rows(), limit)
    if explained.inside:
        yield advice("why a fused op is not larger: onnxfuse explain of the original, or --at NODE here", fold=True)
    if explained.pack is not None:
        yield from explained.pack.screen()
    if explained.lowered is not None:
        yield from precision(explained.lowered.as_dict(), limit)
    if explained.tuned is not None:
        from onnxfuse.measure.tune import screen as tuning  # ONNX Runtime is imported only when needed.

        yield from tuning.summary(explained.tuned, explained.file)
        yield from tuning.candidates(explained.tuned, limit)


def nearest(explained: "Explained", limit: int | None) -> Blocks:
    """Yield the near misses outside any fused op, grouped if equal."""
    count, rows = explained.nearest(everything=limit is None)
    yield Line(f"[bold]{plural(count, 'near miss')}[/] of {plural(rows, 'kind')}, nearest first", fold=True)
    yield from counted_rows("places", ("matched", "first stopped at", "reason -> what would help"), rows, limit)


def nodes(explained: "Explained", name: str, limit: int | None) -> Blocks:
    """Yield what happened to one node, and every rule's furthest attempt that involved it."""
    request = explained.requests[name]
    events, rows = explained.at(name, everything=limit is None)
    no_event = (
        "folded or removed by a built-in pass: onnxfuse rules lists them" if request.is_removed else "no rule took it"
    )
    many = f" ({plural(request.nodes, 'node')})" if len(request.nodes) > 1 and not request.inside else ""
    yield Line(f"[bold]{escape(name)}[/]{many}: {escape('; '.join(events) or no_event)}")
    for one in request.inside[:limit]:
        yield Line(f"{escape(one.node)} replaces {escape(', '.join(one.original_nodes))}")
        yield Line("its body:", style="dim", fold=True)
        yield Line("\n".join(f"  {escape(line)}" for line in one.body))
    yield from more_rows(request.inside, limit, "more fused op")
    if not rows and not events and not request.is_removed:
        for note in explained.report.notes:
            yield Line(f"[yellow]note:[/] {escape(note)}")
        if not explained.report.notes:
            yield Line("no rule starts at its operator", style="dim", fold=True)
    yield from counted_rows("lost", ("nodes", "first at", "because"), explained.conflict_rows(name), limit)
    yield from counted_rows("matched", ("stopped at", "reason -> what would help"), rows, limit)
    yield from counted_rows("optional", ("nodes", "first at", "request with"), explained.optional_rows(name), limit)
