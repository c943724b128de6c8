"""Report of each product and convolution of quantized activations whether it sums integers, and why not.

A node that takes a product's place has its name, or that of its output, so that the file's nodes are found again once
the rules have made integers of them, and after that in the fused ops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxfuse.graph.float8 import multiplies_float8
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.ops import Trait, named
from onnxfuse.passes.quantization.weights import dequantizing, stays_floating_point
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.replace import PRODUCTS
from onnxfuse.rules.match.report import OptimizeReport, QuantizedProduct
from onnxfuse.rules.pattern.pattern import Pattern

BOTH_COMPUTED = "both factors are computed"
"""Kernels of integers multiply by constant weights, as MatMulInteger's entry says, too."""
ZERO_POINT = "its weight has a zero point"
"""Other than 0: without the sums of the activations' rows, integers do not give the same."""
NUMBERS = "rule {} computes it with floating-point numbers"
NO_RULE = "no rule makes a product of integers of it"

INTEGER_PRODUCTS = named(Trait.INTEGER_PRODUCT)
FACTORS = 2
"""Number of a product's operands that are multiplied; what follows is added."""
NO_ZERO_POINT = 2
"""Number of inputs of a DequantizeLinear without a zero point, as all are whose zero point is 0."""


def record(graph: Graph, report: OptimizeReport, nodes: Mapping[str, str]) -> None:
    """Record the products of quantized activations among `nodes`, those of the file as "Op name", by name."""
    for node in graph.nodes:
        if node.name in nodes and node.name not in report.products and _is_quantized(graph, node):
            report.products[node.name] = QuantizedProduct(nodes[node.name])


def explain(graph: Graph, report: OptimizeReport, rules: Sequence[Rule]) -> None:
    """Add to the recorded products whether they sum integers, else the reason; the rules have been applied."""
    if not report.products:
        return
    refused = _refused(report, rules)
    for node in graph.nodes:
        product = report.products.get(node.name)
        if product is None:
            continue
        if node.has(Trait.INTEGER_PRODUCT) or multiplies_float8(graph, node):
            report.products[node.name] = replace(product, is_integer=True)
        elif node.has(Trait.CONTRACTION):
            rule, reason = refused.get(node.name, ("", NO_RULE))
            report.products[node.name] = replace(
                product,
                is_integer=False,
                rule=rule,
                reason=_of_the_weight(graph, node) or reason,
                dequantizes_once=any(_dequantizes_once(graph, v) for v in node.inputs[:FACTORS]),
            )


def _of_the_weight(graph: Graph, node: Node) -> str:
    """Return why integers cannot be multiplied by a product's weight; empty for a constant one without a zero point.

    A rule's refusal names the spelling of its pattern at which it stopped, as the number of inputs.
    """
    if all(_dequantizes_computed(graph, v) for v in node.inputs[:FACTORS]):
        return BOTH_COMPUTED
    weights = [nodes[0] for v in node.inputs[:FACTORS] if (nodes := dequantizing(graph, v))]
    return ZERO_POINT if any(graph.is_constant(w.inputs[0]) and len(w.inputs) > NO_ZERO_POINT for w in weights) else ""


def _is_quantized(graph: Graph, node: Node) -> bool:
    """Return whether a node is a product of integers, or one that reads a dequantized value that is computed."""
    if node.domain or not node.has(Trait.CONTRACTION):
        return node.has(Trait.INTEGER_PRODUCT)
    return any(_dequantizes_computed(graph, v) for v in node.inputs[:FACTORS])


def _dequantizes_computed(graph: Graph, value: str) -> bool:
    nodes = dequantizing(graph, value)
    return bool(nodes) and not graph.is_constant(nodes[0].inputs[0])


def _dequantizes_once(graph: Graph, value: str) -> bool:
    nodes = dequantizing(graph, value)
    return bool(nodes) and stays_floating_point(graph, nodes[0], value)


def _refused(report: OptimizeReport, rules: Sequence[Rule]) -> Mapping[str, tuple[str, str]]:
    """Return by the name of a product the rule that did not make integers of it, and why.

    Of several, the one that got furthest. A rule that wrote the file's integers as floating-point numbers counts most.
    """
    making = {r.name for r in rules if any(_sums_integers(one.target) for one in r.rewrites)}
    undoing = {
        r.name for r in rules if any(_sums_integers(one.source) > _sums_integers(one.target) for one in r.rewrites)
    }
    roots = {f"{op} {name}": name for op in named(*PRODUCTS) for name in report.products}

    attempts = [n for n in report.attempts() if n.rule in making and n.root in roots]
    written = {node: a.rule for a in report.applied if a.rule in undoing for node in a.nodes}
    return {
        **{roots[n.root]: (n.rule, n.refusal.cause.fact) for n in sorted(attempts, key=lambda n: n.refusal.nearness)},
        **{
            name: (written[p.node], NUMBERS.format(written[p.node]))
            for name, p in report.products.items()
            if p.node in written
        },
    }


def _sums_integers(pattern: Pattern) -> bool:
    return any(node.op in INTEGER_PRODUCTS for node in pattern.nodes)
