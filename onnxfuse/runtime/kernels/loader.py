"""Plan, compile and load the kernels of a fused op; the only module of the runtime that calls `onnxfuse.cuda`."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from onnx import NodeProto

from onnxfuse import cuda, ops
from onnxfuse.cuda.dispatch.measurements import extents, key, variant_name
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Extents
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.ops.inputs import BroadcastShape, TargetShape, TotalLength
from onnxfuse.runtime.engine.launch import LaunchArguments, LaunchProgram, Planner, Shape, Varied
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.fallback_kernels import FallbackKernels
from onnxfuse.runtime.kernels.loading import load
from onnxfuse.runtime.kernels.packs import LoadedPack
from onnxfuse.runtime.kernels.programs import Programs, now
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.support.errors import KernelError, NoCompilerError, NoPlanError
from onnxfuse.support.units import size_text

LIMIT_SHARE = 8
"""Of a session's `memory_limit`, one part in so many is for scratch memory, the others for ONNX Runtime's arena: fused
models of the zoo need less than a tenth of their activations."""


def no_kernel(op: FusedOp, arch: Arch | None = None) -> str | None:
    """Return in one line why `op` has no kernel on a GPU (by default the first one); None if it has one."""
    return cuda.supports(op, lambda: arch or cuda.arch_of(0))


def no_plan(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch | None = None) -> str | None:
    """Return why the kernel of `op` may have no plan for these input shapes on a GPU (by default the first); None if it
    has.

    Unknown extents count as not plannable.
    """
    return cuda.fits(op, shapes, arch or cuda.arch_of(0))


def may_alias(op: FusedOp) -> tuple[int, ...]:
    """Return the inputs whose buffer output 0 may reuse; ONNX Runtime does so if the shapes are equal."""
    return tuple(i for i, output in cuda.inplace(op) if output == 0)


def on_host(op: FusedOp) -> tuple[int, ...]:
    """Return the inputs that the body reads only as the target shape of a Reshape or Expand, or as a total length.

    The launch's shapes follow from the other inputs, and from that length, so no kernel reads these. Their producers
    run on the CPU, and a copy to the GPU would prevent a CUDA graph.
    """
    positions = []
    for position, name in enumerate(op.body.input):
        readers = [(n, i) for n in op.body.node for i, v in enumerate(n.input) if v == name]
        if readers and all(_is_target(n, i) for n, i in readers):
            positions.append(position)
    return tuple(positions)


def _is_target(node: NodeProto, position: int) -> bool:
    entry = ops.operator(node.op_type, node.domain)
    return entry is not None and isinstance(entry.role(position), TargetShape | BroadcastShape | TotalLength)


def planner(
    op: FusedOp,
    variants: Variants = lambda device: {},
    ahead_of_time: AheadOfTime | None = None,
    packed: LoadedPack | None = None,
    *,
    waits: bool = True,
) -> Planner:
    """Return the function that plans, compiles and loads the kernel of `op` for one set of input shapes.

    Shapes covered by the kernel pack `packed` are neither planned nor compiled. If the template has no kernel for the
    shapes, the general kernel is used, with a warning.

    `variants` are the measured fastest variants; for other shapes, or if a variant is not one of the op's own, the plan
    chooses by itself: a tuning file selects among our kernels and cannot introduce one. If extents vary between runs,
    the launch includes a program that covers all of them. `ahead_of_time` may have compiled the kernel already;
    otherwise, unless runs wait for kernels, a bit-identical fallback kernel runs meanwhile if one is available.
    """
    programs = Programs(op)
    interim = None if waits or ahead_of_time is None else FallbackKernels(op, ahead_of_time)

    def launch(
        input_shapes: tuple[Shape, ...],
        aligned: bool,
        device: int,
        varied: Varied | None = None,
        scratch_limit: int | None = None,
    ) -> LaunchArguments | LaunchProgram:
        request = (input_shapes, aligned, device)
        if interim is not None and (serving := interim.known(request)) is not None:
            return serving
        arch = cuda.arch_of(device)
        tunings, mine = variants(device), key(op.name, tuple(map(tuple, input_shapes)))
        tuning = tunings.get(mine)
        tuned_shapes = tuple(
            shapes for (digest, shapes), best in tunings.items() if digest == mine[0] and best is not None
        )
        if packed is not None:
            if ahead_of_time is not None:
                ahead_of_time.start(device)
            packed_kernel = packed.program(op.name, input_shapes, aligned, device, tuned_shapes, variant_name(tuning))
            if packed_kernel is not None:
                return packed_kernel
        if tuning is not None and not cuda.is_candidate(op, input_shapes, arch, tuning):
            warnings.warn(_no_variant(op, input_shapes, tuning), stacklevel=1)
            tuning = None
        try:
            if ahead_of_time is None:
                plan = cuda.plan(op, input_shapes, aligned, arch, tuning)
            else:
                plan = ahead_of_time.plan(op, input_shapes, aligned, device, tuning)
        except NoPlanError as why:
            return general(op, input_shapes, device, packed, why)
        if scratch_limit is not None and plan.all_scratch_bytes > scratch_limit:
            return load(_smaller(op, input_shapes, aligned, arch, plan, scratch_limit), device)
        if interim is not None and (serving := interim.instead(plan, request, tuning)) is not None:
            return serving
        try:
            loaded = load(plan, device)
        except NoCompilerError as why:
            if packed is None:
                raise
            return general(op, input_shapes, device, packed, why)
        if varied is None or tuning is not None:
            return loaded
        later = now if ahead_of_time is None else ahead_of_time.record
        program = programs.learn(input_shapes, aligned, device, varied, plan, tuned_shapes, later)
        return replace(loaded, program=program)

    return launch


def _smaller(
    op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, arch: Arch, plan: LaunchPlan, limit: int
) -> LaunchPlan:
    """Return a plan that needs at most so much scratch memory; raise KernelError if none does."""
    found = cuda.plan_within(op, shapes, aligned, arch, limit)
    if found is None:
        raise KernelError(
            f"{op.name} needs {size_text(plan.all_scratch_bytes)} of scratch memory for inputs of {extents(shapes)}; "
            f"memory_limit leaves {size_text(limit)}",
            f"memory_limit={plan.all_scratch_bytes * LIMIT_SHARE} is enough for it, or smaller inputs.",
        )
    return found


def _no_variant(op: FusedOp, input_shapes: tuple[Shape, ...], tuning: Variant) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in tuning.changed.items())
    shapes = extents(input_shapes)
    return f"tuning not used: {settings} is not a variant of {op.name} for {shapes}; tune again: optimize --tune"


def general(
    op: FusedOp, input_shapes: tuple[Shape, ...], device: int, packed: LoadedPack | None, why: KernelError
) -> LaunchArguments:
    """Return the launch of the general kernel, which accepts all shapes, from the pack if it has one; a warning says
    why."""
    plan = cuda.general(op, input_shapes, cuda.arch_of(device))
    functions = [] if packed is None else packed.general(op.name, input_shapes, device)
    loaded = load(plan, device, iter(functions) if functions else None)
    warnings.warn(f"{why}; the kernel for all shapes runs, which is slower", stacklevel=1)
    return loaded
