"""`onnxfuse explain`: what fuses in a model, what does not, the node and the reason where an attempt stopped."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.cli.console import output, working
from onnxfuse.cli.optimize import choose
from onnxfuse.model import io
from onnxfuse.rewrite import pipeline, rule
from onnxfuse.rewrite.match import Refusal
from onnxfuse.rewrite.report import Report

SCREEN = 12
"""Rows of each table unless --all is given: both fit one screen."""


@click.command("explain")
@click.argument("source", metavar="IN.onnx", type=click.Path(path_type=Path))
@click.option("--rule", "only", metavar="NAME", multiple=True, help="Look at this rule alone; may be repeated.")
@click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help="More rules.")
@click.option("--all", "everything", is_flag=True, help="Print every row.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: Path, only: tuple[str, ...], folders: tuple[Path, ...], everything: bool, as_json: bool) -> int:
    """Say what fuses in IN.onnx, what does not, and why. Writes nothing."""
    rules = choose(rule.select(folders), only, ())
    with working("load") as progress:
        report = pipeline.run(io.load(source), rules, progress)
    if as_json:
        click.echo(json.dumps(facts(report), indent=2))
    else:
        _print(report, None if everything else SCREEN)
    return 0


def facts(report: Report) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "applied": [
            {
                "rule": a.rule,
                "op": a.op,
                "nodes": list(a.nodes),
                "stops": [{"node": s.node, "reason": s.reason} for s in a.stops],
            }
            for a in report.applied
        ],
        "near": [
            {
                "rule": n.rule,
                "root": n.root,
                "node": n.refusal.node,
                "reason": n.refusal.reason,
                "depth": n.refusal.depth,
            }
            for n in report.near
        ],
    }


def _print(report: Report, limit: int | None) -> None:
    console = output()
    console.print(
        f"[bold green]{len(report.applied)} fusions[/]: {report.before.total()} nodes -> {report.after.total()}; "
        f"{len(report.near)} attempts stopped"
    )
    applied = Counter((a.rule, _operators(a.nodes), _reason(a.stops[:1])) for a in report.applied)
    first = {(a.rule, _operators(a.nodes), _reason(a.stops[:1])): a for a in reversed(report.applied)}
    rows = [(str(n), rule, what, first[rule, what, why].nodes[0], why) for (rule, what, why), n in applied.items()]
    _table(console, "fused", ("nodes", "first at", "grew no further because"), rows, limit)
    deepest = sorted(report.near, key=lambda n: -n.refusal.depth)
    near = Counter((n.rule, n.root.split()[0], _reason((n.refusal,))) for n in deepest)
    at = {(n.rule, n.root.split()[0], _reason((n.refusal,))): n for n in reversed(deepest)}
    rows = [(str(n), rule, what, at[rule, what, why].refusal.node, why) for (rule, what, why), n in near.items()]
    _table(console, "not fused", ("from", "first stopped at", "because it"), rows, limit)


def _operators(nodes: tuple[str, ...]) -> str:
    return " + ".join(n.split()[0] for n in nodes)


def _reason(stops: Sequence[Refusal]) -> str:
    """Return why it stopped, without the names that differ from layer to layer."""
    return (
        re.sub(r"(value )?'[^']*'|; \S+:", lambda m: "a value" if "'" in m[0] else ";", stops[0].reason)
        if stops
        else ""
    )


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
