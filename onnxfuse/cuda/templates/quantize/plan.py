"""Launch plans of dynamic quantization: a value's range, found by the kernel that makes the value, then its elements.

Every launch but the last leaves extremes of what it has seen in scratch memory, in as many parts as threads that do not
wait for each other. The last one combines them in each of its blocks: nothing is counted, and nothing has to be zero
before.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.access import Pointer
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, constants, generated, identifier, template
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.read import SubOp
from onnxfuse.codegen.program.program import Input
from onnxfuse.cuda import templates
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import EXTREMES_BYTES, LaunchPlan
from onnxfuse.cuda.planning.template import Extents, Planner, Template
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.quantize.body import QuantizeBody, parse
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import larger, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

THREADS = 256
WIDTH = 4
"""Elements of a vector of 16 bytes."""
UNROLL = 4
"""Vectors of a thread, which are on their way while it combines the extremes."""
PASS_BLOCKS = 2
"""Blocks per multiprocessor of the pass that reads a value for its range alone."""


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
    body, outputs = check(op), output_shapes(op, input_shapes)
    count = math.prod(input_shapes[body.source])
    return _joined((_extremes(op, body, count, aligned, arch),), op, body, count, aligned, outputs)


def produced_plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the plan of the producer, whose kernel leaves the extremes if it can, and of what reads them."""
    body, part = check_produced(op)
    outputs = produced_shapes(op, input_shapes)
    count, planner = math.prod(outputs[body.source]), _planner(part)
    if count == 0:
        return _joined((_extremes(op, body, count, aligned, arch),), op, body, count, aligned, outputs)
    made = planner.plan(replace(part, extremes_of=body.source), input_shapes, aligned, arch, None)
    after = () if made.extremes is not None else (_extremes(op, body, count, aligned, arch),)
    return _joined((made, *after), op, body, count, aligned, outputs)


def _joined(
    first: tuple[LaunchPlan, ...], op: FusedOp, body: QuantizeBody, count: int, aligned: bool, outputs: tuple[Shape, ...]
) -> LaunchPlan:
    """Return the plan of launches, the last of which leaves extremes, and of the one that quantizes."""
    *others, finder = first
    assert finder.extremes is not None
    last = _quantize(op, body, count, finder.extremes, aligned)
    # Rounded to powers of two, so that few scratch allocations serve many shapes.
    scratch = 1 << (finder.extremes * EXTREMES_BYTES - 1).bit_length()
    around = [replace(one, scratch_bytes=scratch, passing=True, extremes=None) for one in (finder, last)]
    launches = [replace(one, output_shapes=outputs) for one in (*others, *around)]
    return replace(launches[0], then=tuple(launches[1:]))


def _width(aligned: bool) -> int:
    return WIDTH if aligned else 1


def _extremes(op: FusedOp, body: QuantizeBody, count: int, aligned: bool, arch: Arch) -> LaunchPlan:
    """Return the launch that reads a value for its range alone."""
    entry, width, bits = identifier(op.name), _width(aligned), launch_plan.index_bits(count)
    blocks = larger(1, smaller(PASS_BLOCKS * arch.sm_count, -(-count // (width * THREADS))))
    facts = {"WIDTH": width, "THREADS": THREADS, "WARPS": THREADS // 32, "CLUSTER": 1}
    call = f"  join_stream();\n  extremes((const float*){body.pointer}, (Extremes*)scratch, p);\n"
    kernel = KernelSource(
        entry,
        (
            *_head(entry, facts, bits),
            template("quantize/extremes.cu"),
            generated(entry, entries.kernel(entry, len(op.inputs), len(op.outputs), call, more="void* scratch")),
        ),
    )
    return LaunchPlan(
        kernel, (blocks, 1, 1), (THREADS, 1, 1), 0, launch_plan.packed((count,), bits), (),
        extremes=blocks,
    )  # fmt: skip


def _quantize(op: FusedOp, body: QuantizeBody, count: int, parts: int, aligned: bool) -> LaunchPlan:
    """Return the launch that combines the extremes, and computes the last outputs."""
    entry, width, bits = identifier(op.name), _width(aligned), launch_plan.index_bits(count)
    facts = {"WIDTH": width, "THREADS": THREADS, "WARPS": THREADS // 32, "UNROLL": UNROLL, "CLUSTER": 1}
    fields = [
        Pointer("const float", "x", body.pointer), *_results(body), access.scratch(used=True),
    ]  # fmt: skip
    kernel = KernelSource(
        entry,
        (
            *_head(entry, facts, bits),
            generated(entry, expressions.source(body.finish) + access.pointers(fields) + _accesses(body)),
            template("quantize/quantize.cu"),
            generated(entry, entries.entry_point(entry, "quantize", op, fields, 0)),
        ),
    )
    blocks = larger(1, -(-count // (width * UNROLL * THREADS)))
    return LaunchPlan(
        kernel, (blocks, 1, 1), (THREADS, 1, 1), 0, launch_plan.packed((count, parts), bits), (),
    )  # fmt: skip


def _head(entry: str, facts: dict[str, int], bits: int) -> tuple[Any, ...]:
    """Return the sections that both kernels begin with."""
    text = f"using Index = {launch_plan.index_type(bits)};\n" + constants(facts)
    return (
        *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh")),
        generated(entry, text),
        *(template(f) for f in ("include/extremes.cuh", "quantize/block.cuh")),
    )


def _results(body: QuantizeBody) -> list[Pointer]:
    """Return the pointers of the outputs that the last launch computes."""
    return [
        Pointer(element_types.TYPES[o.dtype].stored, f"out{n}", f"out{body.first + n}")
        for n, o in enumerate(body.finish.outputs)
    ]


def _accesses(body: QuantizeBody) -> str:
    """Return how an element and the extremes reach the body, and how its results are stored."""
    program = body.finish
    whole = [Input(0, program.inputs[0]) in [program.values[i] for i in program.reached([o.value])] for o in program.outputs]
    names = ("x", "of.most", "of.least")
    values = ", ".join(names[i] for i in expressions.live_inputs(program))
    elements = [
        access.Store(f"value{n}", p.stored, f"b{n}", f"store_values<W>(to.{p.name} + first, value{n})")
        for n, p in enumerate(_results(body)) if whole[n]
    ]  # fmt: skip
    scalars = "".join(
        f"  {{\n    const Stored<{p.stored}>::Value value[1] = {{result.b{n}}};\n"
        f"    store_values<1>(to.{p.name}, value);\n  }}\n"
        for n, p in enumerate(_results(body)) if not whole[n]
    )  # fmt: skip
    return (
        f"DEVICE Element element(float x, const Extremes& of) {{\n  return {{{values}}};\n}}\n"
        + access.store(
            "store_elements", "const Pointers& to, const Result (&result)[W], Index first", elements, "W"
        )
        + f"DEVICE void store_scalars(const Pointers& to, const Result& result) {{\n{scalars}}}\n"
    )
