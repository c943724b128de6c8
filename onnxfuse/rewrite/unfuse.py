"""The way back: every fused op is replaced by its body, under the names that the nodes had."""

from collections.abc import Collection, Iterator
from itertools import zip_longest

import onnx
from onnx import NodeProto

from onnxfuse.model import provenance
from onnxfuse.model.errors import ModelError
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.graph import bodies


def unfuse(model: onnx.ModelProto, only: Collection[str] | None = None) -> int:
    """Replace the fused ops of `model` by the nodes that they stand for, in place; return how many there were.

    `only` chooses those whose first output is among these values. What was folded into weights stays folded: it is the
    same computation.
    """
    functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
    count = _unfuse_graph(model.graph, functions, only)
    left = set(_fused_in(model.graph))
    for function in list(model.functions):
        if function.domain == DOMAIN and function.name not in left:
            model.functions.remove(function)
    for opset in list(model.opset_import):
        if opset.domain == DOMAIN and not left:
            model.opset_import.remove(opset)
    return count


def _fused_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the fused ops of a graph and of the bodies inside it."""
    for node in graph.node:
        if node.domain == DOMAIN:
            yield node.op_type
        for body in bodies(node):
            yield from _fused_in(body)


def _unfuse_graph(
    graph: onnx.GraphProto,
    functions: dict[str, onnx.FunctionProto],
    only: Collection[str] | None,
    outer: frozenset[str] = frozenset(),
) -> int:
    """Unfuse `graph` and then the bodies inside it, which may read its constants; `outer` are the names around it."""
    known = {*outer, *(t.name for t in graph.initializer), *(o for n in graph.node for o in n.output)}
    nodes: list[NodeProto] = []
    count = 0
    for node in graph.node:
        if node.domain != DOMAIN or (only is not None and node.output[0] not in only):
            nodes.append(node)
            continue
        count += 1
        for inner in _expand(node, functions[node.op_type]):
            if inner.op_type != "Constant":
                nodes.append(inner)
            elif inner.output[0] not in known:
                known.add(inner.output[0])
                graph.initializer.add().CopyFrom(inner.attribute[0].t)
                graph.initializer[-1].name = inner.output[0]
    del graph.node[:]
    graph.node.extend(nodes)
    return count + sum(_unfuse_graph(b, functions, only, frozenset(known)) for n in graph.node for b in bodies(n))


def _expand(node: NodeProto, body: onnx.FunctionProto) -> list[NodeProto]:
    """Return the nodes of `body` with the names of `node`'s own values and of the nodes it replaced."""
    values, replaced = provenance.names(node, "values"), provenance.names(node, "nodes")
    if values is None or replaced is None:
        raise ModelError(
            f"{node.op_type} does not say which nodes it replaced: another tool dropped its metadata_props",
            "Undo the model as onnxfuse wrote it, or inline its functions with onnx.inliner.",
        )
    literals = sum(n.op_type == "Constant" for n in body.node[: max(len(body.node) - len(replaced), 0)])
    actual = {f"v{i}": name for i, name in enumerate(values)}
    # A call may leave out what stands last: it is then not given, as an empty name says.
    actual.update(zip_longest(body.input, node.input, fillvalue=""))
    actual.update(zip(body.output, node.output, strict=False))
    strange = next((v for n in body.node for v in (*n.input, *n.output) if v and v not in actual), None)
    if strange is not None or len(body.node) - literals != len(replaced):
        raise ModelError(
            f"what {node.op_type} '{node.name}' remembers of the nodes that it replaced is not its body's: "
            + (f"{len(replaced)} nodes" if strange is None else f"nothing of '{strange}'"),
            "A tool that rewrote the file changed one of them; optimize the original model again.",
        )
    names = iter(replaced)
    nodes = []
    for index, inner in enumerate(body.node):
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = "" if index < literals else next(names)
        del copy.input[:]
        del copy.output[:]
        copy.input.extend(actual[v] if v else "" for v in inner.input)
        copy.output.extend(actual[v] if v else "" for v in inner.output)
        nodes.append(copy)
    return nodes
