"""Write extents that only the exporter's declarations determine into Reshape targets: a session ignores declarations.

torch.export proves that a slice of a position table is as long as the batch has tokens, and declares it; the nodes
alone do not show it. The remaining extent of a target, -1, is then, to a session, some multiple of the batch, and a
rule that requires equal batches of queries and keys is refused there. 0 states that the extent is copied.
"""

from collections.abc import Mapping

from onnx import ModelProto

from onnxfuse import ops
from onnxfuse.graph.constant_folding import retarget
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.rewriting.every_graph import for_every_graph
from onnxfuse.shapes.inference import inferred, shell
from onnxfuse.shapes.types import UNKNOWN, ValueType, is_unknown, value_types
from onnxfuse.symbolic.integer import Int


def keep_declared_extents(model: ModelProto) -> None:
    """Write 0 for the -1 of every Reshape where declarations alone show that the operand's extent is preserved.

    A file with fused ops was optimized before: its declarations were inferred from the nodes that the ops replace.
    """
    fused = any(f.domain == DOMAIN for f in model.functions)
    if fused or not model.graph.value_info or not any(n.op_type == ops.Reshape for n in nodes_of(model.graph)):
        return
    bare = shell(model)
    del bare.graph.value_info[:]
    computed = value_types(inferred(bare).graph)
    for_every_graph(model, lambda graph: _keep(graph, computed))


def _keep(graph: Graph, computed: Mapping[str, ValueType]) -> None:
    for node in list(graph.nodes):
        is_reshape = node.op == ops.Reshape and not node.domain and len(node.inputs) == 2
        target = graph.constant(node.inputs[1]) if is_reshape else None
        if target is None or (target == -1).sum() != 1 or (node.written.get("allowzero") and 0 in target):
            continue
        axis = int((target.reshape(-1) == -1).argmax())
        if _is_same(node, axis, graph.types) and not _is_same(node, axis, computed):
            retarget(graph, node, [0 if at == axis else int(n) for at, n in enumerate(target.reshape(-1))])


def _is_same(node: Node, axis: int, types: Mapping[str, ValueType]) -> bool:
    """Return whether a Reshape's result has its operand's extent at that axis, by a name declared in the model."""
    source, result = (types.get(v, UNKNOWN).shape for v in (node.inputs[0], node.outputs[0]))
    if source is None or result is None or axis >= min(len(source), len(result)):
        return False
    return isinstance(result[axis], Int) and not is_unknown(result[axis]) and result[axis] == source[axis]
