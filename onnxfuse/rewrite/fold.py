"""Constant folding: what depends on weights alone is computed once, at optimize time."""

import numpy as np
import onnx

from onnxfuse.model.evaluate import FOLDABLE, evaluate
from onnxfuse.model.graph import Graph, Node

SMALL = 65536
"""Bytes. A folded constant up to this size is kept whatever it came from."""


def fold_constants(graph: Graph) -> bool:
    """Compute what depends on constants alone, unless that would make the file bigger."""
    changed = False
    for node in list(graph.nodes):
        if node.op not in FOLDABLE or node.domain or len(node.outputs) != 1 or graph.is_output(node.outputs[0]):
            continue
        arrays = _known_inputs(graph, node)
        if arrays is None:
            continue
        (value,) = evaluate([node.proto], arrays, node.outputs, graph.opset)
        graph.replace([node], [])
        graph.add_constant(node.outputs[0], value)
        changed = True
    return changed


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
