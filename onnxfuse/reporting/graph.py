"""A model's graph as plain data for drawing: nodes with labels and types, and who reads whom."""

from typing import Any

import onnx

from onnxfuse.model import provenance
from onnxfuse.model.display_names import short
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.types import infer, value_types
from onnxfuse.reporting.graph_drawing import layout

CHARACTER = 7.0
"""Width of a letter of the label, in the page's units."""


def graph_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the main graph of `model`, laid out: nodes, and edges by the positions of their nodes.

    Constants are left out. Inputs and outputs of the graph stand among the nodes.
    """
    light = infer(model)
    types = value_types(light.graph)
    ops = fused_ops(model)
    weights = {t.name for t in model.graph.initializer}
    nodes: list[dict[str, Any]] = []
    producers: dict[str, int] = {}
    for value in model.graph.input:
        if value.name not in weights:
            producers[value.name] = len(nodes)
            shown = [f"{value.name}: {types[value.name]}"]
            nodes.append({"op": "input", "name": value.name, "outputs": shown, "values": [value.name]})
    edges: list[tuple[int, int]] = []
    for proto in model.graph.node:
        if proto.op_type == "Constant":
            continue
        edges += [(producers[v], len(nodes)) for v in dict.fromkeys(proto.input) if v in producers]
        producers.update((v, len(nodes)) for v in proto.output if v)
        shown = [f"{v}: {types[v]}" if v in types else v for v in proto.output if v]
        made = [v for v in proto.output if v]
        nodes.append({"op": proto.op_type, "name": proto.name or made[0], "outputs": shown, "values": made})
        if proto.domain == DOMAIN:
            body = [n.op_type for n in ops[proto.op_type].body.node if n.op_type != "Constant"]
            nodes[-1] |= {"rule": ops[proto.op_type].rule, "body": body, "op": short(body)}
            nodes[-1]["nodes"] = provenance.names(proto, "nodes") or []
            # The values that are no more: by them a person finds the nodes of the original in here.
            made += provenance.names(proto, "values") or []
    for value in model.graph.output:
        if value.name in producers:
            edges.append((producers[value.name], len(nodes)))
            nodes.append({"op": "output", "name": value.name, "outputs": [], "values": []})
    drawn = layout([_width(n["op"]) for n in nodes], edges)
    for node, (x, y) in zip(nodes, drawn.places, strict=True):
        node |= {"x": round(x, 1), "y": round(y, 1), "w": _width(node["op"])}
    paths = [[[round(x, 1), round(y, 1)] for x, y in line] for line in drawn.lines]
    return {"nodes": nodes, "edges": [list(e) for e in edges], "lines": paths, "width": drawn.width,
            "height": drawn.height}  # fmt: skip


def _width(label: str) -> float:
    return max(len(label), 4) * CHARACTER + 18
