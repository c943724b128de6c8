"""Cancel Squeeze and Unsqueeze pairs of unit axes, and merge unit axes into adjacent Reshapes.

Heads are squeezed around an operator and unsqueezed on its other side; where the operator moved elsewhere, or was none,
the two are adjacent. Reshapes alone stay: rules inspect which axes they merge and split. But next to a Reshape unit
axes carry no information, as where an Einsum is written as a product: each letter of only one factor becomes a unit
axis of the other, unsqueezed, transposed and merged.
"""

from onnxfuse import ops
from onnxfuse.graph.channels import order_of
from onnxfuse.graph.constant_folding import is_reshape
from onnxfuse.graph.facts.indices import WHOLE
from onnxfuse.graph.facts.masks import constant_axes, unsqueezed_axes
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, forward
from onnxfuse.ops import Trait
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Dim, ValueType, is_unknown

PARTS = 100
"""Maximum values that a target is followed through."""


@graph_pass
def keep_unit_axes(graph: Graph) -> bool:
    """Keeps axes of extent 1 that are squeezed and unsqueezed again.

    Squeezes and Unsqueezes with other readers stay for those.
    """
    changed = False
    for node in [n for n in graph.nodes if _is_single(n)]:
        source = _before(graph, node)
        if source is not None:
            forward(graph, node, source)
            changed = True
    return changed


def _is_single(node: Node) -> bool:
    return node.has(Trait.UNIT_AXES)


def _before(graph: Graph, node: Node) -> str | None:
    """Return the earliest value upstream, through Squeezes and Unsqueezes, with a node's output shape, or None."""
    shape = graph.type(node.outputs[0]).shape
    if shape is None or any(map(is_unknown, shape)):
        return None
    earliest, other = None, graph.producer(node.inputs[0])
    while other is not None and _is_single(other):
        value = other.inputs[0]
        if graph.type(value).shape == shape:
            earliest = value
        other = graph.producer(value)
    return earliest


@graph_pass
def merge_unit_axes_into_reshapes(graph: Graph) -> bool:
    """Merges Squeeze, Unsqueeze and Transposes of unit axes into the adjacent Reshape.

    # Unsqueeze -> Transpose -> Reshape: Transpose -> Reshape
    # Unsqueeze -> Reshape -> Squeeze: Reshape
    """
    changed = False
    for node in [n for n in graph.nodes if is_reshape(n)]:
        changed |= _transpose_first(graph, node) or _joined(graph, node) or _split(graph, node)
    return changed


def _transpose_first(graph: Graph, reshape: Node) -> bool:
    """Transpose the input of an Unsqueeze that precedes a Transpose and a Reshape."""
    turn = _before_alone(graph, reshape)
    single = None if turn is None or turn.op != ops.Transpose or turn.domain else _before_alone(graph, turn)
    if turn is None or single is None or single.op != ops.Unsqueeze or single.domain:
        return False
    type_before, order = graph.type(single.inputs[0]), order_of(graph, turn)
    axes = unsqueezed_axes(graph, single, type_before.rank or 0)
    if type_before.shape is None or order is None or axes is None:
        return False
    perm = [axis for axis in (axes[a] for a in order) if axis is not None]
    if not perm:
        return False  # a scalar, which has no axes to transpose
    type_ = ValueType(type_before.dtype, tuple(type_before.shape[axis] for axis in perm))
    target = _target(graph, reshape, type_.shape)
    if target is None:
        return False
    to = Rewriter(graph, single, turn, reshape)
    value = to.copy(turn, single.inputs[:1], hint=turn.outputs[0], type_=type_, perm=perm)
    to.add(ops.Reshape, value, shape=target, output=reshape.outputs[0], name=reshape.proto.name)
    to.finish()
    return True


def _joined(graph: Graph, reshape: Node) -> bool:
    """Let a Reshape read the input of a preceding Squeeze or Unsqueeze."""
    single = _before_alone(graph, reshape)
    if single is None or not _is_single(single):
        return False
    target = _target(graph, reshape, graph.type(single.inputs[0]).shape)
    if target is None:
        return False
    to = Rewriter(graph, single, reshape)
    to.add(ops.Reshape, single.inputs[0], shape=target, output=reshape.outputs[0])
    to.finish()
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
    to, target = Rewriter(graph, reshape, single), reshape_target(before, after)
    if target is None and _may_copy(graph, reshape):
        return False
    shape: list[int] | str | None = target
    if target is None:
        remaining = [axis for axis in range(whole) if axis not in {gone % whole for gone in axes}]
        shape = to.add(ops.Gather, reshape.inputs[1], indices=remaining, axis=0, hint=f"{result}.target")
    to.add(ops.Reshape, source, shape=shape, output=result, name=reshape.proto.name)
    to.finish()
    return True


def _before_alone(graph: Graph, node: Node) -> Node | None:
    """Return the producer of a node's first input if that has no other reader."""
    maker = graph.producer(node.inputs[0])
    return maker if maker is not None and graph.only_reader(node.inputs[0]) is node else None


def _target(graph: Graph, reshape: Node, before: tuple[Dim, ...] | None) -> list[int] | str | None:
    """Return the target with which a Reshape of another value gives the same: a constant, or its computed one."""
    after = graph.type(reshape.outputs[0]).shape
    if before is None or after is None:
        return None
    target = reshape_target(before, after)
    return reshape.inputs[1] if target is None and not _may_copy(graph, reshape) else target


def _may_copy(graph: Graph, reshape: Node) -> bool:
    """Return whether the target of a Reshape is a constant, or may hold a 0, which copies the operand's extent."""
    waiting, seen = [reshape.inputs[1]], 0
    while waiting and seen < PARTS:
        value, seen = waiting.pop(), seen + 1
        node, numbers = graph.producer(value), graph.constant(value)
        if numbers is not None:
            if value == reshape.inputs[1] or not numbers.all():
                return True
        elif node is None or not node.has(Trait.NONZERO, Trait.READS_SHAPE) or graph.type(value).dtype not in WHOLE:
            return True
        elif not node.has(Trait.READS_SHAPE):
            waiting += node.data.values()
    return bool(waiting)
