"""Find the fused ops that ONNX Runtime would put on the CPU, although the session is on CUDA.

ONNX Runtime keeps arithmetic on shapes on the CPU: a node that reads a value computed from a `Shape` goes there if each
of its other inputs is such a value too, a graph input, or a small initializer (GetCpuPreferredNodes, release 1.31). A
registered op has no CPU kernel, and the session would fail; so these ops keep their bodies.
"""

import math
from collections.abc import Sequence

import onnx

from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.graph import bodies
from onnxfuse.model.schema import is_random

SMALL = 100
"""Elements. ONNX Runtime's bound for an initializer that it would rather copy than keep a node on the GPU."""

SHAPE_READERS = ("Shape", "Size")
"""Ops whose CUDA kernels leave their output in host memory."""


def shape_math(
    graph: onnx.GraphProto, outer: frozenset[str] = frozenset(), outer_small: frozenset[str] = frozenset()
) -> set[str]:
    """Return the names of the fused ops with a node in `graph` or its subgraphs that works on shapes only.

    `outer` are the constants of the graphs around this one, `outer_small` the small ones of them.
    """
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer}
    constants = outer | sizes.keys()
    sizes |= {v.name: size for v in graph.value_info if (size := _size(v.type)) is not None}
    small = outer_small | {t.name for t in graph.initializer if sizes[t.name] <= SMALL}
    given = {v.name for v in graph.input}
    on_host: set[str] = set()
    found: set[str] = set()
    for node in graph.node:
        inputs = {v for v in node.input if v}
        if node.op_type == "Constant" and not node.domain:
            constants |= {node.output[0]}
            small |= {node.output[0]} if _held(node) <= SMALL else set()
        elif inputs and inputs <= constants and not is_random(node) and not any(True for _ in bodies(node)):
            # ONNX Runtime computes it once, before it places nodes. One whose size nobody knows may be small.
            constants |= {*node.output}
            small |= {v for v in node.output if sizes.get(v, 0) <= SMALL}
        elif node.op_type in SHAPE_READERS or (inputs & on_host and inputs <= on_host | small | given):
            on_host.update(node.output)
            if node.domain == DOMAIN:
                found.add(node.op_type)
        for body in bodies(node):
            found |= shape_math(body, constants, small)
    return found


def _size(kind: onnx.TypeProto) -> int | None:
    """Return how many elements a value of this type has, None where that is not known."""
    dims = kind.tensor_type.shape.dim
    known = kind.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return math.prod(d.dim_value for d in dims) if known else None


def _held(node: onnx.NodeProto) -> int:
    """Return how many elements a Constant holds."""
    value = onnx.helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return math.prod(value.dims)
    return len(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else 1
