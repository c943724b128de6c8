"""Decisions from measurements (tuning): anchors at which a proposed fusion is skipped, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Place = tuple[str, tuple[str, ...]]
"""A fused op by its name and outputs: stable between optimizations of a model by the same rules."""


@dataclass(frozen=True)
class Declined:
    """Reason for which a proposed fusion is not made."""

    reason: str
    """Readable text, with the measured times."""
    alone: bool = False
    """Whether other rules must not fuse the nodes either."""
    library: bool = False
    """Whether the rule's library form replaces the kernel."""


@dataclass(frozen=True)
class Choices:
    """Decisions from measurements for one run of the pipeline; they override the rules' cost conditions."""

    declined: Mapping[Place, Declined] = field(default_factory=dict)
