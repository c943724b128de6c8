"""Detect random operators in a model: outputs differ between runs, so results cannot be compared."""

import numpy as np
import onnx

from onnxfuse.graph.evaluate import REFUSALS, evaluate, is_foldable
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.normalize import normalize
from onnxfuse.model.nested import bodies
from onnxfuse.model.schema import is_random, opset_of
from onnxfuse.shapes.inference import shell
from onnxfuse.shapes.size_bounds import result_elements

FEW = 64
"""Maximum elements of a constant to evaluate when testing whether it is false, or 0."""

DEEP = 32
"""Maximum depth of nodes to evaluate for that."""


def random_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the first node that draws random numbers, including bodies and local functions; None if there is none."""
    light = shell(model)
    normalize(light)
    return _random(Graph(light.graph, light.graph, opset_of(light)), {})


_Known = dict[tuple[Graph, str], np.ndarray | None]
"""Constant values found in the graphs."""


def _random(graph: Graph, known: _Known) -> onnx.NodeProto | None:
    for node in graph.nodes:
        if is_random(node.proto, lambda value: _constant(graph, value, known)):
            return node.proto
        for body in bodies(node.proto):
            found = _random(Graph(body, body, graph.opset, graph), known)
            if found is not None:
                return found
    return None


def _constant(graph: Graph, value: str, known: _Known, deep: int = DEEP) -> np.ndarray | None:
    """Return a value that follows from constants alone; None for others, or if it is expensive to compute."""
    home: Graph | None = graph
    while home is not None and not any(value in names for names in (home.producers, home.initializers, home.inputs)):
        home = home.parent
    if home is None:
        return None
    key = home, value
    if key not in known:
        found = home.constant(value)
        known[key] = _computed(home, value, known, deep) if found is None and deep else found
    return known[key]


def _computed(graph: Graph, value: str, known: _Known, deep: int) -> np.ndarray | None:
    node = graph.producer(value)
    if node is None or not is_foldable(node.op, node.domain) or len(node.outputs) != 1:
        return None
    read = {v: _constant(graph, v, known, deep - 1) for v in node.inputs if v}
    arrays = {v: a for v, a in read.items() if a is not None and a.size <= FEW}
    if len(arrays) < len(read) or (result_elements(node.proto, arrays) or FEW + 1) > FEW:
        return None
    try:
        return evaluate([node.proto], arrays, [value], graph.opset)[0]
    except REFUSALS:  # ONNX Runtime supports more than onnx's reference does
        return None
