"""Channels-last forms of operators on channel groups: group normalization, and channel shuffle."""

from onnxfuse import ops
from onnxfuse.graph.channels import LAST, perm_of
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.layout.writer import (
    ChannelsLastWriter,
    Form,
    channels_last_type,
    images,
    read_twice,
)
from onnxfuse.shapes.types import ValueType, is_unknown


def grouped_norm(graph: Graph, node: Node) -> Form | None:
    """Group normalization as [N, C, H, W] -> [N, groups, rest] -> InstanceNormalization -> [N, C, H, W]."""
    norm = graph.producer(node.inputs[0])
    grouped = graph.producer(norm.inputs[0]) if norm is not None and norm.op == ops.InstanceNormalization else None
    if norm is None or grouped is None or grouped.op != ops.Reshape or any(n.domain for n in (norm, grouped)):
        return None
    x, y = grouped.inputs[0], node.outputs[0]
    if not images(graph, x, y) or graph.type(x).shape != graph.type(y).shape or graph.type(norm.outputs[0]).rank != 3:
        return None
    target = graph.constant(grouped.inputs[1])
    groups = int(target.reshape(-1)[1]) if target is not None and target.size == 3 else 0
    if any(read_twice(graph, n) for n in (grouped, norm)) or groups < 1:
        return None

    def write(to: ChannelsLastWriter) -> None:
        to.copy(grouped, {0: to.first(x)})
        to.copy(norm)
        to.transpose(to.copy(node, output=to.inner(y)), LAST, to.last(y))

    return Form((x,), (y,), write, inner=(grouped, norm))


def channel_shuffle(graph: Graph, node: Node) -> Form | None:
    """Channel shuffle: [N, C, H, W] -> [N, a, b, H, W] -> [N, b, a, H, W] -> [N, C, H, W]."""
    swap = graph.producer(node.inputs[0])
    first = graph.producer(swap.inputs[0]) if swap is not None and perm_of(swap) == (0, 2, 1, 3, 4) else None
    if swap is None or first is None or first.op != ops.Reshape or first.domain:
        return None
    x, y = first.inputs[0], node.outputs[0]
    before, split, after = (graph.type(v).shape for v in (x, first.outputs[0], y))
    if before is None or split is None or after is None or len(before) != 4 or before[1:] != after[1:]:
        return None
    if split[3:] != before[2:] or any(is_unknown(extent) for extent in before[1:]):
        return None
    groups = split[1:3]
    if not all(isinstance(g, int) for g in groups) or any(read_twice(graph, n) for n in (first, swap)):
        return None

    def write(to: ChannelsLastWriter) -> None:
        rows = channels_last_type(graph.type(x))
        assert rows.shape is not None, x
        lead, c = rows.shape[:3], rows.shape[3]
        types = [ValueType(rows.dtype, (*lead, *each)) for each in (groups, groups[::-1])]
        # 0 copies batch, height and width.
        parts = to.add(ops.Reshape, to.last(x), shape=[0, 0, 0, *groups], hint=f"{y}.groups", type_=types[0])
        swapped = to.add(ops.Transpose, parts, perm=[0, 1, 2, 4, 3], hint=f"{y}.swapped", type_=types[1])
        to.add(ops.Reshape, swapped, shape=[0, 0, 0, c], output=to.last(y), name=node.proto.name)

    return Form((x,), (y,), write, inner=(first, swap))
