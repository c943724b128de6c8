"""Verification of a graph between passes: SSA form, order, names, declared types and subgraphs."""

from onnxfuse.graph.declarations import contradict
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.shapes.types import value_types


class InvalidGraphError(AssertionError):
    """A pass produced an inconsistent graph: a defect of the pass."""


def verify_graph(graph: Graph) -> None:
    """Raise InvalidGraphError unless the graph is in SSA form, sorted, and consistent with its declared types.

    Every value has one definition, which precedes its readers; outputs and captured values exist; node names are
    unique; no initializer and no declaration contradicts the inferred element type or shape.
    """
    defined = {*graph.inputs, *graph.initializers}
    names = set[str]()
    for node in graph.nodes:
        for value in node.reads:
            if value not in defined and not _is_defined_outside(graph, value):
                raise InvalidGraphError(f"{_told(node)} reads {value!r}, which nothing before it defines")
        for value in filter(None, node.outputs):
            if value in defined:
                raise InvalidGraphError(f"{_told(node)} defines {value!r} a second time")
            if graph.producer(value) is not node:
                raise InvalidGraphError(f"the index of producers has another node than {_told(node)} for {value!r}")
            defined.add(value)
        if node.proto.name and node.proto.name in names:
            raise InvalidGraphError(f"two nodes are named {node.proto.name!r}")
        names.add(node.proto.name)
    for value in graph.outputs:
        if value not in defined and not _is_defined_outside(graph, value):
            raise InvalidGraphError(f"the output {value!r} is defined nowhere")
    for name, declared in value_types(graph.proto).items():
        known = graph.types.get(name)
        if known is None or name not in defined or name in graph.outputs or not (known.dtype and declared.dtype):
            continue  # declarations of outputs are rewritten on commit
        if known.dtype != declared.dtype or contradict(known, declared):
            raise InvalidGraphError(f"{name!r} is declared {declared}, and is {known}")


def _is_defined_outside(graph: Graph, value: str) -> bool:
    outer = graph.parent
    while outer is not None:
        if value in outer.inputs or value in outer.initializers or outer.producer(value) is not None:
            return True
        outer = outer.parent
    return False


def _told(node: Node) -> str:
    return f"{node.op} {node.name}"
