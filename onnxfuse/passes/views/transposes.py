"""Merge consecutive Transposes into one, or none, and move a Cast above a Transpose."""

from onnxfuse.graph import channels
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter, forward, substitute
from onnxfuse.passes.shapes.constant_reshape_targets import is_reshape


def merge_transposes(graph: Graph) -> bool:
    """Let a Transpose read the input of a preceding Transpose; return whether any did.

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


def cast_before_transpose(graph: Graph) -> bool:
    """Move a Cast that is the only reader of a Transpose above it; return whether any moved.

    The result of a product is then cast where it is computed, and the Transpose is the last node before its reader: the
    heads of an attention, whose rotation some models compute in float32. Images between layouts stay as they are.
    """
    changed = False
    for node in [n for n in graph.nodes if n.op == "Cast" and not n.domain]:
        before = graph.producer(node.inputs[0])
        if before is None or not _turns(before) or graph.only_reader(node.inputs[0]) is not node:
            continue
        if channels.is_nhwc_to_nchw(before) or channels.is_nchw_to_nhwc(before):
            continue
        to = Rewriter(graph, before, node)
        cast = to.copy(node, before.inputs, hint=node.inputs[0])
        to.copy(before, [cast], output=node.outputs[0])
        to.finish()
        changed = True
    return changed


def _turns(node: Node) -> bool:
    return node.op == "Transpose" and not node.domain and node.order >= 0


def order_of(graph: Graph, node: Node) -> list[int] | None:
    """Return the permutation of a Transpose, None if its rank is unknown."""
    written = node.written.get("perm")
    if isinstance(written, list | tuple):
        return [int(axis) for axis in written]
    shape = graph.type(node.inputs[0]).shape
    return None if shape is None else list(range(len(shape)))[::-1]
