"""Write a node as what its operator is defined by: nodes of other operators, which rules and the reference know."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import numpy_helper

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter, rewrite
from onnxfuse.ops.definitions.writer import Defined, Definition, Shape


@dataclass(frozen=True)
class _Nodes:
    """Writes the nodes of a definition by a rewriter."""

    to: Rewriter
    base: str
    """Prefix of the names of new values."""
    constants: MutableMapping[bytes, str]
    """Names of constants that other nodes may read, too: what layers compute alike is computed once."""

    @property
    def opset(self) -> int:
        """Version of the model's default operator set."""
        return self.to.graph.opset

    def add(self, op: str, *inputs: str, domain: str = "", **operands: Any) -> str:
        """Add a node and return its output."""
        return self.to.add(op, *inputs, domain=domain, hint=f"{self.base}.{op.lower()}", **operands)

    def several(self, count: int, op: str, *inputs: str, domain: str = "", **operands: Any) -> list[str]:
        """Add a node of several outputs and return them."""
        outputs = [self.to.named(f"{self.base}.{op.lower()}") for _ in range(count)]
        self.to.add(op, *inputs, domain=domain, output=outputs, **operands)
        return outputs

    def constant(self, array: np.ndarray | Sequence[int]) -> str:
        """Add a constant, of integers as int64, and return its name."""
        array = array if isinstance(array, np.ndarray) else np.asarray(array, np.int64)
        key = numpy_helper.from_array(array).SerializeToString()
        if key not in self.constants:
            self.constants[key] = self.to.constant(f"{self.base}.constant", array)
        return self.constants[key]

    def dtype(self, value: str) -> int:
        """Return the element type of a value of the graph, 0 if unknown."""
        return self.to.graph.type(value).dtype

    def shape(self, value: str) -> Shape:
        """Return the shape of a value of the graph."""
        return self.to.graph.type(value).shape


def write_definition(graph: Graph, node: Node, constants: MutableMapping[bytes, str]) -> bool:
    """Replace a node by what its operator's entry says that it computes; return whether there is such a definition.

    `constants` are those that this wrote in the same graph, by what they hold.
    """
    definition = definition_of(node)
    return definition is not None and rewrite(graph, node, partial(_write, definition=definition, constants=constants))


def definition_of(node: Node) -> Definition | None:
    """Return what writes the operator of a node as the nodes of an export; None if its entry has no definition."""
    return None if node.entry is None else node.entry.definition


def _write(node: Node, to: Rewriter, definition: Definition, constants: MutableMapping[bytes, str]) -> bool:
    graph = to.graph
    wanted = [bool(v) and (graph.is_read(v) or graph.is_output(v)) for v in node.outputs]
    attributes = graph.attributes(node)
    results = definition(
        Defined(_Nodes(to, next(filter(None, node.outputs)), constants), node.inputs, wanted, attributes)
    )
    if results is None:
        return False
    for value, by in zip(node.outputs, results, strict=False):
        if value and by:
            to.replace(value, by)
    return True
