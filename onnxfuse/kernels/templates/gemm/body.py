"""A body of the gemm template taken apart: its matrix products, and the pointwise rest that reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.ir import read, types
from onnxfuse.kernels.ir.images import image_work
from onnxfuse.kernels.ir.movement import Reshaped, Transposed
from onnxfuse.kernels.ir.program import Constant, Contract, Input, Move, Output, Program, Value, Window
from onnxfuse.kernels.ir.slices import between, canonical, operands_last
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.ir.window import Places, Sliding
from onnxfuse.kernels.templates.gemm.output_layout import Moves, stored
from onnxfuse.model.channels import FIRST
from onnxfuse.model.fused import FusedOp

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
    sliding: Sliding | None = None
    """Where the left factor is what a window sees: images [batch, height, width, channels], filters [n, height, width,
    channels]."""


@dataclass(frozen=True)
class Prologue:
    """What computes the left factor: the pointwise part of the body before the products, as a program of its own."""

    inputs: tuple[int, ...]
    """Positions of its inputs among the op's inputs."""
    program: Program
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
    def cell_types(self) -> tuple[int, ...]:
        """Their element types."""
        return tuple(self.program.inputs[self.inputs.index(i)] for i in self.cells)

    @property
    def bytes_beside(self) -> int:
        """The bytes of theirs for an element of the left factor that do not lie in its place."""
        read = zip(self.cells, self.cell_types, strict=True)
        return sum(types.TYPES[t].size for i, t in read if i != self.in_place)

    def shape(self, input_shapes: tuple[Shape, ...]) -> Shape:
        """Return the shape of the left factor for these shapes of the op's inputs."""
        shapes = self.program.shapes(tuple(input_shapes[i] for i in self.inputs))
        return shapes[self.program.outputs[0].value]


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

    @property
    def to_tf32(self) -> bool:
        """Whether the factors are rounded on their way to the tensor cores."""
        return self.dtype == TensorProto.FLOAT

    @property
    def terms(self) -> int:
        """Terms in a row of a factor's tile, which is what the copy engine swizzles."""
        return ROW_BYTES // types.TYPES[self.dtype].size


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
    if len({p.turned for p in products}) > 1:
        raise UnsupportedError("products with left factors of both layouts")
    if len({p.sliding for p in products}) > 1:
        raise UnsupportedError("convolutions whose windows slide in different ways")
    dtype = program.values[heads[0].result].dtype
    if dtype not in TYPES:
        raise UnsupportedError(f"products of {types.name(dtype)}")
    for output in program.outputs:
        if types.TYPES[output.dtype].size not in STORED_BYTES or output.dtype == TensorProto.BOOL:
            raise UnsupportedError(f"a product's output of type {types.name(output.dtype)}")
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
    a, b = (program.values[i] for i in (left, right))
    if not isinstance(b, Input):
        raise UnsupportedError("a matrix product whose right factor is computed in the body")
    turned = contract.axes[0] == -2
    if not isinstance(a, Input) and turned:
        raise UnsupportedError("a left factor [k, m] that is computed in the body")
    return _Head(Product(_position(a, program), b.index, turned_back, turned), left, index)


def _position(left: Value, program: Program) -> int:
    """Return which input of the op the left factor is, the number of inputs where it is none."""
    return left.index if isinstance(left, Input) else len(program.inputs)


def _convolution(program: Program, index: int) -> _Head:
    """Return a convolution between transposes, which so runs over images with their channels last."""
    work = image_work(program, index)
    assert isinstance(work.core, Contract)
    assert work.window is not None
    assert work.w is not None
    x, w = program.values[work.x], program.values[work.w]
    if not (work.images_last and work.packing == FIRST and isinstance(x, Input) and isinstance(w, Input)):
        raise UnsupportedError("a convolution of images that do not have their channels last")
    if work.core.groups != 1:
        raise UnsupportedError(f"a convolution in {work.core.groups} groups")
    return _Head(Product(x.index, w.index, True, sliding=work.window.sliding), work.x, work.result)


def _prologue(program: Program, head: _Head) -> Prologue | None:
    """Return what computes the left factor that the products share, None where it is an input of the op."""
    if isinstance(program.values[head.left], Input):
        return None
    starts = _inputs(program, program.reached([head.left]))
    made = between(program, starts, (Output(head.left, program.values[head.left].dtype),))
    if not made.is_pointwise():
        raise UnsupportedError("a reduction, or moved data, before a matrix product")
    return Prologue(tuple(program.input_at(i) for i in starts), made)


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


# ---- shapes


Three = tuple[int, int, int]


@dataclass(frozen=True)
class Batch:
    """Products side by side, each of matrices of its own. Dimensions are outer, middle, inner."""

    extents: Three
    a: Three
    """Left matrices from one to the next along each dimension; 0 where all have the same."""
    b: Three

    @property
    def count(self) -> int:
        """How many products there are."""
        return math.prod(self.extents)


@dataclass(frozen=True)
class Problem:
    """The size of the products: [m, k] by [k, n]."""

    m: int
    n: int
    k: int
    full: Shape
    """Shape of the outputs: m is all of it but the last dimension."""
    places: Places | None = None
    """Of a convolution: a row for each place, k = height * width * channels of the window."""
    batch: Batch | None = None
    """Of products of several right matrices; then m is the rows of each."""


def problem(parts: Anatomy, input_shapes: tuple[Shape, ...]) -> Problem:
    """Return the size of the products for these shapes of the op's inputs."""
    if parts.prologue is not None:
        input_shapes = (*input_shapes, parts.prologue.shape(input_shapes))
    sizes = {_problem(product, input_shapes[product.a], input_shapes[product.b]) for product in parts.products}
    if len(sizes) > 1:
        columns = ", ".join(map(str, sorted(s.n for s in sizes)))
        raise UnsupportedError(f"products side by side of {columns} columns")
    return sizes.pop()


def _problem(product: Product, a: Shape, b: Shape) -> Problem:
    if product.sliding is not None:
        return _slid(product.sliding, a, b)
    if len(a) < 2 or len(b) < 2:
        raise UnsupportedError(f"a product of ranks {len(a)} and {len(b)}, expected 2 or more")
    k, n = b[:-3:-1] if product.transposed else b[-2:]
    if product.turned:
        a = (*a[:-2], a[-1], a[-2])
    if k != a[-1]:
        raise UnsupportedError(f"a product of {a[-1]} columns and {k} rows")
    if math.prod(b[:-2]) == 1 and len(b) <= len(a):
        return Problem(math.prod(a[:-1]), n, k, (*a[:-1], n))
    around = _broadcast(a[:-2], b[:-2])
    return Problem(a[-2], n, k, (*around, a[-2], n), batch=_batch(around, a[:-2], b[:-2]))


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise UnsupportedError(f"batches of {list(a)} and {list(b)} products")
    return tuple(y if x == 1 else x for x, y in pairs)


def _batch(around: Shape, a: Shape, b: Shape) -> Batch:
    """Return the batch with as few dimensions as it has different ways to go on; three at most."""
    merged: list[tuple[int, int, int]] = []
    ways = [_matrices(around, shape) for shape in (a, b)]
    for extent, step_a, step_b in zip(around, *ways, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1:] == (step_a * extent, step_b * extent):
            merged[-1] = (merged[-1][0] * extent, step_a, step_b)
        else:
            merged.append((extent, step_a, step_b))
    if len(merged) > 3:
        raise UnsupportedError(f"batches of {list(a)} and {list(b)} products, broadcast in more than three ways")
    padded = [(1, 0, 0)] * (3 - len(merged)) + merged
    extents, steps_a, steps_b = zip(*padded, strict=True)
    return Batch(extents, steps_a, steps_b)


def _matrices(around: Shape, shape: Shape) -> list[int]:
    """Return how many matrices of a batch of this shape lie between neighbours along each dimension of `around`."""
    padded = (1,) * (len(around) - len(shape)) + shape
    return [0 if d == 1 else math.prod(padded[i + 1 :]) for i, d in enumerate(padded)]


def _slid(sliding: Sliding, a: Shape, b: Shape) -> Problem:
    if len(a) != 4 or len(b) != 4 or a[3] != b[3]:
        raise UnsupportedError(f"a convolution of images {list(a)} with filters {list(b)}")
    batch, height, width, channels = a
    places = sliding.over((batch, height, width, channels), (b[1], b[2]))
    full = (batch, *places.out, b[0])
    return Problem(math.prod(full[:3]), b[0], math.prod(b[1:]), full, places)


def placed(parts: Anatomy, op: FusedOp, input_shapes: tuple[Shape, ...]) -> Anatomy:
    """Return the body with what these shapes tell of its prologue."""
    if parts.prologue is None:
        return parts
    prologue = parts.prologue
    shape = prologue.shape(input_shapes)
    # Of one row a matrix is a vector, too; what has the factor's shape is fetched ahead.
    given = (input_shapes[i] for i in prologue.inputs)
    kinds = tuple("cell" if s == shape else operand_kind(s, shape) or _group(s, shape) for s in given)
    groups = {math.prod(shape[first:-1]) for first in kinds if isinstance(first, int)}
    if len(groups) > 1:
        raise UnsupportedError(f"vectors of terms for groups of {' and '.join(map(str, sorted(groups)))} rows")
    named = tuple("group" if isinstance(kind, int) else kind for kind in kinds)
    prologue = replace(prologue, kinds=named, group=next(iter(groups), 0))
    if not prologue.cells:
        raise UnsupportedError("a left factor that is computed from vectors alone")
    size = types.TYPES[parts.dtype].size
    in_place = next((i for i in prologue.cells if types.TYPES[op.inputs[i]].size == size), None)
    return replace(parts, prologue=replace(prologue, in_place=in_place))


def _group(shape: Shape, full: Shape) -> int:
    """Return the first dimension of the groups of rows for each of which `shape` has a vector of terms."""
    first = group_kind(shape, full)
    if first is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} before a product of {list(full)}")
    return first


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    parts = anatomy(op)
    size = problem(parts, input_shapes)
    for epilogue in parts.epilogues:
        shapes = epilogue.program.shapes(
            (*(size.full for _ in epilogue.products), *(input_shapes[i] for i in epilogue.operands))
        )
        if any(shapes[o.value] != size.full for o in epilogue.program.outputs):
            raise UnsupportedError("an output of another shape than its product")
    moved = {
        o: stored(size.full, epilogue.moves).shape
        for epilogue in parts.epilogues
        if epilogue.moves
        for o in epilogue.outputs
    }
    return tuple(moved.get(o, size.full) for o in range(len(op.outputs)))


def kind_of(shape: Shape, full: Shape) -> str:
    """Return how an operand lies beside a matrix of shape `full`; raises where the kernels do not read it so."""
    kind = operand_kind(shape, full)
    if kind is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} beside a product of shape {list(full)}")
    return kind


def operand_kind(shape: Sequence[object], full: Sequence[object]) -> str | None:
    """Return how an operand lies in the output: `cell`, `column`, `row` or `uniform`; None for any other way.

    Dimensions may be numbers, names (a name means one number everywhere), or None where nothing is known.
    """
    if len(shape) > len(full):
        return None
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    if all(d == 1 for d in padded):
        return "uniform"
    if all(d == 1 for d in padded[:-1]) and padded[-1] == full[-1]:
        return "column"
    if None in padded:
        return None
    if padded == tuple(full):
        return "cell"
    if padded == (*full[:-1], 1):
        return "row"
    return None


def group_kind(shape: Sequence[object], full: Sequence[object]) -> int | None:
    """Return from which dimension on `shape` has ones beside `full`, up to the last, in which they agree; else None.

    A gate [batch, 1, 1, channels] beside images [batch, height, width, channels]: 1. Dimensions as for `operand_kind`.
    """
    if len(shape) != len(full) or len(shape) < 3 or shape[-1] != full[-1] or None in shape:
        return None
    first = next((i for i, (d, f) in enumerate(zip(shape, full, strict=True)) if d != f), len(full) - 1)
    return first if first > 0 and all(d == 1 for d in shape[first:-1]) else None
