"""What became of a model's quantized products and convolutions, in one sentence and as plain data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfuse.ops import Trait, named
from onnxfuse.rules.match.hint import without_names
from onnxfuse.rules.match.node_lookup import name_of
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, QuantizedProduct
from onnxfuse.support.plurals import agreeing, listed

NO_RULE = "no rule fuses it"


@dataclass(frozen=True)
class QuantizedProducts:
    """The products and convolutions of a model whose activations are quantized; nodes are those of the file, as
    "Op name"."""

    kernels: Mapping[str, Applied]
    """The fused op that multiplies integers, by node."""
    library: Mapping[str, str]
    """Why ONNX Runtime multiplies integers, by node."""
    floating_point: Sequence[QuantizedProduct]
    """Those that stay floating-point."""
    gone: Sequence[str]
    """Nodes that are folded, shared with an equal one, or rewritten by a pass that gives them other names."""

    def __str__(self) -> str:
        """One sentence; empty for a model without quantized products."""
        integers = len(self.kernels) + len(self.library)
        total, floating = integers + len(self.floating_point), len(self.floating_point)
        if not total:
            return ""
        noun = agreeing(total, "product or convolution", "products and convolutions")
        parts = [f"quantized: {integers} of {total} {noun} in 8 bits"]
        if self.library:
            parts.append(f"{len(self.library)} of them by ONNX Runtime: {_grouped(self.library)}")
        if floating:
            reasons = {p.node: p.reason for p in self.floating_point}
            parts.append(f"{floating} {agreeing(floating, 'stays', 'stay')} floating-point: {_grouped(reasons)}")
        if once := sum(p.dequantizes_once for p in self.floating_point):
            parts.append(
                f"{once} of their weights {agreeing(once, 'is', 'are')} dequantized once, when the model is optimized"
            )
        return "; ".join(parts)

    def at(self, names: Collection[str]) -> list[str]:
        """Return in a line each why nodes of these names stay floating-point, or with ONNX Runtime."""
        reasons = {p.node: f"stays floating-point: {p.reason}" for p in self.floating_point}
        reasons.update({node: f"ONNX Runtime multiplies its integers: {why}" for node, why in self.library.items()})
        return list(dict.fromkeys(line for node, line in reasons.items() if name_of(node) in names))

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "kernels": [{"node": node, "rule": a.rule, "op": a.op} for node, a in self.kernels.items()],
            "library": [{"node": node, "reason": reason} for node, reason in self.library.items()],
            "floating_point": [
                {"node": p.node, "rule": p.rule, "reason": p.reason, "dequantizes_once": p.dequantizes_once}
                for p in self.floating_point
            ],
            "gone": [*self.gone],
        }


def quantized_products(report: OptimizeReport) -> QuantizedProducts:
    """Return what became of the quantized products that a report records."""
    integers = {name: p.node for name, p in report.products.items() if p.is_integer}
    roots = {
        f"{op} {name}": node
        for name, node in integers.items()
        for op in named(Trait.INTEGER_PRODUCT, Trait.CONTRACTION)
    }
    kernels = {roots[line]: a for a in report.applied if a.op for line in a.nodes if line in roots}
    of_dequantized = {line: a for a in report.applied if a.integers for line in a.nodes}
    floating = [p for p in report.products.values() if p.is_integer is False]
    nearest: dict[str, Near] = {}
    for near in report.near:
        node = roots.get(near.root, "")
        if node not in nearest or near.refusal.nearness > nearest[node].refusal.nearness:
            nearest[node] = near
    return QuantizedProducts(
        {node: kernels[node] for node in integers.values() if node in kernels}
        | {p.node: of_dequantized[p.node] for p in floating if p.node in of_dequantized},
        {
            node: nearest[node].refusal.cause.fact if node in nearest else NO_RULE
            for node in integers.values()
            if node not in kernels
        },
        [p for p in floating if p.node not in of_dequantized],
        [p.node for p in report.products.values() if p.is_integer is None],
    )


def _grouped(reasons: Mapping[str, str]) -> str:
    """Return nodes and reasons, equal ones once: `Conv a (C % 16 is 3), MatMul b and 11 more (...)`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reason in reasons.items():
        groups.setdefault((node.partition(" ")[0], without_names(reason)), []).append(node)
    return listed(
        [f"{first}{f' and {len(more)} more' * bool(more)} ({reasons[first]})" for first, *more in groups.values()]
    )
