"""`onnxfuse explain`: report what fuses in a model, what does not, and the node and reason where attempts stopped."""

from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.deploy.compiling import PackInspection
from onnxfuse.api.explain import node_costs
from onnxfuse.api.explain.explaining import Explained, explain
from onnxfuse.api.request.options import Options, TuningOptions
from onnxfuse.api.run.cuda_graph_blockers import explain_graph
from onnxfuse.cli.base.console import output, print_json, print_rows, working
from onnxfuse.cli.base.parameters import (
    ALSO_OPTION,
    JSON_OPTION,
    custom_ops_option,
    node_names,
    rule_names,
    rules_option,
)
from onnxfuse.cli.screens import cuda_graph, pack_coverage, tuning
from onnxfuse.cli.screens import node_costs as cost_screen
from onnxfuse.cli.screens.precision import print_precision
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural

SCREEN = 12
"""Rows of each table without --all, so that both fit one screen."""


@click.command("explain")
@click.argument("source", metavar="IN.onnx", type=click.Path(path_type=Path))
@click.option(
    "--only",
    "--rule",
    "only",
    metavar="NAME",
    multiple=True,
    shell_complete=rule_names,
    help="Consider only this rule; may be repeated.",
)
@ALSO_OPTION
@rules_option()
@custom_ops_option
@click.option(
    "--tuning",
    "tuning_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show and apply the times of optimize --tune; default those stored in IN.onnx.",
)
@click.option("--near", "nearest", is_flag=True, help="Rank near misses over the whole model, with hints.")
@click.option(
    "--at",
    metavar="NODE",
    multiple=True,
    shell_complete=node_names,
    help="Explain this node, value or name pattern: the cause, then the rules' furthest attempts.",
)
@click.option(
    "--cost",
    metavar="NODE",
    shell_complete=node_names,
    help="Show the candidates for this node, their estimated or measured microseconds, and who decided.",
)
@click.option(
    "--graph", is_flag=True, help="Show what prevents a CUDA graph of the optimized model, and why; needs a GPU."
)
@click.option("--all", "everything", is_flag=True, help="Print every row.")
@JSON_OPTION
def command(
    source: Path,
    only: tuple[str, ...],
    also: tuple[str, ...],
    folders: tuple[Path, ...],
    tuning_file: Path | None,
    nearest: bool,
    at: tuple[str, ...],
    cost: str | None,
    graph: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """Explain what fuses in IN.onnx, what does not, and why. Writes nothing."""
    if nearest and at:
        raise UsageError("--near and --at exclude each other: the whole model, or one node")
    options = Options(folders, only, also=also, tuning=None if tuning_file is None else TuningOptions(tuning_file))
    if graph:
        if nearest or at:
            raise UsageError("--graph looks at the whole model as it will run: it goes with neither --near nor --at")
        with working("load") as progress:
            captured = explain_graph(source, options=options, progress=lambda step, done, total: progress(step))
        if as_json:
            print_json("explain", {"ok": True, "graph": captured.as_dict()})
        else:
            cuda_graph.show(captured, output(), None if everything else SCREEN)
        return 0
    if cost is not None:
        if nearest or at:
            raise UsageError("--cost looks at the candidates for one node: it goes with neither --near nor --at")
        with working("load") as progress:
            costs = node_costs.node_costs(source, cost, options, progress=progress)
        if as_json:
            print_json("explain", {"ok": True, "costs": [one.as_dict() for one in costs]})
        else:
            cost_screen.show(cost, costs, output(), None if everything else SCREEN)
        return 0
    with working("load") as progress:
        explained = explain(source, options, at, progress)
    limit = None if everything else SCREEN
    if as_json:
        print_json("explain", explained.as_dict())
    elif at:
        for name in at:
            _print_nodes(explained, name, limit)
    elif nearest:
        _print_nearest(explained, limit)
    else:
        _print(explained, limit)
        if explained.pack is not None:
            _print_pack(explained.pack)
        if explained.lowered is not None:
            print_precision(explained.lowered.as_dict(), output(), limit)
        if explained.tuned is not None:
            tuning.print_summary(explained.tuned, explained.file, output())
            tuning.print_candidates(explained.tuned, output(), limit)
    return 0


def _print_pack(pack: PackInspection) -> None:
    console = output()
    console.print(f"[bold]kernels[/] {escape(str(pack.path))}: {pack_coverage.megabytes(pack.size)}", soft_wrap=True)
    if pack.fault:
        console.print(
            f"[yellow]not used:[/] it {escape(pack.fault)}. Build it again: {escape(pack.mend)}", soft_wrap=True
        )
    if pack.facts is not None:
        pack_coverage.covered(pack.as_dict(), console)


def _print_nearest(explained: Explained, limit: int | None) -> None:
    """Print the near misses outside any fused op, grouped if equal."""
    console = output()
    count, rows = explained.nearest(everything=limit is None)
    console.print(f"[bold]{plural(count, 'near miss')}[/] of {plural(rows, 'kind')}, nearest first")
    print_rows(console, "places", ("matched", "first stopped at", "because it -> what would help"), rows, limit)


def _print_nodes(explained: Explained, name: str, limit: int | None) -> None:
    """Print what happened to one node, and every rule's furthest attempt that involved it."""
    console = output()
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


def _print(explained: Explained, limit: int | None) -> None:
    console, report = output(), explained.report
    console.print(
        f"[bold green]{plural(report.applied, 'fusion')}[/]: "
        f"{plural(report.before.total(), 'node')} -> {report.after.total()}; "
        f"{plural(report.near, 'attempt')} stopped"
    )
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    print_rows(console, "in the file", ("came from", "first", "kernel"), explained.fused_rows(), limit)
    print_rows(console, "fused", ("nodes", "first at", "grew no further because"), explained.fused(), limit)
    print_rows(console, "lost", ("nodes", "first at", "because"), explained.conflict_rows(), limit)
    print_rows(console, "not fused", ("from", "first stopped at", "because it"), explained.not_fused(), limit)
    print_rows(console, "optional", ("nodes", "first at", "request with"), explained.optional_rows(), limit)
    if explained.inside:
        console.print("why a fused op is not larger: onnxfuse explain of the original, or --at NODE here", style="dim")
