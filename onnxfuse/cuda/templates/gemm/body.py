"""Parse a body of the gemm template: its matrix products, prologue and epilogues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.images import image_problem
from onnxfuse.codegen.program.movement import Concatenated, Reshaped, Sliced, SliceRange, Transposed
from onnxfuse.codegen.program.parameters import Number, parametric
from onnxfuse.codegen.program.program import (
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Output,
    SlidingWindow,
    Unpacked,
    Value,
)
from onnxfuse.codegen.program.rounding import rounded_once
from onnxfuse.codegen.program.slices import between, canonical, depth_first, operands_last
from onnxfuse.codegen.program.window import Sliding
from onnxfuse.cuda.isa.factors import BFLOAT16, E4M3, FLOAT16, INTEGERS, TF32, FactorType, Rounding, factors_of
from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES
from onnxfuse.cuda.templates.gemm.output_layout import Moves
from onnxfuse.graph.channels import to_first
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.packing import Packing
from onnxfuse.symbolic.strides import Shape

FACTORS = (FLOAT16, BFLOAT16, TF32, E4M3, *INTEGERS)
"""Types of factors; for float32 the rounded one, unless the op asks for all digits."""
STORED_BYTES = (1, 2, 4)
"""Element sizes of outputs."""
LEAST_STAGES = 3
"""Minimum stages of a ring: one multiplied, one free, one in flight."""
PADDING = 8
"""Padding between the rows of sums in shared memory, in columns."""


@dataclass(frozen=True)
class PackedWeight:
    """A right factor in few bits: what lies beside its numbers."""

    packing: Packing
    scales: int
    """Index of the scales among the op's inputs."""
    zeros: int | None
    """Index of the zero points; None: all are the middle of the numbers."""
    zeros_packed: bool
    """Whether the zero points are packed like the numbers, rather than of the factors' type."""


@dataclass(frozen=True)
class Product:
    """A matrix product of two inputs of the op."""

    a: int
    """Index of the left factor among the op's inputs; the number of inputs if a prologue computes it."""
    b: int
    """Index of the right factor."""
    transposed: bool
    """Whether the right factor is stored [n, k]."""
    a_transposed: bool = False
    """Whether the left factor is stored [k, m]."""
    terms: int | None = None
    """For a left factor that is a column slice: the number of leading elements per row that are its terms."""
    sliding: Sliding | None = None
    """For implicit GEMM: the window over images [batch, height, width, channels], filters [n, height, width, channels];
    for volumes with the depth before the height."""
    groups: int = 1
    """Channel groups, each with filters of its own."""
    packed: PackedWeight | None = None
    """How the right factor is stored in few bits; None: as elements of the factors' type."""

    @property
    def weights(self) -> tuple[int, ...]:
        """Indices of the inputs that hold the right factor."""
        packed = self.packed
        beside = () if packed is None else tuple(i for i in (packed.scales, packed.zeros) if i is not None)
        return (self.b, *beside)

    def right(self, input_shapes: tuple[Shape, ...]) -> Shape:
        """Return the shape of the right factor for these shapes of the op's inputs."""
        stored = input_shapes[self.b]
        return stored if self.packed is None else (stored[0], self.packed.packing.terms)


JOINED = -1
"""In place of an input's index: a concatenation of several matrices along the terms."""


@dataclass(frozen=True)
class Prologue:
    """The producer of the left factor: the pointwise part of the body before the products, as a program."""

    inputs: tuple[int, ...]
    """Indices of its inputs among the op's inputs; one may be JOINED."""
    program: BodyProgram
    joined: tuple[int, ...] = ()
    """Indices of the matrices concatenated to one of its inputs; each is read in place."""
    axis: int = -1
    """Axis of the concatenation."""
    terms: tuple[int, ...] = ()
    """Terms of each; empty if shapes are unknown."""
    kinds: tuple[str, ...] = ()
    """Layout of each relative to the left factor, as in `operand_kind`; empty if shapes are unknown."""
    group: int = 0
    """Rows per group, for operands with one vector of terms per group of rows."""
    in_place: int | None = None
    """The input that is loaded to the location of the left factor."""

    @property
    def cells(self) -> tuple[int, ...]:
        """The inputs of the left factor's shape that it reads, the in-place one first."""
        live = expressions.live_inputs(self.program)
        cells = (self.inputs[i] for i in live if self.kinds[i] == "cell")
        return tuple(sorted(cells, key=lambda i: i != self.in_place))

    @property
    def fetched(self) -> tuple[int, ...]:
        """Those of them that TMA can load, without the concatenated ones."""
        return tuple(i for i in self.cells if i != JOINED)

    @property
    def cell_types(self) -> tuple[int, ...]:
        """Their element types."""
        return tuple(self.program.inputs[self.inputs.index(i)] for i in self.cells)

    @property
    def extra_bytes(self) -> int:
        """Bytes per element of the left factor of those that are not in place."""
        read = zip(self.cells, self.cell_types, strict=True)
        return sum(element_types.TYPES[t].size for i, t in read if i != self.in_place)

    def shape(self, input_shapes: tuple[Shape, ...]) -> Shape:
        """Return the shape of the left factor for these shapes of the op's inputs."""
        shapes = self.program.shapes(self.inputs_of(input_shapes))
        return shapes[self.program.outputs[0].value]

    def inputs_of(self, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Return the shapes of its inputs for these shapes of the op's inputs."""
        return tuple(self._side_by_side(input_shapes) if i == JOINED else input_shapes[i] for i in self.inputs)

    def _side_by_side(self, input_shapes: tuple[Shape, ...]) -> Shape:
        shapes = [input_shapes[i] for i in self.joined]
        rank = len(shapes[0])
        if rank < 2 or self.axis not in (-1, rank - 1) or any(s[:-1] != shapes[0][:-1] for s in shapes):
            raise UnsupportedError(f"matrices of {' and '.join(map(str, map(list, shapes)))} side by side")
        return (*shapes[0][:-1], sum(s[-1] for s in shapes))


@dataclass(frozen=True)
class Epilogue:
    """The consumer of some products: the pointwise remainder of the body, as a program."""

    products: tuple[int, ...]
    """Indices of the products that it reads, which are its first inputs."""
    operands: tuple[int, ...]
    """Indices of its other inputs among the op's inputs."""
    outputs: tuple[int, ...]
    """Indices of its outputs among the op's outputs."""
    program: BodyProgram
    parameters: tuple[Number, ...] = ()
    """The numbers of its last inputs, in which it differs from the others."""
    moves: Moves = ()
    """Reshape and transposition of its only output, applied by the store."""


@dataclass(frozen=True)
class Anatomy:
    """A parsed body: products that share the left factor, with prologue and epilogues."""

    products: tuple[Product, ...]
    epilogues: tuple[Epilogue, ...]
    """One that reads every product, or one for each product: equal except for their operands."""
    factors: FactorType
    prologue: Prologue | None = None
    """Producer of the left factor, if that is not an input of the op."""

    @property
    def dtype(self) -> int:
        """Element type of the left factor."""
        return self.factors.left

    @property
    def packed(self) -> PackedWeight | None:
        """How the right factors are stored in few bits, by the first one; None if they are not."""
        return self.products[0].packed

    @property
    def to_tf32(self) -> bool:
        """Whether the factors are rounded to TF32 before the tensor cores."""
        return self.factors.rounding is Rounding.TF32

    @property
    def precise(self) -> bool:
        """Whether float32 factors are not rounded: each is split into a sum of two TF32 numbers."""
        return self.factors.rounding is Rounding.SPLIT

    @property
    def terms(self) -> int:
        """Terms per row of a factor's tile, the swizzle width of TMA."""
        return SWIZZLED_BYTES // self.factors.bytes


def anatomy(op: FusedOp) -> Anatomy:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _anatomy(read.program(op))


@lru_cache(maxsize=1024)
def _anatomy(program: BodyProgram) -> Anatomy:
    heads = tuple(_head(program, i) for i in sorted(program.live()) if isinstance(program.values[i], Contraction))
    products = tuple(h.product for h in heads)
    if not products:
        raise UnsupportedError("no matrix product in the body")
    if len({h.left for h in heads}) > 1:
        raise UnsupportedError("products with different left factors")
    if len({p.transposed for p in products}) > 1:
        raise UnsupportedError("products with right factors of both layouts")
    if len({p.packed and (p.packed.packing, p.packed.zeros is None, p.packed.zeros_packed) for p in products}) > 1:
        raise UnsupportedError("products by weights that are stored in different numbers of bits")
    if len({(p.a_transposed, p.terms) for p in products}) > 1:
        raise UnsupportedError("products with left factors of both layouts")
    if products[0].a_transposed and products[0].terms is not None:
        raise UnsupportedError("a left factor [k, m] of which a part is read")
    if len({(p.sliding, p.groups) for p in products}) > 1:
        raise UnsupportedError("convolutions whose windows slide in different ways")
    factors = _factors(program, heads)
    for output in program.outputs:
        if element_types.TYPES[output.dtype].size not in STORED_BYTES or output.dtype == TensorProto.BOOL:
            raise UnsupportedError(f"a product's output of type {element_types.name(output.dtype)}")
    prologue = _prologue(program, heads[0])
    epilogues = _epilogues(program, heads)
    if len({canonical(e.program) for e in epilogues}) > 1:
        # One that all read, as a zero point, stands before some operands of the first body and behind those of others.
        epilogues = _epilogues(program, heads, by_use=True)
    if len({canonical(e.program) for e in epilogues}) > 1:
        epilogues = _with_parameters(epilogues)
    return Anatomy(products, epilogues, factors, prologue)


def _factors(program: BodyProgram, heads: Sequence[_Head]) -> FactorType:
    """Return the type of the factors, which is that of all products."""
    pairs = {(program.values[h.left].dtype, program.values[h.right].dtype) for h in heads}
    left, right = pairs.pop()
    factors, names = factors_of(left, right), " and ".join(dict.fromkeys(map(element_types.name, (left, right))))
    if factors not in FACTORS or pairs:
        raise UnsupportedError(f"products of {names}{', and others' * bool(pairs)}")
    product = heads[0].product
    if factors.needs_k_major and (product.a_transposed or not product.transposed or product.terms is not None):
        raise UnsupportedError(f"products of {names} whose terms are not adjacent in memory")
    if factors.needs_k_major and not isinstance(program.values[heads[0].left], Input):
        raise UnsupportedError(f"a left factor of {names} that is computed in the body")
    return factors


@dataclass(frozen=True)
class _Head:
    """A contraction of the body."""

    product: Product
    left: int
    """Index of the value that is the left factor; for images before their Transposes."""
    right: int
    """Index of the value that is the right factor, likewise."""
    result: int
    """Index of the result."""


def _head(program: BodyProgram, index: int) -> _Head:
    contract = program.values[index]
    assert isinstance(contract, Contraction)
    left, right = contract.args
    if isinstance(program.values[left], SlidingWindow):
        return _convolution(program, index)
    b_transposed, move = contract.axes[1] == -1, program.values[right]
    if isinstance(move, Move) and move.how == Transposed((1, 0)):
        right, b_transposed = move.args[0], not b_transposed
    left, terms = _first_terms(program, left)
    a = program.values[left]
    b, packed = _stored_weight(program, right)
    a_transposed = contract.axes[0] == -2
    if not isinstance(a, Input) and a_transposed:
        raise UnsupportedError("a left factor [k, m] that is computed in the body")
    product = Product(_position(a, program), b, b_transposed, a_transposed, terms, packed=packed)
    return _Head(product, left, right, index)


def _stored_weight(program: BodyProgram, index: int) -> tuple[int, PackedWeight | None]:
    """Return the op's input that holds a right factor, and how if it is stored in few bits."""
    match program.values[index]:
        case Input(index=number):
            return number, None
        case Unpacked(args=args) as weight if all(isinstance(program.values[a], Input) for a in args):
            number, scales, *zeros = map(program.input_at, args)
            return number, PackedWeight(weight.packing, scales, zeros[0] if zeros else None, weight.zeros_packed)
        case _:
            raise UnsupportedError("a matrix product whose right factor is computed in the body")


def _first_terms(program: BodyProgram, left: int) -> tuple[int, int | None]:
    """Return the input of which a left factor is a leading column slice, and the number of terms; itself otherwise."""
    # MatMul(Slice(w, 0, k, axis -1), x): w is stored with rows of more than k elements
    move = program.values[left]
    if isinstance(move, Move) and isinstance(move.how, Sliced) and isinstance(program.values[move.args[0]], Input):
        match move.how.cuts:
            case (SliceRange(axis=-1, start=0, end=end, step=1),) if end > 0:
                return move.args[0], end
    return left, None


def _position(left: Value, program: BodyProgram) -> int:
    """Return the index of the op's input that is the left factor; the number of inputs if none is."""
    return left.index if isinstance(left, Input) else len(program.inputs)


def _convolution(program: BodyProgram, index: int) -> _Head:
    """Return a convolution between Transposes, which therefore runs over channels-last images."""
    work = image_problem(program, index)
    assert isinstance(work.core, Contraction)
    assert work.window is not None
    assert work.w is not None
    x, w = program.values[work.x], program.values[work.w]
    packed = work.packing in (to_first(4), to_first(5))
    if not (work.images_last and packed and isinstance(x, Input) and isinstance(w, Input)):
        raise UnsupportedError("a convolution of images that do not have their channels last")
    product = Product(x.index, w.index, True, sliding=work.window.sliding, groups=work.core.groups)
    return _Head(product, work.x, work.w, work.result)


def _prologue(program: BodyProgram, head: _Head) -> Prologue | None:
    """Return the producer of the left factor that the products share; None if it is an input of the op."""
    if isinstance(program.values[head.left], Input):
        return None
    joins = [i for i in program.reached([head.left]) if _is_joined(program, i)]
    if len(joins) > 1:
        raise UnsupportedError("several matrices side by side before a matrix product")
    starts = [*joins, *_inputs(program, program.reached([head.left], joins))]
    part = rounded_once(between(program, starts, (Output(head.left, program.values[head.left].dtype),)))
    if not part.is_pointwise():
        raise UnsupportedError("a reduction, or moved data, before a matrix product")
    inputs = tuple(JOINED if i in joins else program.input_at(i) for i in starts)
    match [program.values[i] for i in joins]:
        case [Move(how=Concatenated(axis=axis), args=args)]:
            return Prologue(inputs, part, tuple(program.input_at(i) for i in args), axis)
        case _:
            return Prologue(inputs, part)


def _is_joined(program: BodyProgram, index: int) -> bool:
    """Return whether a value is a concatenation of op inputs."""
    move = program.values[index]
    return (
        isinstance(move, Move)
        and isinstance(move.how, Concatenated)
        and move.how.axis in (-1, 3)
        and all(isinstance(program.values[i], Input) for i in move.args)
    )


def _inputs(program: BodyProgram, among: Iterable[int]) -> list[int]:
    """Return the indices of the inputs of the op, in their order."""
    return sorted((i for i in among if isinstance(program.values[i], Input)), key=program.input_at)


def _epilogues(program: BodyProgram, heads: Sequence[_Head], *, by_use: bool = False) -> tuple[Epilogue, ...]:
    """Return the consumers of the products: separate ones if each output reads one product, a common one otherwise.

    Operands are in the order of the op's inputs, or `by_use` in that in which a body reads them.
    """
    results = [h.result for h in heads]
    read = [program.reached([o.value], results) for o in program.outputs]
    of = [tuple(k for k, result in enumerate(results) if result in r) for r in read]
    if any(not r for r in of):
        raise UnsupportedError("an output that reads no product")
    together = any(len(r) > 1 for r in of)
    groups = [tuple(range(len(heads)))] if together else [(k,) for k in range(len(heads))]
    bodies = []
    for group in groups:
        mine = tuple(i for i, r in enumerate(of) if set(r) <= set(group))
        if not mine:
            raise UnsupportedError("a product that no output reads")
        bodies.append(_epilogue(program, heads, group, mine, by_use=by_use))
    return tuple(bodies)


def _with_parameters(epilogues: Sequence[Epilogue]) -> tuple[Epilogue, ...]:
    """Return epilogues that differ in constants alone with one program, whose parameters these are."""
    one = parametric([e.program for e in epilogues])
    if one is None:
        raise UnsupportedError("products side by side with different bodies")
    return tuple(
        replace(e, program=one.program, parameters=numbers) for e, numbers in zip(epilogues, one.numbers, strict=True)
    )


def _epilogue(
    program: BodyProgram, heads: Sequence[_Head], group: tuple[int, ...], mine: tuple[int, ...], *, by_use: bool
) -> Epilogue:
    results = [heads[k].result for k in group]
    written = [_written(program, program.outputs[i], results) for i in mine]
    if len(mine) > 1 and any(moves for _, moves in written):
        raise UnsupportedError("several outputs of a product, one of them transposed")
    reached = program.reached((o.value for o, _ in written), results)
    before = program.reached(h.left for h in heads)
    if any(not isinstance(program.values[i], Input | Constant) for i in reached & before):
        raise UnsupportedError("a value before a matrix product that is read after it, too")
    operands = _inputs(program, reached)
    if by_use:
        used = depth_first(program, [o.value for o, _ in written])
        operands = sorted(operands, key=used.index)
    part = operands_last(between(program, (*results, *operands), tuple(o for o, _ in written)), len(results))
    if part.reductions():
        raise UnsupportedError("a reduction after a matrix product")
    if not part.is_pointwise():
        raise UnsupportedError("moved data after a matrix product, other than to where an output is written")
    return Epilogue(group, tuple(program.input_at(i) for i in operands), mine, part, moves=written[0][1])


def _written(program: BodyProgram, output: Output, results: Sequence[int]) -> tuple[Output, Moves]:
    """Return the value that the kernel computes for an output, and the reshape and transposition after it."""
    moves: list[Reshaped | Transposed] = []
    index = output.value
    while index not in results and isinstance(move := program.values[index], Move):
        if not isinstance(move.how, Reshaped | Transposed):
            break
        moves.insert(0, move.how)
        index = move.args[0]
    return replace(output, value=index), tuple(moves)
