"""Launch plans of the scan template: running sums along one axis, with surrounding pointwise work.

In the body's program a running sum is a reduction over no axes: of each element's own prefix.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from onnxfuse import ops
from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import KernelSource, constants, generated, identifier, template
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.node import BodyNode
from onnxfuse.codegen.operators.pointwise_ops import POINTWISE
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import BodyProgram, Reduce, broadcast
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.template import Running
from onnxfuse.cuda.templates.pointwise import dense
from onnxfuse.cuda.templates.scan.costs import costs_of
from onnxfuse.cuda.templates.scan.variant import ScanVariant
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import gcd
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape, StridedLayout, collapse, strides_in, vector_width


@dataclass(frozen=True)
class ScanBody:
    """A parsed body."""

    program: BodyProgram
    axis: int
    """Negative, counted from the end."""
    exclusive: bool
    """Whether a sum excludes the element's own value."""
    reverse: bool
    """Whether sums run from the end of the axis."""


@dataclass(frozen=True)
class ScanProblem:
    """A body on inputs of certain shapes."""

    scan: ScanBody
    full: Shape
    """The shape that the kernel iterates over."""
    axis: int
    operands: tuple[Operand, ...]


def check(op: FusedOp) -> ScanBody:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _check(op.meaning)


def running(op: FusedOp) -> tuple[BodyProgram, Running]:
    """Return the program of the body, and the axis of its running sum."""
    scan = check(op)
    return scan.program, Running(scan.axis, scan.exclusive, scan.reverse)


@lru_cache(maxsize=1024)
def _check(meaning: Meaning) -> ScanBody:
    scans: dict[tuple[int, bool, bool], None] = {}

    def running_sum(node: BodyNode) -> tuple[Term, ...]:
        x, axes = node.term(0), node.integers(1)
        if element_types.computed(x.dtype) == "bool" or axes is None or len(axes) != 1:
            raise UnsupportedError(
                f"CumSum of {element_types.name(x.dtype)} over {axes}, expected numbers and one axis"
            )
        scans[axes[0], bool(node.number("exclusive", 0)), bool(node.number("reverse", 0))] = None
        return (x.builder.term(Reduce("sum", x.index, (), False, x.dtype)),)

    program = read.program_by(meaning, {**POINTWISE, ("", ops.CumSum): running_sum})
    if len(expressions.phases(program)) != 1 or len(scans) != 1:
        raise UnsupportedError(f"{plural(scans, 'kind')} of CumSum, one after the other or not, expected one")
    ((axis, exclusive, reverse),) = scans
    return ScanBody(program, axis, exclusive, reverse)


def problem(op: FusedOp, input_shapes: tuple[Shape, ...]) -> ScanProblem:
    """Return `op` on inputs of these shapes."""
    scan = check(op)
    if len(input_shapes) != len(op.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(op.inputs)}")
    shapes = scan.program.shapes(input_shapes)
    operands = access.operands(scan.program, input_shapes)
    full = broadcast(*(o.shape for o in operands))
    summed = [shapes[i] for i in scan.program.reductions()]
    other = next((s for s in (*summed, *(shapes[o.value] for o in scan.program.outputs)) if s != full), None)
    if other is not None:
        raise UnsupportedError(f"a value of shape {list(other)} in an op that scans {list(full)}")
    axis = scan.axis + len(full) if scan.axis < 0 else scan.axis
    if not 0 <= axis < len(full):
        raise UnsupportedError(f"a CumSum over axis {scan.axis} of a value of rank {len(full)}")
    return ScanProblem(scan, full, axis, operands)


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    return (problem(op, input_shapes).full,) * len(op.outputs)


def inplace(op: FusedOp) -> tuple[tuple[int, int], ...]:
    """Return the (input, output) pairs that may alias: a thread reads an element before it writes it."""
    program = check(op).program
    inputs = expressions.live_inputs(program)
    return tuple((i, n) for n, o in enumerate(program.outputs) for i in inputs if program.inputs[i] == o.dtype)


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: ScanVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    tuning = variant or ScanVariant()
    work = problem(op, input_shapes)
    count, length, cost = math.prod(work.full), work.full[work.axis], costs_of(arch)
    outputs = (work.full,) * len(op.outputs)
    if count == 0:
        return launch_plan.nothing(op, outputs)
    inner = math.prod(work.full[work.axis + 1 :])
    bits = launch_plan.index_bits(count)
    space, axis = _space(work)
    # A vector is a part of the row, or adjacent elements of a strided axis.
    width = _width(work, length if inner == 1 else inner, aligned, tuning)
    placed = dense.patterns(work.operands, space, count, width)
    text = dense.index_space(bits, space, placed)
    facts = {
        "AXIS": axis, "WIDTH": width, "THREADS": cost.threads, "CLUSTER": 1,
        "EXCLUSIVE": work.scan.exclusive, "REVERSE": work.scan.reverse,
    }  # fmt: skip
    if inner == 1:
        threads = _row_threads(length // width, cost.threads)
        facts |= {"ROW_THREADS": threads}
        blocks, file = -(-(count // length) // (cost.threads // threads)), "scan/row.cu"
    else:
        columns = count // length // width
        segments = _segments(columns, length, arch)
        facts |= {"SEGMENTS": segments, "STEPS": cost.steps}
        blocks, file = -(-columns // (cost.threads // segments)), "scan/column.cu"
    entry = identifier(op.name)
    kernel = KernelSource(
        entry,
        (
            *dense.sections(
                entry, text + constants(facts) + expressions.source(work.scan.program), placed, cooperates=True
            ),
            *(template(f) for f in ("scan/scan.cuh", file)),
            generated(
                entry,
                entry_point(entry, "scan", work.scan.program, work.operands, tuning.min_blocks),
            ),
        ),
    )
    parameters = dense.parameters(count, space, placed, bits)
    return LaunchPlan(kernel, (blocks, 1, 1), (cost.threads, 1, 1), 0, parameters, outputs)


def _space(work: ScanProblem) -> tuple[StridedLayout, int]:
    """Return the axes before, the axis and those after it, merged as far as possible; and the index of the axis."""
    strides = tuple(strides_in(o.shape, work.full) for o in work.operands)

    def part(begin: int, end: int) -> StridedLayout:
        return collapse(work.full[begin:end], tuple(s[begin:end] for s in strides))

    before, after = part(0, work.axis), part(work.axis + 1, len(work.full))
    parts = [
        *([before] if math.prod(before.extents) > 1 else []),
        StridedLayout((work.full[work.axis],), tuple((s[work.axis],) for s in strides)),
        *([after] if math.prod(after.extents) > 1 else []),
    ]
    extents = tuple(n for p in parts for n in p.extents)
    steps = tuple(tuple(n for p in parts for n in p.strides[i]) for i in range(len(strides)))
    return StridedLayout(extents, steps), len(before.extents) if parts[0] is before else 0


def _width(work: ScanProblem, neighbours: int, aligned: bool, tuning: ScanVariant) -> int:
    """Return the vector width: as many elements as divide the contiguous extent."""
    program = work.scan.program
    sizes = [o.size for o in work.operands if o.is_output]
    sizes += [element_types.TYPES[program.values[i].dtype].size for i in program.reductions()]
    widest = vector_width(tuple(sizes)) if aligned else 1
    return gcd(tuning.width or widest, neighbours)


def _row_threads(vectors: int, most: int) -> int:
    """Return how many threads share a row, a power of 2: a whole block iterates over a long one."""
    return min(most, 1 << max(0, vectors - 1).bit_length())


def _segments(columns: int, length: int, arch: Arch) -> int:
    """Return how many threads share a column, a power of 2: more if columns are few."""
    cost, segments = costs_of(arch), 1
    most = cost.threads // cost.fewest_across
    while columns * segments < arch.sm_count * cost.busy and segments * cost.steps < length and segments < most:
        segments *= 2
    return segments
