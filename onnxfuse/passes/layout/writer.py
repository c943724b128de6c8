"""Building blocks of channels-last forms: fresh names, constants, permuted operands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto
from onnx.helper import make_attribute, make_node

from onnxfuse import ops
from onnxfuse.graph.channels import FIRST, LAST, channels_last_array, has_form, to_last, with_row
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.shapes.types import Dim, ValueType


class ChannelsLastWriter:
    """Fresh names and constants for the channels-last form of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[str, str] = {}
        """Value -> the name of its channels-last form."""
        self._constants: dict[tuple[str, str], str] = {}

    def last(self, value: str) -> str:
        """Return the name of the channels-last form of a value."""
        if value not in self.names:
            self.names[value] = self.fresh(f"{value}.nhwc", channels_last_type(self.graph.type(value)))
        return self.names[value]

    def fresh(self, base: str, type_: ValueType) -> str:
        """Return a new name for a value of this type."""
        name = self.graph.fresh(base)
        self.graph.types[name] = type_
        return name

    def constant(self, value: str, kind: str, array: Callable[[], np.ndarray]) -> str:
        """Return the name of a constant derived from `value`; one per `kind`."""
        if (value, kind) not in self._constants:
            name = self.graph.fresh(f"{value}.{kind}")
            self.graph.add_constant(name, array())
            self._constants[value, kind] = name
        return self._constants[value, kind]


@dataclass(frozen=True)
class Form:
    """The channels-last form of one operator."""

    reads: tuple[str, ...]
    """Inputs that are read channels last."""
    makes: tuple[str, ...]
    """Outputs that are produced channels last; others keep their layout."""
    write: Callable[[ChannelsLastWriter], list[NodeProto]]
    """Returns the nodes, in topological order."""
    saves: bool = False
    """Inputs and outputs that the library transposes internally on each run if channels first."""
    inner: tuple[Node, ...] = ()
    """Preceding nodes that are absorbed."""
    same_op: bool = False
    """Whether the form is the same operator on the same weights between Transposes: a node between such has this form
    already.
    """


def channels_last_type(type_: ValueType) -> ValueType:
    """Return the type of the channels-last form."""
    shape = type_.shape
    if shape is None:
        return type_
    rows = with_row(shape, 1)
    return ValueType(type_.dtype, tuple(rows[a] for a in to_last(len(shape))))


def transpose(value: str, output: str, perm: Sequence[int]) -> NodeProto:
    return make_node(ops.Transpose, [value], [output], perm=list(perm))


def read_twice(graph: Graph, node: Node) -> bool:
    return len(graph.readers(node.outputs[0])) > 1 or graph.is_output(node.outputs[0])


def integers(attributes: Mapping[str, schema.AttributeValue], name: str) -> list[int]:
    """Return a list attribute of integers, empty if absent."""
    value = attributes.get(name)
    return [int(v) for v in value] if isinstance(value, list) else []


def integer(attributes: Mapping[str, schema.AttributeValue], name: str, default: int) -> int:
    value = attributes.get(name, default)
    return value if isinstance(value, int) else default


def images(graph: Graph, *values: str) -> bool:
    """Return whether each value is [batch, channels, height, width], judging by rank."""
    return all(graph.type(v).rank == 4 for v in values)


def spatial(graph: Graph, *values: str) -> bool:
    """Return whether the values are signals, images or volumes, all of the same rank."""
    ranks = {graph.type(v).rank for v in values}
    return len(ranks) == 1 and has_form(ranks.pop())


def many_outputs(node: Node) -> bool:
    return any(node.outputs[1:])


def inner(to: ChannelsLastWriter, value: str) -> str:
    """Return a fresh name for a channels-first value between two Transposes, a signal with its row axis."""
    type_ = to.graph.type(value)
    shape = None if type_.shape is None else with_row(type_.shape, 1)
    return to.fresh(f"{value}.nchw", ValueType(type_.dtype, shape))


def operand(to: ChannelsLastWriter, value: str, rank: int) -> str:
    """Return the channels-last form of an operand that broadcasts to this rank; constants are permuted offline."""
    if not value or to.graph.type(value).rank == 0 or to.graph.element_count(value) == 1:
        return value
    if not to.graph.is_constant(value):
        return to.last(value)
    array = to.graph.constant(value)
    assert array is not None, value
    return to.constant(value, f"nhwc{rank}" if rank != 4 else "nhwc", lambda: relaid(array, rank))


def whole_image(to: ChannelsLastWriter, value: str) -> str:
    """Return a full-shape image channels last, also if it is a weight."""
    array = to.graph.constant(value)
    return to.last(value) if array is None else to.constant(value, "whole", lambda: channels_last_array(array))


def relaid(array: np.ndarray, rank: int) -> np.ndarray:
    """Return a constant that broadcasts to this rank, channels last, without leading unit axes."""
    whole = channels_last_array(array.reshape((1,) * (rank - array.ndim) + array.shape))
    first = next((i for i, extent in enumerate(whole.shape) if extent != 1), whole.ndim - 1)
    return np.ascontiguousarray(whole.reshape(whole.shape[first:]))


def entries(to: ChannelsLastWriter, value: str, order: Sequence[int], base: str) -> tuple[str, list[NodeProto]]:
    """Return a vector with permuted entries of another one, and the Gather that computes it, if needed."""
    array = to.graph.constant(value)
    if array is not None:
        return to.constant(value, "nhwc", lambda: array[list(order)]), []
    name = to.fresh(base, to.graph.type(value))
    indices = to.constant(value, "order", lambda: np.asarray(order, np.int64))
    return name, [make_node(ops.Gather, [value, indices], [name], axis=0)]


def both_ends(pads: np.ndarray) -> np.ndarray:
    return pads.reshape(2, 4)[:, LAST].reshape(-1)


def named(new: NodeProto, node: Node) -> NodeProto:
    new.name = node.proto.name
    return new


def like(node: Node, inputs: Sequence[str], outputs: Sequence[str], **changes: object) -> NodeProto:
    """Return the same operator on other values; attributes that are None in `changes` are dropped."""
    new = named(make_node(node.op, list(inputs), list(outputs)), node)
    new.attribute.extend(a for a in node.proto.attribute if a.name not in changes)
    new.attribute.extend(make_attribute(k, v) for k, v in changes.items() if v is not None)
    return new


def stands_still(shape: tuple[Dim, ...] | None) -> bool:
    """Return whether both layouts of an image are identical in memory: one channel, or one pixel."""
    return shape is not None and (shape[1] == 1 or all(extent == 1 for extent in shape[2:]))


def between(graph: Graph, node: Node) -> Form | None:
    """Return a channels-first-only operator between two Transposes, for the library's own op or a kernel."""
    x, y = node.inputs[0], node.outputs[0]
    dilated = any(step != 1 for step in integers(graph.attributes(node), "dilations"))
    # The library's AveragePool does not support dilations.
    if not images(graph, x, y) or many_outputs(node) or (node.op == ops.AveragePool and dilated):
        return None

    def write(to: ChannelsLastWriter) -> list[NodeProto]:
        first, made = inner(to, x), inner(to, y)
        dropped = {"dilations": None} if node.op == ops.AveragePool else {}
        return [
            transpose(to.last(x), first, FIRST),
            like(node, [first, *node.inputs[1:]], [made], **dropped),
            transpose(made, to.last(y), LAST),
        ]

    return Form((x,), (y,), write, same_op=node.op != ops.AveragePool or "dilations" not in graph.attributes(node))
