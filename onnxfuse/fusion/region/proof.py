"""Prove that a kernel exists: each fused op is planned for every GPU, at sampled sizes, before it is made."""

from collections.abc import Collection, Sequence
from functools import lru_cache

from onnxfuse import cuda
from onnxfuse.cuda import Case, DisagreeingError
from onnxfuse.fusion.region.make_op import Made, Named, Realization, make_op
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.bodies import overfull
from onnxfuse.model.fused import FusedOp
from onnxfuse.shapes.extent_values import extent_value
from onnxfuse.shapes.types import ValueType

Shapes = tuple[tuple[int, ...], ...]

SIZES = ((168,), (3, 5, 7, 11, 13, 17), (1,), (65520, 840))
"""Sample values of dynamic extents, one row at a time: each name takes one value of the row, the same everywhere.

The rows: multiples like real extents, which also divide 168; odd ones, all different; ones; and large ones.
"""
SMALLEST = min(cuda.SUPPORTED, key=lambda arch: arch.shared_bytes)
"""The GPU with the least shared memory for a block: an A10."""
RICHEST = max(cuda.SUPPORTED, key=lambda arch: len(arch.isa.instructions))
"""The GPU with the most instructions, and kernels of its own by them: an H200."""
FIRST: tuple[tuple[Case, ...], ...] = (
    tuple((arch, number % 3 != 1) for number, arch in enumerate(cuda.SUPPORTED)),
    ((SMALLEST, True), (RICHEST, False)), ((RICHEST, True),), ((SMALLEST, False),),
)  # fmt: skip
"""GPUs, and pointer alignments, for which an op is planned at each row of sizes, at its first location: all GPUs, every
third of them with unaligned pointers, and where limits differ most at all sizes.
"""
LATER: tuple[tuple[Case, ...], ...] = ((), ((SMALLEST, True),), (), ((RICHEST, True),))
"""The same at its further locations, where only extents differ. A plan takes 0.4 ms: the 220 of EfficientNet-B0, 22 ops
at 66 locations, a tenth of a second.
"""


def proven_op(
    graph: Graph,
    nodes: Sequence[Node],
    rule: str,
    template: str,
    realization: Realization | None = None,
    known: Collection[str] = (),
    made: Made | None = None,
    *,
    replaced: Collection[Node] = (),
) -> tuple[FusedOp, Node] | str:
    """Return the result of `make_op` if the op has a plan, else the reason; `known`: ops of other locations."""
    here = make_op(graph, nodes, rule, template, realization, known, made, replaced=replaced)
    return here if isinstance(here, str) else unproven(graph, *here, known) or here


def unproven(graph: Graph, op: FusedOp, fused: Node, known: Collection[str] = ()) -> str | None:
    """Return for which sizes and GPU `op` has no plan at the location of `fused`; None if it always has one.

    Inputs of unknown rank are not checked. A body with a Split of 300 parts is not accepted from a file.
    """
    if (fact := overfull(op.body)) is not None:
        return fact
    if not cuda.is_template(op.template):
        return None
    return _unproven(Named(op.name, op), tuple(graph.type(v) for v in fused.inputs), op.name in known)


def launches(graph: Graph, op: FusedOp, fused: Node, decodes: bool) -> int | None:
    """Return how many launches an op takes at the location of `fused`, on the richest GPU; None if sizes are open.

    In a graph that `decodes` open sizes are those of a step, of one token: 1.
    """
    types = tuple(graph.type(v) for v in fused.inputs)
    known = _sized(types, {}) if decodes else _known(types)
    return None if known is None else 1 + len(cuda.plan(op, known, True, RICHEST).then)


def _known(types: Sequence[ValueType]) -> Shapes | None:
    """Return shapes without an open extent; None if there is one."""
    shapes = [tuple(d for d in t.shape if isinstance(d, int)) for t in types if t.shape is not None]
    open_ = len(shapes) < len(types) or any(len(s) < len(t.shape or ()) for s, t in zip(shapes, types, strict=True))
    return None if open_ else tuple(shapes)


@lru_cache(maxsize=4096)
def _unproven(named: Named, types: tuple[ValueType, ...], later: bool) -> str | None:
    asked: dict[Shapes, tuple[dict[str, int], dict[Case, None]]] = {}
    for sizes, cases in zip(SIZES, LATER if later else FIRST, strict=True):
        given: dict[str, int] = {}
        shapes = _sized(types, given, sizes)
        if shapes is not None:
            asked.setdefault(shapes, (given, {}))[1].update(dict.fromkeys(cases))
    reasons = (_unplanned(named.op, types, given, tuple(cases)) for given, cases in asked.values())
    return next((r for r in reasons if r is not None), None)


def _unplanned(
    op: FusedOp,
    types: Sequence[ValueType],
    given: dict[str, int],
    cases: Sequence[Case],
    settled: frozenset[str] = frozenset(),
) -> str | None:
    """Return why the op has no plan where names have the `given` sizes, or consistent ones.

    A mask's length has its own name, though it is the sum of a cache's and the new tokens' lengths, and dynamic
    channels equal the number of a norm's factors: where shapes are inconsistent, each name that may be responsible and
    is not `settled` gets the size that the others require.
    """
    shapes = _sized(types, given)
    try:
        return None if shapes is None else cuda.unplanned(op, shapes, cases)
    except DisagreeingError as wrong:
        pairs = ((wrong.found, wrong.expected), (wrong.expected, wrong.found))
        blamed = [(n, right) for found, right in pairs for n, size in given.items() if size == found]
        tries = (
            _unplanned(op, types, {**given, n: right}, cases, settled | {n}) for n, right in blamed if n not in settled
        )
        return next((reason for reason in tries if reason is not None), None)


def _sized(types: Sequence[ValueType], given: dict[str, int], sizes: Sequence[int] = (1,)) -> Shapes | None:
    """Return shapes with the `given` integer for each name, or the next of `sizes`; None if one has no value."""
    shapes = []
    for type_ in types:
        if type_.shape is None:
            return None
        extents = [
            extent_value(d, lambda name: given.setdefault(name, sizes[len(given) % len(sizes)])) for d in type_.shape
        ]
        shapes.append(tuple(n for n in extents if n is not None))
        if len(shapes[-1]) < len(extents):
            return None
    return tuple(shapes)
