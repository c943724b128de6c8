"""Remove int32 casts of extents: compute them in int64, as ONNX does.

TensorFlow counts in int32: between a Shape and the Reshape that reads it exporters write a Cast to int32 and one back,
which hides that an extent comes from a value's shape. Extents beyond int32 are beyond what the model could compute
anyway.
"""

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, forward
from onnxfuse.ops import Trait
from onnxfuse.shapes.types import ValueType

NARROW, WIDE = onnx.TensorProto.INT32, onnx.TensorProto.INT64

DEPTH = 20
"""Maximum nodes between an extent and its Shape."""


@graph_pass
def int64_extents(graph: Graph) -> bool:
    """Removes casts of extents to int32 and back, as TensorFlow writes them.

    A Cast back to int64 then cancels.
    """
    changed = False
    for node in graph.nodes[:]:
        if node.order >= 0 and not node.domain:
            changed |= _back(graph, node) or _computed(graph, node)
    return changed


def _back(graph: Graph, node: Node) -> bool:
    source = _before_cast(graph, node.inputs[0]) if node.op == ops.Cast and node.written.get("to") == WIDE else None
    if source is None:
        return False
    forward(graph, node, source)
    return True


def _computed(graph: Graph, node: Node) -> bool:
    """Compute the node in int64, and cast the result."""
    if not node.has(Trait.INTEGRAL) or len(node.outputs) != 1:
        return False
    wide = {at: source for at, value in node.data.items() if (source := _before_cast(graph, value)) is not None}
    constant = {at: v for at, v in node.data.items() if graph.is_constant(v) and graph.type(v).dtype == NARROW}
    if not wide or {*wide, *constant} < {*node.data}:
        return False
    to, (output,) = Rewriter(graph, node), node.outputs
    sources = {at: _as_int64(to, value) for at, value in constant.items()} | wide
    result = to.copy(node, sources, hint=f"{output}.int64", type_=ValueType(WIDE, graph.type(output).shape))
    to.add(ops.Cast, result, to=NARROW, output=output)
    to.finish()
    return True


def _as_int64(to: Rewriter, value: str) -> str:
    numbers = to.graph.constant(value)
    assert numbers is not None
    return to.constant(f"{value}.int64", numbers.astype(np.int64))


def _before_cast(graph: Graph, value: str) -> str | None:
    """Return the extents that `value` is cast to int32 from; None if it is not such a Cast."""
    cast = graph.producer(value)
    if cast is None or cast.op != ops.Cast or cast.domain or cast.written.get("to") != NARROW:
        return None
    return cast.inputs[0] if _counts(graph, cast.inputs[0], DEPTH) else None


def _counts(graph: Graph, value: str, depth: int) -> bool:
    """Return whether `value` is computed from shapes and constants alone."""
    node = graph.producer(value)
    if node is None or node.domain or not depth:
        return False
    if node.op == ops.Shape:
        return True
    if not node.has(Trait.INTEGRAL) or graph.type(value).dtype not in (WIDE, 0):
        return False
    read = [v for v in node.data.values() if not graph.is_constant(v)]
    return bool(read) and all(_counts(graph, v, depth - 1) for v in read)
