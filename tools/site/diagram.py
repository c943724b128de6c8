"""A small model as an SVG drawing: inputs, nodes and outputs from top to bottom, what a rule changes in colour.

Its colours are classes of the site's style sheet, so that it follows the light and the dark form of the page.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import onnx

from onnxfuse.model.display_names import short
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.reporting.graph_drawing import ROW, Point, layout
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types

CHARACTER = 7.4
"""Width of a letter, in pixels at a font of 12.5."""
HEIGHT = 26.0
"""Of a node."""
LAYER = 50.0
"""Distance of two layers."""

Key = tuple[str, ...]
"""What makes two nodes the same: operator, inputs and outputs."""


@dataclass(frozen=True)
class Node:
    """One box."""

    label: str
    kind: str
    """The class of the style sheet: `end` for inputs and outputs, `node`, `changed` or `kernel`."""
    title: str
    """What is told where the pointer rests on it."""


def keys(model: onnx.ModelProto) -> Set[Key]:
    """Return what identifies the nodes of a model."""
    return {_key(n) for n in model.graph.node}


def _key(node: onnx.NodeProto) -> Key:
    return (node.op_type, *node.input, "->", *node.output)


def drawing(model: onnx.ModelProto, same: Set[Key], name: str) -> str:
    """Return the SVG of a model's graph without its constants; what is not among `same` is shown as changed."""
    types = value_types(infer(model).graph)
    ops = fused_ops(model)
    weights = {t.name for t in model.graph.initializer}
    nodes: list[Node] = []
    producers: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    for value in model.graph.input:
        if value.name not in weights:
            producers[value.name] = len(nodes)
            nodes.append(Node(f"{value.name}: {types[value.name]}", "end", "input"))
    for proto in model.graph.node:
        if proto.op_type == "Constant":
            continue
        edges += [(producers[v], len(nodes)) for v in dict.fromkeys(proto.input) if v in producers]
        producers.update((v, len(nodes)) for v in proto.output if v)
        made = ", ".join(f"{v}: {types[v]}" if v in types else v for v in proto.output if v)
        if proto.domain == DOMAIN:
            body = [n.op_type for n in ops[proto.op_type].body.node if n.op_type != "Constant"]
            nodes.append(Node(short(body, 3), "kernel", f"one fused op of {' + '.join(body)}: {made}"))
        else:
            nodes.append(Node(proto.op_type, "node" if _key(proto) in same else "changed", made))
    for value in model.graph.output:
        if value.name in producers:
            edges.append((producers[value.name], len(nodes)))
            nodes.append(Node(f"{value.name}: {types.get(value.name, '?')}", "end", "output"))
    return _svg(nodes, edges, name)


def _svg(nodes: Sequence[Node], edges: Sequence[tuple[int, int]], name: str) -> str:
    widths = [len(n.label) * CHARACTER + 20 for n in nodes]
    drawn = layout(widths, edges)
    scale = LAYER / ROW
    width, height = drawn.width, drawn.height * scale
    lines = [_line([(x, y * scale) for x, y in line]) for line in drawn.lines]
    boxes = [_box(n, w, (x, y * scale)) for n, w, (x, y) in zip(nodes, widths, drawn.places, strict=True)]
    return (
        f'<svg class="graph" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(name)}">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _line(points: Sequence[Point]) -> str:
    """Return an edge from the lower side of its first node to the upper side of its last one, with an arrow's head."""
    (x, y), (u, v) = points[0], points[-1]
    path = [(x, y + HEIGHT / 2), *points[1:-1], (u, v - HEIGHT / 2 - 4)]
    text = f"M{path[0][0]:.0f} {path[0][1]:.0f}"
    for (a, b), (c, d) in pairwise(path):
        middle = (b + d) / 2
        text += f"C{a:.0f} {middle:.0f} {c:.0f} {middle:.0f} {c:.0f} {d:.0f}"
    tip = path[-1][1] + 4
    head = f"M{u - 3.5:.1f} {tip - 6:.0f}L{u + 3.5:.1f} {tip - 6:.0f}L{u:.1f} {tip:.0f}z"
    return f'<path class="edge" d="{text}"/><path class="head" d="{head}"/>'


def _box(node: Node, width: float, place: Point) -> str:
    x, y = place
    radius = HEIGHT / 2 if node.kind == "end" else 5
    return (
        f'<g class="{node.kind}"><title>{escape(node.title)}</title>'
        f'<rect x="{x - width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{width:.0f}" height="{HEIGHT:.0f}" '
        f'rx="{radius:g}"/>'
        f'<text x="{x:.0f}" y="{y + 4.5:.0f}">{escape(node.label)}</text></g>'
    )
