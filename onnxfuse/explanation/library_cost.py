"""What ONNX Runtime's own kernels should take for a fused op's nodes: cuBLAS, cuDNN, and a launch per other node."""

from onnx import NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.cuda.costs import library
from onnxfuse.cuda.dispatch.estimates import launch_and_traffic
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.measure.profile.sizes import ExpandedNode, Sized
from onnxfuse.measure.profile.work import traffic_estimate
from onnxfuse.ops import Trait
from onnxfuse.shapes.types import UNKNOWN
from onnxfuse.shapes.value_facts import attribute


def library_cost(node: ExpandedNode, model: Sized, arch: Arch, tf32: bool) -> float | None:
    """Return the microseconds of a fused op's plain nodes, one after the other; None if a shape, or how fast a library
    is, is not known.

    A product, an attention or a convolution takes what the library took for ones of its arithmetic, every other node at
    least a launch that reads and writes each value once; views and host values take no time.
    """
    total = 0.0
    for plain in node.body:
        work = traffic_estimate(ExpandedNode(plain, None, ()), model)
        if work.note:
            return None
        if not work.bytes:
            continue
        function = _function(plain, model)
        if function is None:
            total += launch_and_traffic(work.bytes, arch)
            continue
        times = library.times(arch.name).of(function, _arithmetic(plain, model, tf32))
        if times is None:
            return None
        total += times.microseconds(work.bytes, work.flops)
    return total


def _function(node: NodeProto, model: Sized) -> str | None:
    """Return the library's function for a node, in the words of its times; None for the other operators."""
    entry = ops.operator(node.op_type, node.domain)
    if entry is None:
        return None
    if Trait.ATTENTION in entry.traits:
        return "attention"
    if entry != ops.Conv:
        return "product" if Trait.CONTRACTION in entry.traits else None
    groups, shape = attribute(node, "group", 1), model.extents(node.input[0])
    return "depthwise" if shape is not None and groups == shape[1] > 1 else "convolution"


def _arithmetic(node: NodeProto, model: Sized, tf32: bool) -> str:
    if model.types.get(node.input[0], UNKNOWN).dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return "float16"
    return "tf32" if tf32 else "float32"
