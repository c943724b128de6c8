"""Launch plans of the row template: contiguous reductions with surrounding pointwise work, the row register-resident.

A row may also consist of several contiguous runs, such as a channel's planes in a batch: axes 0, 2 and 3 of NCHW.
"""

import math
from dataclasses import dataclass

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, Section, generated, template
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.reduction.costs import row as row_costs
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.cuda.templates.reduction.row_cpp import around, constants, leaves_extremes, parameters
from onnxfuse.cuda.templates.reduction.row_operands import patterns, refined, with_lookups
from onnxfuse.cuda.templates.reduction.row_split import share_out, within_block
from onnxfuse.symbolic.element_types import UnsupportedError


def plan(work: Reduced) -> LaunchPlan:
    """Return the launch plan of a program that reduces the innermost axis, and possibly others."""
    request, program, operands = work.request, work.program, work.operands
    rows, columns = math.prod(work.extents(work.free)), math.prod(work.extents(work.axes))
    bits = launch_plan.index_bits(max(rows * columns, rows, columns, *(t.rows for t in work.lookups.values())))
    outer, inner = work.layout(work.free), work.layout(work.axes)
    placed, width = patterns(work, outer, inner)
    split = share_out(placed, rows, columns, width, request)
    placed = with_lookups(placed if split.shifted else refined(placed, inner, split.width), work.lookups)
    row_threads = split.threads // split.cluster
    tuning = request.tuning
    threads = max(row_threads, tuning.row_threads if split.threads <= 32 else 0)
    blocks = -(-rows // (threads // row_threads)) * split.cluster

    entry = request.entry
    wanted = request.op.extremes_of
    extremes = leaves_extremes(placed, split, wanted)
    facts = constants(
        bits, outer, inner, placed, split, threads, row_costs(request.arch).loop_bytes_in_flight, extremes
    )
    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh")),
            *_sections(entry, facts, program),
            generated(entry, around(placed, split, wanted if extremes else None)),
            template("reduction/row.cu" if split.items else "reduction/row_loop.cu"),
            generated(
                entry,
                entry_point(
                    entry,
                    "row",
                    request.op,
                    (*operands, access.scratch(used=extremes)),
                    tuning.min_blocks or split.min_blocks,
                    split.cluster,
                ),
            ),
        ),
    )
    return LaunchPlan(
        kernel=kernel,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed(parameters(rows, columns, outer, inner, placed, bits), bits),
        output_shapes=request.output_shapes,
        extremes=blocks if extremes else None,
    )


def _sections(entry: str, facts: str, program: BodyProgram) -> tuple[Section, ...]:
    """Return what computes a row, wherever the text stands: the constants, and the headers that read them."""
    included = (
        "include/coordinates",
        "include/reduce",
        "include/extremes",
        "include/extremes_of_block",
        "reduction/row",
    )
    text = generated(entry, facts + expressions.source(program))
    return (text, *(template(f"{name}.cuh") for name in included))


@dataclass(frozen=True)
class RowsOfBlock:
    """A few rows that every block of another kernel computes for itself, and keeps in its shared memory."""

    sections: tuple[Section, ...]
    """After include/cluster.cuh and math.cuh, in a namespace of its own: `rows_of_block`, which waits for the block."""
    words: tuple[int, ...]
    """The fields of its `Parameters`, of 32 bits."""
    operands: tuple[Operand, ...]
    """The first fields of its `Pointers`: inputs and outputs, behind which are what is kept, and null."""
    columns: int
    """Elements of a row."""
    vectors: tuple[int, ...]
    """Indices of the inputs that are the same for all rows, which can be brought near before."""


def of_block(work: Reduced, kept: int, threads: int, at_once: int) -> RowsOfBlock:
    """Return the rows of a program, computed by a block of so many threads, `at_once` rows at a time.

    `kept`: the output that the block keeps, row after row.
    """
    request = work.request
    rows, columns = math.prod(work.extents(work.free)), math.prod(work.extents(work.axes))
    bits = launch_plan.index_bits(rows * columns)
    outer, inner = work.layout(work.free), work.layout(work.axes)
    placed, width = patterns(work, outer, inner)
    split = within_block(placed, columns, width, request, max(threads // at_once, 32))
    placed = with_lookups(refined(placed, inner, split.width), work.lookups)
    output = next(p for p in placed if p.operand.name == f"out{kept}")
    if not output.dense or bits > 32 or any(t.rows >= 2**31 for t in work.lookups.values()):
        raise UnsupportedError("rows that do not lie one after the other")
    flight = row_costs(request.arch).loop_bytes_in_flight
    facts = constants(bits, outer, inner, placed, split, threads, flight, extremes=False)
    entry = request.entry
    sections = (
        *_sections(entry, facts, work.program),
        template("reduction/row_kept.cuh"),
        generated(entry, around(placed, split, None, output)),
        template("reduction/row.cu"),
        template("reduction/row_block.cuh"),
    )
    vectors = (p for p in placed if p.along == "columns" and p.outer == "none" and not p.operand.is_output)
    return RowsOfBlock(
        sections,
        parameters(rows, columns, outer, inner, placed, bits),
        tuple(p.operand for p in placed),
        columns,
        tuple(int(p.operand.name.removeprefix("in")) for p in vectors if p.lookup is None),
    )
