"""Weights read through a Transpose in their stored layout: the product's kernel reads them transposed.

An embedding table can also be the weight of the output head, and an autoencoder's decoder can share the encoder's
weights. During growth such a Transpose counts as a weight whose values are unavailable; a product that gets a kernel
absorbs the Transpose into its body, and otherwise the Transpose is restored.
"""

from collections.abc import Mapping

from onnx import ModelProto, TensorProto

from onnxfuse import ops
from onnxfuse.graph.constant_folding import is_product
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter, substitute
from onnxfuse.model.nested import graphs_in, readers_of

SUFFIX = ".stored"
"""Name suffix of a substitute weight, after the name of the Transpose's result."""


def set_aside(graph: Graph) -> dict[str, Node]:
    """Substitute weights for Transposes of constants that products read; return the Transposes by substitute.

    Includes those outside, if the graph is a body.
    """
    found: dict[str, Node] = {}
    for value in dict.fromkeys(n.inputs[1] for n in graph.nodes if is_product(n)):
        node = _exchanges_weight(graph, value)
        products = [r for r in graph.readers(value) if _is_right_factor(r, value)]
        if node is None or not products:
            continue
        known = graph.type(value)
        dims = [d for d in known.shape or () if isinstance(d, int)]
        weight = graph.fresh(f"{value}{SUFFIX}")
        graph.initializers[weight] = TensorProto(
            name=weight, dims=dims, data_type=known.dtype, data_location=TensorProto.EXTERNAL
        )
        graph.types[weight] = known
        for product in products:
            substitute(graph, product, {1: weight})
        if graph.producer(value) is node and not graph.is_read_outside(value, ()):
            graph.replace([node], [])
        found[weight] = node
    return found


def _exchanges_weight(graph: Graph, value: str) -> Node | None:
    """Return the Transpose of a constant matrix that computes `value`, here or in an outer graph, or None."""
    around: Graph | None = graph
    while around is not None and value not in around.producers:
        around = None if value in around.initializers or value in around.inputs else around.parent
    node = None if around is None else around.producer(value)
    if around is None or node is None or node.op != ops.Transpose or node.domain:
        return None
    known, order = graph.type(value), around.attributes(node).get("perm", [1, 0])
    whole = known.rank == 2 and known.static_shape is not None
    return node if whole and known.dtype and order == [1, 0] and around.is_constant(node.inputs[0]) else None


def _is_right_factor(node: Node, value: str) -> bool:
    """Return whether a product reads `value` as its right factor only."""
    return is_product(node) and node.inputs[1] == value and node.reads.count(value) == 1


def put_back(graph: Graph, aside: Mapping[str, Node]) -> None:
    """Restore the Transposes for remaining readers of substitute weights, such as a product without a kernel."""
    for weight, node in aside.items():
        readers = graph.readers(weight)
        if readers and node.order < 0:
            graph.replace([readers[0]], [node, readers[0]])
        graph.reroute(weight, node.outputs[0])
        del graph.initializers[weight], graph.types[weight]


def transpose_inside(to: Rewriter, transpose: Node, name: str) -> str:
    """Add a Transpose of the same weight for a single product, under the original's name if that is free."""
    value, graph = transpose.outputs[0], to.graph
    output = value if graph.producer(value) is None else to.value(value, graph.type(value))
    # An implicit permutation depends on the rank, which a body does not record.
    return to.copy(transpose, output=output, name=transpose.proto.name or name, perm=[1, 0])


def share_back(model: ModelProto) -> None:
    """Merge the Transposes of one weight from several bodies, in place."""
    graphs = [model.graph, *(g for n in model.graph.node for g in graphs_in(n))]
    weights = {t.name for g in graphs for t in g.initializer}
    weights |= {n.output[0] for g in graphs for n in g.node if n.op_type == ops.Constant}
    for graph in graphs:
        outputs, first = {o.name for o in graph.output}, dict[tuple[str, bytes], str]()
        for node in [n for n in graph.node if n.op_type == ops.Transpose and n.input[0] in weights]:
            order = b"".join(a.SerializeToString(deterministic=True) for a in node.attribute)
            source, own = first.setdefault((node.input[0], order), node.output[0]), node.output[0]
            if source != own and own not in outputs:
                for _, reader in list(readers_of(graph, own)):
                    reader.input[:] = [source if v == own else v for v in reader.input]
                graph.node.remove(node)
