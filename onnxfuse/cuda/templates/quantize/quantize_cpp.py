"""Source generation of dynamic quantization: the passes over a value and over extremes, and the elements in 8 bits."""

from dataclasses import dataclass

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.access import Pointer, Store
from onnxfuse.codegen.emit.source import (
    CLUSTER,
    DEVICE,
    KernelSource,
    Section,
    constants,
    generated,
    identifier,
    template,
)
from onnxfuse.codegen.program.program import Input
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.templates.quantize.body import QuantizeBody
from onnxfuse.cuda.templates.quantize.costs import QuantizeCosts
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types


@dataclass(frozen=True)
class QuantizeSource:
    """Input of planning and source generation for all kernels."""

    op: FusedOp
    body: QuantizeBody
    count: int
    """Elements of the value."""
    aligned: bool
    costs: QuantizeCosts
    unroll: int
    """Vectors of a thread that quantizes, which are on their way while it combines the extremes."""

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return vector_width(self.aligned)

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return launch_plan.index_bits(self.count)


def vector_width(aligned: bool) -> int:
    """Return the float32 elements of a vector of 16 bytes, 1 for a value that lies anywhere."""
    return 4 if aligned else 1


def extremes(work: QuantizeSource) -> KernelSource:
    """Return the kernel that reads a value for its range alone."""
    return _pass(work, "quantize/extremes.cu", f"extremes((const float*){work.body.pointer}, (Extremes*)scratch, p)")


def combine(work: QuantizeSource) -> KernelSource:
    """Return the kernel that makes few parts of many."""
    return _pass(work, "quantize/combine.cu", "combine((Extremes*)scratch, p)")


def quantize(work: QuantizeSource) -> KernelSource:
    """Return the kernel that combines the extremes, and computes the last outputs."""
    entry, body = identifier(work.op.name), work.body
    fields = (Pointer("const float", "x", body.pointer), *_results(body), access.scratch(used=True))
    text = expressions.source(body.finish) + access.pointers(fields) + _accesses(body)
    end = entries.entry_point(entry, "quantize", work.op, fields, 0)
    sections = (*_head(work), generated(entry, text), template("quantize/quantize.cu"), generated(entry, end))
    return KernelSource(entry, sections)


def _pass(work: QuantizeSource, file: str, call: str) -> KernelSource:
    op, entry = work.op, identifier(work.op.name)
    lines = f"  join_stream();\n  {call};\n"
    end = entries.kernel(entry, len(op.inputs), len(op.outputs), lines, more="void* scratch")
    return KernelSource(entry, (*_head(work), template(file), generated(entry, end)))


def _head(work: QuantizeSource) -> tuple[Section, ...]:
    """Return the sections that all kernels begin with."""
    threads = work.costs.threads
    facts = {"WIDTH": work.width, "THREADS": threads, "WARPS": threads // 32, "UNROLL": work.unroll, "CLUSTER": 1}
    text = f"using Index = {launch_plan.index_type(work.bits)};\n" + constants(facts)
    return (
        *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh")),
        generated(identifier(work.op.name), text),
        *(template(f) for f in ("include/extremes.cuh", "quantize/block.cuh")),
    )


def _results(body: QuantizeBody) -> list[Pointer]:
    """Return the pointers of the outputs that the last launch computes."""
    return [
        Pointer(element_types.TYPES[o.dtype].stored, f"out{n}", f"out{body.first + n}")
        for n, o in enumerate(body.finish.outputs)
    ]


def _accesses(body: QuantizeBody) -> str:
    """Return how an element and the extremes reach the body, and how its results are stored: elements, and scalars."""
    program, element = body.finish, Input(0, body.finish.inputs[0])
    by_element = [element in {program.values[i] for i in program.reached([o.value])} for o in program.outputs]
    names = [("x", "of.most", "of.least")[i] for i in expressions.live_inputs(program)]

    def stores(whole: bool, width: str, offset: str) -> list[Store]:
        return [
            Store(f"value{n}", p.stored, f"b{n}", f"store_values<{width}>(to.{p.name}{offset}, value{n})")
            for n, p in enumerate(_results(body))
            if by_element[n] is whole
        ]

    arguments = "const Pointers& to, const Result (&result)"
    return (
        f"DEVICE Element element(float x, const Extremes& of) {{\n  return {{{', '.join(names)}}};\n}}\n"
        + access.store("store_elements", f"{arguments}[W], Index first", stores(True, "W", " + first"), "W")
        + access.store("store_scalars", f"{arguments}[1]", stores(False, "1", ""), "1")
    )
