"""What becomes of each fused op in a session: its kernel runs, or its body does, and why."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from onnxfuse.files import io
from onnxfuse.graph.graph import bodies
from onnxfuse.model.fused import DOMAIN

Model = str | Path | bytes | onnx.ModelProto
"""A path, the bytes of a file, or the model itself."""

How = Literal["kernel", "library", "function"]


@dataclass(frozen=True)
class Placement:
    """How one fused op of a model runs in a session."""

    op: str
    """`op_type` in the domain `onnxfuse`."""
    rule: str
    """The rule that made the op."""
    nodes: int
    """How many nodes of the model are this op."""
    runs_as: How
    """`kernel`: our CUDA kernel; `library`: an op of ONNX Runtime's own; `function`: ONNX Runtime inlines the body."""
    reason: str
    """Why the body runs; empty for a kernel and the library."""


def read(model: Model) -> onnx.ModelProto:
    """Return the model for looking at its graph and functions; weights in files stay where they are."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return io.parse(model, "the model given as bytes")
    return io.outline(model)


def path_of(model: Model) -> Path | None:
    """Return the path of a model in a file, beside which its external data and its kernel pack lie."""
    return Path(model) if isinstance(model, str | Path) else None


def node_counts(model: onnx.ModelProto) -> Counter[str]:
    """Count the nodes of each fused op: in the graph, in the bodies of If, Loop and Scan, in other functions."""
    elsewhere = [f.node for f in model.functions if f.domain != DOMAIN]
    return Counter(n.op_type for nodes in (model.graph.node, *elsewhere) for n in _deep(nodes) if n.domain == DOMAIN)


def _deep(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from _deep(body.node)
