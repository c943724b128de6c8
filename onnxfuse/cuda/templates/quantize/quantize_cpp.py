"""Source generation of dynamic quantization: the passes over a value and over extremes, and the elements in 8 bits."""

from dataclasses import dataclass
from itertools import count

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
    size: int
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
        return launch_plan.index_bits(self.size)


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
    text = expressions.source(body.elements) + _scalars(body) + access.pointers(fields) + _accesses(body)
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
        *(template(f"include/{name}.cuh") for name in ("extremes", "extremes_of_block")),
    )


def _results(body: QuantizeBody) -> list[Pointer]:
    """Return the pointers of the last outputs: `e0` and so on of what has elements, `s0` and so on of the scalars."""
    types = {True: iter(body.elements.outputs), False: iter(body.scalars.outputs)}
    counts = {True: count(), False: count()}
    return [
        Pointer(
            element_types.TYPES[next(types[element]).dtype].stored,
            f"{'e' if element else 's'}{next(counts[element])}",
            f"out{n}",
        )
        for n, element in enumerate(body.of_element, body.first)
    ]


def _scalars(body: QuantizeBody) -> str:
    """Return the struct of the scalars, and the function that computes them."""
    program = body.scalars
    fields = "".join(f"  {element_types.computed(o.dtype)} s{n};\n" for n, o in enumerate(program.outputs))
    targets = [o.value for o in program.outputs]
    lines = "".join(f"  {line}\n" for line in expressions.statements(program, targets))
    results = ", ".join(expressions.name(program, target) for target in targets)
    return (
        f"struct Scalars {{\n{fields}}};\nstruct Range {{ float a0, a1; }};\n"
        f"DEVICE Scalars scalars_of(float largest, float smallest) {{\n  const Range x = {{largest, smallest}};\n"
        f"{lines}  return {{{results}}};\n}}\n"
    )


def _accesses(body: QuantizeBody) -> str:
    """Return how an element, the extremes and the scalars reach the body, and how results are stored."""
    names = ["x", "of.most", "of.least", *(f"by.s{n}" for n in range(len(body.scalars.outputs)))]
    values = ", ".join(names[i] for i in expressions.live_inputs(body.elements))
    results = _results(body)
    elements = [
        Store(f"value{p.name}", p.stored, f"b{p.name[1:]}", f"store_values<W>(to.{p.name} + first, value{p.name})")
        for p in results
        if p.name.startswith("e")
    ]
    scalars = [
        Store(f"value{p.name}", p.stored, p.name, f"store_values<1>(to.{p.name}, value{p.name})")
        for p in results
        if p.name.startswith("s")
    ]
    return (
        "DEVICE Element element(float x, const Extremes& of, const Scalars& by) {\n"
        f"  return {{{values}}};\n}}\n"
        + access.store("store_elements", "const Pointers& to, const Result (&result)[W], Index first", elements, "W")
        + access.store("store_scalars", "const Pointers& to, const Scalars (&result)[1]", scalars, "1")
    )
