"""Launch plans of the attention template, and selection of its kernel."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.cuda.isa import wgmma
from onnxfuse.cuda.isa.isa import FRAGMENT
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Extents
from onnxfuse.cuda.planning.traffic import bytes_of
from onnxfuse.cuda.templates.attention import few, kept, sm90, streamed
from onnxfuse.cuda.templates.attention.body import AttentionBody, AttentionOperand, parse_op
from onnxfuse.cuda.templates.attention.costs import costs_of, short_times, times_of
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.cuda.templates.attention.work import AttentionProblem, refused_factors, work, wrong_size
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.strides import Shape


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of the output."""
    return work(op, input_shapes).output_shapes


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: AttentionVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    tuning = variant or AttentionVariant()
    mine = work(op, input_shapes)
    split = tuning.queries
    match kernel(mine, aligned, arch, split):
        case "few":
            return few.plan(mine, aligned, arch, tuning)
        case "warpgroups":
            return sm90.plan(mine, input_shapes, aligned, arch, tuning)
        case "streamed":
            return streamed.plan(mine, aligned, arch, tuning)
        case _:
            return kept.plan(mine, aligned, arch, tuning)


def kernel(mine: AttentionProblem, aligned: bool, arch: Arch, split: Queries | None = None) -> str:
    """Return which kernel computes an attention, in the words of its times: as a variant says, else by sizes."""
    if few.takes(mine, arch) if split is None else split.parts:
        return "few"
    if split.warpgroups if split is not None else _is_long(mine, arch) and sm90.takes(mine, aligned, arch):
        return "warpgroups"
    streams = _streams(mine, arch) if split is None else split.streamed
    return "streamed" if streams else "kept"


def work_of(mine: AttentionProblem, input_shapes: tuple[Shape, ...]) -> tuple[int, float]:
    """Return the bytes that an attention moves, each tensor once, and its operations: half of them below a causal
    mask."""
    scores = mine.batch * mine.parts.heads * mine.queries * mine.keys
    size = bytes_of(mine.op, input_shapes, mine.output_shapes)
    return size, 4 * scores * mine.size * (0.5 if mine.parts.causal else 1.0)


def microseconds(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> float | None:
    """Return the estimated time of the kernel that the plan chooses."""
    mine = work(op, input_shapes)
    times = times_of(arch).of(kernel(mine, True, arch), mine.parts.element_bytes)
    return None if times is None else times.microseconds(*work_of(mine, input_shapes))


def _is_long(mine: AttentionProblem, arch: Arch) -> bool:
    """Return whether Hopper's kernel supports the attention and is the faster one."""
    cost = costs_of(arch)
    if not bool(mine.queries > few.QUERIES):
        return False
    if _streams(mine, arch):
        return True
    heads = mine.batch * mine.parts.heads
    if bool(mine.keys > cost.short):
        return bool(heads * mine.queries > cost.few_rows)
    if mine.size != sm90.PANEL or mine.bias is not None:  # not measured
        return False
    times, sizes = short_times(arch), (mine.queries, mine.keys, heads)
    # The kernel with resident keys takes as long with a causal mask: its last warp has all keys.
    kept = times.kept.microseconds(*sizes, FRAGMENT, causal=False)
    return bool(times.warpgroups.microseconds(*sizes, wgmma.ROWS, causal=mine.parts.causal) < kept)


def _streams(mine: AttentionProblem, arch: Arch) -> bool:
    """Return whether keys are streamed: if one kernel for all lengths is requested, or if they do not fit."""
    return mine.op.open_length or not _fit(mine, arch)


def _fit(mine: AttentionProblem, arch: Arch) -> bool:
    return (
        not mine.parts.to_tf32
        and mine.also is None
        and bool(mine.keys)
        and mine.size == mine.padded
        and kept.too_many(mine.keys, mine.size, arch) is None
    )


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[AttentionVariant, ...]:
    """Return other partitions of the queries among blocks and warps, for each kernel."""
    mine = work(op, input_shapes)
    shared = few.candidates(mine, arch) if few.takes(mine, arch) else ()
    short = kept.candidates(mine) if _fit(mine, arch) else ()
    long = sm90.ways(mine) if sm90.takes(mine, True, arch) else ()
    others = () if mine.parts.grows else (*short, *long, *streamed.candidates(mine, arch))
    return tuple(AttentionVariant(queries=split) for split in (*shared, *others))


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the kernel does not run on this GPU."""
    return refused_factors(op, parse_op(op).factors, arch)


def fits(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch) -> str | None:
    """Return why inputs of these shapes may have no plan; any number of queries and keys has one."""
    parts = parse_op(op)
    (queries, _), (keys, size) = (_ends(operand, parts.heads, shapes) for operand in (parts.q, parts.k))
    if not isinstance(size, int):
        return "the size of a head is not known from the model's inputs"
    if (reason := wrong_size(parts, size)) is not None:
        return reason
    if parts.causal and (queries != keys or queries is None):
        return "a causal mask over other keys than those of the queries"
    # The number of keys including caches has no name: unsupported bias shapes go to the general kernel.
    if not parts.grows and not all(_fits_bias(shapes[i], queries, keys) for i in parts.biases):
        return "a bias that may have more rows or columns than the scores"
    if parts.biases and isinstance(keys, int) and not (parts.to_tf32 or parts.grows or parts.integers):
        by_query = sum(_is_by_query(shapes[i]) for i in parts.biases)
        ours = sm90.multiplies(parts, arch) and (by_query == 0 or (by_query == 1 and keys % 8 == 0))
        if not ours and not _are_few(parts, shapes, queries, arch) and (size > 64 or keys > costs_of(arch).short):
            return f"a mask of {keys} keys of {size} elements, which the library's op takes in less time"
    return None


def _are_few(parts: AttentionBody, shapes: Sequence[Extents | None], queries: object, arch: Arch) -> bool:
    """Return whether queries are so few that a kernel of the template is the faster one on any GPU."""
    shape = shapes[parts.q.position]
    batch = None if shape is None else shape[0]
    if not isinstance(queries, int):
        return False
    most = costs_of(arch).few_rows
    return queries <= few.QUERIES or (isinstance(batch, int) and batch * parts.heads * queries <= most)


def _is_by_query(bias: Extents | None) -> bool:
    return bias is not None and len(bias) > 1 and bias[-2] != 1


def _fits_bias(bias: Extents | None, queries: object, keys: object) -> bool:
    """Return whether a bias has one row or one per query, and one column or one per key.

    Extents are compared by name; an unknown extent next to one above 1 cannot be assumed to broadcast.
    """
    if bias is None:
        return False
    return all(
        n == 1 or (n is not None and n == m) or (isinstance(m, int) and m > 1 and not isinstance(n, int))
        for n, m in zip([*bias][::-1], (keys, queries), strict=False)
    )


def _ends(operand: AttentionOperand, heads: int, shapes: Sequence[Extents | None]) -> tuple[object, object]:
    """Return the sequence length and head size, as far as they are known."""
    shape, heads = shapes[operand.position], heads // operand.group
    if shape is None or len(shape) not in (3, 4):
        return None, None
    if len(shape) == 4:
        return shape[2 if operand.heads_first else 1], shape[3]
    return shape[1], shape[2] // heads if isinstance(shape[2], int) else None
