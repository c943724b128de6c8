"""Growth step: a node that reads a kernel's output, or computes its input, becomes one more output."""

from onnxfuse import ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.rewriting.rewrite import find


def offer_endings(attempt: Attempt) -> None:
    """Offer nodes as additional outputs that read an existing output: the first of the rule's endings that matches.

    # Conv -> ReduceMean: the mean of images as they are written
    """
    graph, step = attempt.graph, attempt.how.step(Growth.EXTRA_OUTPUTS)
    assert step is not None
    for value in graph.outputs_of(attempt.nodes):
        for reader in graph.readers(value):
            for ending in (e for e in step.endings if reader.op in e.pattern.root.operators):
                found = find(graph, ending.pattern, ending.where, reader)
                if isinstance(found, Match) and found.values[ending.pattern.inputs[0]] == value:
                    attempt.extra = tuple(n for n in found.nodes.values() if n.op != ops.Constant)
                    return


def offer_caches(attempt: Attempt) -> None:
    """Offer Concats that compute inputs, are model outputs, and have no other readers.

    # Concat(past, new) -> attention: a cache is written as it is read
    """
    graph, inside = attempt.graph, set(attempt.nodes)
    if attempt.start.template in ("", attempt.how.template):
        makers = (
            n for v in graph.inputs_of(attempt.nodes) if (n := graph.producer(v)) is not None and _grows(graph, n)
        )
        attempt.extra = tuple(n for n in makers if inside.issuperset(graph.readers(n.outputs[0])))


def _grows(graph: Graph, node: Node) -> bool:
    """Return whether a node appends to a cache: a Concat along the sequence, into an output of the model."""
    if node.op != ops.Concat or node.domain or len(node.inputs) != 2 or not graph.is_output(node.outputs[0]):
        return False
    return len(graph.type(node.outputs[0]).shape or ()) == 4
