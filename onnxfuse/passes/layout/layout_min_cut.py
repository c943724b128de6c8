"""The layout phase: convert regions of convolutions to channels last, with Transposes only at their edges.

A convolution on tensor cores works on [batch, height, width, channels]. Given channels first, the library transposes
its input and its output each time. So a channels-last node saves those transposes, an edge between the two layouts
costs one Transpose, and the cheapest assignment for all nodes of a graph is a minimum cut of a flow network whose two
sides are the layouts.

The resulting file is plain ONNX, in which convolutions are channels first: a Conv stands between a Transpose of its
input, one of its weight and one of its output. Fused ops and the library's own op absorb all four.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from onnx import TensorProto

from onnxfuse import cuda, ops
from onnxfuse.graph.channels import (
    LAST_ROW,
    ROW,
    is_nchw_to_nhwc,
    is_nhwc_to_nchw,
    is_signal_transpose,
    to_first,
    to_last,
    with_row,
)
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.layout.all_axes import names_some_axes
from onnxfuse.passes.layout.convolutions import CONVOLUTIONS
from onnxfuse.passes.layout.ops import form
from onnxfuse.passes.layout.writer import ChannelsLast, ChannelsLastWriter, Form, stands_still
from onnxfuse.rules.language import order
from onnxfuse.rules.language.fuse_table import THROUGH_LIBRARY
from onnxfuse.rules.language.rule_file import Rule, shipped
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport, names
from onnxfuse.rules.rewriting.rewrite import find
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import ValueType

UNKNOWN_EXTENT = 32
"""Assumed value of a dynamic extent: costs are only compared with each other, so any value works."""

BYTES = (TensorProto.INT8, TensorProto.UINT8)

RESHAPE = 1
"""Cost of a Reshape where a Transpose would move no data: it is free itself, but separates what could be one kernel."""


FuseGraph = Callable[[Graph], object]
"""Fuses a graph as the pipeline does next."""


def assign_layout(graph: Graph, rules: Sequence[Rule], report: OptimizeReport, fuse: FuseGraph) -> bool:
    """Convert convolutions of `graph`, and nodes between them, to channels last where a rule enables it.

    A convolution is converted only if an op of ONNX Runtime computes it channels last, or a kernel: where there is no
    such op, as for bfloat16, a copy of the graph is fused to see. Return whether any were converted.
    """
    rule = next((r for r in order.rewriting(rules) if r.layout is not None), None)
    if rule is None or rule.layout is None:
        return False

    def refuse(node: Node, reason: str) -> None:
        refusal = Refusal(node.name, Cause("layout", seen=reason), 1, 1)
        report.stopped.append(Near(rule.name, f"{node.op} {node.name}", refusal))

    blocking = next((n for n in graph.nodes if names_some_axes(graph, n)), None)
    if blocking is not None:
        reason = "names some axes alone: ONNX Runtime does not open the Transposes of channels-last regions beside it"
        refuse(blocking, reason)
        return False
    absorbed, first, largest = _absorbed(rules), dict[str, None](), False
    while True:
        forms = _forms(graph, rule.layout.types, first)
        saving = [n for n, f in forms.items() if f.saves]
        cheapest = _cheapest(graph, forms, largest=largest) if saving else {}
        chosen = {n: f for n, f in cheapest.items() if not _lies_last(graph, n, f, absorbed)}
        if not chosen:
            break
        before, replaced = graph.snapshot(), names(list(chosen))
        alone = _computed_by_none(graph, _write(graph, chosen), fuse)
        if not alone:
            report.applied.append(Applied(rule.name, "", replaced))
            break
        graph.restore(before)
        # Kernels may need what follows a convolution: at equal costs it is converted, too.
        first.update(dict.fromkeys(alone if largest else ()))
        largest = True
    for value in first:
        if (maker := graph.producer(value)) is not None:
            refuse(maker, "stays channels first: no op of ONNX Runtime computes it channels last, and no kernel does")
    for node in saving:
        if node not in cheapest:
            refuse(
                node, "stays channels first: its region would need as many Transposes at its edges as it saves inside"
            )
    return bool(chosen)


def _forms(graph: Graph, types: Sequence[int], first: Collection[str]) -> dict[Node, Form]:
    """Return the channels-last forms of the nodes, without those whose results stay channels first."""
    forms = {
        n: f
        for n in graph.nodes
        if not any(o in first for o in n.outputs)
        and (f := form(graph, n, types)) is not None
        # A Transpose of a constant, as of RAFT's first flow, is a constant: ONNX Runtime folds it on load.
        and not any(graph.is_constant(v) for v in f.reads)
    }
    inner = {i for f in forms.values() for i in f.inner}
    return {n: f for n, f in forms.items() if n not in inner}


def _computed_by_none(graph: Graph, written: Mapping[str, Node], fuse: FuseGraph) -> list[str]:
    """Return the results of convolutions between Transposes that no op of the library and no kernel computes."""
    open_ = {result: node for result, node in written.items() if not _library_computes(graph, node)}
    if not open_:
        return []
    trial = graph.snapshot()
    fuse(trial)
    makers = {result: trial.producer(node.outputs[0]) for result, node in open_.items()}
    return [result for result, maker in makers.items() if maker is not None and maker.op in CONVOLUTIONS]


def _library_computes(graph: Graph, node: Node) -> bool:
    """Return whether an op of ONNX Runtime computes a convolution between Transposes, as the shipped rules say."""
    forms = [r.fuse for r in shipped() if r.fuse is not None and r.fuse.template == THROUGH_LIBRARY]
    roots = graph.readers(node.outputs[0])
    return any(
        isinstance(find(graph, anchor.pattern, anchor.where, root), Match)
        for root in roots
        for how in forms
        for anchor in how.anchors_at.get(root.op, ())
    )


# ---- choice of nodes

_LAST, _FIRST = "channels last", "channels first"
"""Source and sink of the flow network."""


def _cheapest(graph: Graph, forms: Mapping[Node, Form], *, largest: bool) -> dict[Node, Form]:
    """Return the nodes whose channels-last form minimizes the cost; of equal choices the smallest, or the largest."""
    import networkx

    network = networkx.DiGraph()
    network.add_nodes_from((_LAST, _FIRST))
    outer = {inner: node for node, its in forms.items() for inner in its.inner}

    def charge(one: object, other: object, cost: int | None) -> None:
        """Add a cost for `one` channels first and `other` channels last; None forbids the combination."""
        if cost is None:
            network.add_edge(one, other)
        else:
            network.add_edge(one, other, capacity=cost)

    for node, its in forms.items():
        if its.saves:
            saved = sum(_cost(graph.type(v)) for v in (*its.reads, *its.makes))
            charge(node, _LAST, None if its.needed else saved)
    for value in dict.fromkeys(v for f in forms.values() for v in (*f.reads, *f.makes)):
        cost = _cost(graph.type(value))
        maker = _maker(graph, forms, value)
        readers = _readers(graph, forms, outer, value)
        # One Transpose serves all readers in the other layout.
        to_first, to_last = ("to first", value), ("to last", value)
        charge(to_first, maker, cost)
        charge(maker, to_last, cost)
        for reader in readers:
            charge(reader, to_first, None)
            charge(to_last, reader, None)
    if largest:
        _, (last, _) = networkx.minimum_cut(network.reverse(), _LAST, _FIRST)
    else:
        _, (_, last) = networkx.minimum_cut(network, _FIRST, _LAST)
    return {n: f for n, f in forms.items() if n in last}


def _maker(graph: Graph, forms: Mapping[Node, Form], value: str) -> Node | str:
    node = graph.producer(value)
    if node is None:
        return _FIRST
    if is_nhwc_to_nchw(node) or is_signal_transpose(node):
        return _LAST
    return node if node in forms and value in forms[node].makes else _FIRST


def _readers(graph: Graph, forms: Mapping[Node, Form], outer: Mapping[Node, Node], value: str) -> list[Node | str]:
    readers: list[Node | str] = [_FIRST] if graph.is_output(value) else []
    for node in (outer.get(n, n) for n in graph.readers(value)):
        if is_nchw_to_nhwc(node) or is_signal_transpose(node):
            readers.append(_LAST)
        else:
            readers.append(node if node in forms and value in forms[node].reads else _FIRST)
    return readers


def _cost(type_: ValueType) -> int:
    """Return the cost of a Transpose in elements of 16 bits; the edge of a quantized region then lies where 8 bits are,
    rather than at the sums or numbers beside them."""
    shape = type_.shape
    if shape is None or stands_still(shape):
        return RESHAPE
    # What is read and written in the time of one launch, in 16 bit: the fixed cost of any Transpose.
    fixed = cuda.launch_bytes() // (2 * 2)
    count = prod(extent if isinstance(extent, int) else UNKNOWN_EXTENT for extent in shape)
    return fixed + (count // 2 if type_.dtype in BYTES else count)


def _absorbed(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the operators that a kernel, or the library's own op, absorbs between Transposes."""
    patterns = (anchor.pattern for rule in rules if rule.fuse is not None for anchor in rule.fuse.anchors)
    nodes = [p.nodes for p in patterns if len(p.nodes) > 1 and ops.Transpose in p.root.operators]
    return frozenset(op for each in nodes for node in each for op in node.operators)


def _lies_last(graph: Graph, node: Node, its: Form, absorbed: Collection[str]) -> bool:
    """Return whether a node is already between the Transposes of its channels-last form, not yet fused by any rule.

    Where no kernel absorbs it there, the Transposes after it may be fused into the kernel that reads it; rewriting it
    again would add them once more.
    """
    makers = [graph.producer(v) for v in its.reads]
    if not its.same_op or not all(maker is not None and is_nhwc_to_nchw(maker) for maker in makers):
        return False
    if node.op not in absorbed:
        return True
    readers = [graph.readers(v) for v in its.makes]
    return all(each and all(map(is_nchw_to_nhwc, each)) for each in readers) and not any(
        map(graph.is_output, its.makes)
    )


# ---- rewriting


def _write(graph: Graph, chosen: Mapping[Node, Form]) -> dict[str, Node]:
    """Replace the chosen nodes by their channels-last forms, and convert values for their other readers.

    Return the convolutions between Transposes, by the results of those that they replace.
    """
    shared, convolutions = ChannelsLast(graph), dict[str, Node]()
    results = [v for f in chosen.values() for v in f.makes]
    for value in results:
        _take_over(shared, value)
    have = set(results)
    outer = {inner: node for node, its in chosen.items() for inner in its.inner}
    for node, its in chosen.items():
        to = ChannelsLastWriter(shared, *its.inner, node)
        for value in its.reads:
            if value in have:
                continue
            have.add(value)
            maker = graph.producer(value)
            if maker is not None and is_nhwc_to_nchw(maker):
                to.names[value] = maker.inputs[0]
            elif maker is not None and is_signal_transpose(maker):
                _with_row(to, ops.Unsqueeze, maker.inputs[0], to.last(value), LAST_ROW)
            else:
                _move_last(to, value)
        its.write(to)
        for value in its.makes:
            if _wanted_first(graph, chosen, outer, value):
                _move_first(to, value)
        convolutions.update((node.outputs[0], n) for n in to.finish() if n.op in CONVOLUTIONS)
    graph.eliminate_dead_code()
    return convolutions


def _take_over(shared: ChannelsLast, value: str) -> None:
    """Give the channels-last form of a value the name of the Transpose that computed it before."""
    for node in shared.graph.readers(value):
        to = ChannelsLastWriter(shared, node)
        if is_signal_transpose(node):
            _with_row(to, ops.Squeeze, to.last(value), node.outputs[0], LAST_ROW)
            to.finish()
        elif is_nchw_to_nhwc(node):
            if value in to.names:
                to.replace(node.outputs[0], to.names[value])
            else:
                to.names[value] = node.outputs[0]
            to.finish()


def _wanted_first(graph: Graph, chosen: Mapping[Node, Form], outer: Mapping[Node, Node], value: str) -> bool:
    """Return whether a channels-first node reads a value that is produced channels last."""
    if graph.is_output(value):
        return True
    readers = (outer.get(n, n) for n in graph.readers(value))
    return any(n not in chosen or value not in chosen[n].reads for n in readers)


def _move_last(to: ChannelsLastWriter, value: str) -> None:
    """Add the nodes at an edge into a region: a Transpose, after a signal is unsqueezed to one row.

    A Reshape suffices where both layouts are identical in memory.
    """
    output, shape = to.last(value), to.graph.type(value).shape or ()
    rank, perm = len(shape), to_last(len(shape))
    if stands_still(shape) and (target := reshape_target(shape, [with_row(shape, 1)[a] for a in perm])):
        to.add(ops.Reshape, value, shape=target, output=output)
    elif rank != 3:
        to.transpose(value, perm, output)
    else:
        to.transpose(_with_row(to, ops.Unsqueeze, value, to.inner(value)), perm, output)


def _move_first(to: ChannelsLastWriter, value: str) -> None:
    """Add the nodes at an edge out of a region."""
    source, shape = to.last(value), to.graph.type(value).shape or ()
    rank, perm = len(shape), to_first(len(shape))
    if stands_still(shape) and (target := reshape_target([with_row(shape, 1)[a] for a in to_last(len(shape))], shape)):
        to.add(ops.Reshape, source, shape=target, output=value, name=value)
    elif rank != 3:
        to.add(ops.Transpose, source, perm=list(perm), output=value, name=value)
    else:
        _with_row(to, ops.Squeeze, to.transpose(source, perm, to.inner(value)), value)


def _with_row(to: ChannelsLastWriter, op: str, source: str, output: str, row: int = ROW) -> str:
    """Add the Unsqueeze or Squeeze of a signal's unit row axis."""
    return to.add(op, source, axes=[row], output=output, name=output)
