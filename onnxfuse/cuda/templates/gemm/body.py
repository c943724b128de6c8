"""A body of the gemm template taken apart: its matrix products, and the pointwise rest that reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.images import image_problem
from onnxfuse.codegen.program.movement import Concatenated, Reshaped, Sliced, SliceRange, Transposed
from onnxfuse.codegen.program.program import Constant, Contract, Input, Move, Output, Program, Value, Window
from onnxfuse.codegen.program.rounding import rounded_once
from onnxfuse.codegen.program.slices import between, canonical, operands_last
from onnxfuse.codegen.program.window import Sliding
from onnxfuse.cuda.templates.gemm.output_layout import Moves
from onnxfuse.graph.channels import to_first
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

TYPES: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16", TensorProto.FLOAT: "tf32"}
"""Element types that the tensor cores multiply here, with their names in PTX. Of float32 they read TF32."""
STORED_BYTES = (2, 4)
"""Sizes of an output's elements that the copy engine writes."""
ROW_BYTES = 128


@dataclass(frozen=True)
class Product:
    """A matrix product of two inputs of the op."""

    a: int
    """Position of the left factor among the op's inputs; the number of them where the prologue computes it."""
    b: int
    """Position of the right one."""
    transposed: bool
    """Whether the right factor is [n, k]."""
    turned: bool = False
    """Whether the left one is [k, m]."""
    terms: int | None = None
    """Of a left factor whose rows hold more: how many of their first elements are its terms."""
    sliding: Sliding | None = None
    """Where the left factor is what a window sees: images [batch, height, width, channels], filters [n, height, width,
    channels]; of volumes with the depth before the height."""
    groups: int = 1
    """Of the images' channels, each with filters of its own."""


JOINED = -1
"""In place of the position of an input: matrices of the op whose terms lie side by side."""


@dataclass(frozen=True)
class Prologue:
    """What computes the left factor: the pointwise part of the body before the products, as a program of its own."""

    inputs: tuple[int, ...]
    """Positions of its inputs among the op's inputs; one may be JOINED."""
    program: Program
    joined: tuple[int, ...] = ()
    """Positions of the matrices whose terms, side by side, are one of its inputs; each is read where it lies."""
    axis: int = -1
    """Along which they lie side by side."""
    terms: tuple[int, ...] = ()
    """Of each of them; empty where no shapes are known yet."""
    kinds: tuple[str, ...] = ()
    """How each of them lies beside the left factor, as `operand_kind` says; empty where no shapes are known yet."""
    group: int = 0
    """Of those that hold a vector of terms for each group of rows: how many rows a group has."""
    in_place: int | None = None
    """The one of the op's inputs that is fetched to where the left factor will lie."""

    @property
    def cells(self) -> tuple[int, ...]:
        """The op's inputs of the left factor's shape that it reads, the one in place first."""
        live = expressions.live_inputs(self.program)
        cells = (self.inputs[i] for i in live if self.kinds[i] == "cell")
        return tuple(sorted(cells, key=lambda i: i != self.in_place))

    @property
    def fetched(self) -> tuple[int, ...]:
        """Those of them that the copy engine can bring: not what lies side by side."""
        return tuple(i for i in self.cells if i != JOINED)

    @property
    def cell_types(self) -> tuple[int, ...]:
        """Their element types."""
        return tuple(self.program.inputs[self.inputs.index(i)] for i in self.cells)

    @property
    def bytes_beside(self) -> int:
        """The bytes of theirs for an element of the left factor that do not lie in its place."""
        read = zip(self.cells, self.cell_types, strict=True)
        return sum(element_types.TYPES[t].size for i, t in read if i != self.in_place)

    def shape(self, input_shapes: tuple[Shape, ...]) -> Shape:
        """Return the shape of the left factor for these shapes of the op's inputs."""
        shapes = self.program.shapes(self.given(input_shapes))
        return shapes[self.program.outputs[0].value]

    def given(self, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
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
    """What is computed from some of the products: the pointwise rest of the body, as a program of its own."""

    products: tuple[int, ...]
    """Numbers of the products that it reads; they are its first inputs."""
    operands: tuple[int, ...]
    """Positions of its other inputs among the op's inputs."""
    outputs: tuple[int, ...]
    """Positions of its outputs among the op's outputs."""
    program: Program
    moves: Moves = ()
    """How its only output is reshaped and transposed as it is written."""


@dataclass(frozen=True)
class Anatomy:
    """A body taken apart: its products, which share the left factor, and what is made of them."""

    products: tuple[Product, ...]
    epilogues: tuple[Epilogue, ...]
    """One that reads every product, or one for each product: equal but for their operands."""
    dtype: int
    """Element type of the factors."""
    prologue: Prologue | None = None
    """What computes the left factor where it is no input of the op."""
    precise: bool = False
    """Whether the factors are float32 and keep their digits: each is the sum of two that the tensor cores multiply."""

    @property
    def to_tf32(self) -> bool:
        """Whether the factors are rounded on their way to the tensor cores."""
        return self.dtype == TensorProto.FLOAT and not self.precise

    @property
    def terms(self) -> int:
        """Terms in a row of a factor's tile, which is what the copy engine swizzles."""
        return ROW_BYTES // element_types.TYPES[self.dtype].size


def anatomy(op: FusedOp) -> Anatomy:
    """Return the body of `op` taken apart; raises `UnsupportedError` with the reason where no kernel fits it."""
    return _anatomy(read.program(op))


@lru_cache(maxsize=1024)
def _anatomy(program: Program) -> Anatomy:
    heads = tuple(_head(program, i) for i in sorted(program.live()) if isinstance(program.values[i], Contract))
    products = tuple(h.product for h in heads)
    if not products:
        raise UnsupportedError("no matrix product in the body")
    if len({h.left for h in heads}) > 1:
        raise UnsupportedError("products with different left factors")
    if len({p.transposed for p in products}) > 1:
        raise UnsupportedError("products with right factors of both layouts")
    if len({(p.turned, p.terms) for p in products}) > 1:
        raise UnsupportedError("products with left factors of both layouts")
    if products[0].turned and products[0].terms is not None:
        raise UnsupportedError("a left factor [k, m] of which a part is read")
    if len({(p.sliding, p.groups) for p in products}) > 1:
        raise UnsupportedError("convolutions whose windows slide in different ways")
    dtype = program.values[heads[0].result].dtype
    if dtype not in TYPES:
        raise UnsupportedError(f"products of {element_types.name(dtype)}")
    for output in program.outputs:
        if element_types.TYPES[output.dtype].size not in STORED_BYTES or output.dtype == TensorProto.BOOL:
            raise UnsupportedError(f"a product's output of type {element_types.name(output.dtype)}")
    prologue = _prologue(program, heads[0])
    epilogues = _epilogues(program, heads)
    if len({canonical(e.program) for e in epilogues}) > 1:
        raise UnsupportedError("products side by side with different bodies")
    return Anatomy(products, epilogues, dtype, prologue)


@dataclass(frozen=True)
class _Head:
    """A contraction of the body."""

    product: Product
    left: int
    """Index of the value that is the left factor; of images before their Transposes."""
    result: int
    """Index of the value that it gives."""


def _head(program: Program, index: int) -> _Head:
    contract = program.values[index]
    assert isinstance(contract, Contract)
    left, right = contract.args
    if isinstance(program.values[left], Window):
        return _convolution(program, index)
    turned_back, move = contract.axes[1] == -1, program.values[right]
    if isinstance(move, Move) and move.how == Transposed((1, 0)):
        right, turned_back = move.args[0], not turned_back
    left, terms = _first_terms(program, left)
    a, b = (program.values[i] for i in (left, right))
    if not isinstance(b, Input):
        raise UnsupportedError("a matrix product whose right factor is computed in the body")
    turned = contract.axes[0] == -2
    if not isinstance(a, Input) and turned:
        raise UnsupportedError("a left factor [k, m] that is computed in the body")
    return _Head(Product(_position(a, program), b.index, turned_back, turned, terms), left, index)


def _first_terms(program: Program, left: int) -> tuple[int, int | None]:
    """Return the input whose rows a left factor is the beginning of, and how many terms; itself where it is none."""
    # MatMul(Slice(w, 0, k, axis -1), x): w is stored with rows of more than k elements
    move = program.values[left]
    if isinstance(move, Move) and isinstance(move.how, Sliced) and isinstance(program.values[move.args[0]], Input):
        match move.how.cuts:
            case (SliceRange(axis=-1, start=0, end=end, step=1),) if end > 0:
                return move.args[0], end
    return left, None


def _position(left: Value, program: Program) -> int:
    """Return which input of the op the left factor is, the number of inputs where it is none."""
    return left.index if isinstance(left, Input) else len(program.inputs)


def _convolution(program: Program, index: int) -> _Head:
    """Return a convolution between transposes, which so runs over images with their channels last."""
    work = image_problem(program, index)
    assert isinstance(work.core, Contract)
    assert work.window is not None
    assert work.w is not None
    x, w = program.values[work.x], program.values[work.w]
    packed = work.packing in (to_first(4), to_first(5))
    if not (work.images_last and packed and isinstance(x, Input) and isinstance(w, Input)):
        raise UnsupportedError("a convolution of images that do not have their channels last")
    product = Product(x.index, w.index, True, sliding=work.window.sliding, groups=work.core.groups)
    return _Head(product, work.x, work.result)


def _prologue(program: Program, head: _Head) -> Prologue | None:
    """Return what computes the left factor that the products share, None where it is an input of the op."""
    if isinstance(program.values[head.left], Input):
        return None
    joins = [i for i in program.reached([head.left]) if _is_joined(program, i)]
    if len(joins) > 1:
        raise UnsupportedError("several matrices side by side before a matrix product")
    starts = [*joins, *_inputs(program, program.reached([head.left], joins))]
    made = rounded_once(between(program, starts, (Output(head.left, program.values[head.left].dtype),)))
    if not made.is_pointwise():
        raise UnsupportedError("a reduction, or moved data, before a matrix product")
    inputs = tuple(JOINED if i in joins else program.input_at(i) for i in starts)
    match [program.values[i] for i in joins]:
        case [Move(how=Concatenated(axis=axis), args=args)]:
            return Prologue(inputs, made, tuple(program.input_at(i) for i in args), axis)
        case _:
            return Prologue(inputs, made)


def _is_joined(program: Program, index: int) -> bool:
    """Return whether a value is inputs of the op side by side."""
    move = program.values[index]
    return (
        isinstance(move, Move)
        and isinstance(move.how, Concatenated)
        and move.how.axis in (-1, 3)
        and all(isinstance(program.values[i], Input) for i in move.args)
    )


def _inputs(program: Program, among: Iterable[int]) -> list[int]:
    """Return the indices of the inputs of the op, in their order."""
    return sorted((i for i in among if isinstance(program.values[i], Input)), key=program.input_at)


def _epilogues(program: Program, heads: Sequence[_Head]) -> tuple[Epilogue, ...]:
    """Return what is computed from the products: apart where each output reads one, together where it reads several."""
    results = [h.result for h in heads]
    read = [program.reached([o.value], results) for o in program.outputs]
    of = [tuple(k for k, result in enumerate(results) if result in r) for r in read]
    if any(not r for r in of):
        raise UnsupportedError("an output that reads no product")
    together = any(len(r) > 1 for r in of)
    groups = [tuple(range(len(heads)))] if together else [(k,) for k in range(len(heads))]
    found = []
    for group in groups:
        mine = tuple(i for i, r in enumerate(of) if set(r) <= set(group))
        if not mine:
            raise UnsupportedError("a product that no output reads")
        found.append(_epilogue(program, heads, group, mine))
    return tuple(found)


def _epilogue(program: Program, heads: Sequence[_Head], group: tuple[int, ...], mine: tuple[int, ...]) -> Epilogue:
    results = [heads[k].result for k in group]
    written = [_written(program, program.outputs[i], results) for i in mine]
    if len(mine) > 1 and any(moves for _, moves in written):
        raise UnsupportedError("several outputs of a product, one of them transposed")
    reached = program.reached((o.value for o, _ in written), results)
    before = program.reached(h.left for h in heads)
    if any(not isinstance(program.values[i], Input | Constant) for i in reached & before):
        raise UnsupportedError("a value before a matrix product that is read after it, too")
    operands = _inputs(program, reached)
    made = operands_last(between(program, (*results, *operands), tuple(o for o, _ in written)), len(results))
    if made.reductions():
        raise UnsupportedError("a reduction after a matrix product")
    if not made.is_pointwise():
        raise UnsupportedError("moved data after a matrix product, other than to where an output is written")
    return Epilogue(group, tuple(program.input_at(i) for i in operands), mine, made, written[0][1])


def _written(program: Program, output: Output, results: Sequence[int]) -> tuple[Output, Moves]:
    """Return the value that the kernel computes for an output, and how it is reshaped and transposed after that."""
    moves: list[Reshaped | Transposed] = []
    index = output.value
    while index not in results and isinstance(move := program.values[index], Move):
        if not isinstance(move.how, Reshaped | Transposed):
            break
        moves.insert(0, move.how)
        index = move.args[0]
    return replace(output, value=index), tuple(moves)
