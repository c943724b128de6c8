"""Launch plans of the pointwise template: one output element per element of the broadcast shape."""

import math
from dataclasses import dataclass

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Load, Operand, RegisterGroup, Store, element, store
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, Section, generated, template
from onnxfuse.codegen.program.program import broadcast
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.symbolic.strides import Shape, StridedLayout, collapse, divisors, rows, slots, strides_in, vector_width


@dataclass(frozen=True)
class DenseOperand:
    """An operand, and its access pattern."""

    operand: Operand
    kind: str
    """`linear`, `uniform`, `splat`, `inner`, `seam`, `seam_splat` or `gather`; outputs: `linear` or `first`.

    Defined in templates/pointwise/pointwise.cuh.
    """
    slot: int
    """Index of its stride row among the parameters; -1 if it needs none."""


def plan(request: PlanRequest[PointwiseVariant]) -> LaunchPlan:
    """Return the launch plan of a program without reductions."""
    program, arch, tuning = request.program, request.arch, request.tuning
    operands = access.operands(program, request.input_shapes)
    full = broadcast(*(o.shape for o in operands))
    space = collapse(full, tuple(strides_in(o.shape, full) for o in operands))
    count = math.prod(full)
    bits = launch_plan.index_bits(count)
    width = _width(operands, count, request.aligned, arch, tuning)
    placed = patterns(operands, space, count, width)
    vectors = count // width
    # Index arithmetic for three and more dimensions is hidden by two vectors: channel broadcasts 34.4 us by 32 bytes,
    # 35.0 by 16 (float16, 64 MB, H200, 2026-11).
    in_flight = tuning.bytes_in_flight * (2 if len(space.extents) > 2 else 1)
    unroll = _unroll(placed, width, vectors, arch, in_flight)
    tile = tuning.pointwise_threads * unroll

    constants = index_space(bits, space, placed)
    constants += f"constexpr int WIDTH = {width}, UNROLL = {unroll}, THREADS = {tuning.pointwise_threads};\n\n"
    kernel = KernelSource(
        request.entry,
        (
            *sections(request.entry, constants + expressions.source(program), placed),
            template("pointwise/pointwise.cu"),
            generated(
                request.entry,
                entry_point(request.entry, "pointwise", request.op, operands, tuning.min_blocks),
            ),
        ),
    )
    return LaunchPlan(
        kernel=kernel,
        grid=(max(1, -(-vectors // tile)) if count else 0, 1, 1),
        block=(tuning.pointwise_threads, 1, 1),
        shared_bytes=0,
        parameters=parameters(count, space, placed, bits),
        output_shapes=request.output_shapes,
    )


def _width(operands: tuple[Operand, ...], count: int, aligned: bool, arch: Arch, tuning: PointwiseVariant) -> int:
    if not aligned:
        return 1
    widest = vector_width(tuple(o.size for o in operands if math.prod(o.shape) == count))
    return tuning.width or launch_plan.vector_width(widest, count, arch)


def patterns(operands: tuple[Operand, ...], space: StridedLayout, count: int, width: int) -> tuple[DenseOperand, ...]:
    """Return the access pattern of each operand, for kernels that compute `width` adjacent elements at a time."""
    kinds = [_kind(o, s, space.extents, count, width) for o, s in zip(operands, space.strides, strict=True)]
    numbers = slots(kind not in ("linear", "uniform") for kind in kinds)
    return tuple(map(DenseOperand, operands, kinds, numbers))


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


def _unroll(placed: tuple[DenseOperand, ...], width: int, vectors: int, arch: Arch, in_flight: int) -> int:
    """Return the vectors per thread: enough bytes in flight, but one if a single wave of threads covers everything."""
    if vectors <= arch.sm_count * arch.threads_per_sm:
        return 1
    read = sum(p.operand.size * width for p in placed if p.kind == "linear" and not p.operand.is_output)
    return max(1, min(8, in_flight // max(read, 8)))


def index_space(bits: int, space: StridedLayout, placed: tuple[DenseOperand, ...]) -> str:
    """Return the constants of include/place.cuh and of the parameters in pointwise/pointwise.cuh."""
    slots = 1 + max(p.slot for p in placed)
    return (
        f"using Index = {launch_plan.index_type(bits)};\n"
        f"constexpr int RANK = {len(space.extents)}, TAIL = RANK, STRIDED_SLOTS = {max(slots, 1)};\n"
    )


_LOADS = {
    "linear": "load_linear<W>(from.{0}, at)",
    "uniform": "load_uniform<W>(from.{0}, at)",
    "splat": "load_strided_splat<W>(from.{0}, at, p.stride[{1}])",
    "inner": "load_inner<W>(from.{0}, at, p.stride[{1}])",
    "seam": "load_seam<W>(from.{0}, at, p.stride[{1}], p)",
    "seam_splat": "load_seam_splat<W>(from.{0}, at, p.stride[{1}], p)",
    "gather": "load_gather<W>(from.{0}, at, p.stride[{1}], p)",
}
_STORES = {
    "linear": "store_linear<W>(to.{0}, {0}, at)",
    "first": "store_first<W>(to.{0}, {0}, at, p.stride[{1}], p)",
}


def sections(
    entry: str, text: str, placed: tuple[DenseOperand, ...], *, cooperates: bool = False
) -> tuple[Section, ...]:
    """Return the sections before a core's own: its constants and program, `text`, and the accesses of its operands.

    Threads that cooperate also get what they share memory and reduce by.
    """
    shared, reduce = ((CLUSTER,), ("include/reduce.cuh",)) if cooperates else ((), ())
    files = (*reduce, "include/coordinates.cuh", "include/place.cuh", "pointwise/pointwise.cuh")
    return (
        *(template(f) for f in (DEVICE, *shared, "include/math.cuh", "include/memory.cuh")),
        generated(entry, text),
        *(template(f) for f in files),
        generated(entry, accesses(placed)),
    )


def accesses(placed: tuple[DenseOperand, ...]) -> str:
    """Return `Pointers` and the code around a core that processes W adjacent elements of each operand at a `Place`."""
    inputs, outputs = ([p for p in placed if p.operand.is_output is output] for output in (False, True))
    loads = tuple(
        Load(
            p.operand.name,
            f"Splat<{p.operand.stored}>" if p.kind in ("uniform", "splat") else f"Pack<{p.operand.stored}, W>",
            _LOADS[p.kind].format(p.operand.name, p.slot),
        )
        for p in inputs
    )
    stores = tuple(Store.of(p.operand, _STORES[p.kind].format(p.operand.name, p.slot)) for p in outputs)
    return access.pointers(p.operand for p in placed) + around(loads, stores)


def around(loads: tuple[Load, ...], stores: tuple[Store, ...], load_all: str = "") -> str:
    """Return `Held<W>`, `load_all`, `element` and `store_all`, optionally with another location type than `Place`."""
    group, arguments = RegisterGroup("Held", "held", loads, wide=True), "const Place& at, const Parameters& p"
    return (
        group.hold()
        + (load_all or group.fill("load_all", f"const Pointers& from, {arguments}"))
        + element((load.name for load in loads), (group,), "const Held<W>& held, int w")
        + store("store_all", f"const Pointers& to, const Result (&result)[W], {arguments}", stores, "W")
    )


def parameters(count: int, space: StridedLayout, placed: tuple[DenseOperand, ...], bits: int) -> bytes:
    """Return the parameters as pointwise/pointwise.cuh declares them."""
    words = [count, *divisors(space.extents, bits)]
    words += rows(space.strides, (p.slot for p in placed), len(space.extents))
    return launch_plan.packed(words, bits)
