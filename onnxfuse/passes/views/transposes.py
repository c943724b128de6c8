"""Merge consecutive Transposes into one, or none."""

from onnxfuse import ops
from onnxfuse.graph import channels
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import forward, substitute
from onnxfuse.passes.shapes.constant_reshape_targets import is_reshape


@graph_pass
def merge_transposes(graph: Graph) -> bool:
    """Merges a Transpose of a Transpose into one, or none.

    The preceding one stays if it has other readers. A product that is the identity becomes an Identity; but an image
    transposed to channels last and back stays, as that is how the layout is expressed: the kernels around it absorb
    both. A view reads the merged input.
    """
    changed = False
    for node in [n for n in graph.nodes if _turns(n)]:
        before = graph.producer(node.inputs[0])
        if before is None or not _turns(before):
            continue
        second, first = order_of(graph, node), order_of(graph, before)
        if second is None or first is None or len(first) != len(second):
            continue
        order = [first[axis] for axis in second]
        same = order == sorted(order)
        if same and channels.is_nhwc_to_nchw(node) and not _is_viewed(graph, node):
            continue
        if same:
            forward(graph, node, before.inputs[0])
        else:
            substitute(graph, node, [before.inputs[0]], perm=order)
        changed = True
    return changed


def _is_viewed(graph: Graph, node: Node) -> bool:
    """Return whether all readers of a node reshape its output, as heads of an attention are."""
    readers = graph.readers(node.outputs[0])
    return bool(readers) and not graph.is_output(node.outputs[0]) and all(map(is_reshape, readers))


def _turns(node: Node) -> bool:
    return node.op == ops.Transpose and not node.domain and node.order >= 0


def order_of(graph: Graph, node: Node) -> list[int] | None:
    """Return the permutation of a Transpose, None if its rank is unknown."""
    written = node.written.get("perm")
    if isinstance(written, list | tuple):
        return [int(axis) for axis in written]
    shape = graph.type(node.inputs[0]).shape
    return None if shape is None else list(range(len(shape)))[::-1]
