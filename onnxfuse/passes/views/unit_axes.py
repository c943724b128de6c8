"""Cancel Squeeze and Unsqueeze pairs of unit axes, and merge unit axes into adjacent Reshapes.

Heads are squeezed around an operator and unsqueezed on its other side; where the operator moved elsewhere, or was none,
the two are adjacent. Reshapes alone stay: rules inspect which axes they merge and split. But next to a Reshape unit
axes carry no information, as where an Einsum is written as a product: each letter of only one factor becomes a unit
axis of the other, unsqueezed, transposed and merged.
"""

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.mask_facts import constant_axes, unsqueezed_axes
from onnxfuse.model.attributes import set_attribute
from onnxfuse.passes.rewriting.node_replacement import passing_on
from onnxfuse.passes.shapes.constant_reshape_targets import is_reshape, reshaped, write_target
from onnxfuse.passes.views.transposes import order_of
from onnxfuse.shapes.types import Dim, ValueType, is_unknown

SINGLE = frozenset({ops.Squeeze, ops.Unsqueeze})

COUNTED: dict[str, int | None] = {
    ops.Shape: 0, ops.Gather: 1, ops.Slice: 1, ops.Squeeze: 1, ops.Unsqueeze: 1, ops.Cast: 1, ops.ReduceProd: 1,
    ops.Identity: 1, ops.Concat: None, ops.Max: None, ops.Min: None, ops.Mul: None,
}  # fmt: skip
"""Operators that compute a target whose entries are 0 only where an extent is 0, with the number of inputs that count;
None for all.
"""

PARTS = 100
"""Maximum values that a target is followed through."""


def keep_unit_axes(graph: Graph) -> bool:
    """Let readers of a Squeeze or Unsqueeze use an earlier value of the same shape; return whether any did.

    Squeezes and Unsqueezes with other readers stay for those.
    """
    changed = False
    for node in [n for n in graph.nodes if _is_single(n)]:
        source = _before(graph, node)
        if source is not None:
            graph.replace([node], [passing_on(node, source)])
            changed = True
    return changed


def _is_single(node: Node) -> bool:
    return node.op in SINGLE and not node.domain


def _before(graph: Graph, node: Node) -> str | None:
    """Return the earliest value upstream, through Squeezes and Unsqueezes, with a node's output shape, or None."""
    shape = graph.type(node.outputs[0]).shape
    if shape is None or any(map(is_unknown, shape)):
        return None
    found, other = None, graph.producer(node.inputs[0])
    while other is not None and _is_single(other):
        value = other.inputs[0]
        if graph.type(value).shape == shape:
            found = value
        other = graph.producer(value)
    return found


def merge_unit_axes_into_reshapes(graph: Graph) -> bool:
    """Merge Squeeze and Unsqueeze into adjacent Reshapes; return whether any changed.

    # Unsqueeze -> Transpose -> Reshape: Transpose -> Reshape
    # Unsqueeze -> Reshape -> Squeeze: Reshape
    """
    changed = False
    for node in [n for n in graph.nodes if is_reshape(n)]:
        changed |= _turned_before(graph, node) or _joined(graph, node) or _split(graph, node)
    return changed


def redundant_reshape_elimination(graph: Graph) -> bool:
    """Let readers of a Reshape to its input's own shape read that input; return whether any did."""
    changed = False
    for node in [n for n in graph.nodes if is_reshape(n)]:
        shape = graph.type(node.inputs[0]).shape
        if shape is not None and None not in shape and graph.type(node.outputs[0]).shape == shape:
            graph.replace([node], [passing_on(node, node.inputs[0])])
            changed = True
    return changed


def _turned_before(graph: Graph, reshape: Node) -> bool:
    """Transpose the input of an Unsqueeze that precedes a Transpose and a Reshape."""
    turn = _before_alone(graph, reshape)
    single = None if turn is None or turn.op != ops.Transpose or turn.domain else _before_alone(graph, turn)
    if turn is None or single is None or single.op != ops.Unsqueeze or single.domain:
        return False
    known, order = graph.type(single.inputs[0]), order_of(graph, turn)
    axes = unsqueezed_axes(graph, single, known.rank or 0)
    if known.shape is None or order is None or axes is None:
        return False
    left = [axis for axis in (axes[a] for a in order) if axis is not None]
    if not left:
        return False  # a scalar, which has no axes to transpose
    value = graph.fresh(turn.outputs[0])
    graph.types[value] = ValueType(known.dtype, tuple(known.shape[axis] for axis in left))
    target = _target(graph, reshape, value)
    if target is None:
        return False
    new = onnx.NodeProto()
    new.CopyFrom(turn.proto)
    new.input[0], new.output[0] = single.inputs[0], value
    set_attribute(new, "perm", left)
    graph.replace([single, turn, reshape], [Node(new), _to(reshape, value, target, reshape.outputs[0])])
    return True


def _joined(graph: Graph, reshape: Node) -> bool:
    """Let a Reshape read the input of a preceding Squeeze or Unsqueeze."""
    single = _before_alone(graph, reshape)
    target = None if single is None or not _is_single(single) else _target(graph, reshape, single.inputs[0])
    if single is None or target is None:
        return False
    graph.replace([single, reshape], [_to(reshape, single.inputs[0], target, reshape.outputs[0])])
    return True


def _split(graph: Graph, reshape: Node) -> bool:
    """Let a Reshape produce the result of a following Squeeze; an Unsqueeze stays, as it marks unit axes."""
    single = graph.only_reader(reshape.outputs[0])
    if single is None or single.op != ops.Squeeze or single.domain or single.inputs[0] != reshape.outputs[0]:
        return False
    source, whole, result = reshape.inputs[0], graph.type(reshape.outputs[0]).rank, single.outputs[0]
    before, after, axes = graph.type(source).shape, graph.type(result).shape, constant_axes(graph, single)
    if before is None or after is None or whole is None or axes is None or len(axes) != whole - len(after):
        return False
    made, target = list[Node](), _constant(graph, before, after, result)
    if target is None:
        if _may_copy(graph, reshape):
            return False
        gone = {axis % whole for axis in axes}
        left, target = graph.fresh(f"{result}.axes"), graph.fresh(f"{result}.target")
        graph.add_constant(left, np.asarray([axis for axis in range(whole) if axis not in gone], np.int64))
        made.append(Node(onnx.helper.make_node(ops.Gather, [reshape.inputs[1], left], [target], target, axis=0)))
    graph.replace([reshape, single], [*made, _to(reshape, source, target, result)])
    return True


def _before_alone(graph: Graph, node: Node) -> Node | None:
    """Return the producer of a node's first input if that has no other reader."""
    maker = graph.producer(node.inputs[0])
    return maker if maker is not None and graph.only_reader(node.inputs[0]) is node else None


def _target(graph: Graph, reshape: Node, source: str) -> str | None:
    """Return the target with which a Reshape of `source` gives the same: a constant, or its existing computed one."""
    before, after = graph.type(source).shape, graph.type(reshape.outputs[0]).shape
    if before is None or after is None:
        return None
    computed = None if _may_copy(graph, reshape) else reshape.inputs[1]
    return _constant(graph, before, after, reshape.outputs[0]) or computed


def _constant(graph: Graph, before: tuple[Dim, ...], after: tuple[Dim, ...], result: str) -> str | None:
    """Return the constant target of a Reshape from one shape to another, None if there is none."""
    target = reshaped(before, after)
    return None if target is None else write_target(graph, result, target)


def _may_copy(graph: Graph, reshape: Node) -> bool:
    """Return whether the target of a Reshape is a constant, or may hold a 0, which copies the operand's extent."""
    waiting, seen = [reshape.inputs[1]], 0
    while waiting and seen < PARTS:
        value, seen = waiting.pop(), seen + 1
        node, numbers = graph.producer(value), graph.constant(value)
        if numbers is not None:
            if value == reshape.inputs[1] or not numbers.all():
                return True
        elif node is None or node.domain or node.op not in COUNTED:
            return True
        elif node.op != ops.Shape:
            waiting += node.inputs[: COUNTED[node.op]]
    return bool(waiting)


def _to(old: Node, source: str, target: str, result: str) -> Node:
    return Node(onnx.helper.make_node(ops.Reshape, [source, target], [result], old.proto.name))
