"""Constant folding: what depends on weights alone is computed once, at optimize time.

And extents are read where they first appear: exporters ask for the shape of nearly every value on the way, which would
keep those values from being computed inside a kernel.
"""

import numpy as np
import onnx

from onnxfuse.model.evaluate import FOLDABLE, evaluate
from onnxfuse.model.graph import Graph, Node
from onnxfuse.rewrite.layout_ops import FIRST, perm_of

SMALL = 65536
"""Bytes. A folded constant up to this size is kept whatever it came from."""


def fold_constants(graph: Graph) -> bool:
    """Compute what depends on constants alone, unless that would make the file bigger."""
    changed = False
    for node in list(graph.nodes):
        if node.op not in FOLDABLE or node.domain or len(node.outputs) != 1 or graph.is_output(node.outputs[0]):
            continue
        if _packs(graph, node):
            continue
        arrays = _known_inputs(graph, node)
        if arrays is None:
            continue
        (value,) = evaluate([node.proto], arrays, node.outputs, graph.opset)
        graph.replace([node], [])
        graph.add_constant(node.outputs[0], value)
        changed = True
    return changed


def share_extents(graph: Graph) -> bool:
    """Let `Shape(x)[i]` read the first value that has this extent, or be a constant where the extent is known."""
    homes: dict[str, tuple[str, int]] = {}
    # Of the values on the way only those that are asked already: fusing changes which value is the first of a size.
    asked = [o for n in graph.nodes for o in n.outputs if any(r.op == "Shape" for r in graph.readers(o))]
    for value in (*sorted(graph.inputs), *asked):
        for axis, extent in enumerate(graph.type(value).shape or ()):
            if isinstance(extent, str) and "*" not in extent:
                homes.setdefault(extent, (value, axis))
    changed = False
    for node in list(graph.nodes):
        wanted = _extents(graph, node) if node.order >= 0 and not graph.is_output(node.outputs[0]) else None
        if wanted is None:
            continue
        source, indices, whole = wanted
        shape = graph.type(source).shape or ()
        extents = [shape[i] for i in indices]
        if all(isinstance(e, int) for e in extents):
            graph.replace([node], [])
            numbers = np.asarray(extents, np.int64)
            graph.add_constant(node.outputs[0], numbers if whole else numbers.reshape(()))
            changed = True
        elif node.op == "Gather" and len(extents) == 1 and homes.get(str(extents[0]), (source, 0))[0] != source:
            changed |= _read_at_home(graph, node, *homes[str(extents[0])])
    return changed


def _extents(graph: Graph, node: Node) -> tuple[str, list[int], bool] | None:
    """Return the value whose extents a Gather or Slice of a Shape gives, their indices, and whether as a vector."""
    shape = graph.producer(node.inputs[0]) if node.op in ("Gather", "Slice") and not node.domain else None
    if (
        shape is None
        or shape.op != "Shape"
        or shape.domain
        or any(graph.attributes(shape).get(k) for k in ("start", "end"))
    ):
        return None
    source = shape.inputs[0]
    rank = graph.type(source).rank
    arrays = [graph.constant(v) for v in node.inputs[1:] if v]
    if rank is None or not arrays or any(a is None for a in arrays):
        return None
    numbers = [[int(x) for x in a.reshape(-1)] for a in arrays if a is not None]
    if node.op == "Gather":
        inside = graph.attributes(node).get("axis", 0) == 0 and all(-rank <= i < rank for i in numbers[0])
        return (
            (source, [i % rank for i in numbers[0]], arrays[0] is not None and arrays[0].ndim > 0) if inside else None
        )
    if any(len(n) != 1 for n in numbers) or len(numbers) < 2:
        return None
    step = numbers[3][0] if len(numbers) > 3 else 1
    return source, list(range(rank))[numbers[0][0] : numbers[1][0] : step], True


def _read_at_home(graph: Graph, node: Node, home: str, axis: int) -> bool:
    producer = graph.producer(home)
    if producer is not None and producer.order >= node.order:
        return False
    index = graph.constant(node.inputs[1])
    assert index is not None
    shape, number = graph.fresh(f"{home}.shape"), graph.fresh(f"{home}.axis")
    graph.add_constant(number, np.full(index.shape, axis, np.int64))
    gather = onnx.helper.make_node("Gather", [shape, number], list(node.outputs), node.proto.name, axis=0)
    graph.replace([node], [Node(onnx.helper.make_node("Shape", [home], [shape])), Node(gather)])
    return True


def _packs(graph: Graph, node: Node) -> bool:
    """Return whether `node` reads the weight of a convolution between channels-last values, packed for its kernel."""
    if node.op != "Transpose":
        return False
    readers = graph.readers(node.outputs[0])
    before = [graph.producer(r.inputs[0]) for r in readers if r.op == "Conv" and r.inputs[1] == node.outputs[0]]
    return len(before) == len(readers) and all(b is not None and perm_of(b) == FIRST for b in before)


def _known_inputs(graph: Graph, node: Node) -> dict[str, np.ndarray] | None:
    """Return the inputs of `node` where all are constants and folding does not make the file bigger, else None."""
    if node.op in ("Shape", "Size"):
        shape = graph.type(node.inputs[0]).shape
        if shape is None or not all(isinstance(d, int) for d in shape):
            return None
        return {node.inputs[0]: np.broadcast_to(np.float32(0), [int(d or 0) for d in shape])}
    if not all(graph.is_constant(v) for v in node.inputs if v):
        return None
    output = graph.type(node.outputs[0])
    if output.shape is None or not all(isinstance(d, int) for d in output.shape) or not output.dtype:
        return None
    size = (
        int(np.prod([int(d or 0) for d in output.shape], dtype=np.int64))
        * onnx.helper.tensor_dtype_to_np_dtype(output.dtype).itemsize
    )
    if size > SMALL and not _frees(graph, node, size):
        return None
    arrays = {v: graph.constant(v) for v in node.inputs if v}
    known = {v: a for v, a in arrays.items() if a is not None}
    return known if len(known) == len(arrays) else None


def _frees(graph: Graph, node: Node, size: int) -> bool:
    """Return whether folding `node` lets go of a weight as big as its result."""
    for value in node.inputs:
        array = graph.constant(value)
        if (
            array is not None
            and array.nbytes >= size
            and len(graph.readers(value)) == 1
            and value in graph.initializers
        ):
            return True
    return False
