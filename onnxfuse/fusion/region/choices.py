"""Decisions from measurements (tuning): anchors at which a proposed fusion is skipped, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[str, tuple[str, ...]]
"""A fused op by its name and the values that it computes: the same each time a model is optimized by the same rules."""


@dataclass(frozen=True)
class Declined:
    """Why a proposed fusion is not made."""

    reason: str
    """With the times, as a person reads it."""
    alone: bool = False
    """Whether other rules leave the nodes alone, too."""
    library: bool = False
    """Whether the rule's own form through the library's op takes the kernel's place."""


@dataclass(frozen=True)
class Choices:
    """The outcome of measuring, for one run of the pipeline. What rules say of cost is not asked then."""

    declined: Mapping[Place, Declined] = field(default_factory=dict)
