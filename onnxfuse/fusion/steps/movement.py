"""Growth step: absorb data movement; a Transpose, Slice or Concat becomes an index map of the kernel.

The kernel iterates over the region's outputs, which share one shape; interior values may have any. A node joins only
where the kernel with it costs less than the kernel without it plus the node alone.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth, launch_bytes
from onnxfuse.cuda.costs import library
from onnxfuse.fusion.region.attempt import FUSED, Attempt, Region
from onnxfuse.fusion.region.make_op import make_op, structure
from onnxfuse.fusion.steps.pointwise import MAX_NODES, MAX_OUTPUTS, TYPES, convex, not_pointwise
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.host_values import has_cuda_kernel
from onnxfuse.ops import Trait
from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.types import Dim, ValueType
from onnxfuse.symbolic.integer import Int

SAMPLE = 6720
"""Sample value of a dynamic extent: a multiple of all integers up to 8 and of 32, so that it splits like a real one,
and large: with dynamic extents a movement must pay off for large ones.
"""


MAX_READ = 32
"""Maximum tensors that one kernel reads. More than without movement: a thread reads only one of the concatenated ones.

DenseNet-121 (float16, batch 32, H200, 2026-11): with a limit of 12, ONNX Runtime's Concat of 13 and more values and the
norm after it took 318 of 2108 us; 1921 us without. All 61 such Concats with their norms and ReLUs take 457 us now.
"""


COUNTED = 2**60
"""Maximum elements of a value in the traffic estimate: indices are 64-bit integers."""


def take_movement(attempt: Attempt) -> None:
    """Absorb readers of the region's values (epilogue), then producers of its inputs (prologue).

    Nodes that launch nothing by themselves are dropped again from either end of the region.
    """
    _grow(attempt)
    _trim(attempt.graph, attempt.region)


def _grow(attempt: Attempt) -> None:
    graph, region, rule = attempt.graph, attempt.region, attempt.rule
    prologue, epilogue = attempt.how.wants(Growth.PROLOGUE), attempt.how.wants(Growth.EPILOGUE)
    cost = _cost(graph, region.nodes, rule, region.template)
    while not isinstance(cost, str):
        region.stops.clear()
        for node in _neighbours(graph, region, prologue, epilogue):
            outcome = _joined(graph, region, node, attempt.around.host, rule, cost)
            if isinstance(outcome, str):
                region.stops[node] = outcome
                continue
            region.nodes[node], cost = None, outcome
            region.work = graph.type(graph.outputs_of(region.nodes)[0])
            break
        else:
            return


def saves(graph: Graph, nodes: Sequence[Node], rule: str, template: str, *, early: bool = False) -> str | None:
    """Return None if one kernel for `nodes` costs less than all of them separately, else why not.

    `early`: between onnxfuse kernels, where a library launch costs as much as two.
    """
    cost = _cost(graph, nodes, rule, template)
    if isinstance(cost, str):
        return cost
    alone = [_alone(graph, n) for n in nodes] + [launch_bytes()] * early
    together = cost + launch_bytes()
    if together < sum(alone):
        return None
    return _compared(graph, nodes, ("in one kernel", together), ("node by node", sum(alone)))


def _trim(graph: Graph, region: Region) -> None:
    """Drop nodes that launch nothing by themselves from either end: inside the region they only cost."""
    while len(region.nodes) > 1:
        made = {o for n in region.nodes for o in n.outputs}
        free = [n for n in region.nodes if cuda.is_free(n.op, n.domain)]
        first = next((n for n in free if not made & set(n.reads) and not _shared(graph, region, n)), None)
        outputs = graph.outputs_of(region.nodes)
        last = next((n for n in free if len(outputs) == 1 and outputs[0] in n.outputs), None)
        gone = first or last
        if gone is None:
            return
        del region.nodes[gone]
        region.work = graph.type(graph.outputs_of(region.nodes)[0])


def _shared(graph: Graph, region: Region, node: Node) -> bool:
    """Return whether the region also reads the data of `node` in another way."""
    return any(r in region.nodes and r is not node for r in graph.readers(node.inputs[0]))


def launches(graph: Graph, nodes: Sequence[Node]) -> int:
    """Return how many kernels and copies the library launches for `nodes`: what it runs on the CPU, it copies."""
    return sum((not cuda.is_free(n.op, n.domain)) + _is_on_cpu(graph, n) for n in nodes)


def not_movement(graph: Graph, node: Node, host: frozenset[str]) -> str | None:
    """Return why `node` is not data movement that a kernel supports, None if it is."""
    if node.domain == DOMAIN:
        return FUSED
    if not cuda.is_movement(node.op, node.domain):
        return f"{node.op} is not data movement"
    if node.captures or any(o in host for o in node.outputs):
        return "computes a shape, which stays on the CPU"
    places = structure(node)
    open_ = next((v for v in places if v and not graph.is_constant(v)), None)
    if open_ is not None:
        return f"'{open_}' is computed at run time"
    for value in (*(v for v in node.reads if v not in places), *(o for o in node.outputs if o)):
        if graph.type(value).dtype not in TYPES:
            name = (
                TensorProto.DataType.Name(graph.type(value).dtype).lower() if graph.type(value).dtype else "not known"
            )
            return f"the element type of '{value}' is {name}"
    return None


def _neighbours(graph: Graph, region: Region, prologue: bool, epilogue: bool) -> list[Node]:
    readers = (r for v in graph.outputs_of(region.nodes) for r in graph.readers(v) if epilogue)
    makers = (p for v in graph.inputs_of(region.nodes) if prologue and (p := graph.producer(v)) is not None)
    return [n for n in dict.fromkeys((*readers, *makers)) if n not in region.nodes and n.op != ops.Constant]


def _joined(graph: Graph, region: Region, node: Node, host: frozenset[str], rule: str, cost: float) -> float | str:
    """Return the cost of the kernel with `node`, or why it does not join."""
    if node in region.left:
        return region.left[node]
    reason = not_pointwise(graph, node, host)
    if reason is not None and not cuda.is_movement(node.op, node.domain):
        return reason
    together = {**region.nodes, node: None}
    if len(together) > MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    if graph.has_more_outputs(together, MAX_OUTPUTS):  # before what looks at every output: of a Split there may be many
        return f"would add an output, at most {MAX_OUTPUTS}"
    if reason is not None and (reason := not_movement(graph, node, host)) is not None:
        return reason
    if not convex(graph, together):
        return "depends on a node that depends on the fused op, which would be a cycle"
    if (reason := one_shape(graph, together)) is not None:
        return reason
    with_it = _cost(graph, together, rule, region.template)
    if isinstance(with_it, str):
        return with_it
    apart = cost + _alone(graph, node)
    if with_it > apart:
        return _compared(graph, list(together), ("in the kernel", with_it), ("apart", apart))
    return with_it


def one_shape(graph: Graph, nodes: dict[Node, None]) -> str | None:
    """Return None if all outputs of `nodes` are known to have one shape, else the reason."""
    outputs = graph.outputs_of(nodes)
    first, *others = (graph.type(v) for v in outputs)
    for value, other in zip(outputs[1:], others, strict=True):
        known = other.shape is not None and not any(d is None for d in other.shape)
        if not known or other.shape != first.shape:
            return f"'{value}' is {other}, '{outputs[0]}' is {first}: one kernel runs over one shape"
    return None


def _cost(graph: Graph, nodes: Sequence[Node] | dict[Node, None], rule: str, template: str) -> float | str:
    """Return the cost of one kernel for `nodes`, or why there is none."""
    made = make_op(graph, sorted(nodes, key=lambda n: n.order), rule, template)
    if isinstance(made, str):
        return made
    op, fused = made
    if len(fused.inputs) > MAX_READ:
        return f"would read {len(fused.inputs)} tensors, at most {MAX_READ}"
    open_ = _open_extent([graph.type(v) for n in nodes for v in (*n.reads, *n.outputs) if v])
    shapes = tuple(sampled(graph.type(v), open_) for v in fused.inputs)
    if any(s is None for s in shapes):
        return "works on a value of unknown rank"
    return cuda.estimate(op, tuple(s for s in shapes if s is not None))


def _open_extent(types: Sequence[ValueType]) -> int:
    """Return the sample value of a dynamic extent for values of these types: smaller if several would overflow.

    Six of 4096 each exceed 64-bit element counts.
    """
    open_ = SAMPLE
    while open_ > 1 and any(math.prod(sampled(t, open_) or ()) >= COUNTED for t in types):
        open_ //= 2
    return open_


def _alone(graph: Graph, node: Node) -> float:
    """Return the library's cost of `node`: one pass over its inputs and outputs, and a launch.

    What it runs on the CPU costs more than any kernel: two trips over the bus.
    """
    if _is_on_cpu(graph, node):
        return math.inf
    if cuda.is_free(node.op, node.domain):
        return 0.0
    if read_as_it_stands(graph, node):
        return 0.0
    written = sum(_bytes(graph, v) for v in node.outputs if v)
    read = sum(_bytes(graph, v) for v in node.reads if v not in structure(node))
    moved = min(read, written) if cuda.is_movement(node.op, node.domain) else read
    return (written + moved) * copies_of(graph, node) + launch_bytes()


def copies_of(graph: Graph, node: Node) -> int:
    """Return how many copies of as many bytes take as long as the library's kernel for `node`.

    Its Pad has a fast kernel for the last two axes of images [batch, channels, height, width] alone.
    """
    pads = graph.constant(node.inputs[1]) if node.op == ops.Pad and len(node.inputs) > 1 else None
    rank = graph.type(node.inputs[0]).rank if pads is not None else None
    if pads is None or rank is None:
        return 1
    axes = graph.constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else np.arange(rank)
    if axes is None or 2 * axes.size != pads.size:
        return 1
    padded = axes[pads.reshape(2, -1).any(axis=0)] % rank
    image = rank in (3, 4) and bool((padded >= rank - 2).all())
    return library.costs().image_pad_copies if image else library.costs().pad_copies


def _is_on_cpu(graph: Graph, node: Node) -> bool:
    dtype = graph.type(node.inputs[0]).dtype if node.inputs else 0
    return bool(dtype) and node.entry is not None and not has_cuda_kernel(node.entry, dtype)


def read_as_it_stands(graph: Graph, node: Node) -> bool:
    """Return whether `node` transposes matrices for products alone: ONNX Runtime's product reads them untransposed."""
    perm = graph.attributes(node).get("perm") if node.op == ops.Transpose else None
    swaps = isinstance(perm, list) and len(perm) > 1 and [*perm[:-2], perm[-1], perm[-2]] == list(range(len(perm)))
    readers = graph.readers(node.outputs[0])
    return swaps and not graph.is_output(node.outputs[0]) and all(r.has(Trait.MATRIX_PRODUCT) for r in readers)


def _bytes(graph: Graph, value: str) -> int:
    shape = sampled(graph.type(value))
    return 0 if shape is None else math.prod(shape) * cuda.item_size(graph.type(value).dtype)


def sampled(type_: ValueType, open_: int = SAMPLE) -> tuple[int, ...] | None:
    """Return a shape as integers, with `open_` for each dynamic extent."""
    if type_.shape is None:
        return None
    return tuple(_sample(d, open_) for d in type_.shape)


def _sample(extent: Dim, open_: int) -> int:
    """Return the integer for an extent: `4*batch` is 4 times that for `batch`."""
    found = at_sizes(extent, dict.fromkeys(extent.names, open_)) if isinstance(extent, Int) else extent
    return found if isinstance(found, int) and 0 <= found < 2**62 else open_


def _compared(graph: Graph, nodes: Sequence[Node], dearer: tuple[str, float], cheaper: tuple[str, float]) -> str:
    """Return text that compares two implementations of `nodes`: location, and bytes of traffic."""
    (one, much), (other, less) = dearer, cheaper
    values = (graph.type(v).shape or () for n in nodes for v in (*n.reads, *n.outputs) if v)
    taken = f", open extents taken for {SAMPLE}" if any(not isinstance(d, int) for s in values for d in s) else ""
    return f"{one} it costs {much / 1e6:.1f} MB of traffic, {other} {less / 1e6:.1f} MB{taken}"
