"""Move elementwise nodes above a view of a convolution's output, where they join its kernel.

Vision transformers view a convolution's channels-last image [n, h, w, c] as tokens [n, h * w, c], and apply their
activation to the tokens; it is the same on the image. Once convolutions are channels last, a model's output with one
channel is such a view, too.
"""

from collections.abc import Sequence

from onnxfuse import ops
from onnxfuse.graph.constant_folding import is_reshape
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.shapes.types import ValueType


@graph_pass
def elementwise_before_view(graph: Graph) -> bool:
    """Moves elementwise nodes above a Reshape of a convolution's image."""
    changed = False
    for view in [n for n in graph.nodes if is_reshape(n)]:
        if view.order >= 0 and _of_a_convolution(graph, view):
            work = _work(graph, view)
            ends = graph.outputs_of([view, *work])
            if work and len(ends) == 1 and ends[0] != view.outputs[0] and not _dequantizes(work):
                _swap(graph, view, work, ends[0])
                changed = True
    return changed


def _dequantizes(work: Sequence[Node]) -> bool:
    """Return whether all that is done is to dequantize: of integers a view has fewer bytes, and they stay viewed."""
    return work[0].op == ops.DequantizeLinear and all(node.has(ops.Trait.CASTS) for node in work[1:])


def _of_a_convolution(graph: Graph, view: Node) -> bool:
    maker = _producer(graph, view)
    while maker is not None and _is_elementwise(maker) and all(graph.is_constant(v) for v in maker.inputs[1:]):  # bias
        maker = _producer(graph, maker)
    if maker is not None and maker.op == ops.Transpose:  # to channels last
        maker = _producer(graph, maker)
    return maker is not None and maker.has(ops.Trait.CONVOLUTION)


def _producer(graph: Graph, reader: Node) -> Node | None:
    """Return the operator that produces a node's first input; None if that has other readers."""
    value = reader.inputs[0]
    maker = graph.producer(value)
    alone = graph.readers(value) == [reader] and not graph.is_output(value)
    return maker if maker is not None and alone and not maker.domain else None


def _work(graph: Graph, view: Node) -> list[Node]:
    """Return the elementwise nodes, in order, that depend on the view and constants alone."""
    values, work = {view.outputs[0]}, dict[Node, None]()
    waiting = graph.readers(view.outputs[0])
    while waiting:
        node = min(waiting, key=lambda n: n.order)
        waiting.remove(node)
        others = [v for v in node.inputs if v and v not in values]
        if _is_elementwise(node) and all(_fits_both(graph, v, view) for v in others):
            work[node] = None
            values.add(node.outputs[0])
            waiting += [n for n in graph.readers(node.outputs[0]) if n not in waiting]
    return list(work)


def _is_elementwise(node: Node) -> bool:
    return node.is_elementwise and len(node.outputs) == 1 and not node.captures


def _fits_both(graph: Graph, value: str, view: Node) -> bool:
    """Return whether a constant broadcasts equally to the view and its source: a scalar, or one per channel."""
    if not graph.is_constant(value):
        return False
    shape = graph.type(value).shape or ()
    if len(shape) > min(1, graph.type(view.outputs[0]).rank or 0):  # [1] would add an axis to a scalar view
        return False
    lasts = [s[-1] if (s := graph.type(v).shape) else None for v in (view.inputs[0], view.outputs[0])]
    return graph.element_count(value) == 1 or lasts == [shape[0]] * 2


def _swap(graph: Graph, view: Node, work: Sequence[Node], end: str) -> None:
    image = graph.type(view.inputs[0]).shape
    names, to = {view.outputs[0]: view.inputs[0]}, Rewriter(graph, view, *work)
    for node in work:
        value, reads = node.outputs[0], [names.get(v, v) for v in node.inputs]
        type_ = ValueType(graph.type(value).dtype, image)
        names[value] = to.copy(node, reads, hint=f"{value}.image", type_=type_)
    to.copy(view, {0: names[end]}, output=end)
    to.finish()
