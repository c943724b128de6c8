"""Report why ONNX Runtime computes what is left of operators whose entries say it."""

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import Near, OptimizeReport, names

NO_RULE = "none"
"""In place of a rule's name: there is none for the operator, or none got anywhere."""


def report_left_integers(graph: Graph, report: OptimizeReport) -> None:
    """Add the reason that an operator's entry gives for each node of which no rule gives one."""
    explained = {near.root for near in report.near}
    for node in graph.nodes:
        (root,) = names([node])
        if node.entry is not None and node.entry.left and root not in explained:
            report.stopped.append(Near(NO_RULE, root, Refusal(node.name, Cause("layout", seen=node.entry.left), 1, 1)))
