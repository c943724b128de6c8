"""`onnxfuse explain`: what fuses in a model, what does not, the node and the reason where an attempt stopped."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.cli import misses, tuning
from onnxfuse.cli.console import output, print_json, working
from onnxfuse.cli.optimize import choose, rule_names, run
from onnxfuse.model import io
from onnxfuse.model.errors import UsageError
from onnxfuse.model.graph import Node, bodies
from onnxfuse.rewrite.language import rule_file
from onnxfuse.rewrite.language.pattern import did_you_mean
from onnxfuse.rewrite.match.hint import hint, without_names
from onnxfuse.rewrite.match.match import Refusal
from onnxfuse.rewrite.report import Near, Report

SCREEN = 12
"""Rows of each table unless --all is given: both fit one screen."""

FEW = 12
"""Operators that are told one by one: a region of convolutions has hundreds."""


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
    rules = choose(rule_file.select(folders), only, ())
    with working("load") as progress:
        model = io.load(source)
        places = {name: _place(model, name, source) for name in at}
        found = tuning.of(model, tuning_file, rules, progress)
        report = run(model, rules, progress, source, found)
    limit = None if everything else SCREEN
    if as_json:
        told = {} if found is None else {"tuning": tuning.facts(found, tuning_file)}
        print_json("explain", {**facts(report, list(places.values())), **told})
    elif at:
        for name, place in places.items():
            _print_place(report, name, place, limit)
    elif nearest:
        _print_near(report, limit)
    else:
        _print(report, limit)
        if found is not None:
            tuning.print_summary(found, tuning_file, output())
            tuning.print_candidates(found, output(), limit)
    return 0


def _place(model: onnx.ModelProto, name: str, source: Path) -> str:
    """Return the name that reports use for the node called `name`, or that computes the value `name`."""
    known: dict[str, str] = {}
    waiting = [model.graph]
    while waiting:
        for proto in waiting.pop().node:
            node = Node(proto)
            for word in (*node.outputs, node.name):
                known[word] = node.name
            waiting.extend(bodies(proto))
    if name not in known:
        near = did_you_mean(name, set(known))
        raise UsageError(f"{source}: has no node and no computed value called '{name}'.{near}")
    return known[name]


def facts(report: Report, places: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data; with `places` only what is about these nodes, however little it tells."""
    applied = [a for a in report.applied if not places or any(n.partition(" ")[2] in places for n in a.nodes)]
    stopped = [n for n in report.stopped if _node(n) in places] if places else misses.ranked(report)
    return {
        "ok": True,
        "nodes": {"before": report.before.total(), "after": report.after.total()},
        "notes": report.notes,
        "applied": [
            {
                "rule": a.rule,
                "op": a.op,
                "nodes": list(a.nodes),
                "stops": [{"node": s.node, "reason": s.reason} for s in a.stops],
            }
            for a in applied
        ],
        "near": misses.facts(stopped, report),
    }


def _node(near: Near) -> str:
    return near.root.partition(" ")[2]


def _print_near(report: Report, limit: int | None) -> None:
    """Print what nearly fused and is in no fused op now, equal misses as one row."""
    console = output()
    taken = misses.fused_nodes(report)
    near = [n for n in misses.ranked(report) if n.root not in taken and (limit is None or misses.telling(n))]
    kinds: dict[tuple[str, str, str], list[Near]] = {}
    for one in near:
        kinds.setdefault((one.rule, one.root.split()[0], _reason((one.refusal,))), []).append(one)
    found = sorted(kinds.values(), key=lambda ns: (misses.missing(ns[0]), -len(ns)))
    console.print(f"[bold]{len(near)} near misses[/] of {len(found)} kinds, nearest first")
    rows = [
        (str(len(ns)), ns[0].rule, f"{ns[0].refusal.depth} of {ns[0].refusal.size}", ns[0].refusal.node,
         _told(ns[0].refusal))
        for ns in found
    ]  # fmt: skip
    _table(console, "places", ("matched", "first stopped at", "because it -> what would help"), rows, limit)


def _told(refusal: Refusal) -> str:
    """Return the reason, and in a line of its own what would help."""
    advice = hint(refusal.cause)
    return f"{refusal.reason}\n-> {advice}" if advice else refusal.reason


def _print_place(report: Report, name: str, place: str, limit: int | None) -> None:
    """Print what became of one node, and every rule's furthest attempt that began there."""
    console = output()
    took = [a for a in report.applied if any(n.partition(" ")[2] == place for n in a.nodes)]
    verdict = "; ".join(f"{a.rule} took it with {_operators(a.nodes)}" for a in took) or "no rule took it"
    console.print(f"[bold]{escape(name)}[/]: {escape(verdict)}")
    tried = [n for n in report.stopped if _node(n) == place]
    if not tried and not took:
        console.print("no rule begins at its operator", style="dim")
    rows = [
        (f"{n.refusal.depth} of {n.refusal.size}", n.rule, n.refusal.node, _told(n.refusal))
        for n in sorted(tried, key=lambda n: (misses.missing(n), n.rule))
    ]
    _table(console, "matched", ("stopped at", "because it -> what would help"), rows, limit)


def _print(report: Report, limit: int | None) -> None:
    console = output()
    console.print(
        f"[bold green]{len(report.applied)} fusions[/]: {report.before.total()} nodes -> {report.after.total()}; "
        f"{len(report.near)} attempts stopped"
    )
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
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
    """Return the operators in order; of more than a few, how many there are of each."""
    ops = [n.split()[0] for n in nodes]
    if len(ops) <= FEW:
        return " + ".join(ops)
    return ", ".join(f"{n} {op}" for op, n in Counter(ops).items())


def _reason(stops: Sequence[Refusal]) -> str:
    """Return why it stopped, without the names that differ from layer to layer."""
    return without_names(stops[0].reason) if stops else ""


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
