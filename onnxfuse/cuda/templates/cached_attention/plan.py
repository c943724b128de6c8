"""Launch plans of the cached_attention template.

The total length of the longest sequence is a number on the CPU: its shape, as the planner sees it, is its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx import TensorProto

from onnxfuse.codegen.emit import access
from onnxfuse.codegen.emit.access import Pointer
from onnxfuse.codegen.emit.entry import entry_point, typed
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, MMA_SYNC, KernelSource, generated, identifier, template
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Extents
from onnxfuse.cuda.planning.traffic import bytes_of
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention import few, streamed
from onnxfuse.cuda.templates.attention.costs import cached_times, costs_of, times_of
from onnxfuse.cuda.templates.attention.work import AttentionProblem, common_constants, refused_factors, wrong_size
from onnxfuse.cuda.templates.cached_attention.body import CachedAttention, parse_op
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import larger, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class CachedProblem:
    """A cached attention with concrete sizes."""

    body: CachedAttention
    queries: AttentionProblem
    """The attention of the new tokens over at most as many keys as the longest sequence has."""
    total: int
    """Tokens of the longest sequence."""
    past: int
    """Rows of the caches that are read."""
    present: int
    """Rows of those that are written."""
    half: int
    """Elements of a row of the rotary tables; 0: nothing rotates."""


def problem(op: FusedOp, input_shapes: tuple[Shape, ...]) -> CachedProblem:
    """Return the sizes; raises `UnsupportedError` if the shapes do not match each other or the kernel."""
    body = parse_op(op)
    shapes = {name: input_shapes[i] for name, i in body.inputs.items()}
    x, cache = shapes["query"], shapes["past_key"]
    if len(x) != 3 or len(cache) != 4:
        raise UnsupportedError(f"queries of rank {len(x)} and caches of rank {len(cache)}, expected 3 and 4")
    batch, queries, _ = x
    _, _, past, size = cache
    rows = body.heads + 2 * body.heads_of_keys if body.packed else body.heads
    expected: dict[str, Shape] = {
        "query": (batch, queries, rows * size), "past_key": (batch, body.heads_of_keys, past, size),
        "key": (batch, queries, body.heads_of_keys * size),
        "head_sink": (body.heads,), "q_norm_weight": (size,), "k_norm_weight": (size,),
    }  # fmt: skip
    expected |= {"value": expected["key"], "past_value": expected["past_key"]}
    for name, shape in expected.items():
        if name in shapes and tuple(shapes[name]) != shape:
            raise UnsupportedError(f"{name} of shape {list(shapes[name])}, expected {list(shape)}")
    if len(shapes["seqlens_k"]) not in (1, 2) or shapes["seqlens_k"][0] != batch:
        raise UnsupportedError(f"seqlens_k of shape {list(shapes['seqlens_k'])} for a batch of {batch}")
    parts = body.of_queries()
    if (reason := wrong_size(parts, size)) is not None:
        raise UnsupportedError(reason)
    half = shapes["cos_cache"][1] if body.rotates else 0
    if half and (len(shapes["cos_cache"]) != 2 or shapes["cos_cache"] != shapes["sin_cache"] or 2 * half > size):
        raise UnsupportedError(f"rotary tables of shape {list(shapes['cos_cache'])} for heads of {size} elements")
    value = shapes["total_sequence_length"]
    if half and value and bool(value[0] > shapes["cos_cache"][0]):
        raise UnsupportedError(f"rotary tables of {shapes['cos_cache'][0]} rows for {value[0]} tokens")
    total = larger(value[0], queries) if value else larger(past, queries)  # without a value: as many as the cache holds
    present = larger(past, total)
    outputs = ((batch, queries, body.heads * size), *[(batch, body.heads_of_keys, present, size)] * 2)
    keys = smaller(total, body.window + queries - 1) if body.window else total
    mine = AttentionProblem(op, parts, batch, queries, keys, size, keys, None, None, (), 0, outputs)
    return CachedProblem(body, mine, total, past, present, half)


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output."""
    return problem(op, input_shapes).queries.output_shapes


def general(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> LaunchPlan:
    """Return the plan of `op` for inputs of any extents and alignment: a block takes all keys of a head."""
    return _few(problem(op, input_shapes), False, arch, alone=True)


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes: of few tokens one launch, of many two."""
    made = problem(op, input_shapes)
    return _prompt(made, aligned, arch) if _is_prompt(made, arch) else _few(made, aligned, arch)


def _is_prompt(made: CachedProblem, arch: Arch) -> bool:
    """Return whether tokens are so many that each block takes queries of its own: else blocks share the keys.

    512 tokens of 16 heads of 128 on 4 of keys take 23.2 us, by blocks that share the keys 71.4, by ONNX Runtime 27.6;
    4 times as many 37.0, 243 and 59.4; one token behind 1,023 others 6.3, by ONNX Runtime 15.7 (H200, 2026-11-30).
    """
    mine = made.queries
    return streamed.holds(mine, 1) and bool(mine.queries > few.QUERIES) and bool(few.heads_of(mine) > arch.sm_count)


def _words(made: CachedProblem, parts: int, tiles: int = 0, counters: int = 0) -> bytes:
    """Return the kernels' `Parameters`."""
    mine = made.queries
    words = (mine.queries, made.total, made.past, made.present, mine.batch, parts, tiles, counters)
    return launch_plan.packed(words, 64)


def _few(made: CachedProblem, aligned: bool, arch: Arch, *, alone: bool = False) -> LaunchPlan:
    """Return the launch by blocks that share the keys of a head, unless one of them takes all, `alone`."""
    mine = made.queries
    tiles, heads = -(-mine.queries * mine.parts.k.group // 16), few.heads_of(mine)
    of_many = replace(mine, queries=few.QUERIES + 1) if alone else mine
    chosen, cost = few.choose(of_many, heads, arch, _query_bytes(mine)), costs_of(arch).few
    cluster = cost.cluster if chosen.parts == cost.cluster else 1
    wanted = chosen.parts or few.parts_to_fill(mine, heads, chosen.warps, arch)
    parts = cluster if cluster > 1 else larger(smaller(wanted, -(-mine.keys // (chosen.warps * few.STEP))), 1)
    if heads * parts >= limits.INDICES or made.present >= limits.INDICES:
        raise UnsupportedError(f"{heads * parts} blocks for {made.present} keys, expected less than 2^31")
    split = bool(cluster == 1 and parts > 1)
    counters = -(-heads // 4) * 4  # words: the data that follows starts at a 16-byte boundary
    # Blocks of a cluster leave pieces of their results for each other besides.
    pieces = 16 * mine.size // 2 * 16 if cluster > 1 else 0
    of_stages = {n: few.shared_bytes(mine, chosen.warps, n) + _query_bytes(mine) for n in (1, 2, 3)}
    resident = max(min(cost.warps // chosen.warps, arch.shared_bytes // (of_stages[2] + pieces)), 1)
    stages = 3 if resident * (of_stages[3] + pieces) <= arch.shared_bytes else 2
    span = few.span_of(mine, parts, chosen.warps)
    ring = few.Ring(stages, False) if alone else few.ring_of(span // (chosen.warps * few.STEP), stages)
    facts: dict[str, bool | int] = {
        "WARPS": chosen.warps, "TILES": 1, "STEP": few.STEP, "THREADS": chosen.warps * 32, "STAGES": ring.stages,
        "WHOLE": ring.whole, "HELD": True, "SPLIT": split, "CLUSTER": cluster, "ALIGNED": aligned,
    }  # fmt: skip
    files = (
        "attention/steps.cuh",
        "attention/records.cuh",
        "cached_attention/cached.cuh",
        "cached_attention/cached.cu",
    )
    return LaunchPlan(
        kernel=_kernel(made, facts, files, "attend", resident, scratch=split, cluster=cluster, near=True),
        grid=(heads * parts, 1, 1),
        block=(chosen.warps * 32, 1, 1),
        shared_bytes=of_stages[ring.stages],
        parameters=_words(made, parts, tiles, counters),
        output_shapes=mine.output_shapes,
        scratch_bytes=4 * counters + heads * parts * few.record_bytes(mine) if split else 0,
        counter_bytes=4 * counters if split else 0,
    )


def _prompt(made: CachedProblem, aligned: bool, arch: Arch) -> LaunchPlan:
    """Return the launch that puts the tokens into the caches, and the one of their attention."""
    mine = made.queries
    chosen = replace(streamed.choose(mine, arch), stages=0)  # its kernel has the usual number
    blocks, heads = -(-mine.queries // streamed.rows_of(chosen)), mine.batch * mine.parts.heads
    if heads * blocks >= limits.INDICES or made.present >= limits.INDICES:
        raise UnsupportedError(f"{heads * blocks} blocks for {made.present} keys, expected less than 2^31")
    facts: dict[str, bool | int] = {
        "WARPS": chosen.warps, "TILES": chosen.tiles, "STEP": chosen.step, "THREADS": chosen.warps * 32, "HELD": True,
        "ALIGNED": aligned,
    }  # fmt: skip
    turns = made.half > 0 or made.body.normalized
    turned = mine.batch * mine.queries * mine.parts.heads * mine.size * mine.parts.element_bytes
    room = turned if turns else 0
    rows = mine.batch * mine.queries * (mine.parts.heads + made.body.heads_of_keys)
    cost = costs_of(arch).cached
    of_put = facts | {"WARPS": cost.warps, "THREADS": cost.warps * 32}
    files: tuple[str, ...] = ("cached_attention/cached.cuh", "cached_attention/put.cu")
    put = LaunchPlan(
        kernel=_kernel(made, of_put, files, "put", 0, scratch=turns),
        grid=(larger(smaller(-(-rows // cost.warps), arch.sm_count * cost.blocks), 1), 1, 1),
        block=(cost.warps * 32, 1, 1),
        shared_bytes=0,
        parameters=_words(made, 0),
        output_shapes=mine.output_shapes,
        scratch_bytes=room,
    )
    files = ("attention/steps.cuh", "cached_attention/cached.cuh", "cached_attention/prompt.cu")
    attend = LaunchPlan(
        kernel=_kernel(made, facts, files, "attend", streamed.resident_blocks(chosen, mine), scratch=turns),
        grid=(heads * blocks, 1, 1),
        block=(chosen.warps * 32, 1, 1),
        shared_bytes=streamed.shared_bytes(chosen, mine),
        parameters=_words(made, blocks),
        output_shapes=mine.output_shapes,
        scratch_bytes=room,
    )
    return launch_plan.in_sequence((put, attend), mine.output_shapes)


def _query_bytes(mine: AttentionProblem) -> int:
    """Return the shared memory of 16 queries, in rows padded by 16 bytes."""
    return 16 * (mine.padded * mine.parts.element_bytes + 16)


def microseconds(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> float | None:
    """Return the estimated time."""
    made = problem(op, input_shapes)
    mine = made.queries
    element_bytes = mine.parts.element_bytes
    is_prompt = _is_prompt(made, arch) and element_bytes < 4
    times = cached_times(arch).prompt if is_prompt else times_of(arch).of("few", element_bytes)
    scores = mine.batch * mine.parts.heads * mine.queries * mine.keys
    size = bytes_of(op, input_shapes, mine.output_shapes)
    return None if times is None else times.microseconds(size, 4.0 * scores * mine.size)


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the kernel does not run on this GPU."""
    return refused_factors(op, parse_op(op).factors, arch)


def fits(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch) -> str | None:
    """Return why inputs of these shapes may have no plan; any number of tokens has one."""
    body = parse_op(op)
    cache, total = (shapes[body.inputs[name]] for name in ("past_key", "total_sequence_length"))
    if cache is None or len(cache) != 4 or not isinstance(cache[3], int):
        return "the size of a head is not known from the model's inputs"
    if total is None or len(total) > 0:
        return "the total length is not known to be a scalar"
    if body.rotates:
        table = shapes[body.inputs["cos_cache"]]
        if table is None or len(table) != 2 or not isinstance(table[1], int):
            return "the width of the rotary tables is not known from the model's inputs"
    return wrong_size(body.of_queries(), cache[3])


# ---- source generation


def _kernel(
    made: CachedProblem, facts: dict[str, bool | int], files: tuple[str, ...], work: str, min_blocks: int, *,
    scratch: bool, cluster: int = 1, near: bool = False,
) -> KernelSource:  # fmt: skip
    """Return the kernel of these files of templates, which `work` of them begins."""
    body, mine = made.body, made.queries
    entry, size, heads = f"{identifier(mine.op.name)}_{work}", mine.size, body.heads
    columns = (heads + 2 * body.heads_of_keys) * size
    facts = facts | {
        "CAPPED": body.softcap > 0, "WINDOW": body.window, "HALF": made.half, "INTERLEAVED": body.interleaved,
        "NORM": body.normalized, "SMOOTH": body.smooth, "SINK": "head_sink" in body.inputs,
        "Q_ROW_ELEMENTS": columns if body.packed else heads * size,
        "KV_ROW": columns if body.packed else body.heads_of_keys * size,
        "K_FIRST": heads * size if body.packed else 0,
        "V_FIRST": (heads + body.heads_of_keys) * size if body.packed else 0,
    }  # fmt: skip
    fields = (*_pointers(body), access.scratch(used=scratch))
    prefetch = f"  bring_cache_near({{{typed(f.pointer for f in fields)}}}, p);\n" if near else ""
    floats = "".join(
        f"constexpr float {name} = {element_types.literal(value, TensorProto.FLOAT)};\n"
        for name, value in (("CAP", body.softcap or 1.0), ("EPSILON", body.epsilon))
    )
    return KernelSource(
        entry,
        (
            template(DEVICE),
            template("include/memory.cuh"),
            *(template(f) for f in MMA_SYNC),
            template("include/last.cuh"),
            template(CLUSTER),
            generated(entry, common_constants(mine, facts) + floats + access.pointers(fields)),
            template("attention/rows.cuh"),
            *map(template, files),
            generated(entry, entry_point(entry, work, mine.op, fields, min_blocks, cluster, prefetch)),
        ),
    )


def _pointers(body: CachedAttention) -> tuple[Pointer, ...]:
    """Return the fields of the kernel's `Pointers`; those that the node does not have are null."""
    q = "query"
    read = {
        "q": q, "k": q if body.packed else "key", "v": q if body.packed else "value", "past_k": "past_key",
        "past_v": "past_value", "cos": "cos_cache", "sin": "sin_cache", "sink": "head_sink",
        "q_norm": "q_norm_weight", "k_norm": "k_norm_weight",
    }  # fmt: skip
    inputs = {name: f"in{body.inputs[of]}" if of in body.inputs else "nullptr" for name, of in read.items()}
    return (
        *(Pointer("const E", name, argument) for name, argument in inputs.items()),
        Pointer("const int", "lengths", f"in{body.inputs['seqlens_k']}"),
        *(Pointer("E", name, f"out{i}") for i, name in enumerate(("y", "present_k", "present_v"))),
    )
