"""An attention with concrete sizes, and source generation shared by its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Pointer
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import DEVICE, MMA_SYNC, KernelSource, constants, generated, identifier, template
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.isa import isa
from onnxfuse.cuda.isa.factors import FactorType, Rounding
from onnxfuse.cuda.isa.sm_80 import SM_80
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.templates.attention.body import AttentionBody, AttentionOperand, parse_op
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.element_types import DisagreeingError, UnsupportedError
from onnxfuse.symbolic.strides import Shape

LARGEST_SIZE = 256
"""Maximum elements per head: more accumulators would not fit the registers."""
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class AttentionProblem:
    """An attention with concrete sizes."""

    op: FusedOp
    parts: AttentionBody
    batch: int
    queries: int
    keys: int
    size: int
    """Elements per head."""
    past: int
    """Keys in the first of two inputs; all keys if there is one."""
    bias: Shape | None
    """Strides of the bias along batch, heads, queries and keys, 0 = broadcast; of two the one per query, if any."""
    also: Shape | None
    """Strides of the second bias."""
    biases: tuple[int, ...]
    """Their indices among the op's inputs, in this order."""
    windows: int
    """Number of consecutive batches with a bias of their own, repeated cyclically; 0 = the bias is that of the
    batch."""
    output_shapes: tuple[Shape, ...]

    @property
    def padded(self) -> int:
        """Elements of a head's row in shared memory: a multiple of the product step."""
        at_once = isa.TERMS_BYTES // self.parts.element_bytes
        return -(-self.size // at_once) * at_once

    @property
    def leaves_extremes(self) -> bool:
        """Whether the op asks for the extremes of the result, which the kernels for any GPU leave of float32."""
        return self.op.extremes_of == self.parts.y.position and self.parts.factors.left == TensorProto.FLOAT

    @property
    def is_bias_by_query(self) -> bool:
        """Whether there is a bias per query; else there is at most one per key."""
        return self.bias is not None and bool(self.bias[2] != 0)


def work(op: FusedOp, input_shapes: tuple[Shape, ...]) -> AttentionProblem:
    """Return the attention on inputs of these shapes; raises `UnsupportedError` if the kernels do not support them."""
    parts = parse_op(op)
    batch, queries, size = _sizes(parts.q, parts.q.position, parts.heads, input_shapes)
    k, v = ([_sizes(o, p, parts.heads, input_shapes) for p in o.positions] for o in (parts.k, parts.v))
    if k != v or any((other[0], other[2]) != (batch, size) for other in k):
        raise UnsupportedError("queries, keys and values whose batch, sequence or head size differ")
    past, keys = k[0][1], sum(n for _, n, _ in k)
    if (reason := wrong_size(parts, size)) is not None:
        raise UnsupportedError(reason)
    if parts.causal and queries != keys:
        raise UnsupportedError("a causal mask over other keys than those of the queries")
    full, windows = (batch, parts.heads, queries, keys), 0
    operands = list[tuple[int, Shape]]()
    for position in parts.biases:
        shape = input_shapes[position]
        if parts.windows:
            if len(shape) != 5 or shape[0] != 1 or not shape[1] or batch % shape[1]:
                raise UnsupportedError(f"a bias of shape {list(shape)} for the windows of a batch of {batch}")
            shape, windows = shape[1:], shape[1]
            full = (windows, *full[1:])
        pairs = zip(strides.padded(shape, 4), full, strict=True) if len(shape) <= 4 else ()
        wrong = [(n, m) for n, m in pairs if n not in (1, m)]
        if len(shape) > 4 or wrong:
            message = f"a bias of shape {list(shape)} beside scores of shape {list(full)}"
            never = next(((n, m) for n, m in wrong if m != 1), None)
            raise UnsupportedError(message) if never is None else DisagreeingError(message, *never)
        operands.append((position, strides.strides_in(shape, full)))
    if len(operands) == 2 and bool(operands[0][1][2] == 0):
        operands.reverse()
    biases, (bias, also) = tuple(i for i, _ in operands), (*(s for _, s in operands), None, None)[:2]
    wide = (batch, parts.heads, queries, size)
    flat: Shape = (batch, queries, parts.heads * size)
    if parts.target is not None:
        flat = _reshaped((batch, queries, parts.heads, size), parts.target)
    shapes = [wide if parts.y.heads_first else flat] * len(op.outputs)
    for operand in (parts.k, parts.v):
        if operand.cache is not None:
            axis, of_past = 2 if operand.heads_first else 1, input_shapes[operand.position]
            shapes[operand.cache.output] = (*of_past[:axis], keys, *of_past[axis + 1 :])
    return AttentionProblem(op, parts, batch, queries, keys, size, past, bias, also, biases, windows, tuple(shapes))


def wrong_size(parts: AttentionBody, size: int) -> str | None:
    """Return why no kernel supports heads of so many elements; None if one does."""
    multiple = 16 if parts.to_tf32 or parts.integers is not None else 8
    if size % multiple or not multiple <= size <= LARGEST_SIZE:
        return f"heads of {size} elements, expected a multiple of {multiple} up to {LARGEST_SIZE}"
    return None


def refused_factors(op: FusedOp, factors: FactorType, arch: Arch) -> str | None:
    """Return why no kernel multiplies such factors on this GPU; None if one does."""
    if arch.isa.mma(factors) is None:
        return f"the kernel needs {SM_80.name}, this is {arch.name}"
    if factors.rounding is Rounding.TF32 and not op.tf32:
        return "the kernel rounds float32 to TF32, and use_tf32 is 0"
    return None


def _reshaped(shape: Shape, target: tuple[int, ...]) -> Shape:
    """Return the result shape of a Reshape: a 0 copies an extent, a -1 is inferred."""
    if any(n == 0 and axis >= len(shape) for axis, n in enumerate(target)) or target.count(-1) > 1:
        raise UnsupportedError(f"a result of shape {list(shape)} as {list(target)}")
    extents = [shape[axis] if n == 0 else n for axis, n in enumerate(target)]
    rest, elements = math.prod(n for n in extents if n != -1), math.prod(shape)
    shape_out = tuple(n if n != -1 else elements // max(rest, 1) for n in extents)
    if math.prod(shape_out) != elements or (-1 in extents and not rest):
        raise UnsupportedError(f"a result of shape {list(shape)} as {list(target)}")
    return shape_out


def _sizes(
    operand: AttentionOperand, position: int, heads: int, input_shapes: tuple[Shape, ...]
) -> tuple[int, int, int]:
    """Return batch, sequence and head size of the input with this index."""
    shape = input_shapes[position]
    if len(shape) not in ((4,) if operand.heads_first else (3, 4)):
        raise UnsupportedError(f"an operand of rank {len(shape)}")
    heads //= operand.group
    if len(shape) == 4:
        many, sequence = (shape[1], shape[2]) if operand.heads_first else (shape[2], shape[1])
        if many != heads:
            raise UnsupportedError(f"{many} heads, expected {heads}")
        return shape[0], sequence, shape[3]
    if shape[2] % heads:
        raise UnsupportedError(f"{shape[2]} columns for {heads} heads")
    return shape[0], shape[1], shape[2] // heads


# ---- source generation


def common_constants(mine: AttentionProblem, facts: dict[str, bool | int]) -> str:
    """Return the constants shared by all kernels: types, scale, flags, row strides; and `facts`."""
    parts, kinds = mine.parts, ("NONE", "PER_KEY", "PER_PAIR")
    both = {"CAPPED": False, **facts, "HEADS": parts.heads, "SIZE": mine.size, "CAUSAL": parts.causal,
            "SAFE": parts.safe, "ALSO": mine.also is not None}  # fmt: skip
    for name, operand in named(parts):
        both[f"{name}_GROUP"] = operand.group
        both[f"{name}_ROW"] = mine.size * (1 if operand.heads_first else parts.heads // operand.group)
    scale = parts.scale or mine.size**-0.5
    return (
        f"using E = {parts.factors.stored};\n"
        + _memory(mine)
        + constants(both)
        + f"constexpr float PLAIN_SCALE = {element_types.literal(scale, TensorProto.FLOAT)};\n"
        + f"constexpr float SCALE = {element_types.literal(scale * LOG2_E, TensorProto.FLOAT)};\n"
        + f"enum Bias {{ {', '.join(kinds)} }};\n"
        + f"constexpr Bias BIAS = {kinds[0 if mine.bias is None else 2 if mine.is_bias_by_query else 1]};\n"
    )


def _memory(mine: AttentionProblem) -> str:
    """Return the types of operands in memory, and the zero points of integers."""
    parts, inputs = mine.parts, mine.op.inputs
    types = [inputs[operand.position] for operand in (parts.q, parts.k, parts.v)] + [mine.op.outputs[parts.y.position]]
    types.append(inputs[mine.biases[0]] if mine.biases else parts.dtype)
    stored = (element_types.TYPES[t].stored for t in types)
    fields = " ".join(f"using {name} = {kind};" for name, kind in zip((*"QKVY", "Bias"), stored, strict=True))
    zeros = (0, 0, 0) if parts.integers is None else parts.integers.zeros
    return f"struct Memory {{ {fields} }};\n" + constants(
        {"QUANTIZED": parts.integers is not None, "POWERS": parts.integers is not None and parts.integers.powers_of_two}
        | {f"{name}_ZERO": zero for name, zero in zip("QKV", zeros, strict=True)}
    )


def _programs(parts: AttentionBody) -> str:
    """Return the functions of a bias, of a sum of the first product with it, of a weight and the share of its row, and
    of a sum of the second product."""
    if parts.integers is None:
        return (
            "DEVICE float added_of(float bias) { return bias; }\n"
            "DEVICE float score_of(float sum, float added) { return sum * SCORE_UNIT + added; }\n"
            "DEVICE float weight_of(float weight, float share) { return weight * share; }\n"
            "DEVICE float result_of(float sum) { return sum; }\n"
        )
    work = parts.integers
    return "".join(
        _function(name, program, arguments)
        for name, program, arguments in (
            ("added", work.added, ("bias",)), ("score", work.scores, ("sum", "added")),
            ("step", work.weights, ("share",)), ("result", work.result, ("sum",)),
        )
    ) + f"DEVICE float weight_of(float weight, float share) {{ return {_weight(work.share)}; }}\n"  # fmt: skip


def _weight(share: float | None) -> str:
    """Return a weight by its share, rounded: by one multiplication if that is all."""
    if share is None:
        return "step_of(weight * share)"
    steps = element_types.literal(share, TensorProto.FLOAT)
    return f"math::line_inside(weight, share * {steps}, 0, 0, 0)"


def _function(name: str, program: BodyProgram, arguments: tuple[str, ...]) -> str:
    """Return a scalar program as a function of its inputs."""
    types = (element_types.computed(t) for t in (*program.inputs, *[TensorProto.FLOAT] * len(arguments)))
    declared = ", ".join(f"{t} {a}" for t, a in zip(types, arguments, strict=False))
    passed = ", ".join(arguments[i] for i in expressions.live_inputs(program))
    result = element_types.computed(program.outputs[0].dtype)
    return (
        f"namespace {name} {{\n{expressions.source(program)}}}\n"
        f"DEVICE {result} {name}_of({declared}) {{ return {name}::apply({{{passed}}}).b0; }}\n"
    )


def named(parts: AttentionBody) -> tuple[tuple[str, AttentionOperand], ...]:
    """Return queries, keys, values and result by their names in the source."""
    return (("Q", parts.q), ("K", parts.k), ("V", parts.v), ("Y", parts.y))


def pointers(mine: AttentionProblem) -> tuple[Pointer, ...]:
    """Return the fields of `Pointers`."""
    parts = mine.parts
    bias, also = (*(f"in{i}" for i in mine.biases), "nullptr", "nullptr")[:2]
    inputs = (
        Pointer(f"const Memory::{name}", name.lower(), f"in{operand.position}") for name, operand in named(parts)[:3]
    )
    return (
        *inputs,
        Pointer("const Memory::Bias", "bias", bias),
        Pointer("const Memory::Bias", "also", also),
        Pointer("Memory::Y", "y", f"out{parts.y.position}"),
    )


LENGTHS = (
    "queries", "keys", "blocks", "windows", "bias_batch", "bias_head", "bias_query", "bias_key", "also_batch",
    "also_head", "also_query", "also_key",
)  # fmt: skip
"""Fields of the tiled kernel's `Parameters`: queries and keys, blocks of a head, windows that have a bias each, and the
strides of both biases in elements."""


def lengths(mine: AttentionProblem, blocks: int) -> tuple[int, ...]:
    """Return the values of `LENGTHS`; `blocks`: of a head."""
    none = (0, 0, 0, 0)
    return (mine.queries, mine.keys, blocks, mine.windows, *(mine.bias or none), *(mine.also or none))


def tiled_kernel(
    mine: AttentionProblem, facts: dict[str, bool | int], parameters: str, min_blocks: int
) -> KernelSource:
    """Return the kernel of tiled.cu with these constants and fields of `Parameters`."""
    entry, quantized = identifier(mine.op.name), mine.parts.integers is not None
    fields = (*pointers(mine), access.scratch(used=mine.leaves_extremes))
    facts = {**facts, "EXTREMES": mine.leaves_extremes}
    first = {f"{name}_HEADS_FIRST": operand.heads_first for name, operand in named(mine.parts)}
    text = common_constants(mine, {**facts, "WINDOWED": mine.parts.windows} | first)
    return KernelSource(
        entry,
        (
            template(DEVICE),
            *(template(f) for f in (("include/math.cuh",) if quantized else ())),
            template("include/memory.cuh"),
            template("include/extremes.cuh"),
            *(template(f) for f in MMA_SYNC),
            generated(entry, text + f"struct Parameters {{ {parameters} }};\n" + access.pointers(fields)),
            template("attention/rows.cuh"),
            generated(entry, _programs(mine.parts)),
            template("attention/steps.cuh"),
            template("attention/tiled.cu"),
            generated(entry, entry_point(entry, "attend", mine.op, fields, min_blocks)),
        ),
    )
