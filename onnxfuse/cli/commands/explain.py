"""`onnxfuse explain`: report what fuses in a model, what does not, and the node and reason where attempts stopped."""

from pathlib import Path

import click

from onnxfuse.api.explain import node_costs
from onnxfuse.api.explain.explaining import explain
from onnxfuse.api.request.options import Options, TuningOptions
from onnxfuse.api.run.cuda_graph_blockers import explain_graph
from onnxfuse.cli.base.console import output, print_json, working
from onnxfuse.cli.base.parameters import (
    ALSO_OPTION,
    JSON_OPTION,
    custom_ops_option,
    node_names,
    rule_names,
    rules_option,
)
from onnxfuse.cli.screens import cuda_graph
from onnxfuse.cli.screens import explain as screen
from onnxfuse.cli.screens import node_costs as cost_screen
from onnxfuse.support.errors import UsageError

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
            screen.show_nodes(explained, name, output(), limit)
    elif nearest:
        screen.show_nearest(explained, output(), limit)
    else:
        screen.show(explained, output(), limit)
    return 0
