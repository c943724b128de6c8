"""Launch plans of the topk template: the first k elements of each row by their values, with pointwise work before.

In the body's program the values and indices of TopK are two more inputs: what is left is pointwise work on the rows.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.emit.source import KernelSource, constants, generated, identifier, template
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.node import BodyNode
from onnxfuse.codegen.operators.pointwise_ops import POINTWISE
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.program import BodyProgram, Input, Output, Value, broadcast
from onnxfuse.codegen.program.slices import between
from onnxfuse.cuda.isa.isa import WARP
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.pointwise import dense
from onnxfuse.cuda.templates.topk.variant import TopKVariant
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.ops.scalar import Kind
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import gcd
from onnxfuse.symbolic.element_types import DisagreeingError, UnsupportedError
from onnxfuse.symbolic.strides import Shape, StridedLayout, collapse, strides_in, vector_width

MOST = WARP
"""Maximum k: a warp holds an element per lane."""
THREADS = 256
"""Threads per block: also the most per row, and the number of a block that shares its row with others."""
WARPS = THREADS // WARP
WIDEST = 8
"""Maximum elements per vector, by which the queues in shared memory grow."""
BUSY = 32
"""Warps per multiprocessor below which more share a row."""
MOST_SPLITS = 32
"""Maximum blocks per row: so many warps merge what they find."""
PART = 4
"""Minimum vectors per thread of a block that shares its row with others."""


@dataclass(frozen=True)
class TopKBody:
    """A parsed body."""

    program: BodyProgram
    """The pointwise work: the value by which elements are chosen, then the outputs of the size of rows."""
    k: int
    axis: int
    largest: bool
    outputs: tuple[str, ...]
    """What each output of the op is: `values`, `indices`, or `b1`, `b2`, ... of the program's result."""


@dataclass(frozen=True)
class TopKProblem:
    """A body on inputs of certain shapes."""

    body: TopKBody
    full: Shape
    """The shape of the values among which it chooses, along the last axis."""
    operands: tuple[Operand, ...]
    """Inputs, and outputs of the size of rows."""
    output_shapes: tuple[Shape, ...]


def check(op: FusedOp) -> TopKBody:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _check(op.meaning)


@lru_cache(maxsize=1024)
def _check(meaning: Meaning) -> TopKBody:
    found: list[tuple[Term, int, int, bool]] = []
    values, indices = len(meaning.inputs), len(meaning.inputs) + 1

    def choose(node: BodyNode) -> tuple[Term, ...]:
        x, k = node.term(0, Kind.REAL, Kind.INTEGER), node.integers(1)
        if k is None or len(k) != 1 or not 1 <= k[0] <= MOST:
            raise node.refusal(f"of {k} elements, expected 1 to {MOST}")
        found.append((x, k[0], int(node.number("axis", -1)), bool(node.number("largest", 1))))
        return x.builder.term(Input(values, x.dtype)), x.builder.term(Input(indices, TensorProto.INT64))

    program = read.program_by(meaning, {**POINTWISE, ("", ops.TopK): choose})
    if len(found) != 1:
        raise UnsupportedError(f"{plural(found, ops.TopK)} in the body, expected one")
    ((x, k, axis, largest),) = found
    chosen: dict[Value, str] = {Input(values, x.dtype): "values", Input(indices, TensorProto.INT64): "indices"}
    outputs, whole = list[str](), [Output(x.index, x.dtype)]
    for output in program.outputs:
        name = chosen.get(program.values[output.value])
        outputs.append(name or f"b{len(whole)}")
        whole += [] if name else [output]
    if any(program.values[i] in chosen for i in program.reached(o.value for o in whole)):
        raise UnsupportedError("work on what TopK has chosen")
    return TopKBody(between(program, range(len(meaning.inputs)), whole), k, axis, largest, tuple(outputs))


def problem(op: FusedOp, input_shapes: tuple[Shape, ...]) -> TopKProblem:
    """Return `op` on inputs of these shapes."""
    body = check(op)
    if len(input_shapes) != len(op.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(op.inputs)}")
    shapes = [body.program.shapes(input_shapes)[o.value] for o in body.program.outputs]
    full = shapes[0]
    if not full or body.axis not in (-1, len(full) - 1):
        raise UnsupportedError(f"a TopK along axis {body.axis} of {len(full)}, expected the last one")
    if full[-1] < body.k:
        raise DisagreeingError(f"{body.k} elements of rows of {full[-1]}", full[-1], body.k)
    inputs = [o for o in access.operands(body.program, input_shapes) if not o.is_output]
    whole = [
        access.operand(f"out{n}", field, op.outputs[n], shapes[int(field[1:])], True)
        for n, field in enumerate(body.outputs)
        if field.startswith("b")
    ]
    other = next((o for o in (*inputs, *whole) if broadcast(o.shape, full) != full), None)
    if other is not None:
        raise UnsupportedError(f"a value of shape {list(other.shape)} in an op that chooses from {list(full)}")
    of = {o.name: o.shape for o in whole}
    outputs = tuple(of.get(f"out{n}", (*full[:-1], body.k)) for n in range(len(op.outputs)))
    return TopKProblem(body, full, (*inputs, *whole), outputs)


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    return problem(op, input_shapes).output_shapes


def general(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> LaunchPlan:
    """Return the plan for all shapes and alignments, in place of the general kernel's, which chooses nothing."""
    return plan(op, input_shapes, False, arch)


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[TopKVariant, ...]:
    """Return the variants worth measuring."""
    shared = (TopKVariant(topk_warps=n) for n in (1, 2, 4, 8))
    return (*shared, *(TopKVariant(topk_splits=n) for n in (4, 8, 16, 32)))


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: TopKVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    work = problem(op, input_shapes)
    columns, rows = work.full[-1], math.prod(work.full[:-1])
    if rows == 0:
        return launch_plan.nothing(op, work.output_shapes)
    width = _width(work, aligned)
    warps, splits = _shared_out(rows, columns, width, arch, variant or TopKVariant())
    facts = {"WIDTH": width, "ROW_THREADS": 32 * warps, "SPLITS": splits}
    select = _launch(op, work, "topk/select.cu", {**facts, "THREADS": THREADS}, -(-rows * splits * warps // WARPS))
    if splits == 1:
        return select
    merge = _launch(op, work, "topk/merge.cu", {**facts, "THREADS": 32 * splits}, rows)
    scratch = max(rows * splits * work.body.k * _candidate_bytes(work), 1)  # the kernels have its pointer
    select, merge = (replace(launch, scratch_bytes=scratch) for launch in (select, merge))
    return replace(select, then=(merge,))


def _launch(op: FusedOp, work: TopKProblem, file: str, facts: dict[str, int], blocks: int) -> LaunchPlan:
    """Return one launch with these constants."""
    count, program = math.prod(work.full), work.body.program
    bits, space, entry = launch_plan.index_bits(count), _space(work), identifier(op.name)
    placed = dense.patterns(work.operands, space, count, facts["WIDTH"])
    text = dense.index_space(bits, space, placed)
    text += constants({**facts, "K": work.body.k, "LARGEST": work.body.largest, "CLUSTER": 1})
    text += f"using Compared = {_compared(work)};\n"
    kernel = KernelSource(
        entry,
        (
            *dense.sections(entry, text + expressions.source(program), placed, cooperates=True),
            *(template(f) for f in ("topk/topk.cuh", file)),
            generated(entry, _entry(entry, op, work, facts["SPLITS"] > 1)),
        ),
    )
    parameters = dense.parameters(count, space, placed, bits)
    return LaunchPlan(kernel, (blocks, 1, 1), (facts["THREADS"], 1, 1), 0, parameters, work.output_shapes)


def _entry(entry: str, op: FusedOp, work: TopKProblem, scratch: bool) -> str:
    """Return the kernel function."""
    stored = element_types.TYPES[work.body.program.outputs[0].dtype].stored
    results = {"values": f"({stored}*)nullptr", "indices": "(long long*)nullptr"}
    results |= {
        name: f"({stored if name == 'values' else 'long long'}*)out{n}"
        for n, name in enumerate(work.body.outputs)
        if name in results
    }
    pointers = entries.typed(o.pointer for o in work.operands)
    candidates = f"(Candidate*){'scratch' if scratch else 'nullptr'}"
    call = f"topk({{{pointers}}}, {results['values']}, {results['indices']}, {candidates}, p);"
    more = "void* scratch" if scratch else ""
    return entries.kernel(entry, len(op.inputs), len(op.outputs), f"  join_stream();\n  {call}\n", more=more)


def _space(work: TopKProblem) -> StridedLayout:
    """Return the axes of the rows, merged as far as possible, and the last axis."""
    strides = tuple(strides_in(o.shape, work.full) for o in work.operands)
    outer = collapse(work.full[:-1], tuple(s[:-1] for s in strides))
    if math.prod(outer.extents) == 1:
        outer = StridedLayout((), tuple(() for _ in strides))
    extents = (*outer.extents, work.full[-1])
    return StridedLayout(extents, tuple((*o, s[-1]) for o, s in zip(outer.strides, strides, strict=True)))


def _compared(work: TopKProblem) -> str:
    """Return the C++ type in which values are compared: integers of less than 4 bytes in int."""
    dtype = work.body.program.outputs[0].dtype
    small = element_types.is_integer(dtype) and element_types.TYPES[dtype].size < 4
    return "int" if small else element_types.computed(dtype)


def _width(work: TopKProblem, aligned: bool) -> int:
    """Return the vector width: as many elements as divide the row, fewer where lanes would have none."""
    if not aligned:
        return 1
    sizes = [element_types.TYPES[work.body.program.outputs[0].dtype].size]
    sizes += [o.size for o in work.operands if o.is_output]
    widest = min(vector_width(tuple(sizes)), WIDEST)
    while widest > 1 and 32 * widest > work.full[-1]:
        widest //= 2
    return gcd(widest, work.full[-1])


def _candidate_bytes(work: TopKProblem) -> int:
    """Return the size of a Candidate of topk.cuh."""
    wide = element_types.TYPES[work.body.program.outputs[0].dtype].size == 8
    return 16 if wide or launch_plan.index_bits(math.prod(work.full)) == 64 else 8


def _shared_out(rows: int, columns: int, width: int, arch: Arch, variant: TopKVariant) -> tuple[int, int]:
    """Return how many warps of a block share a row, and how many blocks do: more if rows are few."""
    if variant.topk_splits > 1:
        return WARPS, min(variant.topk_splits, MOST_SPLITS)
    warps = splits = 1
    while warps < WARPS and rows * warps < arch.sm_count * BUSY and warps * 32 * width < columns:
        warps *= 2
    warps = min(variant.topk_warps, WARPS) or warps
    part = PART * THREADS * width
    while not variant.changed and splits < MOST_SPLITS and rows * splits < arch.sm_count and splits * part < columns:
        splits *= 2
    return warps if splits == 1 else WARPS, splits
