"""Launch plans of the attention template: short sequences, whose keys and values fit into shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse.kernels import launch_plan
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.emit import access
from onnxfuse.kernels.emit.access import Pointer
from onnxfuse.kernels.emit.entry import entry_point
from onnxfuse.kernels.emit.source import DEVICE, KernelSource, constants, generated, identifier, template
from onnxfuse.kernels.ir import strides, types
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.launch_plan import LaunchPlan, Queries, Tuning
from onnxfuse.kernels.programs.choice import least
from onnxfuse.kernels.templates.attention.body import Attention, Operand, take_apart
from onnxfuse.kernels.templates.template import Extents
from onnxfuse.model.fused import FusedOp

LARGEST_SIZE = 128
"""Elements of a head: more accumulators would not fit the registers."""
OLDEST = 80
"""mma.m16n8k16, ldmatrix and cp.async came with sm_80."""
LOG2_E = math.log2(math.e)


def key_rows(keys: int) -> int:
    """Return the rows that so many keys take in shared memory: whole tiles of the tensor cores."""
    return -(-keys // 16) * 16


def shared_bytes(keys: int, size: int) -> int:
    """Return the shared memory of a block: all keys and values of a head, eight elements apart, and a bias per key."""
    return key_rows(keys) * (size + 9) * 4


def _too_many(keys: int, size: int, arch: Arch) -> str | None:
    """Return why the keys and values of a head do not fit the shared memory of a block, None where they do."""
    needed = shared_bytes(keys, size)
    if needed <= arch.shared_bytes:
        return None
    return (
        f"{keys} keys of {size} elements take {needed // 1024} KB, and do not fit the shared memory of a block on "
        f"{arch.name}, {arch.shared_bytes // 1024} KB"
    )


@dataclass(frozen=True)
class Work:
    """An attention with its sizes."""

    op: FusedOp
    parts: Attention
    batch: int
    queries: int
    keys: int
    size: int
    """Elements of a head."""
    bias: Shape | None
    """Strides of the bias along batch, heads, queries and keys, 0 = broadcast."""
    windows: int
    """Of so many in a row each has a bias of its own, then they begin again; 0 = the bias is that of the batch."""
    output_shapes: tuple[Shape, ...]

    @property
    def key_rows(self) -> int:
        """Keys in shared memory, in whole tiles of the tensor cores."""
        return key_rows(self.keys)

    @property
    def shared_bytes(self) -> int:
        return shared_bytes(self.keys, self.size)


def work(op: FusedOp, input_shapes: tuple[Shape, ...]) -> Work:
    """Return the attention on inputs of these shapes; raises `UnsupportedError` where the kernel does not take them."""
    parts = take_apart(op)
    (batch, queries, size), (k_batch, keys, k_size), (v_batch, v_keys, v_size) = (
        _sizes(operand, parts.heads, input_shapes) for operand in (parts.q, parts.k, parts.v)
    )
    if not (batch == k_batch == v_batch and keys == v_keys and size == k_size == v_size):
        raise UnsupportedError("queries, keys and values whose batch, sequence or head size differ")
    if size % 16 or not 16 <= size <= LARGEST_SIZE:
        raise UnsupportedError(f"heads of {size} elements, expected a multiple of 16 up to {LARGEST_SIZE}")
    if parts.causal and queries != keys:
        raise UnsupportedError("a causal mask over other keys than those of the queries")
    full, windows = (batch, parts.heads, queries, keys), 0
    bias = None
    if parts.bias is not None:
        shape = input_shapes[parts.bias]
        if parts.windows:
            if len(shape) != 5 or shape[0] != 1 or not shape[1] or batch % shape[1]:
                raise UnsupportedError(f"a bias of shape {list(shape)} for the windows of a batch of {batch}")
            shape, windows = shape[1:], shape[1]
            full = (windows, *full[1:])
        if len(shape) > 4 or any(n not in (1, m) for n, m in zip(strides.padded(shape, 4), full, strict=True)):
            raise UnsupportedError(f"a bias of shape {list(shape)} beside scores of shape {list(full)}")
        bias = strides.strides_in(shape, full)
    wide = (batch, parts.heads, queries, size)
    flat: Shape = (batch, queries, parts.heads * size)
    if parts.target is not None:
        flat = _reshaped((batch, queries, parts.heads, size), parts.target)
    return Work(op, parts, batch, queries, keys, size, bias, windows, (wide if parts.y.heads_first else flat,))


def _reshaped(shape: Shape, target: tuple[int, ...]) -> Shape:
    """Return the shape that a Reshape gives: a 0 copies an extent, a -1 is what is left."""
    if any(n == 0 and axis >= len(shape) for axis, n in enumerate(target)) or target.count(-1) > 1:
        raise UnsupportedError(f"a result of shape {list(shape)} as {list(target)}")
    given = [shape[axis] if n == 0 else n for axis, n in enumerate(target)]
    rest, elements = math.prod(n for n in given if n != -1), math.prod(shape)
    found = tuple(n if n != -1 else elements // max(rest, 1) for n in given)
    if math.prod(found) != elements or (-1 in given and not rest):
        raise UnsupportedError(f"a result of shape {list(shape)} as {list(target)}")
    return found


def _sizes(operand: Operand, heads: int, input_shapes: tuple[Shape, ...]) -> tuple[int, int, int]:
    """Return batch, sequence and size of a head."""
    shape = input_shapes[operand.position]
    if len(shape) not in ((4,) if operand.heads_first else (3, 4)):
        raise UnsupportedError(f"an operand of rank {len(shape)}")
    if len(shape) == 4:
        many, sequence = (shape[1], shape[2]) if operand.heads_first else (shape[2], shape[1])
        if many != heads:
            raise UnsupportedError(f"{many} heads, expected {heads}")
        return shape[0], sequence, shape[3]
    if shape[2] % heads:
        raise UnsupportedError(f"{shape[2]} columns for {heads} heads")
    return shape[0], shape[1], shape[2] // heads


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of the output."""
    return work(op, input_shapes).output_shapes


def plan(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning) -> LaunchPlan:
    """Return how to run `op` on inputs of these shapes."""
    mine = work(op, input_shapes)
    if not mine.keys and mine.queries and mine.batch:
        raise UnsupportedError("queries without keys")
    if (reason := _too_many(mine.keys, mine.size, arch)) is not None:
        raise UnsupportedError(reason)
    queries = tuning.queries or choose(mine, arch)
    blocks = -(-mine.queries // (queries.warps * queries.tiles * queries.passes * 16))
    grid = mine.batch * mine.parts.heads * blocks
    if grid >= 2**31:
        raise UnsupportedError(f"{grid} blocks, expected fewer than 2^31")
    return LaunchPlan(
        kernel=_kernel(mine, queries, blocks, aligned, tuning.min_blocks or _resident(queries)),
        grid=(grid, 1, 1),
        block=(queries.warps * 32, 1, 1),
        shared_bytes=mine.shared_bytes,
        parameters=launch_plan.packed((0,), 32),
        output_shapes=mine.output_shapes,
    )


WARPS = 4
"""Warps of a block, beside each other on their keys; three such blocks share a multiprocessor."""
STEP = 128
"""Keys at a time, at most: their scores are held in registers.

float16, H200, 2026-11, microseconds, 128 / 64: 32x12x128x64 with a mask 11.0 / 11.5, 32x12x197x64 21.8 / 24.5,
1x12x197x64 4.6 / 5.7.
"""
FEW_KEYS = 64
"""Up to here half of them at a time: 2048x3x49x32 with a bias 35.5, all at once 38.6."""


def choose(mine: Work, arch: Arch) -> Queries:
    """Return how many queries a block takes: as many as leave enough blocks for the GPU.

    A sequence just beyond four warps takes a warp more for each 16 queries: 32x8x77x64 causal 5.0 us, in two blocks of
    four warps 6.8 (float16, H200, 2026-11).
    """
    tiles, heads = -(-mine.queries // 16), mine.batch * mine.parts.heads
    warps = tiles if WARPS < tiles < 2 * WARPS else WARPS
    rounds = max(-(-tiles // warps), 1)
    ways = [(-(-rounds // passes), passes) for passes in range(1, rounds + 1)]
    enough = least(ways, lambda way: (way[0] * way[1], way[0]), lambda way: 2 * heads * way[0] >= 3 * arch.sm_count)
    _, passes = enough or ways[0]
    return Queries(warps, 1, passes, _step(mine))


def _step(mine: Work) -> int:
    most = FEW_KEYS // 2 if mine.key_rows <= FEW_KEYS else STEP
    steps = max(-(-mine.key_rows // most), 1)
    return max(-(-mine.key_rows // steps // 16) * 16, 16)


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Tuning, ...]:
    """Return other ways to share the queries among blocks and warps."""
    tiles = -(-work(op, input_shapes).queries // 16)
    ways = (
        Queries(w, t, p, s)
        for w in (2, 4, 5, 7) for t in (1, 2) for p in (1, 2, 3, 4) for s in (32, 64, 112, 128)
        if w * t * p < tiles + w * t and t * s <= 128
    )  # fmt: skip
    return tuple(Tuning(queries=way) for way in ways)


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the kernel does not run on this GPU."""
    number = int("".join(c for c in arch.name if c.isdigit()))
    return None if number >= OLDEST else f"the kernel needs sm_{OLDEST}, this is {arch.name}"


def fits(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch) -> str | None:
    """Return why inputs of these shapes may have no plan: too long a sequence for the GPU, or one that is not known."""
    parts = take_apart(op)
    (queries, _), (keys, size) = (_ends(operand, parts.heads, shapes) for operand in (parts.q, parts.k))
    if not isinstance(keys, int) or not isinstance(size, int) or not keys:
        return "the number of keys, or the size of a head, is not known from the model's inputs"
    if size % 16 or not 16 <= size <= LARGEST_SIZE:
        return f"heads of {size} elements, expected a multiple of 16 up to {LARGEST_SIZE}"
    if parts.causal and queries != keys:
        return "a causal mask over other keys than those of the queries"
    return _too_many(keys, size, arch)


def _ends(operand: Operand, heads: int, shapes: Sequence[Extents | None]) -> tuple[object, object]:
    """Return the sequence and the size of a head, as far as they are known."""
    shape = shapes[operand.position]
    if shape is None or len(shape) not in (3, 4):
        return None, None
    if len(shape) == 4:
        return shape[2 if operand.heads_first else 1], shape[3]
    return shape[1], shape[2] // heads if isinstance(shape[2], int) else None


def _resident(queries: Queries) -> int:
    """Return the blocks that share the registers of a multiprocessor: three of four warps."""
    return max(15 // (queries.warps * queries.tiles), 1)


# ---- the text


def _kernel(mine: Work, queries: Queries, blocks: int, aligned: bool, min_blocks: int) -> KernelSource:
    entry = identifier(mine.op.name)
    return KernelSource(
        entry,
        (
            template(DEVICE),
            template("cuda/memory.cuh"),
            generated(entry, _constants(mine, queries, blocks, aligned) + access.pointers(_pointers(mine))),
            template("attention/attention.cu"),
            generated(entry, entry_point(entry, "attend", mine.op, _pointers(mine), min_blocks)),
        ),
    )


def _constants(mine: Work, queries: Queries, blocks: int, aligned: bool) -> str:
    parts = mine.parts
    kinds = ("NONE", "PER_KEY", "PER_PAIR")
    bias = mine.bias or (0, 0, 0, 0)
    facts = {
        "WARPS": queries.warps, "TILES": queries.tiles, "PASSES": queries.passes, "STEP": queries.step,
        "THREADS": queries.warps * 32, "BLOCKS": max(blocks, 1), "HEADS": parts.heads, "SIZE": mine.size,
        "QUERIES": mine.queries, "KEYS": mine.keys, "BIAS_QUERY": bias[2], "BIAS_KEY": bias[3], "WINDOWS": mine.windows,
        "ALIGNED": aligned, "CAUSAL": parts.causal, "SAFE": parts.safe,
    }  # fmt: skip
    wide = {"BIAS_BATCH": bias[0], "BIAS_HEAD": bias[1]}
    for name, operand, rows in (
        ("Q", parts.q, mine.queries), ("K", parts.k, mine.keys), ("V", parts.v, mine.keys),
        ("Y", parts.y, mine.queries),
    ):  # fmt: skip
        width = parts.heads * mine.size
        wide[f"{name}_BATCH"] = rows * width
        wide[f"{name}_HEAD"] = rows * mine.size if operand.heads_first else mine.size
        facts[f"{name}_ROW"] = mine.size if operand.heads_first else width
    scale = parts.scale or mine.size**-0.5
    return (
        f"using E = {types.TYPES[parts.dtype].stored};\n"
        + constants(facts)
        + constants(wide, "unsigned long long")
        + f"constexpr float SCALE = {types.literal(scale * LOG2_E, TensorProto.FLOAT)};\n"
        + f"enum Bias {{ {', '.join(kinds)} }};\n"
        + f"constexpr Bias BIAS = {kinds[0 if mine.bias is None else 2 if bias[2] else 1]};\n"
    )


def _pointers(mine: Work) -> tuple[Pointer, ...]:
    parts = mine.parts
    bias = "nullptr" if parts.bias is None else f"in{parts.bias}"
    places = zip("qkv", (parts.q, parts.k, parts.v), strict=True)
    inputs = (Pointer("const E", name, f"in{operand.position}") for name, operand in places)
    return (*inputs, Pointer("const E", "bias", bias), Pointer("E", "y", "out0"))
