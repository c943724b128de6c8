"""The operators of ONNX: one entry each, with the traits that passes, templates, reference and profiler ask for."""

from onnxfuse.ops import (
    attention,
    contraction,
    contrib,
    control_flow,
    elementwise,
    generate,
    movement,
    quantize,
    recurrent,
    reduction,
    select,
    text,
    window,
)
from onnxfuse.ops.registry import Operator, Trait, registry

__all__ = ["ENTRIES", "Operator", "Trait", "named", "operator"]

ENTRIES = registry(
    attention.ENTRIES, contraction.ENTRIES, contrib.ENTRIES, control_flow.ENTRIES, elementwise.ENTRIES,
    generate.ENTRIES, movement.ENTRIES, quantize.ENTRIES, recurrent.ENTRIES, reduction.ENTRIES, select.ENTRIES,
    text.ENTRIES, window.ENTRIES,
)  # fmt: skip
"""All entries by (domain, operator), the default domain as ""."""


def operator(name: str, domain: str = "") -> Operator | None:
    """Return the entry of an operator, None for one that has none."""
    return ENTRIES.get((domain if domain != "ai.onnx" else "", name))


def named(*traits: Trait) -> frozenset[str]:
    """Return the operators of the default domain that have any of these traits."""
    return frozenset(name for (domain, name), one in ENTRIES.items() if not domain and one.traits & {*traits})
