"""Read the times per node from a file of `onnxfuse profile --json`, whose content is not trusted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfuse.support.bounded_text import read_json, read_text
from onnxfuse.support.errors import ModelError, UsageError

OWN = re.compile(r"(/MatMulAddFusion|_nchwc|_token_\d+)+$")
"""Suffixes that ONNX Runtime 1.31 appends to the name of a node or its output if it runs in another form."""


@dataclass(frozen=True)
class Times:
    """Node times from a profile."""

    where: str
    """Where they were measured."""
    shapes: Mapping[str, Sequence[int]]
    """Shape of each input in the profiled run."""
    sides: Mapping[str, Mapping[str, Mapping[str, float]]]
    """For `before` and `after`, by the name of a node, `us`: microseconds per run."""

    def named(self, side: str, model: ModelProto) -> dict[str, dict[str, float]]:
        """Return the times by the names of the model's nodes; nodes created by ONNX Runtime are omitted."""
        names = {n.name or next(iter(n.output), ""): n.name or next(iter(n.output), "") for n in model.graph.node}
        for node in model.graph.node:
            for value in node.output:
                names.setdefault(value, node.name or node.output[0])
        times_by_name: dict[str, dict[str, float]] = {}
        for name, cost in self.sides.get(side, {}).items():
            node_times = names.get(name) or names.get(OWN.sub("", name))
            if node_times:
                total = times_by_name.setdefault(node_times, {"us": 0.0})
                total["us"] += cost["us"]
        return times_by_name

    def check(self, models: Mapping[str, ModelProto]) -> None:
        """Raise UsageError if it names no node of the models, given by side."""
        if not any(self.named(side, model) for side, model in models.items()):
            raise UsageError(
                f"{self.where}: names no node of this model", "Profile the same files: onnxfuse profile IN OUT --json"
            )


def read_times(path: Path) -> Times:
    """Return the times in the file. Raises ModelError for an invalid profile, UsageError for one without times."""
    try:
        facts = read_json(read_text(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "Check the path.") from None
    except ValueError as error:
        raise ModelError(f"{path}: is not what onnxfuse profile --json prints: {error}") from None
    if not isinstance(facts, dict) or facts.get("command") != "profile" or not facts.get("ok", False):
        raise ModelError(f"{path}: is not what onnxfuse profile --json prints", "Write it: onnxfuse profile IN --json")
    try:
        return times_of(facts, str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: is not what onnxfuse profile --json prints: {error!r}") from None


def times_of(facts: Mapping[str, Any], where: str = "the profile") -> Times:
    """Return the times in the facts of a profile; raises UsageError for one without times."""
    shapes = {str(name): tuple(int(s) for s in shape) for name, shape in facts["shapes"].items()}
    sides = {side: _side(facts[side]) for side in ("before", "after") if facts[side] is not None}
    if facts["after"] is None:  # a single model, which may be the fused one
        sides["after"] = sides["before"]
    if not any(sides.values()):
        why = facts.get("untimed") or "it was made with --no-time"
        raise UsageError(f"{where}: holds no times: {why}", "Without a profile the colours are estimated bytes.")
    return Times(where, shapes, sides)


def _side(facts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the time of each node: on the device if kernels were traced, else ONNX Runtime's node time."""
    times_by_name: dict[str, dict[str, float]] = {}
    for node in facts["nodes"]:
        us = node["device_us"] if node["device_us"] is not None else node["us"]
        times_by_name.setdefault(str(node["name"]), {"us": 0.0})["us"] += float(us)
    return times_by_name
