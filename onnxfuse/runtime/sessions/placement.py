"""How each fused op runs in a session: as a kernel, as a library op, or through its body, and why."""

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
"""A path, serialized bytes, or a ModelProto."""

How = Literal["kernel", "onnxruntime", "body"]


@dataclass(frozen=True)
class Placement:
    """How one fused op of a model runs in a session."""

    op: str
    """`op_type` in the domain `onnxfuse`."""
    rule: str
    """The rule that created the op."""
    nodes: int
    """Number of nodes in the model that are this op."""
    runs_as: How
    """`kernel`: our CUDA kernel; `library`: ONNX Runtime's own op; `function`: ONNX Runtime inlines the body."""
    reason: str
    """`kernel`: our CUDA kernel; `onnxruntime`: an op of ONNX Runtime; `body`: ONNX Runtime runs the replaced nodes."""


def read(model: Model) -> onnx.ModelProto:
    """Read the graph and functions of a model; weights in files stay there."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return io.parse(model, "the model given as bytes")
    return io.outline(model)


def path_of(model: Model) -> Path | None:
    """Return the path of a model's file, next to which its external data and its kernel pack are."""
    return Path(model) if isinstance(model, str | Path) else None


def node_counts(model: onnx.ModelProto) -> Counter[str]:
    """Count the nodes of each fused op in the graph, in bodies of If, Loop and Scan, and in other functions."""
    elsewhere = [f.node for f in model.functions if f.domain != DOMAIN]
    return Counter(n.op_type for nodes in (model.graph.node, *elsewhere) for n in _deep(nodes) if n.domain == DOMAIN)


def _deep(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from _deep(body.node)
