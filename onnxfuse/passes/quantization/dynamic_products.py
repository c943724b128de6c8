"""Write ONNX Runtime's own operators of dynamic quantization as their standard parts.

Its optimizer saves DynamicQuantizeLinear, MatMulInteger, Cast, Mul and Add as DynamicQuantizeMatMul, or, where several
products read the same quantized activations, as MatMulIntegerToFloat. The CUDA provider has kernels for neither.
"""

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewrite, Rewriter, rewrite
from onnxfuse.model import schema
from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.shapes.types import UNKNOWN, ValueType


@graph_pass
def dynamic_products(graph: Graph) -> bool:
    """Writes DynamicQuantizeMatMul and MatMulIntegerToFloat as MatMulInteger and the nodes around it."""
    parts: dict[str, Rewrite] = {ops.DynamicQuantizeMatMul: _quantizing, ops.MatMulIntegerToFloat: _scaled}
    changed = False
    for node in [n for n in graph.nodes if n.domain == MICROSOFT and n.op in parts]:
        changed |= rewrite(graph, node, parts[node.op])
    return changed


def _quantizing(node: Node, to: Rewriter) -> bool:
    """DynamicQuantizeMatMul(x, w, sw, zw, bias): products of the same activations share their quantization."""
    x, w, scale, zero, bias = _inputs(node, 5)
    quantizes = schema.takes(ops.DynamicQuantizeLinear, to.graph.opset, 0, to.graph.type(x).dtype)
    if not quantizes or not _has_columns(to.graph, w, scale):
        return False
    quantized, step, offset = _quantization(to, node, x)
    _product(to, node, (quantized, w, offset, zero), (step, scale), bias)
    return True


def _scaled(node: Node, to: Rewriter) -> bool:
    """MatMulIntegerToFloat(x, w, sx, sw, zx, zw, bias); ONNX Runtime takes one scale of x."""
    x, w, step, scale, offset, zero, bias = _inputs(node, 7)
    if to.graph.type(step).static_shape not in ((), (1,)) or not _has_columns(to.graph, w, scale):
        return False
    _product(to, node, (x, w, offset, zero), (step, scale), bias)
    return True


def _inputs(node: Node, count: int) -> list[str]:
    return [*node.inputs, *[""] * (count - len(node.inputs))]


def _has_columns(graph: Graph, weight: str, scale: str) -> bool:
    """Return whether the scale of a weight broadcasts to the product without adding axes to it."""
    weights, scales = graph.type(weight).rank, graph.type(scale).rank
    return weights is not None and scales is not None and weights >= max(2, scales)


def _quantization(to: Rewriter, node: Node, x: str) -> tuple[str, str, str]:
    """Return x quantized, its scale and its zero point: those that are computed before the node, or new ones."""
    for reader in to.graph.readers(x):
        if reader.op == ops.DynamicQuantizeLinear and not reader.domain and reader.order < node.order:
            quantized, step, offset = reader.outputs
            return quantized, step, offset
    number, shape = (ValueType(t, ()) for t in (TensorProto.FLOAT, TensorProto.UINT8)), to.graph.type(x).shape
    types = (ValueType(TensorProto.UINT8, shape), *number)
    quantized, step, offset = (
        to.value(f"{x}.{part}", t) for part, t in zip(("quantized", "scale", "zero"), types, strict=True)
    )
    to.add(ops.DynamicQuantizeLinear, x, output=(quantized, step, offset))
    return quantized, step, offset


def _product(to: Rewriter, node: Node, factors: tuple[str, str, str, str], scales: tuple[str, str], bias: str) -> None:
    """Write (x - zx) (w - zw) (sx sw) + bias in float32, also if the result is narrower: int32 sums exceed float16."""
    result = node.outputs[0]
    type_ = to.graph.type(result)
    narrow = type_.dtype not in (TensorProto.FLOAT, UNKNOWN.dtype)
    wide = ValueType(TensorProto.FLOAT, type_.shape)

    def widened(value: str) -> str:
        return to.add(ops.Cast, value, to=TensorProto.FLOAT, hint=f"{value}.wide") if narrow else value

    sums_type = ValueType(TensorProto.INT32, type_.shape)
    sums = to.add(ops.MatMulInteger, *factors, hint=f"{result}.sums", type_=sums_type, name=node.name)
    number = to.add(ops.Cast, sums, to=TensorProto.FLOAT, hint=f"{result}.number", type_=wide)
    scale = to.add(ops.Mul, *map(widened, scales), hint=f"{result}.scale")
    number = to.add(ops.Mul, number, scale, hint=f"{result}.scaled", type_=wide)
    if bias:
        number = to.add(ops.Add, number, widened(bias), hint=f"{result}.biased", type_=wide)
    if narrow:
        number = to.add(ops.Cast, number, to=type_.dtype, hint=f"{result}.narrow", type_=type_)
    to.replace(result, number)
