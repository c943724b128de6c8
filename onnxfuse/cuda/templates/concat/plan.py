"""Launch plans of the concat template: convolutions, products and poolings that write slices of one output.

Each part is a kernel of its own template that writes its channel slice of the output, without a separate Concat pass.
Inputs that other nodes also read are copied.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.read import SubOp
from onnxfuse.codegen.operators.window_ops import pooled
from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.movement import Concatenated, Transposed
from onnxfuse.codegen.program.program import BodyProgram, Input, Move, Output
from onnxfuse.codegen.program.slices import between
from onnxfuse.codegen.program.window import Counted, Sliding
from onnxfuse.cuda import templates
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Planner
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm.body import anatomy
from onnxfuse.graph.channels import FIRST, LAST
from onnxfuse.model.fused import FusedOp, Slot
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

MULTIPLE = 8
"""Required multiple of each part's channels, so that vectors are aligned."""


def parts(op: FusedOp) -> tuple[SubOp, ...]:
    """Return an op for each part, on all inputs of `op`; raises `UnsupportedError` for an unsupported body."""
    return tuple(_offered(op, part) for part in _split(read.program(op)))


@lru_cache(maxsize=256)
def _split(program: BodyProgram) -> tuple[BodyProgram, ...]:
    """Split the body into the programs of the parts."""
    last = program.values[program.outputs[0].value]
    joined = isinstance(last, Move) and last.how in (Concatenated(-1), Concatenated(3))
    if len(program.outputs) != 1 or not isinstance(last, Move) or not joined:
        raise UnsupportedError("a body that does not end in a Concat of channels")
    inputs = range(len(program.inputs))
    values = ((i, program.values[i]) for i in last.args)
    return tuple(
        _copy(program, v) if isinstance(v, Input) else between(program, inputs, (Output(i, v.dtype),))
        for i, v in values
    )


def _copy(program: BodyProgram, copied: Input) -> BodyProgram:
    """Return a copy operation, expressed as the maximum over a window of one element."""
    builder = Builder()
    terms = [builder.term(Input(i, dtype)) for i, dtype in enumerate(program.inputs)]
    first = builder.move(Transposed(FIRST), terms[copied.index])
    same = pooled(first, (1, 1), Sliding((1, 1), (1, 1), (0, 0, 0, 0), "NOTSET"), 2, "max", Counted.IMAGE)
    output = Output(builder.move(Transposed(LAST), same).index, copied.dtype)
    return BodyProgram(tuple(builder.values), (output,), program.inputs)


def _writers() -> dict[str, Planner[Any]]:
    """Return the templates that can write a channel slice, in the order in which they are tried for a part."""
    return {t.name: t.planner for t in templates.every().values() if t.writes_slots and t.planner is not None}


def _offered(op: FusedOp, program: BodyProgram) -> SubOp:
    """Return the part with the first template that supports it."""
    reasons = []
    for name, planner in _writers().items():
        part = SubOp(
            op.name, op.rule, name, op.inputs, op.outputs, op.body, None, op.slot, tf32=op.tf32, program=program
        )
        try:
            planner.check(part)
        except UnsupportedError as reason:
            reasons.append(f"{name}: {reason}")
        else:
            return part
    raise UnsupportedError("; ".join(reasons))


FEW = 32
"""Maximum channels per group of a convolution of few channels."""


def _suited(part: SubOp, input_shapes: tuple[Shape, ...]) -> SubOp:
    """Return the part with the template for few channels if it is a convolution of few, as in the rules."""
    if part.template != "gemm" or (anatomy(part).to_tf32 and not part.tf32):  # that template rounds float32
        return part
    product = anatomy(part).products[0]
    filters, *_, channels = input_shapes[product.b]
    odd = filters % (8 * product.groups) or channels % 8 or (product.groups > 1 and channels < FEW)
    return replace(part, template="direct") if product.sliding is not None and odd else part


def check(op: FusedOp) -> None:
    """Raise `UnsupportedError` with the reason if some part has no kernel."""
    if any(epilogue.moves for p in parts(op) if p.template == "gemm" for epilogue in anatomy(p).epilogues):
        raise UnsupportedError("a part that is stored in another order")


def _shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each part."""
    shapes = tuple(_writers()[p.template].output_shapes(p, input_shapes)[0] for p in parts(op))
    if any(s[:-1] != shapes[0][:-1] for s in shapes) or any(len(s) != 4 or s[-1] % MULTIPLE for s in shapes):
        raise UnsupportedError(f"parts of shapes {', '.join(str(list(s)) for s in shapes)}")
    return shapes


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of the output of `op` for these shapes of its inputs."""
    shapes = _shapes(op, input_shapes)
    return ((*shapes[0][:-1], sum(s[-1] for s in shapes)),)


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the plan that runs the parts one after the other; each selects its own variant."""
    shapes, (whole,) = _shapes(op, input_shapes), output_shapes(op, input_shapes)
    first, launches = 0, []
    for part, shape in zip(parts(op), shapes, strict=True):
        fitted = replace(_suited(part, input_shapes), slot=Slot(first, whole[-1]))
        launches.append(_writers()[fitted.template].plan(fitted, input_shapes, aligned, arch, None))
        first += shape[-1]
    return launch_plan.in_sequence(launches, (whole,))


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is preferred on `arch`, according to one of the parts."""
    refusals = ((_writers()[p.template].refuses, p) for p in parts(op))
    return next((r for refuse, p in refusals if refuse is not None and (r := refuse(p, arch)) is not None), None)
