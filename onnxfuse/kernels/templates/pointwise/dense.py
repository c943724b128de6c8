"""Launch plans of the pointwise template: one output element per element of the broadcast shape."""

import math
from dataclasses import dataclass

from onnxfuse.kernels import launch_plan
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.emit.source import DEVICE, KernelSource, generated, template
from onnxfuse.kernels.ir.program import Program, broadcast
from onnxfuse.kernels.ir.strides import Layout, Shape, collapse, divisor, strides_in, vector_width
from onnxfuse.kernels.launch_plan import LaunchPlan, Operand, Tuning


@dataclass(frozen=True)
class Placed:
    """An operand and how the kernel reaches it."""

    operand: Operand
    kind: str
    """`linear`, `uniform`, `splat`, `inner`, `seam`, `seam_splat` or `gather`; outputs: `linear` or `first`.

    What they are: templates/pointwise/pointwise.cuh.
    """
    slot: int
    """Its row of strides among the parameters, or -1 where it needs none."""


def plan(
    entry: str,
    program: Program,
    input_shapes: tuple[Shape, ...],
    output_shapes: tuple[Shape, ...],
    aligned: bool,
    arch: Arch,
    tuning: Tuning,
) -> LaunchPlan:
    """Return how to run a program without reductions on inputs of these shapes."""
    operands = launch_plan.operands(program, input_shapes)
    full = broadcast(*(o.shape for o in operands))
    space = collapse(full, tuple(strides_in(o.shape, full) for o in operands))
    count = math.prod(full)
    bits = launch_plan.index_bits(count)
    width = _width(operands, count, aligned, arch, tuning)
    placed = place(operands, space, count, width)
    vectors = count // width
    # Places of three dimensions and more take more arithmetic, which two vectors hide: channel broadcasts 34.4 us by 32
    # bytes, 35.0 by 16 (float16, 64 MB, H200, 2026-11).
    in_flight = tuning.bytes_in_flight * (2 if len(space.extents) > 2 else 1)
    unroll = _unroll(placed, width, vectors, arch, in_flight)
    tile = tuning.pointwise_threads * unroll

    constants = index_space(bits, space, placed)
    constants += f"constexpr int WIDTH = {width}, UNROLL = {unroll}, THREADS = {tuning.pointwise_threads};\n\n"
    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, "cuda/math.cuh", "cuda/memory.cuh")),
            generated(entry, constants + expressions.source(program)),
            *(template(f) for f in ("cuda/place.cuh", "pointwise/pointwise.cuh")),
            generated(entry, accesses(placed)),
            template("pointwise/pointwise.cu"),
            generated(entry, launch_plan.entry_point(entry, "pointwise", program, operands, tuning.min_blocks)),
        ),
    )
    return LaunchPlan(
        kernel=kernel,
        grid=(max(1, -(-vectors // tile)) if count else 0, 1, 1),
        block=(tuning.pointwise_threads, 1, 1),
        shared_bytes=0,
        parameters=parameters(count, space, placed, bits),
        output_shapes=output_shapes,
    )


def _width(operands: tuple[Operand, ...], count: int, aligned: bool, arch: Arch, tuning: Tuning) -> int:
    if not aligned:
        return 1
    widest = vector_width(tuple(o.size for o in operands if math.prod(o.shape) == count))
    return tuning.width or launch_plan.spread(widest, count, arch)


def place(operands: tuple[Operand, ...], space: Layout, count: int, width: int) -> tuple[Placed, ...]:
    """Return how a kernel that computes `width` neighbours of the last dimension at a time reaches each operand."""
    placed: list[Placed] = []
    slots = 0
    for operand, strides in zip(operands, space.strides, strict=True):
        kind = _kind(operand, strides, space.extents, count, width)
        has_slot = kind not in ("linear", "uniform")
        placed.append(Placed(operand, kind, slots if has_slot else -1))
        slots += has_slot
    return tuple(placed)


def _kind(operand: Operand, strides: Shape, extents: Shape, count: int, width: int) -> str:
    if math.prod(operand.shape) == count:
        return "linear"
    if operand.is_output:
        return "first"
    if not any(strides):
        return "uniform"
    if extents[-1] % width or (any(s % width for s in strides[:-1]) and strides[-1]):
        if extents[-1] < width:
            return "gather"
        return "seam" if strides[-1] else "seam_splat"
    return "inner" if strides[-1] else "splat"


def _slots(placed: tuple[Placed, ...]) -> int:
    return sum(p.slot >= 0 for p in placed)


def _unroll(placed: tuple[Placed, ...], width: int, vectors: int, arch: Arch, in_flight: int) -> int:
    """Vectors per thread: enough bytes in flight, but one where a single wave of threads holds all of them anyway."""
    if vectors <= arch.sm_count * arch.threads_per_sm:
        return 1
    read = sum(p.operand.size * width for p in placed if p.kind == "linear" and not p.operand.is_output)
    return max(1, min(8, in_flight // max(read, 8)))


def index_space(bits: int, space: Layout, placed: tuple[Placed, ...]) -> str:
    """Return the constants of cuda/place.cuh and of the parameters in pointwise/pointwise.cuh."""
    return (
        f"using Index = {launch_plan.index_type(bits)};\n"
        f"constexpr int RANK = {len(space.extents)}, TAIL = RANK, STRIDED_SLOTS = {max(_slots(placed), 1)};\n"
    )


def accesses(placed: tuple[Placed, ...]) -> str:
    """Return `Pointers`, `Held<W>`, `load_all`, `element`, `store_all`: W neighbours of each operand at a `Place`."""
    pointers = launch_plan.pointers(tuple(p.operand for p in placed))
    return pointers + _held(placed) + _load(placed) + _element(placed) + _store(placed)


def _held(placed: tuple[Placed, ...]) -> str:
    fields = []
    for p in placed:
        if not p.operand.is_output:
            holder = "Splat<{}>" if p.kind in ("uniform", "splat") else "Pack<{}, W>"
            fields.append(f"  {holder.format(p.operand.stored)} {p.operand.name};\n")
    return "template <int W> struct Held {\n" + "".join(fields) + "};\n"


def _load(placed: tuple[Placed, ...]) -> str:
    calls = {
        "linear": "load_linear<W>(from.{0}, at)",
        "uniform": "load_uniform<W>(from.{0}, at)",
        "splat": "load_strided_splat<W>(from.{0}, at, p.stride[{1}])",
        "inner": "load_inner<W>(from.{0}, at, p.stride[{1}])",
        "seam": "load_seam<W>(from.{0}, at, p.stride[{1}], p)",
        "seam_splat": "load_seam_splat<W>(from.{0}, at, p.stride[{1}], p)",
        "gather": "load_gather<W>(from.{0}, at, p.stride[{1}], p)",
    }
    lines = [
        f"  held.{p.operand.name} = {calls[p.kind].format(p.operand.name, p.slot)};\n"
        for p in placed
        if not p.operand.is_output
    ]
    head = (
        "template <int W>\n"
        "DEVICE void load_all(Held<W>& held, const Pointers& from, const Place& at, const Parameters& p) {\n"
    )
    return head + "".join(lines) + "}\n"


def _element(placed: tuple[Placed, ...]) -> str:
    values = ", ".join(f"held.{p.operand.name}.get(lane)" for p in placed if not p.operand.is_output)
    return f"template <int W> DEVICE Element element(const Held<W>& held, int lane) {{\n  return {{{values}}};\n}}\n"


def _store(placed: tuple[Placed, ...]) -> str:
    lines = []
    for p in placed:
        if p.operand.is_output:
            o = p.operand
            call = (
                "store_linear<W>(to.{0}, {0}, at)"
                if p.kind == "linear"
                else "store_first<W>(to.{0}, {0}, at, p.stride[{1}], p)"
            )
            lines.append(
                f"  Stored<{o.stored}>::Value {o.name}[W];\n"
                f"  UNROLLED for (int lane = 0; lane < W; ++lane) {o.name}[lane] = result[lane].{o.field};\n"
                f"  {call.format(o.name, p.slot)};\n"
            )
    head = (
        "template <int W> DEVICE void store_all(const Pointers& to, const Result (&result)[W], const Place& at, "
        "const Parameters& p) {\n"
    )
    return head + "".join(lines) + "}\n"


def parameters(count: int, space: Layout, placed: tuple[Placed, ...], bits: int) -> bytes:
    """Return the parameters as pointwise/pointwise.cuh declares them."""
    words = [count]
    for extent in space.extents:
        words.extend(divisor(extent, bits))
    strides = [s for p, s in zip(placed, space.strides, strict=True) if p.slot >= 0]
    for row in strides or [(0,) * len(space.extents)]:
        words.extend(row)
    return launch_plan.packed(words, bits)
