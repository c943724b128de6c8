"""Unfuse: replace every fused op by its body, under the original node names."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest

import onnx
from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.fusion.steps.k_major_weights import restore_weights
from onnxfuse.fusion.steps.padded_rows import restore_rows
from onnxfuse.fusion.steps.stored_transposes import share_back
from onnxfuse.model import provenance
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import bodies, every_name, nodes_of
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural


def unfuse(model: onnx.ModelProto, only: Collection[str] | None = None) -> int:
    """Replace the fused ops of `model` by their original nodes, in place; return how many there were.

    `only` selects those whose first output is among these values. Weights that were folded, and rewritten nodes, stay
    so: the computation is the same.
    """
    functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
    taken = _Taken(every_name(model.graph), {n.name for n in nodes_of(model.graph) if n.domain != DOMAIN})
    count = _unfuse_graph(model.graph, functions, only, taken)
    restore_weights(model)
    if count:
        share_back(model)
    restore_rows(model)
    left = {n.op_type for n in nodes_of(model.graph) if n.domain == DOMAIN}
    for function in list(model.functions):
        if function.domain == DOMAIN and function.name not in left:
            model.functions.remove(function)
    for opset in list(model.opset_import):
        if opset.domain == DOMAIN and not left:
            model.opset_import.remove(opset)
    return count


@dataclass(frozen=True)
class _Taken:
    """Names in use anywhere in a model: ONNX Runtime rejects duplicate names of values or nodes."""

    values: set[str]
    nodes: set[str]

    def value(self, name: str) -> str:
        """Return and reserve the name of a restored value."""
        return _free(name, self.values)

    def node(self, name: str) -> str:
        """Return and reserve the name of a restored node; unnamed nodes stay unnamed."""
        return _free(name, self.nodes) if name else ""


def _free(name: str, taken: set[str]) -> str:
    found, count = name, 1
    while found in taken:
        found, count = f"{name}_{count}", count + 1
    taken.add(found)
    return found


def _unfuse_graph(
    graph: onnx.GraphProto,
    functions: dict[str, onnx.FunctionProto],
    only: Collection[str] | None,
    taken: _Taken,
    outer: frozenset[str] = frozenset(),
) -> int:
    """Unfuse `graph` and then its nested bodies, which may read its constants; `outer` are the enclosing names."""
    known = {*outer, *(t.name for t in graph.initializer), *(o for n in graph.node for o in n.output)}
    nodes: list[NodeProto] = []
    count = 0
    for node in graph.node:
        if node.domain != DOMAIN or (only is not None and node.output[0] not in only):
            nodes.append(node)
            continue
        count += 1
        for inner in _expand(node, functions[node.op_type], taken):
            if inner.op_type != ops.Constant:
                nodes.append(inner)
            elif inner.output[0] not in known:
                known.add(inner.output[0])
                graph.initializer.add().CopyFrom(inner.attribute[0].t)
                graph.initializer[-1].name = inner.output[0]
    del graph.node[:]
    graph.node.extend(nodes)
    return count + sum(
        _unfuse_graph(b, functions, only, taken, frozenset(known)) for n in graph.node for b in bodies(n)
    )


def _expand(node: NodeProto, body: onnx.FunctionProto, taken: _Taken) -> list[NodeProto]:
    """Return the nodes of `body` with the names of `node`'s own values and of the nodes that it replaced."""
    values, replaced = provenance.names(node, "values"), provenance.names(node, "nodes")
    if values is None or replaced is None:
        raise ModelError(
            f"{node.op_type} does not say which nodes it replaced: another tool dropped its metadata_props",
            "Undo the model as onnxfuse wrote it, or inline its functions with onnx.inliner.",
        )
    inner = len(body.node) - len(replaced)
    # Constants precede the nodes; in a merged op, the nodes of each part.
    literals = set([n.output[0] for n in body.node if n.op_type == ops.Constant][: max(inner, 0)])
    formal = {f"v{i}": name for i, name in enumerate(values)}
    actual = {v: name if v in literals else taken.value(name) for v, name in formal.items()}
    # A call may omit trailing inputs: they are absent, like an empty name.
    actual.update(zip_longest(body.input, node.input, fillvalue=""))
    actual.update(zip(body.output, node.output, strict=False))
    strange = next((v for n in body.node for v in (*n.input, *n.output) if v and v not in actual), None)
    if strange is not None or len(literals) != inner:
        raise ModelError(
            f"what {node.op_type} '{node.name}' remembers of the nodes that it replaced is not its body's: "
            + (plural(replaced, "node") if strange is None else f"nothing of '{strange}'"),
            "A tool that rewrote the file changed one of them; optimize the original model again.",
        )
    nodes, old_names = [], iter(replaced)
    for old in body.node:
        copy = NodeProto()
        copy.CopyFrom(old)
        copy.name = "" if old.output[0] in literals else taken.node(next(old_names))
        del copy.input[:]
        del copy.output[:]
        copy.input.extend(actual[v] if v else "" for v in old.input)
        copy.output.extend(actual[v] if v else "" for v in old.output)
        nodes.append(copy)
    return nodes
