"""Keep ONNX Runtime from quantizing weights that stay floating-point.

ONNX Runtime takes what lies between DequantizeLinear and QuantizeLinear for work of 8 bits. If the weight of a Conv,
ConvTranspose or Gemm there is of float32, it quantizes the weight itself, with one scale for the tensor (its optimizer
WeightBiasQuantization, since 1.20). A weight that was quantized with one scale for each channel, and dequantized here,
would lose most of its bits: where the body of a fused op runs, and in nodes that are left.
"""

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops import Trait


@graph_pass
def keep_float_weights(graph: Graph) -> bool:
    """Separates QuantizeLinear from products of dequantized values by float32 weights, which ONNX Runtime quantizes."""
    return rewrite_each(graph, {ops.QuantizeLinear: _separated})


def _separated(node: Node, to: Rewriter) -> bool:
    value, maker = node.inputs[0], to.graph.producer(node.inputs[0])
    separated = maker is not None and maker.op == ops.Sum and len(maker.inputs) == 1
    if separated or not _is_product_by_float_weight(to.graph, value):
        return False
    # The sum of one value is the value: no optimizer of ONNX Runtime removes it.
    to.copy(node, {0: to.add(ops.Sum, value, hint=f"{value}.float", type_=to.graph.type(value))})
    return True


def _is_product_by_float_weight(graph: Graph, value: str) -> bool:
    product = graph.producer(_source(graph, value, activation=True))
    if product is not None and product.op == ops.Add and not product.domain:  # ONNX Runtime makes it the product's bias
        summed = [v for v in product.inputs if not graph.is_constant(v)]
        product = graph.producer(_source(graph, summed[0])) if len(summed) == 1 else None
    if product is None or not product.has(Trait.CONTRACTION) or len(product.inputs) < 2:
        return False
    x, weight = (_source(graph, v) for v in product.inputs[:2])
    if graph.type(weight).dtype != TensorProto.FLOAT or not graph.is_constant(weight):
        return False
    source = graph.producer(x)
    return source is not None and source.op == ops.DequantizeLinear and not source.domain


def _source(graph: Graph, value: str, *, activation: bool = False) -> str:
    """Return the value before views and Transposes, past which ONNX Runtime moves QuantizeLinear and DequantizeLinear,
    and before an `activation`, as Relu and Clip, which it takes for a part of QuantizeLinear."""
    node = graph.producer(value)
    while node is not None and not node.domain:
        activates = activation and node.is_elementwise and not node.has(Trait.QUANTIZES)
        activates = activates and all(map(graph.is_constant, filter(None, node.inputs[1:])))
        if not (node.has(Trait.VIEW) or node.op == ops.Transpose or activates):
            break
        value = node.inputs[0]
        node = graph.producer(value)
    return value
