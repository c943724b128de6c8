"""Launch plans of the row template: contiguous reductions with surrounding pointwise work, the row register-resident.

A row may also consist of several contiguous runs, such as a channel's planes in a batch: axes 0, 2 and 3 of NCHW.
"""

import math

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, generated, template
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.reduction.costs import row as row_costs
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.cuda.templates.reduction.row_cpp import around, constants, leaves_extremes, parameters
from onnxfuse.cuda.templates.reduction.row_operands import patterns, refined, with_lookups
from onnxfuse.cuda.templates.reduction.row_split import share_out


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
            generated(entry, facts + expressions.source(program)),
            *(template(f"include/{name}.cuh") for name in ("coordinates", "reduce", "extremes", "extremes_of_block")),
            template("reduction/row.cuh"),
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
        parameters=parameters(rows, columns, outer, inner, placed, bits),
        output_shapes=request.output_shapes,
        extremes=blocks if extremes else None,
    )
