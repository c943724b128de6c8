"""Find where type information is lost: the first values without an inferred type, and the nodes that depend on them."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import custom_ops
from onnxfuse.model.custom_ops import KNOWN_DOMAINS
from onnxfuse.support.plurals import agreeing, plural


@dataclass(frozen=True)
class Lost:
    """A value with unknown element type or rank whose operands are all known."""

    value: str
    missing: str
    """The unknown property."""
    maker: str
    """Kind of the value, or the node that computes it."""
    after: frozenset[str]
    """Names of all nodes downstream."""
    own: bool = False
    """Whether its operator is defined by neither ONNX nor ONNX Runtime."""

    @property
    def fact(self) -> str:
        """The loss as a sentence."""
        return (
            f"the {self.missing} of '{self.value}', {self.maker}, is not known; "
            f"{plural(self.after, 'node')} {agreeing(self.after, 'depends', 'depend')} on it"
        )

    @property
    def mend(self) -> str:
        """A step that would restore the types."""
        library = "name the library that has the operator (--custom-ops LIB.so), " if self.own else ""
        return (
            f"{library}declare '{self.value}' in the export, or add it to the model: "
            f"model.graph.value_info.append(onnx.helper.make_tensor_value_info('{self.value}', TYPE, SHAPE))"
        )


def lost(graph: Graph) -> list[Lost]:
    """Return the first losses of types in a graph, in its order; losses that follow from another are not listed.

    Sequences, maps and optionals have no element type to lose.
    """
    found: list[Lost] = []
    after: set[str] = set()
    declared = (*graph.proto.input, *graph.proto.value_info, *graph.proto.output)
    composite = {v.name for v in declared if v.type.WhichOneof("value") not in (None, "tensor_type")}
    for value in (v.name for v in graph.proto.input if v.name not in composite):
        if (missing := _missing(graph, value)) and graph.readers(value):
            found.append(Lost(value, missing, "an input of the graph", _after(graph, value)))
    for loss in found:
        after |= loss.after
    for node in graph.nodes:
        values = [v for v in node.outputs if v and graph.readers(v) and v not in composite]
        if node.name in after:
            continue
        for value in values:
            if missing := _missing(graph, value):
                strange = f", an operator of {node.domain} that ONNX's inference does not know" if node.domain else ""
                own = node.domain not in KNOWN_DOMAINS and not custom_ops.libraries()
                found.append(Lost(value, missing, f"made by {node.op} {node.name}{strange}", _after(graph, value), own))
                after |= found[-1].after
    return found


def _missing(graph: Graph, value: str) -> str:
    known = graph.type(value)
    return "element type" if not known.dtype else "shape" if known.shape is None else ""


def _after(graph: Graph, value: str) -> frozenset[str]:
    seen: dict[Node, None] = {}

    def readers(of: str) -> Iterator[Node]:
        return (r for r in graph.readers(of) if r not in seen)

    waiting = [*readers(value)]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting.extend(r for o in node.outputs if o for r in readers(o))
    return frozenset(n.name for n in seen)
