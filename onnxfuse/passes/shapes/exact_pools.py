"""Rewrite a pool whose extents ONNX's inference counts otherwise than ONNX Runtime, so that both count the same.

With `ceil_mode` the inference counts a last window that begins behind the image (below operator set 22), and SAME
padding of dilated windows, or of windows smaller than their stride, comes out otherwise. ONNX Runtime itself believes
that inference when it opens a model: it refuses a Concat or a product behind such a pool whose extents fit, once all
types are known.
"""

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops.shapes.windows import Window, pool_windows


@graph_pass
def exact_pools(graph: Graph) -> bool:
    """Gives pools explicit pads where ONNX's inference counts other windows than ONNX Runtime computes."""
    return rewrite_each(graph, dict.fromkeys(ops.named(ops.Trait.POOL), _write))


def _write(node: Node, to: Rewriter) -> bool:
    pads = _pads(to.graph, node)
    if pads is None:
        return False
    to.copy(node, auto_pad=None, ceil_mode=None, pads=pads)
    return True


def _pads(graph: Graph, node: Node) -> list[int] | None:
    """Return pads with which rounding down gives the same windows; None if inference is right, or there are none."""
    attributes, shape = graph.attributes(node), graph.type(node.inputs[0]).shape
    windows = pool_windows(attributes)
    if shape is None or len(shape) != len(windows) + 2 or not any(w.told_otherwise(graph.opset) for w in windows):
        return None
    # Padding that is counted in an average is not counted beyond the pads, where ceil_mode lets a window reach.
    if node.op == ops.AveragePool and attributes.get("count_include_pad"):
        return None
    both = [
        _around(window, extent) if isinstance(extent, int) else None
        for window, extent in zip(windows, shape[2:], strict=True)
    ]
    pairs = [pads for pads in both if pads is not None]
    return [before for before, _ in pairs] + [after for _, after in pairs] if len(pairs) == len(both) else None


def _around(window: Window, extent: int) -> tuple[int, int] | None:
    """Return the pads before and after an image with which rounding down gives a window's number of outputs."""
    (before, _), count = window.padding(extent), window.places(extent)
    after = max(0, (count - 1) * window.stride + window.span - extent - before)
    exact = (extent + before + after - window.span) // window.stride + 1 == count
    return (before, after) if exact and max(before, after) < window.size else None  # ONNX Runtime takes no larger pads
