"""Report why ONNX Runtime computes what is left of operators whose entries say it."""

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import BY_NO_RULE, Near, OptimizeReport, names


def report_left_integers(graph: Graph, report: OptimizeReport) -> None:
    """Add the reason that an operator's entry gives for each node of which no rule gives one."""
    explained = {near.root for near in report.near}
    for node in graph.nodes:
        (root,) = names([node])
        if node.entry is not None and node.entry.left and root not in explained:
            report.stopped.append(
                Near(BY_NO_RULE, root, Refusal(node.name, Cause("layout", seen=node.entry.left), 1, 1))
            )
