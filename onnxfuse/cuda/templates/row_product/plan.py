"""Launch plans of products whose left factor is what a row kernel computes, such as a norm.

Of few rows one launch: each block computes them, in the order of the row kernel, while its weights are on their way. Of
more rows two launches, of the two kernels.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.read import SubOp
from onnxfuse.codegen.program.program import BodyProgram, Contraction
from onnxfuse.codegen.program.slices import between
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm.body import anatomy
from onnxfuse.cuda.templates.gemm.problem import output_shapes as product_shapes
from onnxfuse.cuda.templates.gemm.variant import GemmVariant
from onnxfuse.cuda.templates.gemm.work import LeftRows
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.cuda.templates.reduction import costs
from onnxfuse.cuda.templates.reduction import plan as reduction
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class RowProductBody:
    """A parsed body."""

    rows: SubOp
    """From the op's inputs to its first outputs: the left factor is one of them."""
    product: SubOp
    """From the op's inputs and those outputs to the others."""
    left: int
    """Index of the left factor among the outputs."""


def parse(op: FusedOp) -> RowProductBody:
    """Parse `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    first, rows, products = _split(read.program(op))

    def part(template: str, inputs: tuple[int, ...], outputs: tuple[int, ...], program: BodyProgram) -> SubOp:
        return SubOp(
            op.name, op.rule, template, inputs, outputs, op.body, open_length=op.open_length, constants=op.constants,
            tf32=op.tf32, program=program,
        )  # fmt: skip

    of_rows = part("row", op.inputs, op.outputs, rows)
    product = part("gemm", (*op.inputs, *op.outputs[:first]), op.outputs[first:], products)
    schedule.program(of_rows)
    left = anatomy(product).products[0].a - len(op.inputs)
    if not 0 <= left < first:
        raise UnsupportedError("a product whose left factor no reduction is part of")
    return RowProductBody(of_rows, product, left)


@functools.lru_cache(maxsize=1024)
def _split(program: BodyProgram) -> tuple[int, BodyProgram, BodyProgram]:
    """Return the number of outputs that read no product, the program of these, and that of the others by them."""
    contractions = {i for i in program.live() if isinstance(program.values[i], Contraction)}
    after = [not contractions.isdisjoint(program.reached([o.value])) for o in program.outputs]
    first = after.count(False)
    if any(after[:first]) or first in (0, len(after)):
        raise UnsupportedError("rows and products whose outputs are not in this order")
    inputs, made = range(len(program.inputs)), program.outputs[:first]
    rows = between(program, inputs, made)
    if not rows.reductions():
        raise UnsupportedError("no reduction before the product")
    return first, rows, between(program, (*inputs, *(o.value for o in made)), program.outputs[first:])


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output: those of the rows first."""
    body = parse(op)
    made = schedule.output_shapes(body.rows, input_shapes)
    return (*made, *product_shapes(body.product, (*input_shapes, *made)))


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is preferred on `arch`; None if the kernel is."""
    return gemm.refuses(parse(op).product, arch)


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: GemmVariant | None = None
) -> LaunchPlan:
    """Return the plan of one launch for few rows, else of two; a variant is one of the products."""
    body = parse(op)
    made = schedule.output_shapes(body.rows, input_shapes)
    outputs, shapes = output_shapes(op, input_shapes), (*input_shapes, *made)
    together = None
    if _keeps_all(body):
        with suppress(UnsupportedError):  # rows that a block cannot hold, which a kernel of their own can
            together = gemm.of_few_rows(body.product, shapes, aligned, arch, variant, _left_rows(body, shapes, arch))
    if together is not None:
        return replace(together, output_shapes=outputs)
    first = schedule.plan(body.rows, input_shapes, aligned, arch)
    second = gemm.plan(body.product, shapes, aligned, arch, variant)
    return launch_plan.in_sequence((first, second), outputs)


def _keeps_all(body: RowProductBody) -> bool:
    """Return whether a block that computes the rows has all that its products read of them: whole rows of the left
    factor. Other outputs of the rows one block alone writes, for which the others cannot wait."""
    parts, count = anatomy(body.product), len(body.rows.inputs)
    whole = all(p.terms is None for p in parts.products)
    return whole and all(i < count for epilogue in parts.epilogues for i in epilogue.operands)


def _left_rows(body: RowProductBody, shapes: tuple[Shape, ...], arch: Arch) -> Callable[[int, int], LeftRows]:
    """Return what computes the left factor in a block of so many threads, so many rows at a time."""
    op = body.rows
    count = len(op.inputs)

    def rows(threads: int, at_once: int) -> LeftRows:
        request = PlanRequest(op, schedule.program(op), shapes[:count], shapes[count:], True, arch, costs.usual(arch))
        found = reduction.of_block(request, body.left, threads, at_once)
        if bool(found.columns != shapes[count + body.left][-1]):
            raise UnsupportedError("a reduction over other elements than a row of the left factor")
        arguments = (replace(o.pointer, argument=_argument(o.name, count)) for o in found.operands)
        ahead = tuple((i, _bytes(op, shapes, i)) for i in found.vectors if i in op.constants)
        return LeftRows(found.sections, found.words, tuple(arguments), ahead)

    return rows


def _argument(name: str, inputs: int) -> str:
    """Return the product's name of a pointer: outputs of the rows are its inputs."""
    return f"in{inputs + int(name.removeprefix('out'))}" if name.startswith("out") else name


def _bytes(op: FusedOp, shapes: tuple[Shape, ...], index: int) -> int:
    return element_types.TYPES[op.inputs[index]].size * functools.reduce(lambda a, b: a * b, shapes[index], 1)


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[GemmVariant, ...]:
    """Return the variants of the products worth measuring."""
    body = parse(op)
    return gemm.candidates(body.product, (*input_shapes, *schedule.output_shapes(body.rows, input_shapes)), arch)
