"""Building blocks of channels-last forms: names, constants, permuted operands."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.channels import LAST, channels_last_array, has_form, to_first, to_last, with_row
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model import schema
from onnxfuse.model.derived_names import CHANNELS_LAST
from onnxfuse.shapes.types import Dim, ValueType


@dataclass
class ChannelsLast:
    """What the channels-last nodes of a graph share."""

    graph: Graph
    names: dict[str, str] = field(default_factory=dict)
    """Value -> the name of its channels-last form."""
    constants: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """Constants derived from a value, by kind and contents."""
    operands: dict[tuple[int, ...], str] = field(default_factory=dict)
    """Constants of integers: axes, shapes, ranges."""


class ChannelsLastWriter(Rewriter):
    """Writes channels-last nodes in place of some of a graph."""

    def __init__(self, shared: ChannelsLast, *old: Node) -> None:
        super().__init__(shared.graph, *old, operands=shared.operands)
        self.names, self._constants = shared.names, shared.constants

    def last(self, value: str) -> str:
        """Return the name of the channels-last form of a value."""
        if value not in self.names:
            self.names[value] = self.value(f"{value}{CHANNELS_LAST}", channels_last_type(self.graph.type(value)))
        return self.names[value]

    def first(self, value: str) -> str:
        """Transpose the channels-last form of a value to channels first, a signal with its row axis."""
        return self.transpose(self.last(value), to_first(self.graph.type(value).rank or 0), self.inner(value))

    def inner(self, value: str) -> str:
        """Return a new name for a channels-first value between two Transposes, a signal with its row axis."""
        type_ = self.graph.type(value)
        shape = None if type_.shape is None else with_row(type_.shape, 1)
        return self.value(f"{value}.nchw", ValueType(type_.dtype, shape))

    def transpose(self, source: str, perm: Sequence[int], output: str) -> str:
        """Transpose a value to `output`."""
        return self.add(ops.Transpose, source, perm=list(perm), output=output)

    def derived(self, value: str, kind: str, array: Callable[[], np.ndarray]) -> str:
        """Return the name of a constant derived from `value`; equal ones of a `kind` are one in the graph."""
        data = np.ascontiguousarray(array())
        key = value, kind, data.dtype, data.shape, hashlib.blake2b(data.tobytes()).digest()
        if key not in self._constants:
            self._constants[key] = self.constant(f"{value}.{kind}", data)
        return self._constants[key]


@dataclass(frozen=True)
class Form:
    """The channels-last form of one operator."""

    reads: tuple[str, ...]
    """Inputs that are read channels last."""
    makes: tuple[str, ...]
    """Outputs that are produced channels last; others keep their layout."""
    write: Callable[[ChannelsLastWriter], object]
    """Adds the nodes."""
    saves: bool = False
    """Inputs and outputs that the library transposes internally on each run if channels first."""
    needed: bool = False
    """Whether the library computes the operator channels first on the CPU alone."""
    inner: tuple[Node, ...] = ()
    """Preceding nodes that are absorbed."""
    same_op: bool = False
    """Whether the form is the same operator on the same weights between Transposes: a node between Transposes has it
    already.
    """


def channels_last_type(type_: ValueType) -> ValueType:
    """Return the type of the channels-last form."""
    shape = type_.shape
    if shape is None:
        return type_
    rows = with_row(shape, 1)
    return ValueType(type_.dtype, tuple(rows[a] for a in to_last(len(shape))))


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


def operand(to: ChannelsLastWriter, value: str, rank: int) -> str:
    """Return the channels-last form of an operand that broadcasts to this rank; constants are permuted offline."""
    if not value or to.graph.type(value).rank == 0 or to.graph.element_count(value) == 1:
        return value
    if not to.graph.is_constant(value):
        return to.last(value)
    array = to.graph.constant(value)
    assert array is not None, value
    return to.derived(value, f"nhwc{rank}" if rank != 4 else "nhwc", lambda: relaid(array, rank))


def whole_image(to: ChannelsLastWriter, value: str) -> str:
    """Return a full-shape image channels last, also if it is a weight."""
    array = to.graph.constant(value)
    return to.last(value) if array is None else to.derived(value, "whole", lambda: channels_last_array(array))


def relaid(array: np.ndarray, rank: int) -> np.ndarray:
    """Return a constant that broadcasts to this rank, channels last, without leading unit axes."""
    whole = channels_last_array(array.reshape((1,) * (rank - array.ndim) + array.shape))
    first = next((i for i, extent in enumerate(whole.shape) if extent != 1), whole.ndim - 1)
    return np.ascontiguousarray(whole.reshape(whole.shape[first:]))


def entries(to: ChannelsLastWriter, value: str, order: Sequence[int], hint: str) -> str:
    """Return a vector with permuted entries of another one, gathered unless that is constant."""
    array = to.graph.constant(value)
    if array is not None:
        return to.derived(value, "nhwc", lambda: array[list(order)])
    indices = to.derived(value, "order", lambda: np.asarray(order, np.int64))
    return to.add(ops.Gather, value, indices, axis=0, hint=hint, type_=to.graph.type(value))


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

    def write(to: ChannelsLastWriter) -> None:
        dropped: dict[str, Any] = {"dilations": None} if node.op == ops.AveragePool else {}
        result = to.copy(node, [to.first(x), *node.inputs[1:]], output=to.inner(y), **dropped)
        to.transpose(result, LAST, to.last(y))

    return Form((x,), (y,), write, same_op=node.op != ops.AveragePool or "dilations" not in graph.attributes(node))
