"""Export a model's graph as plain data for drawing: nodes with their properties, edges, and bodies of fused ops.

Weights are not included: the graph of a 3 GB model is only as large as its names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.model import provenance
from onnxfuse.model.display_names import short
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops, replaced_nodes
from onnxfuse.model.overridable import required_inputs
from onnxfuse.reporting.graph_drawing import layout
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import ValueType, value_types
from onnxfuse.support.plurals import plural

CHARACTER = 7.0
"""Width of a letter of the label, in the page's units."""

SIGN = 18.0
"""Width of the sign that unfolds a fused op."""

LIMIT = 160
"""Maximum length of an attribute's text, and of a list in it that is formatted."""

Cost = Mapping[str, Any]
"""Cost of one node per run: `name`, and any of `reads`, `writes` (bytes), `flops`, `launches`, `us`."""


def graph_of(model: onnx.ModelProto, costs: Iterable[Cost] = ()) -> dict[str, Any]:
    """Return the main graph of `model` with its layout: nodes, edges by node index, fused ops by name.

    Constants are omitted, and counted as `constants`. Inputs and outputs of the graph appear among the nodes. Equal
    fused ops are one entry of `ops`, each with its body as text and as a graph of its own. `costs` are assigned to
    nodes by name.
    """
    types = value_types(infer(model).graph)
    by_name = fused_ops(model)
    weights = {t.name for t in model.graph.initializer}
    nodes: list[dict[str, Any]] = []
    producers: dict[str, int] = {}
    for value in required_inputs(model.graph):
        producers[value.name] = len(nodes)
        lines = [f"{value.name}: {types[value.name]}"]
        nodes.append({"op": "input", "name": value.name, "outputs": lines, "values": [value.name]})
    edges: list[tuple[int, int]] = []
    constants = weights | {v for n in model.graph.node if n.op_type == ops.Constant for v in n.output}
    for proto in model.graph.node:
        if proto.op_type == ops.Constant:
            continue
        edges += [(producers[v], len(nodes)) for v in dict.fromkeys(proto.input) if v in producers]
        producers.update((v, len(nodes)) for v in proto.output if v)
        nodes.append(_node(proto, types, constants))
        if proto.domain == DOMAIN:
            nodes[-1] |= _fused(proto, by_name[proto.op_type], nodes[-1]["values"])
    for value in model.graph.output:
        if value.name in producers:
            edges.append((producers[value.name], len(nodes)))
            nodes.append({"op": "output", "name": value.name, "outputs": [], "values": []})
    _add(costs, nodes)
    bodies = {name: _body(op) for name, op in by_name.items()}
    hidden = sum(n.op_type == ops.Constant for n in model.graph.node)
    return {**_laid_out(nodes, edges), "ops": bodies, "constants": hidden}


def _node(proto: NodeProto, types: Mapping[str, ValueType], constants: Iterable[str] = ()) -> dict[str, Any]:
    outputs = [v for v in proto.output if v]

    def shown(value: str) -> str:
        constant = " constant" if value in constants else ""
        return f"{value}: {types[value]}{constant}" if value in types else f"{value}{constant}"

    return {
        "op": proto.op_type,
        "name": proto.name or (outputs[0] if outputs else proto.op_type),
        "domain": proto.domain,
        "inputs": [shown(v) for v in proto.input if v],
        "outputs": [shown(v) for v in outputs],
        "attributes": [f"{a.name} = {_attribute(a)}" for a in proto.attribute],
        "values": outputs,
    }


def _fused(proto: NodeProto, op: FusedOp, outputs: Sequence[str]) -> dict[str, Any]:
    """Return the additional properties of a fused node: its rule, its body, and the original nodes."""
    body = [n.op_type for n in op.body.node if n.op_type != ops.Constant]
    return {
        "op": short(body),
        "fused": op.name,
        "rule": op.rule,
        "body": body,
        "nodes": provenance.names(proto, "nodes") or [],
        "members": [n.partition(" ")[2] for n in replaced_nodes(proto, op)],
        # The eliminated values: by them a user finds the original nodes in here.
        "values": [*outputs, *(provenance.names(proto, "values") or [])],
    }


def _body(op: FusedOp) -> dict[str, Any]:
    """Return the properties shared by all nodes of a fused op."""
    nodes: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    producers: dict[str, int] = {}
    for proto in op.body.node:
        if proto.op_type != ops.Constant:
            edges += [(producers[v], len(nodes)) for v in dict.fromkeys(proto.input) if v in producers]
            producers.update((v, len(nodes)) for v in proto.output if v)
            nodes.append(_node(proto, {}))
    text = onnx.printer.to_text(op.body)
    return {"rule": op.rule, "template": op.template, "text": text, **_laid_out(nodes, edges)}


def _add(costs: Iterable[Cost], nodes: Sequence[dict[str, Any]]) -> None:
    """Assign each node the cost of its name; for a shared name, in order."""
    waiting: dict[str, list[Cost]] = {}
    for cost in costs:
        waiting.setdefault(cost["name"], []).append(cost)
    for node in nodes:
        if "attributes" in node and waiting.get(node["name"]):
            cost = waiting[node["name"]].pop(0)
            node["cost"] = {key: value for key, value in cost.items() if key != "name"}


def _laid_out(nodes: list[dict[str, Any]], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    widths = [max(len(n["op"]), 4) * CHARACTER + 18 + (SIGN if "fused" in n else 0) for n in nodes]
    drawing = layout(widths, edges)
    for node, width, (x, y) in zip(nodes, widths, drawing.places, strict=True):
        node |= {"x": round(x, 1), "y": round(y, 1), "w": width}
    paths = [[[round(x, 1), round(y, 1)] for x, y in line] for line in drawing.lines]
    return {"nodes": nodes, "edges": [list(e) for e in edges], "lines": paths, "width": drawing.width,
            "height": drawing.height}  # fmt: skip


def _attribute(attribute: AttributeProto) -> str:
    """Return an attribute as short text: of tensors and graphs only their kind."""
    value = onnx.helper.get_attribute_value(attribute) if not attribute.ref_attr_name else None
    if isinstance(value, TensorProto):
        kinds = TensorProto.DataType.DESCRIPTOR.values_by_number
        kind = kinds[value.data_type].name.lower() if value.data_type in kinds else "unknown"
        return f"{kind}[{','.join(map(str, value.dims))}]"
    if isinstance(value, onnx.GraphProto):
        return f"a graph of {plural(value.node, 'node')}"
    if isinstance(value, bytes):
        text = value[: LIMIT + 1].decode(errors="replace")
    elif isinstance(value, int | float):
        text = f"{value:.7g}" if isinstance(value, float) else str(value)
    elif attribute.ints:
        text = ", ".join(map(str, attribute.ints[:LIMIT]))
    elif attribute.floats:
        text = ", ".join(f"{v:.7g}" for v in attribute.floats[:LIMIT])
    elif attribute.strings:
        text = ", ".join(v[:LIMIT].decode(errors="replace") for v in attribute.strings[:LIMIT])
    else:
        text = attribute.ref_attr_name or AttributeProto.AttributeType.Name(attribute.type).lower()
    return text if len(text) <= LIMIT else f"{text[:LIMIT]}..."
