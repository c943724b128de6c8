"""Give each reader of a dequantized value a DequantizeLinear of its own.

Its kernel then reads the quantized value, a quarter of the bytes; of one that all share, somebody would write the
floating-point numbers. Products of float8 are computed in 16 bits or more: the kernel that rounds their factor writes
these numbers, once, and products that share it stay side by side. What no kernel of ours dequantizes as it reads, and
what does not change from run to run, is dequantized once for all.
"""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.float8 import widens_float8
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops import Trait


@graph_pass
def dequantize_for_each_reader(graph: Graph) -> bool:
    """Gives each reader of a dequantized value a DequantizeLinear of its own."""
    changed = False
    for node in [n for n in graph.nodes if _is_read_narrow(graph, n)]:
        value = node.outputs[0]
        readers = graph.readers(value)
        if _is_factor_of_floats(graph, node, readers):
            continue
        for reader in readers[not graph.is_output(value) :]:
            if value in reader.captures:
                continue
            to = Rewriter(graph, reader)
            own = to.copy(node, hint=value, name="", type_=graph.type(value))
            to.copy(reader, [own if v == value else v for v in reader.inputs])
            to.finish()
            changed = True
    return changed


def _is_read_narrow(graph: Graph, node: Node) -> bool:
    """Return whether kernels read the operand of a node as it is stored: quantized activations, weights of float8."""
    if node.domain or not node.is_elementwise:
        return False
    if graph.is_constant(node.inputs[0]):
        return node.op == ops.Cast and widens_float8(graph, node)
    return node.op == ops.DequantizeLinear


def _is_factor_of_floats(graph: Graph, node: Node, readers: Sequence[Node]) -> bool:
    """Return whether a node dequantizes float8 numbers for products, all of which are computed in wider types."""
    eight = node.op == ops.DequantizeLinear and graph.type(node.inputs[0]).dtype == TensorProto.FLOAT8E4M3FN
    return eight and any(reader.has(Trait.CONTRACTION) for reader in readers)
