"""Weights that are read through a Transpose and stay as they are stored: a product's kernel reads them so.

An embedding's table is the head's weight, too; the decoder of an autoencoder multiplies by the encoder's. While kernels
grow, such a Transpose is a weight like any other, whose numbers are not at hand; a product that gets a kernel takes the
Transpose into its body, and where none does it stands there again.
"""

from collections.abc import Mapping

from onnx import NodeProto, TensorProto

from onnxfuse.model.fold import is_right_factor
from onnxfuse.model.graph import Graph, Node

SUFFIX = ".stored"
"""What the name of a weight that stands for a Transpose has after that of the Transpose's result."""


def set_aside(graph: Graph) -> dict[str, Node]:
    """Let weights stand for the Transposes of constants that products alone read; return the Transposes by these."""
    found: dict[str, Node] = {}
    for node in [n for n in graph.nodes if _is_weight(graph, n)]:
        value = node.outputs[0]
        weight, known = graph.fresh(f"{value}{SUFFIX}"), graph.type(value)
        dims = [d for d in known.shape or () if isinstance(d, int)]
        graph.initializers[weight] = TensorProto(
            name=weight, dims=dims, data_type=known.dtype, data_location=TensorProto.EXTERNAL
        )
        graph.types[weight] = known
        graph.reroute(value, weight)
        graph.replace([node], [])
        found[weight] = node
    return found


def _is_weight(graph: Graph, node: Node) -> bool:
    """Return whether `node` exchanges the axes of a constant matrix, and products read that as their right factor."""
    if node.op != "Transpose" or node.domain or not graph.is_constant(node.inputs[0]):
        return False
    value = node.outputs[0]
    known, readers = graph.type(value), graph.readers(value)
    if graph.is_output(value) or not known.dtype or known.shape is None or len(known.shape) != 2:
        return False
    exchanges = graph.attributes(node).get("perm", [1, 0]) == [1, 0]
    whole = all(isinstance(d, int) for d in known.shape)
    return exchanges and whole and bool(readers) and all(is_right_factor(r, value) for r in readers)


def put_back(graph: Graph, aside: Mapping[str, Node]) -> None:
    """Put the Transposes in place again that products without a kernel of their own still read."""
    for weight, node in aside.items():
        readers = graph.readers(weight)
        if readers:
            graph.replace([readers[0]], [node, readers[0]])
            graph.reroute(weight, node.outputs[0])
        del graph.initializers[weight], graph.types[weight]


def transpose_inside(graph: Graph, transpose: Node, name: str) -> Node:
    """Return a Transpose of the same weight for one product alone, under the name of the first where that is free."""
    proto = NodeProto()
    proto.CopyFrom(transpose.proto)
    proto.name = transpose.proto.name or name
    value = transpose.outputs[0]
    if graph.producer(value) is not None:
        proto.output[0] = graph.fresh(value)
        graph.types[proto.output[0]] = graph.type(value)
    return Node(proto)
