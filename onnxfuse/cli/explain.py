"""`onnxfuse explain`: what fuses in a model, what does not, the node and the reason where an attempt stopped."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.api.explaining import Explained, explain
from onnxfuse.api.options import Options, Tuning
from onnxfuse.cli import tuning
from onnxfuse.cli.console import output, print_json, working
from onnxfuse.cli.parameters import rule_names
from onnxfuse.model.errors import UsageError

SCREEN = 12
"""Rows of each table unless --all is given: both fit one screen."""


@click.command("explain")
@click.argument("source", metavar="IN.onnx", type=click.Path(path_type=Path))
@click.option(
    "--rule",
    "only",
    metavar="NAME",
    multiple=True,
    shell_complete=rule_names,
    help="Look at this rule alone; may be repeated.",
)
@click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help="More rules.")
@click.option(
    "--tuning",
    "tuning_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show what optimize --tune measured, and decide by it; by default what IN.onnx carries.",
)
@click.option("--near", "nearest", is_flag=True, help="Rank what nearly fused over the whole model, with hints.")
@click.option("--at", metavar="NODE", multiple=True, help="Each rule's furthest attempt at this node or value alone.")
@click.option("--all", "everything", is_flag=True, help="Print every row.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: Path,
    only: tuple[str, ...],
    folders: tuple[Path, ...],
    tuning_file: Path | None,
    nearest: bool,
    at: tuple[str, ...],
    everything: bool,
    as_json: bool,
) -> int:
    """Say what fuses in IN.onnx, what does not, and why. Writes nothing."""
    if nearest and at:
        raise UsageError("--near and --at exclude each other: the whole model, or one node")
    options = Options(folders, only, tuning=None if tuning_file is None else Tuning(tuning_file))
    with working("load") as progress:
        found = explain(source, options, at, progress)
    limit = None if everything else SCREEN
    if as_json:
        print_json("explain", found.as_dict())
    elif at:
        for name in at:
            _print_place(found, name, limit)
    elif nearest:
        _print_near(found, limit)
    else:
        _print(found, limit)
        if found.tuned is not None:
            tuning.print_summary(found.tuned, found.file, output())
            tuning.print_candidates(found.tuned, output(), limit)
    return 0


def _print_near(found: Explained, limit: int | None) -> None:
    """Print what nearly fused and is in no fused op now, equal misses as one row."""
    console = output()
    count, rows = found.nearest(everything=limit is None)
    console.print(f"[bold]{count} near misses[/] of {len(rows)} kinds, nearest first")
    _table(console, "places", ("matched", "first stopped at", "because it -> what would help"), rows, limit)


def _print_place(found: Explained, name: str, limit: int | None) -> None:
    """Print what became of one node, and every rule's furthest attempt that began there."""
    console = output()
    took, rows = found.at(found.places[name])
    console.print(f"[bold]{escape(name)}[/]: {escape('; '.join(took) or 'no rule took it')}")
    if not rows and not took:
        console.print("no rule begins at its operator", style="dim")
    _table(console, "matched", ("stopped at", "because it -> what would help"), rows, limit)


def _print(found: Explained, limit: int | None) -> None:
    console, report = output(), found.report
    console.print(
        f"[bold green]{len(report.applied)} fusions[/]: {report.before.total()} nodes -> {report.after.total()}; "
        f"{len(report.near)} attempts stopped"
    )
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    _table(console, "fused", ("nodes", "first at", "grew no further because"), found.fused(), limit)
    _table(console, "not fused", ("from", "first stopped at", "because it"), found.not_fused(), limit)


def _table(
    console: Console, title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int | None
) -> None:
    if not rows:
        return
    console.print()
    table = Table(title, "rule", *headings, box=None, pad_edge=False, header_style="bold")
    table.columns[0].justify = "right"
    for row in rows[:limit]:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    if limit is not None and len(rows) > limit:
        console.print(f"... and {len(rows) - limit} more rows: --all", style="dim")
