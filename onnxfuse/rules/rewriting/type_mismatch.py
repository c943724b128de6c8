"""Type check of a user's rewrites: the replacement's outputs must have the types of the values that they replace."""

from collections.abc import Mapping, Sequence

import onnx

from onnxfuse.graph.constant_folding import FEW
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.language.rule_file import Rule, shipped_files
from onnxfuse.shapes.onnx_inference import infer_shapes
from onnxfuse.shapes.types import ValueType, value_info, value_types
from onnxfuse.support.errors import ModelError, RuleError

SEE = "Check what `to` computes of inputs of these types and ranks, and let `where` ask for those that it is for."


def check(graph: Graph, rule: Rule, old: Sequence[Node], new: Sequence[Node]) -> None:
    """Raise RuleError if a user's rule would replace a value by one of another type."""
    if rule.path in shipped_files().values():
        return
    types = _types(graph, new)
    for node in old:
        for value in node.outputs:
            was, becomes = graph.type(value), types.get(value)
            if becomes is not None and _differ(was, becomes):
                raise RuleError(
                    f"{rule.path}: the rule '{rule.name}' changes the type of '{value}' ({node.op} {node.name}): "
                    f"{was} would become {becomes}",
                    SEE,
                )


def _types(graph: Graph, new: Sequence[Node]) -> Mapping[str, ValueType]:
    """Return the output types of new nodes, as far as ONNX infers them."""
    results = {o for n in new for o in n.outputs}
    reads = dict.fromkeys(v for n in new for v in n.reads if v not in results)
    numbers = {v: t for v in reads if (graph.element_count(v) or FEW + 1) <= FEW and (t := graph.constant_tensor(v))}
    light = onnx.ModelProto(ir_version=8)
    light.opset_import.add(domain="", version=graph.opset)
    light.graph.node.extend(n.proto for n in new)
    light.graph.input.extend(value_info(v, graph.type(v)) for v in reads if v not in numbers and graph.type(v).dtype)
    for name, tensor in numbers.items():
        light.graph.initializer.add().CopyFrom(tensor)
        light.graph.initializer[-1].name = name
    try:
        return value_types(infer_shapes(light).graph)
    except ModelError:
        return {}  # invalid on its own: validation of the whole model reports that, with the rule's name


def _differ(was: ValueType, becomes: ValueType) -> bool:
    """Return whether two types are known to differ; extents only as integers: a name may equal another expression."""
    if was.dtype and becomes.dtype and was.dtype != becomes.dtype:
        return True
    if was.shape is None or becomes.shape is None:
        return False
    pairs = zip(was.shape, becomes.shape, strict=False)
    numbers = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return len(was.shape) != len(becomes.shape) or numbers
