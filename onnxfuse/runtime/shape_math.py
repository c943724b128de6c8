"""Find the fused ops that ONNX Runtime would put on the CPU, although the session is on CUDA.

ONNX Runtime keeps arithmetic on shapes on the CPU: a node that reads a value computed from a `Shape` goes there if each
of its other inputs is such a value too, a graph input, or a small initializer (GetCpuPreferredNodes, release 1.31). A
registered op has no CPU kernel, and the session would fail; so these ops keep their bodies.
"""

import math

import onnx

from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.graph import bodies

SMALL = 100
"""Elements. ONNX Runtime's bound for an initializer that it would rather copy than keep a node on the GPU; a Constant
is one to it."""

SHAPE_READERS = ("Shape", "Size")
"""Ops whose CUDA kernels leave their output in host memory."""


def shape_math(graph: onnx.GraphProto, outer_small: frozenset[str] = frozenset()) -> set[str]:
    """Return the names of the fused ops with a node in `graph` or its subgraphs that works on shapes only.

    `outer_small` are the small constants of the graphs around this one.
    """
    small = outer_small | {t.name for t in graph.initializer if math.prod(t.dims) <= SMALL}
    small |= {v for node in graph.node if node.op_type == "Constant" and _count(node) <= SMALL for v in node.output}
    movable = small | {i.name for i in graph.input}
    on_host: set[str] = set()
    found: set[str] = set()
    for node in graph.node:
        inputs = {v for v in node.input if v}
        if node.op_type in SHAPE_READERS or (inputs & on_host and inputs <= on_host | movable):
            on_host.update(node.output)
            if node.domain == DOMAIN:
                found.add(node.op_type)
        for body in bodies(node):
            found |= shape_math(body, small)
    return found


def _count(constant: onnx.NodeProto) -> int:
    """Return the number of elements of a Constant."""
    for attribute in constant.attribute:
        match attribute.name:
            case "value":
                return math.prod(attribute.t.dims)
            case "sparse_value":
                return math.prod(attribute.sparse_tensor.dims)
            case "value_ints" | "value_floats" | "value_strings":
                return len(onnx.helper.get_attribute_value(attribute))
    return 1
