"""`--tune` and `--tuning FILE`: what was measured, how it decided, and the file that keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.kernels import measurements as times
from onnxfuse.kernels.launch_plan import DEFAULT
from onnxfuse.kernels.measurements import Measured, Timed
from onnxfuse.rewrite.language.rule_file import Rule
from onnxfuse.rewrite.pipeline import Progress

if TYPE_CHECKING:
    from onnxfuse.tuning import Decided, Tuned

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

VERDICTS = {"fused": "kernel", "library": "library's op", "split": "other rules", "alone": "left alone"}


@dataclass(frozen=True)
class Tuning:
    """What the options ask for."""

    measure: bool
    """--tune"""
    file: Path
    """Where the times are kept."""
    sizes: tuple[dict[str, int], ...]
    """The sets of sizes of the dynamic dimensions."""

    def find(self, model: onnx.ModelProto, rules: Sequence[Rule], progress: Progress) -> "Tuned":
        """Return what is known of `model`; with --tune that is all, and the file holds it.

        The file is written after each measurement: what was interrupted goes on where it stopped.
        """
        from onnxfuse import tuning  # ONNX Runtime is imported where it is needed.

        if not self.measure:
            return tuning.reuse(model, rules, times.read(self.file), self.sizes, progress)
        book = times.read(self.file) if self.file.exists() else {}

        def keep(measured: times.Book) -> None:
            times.write(self.file, {**book, **measured})

        found = tuning.tune(model, rules, book, self.sizes or ({},), None, progress, keep)
        keep(found.book)
        return found


def asked(tune: bool, file: Path | None, target: Path | None, shapes: Shapes) -> Tuning | None:
    """Return what the options ask for, None where for nothing; by default the file stands beside the model's."""
    if file is None and (not tune or target is None):
        return None
    return Tuning(tune, file or (target or Path()).with_suffix(".tuning.json"), size_sets(shapes))


def of(model: onnx.ModelProto, file: Path | None, rules: Sequence[Rule], progress: Progress) -> "Tuned | None":
    """Return what a file, or without one the model itself, tells of `model`; None where nothing was ever measured."""
    book = times.of_model(model) if file is None else times.read(file)
    if not book and file is None:
        return None
    from onnxfuse import tuning

    return tuning.reuse(model, rules, book, (), progress)


def size_sets(shapes: Shapes) -> tuple[dict[str, int], ...]:
    """Return the sets of sizes, all names varied together: batch=1,8 sequence=128 are (1, 128) and (8, 128)."""
    count = max((len(sizes) for _, sizes in shapes), default=0)
    return tuple({name: sizes[n % len(sizes)] for name, sizes in shapes} for n in range(count))


def facts(tuned: "Tuned", file: Path | None) -> dict[str, Any]:
    """Return what was decided as plain data, for JSON."""
    decisions = tuned.decisions
    return {
        "file": None if file is None else str(file),
        "machines": [str(m) for m in tuned.book],
        "note": tuned.note,
        "measured_now": len(decisions.new),
        "unmeasured_places": decisions.unmeasured,
        "decisions": [
            {
                "verdict": d.verdict,
                "places": d.places,
                "measured": [{**times.entry(m), "fastest": {b.kind: b.name for b in fastest(m)}} for m in d.measured],
            }
            for d in decisions.decided
        ],
    }


def fastest(measured: Measured) -> list[Timed]:
    """Return the fastest candidate of each kind, the fastest kind first."""
    best = [b for kind in VERDICTS if (b := measured.best(kind)) is not None]  # type: ignore[arg-type]  # the keys are kinds
    return sorted(best, key=lambda b: b.microseconds or 0)


def print_summary(tuned: "Tuned", file: Path | None, console: Console) -> None:
    """Print what was decided, in three lines at most."""
    if tuned.note:
        console.print(escape(tuned.note), style="yellow", soft_wrap=True)
    decisions = tuned.decisions
    if not decisions.decided:
        console.print("tuning: nothing of this model was measured; what the rules say of cost holds", style="yellow")
        return
    counts = {v: sum(d.verdict == v for d in decisions.decided) for v in VERDICTS}
    other = sum(
        d.verdict == "fused" and any(times.variant(m) != DEFAULT for m in d.measured) for d in decisions.decided
    )
    kept = f"{counts['fused']} fused ops stay kernels, {other} of them in another variant than the plan's own"
    library = f"{counts['library']} run as the library's op, " if counts["library"] else ""
    rest = f"{library}{counts['split']} go to other rules, {counts['alone']} are left alone"
    console.print(f"[bold green]tuned:[/] {kept}; {rest}", soft_wrap=True)
    if file is not None:
        count = len(decisions.new)
        console.print(f"{escape(str(file))}: {count} measured now, {len(decisions.decided)} used", soft_wrap=True)


def print_candidates(tuned: "Tuned", console: Console, limit: int | None) -> None:
    """Print each decision with the times behind it: the fastest of each kind, without a limit every candidate."""
    if not tuned.decisions.decided:
        return
    console.print()
    console.print(f"measured on {escape('; '.join(map(str, tuned.book)))}", style="dim", soft_wrap=True)
    rows = [row for d in tuned.decisions.decided for row in _rows(d, everything=limit is None)]
    table = Table("places", "rule", "nodes", "shapes", "decision", "us", box=None, pad_edge=False, header_style="bold")
    table.columns[0].justify = "right"
    for row in rows[:limit]:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    if limit is not None and len(rows) > limit:
        console.print(f"... and {len(rows) - limit} more rows: --all", style="dim")


def _rows(decided: "Decided", *, everything: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for measured in decided.measured:
        shown = sorted(measured.candidates, key=lambda c: c.microseconds or 1e9) if everything else fastest(measured)
        told = "\n".join(_told(c) for c in shown)
        nodes, shapes = " + ".join(measured.nodes), times.extents(measured.shapes)
        rows.append((str(decided.places), measured.rule, nodes, shapes, VERDICTS[decided.verdict], told))
    return rows


def _told(candidate: Timed) -> str:
    if candidate.microseconds is None:
        return f"{candidate.name}: {candidate.failed}"
    return f"{candidate.microseconds:.1f} {candidate.name}"
