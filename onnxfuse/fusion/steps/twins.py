"""Growth step: absorb nodes that apply the same operations to another value with a shared operand.

RoPE of queries and of keys reads the same cosines and sines.
"""

from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.steps.movement import MAX_READ, one_shape
from onnxfuse.fusion.steps.pointwise import MAX_NODES, MAX_OUTPUTS, convex
from onnxfuse.graph.constant_folding import value_key
from onnxfuse.graph.graph import Graph, Node

NEAREST, CROWD = 8, 512
"""Number of readers of a value to try, those nearest to the kernel: distant ones usually depend on it. A value with
CROWD readers is a model-wide scalar, and trying them all for each kernel would take that many times as long.
"""


def offer_twins(attempt: Attempt) -> None:
    """Offer groups of nodes that apply the same operations to other values, as many as one kernel has outputs for."""
    graph, own = attempt.graph, attempt.nodes
    together = dict.fromkeys(own)
    for value in graph.inputs_of(own):
        if graph.is_constant(value) or len(graph.readers(value)) > CROWD:
            continue
        readers = sorted(graph.readers(value), key=lambda n: abs(n.order - own[0].order))
        inside = [n for n in readers if n in attempt.region.nodes]
        for other in [n for n in readers if n not in attempt.region.nodes][:NEAREST]:
            twins = (_twin(graph, own, node, other) for node in inside)
            twin = next((t for t in twins if t is not None and _joins(attempt, together, t)), ())
            together.update(dict.fromkeys(twin))
    attempt.extra = tuple(n for n in together if n not in attempt.region.nodes)


def _joins(attempt: Attempt, found: dict[Node, None], twin: tuple[Node, ...]) -> bool:
    """Return whether one kernel can contain them all: none reads what the others write, and none must stay outside."""
    graph, host, left = attempt.graph, attempt.around.host, attempt.region.left
    together = {**found, **dict.fromkeys(twin)}
    read = set(graph.inputs_of(together))
    return (
        read.issuperset((*graph.inputs_of(found), *graph.inputs_of(twin)))
        and len(together) <= MAX_NODES
        and not any(n in left or any(o in host for o in n.outputs) for n in together)
        and len(graph.outputs_of(together)) <= MAX_OUTPUTS
        and len(read) <= MAX_READ
        and one_shape(graph, together) is None
        and convex(graph, together)
    )


def _twin(graph: Graph, own: list[Node], node: Node, other: Node) -> tuple[Node, ...] | None:
    """Return the nodes around `other` that correspond to `own` around `node`, None if any is missing."""
    pairs = {node: other}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        two = pairs[one]
        if two in own or not _are_alike(graph, one, two):
            return None
        makers = ((graph.producer(a), graph.producer(b)) for a, b in zip(one.inputs, two.inputs, strict=True))
        readers = (
            pair
            for a, b in zip(one.outputs, two.outputs, strict=True)
            for pair in zip((n for n in graph.readers(a) if n in own), graph.readers(b), strict=False)
        )
        for mine, theirs in (*makers, *readers):
            if mine is None or mine not in own:
                continue
            if mine not in pairs and theirs is not None:
                pairs[mine] = theirs
                waiting.append(mine)
            elif pairs.get(mine) is not theirs:
                return None
    return tuple(pairs.values()) if len(pairs) == len(own) else None


def _are_alike(graph: Graph, one: Node, two: Node) -> bool:
    """Return whether two nodes apply the same operation to values of the same types and to the same constants."""
    first, second = ((n.op, n.domain, len(n.inputs), len(n.outputs)) for n in (one, two))
    if first != second:
        return False
    constants = ((a, b) for a, b in zip(one.inputs, two.inputs, strict=True) if a and graph.is_constant(a))
    return (
        two.order >= 0
        and graph.attributes(one) == graph.attributes(two)
        and all(b and value_key(graph, a) == value_key(graph, b) for a, b in constants)
        and all(graph.type(a) == graph.type(b) for a, b in zip(one.outputs, two.outputs, strict=True))
    )
