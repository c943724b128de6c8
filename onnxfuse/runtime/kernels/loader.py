"""Plan, compile and load the kernels of a fused op; the only module of the runtime that calls `onnxfuse.cuda`."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from onnxfuse import cuda, ops
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import DEFAULT, TileTuning
from onnxfuse.cuda.planning.measurements import changed, extents, key, variant_name
from onnxfuse.cuda.planning.template import Extents
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import LaunchArguments, LaunchProgram, Planner, Shape, Varied
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.fallback_kernels import FallbackKernels
from onnxfuse.runtime.kernels.loading import load
from onnxfuse.runtime.kernels.packs import LoadedPack
from onnxfuse.runtime.kernels.programs import Programs
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.support.errors import KernelError, NoCompilerError, NoPlanError

RESHAPING = frozenset({ops.Expand, ops.Reshape})
"""Operators whose second input is a target shape, which ONNX Runtime reads on the CPU."""


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
    """Return the inputs that the body reads only as the target shape of a Reshape or Expand.

    The launch's shapes follow from the other inputs, so no kernel reads these. Their producers run on the CPU, and a
    copy to the GPU would prevent a CUDA graph.
    """
    found = []
    for position, name in enumerate(op.body.input):
        readers = [(n, i) for n in op.body.node for i, v in enumerate(n.input) if v == name]
        if readers and all(n.op_type in RESHAPING and not n.domain and i == 1 for n, i in readers):
            found.append(position)
    return tuple(found)


def planner(
    op: FusedOp,
    variants: Variants = lambda device: {},
    ahead: AheadOfTime | None = None,
    packed: LoadedPack | None = None,
    *,
    waits: bool = True,
) -> Planner:
    """Return the function that plans, compiles and loads the kernel of `op` for one set of input shapes.

    Shapes covered by the kernel pack `packed` are neither planned nor compiled. If the template has no kernel for the
    shapes, the general kernel is used, with a warning.

    `variants` are the measured fastest variants; for other shapes, or if a variant is not one of the op's own, the plan
    chooses by itself: a tuning file selects among our kernels and cannot introduce one. If extents vary between runs,
    the launch includes a program that covers all of them. `ahead` may have compiled the kernel already; otherwise,
    unless runs wait for kernels, a bit-identical fallback kernel runs meanwhile if one is available.
    """
    programs = Programs(op)
    interim = None if waits or ahead is None else FallbackKernels(op, ahead)

    def launch(
        input_shapes: tuple[Shape, ...], aligned: bool, device: int, varied: Varied | None = None
    ) -> LaunchArguments | LaunchProgram:
        asked = (input_shapes, aligned, device)
        if interim is not None and (serving := interim.known(asked)) is not None:
            return serving
        arch = cuda.arch_of(device)
        own, mine = variants(device), key(op.name, tuple(map(tuple, input_shapes)))
        tuning = own.get(mine, DEFAULT)
        apart = tuple(shapes for (digest, shapes), best in own.items() if digest == mine[0] and best != DEFAULT)
        if packed is not None:
            if ahead is not None:
                ahead.start(device)
            known = packed.program(op.name, input_shapes, aligned, device, apart, variant_name(tuning))
            if known is not None:
                return known
        if tuning != DEFAULT and not cuda.is_candidate(op, input_shapes, arch, tuning):
            warnings.warn(_no_variant(op, input_shapes, tuning), stacklevel=1)
            tuning = DEFAULT
        try:
            if ahead is None:
                plan = cuda.plan(op, input_shapes, aligned, arch, tuning)
            else:
                plan = ahead.plan(op, input_shapes, aligned, device, tuning)
        except NoPlanError as why:
            return general(op, input_shapes, device, packed, why)
        if interim is not None and (serving := interim.instead(plan, asked, tuning)) is not None:
            return serving
        try:
            made = load(plan, device)
        except NoCompilerError as why:
            if packed is None:
                raise
            return general(op, input_shapes, device, packed, why)
        if varied is None or tuning != DEFAULT:
            return made
        return replace(made, program=programs.learn(input_shapes, aligned, device, varied, plan, apart))

    return launch


def _no_variant(op: FusedOp, input_shapes: tuple[Shape, ...], tuning: TileTuning) -> str:
    said = ", ".join(f"{name} {value}" for name, value in changed(tuning).items())
    return (
        f"tuning not used: {said} is no variant of {op.name} for {extents(input_shapes)}; tune again: optimize --tune"
    )


def general(
    op: FusedOp, input_shapes: tuple[Shape, ...], device: int, packed: LoadedPack | None, why: KernelError
) -> LaunchArguments:
    """Return the launch of the general kernel, which accepts all shapes, from the pack if it has one; a warning says
    why."""
    plan = cuda.general(op, input_shapes, cuda.arch_of(device))
    made = load(plan, device, None if packed is None else packed.general(op.name, device))
    warnings.warn(f"{why}; the kernel for all shapes runs, which is slower", stacklevel=1)
    return made
