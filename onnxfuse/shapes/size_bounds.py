"""Count the elements of a result before computing it: a file of 200 bytes can request terabytes.

A value's declared shape is not trusted: sizes are computed from the operator's inputs.
"""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from onnx import NodeProto, defs

from onnxfuse import ops
from onnxfuse.ops.flops import NodeShapes
from onnxfuse.ops.shapes.extents import UnknownError, is_symbolic
from onnxfuse.shapes.output_shapes import INCONSISTENT, KnownNode
from onnxfuse.shapes.value_facts import LIMIT, Numbers, ValueFacts, attribute

MOST_MULTIPLIED = 1 << 26
"""Maximum multiplications of an Einsum: half a second of NumPy's time."""

MOST_IN_A_PRODUCT = 1 << 33
"""Maximum multiplications of a matrix product by BLAS: the same time."""


def result_elements(node: NodeProto, inputs: Mapping[str, np.ndarray]) -> int | None:
    """Return the number of elements that `node` computes from `inputs`; None if unsupported, or slow.

    For values outside the operator's domain any number: computing it raises.
    """
    entry = ops.operator(node.op_type, node.domain)
    if entry == ops.Constant:
        return 1
    if entry is None or entry.shape is None:
        return None
    arrays = {v: inputs[v] for v in node.input if v}
    numbers: dict[str, Numbers] = {
        v: a.astype(object) for v, a in arrays.items() if a.size <= LIMIT and a.dtype.kind in "iuf"
    }
    facts = ValueFacts(defs.onnx_opset_version(), {v: a.shape for v, a in arrays.items()}, numbers, arrays)
    try:
        shapes = entry.shape(KnownNode(facts, node, entry))
    except UnknownError:
        return None
    except INCONSISTENT:
        return 0
    if any(is_symbolic(*shape) for shape in shapes):
        return None
    if ops.Trait.CONTRACTION in entry.traits and entry.flops is not None:
        operands = [arrays[v].shape if v else None for v in node.input]
        present = list(map(bool, node.input))
        steps = entry.flops(NodeShapes(shapes[0], operands, present, partial(attribute, node)))
        if steps is None or steps > 2 * (MOST_MULTIPLIED if entry == ops.Einsum else MOST_IN_A_PRODUCT):
            return None
    return sum(math.prod(shape) for shape in shapes)
