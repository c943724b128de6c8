"""Move equal weights of several subgraphs to the main graph: constants folded in each branch of an If."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, TensorProto

from onnxfuse.files import detached
from onnxfuse.files.io import tensor_bytes
from onnxfuse.model.nested import bodies, defined, graphs_in

LEAST = 1024
"""Bytes. Smaller constants stay in their bodies."""


def share_equal_weights(model: ModelProto) -> None:
    """Move weights that several bodies share to the main graph, in place."""
    inside = [(g, t) for node in model.graph.node for g in graphs_in(node) for t in _weights(g)]
    kinds = {(t.data_type, tuple(t.dims)) for _, t in inside}
    replaceable = {i.name for i in model.graph.input}
    outside = [t for t in model.graph.initializer if (t.data_type, tuple(t.dims)) in kinds]
    homes = {_content(t): t.name for t in outside if t.name not in replaceable}
    found: dict[bytes, list[tuple[GraphProto, TensorProto]]] = {}
    for graph, tensor in inside:
        found.setdefault(_content(tensor), []).append((graph, tensor))
    graphs = [model.graph, *(g for node in model.graph.node for g in graphs_in(node))] if found else []
    taken = Counter(name for graph in graphs for name in defined(graph))
    for content, places in found.items():
        if content not in homes and len(places) < 2:
            continue
        if content not in homes:
            taken.subtract(t.name for _, t in places)
            homes[content] = name = _fresh(places[0][1].name, taken)
            taken[name] += 1
            model.graph.initializer.add().CopyFrom(places[0][1])
            model.graph.initializer[-1].name = name
        for graph, tensor in places:
            if tensor.name != homes[content]:
                _rename(graph, tensor.name, homes[content])
            graph.initializer.remove(tensor)


def _weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the weights of a body that only its nodes read."""
    public = {v.name for v in (*graph.input, *graph.output)}
    for tensor in graph.initializer:
        if tensor.name not in public and tensor_bytes(tensor) >= LEAST:
            yield tensor


def _content(tensor: TensorProto) -> bytes:
    """Return a key of a weight's data, independent of its name."""
    tensor = detached.attached(tensor)
    digest = hashlib.sha256(repr((tensor.data_type, list(tensor.dims))).encode())
    if tensor.HasField("raw_data"):
        digest.update(tensor.raw_data)
    else:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        digest.update(copy.SerializeToString(deterministic=True))
    return digest.digest()


def _fresh(base: str, taken: Mapping[str, int]) -> str:
    name, count = base, 1
    while taken.get(name):
        name, count = f"{base}_{count}", count + 1
    return name


def _rename(graph: GraphProto, old: str, new: str) -> None:
    """Rename inputs of a graph's nodes, and of its nested bodies, from `old` to `new`."""
    for node in graph.node:
        for i, value in enumerate(node.input):
            if value == old:
                node.input[i] = new
        for body in bodies(node):
            _rename(body, old, new)
