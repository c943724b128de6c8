"""Launch plans of the general kernel: one source for all extents at given ranks, and a plan that always exists.

Values that are read repeatedly (sums, products, attention, operands of movements after computation) are materialized in
scratch memory, level by level: each level is a launch of the same kernel, and the last one writes the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from onnx import TensorProto

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.access import Pointer, pointers
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.codegen.program.program import (
    Apply,
    Attend,
    BodyProgram,
    Constant,
    Contraction,
    Reduce,
    Resample,
    SlidingWindow,
)
from onnxfuse.codegen.program.recentre import alone, centred
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.limits import ACCESS_BYTES
from onnxfuse.cuda.planning.template import Running
from onnxfuse.cuda.templates.general import shapes
from onnxfuse.cuda.templates.general.costs import GeneralCosts, costs_of
from onnxfuse.cuda.templates.general.numbers import WordTable
from onnxfuse.cuda.templates.general.values_cpp import Text, read_by
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import larger, smaller
from onnxfuse.symbolic.strides import Shape

SHARED_FLOATS = 2 * 16 * 65
"""Floats of the factors' tiles in shared memory, as in general.cuh."""


def plan(
    name: str, program: BodyProgram, running: Running | None, input_shapes: tuple[Shape, ...], arch: Arch
) -> LaunchPlan:
    """Return the launch plan of a program, whose reductions over no axes are running sums, on inputs of these shapes.

    For recorded shapes it branches only on whether the op supports them. Raises `UnsupportedError` if it does not.
    """
    program, cost = alone(centred(program)), costs_of(arch)
    of = {i: (*s,) for i, s in shapes.of_values(program, input_shapes).items()}
    memo = _stored(program)
    levels = _levels(program, memo)
    numbers = WordTable()
    addresses, used = {}, 0
    for index in sorted(memo):
        stored = element_types.TYPES[_scratch_type(program.values[index].dtype)]
        addresses[index] = f"(({stored.stored}*)(t.scratch + {numbers.one(used)}))"
        used += -(-math.prod(of[index]) * stored.size // ACCESS_BYTES) * ACCESS_BYTES
    text = Text(program, of, addresses, numbers, running)
    functions = [text.function(i) for i in sorted(_called(program, memo))]
    last = max((levels[i] for i in memo), default=0)
    loops = [[text.stage(i) for i in sorted(memo) if levels[i] == step + 1] for step in range(last)]
    loops.append([text.output(n) for n in range(len(program.outputs))])
    counts = [
        [math.prod(of[i]) * _threads(program, i, cost) for i in sorted(memo) if levels[i] == step + 1]
        for step in range(last)
    ]
    counts.append([math.prod(of[o.value]) for o in program.outputs])
    kernel = _kernel(name, program, functions, loops, len(numbers.words), bool(memo), cost.threads)
    shared = 4 * SHARED_FLOATS if any(isinstance(program.values[i], Contraction | Reduce) for i in memo) else 0
    outputs = tuple(of[o.value] for o in program.outputs)
    scratch = larger(used, 1) if memo else 0  # the kernel has its pointer
    launches = [
        LaunchPlan(
            kernel, (_blocks(counts[step], arch), 1, 1), (cost.threads, 1, 1), shared,
            launch_plan.packed((step, *(numbers.words or [0])), 64), outputs, scratch_bytes=scratch,
        )
        for step in range(last + 1)
    ]  # fmt: skip
    return launch_plan.in_sequence(launches, outputs)


def _blocks(counts: Iterable[int], arch: Arch) -> int:
    most, cost = 1, costs_of(arch)
    for count in counts:
        most = larger(most, smaller(-(-count // cost.threads), arch.sm_count * cost.blocks))
    return most


def _threads(program: BodyProgram, index: int, cost: GeneralCosts) -> int:
    """Return how many threads compute an element of a value: a block for a reduction, one for a window."""
    value = program.values[index]
    return cost.threads if isinstance(value, Reduce) and not isinstance(program.values[value.arg], SlidingWindow) else 1


def _stored(program: BodyProgram) -> frozenset[int]:
    """Return the values materialized in scratch memory."""
    wanted, memo = _wanted(program), set[int]()
    for index in wanted:
        value = program.values[index]
        if isinstance(value, Reduce | Contraction | Resample | Attend):
            memo.add(index)
        if not isinstance(value, Apply | Reduce):  # these read elements repeatedly, or by coordinates of their own
            memo |= {a for a in read_by(value) if isinstance(program.values[a], Apply)}
    if len(program.outputs) > 1:  # an output may alias an input, so all are read before any is written
        memo |= {o.value for o in program.outputs}
    return frozenset(memo)


def _wanted(program: BodyProgram) -> list[int]:
    """Return the values whose elements are read, in order."""
    seen, waiting = set[int](), [o.value for o in program.outputs]
    while waiting:
        index = waiting.pop()
        if index not in seen:
            seen.add(index)
            waiting.extend(read_by(program.values[index]))
    return sorted(seen)


def _called(program: BodyProgram, memo: frozenset[int]) -> list[int]:
    """Return the values whose elements are read by coordinates."""
    called = set(memo)
    for index in _wanted(program):
        value = program.values[index]
        if not isinstance(value, Apply | Constant):
            called.add(index)
        if not isinstance(value, Apply | Reduce):
            called |= set(read_by(value))
    return [i for i in called if i in memo or not isinstance(program.values[i], Apply)]


def _levels(program: BodyProgram, memo: frozenset[int]) -> dict[int, int]:
    """Return for each value the number of launches after which it is available."""
    levels: dict[int, int] = {}
    for index in _wanted(program):
        levels[index] = max((levels[a] for a in read_by(program.values[index])), default=0) + (index in memo)
    return levels


def _scratch_type(dtype: int) -> int:
    """Return the element type of a materialized value: 16-bit floats are stored unrounded."""
    return int(TensorProto.FLOAT) if element_types.computed(dtype) == "float" else dtype


def _kernel(
    name: str,
    program: BodyProgram,
    functions: list[str],
    loops: list[list[str]],
    count: int,
    scratch: bool,
    threads: int,
) -> KernelSource:
    entry = identifier(name)
    inputs = [
        Pointer(f"const {element_types.TYPES[t].stored}", f"in{i}", f"in{i}") for i, t in enumerate(program.inputs)
    ]
    outputs = [
        Pointer(element_types.TYPES[o.dtype].stored, f"out{n}", f"out{n}") for n, o in enumerate(program.outputs)
    ]
    fields = [*inputs, *outputs, *([Pointer("char", "scratch", "scratch")] if scratch else [])]
    head = (
        f"using Index = long long;\nconstexpr int THREADS = {threads}, SHARED_FLOATS = {SHARED_FLOATS};\n"
        f"struct Parameters {{ Index step, number[{max(count, 1)}]; }};\n"
    )
    steps = "".join(f"  if (p.step == {step}) {{\n{''.join(texts)}  }}\n" for step, texts in enumerate(loops))
    work = f"DEVICE void general(const Pointers& t, const Parameters& p) {{\n{steps}}}\n"
    return KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, "include/math.cuh", "include/memory.cuh")),
            generated(entry, head),
            template("general/general.cuh"),
            generated(entry, pointers(fields) + "\n".join(functions) + work),
            generated(entry, entries.entry_point(entry, "general", program, fields, 0)),
        ),
    )
