"""Launch plans of bodies with data movement over a shape each, such as RoPE of queries and of fewer keys.

Small ones take one launch: its blocks take turns between them, and those behind the end of a smaller one have nothing
to do. Larger ones take a launch each, the kernels that they have by themselves.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.codegen.emit.entry import kernel, typed
from onnxfuse.codegen.emit.lower_movement import lower
from onnxfuse.codegen.emit.source import KernelSource, generated, identifier
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.read import SubOp
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.codegen.program.slices import between
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.cuda.templates.pointwise import costs, mapped
from onnxfuse.cuda.templates.pointwise.mapped import MappedWork
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

_NAMESPACE = """namespace part{number} {{
// One block of {count} is this body's.
DEVICE unsigned block_index() {{ return ::block_index() / {count}; }}
DEVICE unsigned last_block() {{ return ::last_block() / {count}; }}
DEVICE unsigned block_from_end() {{ return last_block() - block_index(); }}
"""


def parse(op: FusedOp) -> tuple[SubOp, ...]:
    """Return an op for each output, on the inputs of `op` and the outputs before it; raises `UnsupportedError` with the
    reason if no kernel supports them."""
    parts = []
    for number, program in enumerate(_split(read.program(op))):
        part = SubOp(
            op.name, op.rule, "pointwise", (*op.inputs, *op.outputs[:number]), op.outputs[number:], op.body,
            open_length=op.open_length, constants=op.constants, tf32=op.tf32, program=program,
        )  # fmt: skip
        if not schedule.program(part).moves():
            raise UnsupportedError("a body without data movement")
        parts.append(part)
    return tuple(parts)


@functools.lru_cache(maxsize=256)
def _split(program: BodyProgram) -> tuple[BodyProgram, ...]:
    """Return the program of each output; what several read is computed for each."""
    if len(program.outputs) == 1:
        raise UnsupportedError("one output, expected several")
    inputs, values = range(len(program.inputs)), [o.value for o in program.outputs]
    return tuple(between(program, (*inputs, *values[:n]), (o,)) for n, o in enumerate(program.outputs))


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    made: tuple[Shape, ...] = ()
    for part in parse(op):
        made += schedule.output_shapes(part, (*input_shapes, *made))
    return made


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the plan of one launch for small bodies, else of one for each."""
    if variant is not None:
        raise UnsupportedError(f"{variant}, expected none: the bodies' own plans choose")
    made = output_shapes(op, input_shapes)
    usual = costs.usual(arch)
    requests = [
        PlanRequest(part, schedule.program(part), (*input_shapes, *made[:n]), (made[n],), aligned, arch, usual)
        for n, part in enumerate(parse(op))
    ]
    if all(_is_small(shape, arch) for shape in made):
        works = [mapped.work(r, lower(r.program, r.input_shapes)) for r in requests]
        if all(work.bits == 32 for work in works):
            return _together(op, works, made, usual.mapped_threads)
    plans = [schedule.plan(r.op, r.input_shapes, aligned, arch) for r in requests]
    return launch_plan.in_sequence([p for p in plans if p.grid[0]] or plans, made)


def _is_small(shape: Shape, arch: Arch) -> bool:
    count = math.prod(shape)
    return bool(count > 0) and launch_plan.is_small(count, arch)


def _together(op: FusedOp, works: Sequence[MappedWork], outputs: tuple[Shape, ...], threads: int) -> LaunchPlan:
    """Return the plan of the launch whose blocks take turns between the works, each in a namespace of its own."""
    entry, first, count = identifier(op.name), len(op.inputs), len(works)
    sections, calls = [*mapped.SHARED], ""
    for n, work in enumerate(works):
        sections += [
            generated(entry, _NAMESPACE.format(number=n, count=count)),
            *work.sections,
            generated(entry, "}\n"),
        ]
        pointers = typed(replace(o.pointer, argument=_argument(o.name, first, n)) for o in work.tensors)
        calls += f"  if (block_index() % {count} == {n}) part{n}::{work.function}({{{pointers}}}, p.part{n});\n"
    fields = " ".join(f"part{n}::Parameters part{n};" for n in range(count))
    text = f"struct Parameters {{ {fields} }};\n"
    text += kernel(entry, first, len(op.outputs), f"  join_stream();\n{calls}", bounds=f"KERNEL({threads})")
    return LaunchPlan(
        kernel=KernelSource(entry, (*sections, generated(entry, text))),
        grid=(count * functools.reduce(larger, (work.blocks for work in works)), 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed((word for work in works for word in work.words), 32),
        output_shapes=outputs,
    )


def _argument(name: str, inputs: int, before: int) -> str:
    """Return the op's name of a body's pointer: outputs of bodies before it are inputs of its own."""
    if name.startswith("out"):
        return f"out{before + int(name.removeprefix('out'))}"
    assert int(name.removeprefix("in")) < inputs, f"{name}: no body reads another one's output"
    return name
