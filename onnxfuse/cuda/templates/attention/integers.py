"""Parse an attention of 8-bit integers from its body: files with static quantization have no library form.

y = Q(P(softmax(S(q k^T))) v) of integers less their zero points: S, P and Q are scalar programs, with the scales of the
factors in them, and whatever is quantized and dequantized between the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxfuse.codegen.operators.node import reduced
from onnxfuse.codegen.program.builder import Builder, Term, as_term
from onnxfuse.codegen.program.movement import Reshaped, Transposed
from onnxfuse.codegen.program.program import (
    Apply,
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Output,
    Value,
    arguments,
)
from onnxfuse.codegen.program.rounding import SIXTEEN_BITS
from onnxfuse.codegen.program.slices import between, with_arguments
from onnxfuse.codegen.program.whole_numbers import EXACT, EXACT_HALF, ROUNDED, bounds, is_whole
from onnxfuse.ops import scalar
from onnxfuse.ops.reduction import softmax
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.element_types import UnsupportedError

BYTES = (TensorProto.INT8, TensorProto.UINT8)
BY_HEADS = Transposed((0, 2, 1, 3))
"""From [batch, sequence, heads, size] to [batch, heads, sequence, size], and back."""


NOTHING = BodyProgram((Constant(0.0, TensorProto.FLOAT, ()),), (Output(0, TensorProto.FLOAT),), (TensorProto.FLOAT,))
"""What is added to the scores without a bias."""


@dataclass(frozen=True)
class IntegerAttention:
    """An attention whose queries, keys, values and result are 8-bit integers [batch, sequence, heads * size]."""

    positions: tuple[int, int, int]
    """Indices of queries, keys and values among the op's inputs."""
    zeros: tuple[int, int, int]
    """Their zero points."""
    heads: int
    biases: tuple[int, ...]
    """Index of the input that is added to the scores; empty if there is none."""
    added: BodyProgram
    """From an element of that input to what is added to the score."""
    scores: BodyProgram
    """From a sum of products of queries and keys, and what is added, to the score before the softmax."""
    powers_of_two: bool
    """Whether the scores are in units of log2(e): 2^x takes the place of e^x."""
    weights: BodyProgram
    """From a probability to the integer by which the value is multiplied, a float."""
    share: float | None
    """Steps of a probability of 1, if rounding to them is all that is computed and none is out of bounds."""
    result: BodyProgram
    """From a sum of products of these and the values to an element of the result."""


def parse(program: BodyProgram) -> IntegerAttention:
    """Parse a body; raises `UnsupportedError` with the reason if it is no attention of integers."""
    products = [i for i in sorted(program.live()) if isinstance(program.values[i], Contraction)]
    if len(products) != 2 or len(program.outputs) != 1:
        raise UnsupportedError(
            f"{plural(products, 'product')} and {plural(program.outputs, 'output')}, expected 2 and 1"
        )
    first, second = products
    (left, right), (given, values) = (_arguments(program.values[i]) for i in products)
    transposed = Transposed((0, 2, 3, 1))
    operands = [_operand(program, i, move) for i, move in ((left, BY_HEADS), (right, transposed), (values, BY_HEADS))]
    if len({o.heads for o in operands}) > 1:
        raise UnsupportedError("queries, keys and values of different heads")
    q, k, v = operands
    score, share = _softmax(program)
    weight, step = _scaled(program, given)
    bias = _inputs(program, [score], [first])
    added = _added(program, score, first, bias)
    scores, weights = _part(program, [first, *added], score), _part(program, [share], weight)
    if not is_whole(program.values, weight) or not _is_small(bounds(program.values, weight)):
        raise UnsupportedError("probabilities that are no integers of 8 bits")
    of_sums, powers = _in_powers_of_two(_of_sums(scores, q.scale, k.scale, EXACT))
    result = _part(program, [second], _before_merging(program))
    if result.outputs[0].dtype not in BYTES:
        raise UnsupportedError("a result that is not of 8 bits")
    return IntegerAttention(
        (q.position, k.position, v.position), (q.zero, k.zero, v.zero), q.heads,
        tuple(program.input_at(i) for i in bias),
        _part(program, bias, added[0]) if bias else NOTHING, of_sums, powers, weights, _share(weights),
        _of_sums(result, step, v.scale),
    )  # fmt: skip


def _arguments(value: Value) -> tuple[int, int]:
    assert isinstance(value, Contraction)
    if value.axes != (-1, -2):
        raise UnsupportedError("products of transposed matrices in an attention of integers")
    return value.args


@dataclass(frozen=True)
class _Operand:
    position: int
    heads: int
    zero: int
    scale: float


def _operand(program: BodyProgram, index: int, order: Transposed) -> _Operand:
    """Return the input behind a factor: dequantized, and split into heads before."""
    values = program.values
    number, scale = _scaled(program, index)
    zero = 0.0
    match values[number]:
        case Apply(op=scalar.sub, args=(minuend, subtrahend)):
            known = _number(program, subtrahend)
            if known is None:
                raise UnsupportedError("a zero point that is no constant")
            number, zero = minuend, known
    match values[number]:
        case Apply(op=scalar.cast, args=(moved,)) if values[moved].dtype in BYTES:
            transposed = values[moved]
        case _:
            raise UnsupportedError("factors of an attention that are not dequantized")
    match transposed:
        case Move(how=how, args=(reshaped,)) if how == order:
            match values[reshaped]:
                case Move(how=Reshaped(target=(0, 0, int(heads), _), zero_copies=True), args=(source,)) if heads > 0:
                    if isinstance(given := values[source], Input):
                        return _Operand(given.index, heads, int(zero), scale)
    raise UnsupportedError("heads of integers that take another way than Reshape and Transpose")


def _scaled(program: BodyProgram, index: int) -> tuple[int, float]:
    """Return the value and the constant scale of a dequantized factor, which a model of 16 bits rounds."""
    value = program.values[index]
    if isinstance(value, Apply) and value.op == scalar.cast and value.dtype in SIXTEEN_BITS:
        value = program.values[value.args[0]]
    match value:
        case Apply(op=scalar.mul, args=(number, scale)) if (known := _number(program, scale)) is not None:
            return number, known
    raise UnsupportedError("factors of an attention without a constant scale")


def _number(program: BodyProgram, index: int) -> float | None:
    """Return the number of a constant, also of one that is converted."""
    value = program.values[index]
    if isinstance(value, Apply) and value.op == scalar.cast:
        value = program.values[value.args[0]]
    return float(value.value) if isinstance(value, Constant) else None


def _softmax(program: BodyProgram) -> tuple[int, int]:
    """Return the scores and the probabilities: a softmax over the keys.

    Equal values of a program are one value, so the construction made here finds the existing one.
    """
    first = next((r for i in program.reductions() if (r := program.values[i])), None)
    arg = getattr(first, "arg", None)
    if arg is None:
        raise UnsupportedError("two products without a softmax between them")
    for onward in (False, True):
        builder = Builder(list(program.values), {v: i for i, v in enumerate(program.values)})
        share = softmax(Term(builder, arg), partial(reduced, axes=(-1,), onward=onward)).index
        if share < len(program.values):
            return arg, share
    raise UnsupportedError("reductions that are no softmax over the keys")


def _added(program: BodyProgram, score: int, first: int, bias: list[int]) -> list[int]:
    """Return the value that is added to the scores, which is computed from a bias alone; none without a bias."""
    if len(bias) > 1:
        raise UnsupportedError("several biases beside scores of integers")
    inner = program.reached([score], [first, *bias])
    of_sums = {i for i in inner if first in program.reached([i], [first])}
    of_bias = {i for i in inner - of_sums if set(bias) & program.reached([i], bias)}
    added = {a for i in of_sums - {first} for a in arguments(program.values[i]) if a in of_bias}
    if len(added) != len(bias):
        raise UnsupportedError("a bias that is added in several places")
    return [*added]


def _inputs(program: BodyProgram, targets: list[int], ends: list[int]) -> list[int]:
    return [i for i in sorted(program.reached(targets, ends)) if isinstance(program.values[i], Input)]


def _part(program: BodyProgram, starts: list[int], index: int) -> BodyProgram:
    """Return the scalar program from some values to another one."""
    inner = program.reached([index], starts) - set(starts)
    if not all(isinstance(program.values[i], Apply | Constant) for i in inner):
        raise UnsupportedError("more than scalar operations between the products of an attention of integers")
    return between(program, starts, [Output(index, program.values[index].dtype)])


def _is_small(limits: tuple[float, float] | None) -> bool:
    return limits is not None and max(map(abs, limits)) <= EXACT_HALF


def _before_merging(program: BodyProgram) -> int:
    """Return the result [batch, heads, sequence, size] that a Transpose and a Reshape merge to the output."""
    match program.values[program.outputs[0].value]:
        case Move(how=Reshaped(target=(0, 0, _), zero_copies=True), args=(index,)):
            match program.values[index]:
                case Move(how=how, args=(source,)) if how == BY_HEADS:
                    return source
    raise UnsupportedError("a result of integers that takes another way than Transpose and Reshape")


def _of_sums(part: BodyProgram, left: float, right: float, greatest: float = math.inf) -> BodyProgram:
    """Return the program with the product of both scales on its first input, which becomes a sum of integers.

    Sums up to `greatest` that are rounded to steps of a scale at once are multiplied once, as by QLinearMatMul.
    """
    scale = float(np.float32(left) * np.float32(right))
    builder, index_of = Builder(), dict[int, int]()
    sums = builder.term(Input(0, TensorProto.FLOAT))
    for index, value in enumerate(part.values):
        slope = _slope(part, value, scale)
        if isinstance(value, Input) and value.index == 0:
            term = as_term(sums * scale).cast(value.dtype)
        elif slope is not None and isinstance(value, Apply) and abs(slope) * greatest < ROUNDED:
            term = builder.apply(scalar.line, sums, slope, 0.0, *(Term(builder, index_of[a]) for a in value.args[2:]))
        else:
            term = builder.term(with_arguments(value, index_of))
        index_of[index] = term.index
    outputs = tuple(Output(index_of[o.value], o.dtype) for o in part.outputs)
    return BodyProgram(tuple(builder.values), outputs, (TensorProto.FLOAT, *part.inputs[1:]))


def _slope(part: BodyProgram, value: Value, scale: float) -> float | None:
    """Return by what the first input is multiplied, if a value is its steps of a constant scale; None of others."""
    if not isinstance(value, Apply) or value.op != scalar.steps:
        return None
    of, step = part.values[value.args[0]], _number(part, value.args[1])
    return scale / step if step and of == Input(0, TensorProto.FLOAT) else None


def _in_powers_of_two(scores: BodyProgram) -> tuple[BodyProgram, bool]:
    """Return scores that are steps of a scale in units of log2(e), and whether they are."""
    index = scores.outputs[0].value
    match scores.values[index]:
        case Apply(op=scalar.mul, args=(number, scale), dtype=TensorProto.FLOAT) as product if (
            step := _number(scores, scale)
        ) is not None and bounds(scores.values, number) is not None:
            values = [*scores.values, Constant(step * math.log2(math.e), TensorProto.FLOAT, ())]
            values.append(replace(product, args=(number, len(values) - 1)))
            return replace(scores, values=tuple(values), outputs=(Output(len(values) - 1, TensorProto.FLOAT),)), True
    return scores, False


def _share(weights: BodyProgram) -> float | None:
    """Return the steps of a probability of 1, if weights are steps of a scale, and these within bounds."""
    match weights.values[weights.outputs[0].value]:
        case Apply(op=scalar.steps, args=(share, scale, low, high)) if weights.values[share] == Input(
            0, TensorProto.FLOAT
        ):
            step, least, most = (_number(weights, a) for a in (scale, low, high))
            if step and step > 0 and least is not None and most is not None and least <= 0 and 1 / step < most + 0.25:
                return 1 / step
    return None
