"""`onnxfuse explain`: report what fuses in a model, what does not, and the node and reason where attempts stopped."""

from typing import Unpack

from onnxfuse.api.request.options import Options
from onnxfuse.api.run.cuda_graph_blockers import explain_graph
from onnxfuse.cli.base.console import print_result, working
from onnxfuse.explanation.explaining import explain
from onnxfuse.explanation.node_costs import node_costs
from onnxfuse.options.commands import ExplainCommand
from onnxfuse.options.groups import Optimizing
from onnxfuse.options.schema import part
from onnxfuse.support.errors import UsageError
from onnxfuse.support.progress import naming
from onnxfuse.support.screen import LIMIT


def command(**given: Unpack[ExplainCommand]) -> int:
    """Run the command and print its result."""
    source, at, limit = given["source"], given["at"], None if given["everything"] else LIMIT
    if given["near"] and at:
        raise UsageError("--near and --at cannot be combined: one is for the whole model, the other for one node")
    options = Options.of(part(Optimizing, given))
    if given["graph"]:
        if given["near"] or at:
            raise UsageError("--graph is for the whole model as it will run: it cannot be combined with --near or --at")
        with working("load") as progress:
            captured = explain_graph(source, options=options, progress=naming(progress))
        facts, screen = {"ok": True, "graph": captured.as_dict()}, captured.screen(limit)
    elif (cost := given["cost"]) is not None:
        if given["near"] or at:
            raise UsageError("--cost is for the candidates of one node: it cannot be combined with --near or --at")
        with working("load") as progress:
            costs = node_costs(source, cost, options, progress=progress)
        facts, screen = costs.as_dict(), costs.screen(limit)
    else:
        with working("load") as progress:
            explained = explain(source, options, at, progress)
        facts = explained.as_dict()
        screen = explained.nearest_screen(limit) if given["near"] else explained.screen(limit)
    print_result("explain", facts, screen, as_json=given["as_json"])
    return 0
