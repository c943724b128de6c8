"""Types of operators that ONNX's inference does not support: standard nodes substitute for them while inference runs.

Which nodes these are, an operator's entry in `ops` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.model.nested import bodies, captured, nodes_of
from onnxfuse.ops.shapes import alike
from onnxfuse.ops.shapes.alike import BROADCASTS_SINCE
from onnxfuse.ops.shapes.windows import pool_windows

PREFIX = "onnxfuse.stand_in."
"""Name prefix of values that exist only during type inference."""

KEEPS_NAMES = 10
"""Operator set whose inference propagates a symbolic extent through a Slice."""


@dataclass
class Standing:
    """Original nodes of a graph, and the position where each one's substitutes begin."""

    starts: list[int] = field(default_factory=list)
    nodes: list[NodeProto | None] = field(default_factory=list)
    """The original node if it is substituted; None if it stays."""
    inner: list[list["Standing"]] = field(default_factory=list)
    """The same for each node's bodies."""


class StandIns:
    """Substitute nodes for a model's unsupported operators during type inference."""

    def __init__(
        self, graph: GraphProto, opset: int, *, of_onnx: bool = False, sliced: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Insert the substitutes in `graph` and its nested bodies; with `of_onnx` for the default domain alone.

        There ONNX Runtime knows some that ONNX does not.

        `sliced`: axes of Slice outputs whose extents must not be inferred.
        """
        self.opset = opset
        self.sliced: Mapping[str, Sequence[int]] = sliced or {}
        self.of_onnx = of_onnx
        self.weights: dict[str, tuple[int, tuple[int | None, ...]]] = {}
        ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in graph.input}
        self.ranks: Mapping[str, int] = ranks | {t.name: len(t.dims) for t in graph.initializer}
        """Of the weights and inputs of the main graph."""
        self._count = 0
        self.doubted: set[str] = set()
        """Values whose extents ONNX's inference, or a file with types from it, may have wrong."""
        needed = any((e := ops.operator(n.op_type, n.domain)) and e.alike for n in nodes_of(graph))
        self._standing = self._insert(graph) if needed else None
        if self.doubted:
            _forget_extents(graph, self.doubted)
        for name, (dtype, shape) in self.weights.items():
            graph.input.append(helper.make_tensor_value_info(name, dtype, shape))

    def take_out(self, inferred: GraphProto) -> None:
        """Restore the original nodes in the inferred model; the types of their outputs stay."""
        for index in range(len(inferred.input) - 1, -1, -1):
            if inferred.input[index].name in self.weights:
                del inferred.input[index]
        if self._standing is not None:
            _restore(inferred, self._standing)

    def weight(self, *shape: int | None, dtype: int = TensorProto.FLOAT) -> str:
        """Return the name of a value of such a shape."""
        name = f"{PREFIX}{dtype}[{','.join('?' if d is None else str(d) for d in shape)}]"
        self.weights[name] = dtype, shape
        return name

    def fresh(self) -> str:
        """Return a name for a value between substitute nodes."""
        self._count += 1
        return f"{PREFIX}{self._count}"

    def _insert(self, graph: GraphProto) -> Standing:
        standing, result, changed = Standing(), list[NodeProto](), False
        for node in graph.node:
            standing.inner.append([self._insert(body) for body in bodies(node)])
            nodes = self._for(node)
            standing.starts.append(len(result))
            own = NodeProto()
            own.CopyFrom(node)
            standing.nodes.append(own if nodes else None)
            changed |= bool(nodes)
            result += nodes or [own]
        if changed:
            del graph.node[:]
            graph.node.extend(result)
        return standing

    def _for(self, node: NodeProto) -> list[NodeProto]:
        entry = ops.operator(node.op_type, node.domain)
        if (
            entry is None
            or entry.alike is None
            or (self.of_onnx and node.domain)
            or not node.input
            or not node.input[0]
        ):
            return []
        return list(entry.alike(self, node, {a.name: helper.get_attribute_value(a) for a in node.attribute}))


def misjudged(node: NodeProto, opset: int) -> bool:
    """Return whether ONNX's inference may report another shape for a standard node than ONNX Runtime computes."""
    entry = ops.operator(node.op_type, node.domain)
    if entry is not None and entry.alike is alike.pooled:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return any(window.told_otherwise(opset) for window in pool_windows(attributes))
    return node.op_type == ops.PRelu or (node.op_type == ops.Slice and opset == KEEPS_NAMES)


def _forget_extents(graph: GraphProto, behind: set[str]) -> None:
    """Remove the extents that `graph` and its bodies declare for these values, and for all values computed from them.

    The latter are added to the values. Ranks stay.
    """
    for node in graph.node:
        read = not behind.isdisjoint((*node.input, *captured(node)))
        for body in bodies(node):
            if read:
                behind.update(i.name for i in body.input)
            _forget_extents(body, behind)
            read = read or any(o.name in behind for o in body.output)
        if read:
            behind.update(o for o in node.output if o)
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim if value.name in behind else ():
            dim.Clear()


def _restore(graph: GraphProto, standing: Standing) -> None:
    nodes = list[NodeProto]()
    for start, own, inner in zip(standing.starts, standing.nodes, standing.inner, strict=True):
        node = NodeProto()
        node.CopyFrom(graph.node[start] if own is None else own)
        if own is None:
            for body, below in zip(bodies(node), inner, strict=True):
                _restore(body, below)
        nodes.append(node)
    if any(own is not None for own in standing.nodes) or any(standing.inner):
        del graph.node[:]
        graph.node.extend(nodes)
    for index in range(len(graph.value_info) - 1, -1, -1):
        if graph.value_info[index].name.startswith(PREFIX):
            del graph.value_info[index]


def insert_in_functions(model: ModelProto) -> dict[int, FunctionProto]:
    """Replace PRelus in functions by products; return the original functions by index."""
    originals = dict[int, FunctionProto]()
    for number, function in enumerate(model.functions):
        of_onnx = next((o.version for o in function.opset_import if o.domain in ("", "ai.onnx")), 0)
        sloped = [n for n in function.node if n.op_type == ops.PRelu and not n.domain]
        if sloped and of_onnx >= BROADCASTS_SINCE:
            originals[number] = FunctionProto.FromString(function.SerializeToString())
            for node in sloped:
                node.op_type = ops.Mul
    return originals
