"""Memory traffic of a launch."""

import math

from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.element_types import TYPES
from onnxfuse.symbolic.strides import Shape


def bytes_of(op: FusedOp, input_shapes: tuple[Shape, ...], output_shapes: tuple[Shape, ...]) -> int:
    """Return the bytes of all inputs and outputs: what a launch moves that reads and writes each once."""
    tensors = (*zip(input_shapes, op.inputs, strict=True), *zip(output_shapes, op.outputs, strict=True))
    return sum(math.prod(shape) * TYPES[dtype].size for shape, dtype in tensors)
