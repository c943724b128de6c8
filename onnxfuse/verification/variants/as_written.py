"""Variant of a quantized original without ONNX Runtime's optimizations: it computes the floating-point nodes it has.

ONNX Runtime replaces nodes between DequantizeLinear and QuantizeLinear by operators of integers, whose sums are exact.
A product that the file has in floating point, and that the fused model computes as written, then rounds much more than
the original seems to.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx

from onnxfuse import ops
from onnxfuse.model.nested import nodes_of
from onnxfuse.ops import Trait
from onnxfuse.verification.run import sessions
from onnxfuse.verification.variants.variant import Arrays


def as_written(
    model: onnx.ModelProto, providers: Sequence[str], cuda: Mapping[str, str]
) -> Callable[[Arrays], Arrays] | None:
    """Return the runner of the unoptimized model; None if it converts nothing to or from a quantized type.

    Raises ModelError if it cannot be opened.
    """
    if not any(_quantizes(node) for node in nodes_of(model.graph)):
        return None
    session = sessions.unoptimized(model, providers=providers, cuda=cuda)
    return lambda inputs: sessions.tensors(session, inputs)


def _quantizes(node: onnx.NodeProto) -> bool:
    entry = ops.operator(node.op_type, node.domain)
    return entry is not None and Trait.QUANTIZES in entry.traits
