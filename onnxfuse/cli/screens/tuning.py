"""Print measurements and decisions, for `optimize --tune` and `--tuning`, and for `explain`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from onnxfuse.cli.base.console import print_rows
from onnxfuse.support.plurals import agreeing, plural

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned


def print_summary(tuned: "Tuned", file: Path | None, console: Console) -> None:
    """Print the decisions in three lines at most."""
    if tuned.note:
        console.print(escape(tuned.note), style="yellow", soft_wrap=True)
    decisions = tuned.decisions
    if not decisions.decided:
        console.print("tuning: this model has no measurements; the rules' cost estimates decide", style="yellow")
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
    console.print(f"[bold green]tuned:[/] {kernels_text}; {rest}", soft_wrap=True)
    if file is not None:
        count = len(decisions.new)
        console.print(f"{escape(str(file))}: {count} measured now, {len(decisions.decided)} used", soft_wrap=True)


def print_candidates(tuned: "Tuned", console: Console, limit: int | None) -> None:
    """Print each decision with its times: the fastest of each kind, or every candidate without a limit."""
    if not tuned.decisions.decided:
        return
    console.print()
    console.print(f"measured on {escape('; '.join(map(str, tuned.book)))}", style="dim", soft_wrap=True)
    rows = tuned.rows(everything=limit is None)
    print_rows(console, "places", ("nodes", "shapes", "decision", "us"), rows, limit)
