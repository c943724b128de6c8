"""Products of many rows by weights in few bits, in two launches: the elements of the weights, then the products."""

from dataclasses import replace

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.source import AMPERE, DEVICE, KernelSource, constants, generated, template
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import cpp, sm90
from onnxfuse.cuda.templates.gemm.costs import wgmma
from onnxfuse.cuda.templates.gemm.epilogue_cpp import operand_struct
from onnxfuse.cuda.templates.gemm.work import GemmSource
from onnxfuse.symbolic.branching import settled, smaller

ROWS = 128
"""Rows for which products by weights in few bits make the elements of these once."""


def plan(work: GemmSource, arch: Arch) -> LaunchPlan | None:
    """Return the plan of two launches; None where products that make the elements themselves take less time, or where
    the elements would take too much scratch memory."""
    if work.parts.packed is None or bool(_bytes(work) > wgmma().unpacked_bytes):
        return None
    apart, cost = _by_elements(work), wgmma()
    if not sm90.takes(apart, arch):
        return None
    best, products = sm90.choose(apart, arch)
    _, together = sm90.choose(work, arch)
    share = smaller(cost.packed, cost.packed_of_rows * -(-work.size.m // ROWS))
    if bool(cost.unpack.microseconds(_moved(work)) + products >= together + share * (together - cost.launch)):
        return None
    second = sm90.plan(apart, best, arch)
    offset, scratch, maps = 0, _pointer(work), list(second.tensor_maps)
    for number, at in enumerate(i for i, m in enumerate(maps) if m.pointer == scratch):
        maps[at] = replace(maps[at], offset=offset)
        offset += work.size.columns(number) * work.size.k * work.parts.factors.bytes
    launches = (_elements(work), replace(second, tensor_maps=tuple(maps)))
    in_scratch = (replace(launch, scratch_bytes=_bytes(work)) for launch in launches)
    return launch_plan.in_sequence(in_scratch, work.output_shapes)


def _pointer(work: GemmSource) -> int:
    """Return the index of the scratch memory among the kernels' pointers: it is one more output."""
    return len(work.op.inputs) + len(work.op.outputs)


def _bytes(work: GemmSource) -> int:
    """Return the bytes of the elements of all weights."""
    return sum(work.size.columns(i) for i in range(len(work.parts.products))) * work.size.k * work.parts.factors.bytes


def _moved(work: GemmSource) -> int:
    """Return the bytes that are read and written to have them, but for the scales."""
    packed = work.parts.packed
    assert packed is not None
    return _bytes(work) + _bytes(work) * packed.packing.bits // (8 * work.parts.factors.bytes)


def _by_elements(work: GemmSource) -> GemmSource:
    """Return the same products by weights that lie in the scratch memory, where they leave no extremes."""
    products = tuple(replace(p, b=_pointer(work), transposed=True, packed=None) for p in work.parts.products)
    whole = replace(work.op, outputs=(*work.op.outputs, work.parts.factors.right), extremes_of=None)
    return replace(work, op=whole, parts=replace(work.parts, products=products))


def _elements(work: GemmSource) -> LaunchPlan:
    """Return the launch that makes the elements."""
    op, products = work.op, len(work.parts.products)
    columns = [work.size.columns(i) for i in range(products)]
    cost = wgmma()
    facts = {
        "THREADS": cost.unpack_threads, "EACH": cost.unpack_loads, "PRODUCTS": products, "TERMS": settled(work.size.k),
    }  # fmt: skip
    entry, outputs = f"{work.entry}_elements", len(op.outputs)
    inputs = ", ".join(f"in{i}" for i in range(len(op.inputs)))
    end = entries.kernel(
        entry, len(op.inputs), outputs + 1,
        f"  join_stream();\n  unpack({{{inputs}}}, (Chunk<16>*)out{outputs}, p);\n",
    )  # fmt: skip
    header = () if work.parts.factors.header is None else (work.parts.factors.header,)
    before = ("include/math.cuh", "include/memory.cuh", "include/extremes.cuh", *header, AMPERE, "gemm/gemm.cuh")
    kernel = KernelSource(
        entry,
        (
            template(DEVICE),
            generated(entry, "using Index = unsigned;\n"),
            *(template(f) for f in (*before, "gemm/packed.cuh")),
            generated(entry, constants(facts) + operand_struct(work) + cpp.right_factors(work)),
            template("gemm/packed_pairs.cuh"),
            template("gemm/unpack.cu"),
            generated(entry, end),
        ),
    )
    units = sum(columns) * (work.size.k // 8)
    blocks = -(-units // (cost.unpack_threads * cost.unpack_loads))
    return LaunchPlan(
        kernel, (blocks, 1, 1), (cost.unpack_threads, 1, 1), 0, launch_plan.packed(columns, 32), work.output_shapes
    )
