"""Emit an expression program as C++ functors: `Element` in, `Result` out, and one `Phase` per round of row reductions.

The text is plain C++ over the names of include/math.cuh: NVRTC and the host compiler build the same numerics.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.codegen.emit.operations import COMBINE, ROUND, SIXTEEN_BITS, expression_of
from onnxfuse.codegen.program.moments import Moments
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant, Input, Reduce, arguments
from onnxfuse.codegen.program.tables import ELEMENTS, Table
from onnxfuse.codegen.program.whole_numbers import constant, fits, holds
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types


def live_inputs(program: BodyProgram) -> tuple[int, ...]:
    """Return the indices of the op's inputs that some output depends on, in order."""
    live = program.live()
    return tuple(sorted(v.index for i, v in enumerate(program.values) if isinstance(v, Input) and i in live))


def reduced_inputs(program: BodyProgram) -> frozenset[int]:
    """Return the indices of the op's inputs that some reduction reads."""
    seen: set[int] = set()
    stack = list(program.reductions())
    while stack:
        for index in arguments(program.values[stack.pop()]):
            if index not in seen:
                seen.add(index)
                stack.append(index)
    return frozenset(v.index for i in seen if isinstance(v := program.values[i], Input))


@lru_cache(maxsize=1024)
def phases(program: BodyProgram) -> tuple[tuple[int, ...], ...]:
    """Return the reductions grouped by round: each depends only on those of earlier rounds."""
    levels = program.levels
    reductions = program.reductions()
    # Levels include dead reductions; only live ones form a round.
    rounds = sorted({levels[i] for i in reductions})
    return tuple(tuple(i for i in reductions if levels[i] == level) for level in rounds)


@lru_cache(maxsize=256)
def source(program: BodyProgram) -> str:
    """Return the C++ text of the program: `Element`, `Result`, `Reduced` and `Phase<P>` for rows, and `apply`."""
    rounds = phases(program)
    fields = [(element_types.computed(program.inputs[i]), f"a{i}") for i in live_inputs(program)]
    results = [(element_types.computed(o.dtype), f"b{n}") for n, o in enumerate(program.outputs)]
    parts = [_struct("Element", fields), _struct("Result", results)]
    if rounds:
        done = [(element_types.computed(program.values[i].dtype), name) for i, name in _done(program)]
        parts.append(_struct("Reduced", done))
        parts.append(f"constexpr int PHASES = {len(rounds)};\ntemplate <int P> struct Phase;\n")
        parts.extend(_phase(program, number, round_) for number, round_ in enumerate(rounds))
    parts.append(_apply(program, bool(rounds)))
    return "\n".join(parts)


def norm(program: BodyProgram, of: Moments) -> str:
    """Return the struct `Norm`: the value whose moments are computed, and `Reduced` from these; follows `source`."""
    statements = [f"done.r{of.mean} = mean;", *_settle(program, 0, (of.mean,))]
    statements += [f"done.r{i} = rest;" for i in of.rests] + [f"done.r{i} = variance;" for i in of.variances]
    statements += _settle(program, 1, (*of.rests, *of.variances))
    lines = [
        "struct Norm {",
        "  DEVICE static float value(const Element& x) {",
        *("  " + line for line in _statements(program, (of.value,))),
        f"    return {_operand(program, of.value, _names(program))};",
        "  }",
        "  // `rest`: of the mean, what its rounding has left.",
        "  DEVICE static void finish(Reduced& done, float mean, float rest, float variance) {",
        *("    " + line for line in statements),
        "  }",
        "};",
        "",
    ]
    return "\n".join(lines)


def statements(program: BodyProgram, targets: Iterable[int]) -> list[str]:
    """Return statements that compute values of a reduction-free program from the fields of a struct `x`."""
    return _statements(program, targets, frozenset())


def name(program: BodyProgram, index: int) -> str:
    """Return a value's variable name in those statements."""
    return _operand(program, index, frozenset())


def _struct(name: str, fields: Iterable[tuple[str, str]]) -> str:
    return f"struct {name} {{\n" + "".join(f"  {cpp} {field};\n" for cpp, field in fields) + "};\n"


def _apply(program: BodyProgram, has_reductions: bool) -> str:
    done = ", const Reduced& done" if has_reductions else ""
    lines = [
        f"DEVICE Result apply(const Element& x{done}) {{",
        *_statements(program, (o.value for o in program.outputs)),
        "  Result y;",
        *(f"  y.b{n} = {_operand(program, o.value, _names(program))};" for n, o in enumerate(program.outputs)),
        "  return y;",
        "}",
        "",
    ]
    return "\n".join(lines)


def _phase(program: BodyProgram, number: int, round_: tuple[int, ...]) -> str:
    reductions = [(i, _reduction(program, i)) for i in round_]
    values, divisors = _available(program, number, round_)
    fields = "".join(f"  {accumulator(program, r)} r{i};\n" for i, r in reductions)
    identities = ", ".join(_identity(program, r) for _, r in reductions)
    lines = [
        f"template <> struct Phase<{number}> {{",
        f"  static constexpr bool IN_ORDER = {'true' if any(_is_position(r) for _, r in reductions) else 'false'};",
        fields.rstrip("\n"),
        f"  DEVICE static Phase identity() {{ return {{{identities}}}; }}",
        "  DEVICE void accumulate(const Element& x, const Reduced& done, Index place) {",
        *("  " + line for line in _statements(program, (r.arg for _, r in reductions))),
        *(f"    {_accumulate(program, i, r)}" for i, r in reductions),
        "  }",
        "  DEVICE void combine(const Phase& other) {",
        *(f"    {_combine(i, r, f'other.r{i}')}" for i, r in reductions),
        "  }",
        "  DEVICE void finish(Reduced& done, Index columns) const {",
        *(f"    done.r{i} = {_finished(i, r)};" for i, r in reductions),
        *("    " + line for line in _settle(program, number, round_)),
        "  }",
        "  DEVICE static void take(Reduced& done, const Reduced& finished) {",
        *(f"    done.r{i} = finished.r{i};" for i in round_),
        *(f"    done.v{i} = finished.v{i};" for i in values),
        *(f"    done.q{i} = finished.q{i};" for i in divisors),
        "  }",
        "};",
        "",
    ]
    return "\n".join(lines)


def _available(program: BodyProgram, number: int, round_: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the row-invariant values available after a round of reductions, and those with reciprocals."""
    values = [i for i, r in settled(program).items() if r == number]
    return values, [i for i in _divisors(program) if i in round_ or i in values]


def _settle(program: BodyProgram, number: int, round_: tuple[int, ...]) -> list[str]:
    """Return the statements that compute them, after those that set the results of the round."""
    values, divisors = _available(program, number, round_)
    return [
        *(line.strip() for line in _statements(program, values, frozenset())),
        *(f"done.v{i} = v{i};" for i in values),
        *(f"done.q{i} = 1 / done.{_name(program, i)};" for i in divisors),
    ]


def _reduction(program: BodyProgram, index: int) -> Reduce:
    value = program.values[index]
    assert isinstance(value, Reduce)
    return value


def _combine(index: int, reduce: Reduce, other: str) -> str:
    return f"r{index} = {COMBINE[reduce.kind].format(f'r{index}', other)};"


def _accumulate(program: BodyProgram, index: int, reduce: Reduce) -> str:
    """Emit the accumulation of one element; each thread visits its elements in order."""
    value = f"({_summed(program, reduce)})({_operand(program, reduce.arg, _names(program))})"
    if not _is_position(reduce):
        return _combine(index, reduce, value)
    least, last = ("true" if w in reduce.kind else "false" for w in ("argmin", "_last"))
    return f"math::follow<{least}, {last}>(r{index}, {value}, place);"


def _finished(index: int, reduce: Reduce) -> str:
    if _is_position(reduce):
        return f"math::position(r{index})"
    computed = element_types.computed(reduce.dtype)
    # Division, not a reciprocal: the mean of equal elements must be exact, or a norm amplifies the error.
    total = f"r{index} / ({_word(reduce.dtype)})columns" if reduce.kind == "mean" else f"r{index}"
    return f"({computed})({total})"


def accumulator(program: BodyProgram, reduce: Reduce) -> str:
    """Return the C++ type of a partial result; for arg reductions, of the value found so far and its index."""
    word = _summed(program, reduce)
    return f"math::Found<{word}, Index>" if _is_position(reduce) else word


def accumulator_bytes(program: BodyProgram, bits: int) -> int:
    """Return the maximum bytes of accumulators in one round of reductions, per result element."""

    def size(index: int) -> int:
        reduce = _reduction(program, index)
        value = max(element_types.TYPES[program.values[reduce.arg].dtype].size, 4)
        return 2 * max(value, bits // 8) if _is_position(reduce) else value

    def struct(sizes: list[int]) -> int:
        # With an 8-byte member, each may be aligned to 8 bytes.
        return sum(sizes) if max(sizes) == 4 else sum(-(-n // 8) * 8 for n in sizes)

    return max(struct([size(i) for i in round_]) for round_ in phases(program))


def _is_position(reduce: Reduce) -> bool:
    return reduce.kind.startswith("arg")


def _summed(program: BodyProgram, reduce: Reduce) -> str:
    return _word(program.values[reduce.arg].dtype)


def _word(dtype: int) -> str:
    """Reductions run in the computed type; small integers in int, which shuffles move as one word."""
    return (
        element_types.computed(dtype) if element_types.is_real(dtype) or element_types.TYPES[dtype].size >= 4 else "int"
    )


def _identity(program: BodyProgram, reduce: Reduce) -> str:
    dtype = program.values[reduce.arg].dtype
    if reduce.kind in ("sum", "mean", "prod"):
        return element_types.literal(int(reduce.kind == "prod"), dtype)
    upward = reduce.kind in ("max", "argmax", "argmax_last")
    if element_types.is_real(dtype):
        least = element_types.literal(float("-inf" if upward else "inf"), dtype)
    else:
        facts = element_types.TYPES[dtype]
        least = element_types.literal(facts.low if upward else facts.high, dtype)
    if not _is_position(reduce):
        return least
    # Ordered after every element when breaking ties, and `nowhere`.
    return f"{{{least}, {'0' if reduce.kind.endswith('_last') else '(Index)-1'}}}"


def _done(program: BodyProgram) -> Iterator[tuple[int, str]]:
    """The fields of `Reduced`, with the value that gives each its type: results, row invariants, reciprocals."""
    for round_ in phases(program):
        yield from ((i, f"r{i}") for i in round_)
    yield from ((i, f"v{i}") for i in settled(program))
    yield from ((i, f"q{i}") for i in _divisors(program))


@lru_cache(maxsize=1024)
def _names(program: BodyProgram) -> frozenset[str]:
    return frozenset(name for _, name in _done(program))


def reduced_bytes(program: BodyProgram) -> int:
    """Return an upper bound of the size of `Reduced`."""
    sizes = [max(element_types.TYPES[program.values[i].dtype].size, 4) for i, _ in _done(program)]
    return len(sizes) * max(sizes)


@lru_cache(maxsize=1024)
def settled(program: BodyProgram) -> dict[int, int]:
    """Return the row-invariant values that are computed once per row, with the round after which they are available.

    The compiler does not see by itself that a root or a division, which has a slow path, is loop-invariant.
    """
    rounds = {i: number for number, round_ in enumerate(phases(program)) for i in round_}
    after: dict[int, int] = {}
    for index, value in enumerate(program.values):
        if isinstance(value, Apply) and index in _shared(program):
            rounds_read = {rounds.get(a, after.get(a, -1)) for a in value.args if a in _shared(program)}
            if len(rounds_read) == 1 and -1 not in rounds_read:
                (after[index],) = rounds_read
    live = program.live()
    read = {a for i, v in enumerate(program.values) if i in live and i not in after for a in arguments(v)}
    return {i: r for i, r in after.items() if i in read or any(o.value == i for o in program.outputs)}


def _divisors(program: BodyProgram) -> tuple[int, ...]:
    """Return the row-invariant values whose reciprocals are precomputed, too: they divide 16-bit floats."""
    live = program.live()
    values = {
        v.args[1]
        for i, v in enumerate(program.values)
        if i in live
        and isinstance(v, Apply)
        and v.op == scalar.div
        and v.dtype in SIXTEEN_BITS
        and i not in settled(program)
    }
    return tuple(sorted(i for i in values if isinstance(program.values[i], Reduce) or i in settled(program)))


def _statements(program: BodyProgram, targets: Iterable[int], done: frozenset[str] | None = None) -> list[str]:
    """Return statements that compute `targets` from the inputs, the reductions and row-invariant values (`done`)."""
    done = _names(program) if done is None else done
    needed: set[int] = set()
    stack = list(targets)
    while stack:
        index = stack.pop()
        if index not in needed and f"v{index}" not in done and isinstance(program.values[index], Apply):
            needed.add(index)
            stack.extend(arguments(program.values[index]))
    return [_statement(program, i, done) for i in sorted(needed)]


def _statement(program: BodyProgram, index: int, done: frozenset[str]) -> str:
    value = program.values[index]
    assert isinstance(value, Apply)
    cpp = element_types.computed(value.dtype)
    args = [_operand(program, a, done) for a in value.args]
    if isinstance(value.op, Table):
        elements = f"static const {cpp} t{index}[{ELEMENTS}] = {{{', '.join(map(str, value.op.elements))}}};"
        return f"  {elements}\n  const {cpp} v{index} = t{index}[(unsigned char){args[0]}];"
    if value.op == scalar.cast:
        source = program.values[value.args[0]].dtype
        expression = _small_cast(program, value, args[0], done) or _cast(args[0], source, value.dtype)
    else:
        near = _is_near(program, value)
        expression = expression_of(value.op, args) if not near else f"math::near_{value.op}({', '.join(args)})"
        if value.op.half and value.dtype in SIXTEEN_BITS:
            expression = expression.replace("math::", "math16::")
        if value.op == scalar.div and value.dtype in SIXTEEN_BITS and value.args[1] in _shared(program):
            # One division per row, and a multiplication per element: float32 has sufficient precision.
            once = f"q{value.args[1]}"
            expression = f"{args[0]} * " + (f"done.{once}" if once in done else f"(1 / {args[1]})")
        elif value.op == scalar.reciprocal and value.dtype == TensorProto.FLOAT16:
            # No float16 number is below 2^-24.
            expression = f"reciprocal_fast({args[0]})"
        elif value.op == scalar.div and value.dtype == TensorProto.FLOAT16:
            # float16 ends at 65504, far from 2^126, the limit of the fast division.
            expression = f"math::divide_fast({', '.join(args)})"
        if element_types.is_integer(value.dtype):
            # C++ computes small integers as int; ONNX wraps them around in their own type.
            expression = f"({cpp})({expression})"
    return f"  const {cpp} v{index} = {expression};"


@lru_cache(maxsize=1024)
def _shared(program: BodyProgram) -> frozenset[int]:
    """Return the row-invariant values: computed from reductions, and constants."""
    shared: set[int] = set()
    constants: set[int] = set()
    for index, value in enumerate(program.values):
        args = value.args if isinstance(value, Apply) else ()
        if isinstance(value, Constant) or (args and constants.issuperset(args)):
            constants.add(index)
        elif isinstance(value, Reduce) or (args and (shared | constants).issuperset(args)):
            shared.add(index)
    return frozenset(shared)


@lru_cache(maxsize=1024)
def _rounded_sums(program: BodyProgram) -> frozenset[int]:
    """Return the numbers that are computed from exact int32 sums, and rounded thereby: their last bit means nothing."""
    sums, rounded = set[int](), set[int]()
    for index, value in enumerate(program.values):
        if not isinstance(value, Apply) or value.dtype != TensorProto.FLOAT:
            continue
        if value.op == scalar.cast and program.values[value.args[0]].dtype == TensorProto.INT32:
            sums.add(index)
        elif not (sums | rounded).isdisjoint(value.args):
            rounded.add(index)
    return frozenset(rounded)


def _is_near(program: BodyProgram, value: Apply) -> bool:
    """Return whether steps are those of a rounded number."""
    return value.op in (scalar.steps, scalar.shifted_steps) and value.args[0] in _rounded_sums(program)


def _small_cast(program: BodyProgram, value: Apply, operand: str, done: frozenset[str]) -> str:
    """Return the conversion between float and a small integer as a sum; empty if it is none."""
    (arg,) = value.args
    source = program.values[arg].dtype
    if source == TensorProto.FLOAT and fits(program.values, arg, value.dtype):
        return f"({element_types.computed(value.dtype)})({_whole(program, arg, operand, done)})"
    return f"math::float_of_small({operand})" if holds(value.dtype, source) else ""


def _whole(program: BodyProgram, index: int, operand: str, done: frozenset[str]) -> str:
    """Return a small whole number as an int; steps of a scale, and their sum with a zero point, without a detour."""
    value = program.values[index]
    if isinstance(value, Apply) and f"v{index}" not in done:
        if value.op in (scalar.steps, scalar.shifted_steps, scalar.line_inside):
            near = "near_" if _is_near(program, value) else ""
            return f"math::int_of_{near}{value.op}({', '.join(_operand(program, a, done) for a in value.args)})"
        zero = constant(program.values, value.args[-1])
        if value.op == scalar.add and zero is not None:
            number = value.args[0]
            return f"{_whole(program, number, _operand(program, number, done), done)} + {zero:.0f}"
    return f"math::int_of_whole({operand})"


def _cast(operand: str, source_type: int, to: int) -> str:
    """Float to integer truncates; out of range it saturates on the GPU, where ONNX leaves the result undefined."""
    cpp = element_types.computed(to)
    if cpp == "bool":
        return f"{operand} != 0"
    round_to = ROUND.get(element_types.TYPES[to].stored)
    if round_to is not None and source_type != to:
        return f"{round_to}((float)({operand}))"
    return f"({cpp})({operand})"


def _operand(program: BodyProgram, index: int, done: frozenset[str]) -> str:
    match program.values[index]:
        case Input(index=position):
            return f"x.a{position}"
        case Constant(value=value, dtype=dtype):
            text = element_types.literal(value, dtype)
            return f"({text})" if text.startswith("-") else text
        case Reduce():
            return f"done.r{index}"
        case _:
            return f"done.v{index}" if f"v{index}" in done else f"v{index}"


def _name(program: BodyProgram, index: int) -> str:
    return f"r{index}" if isinstance(program.values[index], Reduce) else f"v{index}"
