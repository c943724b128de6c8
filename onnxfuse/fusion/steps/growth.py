"""Region growth as a fold over steps: each step absorbs one kind of neighbour, or reports why not.

A template declares which steps its ops support, and a rule which it enables; their order is defined here.
"""

from collections.abc import Callable, Collection, Hashable, Mapping

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt, GraphContext, Region, Start
from onnxfuse.fusion.region.make_op import outline
from onnxfuse.fusion.steps.extra_outputs import offer_caches, offer_endings
from onnxfuse.fusion.steps.joined_input import absorb_concat_input
from onnxfuse.fusion.steps.k_major_weights import depends_on_itself, store_k_major
from onnxfuse.fusion.steps.left_operand import absorb_left_operand
from onnxfuse.fusion.steps.movement import copies_of, launches, saves, take_movement
from onnxfuse.fusion.steps.padded_rows import pad_rows
from onnxfuse.fusion.steps.pointwise import take_pointwise
from onnxfuse.fusion.steps.reductions import let_input_be_broadcast, let_reductions_join, run_over_input
from onnxfuse.fusion.steps.siblings import take_siblings
from onnxfuse.fusion.steps.transposed_io import take_transposed_inputs, take_transposed_outputs
from onnxfuse.fusion.steps.twins import offer_twins
from onnxfuse.graph.constant_folding import is_product
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.rules.language.fuse_table import NOWHERE_ELSE, THROUGH_LIBRARY, Fuse
from onnxfuse.rules.match.match import Refusal
from onnxfuse.support.plurals import agreeing, plural

Grow = Callable[[Attempt], Refusal | None] | Callable[[Attempt], None]
"""Modifies the region of an attempt; returns why nothing is fused there, None to continue."""
LEFT_ALONE = "was measured to be faster unfused"


def enough(attempt: Attempt) -> Refusal | None:
    """Final check of a region; refuse one that saves too little."""
    graph, how = attempt.graph, attempt.how
    attempt.nodes = attempt.given = sorted(attempt.region.nodes, key=lambda n: n.order)
    moving = how.wants(Growth.MOVEMENT)
    # A sibling anchor counts as growth: one kernel replaces two.
    own = 1 if how.wants(Growth.SIBLINGS) else len(attempt.seeds)
    grown = launches(graph, attempt.nodes) if moving else len(attempt.nodes) - (own if how.anchors else 0)
    between = how.between < how.least and stands_between(graph, attempt.nodes, attempt.around.ops, given=moving)
    least = how.between if between else how.least
    if moving and any(copies_of(graph, n) > 1 for n in attempt.nodes):
        least = 1  # the library's kernel is slow: one node is enough
    if attempt.nodes and grown >= least:
        reason = saves(graph, attempt.nodes, attempt.rule, how.template, early=between) if moving else None
        return None if reason is None else attempt.too_little(reason, of="movement")
    # A neighbour that another rule took says most.
    stop = min(attempt.stops(), key=lambda s: s.cause.kind != "fused", default=None)
    neighbour = "" if stop is None else f"; {stop.node}: {stop.reason}"
    launching = f"{plural(grown, 'node')} that {agreeing(grown, 'launches', 'launch')} a kernel"
    what = launching if moving else f"{plural(grown, 'pointwise node')} around it"
    wanted = "the rule wants all nodes around it to be fused"
    if how.least != NOWHERE_ELSE:
        wanted = f"the rule wants {max(how.least, 1)}"
    lonely = "" if any(n.is_elementwise for n in attempt.region.stops) else "alone"
    text = f"too little to fuse: {what}, {wanted}{neighbour}"
    return attempt.too_little(text, stop, "movement" if moving else lonely)


def refuse_known_failure(attempt: Attempt) -> Refusal | None:
    """Refuse sibling anchors if an equal region had no kernel, where the outcome depends on the region alone."""
    failed = attempt.around.failed
    reason = failed.get(known_outline(attempt)) if failed else None
    return None if reason is None else attempt.refusal(reason, "no kernel")


def known_outline(attempt: Attempt) -> Hashable | None:
    """Return the rule and the region of sibling anchors without names; None if the outcome depends on more than them.

    The nodes of the attempt are those of the graph: no step has exchanged a weight yet, or none is left to come.
    """
    graph, around = attempt.graph, attempt.around
    if not attempt.region.siblings or attempt.start.realization is not None or any(map(attempt.how.wants, NEIGHBOURS)):
        return None
    if not all(depends_on_itself(graph, n, around) for n in attempt.given if is_product(n)):
        return None
    found = outline(graph, attempt.given)
    return None if found is None else (attempt.rule, found)


def stands_between(graph: Graph, nodes: Collection[Node], ops: Mapping[str, FusedOp], *, given: bool) -> bool:
    """Return whether all nodes around `nodes` are fused: an onnxfuse kernel and its successor launch early there.

    A library kernel waits for the end of its predecessor, and its successor for its own end. `given`: the operands may
    be model inputs.
    """

    def ours(node: Node | None) -> bool:
        if node is None:
            return given
        return node.domain == DOMAIN and node.op in ops and ops[node.op].template != THROUGH_LIBRARY

    inputs, outputs = graph.inputs_of(nodes), graph.outputs_of(nodes)
    made = [_maker(graph, v) for v in inputs if not graph.is_constant(v)]
    readers = [r for v in outputs for r in _readers(graph, v)]
    if not made or not readers or any(graph.is_output(v) for v in outputs):
        return False
    return all(map(ours, (*made, *readers)))


def _maker(graph: Graph, value: str) -> Node | None:
    """Return the producer of a value, looking through views; None for model inputs."""
    node = graph.producer(value)
    while node is not None and cuda.is_free(node.op, node.domain):
        node = graph.producer(node.inputs[0])
    return node


def _readers(graph: Graph, value: str) -> list[Node]:
    """Return the readers of a value, looking through views."""
    return [
        n
        for r in graph.readers(value)
        for n in (_readers(graph, r.outputs[0]) if cuda.is_free(r.op, r.domain) else [r])
    ]


Steps = tuple[tuple[Collection[Growth], Grow], ...]
"""Steps in order, each with the rule keywords that enable it."""

GROWING: Steps = (
    ({Growth.WHOLE_INPUT}, run_over_input),
    ({Growth.REDUCTIONS}, let_reductions_join),
    ({Growth.BROADCAST_INPUT}, let_input_be_broadcast),
    ({Growth.SIBLINGS}, take_siblings),
    ({Growth.MOVEMENT}, take_movement),
    ({Growth.PROLOGUE, Growth.EPILOGUE}, take_pointwise),
    ({Growth.LEFT_OPERAND}, absorb_left_operand),
    ({Growth.JOINED_INPUT}, absorb_concat_input),
    ({Growth.TRANSPOSED_INPUT}, take_transposed_inputs),
    ({Growth.TRANSPOSED_OUTPUT}, take_transposed_outputs),
)
FINISHING: Steps = (
    ({Growth.K_MAJOR_WEIGHTS}, store_k_major),
    ({Growth.PADDED_ROWS}, pad_rows),
    ({Growth.EXTRA_OUTPUTS}, offer_endings),
    ({Growth.CACHES}, offer_caches),
    ({Growth.TWINS}, offer_twins),
)
"""Steps for a region that is worth a kernel."""

NEIGHBOURS = (Growth.EXTRA_OUTPUTS, Growth.CACHES, Growth.TWINS)
"""Steps whose outcome depends on nodes around the region."""


def grown(
    graph: Graph,
    rule: str,
    how: Fuse,
    start: Start,
    around: GraphContext,
    without: Growth | None,
    *,
    even: bool,
) -> tuple[Attempt, Refusal | None]:
    """Return the region grown from `start` by all of a rule's steps but one, and why nothing is fused there.

    `even`: sibling anchors must have equal columns.
    """
    left = dict.fromkeys(around.alone, LEFT_ALONE)
    region = Region(dict.fromkeys(start.seeds), graph.type(start.value), how.template, left=left)
    attempt = Attempt(graph, rule, how, start, around, region, even)
    wanted = {s.kind for s in how.steps} - {without}
    before, after = ([step for kinds, step in steps if wanted.intersection(kinds)] for steps in (GROWING, FINISHING))
    for step in (*before, enough, refuse_known_failure, *after):
        refusal = step(attempt)
        if refusal is not None:
            return attempt, refusal
    return attempt, None
