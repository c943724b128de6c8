"""Parse an attention body: its queries, keys, values and bias inputs, their layouts, and the masking.

Parsed from the op's library form, ONNX Runtime's MultiHeadAttention, a single value for what the body computes in many.
A form with further operations on queries, keys and values is left to the library. An op without one is an attention of
integers (`integers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.node import reduced
from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.movement import Concatenated, Expanded, Gathered, Reshaped, Run
from onnxfuse.codegen.program.program import Apply, Attend, BodyProgram, Constant, Input, Move, Value
from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16, TF32, FactorType, Rounding, factors_of
from onnxfuse.cuda.templates.attention import integers
from onnxfuse.cuda.templates.attention.integers import BY_HEADS, IntegerAttention
from onnxfuse.model.fused import FusedOp
from onnxfuse.ops import scalar
from onnxfuse.ops.reduction import softmax
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

FACTORS = (FLOAT16, BFLOAT16, TF32)
MERGED = Reshaped((0, 0, -1), True)
"""From [batch, sequence, heads, size] to [batch, sequence, heads * size]."""


@dataclass(frozen=True)
class Cache:
    """A KV cache concatenated with an input along the sequence, and written to an output of the op."""

    new: int
    """Index of the other input."""
    output: int
    """Index of the op's output that holds both."""


@dataclass(frozen=True)
class AttentionOperand:
    """Queries, keys, values or the result: the op's input or output with that index."""

    position: int
    heads_first: bool
    """Layout: [batch, heads, sequence, size]; else [batch, sequence, heads * size], possibly with split heads."""
    group: int = 1
    """Query heads per head of this operand (grouped-query attention)."""
    cache: Cache | None = None
    """For keys or values that are concatenated from two inputs; `position` is that of the first."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The indices of its inputs."""
        return (self.position, *([] if self.cache is None else [self.cache.new]))


@dataclass(frozen=True)
class AttentionBody:
    """A parsed library form."""

    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    y: AttentionOperand
    biases: tuple[int, ...]
    """Indices of the biases added to the scores: one, two, or none."""
    windows: bool
    """Whether the bias is [1, windows, heads, queries, keys], for the windows of an image, repeated for each image."""
    target: tuple[int, ...] | None
    """Target of a Reshape from [batch, queries, heads, size] applied to the result; None if there is none."""
    safe: bool
    """Whether a fully masked query (bias of minus infinity for all keys) yields zeros instead of NaN."""
    heads: int
    scale: float
    """Scale of the scores; 0 = 1 / sqrt(size)."""
    causal: bool
    factors: FactorType
    integers: IntegerAttention | None = None
    """For 8-bit integers, which float16 holds: what is computed between the products."""

    @property
    def dtype(self) -> int:
        """Element type of queries, keys and values."""
        return self.factors.left

    @property
    def grows(self) -> bool:
        """Whether keys and values are growing KV caches."""
        return self.k.cache is not None

    @property
    def to_tf32(self) -> bool:
        """Whether the factors of products are rounded to TF32."""
        return self.factors.rounding is Rounding.TF32

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in memory."""
        return self.factors.bytes


def parse_op(op: FusedOp) -> AttentionBody:
    """Parse `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _of_integers(read.program(op)) if op.library is None else _parse(read.library_program(op))


@lru_cache(maxsize=1024)
def _of_integers(program: BodyProgram) -> AttentionBody:
    work = integers.parse(program)
    q, k, v, y = (AttentionOperand(position, heads_first=False) for position in (*work.positions, 0))
    return AttentionBody(
        q, k, v, y, work.biases, windows=False, target=None, safe=False, heads=work.heads, scale=1.0, causal=False,
        factors=FLOAT16, integers=work,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _parse(program: BodyProgram) -> AttentionBody:
    attentions = [i for i in sorted(program.live()) if isinstance(program.values[i], Attend)]
    if len(attentions) != 1:
        raise UnsupportedError(f"{len(attentions)} MultiHeadAttention in the library form, expected 1")
    attend = program.values[attentions[0]]
    assert isinstance(attend, Attend)
    names = ("queries", "keys", "values")
    q, k, v = (_operand(program, i, name, attend.heads) for i, name in zip(attend.args, names, strict=False))
    biases, windows = _biases(program, attend.args[3]) if len(attend.args) > 3 else ((), False)
    end, safe = _zeroes_masked(program, attentions[0], biases)
    heads_first, target = _result(program, end)
    read = [q.position, *(p for o in (k, v) for p in o.positions), *biases]
    read_types = {program.inputs[i] for i in read}
    factors = factors_of(attend.dtype, attend.dtype)
    if factors not in FACTORS or read_types != {attend.dtype}:
        raise UnsupportedError(
            f"attention on {element_types.name(attend.dtype)}, expected float16, bfloat16 or float32 throughout"
        )
    caches = {o.cache.output for o in (k, v) if o.cache is not None}
    result = [n for n in range(len(program.outputs)) if n not in caches]
    if (
        (k.cache is None) != (v.cache is None)
        or len(result) != 1
        or {o.dtype for o in program.outputs} != {attend.dtype}
    ):
        raise UnsupportedError(
            f"{plural(program.outputs, 'output')}, expected one of the type of the queries, or it beside both caches"
        )
    return AttentionBody(
        q, k, v, AttentionOperand(result[0], heads_first), biases, windows, target, safe, attend.heads, attend.scale,
        attend.causal, factors,
    )  # fmt: skip


def _operand(program: BodyProgram, index: int, name: str, heads: int) -> AttentionOperand:
    """Return the input that supplies the queries, keys or values [batch, sequence, heads * size]."""
    index, group = _not_repeated(program, index, heads)
    if name == "queries" and group != 1:
        raise UnsupportedError("queries that are repeated in the library form")
    value, heads_first = program.values[index], False
    if isinstance(value, Move) and isinstance(value.how, Reshaped):
        if value.how != MERGED:
            raise UnsupportedError(f"{name} that take another shape in the library form")
        value = program.values[value.args[0]]
        if isinstance(value, Move) and value.how == BY_HEADS:
            value, heads_first = program.values[value.args[0]], True
    cache = None
    # The ranks of heads-first operands are known, which resolves negative axes.
    if isinstance(value, Move) and value.how in [Concatenated(axis) for axis in ((2, -2) if heads_first else (1,))]:
        outputs = [n for n, o in enumerate(program.outputs) if program.values[o.value] == value]
        value, new = (program.values[i] for i in value.args)
        if len(outputs) == 1 and isinstance(new, Input):
            cache = Cache(new.index, outputs[0])
    if not isinstance(value, Input) or (name == "queries" and cache is not None):
        raise UnsupportedError(f"{name} that are computed in the library form")
    return AttentionOperand(value.index, heads_first, group, cache)


def _not_repeated(program: BodyProgram, index: int, heads: int) -> tuple[int, int]:
    """Return the value before heads are repeated, and the repeat count: the value itself and 1 if there is no
    repeat."""
    moves = list[Move]()
    while len(moves) < 3 and isinstance(value := program.values[index if not moves else moves[-1].args[0]], Move):
        moves.append(value)
    match [m.how for m in moves]:
        case [merged, Expanded((1, 1, 1, int(group), 1)), Reshaped((0, 0, few, 1, _), True)] if (
            merged == MERGED and few * group == heads
        ):
            return moves[-1].args[0], group
    return index, 1


def _biases(program: BodyProgram, index: int) -> tuple[tuple[int, ...], bool]:
    """Return the inputs that are summed and expanded to the bias, and whether it is a bias per window."""
    value, windows = program.values[index], False
    if isinstance(value, Move) and isinstance(value.how, Reshaped):
        value, windows = program.values[value.args[0]], True
    source = program.values[value.args[0]] if isinstance(value, Move) and isinstance(value.how, Expanded) else value
    added = source.args if isinstance(source, Apply) and source.op == scalar.add and not windows else ()
    sources = [program.values[i] for i in added] or [source]
    inputs = [s for s in sources if isinstance(s, Input)]
    if source is value or len(inputs) < len(sources):
        raise UnsupportedError("a bias that is computed in the library form")
    return tuple(s.index for s in inputs), windows


def _zeroes_masked(program: BodyProgram, attend: int, biases: tuple[int, ...]) -> tuple[int, bool]:
    """Return the result after replacing fully masked rows by zeros, and whether that is done."""
    heads = _reader(program, attend)
    chosen = _reader(program, heads) if heads is not None and _is_reshape(program, heads) else None
    value = None if chosen is None else program.values[chosen]
    if not biases or not isinstance(value, Apply) or value.op != scalar.where:
        return attend, False
    lost, fill, rest = value.args
    end = None if chosen is None else _reader(program, chosen)
    if end is None or not _is_reshape(program, end) or rest != heads or lost not in _rows_without_keys(program, biases):
        raise UnsupportedError("a result that is worked on in the library form")
    if not _is_zero(program, program.values[fill]):
        raise UnsupportedError("a result with other numbers than 0 where there is no key")
    return end, True


def _rows_without_keys(program: BodyProgram, biases: tuple[int, ...]) -> set[int]:
    """Return the indices of values [batch, queries, heads, 1] that mark fully masked queries.

    The softmax of the bias alone is NaN in such a row, which one of its columns shows. Equal values of a program are
    one value, so the construction made here finds the existing one.
    """
    builder = Builder(list(program.values), {v: i for i, v in enumerate(program.values)})
    terms = [Term(builder, program.values.index(Input(i, program.inputs[i]))) for i in biases]
    added = terms[0] if len(terms) == 1 else builder.apply(scalar.add, *terms)
    whole = builder.move(Expanded((1, 1, 1, 1)), added)
    rows = set[int]()
    for over in (partial(reduced, axes=(-1,), onward=onward) for onward in (False, True)):
        column = builder.move(Gathered(3, (Run(0, 1, 1),)), softmax(whole, over))
        gone = builder.apply(scalar.is_nan, column)
        rows.add(builder.move(BY_HEADS, gone).index)
    return rows


def _is_zero(program: BodyProgram, value: Value) -> bool:
    if isinstance(value, Apply) and value.op == scalar.cast:
        value = program.values[value.args[0]]
    return isinstance(value, Constant) and value.value == 0


def _result(program: BodyProgram, index: int) -> tuple[bool, tuple[int, ...] | None]:
    """Return whether the result is stored heads first, and the target of a Reshape; other uses are unsupported."""
    if program.is_output(index):
        return False, None
    # [batch, sequence, heads * size] split into heads, then transposed to heads first.
    first = _reader(program, index)
    last = None if first is None else _reader(program, first)
    moves = [program.values[i] for i in (first, last) if i is not None]
    match [v.how for v in moves if isinstance(v, Move)]:
        case Reshaped(), how if last is not None and program.is_output(last):
            if how == BY_HEADS:
                return True, None
            if isinstance(how, Reshaped) and how.zero_copies and all(n >= -1 for n in how.target):
                return False, how.target
            raise UnsupportedError("a result that takes another shape in the library form")
        case _:
            raise UnsupportedError("a result that is worked on in the library form")


def _is_reshape(program: BodyProgram, index: int) -> bool:
    value = program.values[index]
    return isinstance(value, Move) and isinstance(value.how, Reshaped)


def _reader(program: BodyProgram, index: int) -> int | None:
    """Return the only reader of a value; None if there are several, or none."""
    readers = program.readers(index)
    return readers[0] if len(readers) == 1 and not program.is_output(index) else None
