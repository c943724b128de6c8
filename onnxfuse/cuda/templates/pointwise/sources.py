"""Components of a data-movement kernel: operands, sources and their loads, constants and parameters."""

import math
from dataclasses import dataclass, replace

from onnxfuse.codegen.emit import access, concat_table, index_maps
from onnxfuse.codegen.emit.access import Load, Operand, Store
from onnxfuse.codegen.emit.concat_table import Starts
from onnxfuse.codegen.emit.lower_movement import Guard, LoweredProgram, Read, Source
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.strides import Shape, divisors


@dataclass(frozen=True)
class Fetch:
    """A source of the plain program, and how the kernel loads it."""

    number: int
    """Index of its input in the plain program."""
    source: Source
    call: str
    """The load expression, without its operands."""
    holder: str
    """C++ type that a thread holds."""
    starts: Starts | None = None
    """Lookup table that locates it."""

    @property
    def struct(self) -> str:
        """Return the generated struct that locates it."""
        return f"Source{self.number}"


def operands(program: BodyProgram, lowered: LoweredProgram, input_shapes: tuple[Shape, ...]) -> tuple[Operand, ...]:
    """Return the inputs that are read, then the outputs."""
    read = sorted({i for s in lowered.sources.values() if isinstance(s, Read) for i in s.inputs})
    inputs = [access.operand(f"in{i}", "", program.inputs[i], input_shapes[i], False) for i in read]
    outputs = [
        access.operand(f"out{n}", f"b{n}", o.dtype, lowered.extents, True) for n, o in enumerate(program.outputs)
    ]
    return (*inputs, *outputs)


def index_bits(lowered: LoweredProgram, input_shapes: tuple[Shape, ...]) -> int:
    """Return the width of the kernel's index type: 32 if no element of any tensor lies beyond 2^31."""
    return launch_plan.index_bits(max(math.prod(s) for s in (lowered.extents, *input_shapes)))


def fetch(number: int, source: Source, lowered: LoweredProgram, width: int, tail: int, aligned: bool) -> Fetch:
    """Return the load of a source for `width` adjacent elements, which may cross the last `tail` dimensions."""
    name = f"Source{number}"
    last = range(len(lowered.extents) - tail, len(lowered.extents))
    alike = index_maps.fixed(source, last)
    if isinstance(source, Guard):
        if alike or index_maps.run(source, lowered.extents, width) == width:
            return Fetch(number, source, f"load_flag<{name}>", "Flag")
        return Fetch(number, source, f"load_flags<{name}, W>", "Flags")
    stored = element_types.TYPES[lowered.program.inputs[number]].stored
    if alike:
        return Fetch(number, source, f"load_mapped_splat<{name}>", f"Splat<{stored}>")
    size = index_maps.run(source, lowered.extents, width) if aligned else 1
    return Fetch(number, source, f"load_pieces<{name}, {size}, W>", f"Pack<{stored}, W>")


def constants(
    lowered: LoweredProgram, numbers: index_maps.MapScalars, width: int, unroll: int, tail: int, threads: int
) -> str:
    """Return the constants of mapped.cuh; `numbers` must be complete."""
    return (
        f"using Index = {launch_plan.index_type(numbers.bits)};\n"
        f"constexpr int WIDTH = {width}, UNROLL = {unroll}, THREADS = {threads};\n"
        f"constexpr int RANK = {len(lowered.extents)}, DIVISORS = {max(len(numbers.divisors), 1)}, "
        f"NUMBERS = {max(len(numbers.numbers), 1)};\nconstexpr int TAIL = {tail};\n\n"
    )


def words(count: int, lowered: LoweredProgram, numbers: index_maps.MapScalars) -> tuple[int, ...]:
    """Return the words of the struct `Parameters` of mapped.cuh."""
    return (count, *divisors(lowered.extents, numbers.bits), *numbers.words())


def finders(fetches: list[Fetch], lowered: LoweredProgram, numbers: index_maps.MapScalars) -> str:
    """Return the structs of all sources."""
    by_comparison = (f for f in fetches if f.starts is None)
    return "".join(index_maps.finder(f.struct, f.source, lowered.space, numbers) for f in by_comparison)


def looked_up(load: Fetch, lowered: LoweredProgram, width: int, threads: int) -> Fetch:
    """Return the load of a source through a table, if that is faster for a block of so many threads."""
    of = concat_table.starts(load.source, lowered, width, threads) if isinstance(load.source, Read) else None
    return load if of is None else replace(load, call=f"load_beside<{load.struct}Starts, W>", starts=of)


def tables(fetches: list[Fetch], lowered: LoweredProgram, numbers: index_maps.MapScalars) -> str:
    """Return the structs of the sources located by tables."""
    return "".join(
        concat_table.text(
            f.struct, f.source, f.starts, element_types.TYPES[lowered.program.inputs[f.number]].stored, numbers
        )
        for f in fetches
        if f.starts is not None and isinstance(f.source, Read)
    )


def after_tables(fetches: list[Fetch], work: str) -> str:
    """Return the function that fills the tables, then does the work."""
    fills = "".join(f"  find_starts<{f.struct}Starts>(pointers, p);\n" for f in fetches if f.starts is not None)
    return (
        f"DEVICE void by_tables(const Pointers& pointers, const Parameters& p) {{\n{fills}  wait_for_block();\n"
        f"  {work}(pointers, p);\n}}\n"
    )


def loads(fetches: list[Fetch]) -> tuple[Load, ...]:
    """Return how all sources of a vector are loaded."""
    return tuple(
        Load(f"s{f.number}", f.holder, f"{f.call}({'' if f.starts is not None else start_of(f.source)}at, p)")
        for f in fetches
    )


def stores(tensors: tuple[Operand, ...]) -> tuple[Store, ...]:
    """Return how a vector of each output is stored."""
    return tuple(Store.of(o, f"store_linear<W>(to.{o.name}, {o.name}, at)") for o in tensors if o.is_output)


def start_of(source: Source) -> str:
    """Return the leading arguments of a load: the location of the source, none for a guard."""
    if isinstance(source, Guard):
        return ""
    return f"from.in{source.inputs[0]}, " if len(source.inputs) == 1 else "from, "
