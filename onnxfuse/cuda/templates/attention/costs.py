"""Measured costs of the attention template's kernels; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class AttentionCosts:
    """Sizes by which the template chooses its kernel and partitions."""

    short: int
    few_rows: int
    together_keys: int
    together_share: float
    long: int


def costs_of(arch: Arch) -> AttentionCosts:
    """Return the costs of the attention template on an architecture."""
    return tables.section(arch.name, "attention", AttentionCosts)
