"""`onnxfuse explain`: report what fuses in a model, what does not, and the node and reason where attempts stopped."""

from typing import Unpack

from onnxfuse.api.explain import node_costs
from onnxfuse.api.explain.explaining import explain
from onnxfuse.api.request.options import Options
from onnxfuse.api.run.cuda_graph_blockers import explain_graph
from onnxfuse.cli.base.console import output, print_json, working
from onnxfuse.cli.screens import cuda_graph
from onnxfuse.cli.screens import explain as screen
from onnxfuse.cli.screens import node_costs as cost_screen
from onnxfuse.options.commands import ExplainCommand
from onnxfuse.options.groups import Optimizing
from onnxfuse.options.schema import part
from onnxfuse.support.errors import UsageError

SCREEN = 12
"""Rows of each table without --all, so that both fit one screen."""


def command(**given: Unpack[ExplainCommand]) -> int:
    """Run the command and print its result."""
    source, at, limit = given["source"], given["at"], None if given["everything"] else SCREEN
    if given["near"] and at:
        raise UsageError("--near and --at exclude each other: the whole model, or one node")
    options = Options.of(part(Optimizing, given))
    if given["graph"]:
        if given["near"] or at:
            raise UsageError("--graph looks at the whole model as it will run: it goes with neither --near nor --at")
        with working("load") as progress:
            captured = explain_graph(source, options=options, progress=lambda step, done, total: progress(step))
        if given["as_json"]:
            print_json("explain", {"ok": True, "graph": captured.as_dict()})
        else:
            cuda_graph.show(captured, output(), limit)
        return 0
    if (cost := given["cost"]) is not None:
        if given["near"] or at:
            raise UsageError("--cost looks at the candidates for one node: it goes with neither --near nor --at")
        with working("load") as progress:
            costs = node_costs.node_costs(source, cost, options, progress=progress)
        if given["as_json"]:
            print_json("explain", {"ok": True, "costs": [one.as_dict() for one in costs]})
        else:
            cost_screen.show(cost, costs, output(), limit)
        return 0
    with working("load") as progress:
        explained = explain(source, options, at, progress)
    if given["as_json"]:
        print_json("explain", explained.as_dict())
    elif at:
        for name in at:
            screen.show_nodes(explained, name, output(), limit)
    elif given["near"]:
        screen.show_nearest(explained, output(), limit)
    else:
        screen.show(explained, output(), limit)
    return 0
