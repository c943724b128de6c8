"""Launch plans of dynamic quantization: a value's range, found by the kernel that makes the value, then its elements.

Every launch but the last leaves extremes of what it has seen in scratch memory, in as many parts as threads that do not
wait for each other. The last one combines them in each of its blocks: nothing is counted, and nothing has to be zero
before.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.read import SubOp
from onnxfuse.cuda import templates
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import EXTREMES_BYTES, LaunchPlan
from onnxfuse.cuda.planning.template import Extents, Planner, Template
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.quantize import quantize_cpp
from onnxfuse.cuda.templates.quantize.body import QuantizeBody, parse
from onnxfuse.cuda.templates.quantize.costs import costs_of
from onnxfuse.cuda.templates.quantize.quantize_cpp import QuantizeSource
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import larger, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


def check(op: FusedOp) -> QuantizeBody:
    """Parse `op`, whose value is an input; raises `UnsupportedError` with the reason if no kernel supports it."""
    body = parse(read.program(op))
    if body.producer is not None:
        raise UnsupportedError("a value that the body computes")
    return body


def check_produced(op: FusedOp) -> tuple[QuantizeBody, SubOp]:
    """Parse `op`, which computes its value; return also the op that does, with its template."""
    reasons = []
    for writer in (t for t in templates.every().values() if t.leaves_extremes):
        try:
            return _by(op, writer)
        except UnsupportedError as reason:
            reasons.append(f"{writer.name}: {reason}")
    raise UnsupportedError("; ".join(reasons))


def _by(op: FusedOp, writer: Template) -> tuple[QuantizeBody, SubOp]:
    """Return the parsed op, and the op that computes its value, of a template that supports that."""
    body = parse((read.library_program if writer.reads_library_form else read.program)(op))
    if body.producer is None:
        raise UnsupportedError("a value that the body does not compute")
    part = SubOp(
        op.name, op.rule, writer.name, op.inputs, op.outputs, op.body, op.library, open_length=op.open_length,
        constants=op.constants, tf32=op.tf32, program=body.producer,
    )  # fmt: skip
    _planner(part).check(part)
    return body, part


def _planner(part: SubOp) -> Planner[Any]:
    planner = templates.every()[part.template].planner
    assert planner is not None
    return planner


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is preferred on `arch`, according to what computes the value."""
    _, part = check_produced(op)
    refuse = _planner(part).refuses
    return None if refuse is None else refuse(part, arch)


def fits(op: FusedOp, shapes: Sequence[Extents | None], arch: Arch) -> str | None:
    """Return why inputs of these shapes may have no plan on `arch`, according to what computes the value."""
    _, part = check_produced(op)
    fit = _planner(part).fits
    return None if fit is None else fit(part, shapes, arch)


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Variant, ...]:
    """Return the variants worth measuring of the kernel that computes the value."""
    _, part = check_produced(op)
    found: tuple[Variant, ...] = _planner(part).candidates(part, input_shapes, arch)
    return found


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output, for a value that is an input."""
    body = check(op)
    return body.finished(input_shapes[body.source])


def produced_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output: those of the producer first."""
    body, part = check_produced(op)
    shapes = _planner(part).output_shapes(part, input_shapes)[: body.first]
    return (*shapes, *body.finished(shapes[body.source]))


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the plan of two launches for a value that is an input."""
    body = check(op)
    work = _source(op, body, math.prod(input_shapes[body.source]), aligned, arch)
    return _joined(work, (_extremes(work, arch),), output_shapes(op, input_shapes))


def produced_plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the plan of the producer, whose kernel leaves the extremes if it can, and of what reads them.

    A variant is one of the producer.
    """
    body, part = check_produced(op)
    outputs = produced_shapes(op, input_shapes)
    work = _source(op, body, math.prod(outputs[body.source]), aligned, arch)
    if work.size == 0:
        return _joined(work, (_extremes(work, arch),), outputs)
    made = _planner(part).plan(replace(part, extremes_of=body.source), input_shapes, aligned, arch, variant)
    return _joined(work, (made,) if made.extremes is not None else (made, _extremes(work, arch)), outputs)


def _source(op: FusedOp, body: QuantizeBody, count: int, aligned: bool, arch: Arch) -> QuantizeSource:
    """Return the input of the kernels' source; threads take more vectors where a GPU does not hold one for each."""
    costs, vectors = costs_of(arch), count // quantize_cpp.vector_width(aligned)
    if vectors >= 2 * costs.most_threads * arch.sm_count:  # every block reads all parts of the extremes
        costs = replace(costs, threads=costs.most_threads)
    held = arch.sm_count * arch.threads_per_sm
    unroll = next((n for n in range(1, costs.vectors) if vectors <= n * held), costs.vectors)
    return QuantizeSource(op, body, count, aligned, costs, unroll)


def _extremes(work: QuantizeSource, arch: Arch) -> LaunchPlan:
    """Return the launch that reads a value for its range alone."""
    most, threads = work.costs.pass_blocks * arch.sm_count, work.costs.threads
    blocks = larger(1, smaller(most, -(-work.size // (work.width * threads))))
    return _launch(work, quantize_cpp.extremes(work), blocks, (work.size,), blocks)


def _joined(work: QuantizeSource, first: tuple[LaunchPlan, ...], outputs: tuple[Shape, ...]) -> LaunchPlan:
    """Return the plan of launches, the last of which leaves extremes, and of the one that quantizes."""
    *others, finder = first
    assert finder.extremes is not None
    begin, parts, using, costs = 0, finder.extremes, [finder], work.costs
    if parts > costs.most_parts:
        using.append(_launch(work, quantize_cpp.combine(work), costs.combined, (parts,)))
        begin, parts = parts, costs.combined
    blocks = larger(1, -(-work.size // (work.width * work.unroll * costs.threads)))
    using.append(_launch(work, quantize_cpp.quantize(work), blocks, (work.size, begin, parts)))
    scratch = (begin + parts) * EXTREMES_BYTES
    using = [replace(one, scratch_bytes=scratch, extremes=None) for one in using]
    return launch_plan.in_sequence((*others, *using), outputs)


def _launch(
    work: QuantizeSource, kernel: KernelSource, blocks: int, words: tuple[int, ...], extremes: int | None = None
) -> LaunchPlan:
    parameters = launch_plan.packed(words, work.bits)
    return LaunchPlan(kernel, (blocks, 1, 1), (work.costs.threads, 1, 1), 0, parameters, (), extremes=extremes)
