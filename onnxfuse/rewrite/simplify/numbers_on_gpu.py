"""Numbers computed from shapes that are data to a kernel: they reach the GPU as a launch's argument, not by a copy.

ONNX Runtime computes on shapes on the CPU, and copies what the GPU reads of it; a copy refuses a CUDA graph
(`runtime/capture.py`). Its Range reads start and limit on the CPU and writes on the GPU: Range(n, n + 1, 1) is n there.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse.kernels import is_pointwise
from onnxfuse.model.fold import is_repeatable
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.host import READ_ON_HOST, SHAPE_READERS, SMALL
from onnxfuse.rewrite.fuse.pointwise import host_values

SINCE = 11
"""The first opset with Range."""

RANGED = frozenset({TensorProto.INT32, TensorProto.INT64})
"""Element types of shapes that Range takes; what is computed from them in other types is computed on the GPU."""

DATA = {
    "Expand": (0,), "Gather": (0, 1), "GatherElements": (0, 1), "GatherND": (0, 1), "MatMul": (0, 1), "Reshape": (0,),
    "ScatterElements": (0, 1, 2), "ScatterND": (0, 1, 2), "Slice": (0,), "Squeeze": (0,), "Tile": (0,),
    "Transpose": (0,), "Unsqueeze": (0,),
}  # fmt: skip
"""Inputs that CUDA kernels read on the GPU, beside all of elementwise operators and Concat."""

ON_HOST = frozenset({"Clip"})
"""Elementwise operators with inputs that CUDA kernels read on the CPU."""

FARTHEST = 8
"""Nodes between a number that a kernel reads and the extents that it is computed from, at most."""


def numbers_on_gpu(graph: Graph) -> bool:
    """Give each kernel the numbers computed from shapes that it reads as data on the GPU; return whether any did."""
    if graph.opset < SINCE or graph.parent is not None:
        return False
    there: dict[str, str] = {}
    changed = False
    while _one_round(graph, there):  # what is on the GPU now may read further numbers there
        changed = True
    return changed


def _one_round(graph: Graph, there: dict[str, str]) -> bool:
    host = host_values(graph)
    changed = False
    for node in list(graph.nodes):
        wanted = [v for i, v in enumerate(node.inputs) if v in host and _is_data(graph, node, i, host)]
        new: list[Node] = []
        names = {v: name for v in wanted if (name := _there(graph, v, host, there, node, new, FARTHEST)) is not None}
        if names:
            graph.replace([node], [*new, Node(_renamed(node.proto, names))])
            changed = True
    return changed


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.input[:] = [names.get(v, v) for v in node.input]
    return copied


def _is_data(graph: Graph, node: Node, index: int, host: frozenset[str]) -> bool:
    """Return whether a kernel on the GPU reads this input there, or would if it were there.

    A node that reads the model's own input beside a number from shapes is kept on the CPU for that number alone.
    """
    if node.domain or not (is_pointwise(node.op) or node.op == "Concat" or index in DATA.get(node.op, ())):
        return False
    if node.op in ON_HOST or node.op in SHAPE_READERS or node.captures:
        return False
    if not any(o in host for o in node.outputs):
        return True
    large = any(_may_be_large(graph, v) for v in node.inputs if v in graph.inputs)
    return large and not any(
        v in node.outputs and i in READ_ON_HOST.get(reader.op, ())
        for o in node.outputs
        for reader in graph.readers(o)
        for i, v in enumerate(reader.inputs)
    )


def _may_be_large(graph: Graph, value: str) -> bool:
    shape = graph.type(value).shape
    known = [n for n in shape or () if isinstance(n, int)]
    return shape is None or len(known) < len(shape) or math.prod(known) > SMALL


def _there(
    graph: Graph, value: str, host: frozenset[str], there: dict[str, str], reader: Node, new: list[Node], left: int
) -> str | None:
    """Return the name of `value` on the GPU for `reader`, None where it is not of one element.

    `new` gets the nodes that compute it, in order, but where another reader before this one has it there already.
    """
    kind, known = graph.type(value), there.get(value)
    if known is not None:
        producer = graph.producer(known)
        if any(known in n.outputs for n in new) or (producer is not None and 0 <= producer.order < reader.order):
            return known
    if kind.shape is None or any(n != 1 for n in kind.shape):
        return None
    if kind.dtype in RANGED:
        made = graph.fresh(f"{value}.on_gpu")
        new += _ranged(graph, value, kind.dtype, len(kind.shape), made)
    else:
        source = graph.producer(value)
        if source is None or not left or not is_repeatable(source) or len(source.outputs) != 1:
            return None
        inputs, before = dict[str, str](), len(new)
        for v in source.inputs:
            if v in host:
                name = _there(graph, v, host, there, reader, new, left - 1)
                if name is None:
                    del new[before:]
                    return None
                inputs[v] = name
        made = graph.fresh(f"{value}.on_gpu")
        computed = _renamed(source.proto, inputs)
        computed.name, computed.output[0] = made, made
        new.append(Node(computed))
    there[value] = made
    return made


def _ranged(graph: Graph, value: str, dtype: int, rank: int, made: str) -> list[Node]:
    """Return the nodes that write the integer `value` on the GPU: of the same shape, `rank` axes of extent 1."""
    one = _constant(graph, "on_gpu.one", np.asarray(1, onnx.helper.tensor_dtype_to_np_dtype(dtype)))
    scalar = _constant(graph, "on_gpu.scalar", np.zeros(0, np.int64))
    shape = _constant(graph, f"on_gpu.rank{rank}", np.ones(rank, np.int64)) if rank else scalar
    nodes: list[onnx.NodeProto] = []
    start = value
    if rank:
        start = graph.fresh(f"{value}.number")
        nodes.append(onnx.helper.make_node("Reshape", [value, scalar], [start], start))
    limit, drawn = graph.fresh(f"{value}.next"), graph.fresh(f"{value}.drawn")
    nodes += [
        onnx.helper.make_node("Add", [start, one], [limit], limit),
        onnx.helper.make_node("Range", [start, limit, one], [drawn], drawn),
        onnx.helper.make_node("Reshape", [drawn, shape], [made], made),
    ]
    return [Node(n) for n in nodes]


def _constant(graph: Graph, name: str, array: npt.NDArray[Any]) -> str:
    name = f"{name}.{array.dtype}"
    if name not in graph.initializers:
        graph.add_constant(name, array)
    return name
