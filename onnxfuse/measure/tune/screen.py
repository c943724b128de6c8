"""Print measurements and decisions, for `optimize --tune` and `--tuning`, and for `explain`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.support.screen import LIMIT, Blocks, Line, counted_rows

if TYPE_CHECKING:
    from onnxfuse.measure.tune.report import Tuned


def summary(tuned: "Tuned", file: Path | None = None) -> Blocks:
    """Yield the decisions in three lines at most."""
    if tuned.note:
        yield Line(escape(tuned.note), style="yellow")
    decisions = tuned.decisions
    if not decisions.decided:
        yield Line(
            "tuning: this model has no measurements; the rules' cost estimates decide", style="yellow", fold=True
        )
        return
    decided = tuned.counts()
    counts = decided.by
    kernels_text = (
        f"{plural(counts['fused'], 'fused op')} "
        f"{agreeing(counts['fused'], 'stays a kernel', 'stay kernels')}, {decided.variants} of them "
        "in another variant than the plan's own"
    )
    library = (
        f"{counts['library']} {agreeing(counts['library'], 'runs', 'run')} as the library's op, "
        if counts["library"]
        else ""
    )
    rest = (
        f"{library}{counts['split']} {agreeing(counts['split'], 'goes', 'go')} to other rules, "
        f"{counts['alone']} {agreeing(counts['alone'], 'is', 'are')} left alone"
    )
    yield Line(f"[bold green]tuned:[/] {kernels_text}; {rest}")
    if file is not None:
        count = len(decisions.new)
        yield Line(f"{escape(str(file))}: {count} measured now, {len(decisions.decided)} used")


def candidates(tuned: "Tuned", limit: int | None = LIMIT) -> Blocks:
    """Yield each decision with its times: the fastest of each kind, or every candidate without a limit."""
    if not tuned.decisions.decided:
        return
    yield Line()
    yield Line(f"measured on {escape('; '.join(map(str, tuned.book)))}", style="dim")
    rows = tuned.rows(everything=limit is None)
    yield from counted_rows("places", ("nodes", "shapes", "decision", "us"), rows, limit)
