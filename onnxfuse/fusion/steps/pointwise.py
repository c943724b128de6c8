"""Growth step: absorb adjacent pointwise nodes while the result stays one kernel and no value is lost."""

import math
from collections.abc import Collection
from dataclasses import replace

from onnx import TensorProto

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import FUSED, Attempt, Region
from onnxfuse.fusion.steps.combined import combined, results_of_anchors
from onnxfuse.graph.constant_folding import is_repeatable
from onnxfuse.graph.float8 import multiplies_float8
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.host_values import HALF, SMALL, leaves_on_host
from onnxfuse.ops import Trait, named
from onnxfuse.rules.match.match import Refusal
from onnxfuse.shapes.types import ValueType, is_unknown, shapes_differ
from onnxfuse.support.plurals import plural

MAX_NODES = 64
"""Maximum nodes in one region: the generated functor stays small enough to compile in well under a second."""

MAX_INPUTS = 12
MAX_OUTPUTS = 4
"""Maximum output tensors of one kernel: each is a pointer and, per thread, up to 16 bytes in flight; 16 of them fit the
registers.
"""

RESHAPING = named(Trait.RESHAPE)
"""Operators that may follow a reduction if they only add or remove unit axes."""

TYPES = frozenset({
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT64,
    TensorProto.INT32, TensorProto.INT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.UINT64, TensorProto.BOOL,
})  # fmt: skip
"""Element types that a kernel can read and write."""


def take_pointwise(attempt: Attempt) -> Refusal | None:
    """Absorb the pointwise readers of the region's values (epilogue) and the producers of its inputs (prologue).

    Growth also starts from values that the library computes. Stops are recorded in the region, readers first. Where a
    node combines results of more anchors than one body may have, no kernel is made.
    """
    graph, region, host, how = attempt.graph, attempt.region, attempt.around.host, attempt.how
    if how.wants(Growth.MOVEMENT):
        return None  # the movement step absorbs pointwise nodes, too
    prologue, epilogue = how.wants(Growth.PROLOGUE), how.wants(Growth.EPILOGUE)
    kept = attempt.start.kept
    surroundings = _Surroundings(graph, region, [o for n in kept for o in n.outputs if o])
    results = results_of_anchors(attempt)
    while True:
        candidates: dict[Node, None] = dict(surroundings.readers) if epilogue else {}
        if prologue:
            candidates.update(dict.fromkeys(surroundings.producers()))
        else:
            candidates.update(dict.fromkeys(n for n in surroundings.producers() if _is_operand_alone(graph, region, n)))
        if region.axes is not None:
            # Parallel ones, too: the mean and the maximum of the same rows.
            of_rows = (v for v in graph.inputs_of(region.nodes) if _has_rows(graph.type(v), region.work, region.axes))
            candidates.update(dict.fromkeys(r for v in of_rows for r in graph.readers(v) if _is_reduction(r)))
        fresh = [n for n in candidates if n not in region.nodes and n not in region.stops and n not in kept]
        if not fresh:
            _leave_dequantized(attempt)
            return None
        for node in fresh:
            way = _way_back(graph, region, node) if region.axes is not None and _is_reduction(node) else ()
            reason = _computed_once_for_others(attempt, node) or _refuse(surroundings, node, host, way)
            if reason is None:
                for joined in (node, *way):
                    surroundings.join(joined)
                    if _reshapes(region, joined) or _is_reduction(joined):
                        region.reduced.append(graph.type(joined.outputs[0]).shape)
                    if results and (reason := combined(results, joined)) is not None:
                        return attempt.refusal(f"{plural(1 + len(region.siblings), 'anchor')}: {reason}", "no kernel")
                # A node that did not fit alone may fit together with this one.
                region.stops.clear()
                break
            region.stops[node] = reason


def _is_operand_alone(graph: Graph, region: Region, node: Node) -> bool:
    """Return whether a node computes an operand for the region alone: dequantizes it, so that the kernel reads it as it
    is stored, or makes a row or a number, which costs less to compute for each element than a launch.
    """
    if any(graph.is_read_outside(o, region.nodes) for o in node.outputs if o):
        return False
    return node.op == ops.DequantizeLinear or _is_row_alone(graph, region, node)


def _leave_dequantized(attempt: Attempt) -> None:
    """Leave values that are dequantized for others to their readers: a quarter of the bytes is written, and read.

    Products read float8 so if both factors are, and other dequantized values as numbers.
    """
    graph, region = attempt.graph, attempt.region
    dequantized = [n for n in region.nodes if n.op == ops.DequantizeLinear and n not in attempt.start.seeds]
    for node in sorted(dequantized, key=lambda n: n.order, reverse=True):
        value = node.outputs[0]
        others = [r for r in graph.readers(value) if r not in region.nodes]
        if graph.is_output(value) or not others:
            continue
        inside = len(others) < len(graph.readers(value))
        if not inside and all(
            not r.domain and (not r.has(Trait.CONTRACTION) or multiplies_float8(graph, r)) for r in others
        ):
            del region.nodes[node]
            region.stops[node] = "is dequantized by what reads it"


class _Surroundings:
    """What surrounds a region, kept up to date as nodes join: each join costs what the node costs, not the region."""

    def __init__(self, graph: Graph, region: Region, values: Collection[str]) -> None:
        self.graph, self.region = graph, region
        self.readers = dict.fromkeys(r for v in values for r in graph.readers(v))
        """Nodes outside that read one of `values` or a value of the region, in the order in which these joined."""
        self._makers: dict[str, Node] = {}
        """Producers of the region's inputs, by input."""
        self._tensors: set[str] = set()
        """Inputs of more than one element."""
        self._outputs: set[str] = set()
        self._first, self._last = math.inf, -math.inf
        """Least and greatest order of the region's nodes."""
        self._convex = not region.nodes or convex(graph, region.nodes)
        for node in region.nodes:
            self._add(node)

    def join(self, node: Node) -> None:
        """Let a node join the region."""
        self.region.nodes[node] = None
        self._add(node)

    def producers(self) -> list[Node]:
        """Return the nodes outside that compute its inputs, in the order of their first use."""
        makers = self._makers
        if len(makers) < 2:
            return [*makers.values()]
        return [makers[v] for v in self.graph.inputs_of(self.region.nodes) if v in makers]

    def with_nodes(self, nodes: Collection[Node]) -> tuple[int, int]:
        """Return how many input tensors and outputs the region would have with these nodes, too."""
        graph, inside = self.graph, self.region.nodes
        made = {o for n in nodes for o in n.outputs if o}
        read = {v for n in nodes for v in n.reads if v not in made and graph.producer(v) not in inside}
        tensors = (self._tensors - made) | {v for v in read if graph.element_count(v) != 1}
        together = {**inside, **dict.fromkeys(nodes)}
        inner = {v for n in nodes for v in n.reads if v in self._outputs and not graph.is_read_outside(v, together)}
        outer = [v for v in made if graph.is_read_outside(v, together)]
        return len(tensors), len(self._outputs) - len(inner) + len(outer)

    def is_convex_with(self, nodes: Collection[Node]) -> bool:
        """Return whether no path leaves the region with these nodes and returns."""
        graph, inside = self.graph, self.region.nodes
        if self._convex and len(nodes) == 1:
            (node,) = nodes
            before = [m for v in node.reads if (m := graph.producer(v)) is not None and m not in inside]
            after = [r for o in node.outputs if o for r in graph.readers(o) if r not in inside]
            # A path into the node begins after the first one of the region, a path out of it ends before the last one.
            if all(m.order < self._first for m in before) and all(r.order > self._last for r in after):
                return True
        return convex(graph, {**inside, **dict.fromkeys(nodes)})

    def _add(self, node: Node) -> None:
        graph, inside, outputs = self.graph, self.region.nodes, [o for o in node.outputs if o]
        for value in node.reads:
            maker = graph.producers.get(value)
            if maker in inside:
                if value in self._outputs and not graph.is_read_outside(value, inside):
                    self._outputs.remove(value)
                continue
            if maker is not None:
                self._makers[value] = maker
            if value not in self._tensors and graph.element_count(value) != 1:
                self._tensors.add(value)
        for output in outputs:
            self._makers.pop(output, None)
            self._tensors.discard(output)
            if graph.is_read_outside(output, inside):
                self._outputs.add(output)
            self.readers.update(dict.fromkeys(graph.readers(output)))
        self._first, self._last = min(self._first, node.order), max(self._last, node.order)
        self.readers.pop(node, None)


def _computed_once_for_others(attempt: Attempt, node: Node) -> str | None:
    """Return why a node stays that ONNX Runtime folds on load: a kernel would recompute it in each run."""
    graph, once = attempt.graph, attempt.around.once
    if next(filter(None, node.outputs), "") not in once:  # where one output of a node is, all are
        return None
    readers = (r for o in node.outputs for r in graph.readers(o) if r not in attempt.region.nodes)
    other = next((r for r in readers if not once.isdisjoint(r.outputs)), None)
    return None if other is None else f"is computed before the first run, and {other.op} {other.name} of it"


def _refuse(around: _Surroundings, node: Node, host: frozenset[str], way: Collection[Node] = ()) -> str | None:
    """Return why `node` cannot join the region, None if it can; `way` are nodes that join with it."""
    graph, region = around.graph, around.region
    reason = region.left.get(node) or _cannot_do(graph, region, node, host) or _reads_parts(graph, region, node)
    if reason is not None:
        return reason
    together = {**region.nodes, node: None} if way else {}
    for other in way:
        with_it = replace(region, nodes=together, reduced=[*region.reduced, graph.type(node.outputs[0]).shape])
        reason = region.left.get(other) or _cannot_do(graph, with_it, other, host)
        if reason is not None:
            return f"{other.op} between: {reason}"
        together = {**together, other: None}
    joining = (node, *way)
    if len(region.nodes) + len(joining) > MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    if not around.is_convex_with(joining):
        return "depends on a node that depends on the fused op, which would be a cycle"
    tensors, outputs = around.with_nodes(joining)
    if tensors > MAX_INPUTS * (1 + len(region.siblings)):
        return f"would read {tensors} tensors, at most {MAX_INPUTS * (1 + len(region.siblings))}"
    if outputs > MAX_OUTPUTS * (1 + len(region.siblings)):
        return f"would add an output, at most {MAX_OUTPUTS * (1 + len(region.siblings))}"
    return None


def _reads_parts(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why a node is rather computed by a kernel of its own: that reads slices in place, which here are copies.

    A copy reads and writes a slice; a kernel of its own writes the result, unless others read it anyway, and the region
    reads that.
    """
    made = [graph.producer(v) for v in dict.fromkeys(node.reads)]
    if Growth.MOVEMENT in cuda.TEMPLATES[region.template].growth or any(maker in region.nodes for maker in made):
        return None
    parts = [n for n in made if n is not None and n.has(Trait.SELECTS) and cuda.is_movement(n.op, n.domain)]
    copies = [n for n in parts if not _is_gather(n) and all(graph.only_reader(o) is node for o in n.outputs)]
    needed = graph.is_read_outside(node.outputs[0], {**region.nodes, node: None})
    if 2 * len(copies) <= (1 if needed else 2):
        return None
    return f"reads {plural(copies, 'slice')}, which a kernel that moves data reads in place"


def _way_back(graph: Graph, region: Region, node: Node) -> tuple[Node, ...]:
    """Return the outside nodes on paths from `node` back to the region, in the graph's order."""
    last = max(n.order for n in region.nodes)
    after: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        readers = (r for o in waiting.pop().outputs if o for r in graph.readers(o))
        fresh = [r for r in readers if r not in after and r not in region.nodes and r.order < last]
        after.update(dict.fromkeys(fresh))
        waiting.extend(fresh)
    on_the_way: set[Node] = set()
    for found in sorted(after, key=lambda n: -n.order):
        readers = (r for o in found.outputs if o for r in graph.readers(o))
        if any(r in region.nodes or r in on_the_way for r in readers):
            on_the_way.add(found)
    return tuple(sorted(on_the_way, key=lambda n: n.order))


def _cannot_do(graph: Graph, region: Region, node: Node, host: frozenset[str]) -> str | None:
    """Return why the region's kernel cannot compute `node`, None if it can."""
    if cuda.TEMPLATES[region.template].looks_up_rows and _is_gather(node):
        return _only_looks_up(graph, region, node)
    if region.axes is not None and _is_reduction(node):
        return _reduces_otherwise(graph, region, node, region.axes)
    reason = _only_reshapes(graph, region, node) if _reshapes(region, node) else not_pointwise(graph, node, host)
    if reason is not None:
        return reason
    shape = graph.type(node.outputs[0]).shape
    if region.broadcast is not None and shape == region.broadcast:
        if graph.is_read_outside(node.outputs[0], region.nodes):
            return f"computes {graph.type(node.outputs[0])}, which is read elsewhere, too"
    elif not (
        _reshapes(region, node)
        or _is_of_mask(graph, region, node)
        or region.work_of(shape) is not None
        or any(not shapes_differ(shape, s) for s in region.reduced)
        or _is_row_alone(graph, region, node)
    ):
        return f"computes {graph.type(node.outputs[0])}, the kernel runs over {region.work}"
    if region.reduced and (reason := _mixed(graph, region, node)) is not None:
        return reason
    return _unreadable(graph, region, node)


def _is_row_alone(graph: Graph, region: Region, node: Node) -> bool:
    """Return whether a node makes one row, or a number, for a kernel that reads such operands once for many rows."""
    shape = graph.type(node.outputs[0]).shape
    if (
        Growth.PROLOGUE in cuda.TEMPLATES[region.template].growth
        or shape is None
        or not all(n == 1 for n in shape[:-1])
    ):
        return False
    return not graph.is_read_outside(node.outputs[0], {**region.nodes, node: None})


def _is_of_mask(graph: Graph, region: Region, node: Node) -> bool:
    """Return whether a value has one element per reduced row, and only the region reads it."""
    value = graph.type(node.outputs[0])
    return (
        region.axes is not None
        and not graph.is_read_outside(node.outputs[0], region.nodes)
        and value.shape != region.work.shape
        and _has_rows(value, region.work, region.axes)
    )


def _is_gather(node: Node) -> bool:
    return node.op == ops.Gather and node.domain == ""


def _only_looks_up(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why a Gather is not one table row per kernel row, by indices known when it runs."""
    table, numbers = node.inputs
    of_row, row = (graph.type(v).shape for v in (table, node.outputs[0]))
    if graph.attributes(node).get("axis", 0) or graph.is_constant(numbers):
        return "this Gather is not a lookup of table rows by indices that are computed at run time"
    if graph.type(table).dtype not in TYPES or graph.type(numbers).dtype not in (TensorProto.INT32, TensorProto.INT64):
        return f"Gather from {graph.type(table)}"
    if of_row is None or row is None or region.work.shape is None or len(of_row) < 2:
        return f"Gather from {graph.type(table)} to {graph.type(node.outputs[0])}"
    if table in graph.inputs_of(region.nodes):
        return f"'{table}' is read in two ways"
    work = region.work.shape
    if any(shapes_differ((n,), (m,)) for n, m in zip(of_row[1:], work[len(work) - len(of_row) + 1 :], strict=False)):
        return f"rows of {graph.type(table)}, the kernel runs over {region.work}"
    if shapes_differ(row, work):
        if graph.is_read_outside(node.outputs[0], region.nodes):
            return f"computes {graph.type(node.outputs[0])}, which others read; the kernel runs over {region.work}"
        reason = cuda.unreadable(region.template, row, work)
        return (
            None if reason is None else f"'{node.outputs[0]}' {reason} ({graph.type(node.outputs[0])}, {region.work})"
        )
    return None


def _reshapes(region: Region, node: Node) -> bool:
    return bool(region.reduced) and node.domain == "" and node.op in RESHAPING


def _only_reshapes(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why a node does more than add or remove unit axes of the reduction's result."""
    made = {o for n in region.nodes for o in n.outputs}
    if node.inputs[0] not in made:
        return f"{node.op} before the reduction"
    if any(not graph.is_constant(v) for v in node.inputs[1:] if v):
        return f"{node.op} to a computed shape"
    before, after = (graph.type(v).shape for v in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or not any(before == s for s in region.reduced):
        return f"{node.op} of {graph.type(node.inputs[0])}, which is not what the reduction leaves"
    if [n for n in before if n != 1] != [n for n in after if n != 1] or any(is_unknown(n) for n in (*before, *after)):
        return f"{node.op} of {graph.type(node.inputs[0])} to {graph.type(node.outputs[0])} moves axes"
    return None


def _mixed(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why an interior value with removed axes does not broadcast to its original axes; None if it does."""
    if all(s is not None and len(s) == region.work.rank for s in region.reduced):
        return None
    made = {o for n in region.nodes for o in n.outputs}
    rank = graph.type(node.outputs[0]).rank
    inside = {v: graph.type(v).rank for v in node.reads if v in made}
    readers = [r for r in graph.readers(node.outputs[0]) if r in region.nodes]
    if _reshapes(region, node):
        return None
    lost = next((v for v, r in inside.items() if r != rank), None)
    if lost is None and any(graph.type(r.outputs[0]).rank != rank for r in readers if not _is_reduction(r)):
        lost = node.outputs[0]
    return None if lost is None else f"'{lost}' has lost the axes that were reduced"


def _is_reduction(node: Node) -> bool:
    return cuda.is_reduction(node.op, node.domain)


def reduced_axes(graph: Graph, node: Node) -> frozenset[int] | None:
    """Return the non-negative axes that a Reduce node reduces; None for another op or if they are unknown."""
    rank = graph.type(node.inputs[0]).rank
    if not node.op.startswith("Reduce") or rank is None or node.captures:
        return None
    listed = graph.attributes(node).get("axes")
    known = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = listed if isinstance(listed, list) else [] if known is None else known.reshape(-1).tolist()
    # Without axes it reduces all, or is a no-op.
    return frozenset(int(a) % rank for a in axes) if axes and rank else None


def _has_rows(value: ValueType, work: ValueType, axes: frozenset[int]) -> bool:
    """Return whether a value extends along the reduced axes, and along each other axis fully or not at all.

    The mask of a mean is broadcast over columns: its sum counts, too.
    """
    if value.shape is None or work.shape is None or len(value.shape) != len(work.shape):
        return False
    pairs = enumerate(zip(value.shape, work.shape, strict=True))
    return all((n is not None and n == m) or (n == 1 and d not in axes) for d, (n, m) in pairs)


def _reduces_otherwise(graph: Graph, region: Region, node: Node, axes: frozenset[int]) -> str | None:
    """Return why a reduction is not over the same rows, None if it is: then it is one more round over them."""
    whole = graph.type(node.inputs[0])
    if not _has_rows(whole, region.work, axes) or whole.dtype not in TYPES:
        return f"{node.op} of {whole}, the kernel runs over {region.work}"
    if reduced_axes(graph, node) != axes:
        return f"{node.op} over other axes than {sorted(axes)}"
    reason = cuda.unreadable(region.template, whole.shape, region.work.shape)
    return None if reason is None else f"'{node.inputs[0]}' {reason}"


def _unreadable(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why the kernel cannot read the operands of `node`, None if it can."""
    tables = {n.inputs[0] for n in region.nodes if n.op == ops.Gather and not n.domain}
    work = region.work_of(graph.type(node.outputs[0]).shape) or region.work
    for value in node.reads:
        if value in tables:
            return f"'{value}' is read in two ways"
        if graph.producer(value) in region.nodes or graph.element_count(value) == 1:
            continue
        reason = cuda.unreadable(region.template, graph.type(value).shape, work.shape)
        if reason is not None:
            return f"'{value}' {reason} ({graph.type(value)}, {work})"
    return None


def not_pointwise(graph: Graph, node: Node, host: frozenset[str]) -> str | None:
    """Return why `node` is not elementwise work for a generated kernel, None if it is."""
    if node.domain == DOMAIN:
        return FUSED
    if not node.is_elementwise:
        return f"{node.op} is not pointwise"
    if node.captures or len([o for o in node.outputs if o]) != 1 or not node.outputs[0]:
        return f"{node.op} has {plural(node.outputs, 'output')}"
    if node.outputs[0] in host:
        return "computes a shape, which stays on the CPU"
    for value in (*node.reads, node.outputs[0]):
        dtype = graph.type(value).dtype
        if dtype not in TYPES:
            known = TensorProto.DataType.Name(dtype).lower() if dtype else "not known"
            return f"the element type of '{value}' is {known}"
    return None


def convex(graph: Graph, nodes: dict[Node, None]) -> bool:
    """Return whether no path leaves `nodes` and returns: one op can replace them without a cycle."""
    if len(nodes) == 1:
        return True
    last = max(n.order for n in nodes)
    seen: set[Node] = set()
    waiting = [r for n in nodes for o in n.outputs if o for r in graph.readers(o) if r not in nodes]
    while waiting:
        node = waiting.pop()
        if node in seen or node.order > last:
            continue
        seen.add(node)
        for output in node.outputs:
            for reader in graph.readers(output) if output else ():
                if reader in nodes:
                    return False
                waiting.append(reader)
    return True


def host_values(graph: Graph) -> frozenset[str]:
    """Return the values computed from shapes, which ONNX Runtime places on the CPU (see `model.host_values`).

    Values that depend on constants alone are constants there.
    """
    found: set[str] = set()
    folded: set[str] = set()

    def near(value: str) -> bool:
        return value in graph.inputs or _is_small(graph, value, folded)

    for node in graph.nodes:
        inputs = [v for v in node.inputs if v]
        if inputs and all(v in folded or graph.is_constant(v) for v in inputs) and is_repeatable(node):
            folded.update(node.outputs)
        elif leaves_on_host(node.op, node.domain, node.inputs, found, near, lambda v: graph.type(v).dtype):
            found.update(node.outputs)
    return frozenset(found)


def computed_once(graph: Graph) -> frozenset[str]:
    """Return the values that depend on constants alone and that ONNX Runtime folds when it creates a session.

    Some may have no CUDA kernel at all, such as a BatchNormalization in training mode that standardizes weights: a
    fused op upstream would prevent the folding. Half-precision and dequantized values are computed in each run.
    """
    found: set[str] = set()
    for node in graph.nodes:
        inputs = [v for v in node.inputs if v]
        known = inputs and all(v in found or graph.is_constant(v) for v in inputs) and is_repeatable(node)
        if known and node.op != ops.DequantizeLinear and all(graph.type(v).dtype not in HALF for v in inputs):
            found.update(node.outputs)
    return frozenset(found)


def _is_small(graph: Graph, value: str, folded: Collection[str]) -> bool:
    count = graph.element_count(value)
    if count is None and value in folded:
        shape = graph.type(value).shape
        count = math.prod(d for d in shape if isinstance(d, int)) if shape is not None else 0
    return count is not None and count <= SMALL
