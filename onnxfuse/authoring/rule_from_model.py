"""Derive the skeleton of a rule from a model: the requested nodes, extracted as a pattern and as an example."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse import cuda, ops
from onnxfuse.api.request.origin import Origin
from onnxfuse.authoring.testing import operators
from onnxfuse.files.model_source import Model, path_or_proto
from onnxfuse.graph.graph import Graph, Node, bodies
from onnxfuse.graph.normalize import normalize
from onnxfuse.model import schema
from onnxfuse.model.display_names import as_line
from onnxfuse.model.schema import opset_of
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match import node_lookup
from onnxfuse.rules.match.match import operands_of
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.pattern.pattern import NEWEST
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import Dim, ValueType
from onnxfuse.support.bounded_text import parse_model
from onnxfuse.support.errors import OnnxfuseError, UsageError
from onnxfuse.symbolic.integer import Int

MOST = 64
"""Largest number of nodes extracted if one is named: it and its producers."""

FEW = 64
"""Largest weight that is written into an example; a larger one becomes an input of it."""

TO_DO = "Write `to` yourself: this placeholder is wrong, and --test fails until it is replaced."


@dataclass(frozen=True)
class RuleSkeleton:
    """A rule file that was written."""

    path: Path
    nodes: tuple[str, ...]
    """The extracted nodes, as "Op name"."""
    kind: str
    """Kind of the skeleton: the template of its kernel, or "rewrite"."""
    products: tuple[str, ...] = ()
    """The matrix products (and their biases) at which the extraction ended, as "Op name", if one node was named."""
    beyond_limit: tuple[str, ...] = ()
    """Producers beyond the limit of MOST nodes, as "Op name"."""

    def as_dict(self, rule: str) -> dict[str, Any]:
        """Return what was written as plain data for JSON."""
        return {
            "rule": rule, "file": str(self.path), "kind": self.kind, "nodes": list(self.nodes),
            "products": list(self.products), "cut": list(self.beyond_limit),
        }  # fmt: skip


@dataclass(frozen=True)
class _SelectedNodes:
    nodes: list[Node]
    products: list[Node]
    beyond_limit: list[Node]


def write_skeleton(name: str, model: Model, at: Sequence[str], folder: Path, *, rewrite: bool = False) -> RuleSkeleton:
    """Write the file of a new rule into `folder` and return what it holds.

    `at` are the nodes to cover, by name, value or pattern; for a single one also its producers that nothing else reads,
    MOST at most, back to matrix products by a weight and their biases, which have kernels of their own. If a kernel
    supports them, the rule fuses them; else, and with `rewrite`, it is a rewrite whose `to` remains to be written.
    Raises UsageError for an unknown or already used name, and for nodes that do not form one block.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(
            f"'{name}' is not a valid name for a rule", "Use letters, digits and _: it is also the name of the file."
        )
    if name in rule_file.shipped_files():
        raise UsageError(
            f"'{name}' is a shipped rule, which a file of that name would override",
            f"Choose another name; onnxfuse rules {name} shows the shipped rule.",
        )
    path = folder / f"{name}.toml"
    if os.path.lexists(path):
        raise UsageError(f"{path}: already exists", "Choose another name, or remove the file first.")
    origin = Origin(path_or_proto(model))
    ours = origin.fresh()
    normalize(ours)
    graph = Graph(ours.graph, infer(ours).graph, opset_of(ours))
    region = _region(graph, node_lookup.NodeNames(ours, (), origin.source), at)
    subgraph = _Subgraph(graph, region.nodes)
    folder.mkdir(parents=True, exist_ok=True)
    kind, text = _text(path, subgraph, rewrite=rewrite)
    path.write_text(text, encoding="utf-8")
    nodes, products, beyond_limit = (
        tuple(f"{n.op} {n.name}" for n in which) for which in (region.nodes, region.products, region.beyond_limit)
    )
    return RuleSkeleton(path, nodes, kind, products, beyond_limit)


def _region(graph: Graph, names: node_lookup.NodeNames, at: Sequence[str]) -> _SelectedNodes:
    """Return the requested nodes in order, and the producers at which the region ends."""
    requested = {node for one in at for node in names.find(one, OptimizeReport()).nodes}
    nodes = dict.fromkeys(n for n in graph.nodes if n.name in requested and n.op != ops.Constant)
    if not nodes:
        raise UsageError(
            f"{', '.join(at)}: no node of the main graph computes that", "Name nodes outside branches and loops."
        )
    products, beyond_limit = dict[Node, None](), dict[Node, None]()
    if len(nodes) == 1:
        waiting = list(nodes)
        for node in waiting:
            for before in _producers(graph, node):
                if before in nodes or any(graph.is_read_outside(v, nodes) for v in before.outputs if v):
                    continue
                if _is_product_or_bias(graph, before):
                    products[before] = None
                elif len(nodes) == MOST:
                    beyond_limit[before] = None
                else:
                    nodes[before] = None
                    waiting.append(before)
    region = sorted(nodes, key=lambda n: n.order)
    inner = next((n for n in region if any(True for _ in bodies(n.proto))), None)
    if inner is not None:
        raise UsageError(
            f"{inner.op} {inner.name} contains a subgraph",
            "A pattern consists of plain nodes, without branches and loops.",
        )
    untyped = next((v for n in region for v in (*n.reads, *n.outputs) if v and _is_untyped(graph.type(v))), None)
    if untyped is not None:
        raise UsageError(f"the type of '{untyped}' is not known", "onnxfuse explain says where types are lost.")
    return _SelectedNodes(region, list(products), list(beyond_limit))


def _producers(graph: Graph, node: Node) -> list[Node]:
    producers = (graph.producer(v) for v in node.inputs if v)
    return [before for before in producers if before is not None and before.op != ops.Constant]


def _is_product_or_bias(graph: Graph, node: Node) -> bool:
    """Return whether a node is a product by a weight, or adds the bias to one."""
    weights = [v for v in node.reads if graph.is_constant(v)]
    if node.op == ops.Add and not node.domain:
        return bool(weights) and any(_is_product(graph, before) for before in _producers(graph, node))
    return _is_product(graph, node)


def _is_product(graph: Graph, node: Node) -> bool:
    """Return whether a node reads a large weight matrix other than element by element."""
    if node.is_elementwise:
        return False
    shapes = [graph.type(v).shape or () for v in node.reads if graph.is_constant(v)]
    return any(sum(d != 1 for d in shape) > 1 and _elements(shape) > FEW for shape in shapes)


def _elements(shape: Sequence[Dim]) -> int:
    return math.prod(d for d in shape if isinstance(d, int))


def _is_untyped(type_: ValueType) -> bool:
    return not type_.dtype or type_.shape is None


class _Subgraph:
    """The nodes under short names: inputs x0, x1, inner values v0, v1, output y, constants c0, c1."""

    def __init__(self, graph: Graph, region: Sequence[Node]) -> None:
        self.graph = graph
        self.region = region
        reads, self.outputs = graph.inputs_of(region), graph.outputs_of(region)
        self.weights = [v for v in reads if (graph.element_count(v) or FEW + 1) <= FEW]
        self.inputs = [v for v in reads if v not in self.weights]
        inner = [o for n in region for o in n.outputs if o and o not in self.outputs]
        self.names: dict[str, str] = {}
        for letter, values in (("x", self.inputs), ("y", self.outputs), ("c", self.weights), ("v", inner)):
            alone = len(values) == 1 and letter in "xy"
            self.names.update({v: letter if alone else f"{letter}{i}" for i, v in enumerate(values)})
        self.dims: dict[str, str] = {}

    def typed(self, value: str) -> str:
        """Return the type of a value in ONNX text; symbolic extents become letters."""
        type_ = self.graph.type(value)
        extents = [str(d) if isinstance(d, int) else self._letter(d) for d in type_.shape or ()]
        element = onnx.TensorProto.DataType.Name(type_.dtype).lower()
        return f"{element}[{','.join(extents)}]" if extents else element

    def _letter(self, dim: Int | None) -> str:
        key = f"{len(self.dims)}th" if dim is None else str(dim)
        free = [c for c in "NSTUVWABCDEFGH" if c not in self.dims.values()] or [f"D{len(self.dims)}"]
        return self.dims.setdefault(key, free[0])

    def example(self, *inner_outputs: str) -> str:
        """Return the nodes as a model in ONNX text; `inner_outputs` are inner values that are also outputs."""
        graph = self.graph
        domains = {n.domain: 1 for n in self.region if n.domain} | {"": graph.opset}
        imports = ", ".join(f'"{domain}" : {version}' for domain, version in sorted(domains.items()))
        reads = ", ".join(f"{self.typed(v)} {self.names[v]}" for v in self.inputs)
        results = ", ".join(f"{self.typed(v)} {self.names[v]}" for v in (*self.outputs, *inner_outputs))
        weights = ", ".join(f"{self.typed(v)} {self.names[v]} = {_numbers(graph, v)}" for v in self.weights)
        head = f"<ir_version: 8, opset_import: [{imports}]>\ng ({reads}) => ({results})"
        nodes = "\n".join(f"  {as_line(self._renamed(n.proto))}" for n in self.region)
        return f"{head}{f' <{weights}>' if weights else ''} {{\n{nodes}\n}}"

    def _renamed(self, proto: onnx.NodeProto) -> onnx.NodeProto:
        node = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain)
        node.input.extend(self.names.get(v, "") for v in proto.input)
        node.output.extend(self.names.get(v, "") for v in proto.output)
        node.attribute.extend(proto.attribute)
        return node

    def pattern(self) -> tuple[str, list[str]]:
        """Return the nodes as a pattern, in the newest form of their operators, and the inputs that are weights."""
        lines, weight_names, inputs = list[str](), dict[str, str](), [self.names[v] for v in self.inputs]
        for node in self.region:
            reads = []
            for index, operand in enumerate(operands_of(self.graph, node)):
                if isinstance(operand, np.ndarray):
                    word = f"{self.names[next(o for o in node.outputs if o)]}_{index}"
                    lines.append(f"{word} = {_constant(operand)}")
                elif operand not in self.weights:
                    word = self.names.get(operand, "")
                else:
                    word = self.names[operand]
                    array = self.graph.constant(operand)
                    written = None if array is None else _constant(array)
                    if written is not None and operand not in weight_names:
                        lines.append(f"{word} = {written}")
                    elif written is None and word not in inputs:
                        inputs.append(word)
                    weight_names[operand] = word
                reads.append(word)
            proto = onnx.NodeProto(op_type=node.op, domain=node.domain)
            proto.input.extend(reads)
            proto.output.extend(self.names.get(v, "") for v in node.outputs)
            moved_attributes = schema.moved(node.op, node.domain, self.graph.opset)
            newest = schema.defaults(node.op, node.domain, NEWEST)
            proto.attribute.extend(
                a for a in node.proto.attribute
                if a.name not in moved_attributes and onnx.helper.get_attribute_value(a) != newest.get(a.name)
            )  # fmt: skip
            lines.append(as_line(proto))
        outputs = [self.names[v] for v in self.outputs]
        return _function(inputs, outputs, lines), [w for w in inputs if w in {self.names[v] for v in self.weights}]


def _function(inputs: Sequence[str], outputs: Sequence[str], lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{body}\n}}"


def _constant(array: np.ndarray) -> str | None:
    """Return the pattern node that requires this constant; None unless it is a scalar or a list of integers."""
    if array.size == 1 and array.dtype.kind not in "iub":
        return f"Constant <value = float {{{_decimal(float(array.reshape(-1)[0]))}}}> ()"
    if array.ndim <= 1 and array.dtype.kind in "iu":
        return f"Constant <value_ints = [{','.join(str(int(v)) for v in array.reshape(-1))}]> ()"
    return None


def _decimal(value: float) -> str:
    if not math.isfinite(value):
        return repr(value)
    return np.format_float_positional(np.float32(value), trim="0", unique=True)


def _numbers(graph: Graph, value: str) -> str:
    """Format a weight's numbers in ONNX text: half types by their bits."""
    tensor = graph.constant_tensor(value)
    assert tensor is not None
    array = onnx.numpy_helper.to_array(tensor).reshape(-1)
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV":
        words = [str(int(v)) for v in array.view(np.uint16)]
    else:
        words = [str(int(v)) if array.dtype.kind in "iub" else _decimal(float(v)) for v in array]
    return f"{{{', '.join(words)}}}"


# ---- the file


def _text(path: Path, subgraph: _Subgraph, *, rewrite: bool) -> tuple[str, str]:
    """Return the kind of the skeleton, and the text of the file."""
    pattern, weights = subgraph.pattern()
    chain = " ".join(n.op for n in subgraph.region)
    where = f'where = ["const({", ".join(weights)})"]\n' if weights else ""
    large = [v for v in subgraph.inputs if subgraph.graph.is_constant(v)]
    note = "".join(f"# {subgraph.names[v]} is a weight of the model, too large to be written here.\n" for v in large)
    # Later rules take nodes from earlier ones: try the kernel that covers the most nodes, with the fewest requirements.
    templates = [] if rewrite else [t.name for t in sorted(cuda.TEMPLATES.values(), key=lambda t: -t.order)]
    for template in templates:
        head = f"[fuse]\ntemplate = \"{template}\"\n\n[[fuse.anchor]]\npattern = '''{pattern}'''\n{where}"
        summary = f'summary = "{chain} in one kernel."\n\n{note}'
        examples = _examples(path, subgraph, f"{summary}{head}")
        if examples is not None:
            return template, f"{summary}{head}{examples}"
    inputs, outputs = pattern.split("{")[0].split(" => ")
    first = inputs.strip("() ").split(",")[0]
    to = "\n".join(f"  {o.strip()} = Identity ({first})" for o in outputs.strip("() ").split(","))
    replacing = f"[[rewrite]]\nfrom = '''{pattern}'''\n# {TO_DO}\nto = '''{inputs} => {outputs}{{\n{to}\n}}'''\n{where}"
    operators_left = ", ".join(['"Identity"'] * len(subgraph.outputs))
    after = f"[[example]]\nmodel = '''{subgraph.example()}'''\nafter = [{operators_left}]\n"
    return "rewrite", f'summary = "{chain} becomes something better."\n\n{note}{replacing}\n{after}'


def _examples(path: Path, subgraph: _Subgraph, rule: str) -> str | None:
    """Return an example that applies, and one that must not; None if the rule makes no op of the nodes."""
    path.write_text(rule, encoding="utf-8")
    try:
        one = rule_file.read(path)
        model = parse_model(subgraph.example())
        if not pipeline.run(model, [one]).applied:
            return None
        after = ", ".join(f'"{op}"' for op in operators(model))
        text = f"\n[[example]]\nmodel = '''{subgraph.example()}'''\nafter = [{after}]\n"
        inner = [v for n in subgraph.region for v in n.outputs if v and v not in subgraph.outputs]
        if inner:
            refused = parse_model(subgraph.example(inner[-1]))
            report = pipeline.run(refused, [one])
            reason = next((n.refusal.reason for n in report.near if "graph output" in n.refusal.reason), "")
            if reason and not report.applied:
                text += f"\n[[example]]\nmodel = '''{subgraph.example(inner[-1])}'''\nrefusal = \"{reason}\"\n"
        return text
    except OnnxfuseError:
        return None
    finally:
        path.unlink()
