"""Pass shape-derived scalars as launch arguments instead of copying them to the device.

ONNX Runtime computes on shapes on the CPU and copies what the GPU reads of them; a copy prevents CUDA graph capture
(`runtime/sessions/capture.py`). Its Range reads start and limit on the CPU and writes on the GPU: Range(n, n + 1, 1) is
n there, for every n but the greatest of its type.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.fusion.steps.pointwise import host_values
from onnxfuse.graph.constant_folding import is_repeatable
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.model.host_values import SHAPE_READERS, SMALL
from onnxfuse.ops import Trait
from onnxfuse.ops.inputs import ELEMENTS, Extents

SINCE = 11
"""First operator set with Range."""

RANGED = frozenset({TensorProto.INT32, TensorProto.INT64})
"""Element types of shapes that Range supports; values computed from them in other types are computed on the GPU."""

FARTHEST = 24
"""Maximum nodes between a kernel's operand, of another type or of several elements, and the integers that it is
computed from: ten where queries are scaled by the logarithm of their position (Ministral 3). One kernel computes
them all.
"""


@graph_pass
def device_scalars(graph: Graph) -> bool:
    """Passes shape-derived scalars as launch arguments instead of copying them to the device.

    `y = Mul(x, n)` -> `y = Mul(x, Range(n, n + 1, 1))`. A scalar that depends on elements of a model input stays as it
    is: the replay of a CUDA graph would not see that input change. A model with If, Loop or Scan is never captured.
    """
    if graph.opset < SINCE or graph.parent is not None or any(True for _ in graph.subgraphs()):
        return False
    there: dict[str, str] = {}
    changed = False
    while _one_round(graph, there):  # nodes now on the GPU may read further scalars there
        changed = True
    return changed


def _one_round(graph: Graph, there: dict[str, str]) -> bool:
    host = host_values(graph)
    numbers = _of_shapes_alone(graph, host) if host else host
    if not numbers:
        return False
    changed = False
    for node in list(graph.nodes):
        wanted = [v for i, v in enumerate(node.inputs) if v in numbers and _is_data(graph, node, i, host)]
        to = Rewriter(graph, node)
        drawing = _Drawing(to, numbers, there, node)
        names = {v: name for v in wanted if (name := drawing.of(v, FARTHEST)) is not None}
        if names:
            to.copy(node, [names.get(v, v) for v in node.inputs])
            to.finish()
            changed = True
        else:
            to.drop()
    return changed


def _of_shapes_alone(graph: Graph, host: frozenset[str]) -> frozenset[str]:
    """Return the CPU values that depend on no element of a model input."""
    values: set[str] = set()
    for node in graph.nodes:
        free = all(v in values if v in host else v not in graph.inputs for v in node.inputs if v)
        if node.op in SHAPE_READERS or free:
            values.update(v for v in node.outputs if v in host)
    return frozenset(values)


def _is_data(graph: Graph, node: Node, index: int, host: frozenset[str]) -> bool:
    """Return whether a GPU kernel reads this input on the GPU, or would if it were there.

    A node that combines a model input with a shape-derived scalar runs on the CPU only because of that scalar.
    """
    if not _reads_data(node, index):
        return False
    if not any(o in host for o in node.outputs):
        return True
    large = any(_may_be_large(graph, v) for v in node.inputs if v in graph.inputs)
    return large and not any(_is_argument(graph, v, host) for n in _and_after(graph, node, host) for v in n.outputs)


def _reads_data(node: Node, index: int) -> bool:
    """Return whether the operator's CUDA kernel reads this input on the GPU."""
    entry = node.entry
    # The limits of ONNX Runtime 1.31's Clip are read on the GPU, those of older versions on the CPU.
    if entry is None or node.domain or node.op == ops.Clip:
        return False
    return node.is_elementwise or (Trait.SHAPES_ON_CUDA in entry.traits and isinstance(entry.role(index), ELEMENTS))


def _may_be_large(graph: Graph, value: str) -> bool:
    shape = graph.type(value).shape
    static = [n for n in shape or () if isinstance(n, int)]
    return shape is None or len(static) < len(shape) or math.prod(static) > SMALL


def _and_after(graph: Graph, node: Node, host: frozenset[str]) -> Iterator[Node]:
    """Yield the node and all CPU nodes downstream of it."""
    seen, waiting = {node}, [node]
    while waiting:
        yield (one := waiting.pop())
        readers = (r for v in one.outputs for r in graph.readers(v) if any(o in host for o in r.outputs))
        fresh = [r for r in readers if r not in seen]
        seen.update(fresh)
        waiting += fresh


def _is_argument(graph: Graph, value: str, host: frozenset[str]) -> bool:
    """Return whether a kernel may read it on the CPU: shapes, axes and counts follow an operator's data inputs."""
    return any(
        v == value
        and not _reads_data(reader, i)
        and (i > 0 or (reader.entry is not None and i in reader.entry.on_host))
        for reader in graph.readers(value)
        if not any(o in host for o in reader.outputs)
        for i, v in enumerate(reader.inputs)
    )


@dataclass
class _Drawing:
    """The nodes that compute on the GPU what `reader` reads."""

    to: Rewriter
    numbers: Collection[str]
    """CPU values that depend on shapes alone."""
    there: dict[str, str]
    """Scalars already on the GPU, and their names there."""
    reader: Node
    never: set[str] = field(default_factory=set)
    """Values that cannot be computed there."""

    def of(self, value: str, depth: int) -> str | None:
        """Return the name of `value` on the GPU; None if it cannot be computed there."""
        existing = self.there.get(value)
        if existing is not None and self._is_before(existing):
            return existing
        shape, dtype = self.to.graph.type(value).shape, self.to.graph.type(value).dtype
        if shape is None or value in self.never:
            return None
        is_integer = dtype in RANGED and all(n == 1 for n in shape)
        result = self._drawn(value, dtype, len(shape)) if is_integer else self._computed(value, depth)
        if result is None:
            self.never.add(value)
        else:
            self.there[value], self.to.graph.types[result] = result, self.to.graph.type(value)
        return result

    def _is_before(self, name: str) -> bool:
        producer = self.to.graph.producer(name)
        before = producer is not None and producer.order < self.reader.order
        return before or any(name in n.output for n in self.to.nodes)

    def _computed(self, value: str, depth: int) -> str | None:
        """Compute a non-integer value, such as a Cast or a square root, on the GPU from integers there."""
        graph, source = self.to.graph, self.to.graph.producer(value)
        if source is None or not depth or not _is_computed(graph, source):
            return None
        names = {v: self.of(v, depth - 1) for v in _operands(source) if v in self.numbers}
        operands = {v: name for v, name in names.items() if name is not None}
        if len(operands) < len(names):
            return None
        return self.to.copy(source, [operands.get(v, v) for v in source.inputs], hint=f"{value}.on_gpu")

    def _drawn(self, value: str, dtype: int, rank: int) -> str:
        """Write an integer to the GPU with its original shape, `rank` axes of extent 1."""
        graph, drawn = self.to.graph, self._in_list(_number(self.to.graph, value), dtype)
        shape = _constant(graph, f"on_gpu.rank{rank}", np.ones(rank, np.int64)) if rank else self._scalar()
        return self.to.add(ops.Reshape, drawn, shape, hint=f"{value}.on_gpu")

    def _in_list(self, number: str, dtype: int) -> str:
        """Write an integer to the GPU as a one-element list, shared by all its views."""
        to, graph, name = self.to, self.to.graph, f"{number}.on_gpu"
        existing = self.there.get(f"{name}.drawn")
        if existing is not None and self._is_before(existing):
            return existing
        one = _constant(graph, "on_gpu.one", np.asarray(1, onnx.helper.tensor_dtype_to_np_dtype(dtype)))
        if graph.type(number).rank != 0:
            number = to.add(ops.Reshape, number, self._scalar(), hint=f"{name}.number")
        limit = to.add(ops.Add, number, one, hint=f"{name}.next")
        drawn = to.add(ops.Range, number, limit, one, hint=f"{name}.drawn")
        self.there[f"{name}.drawn"] = drawn
        return drawn

    def _scalar(self) -> str:
        return _constant(self.to.graph, "on_gpu.scalar", np.zeros(0, np.int64))


def _number(graph: Graph, value: str) -> str:
    """Return the value that this one is a view of: the same scalar with other axes, or with 0 added."""
    while (node := graph.producer(value)) is not None and not node.domain:
        if node.has(Trait.KEEPS_ELEMENTS):
            source = node.inputs[0]
        elif node.op == ops.Add:
            sides = (node.inputs, node.inputs[::-1])
            source = next((x for x, zero in sides if (a := graph.constant(zero)) is not None and not a.any()), value)
        else:
            return value
        shape = graph.type(source).shape
        if source == value or shape is None or any(n != 1 for n in shape):
            return value
        value = source
    return value


def _is_computed(graph: Graph, node: Node) -> bool:
    """Return whether a node may run on the GPU: its arguments, if any, are constants or a target.

    Such nodes connect integers to values computed from them, as RoPE's angles are of a position.
    """
    entry = node.entry
    if entry is None or node.is_elementwise:
        return entry is not None and is_repeatable(node)
    if len(node.outputs) > 1 or not entry.traits >= {Trait.CARRIES, Trait.SHAPES_ON_CUDA}:
        return False
    arguments = {v: entry.role(i) for i, v in enumerate(node.inputs) if v and not isinstance(entry.role(i), ELEMENTS)}
    return all(graph.is_constant(v) or isinstance(role, Extents) for v, role in arguments.items())


def _operands(node: Node) -> tuple[str, ...]:
    """Return the inputs that a node running on the GPU reads there."""
    entry = node.entry
    if entry is None or node.is_elementwise:
        return node.inputs
    return tuple(v for i, v in enumerate(node.inputs) if isinstance(entry.role(i), ELEMENTS))


def _constant(graph: Graph, name: str, array: npt.NDArray[Any]) -> str:
    """Return the name of a constant that all scalars share."""
    name = f"{name}.{array.dtype}"
    existing = graph.constant(name)
    if existing is None or existing.dtype != array.dtype or not np.array_equal(existing, array):
        graph.add_constant(name := graph.fresh(name), array)
    return name
