"""Sizes of a body's products for given shapes, and layouts of the operands read with them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.codegen.program.window import Sliding, WindowGeometry
from onnxfuse.cuda.templates.gemm.body import JOINED, Anatomy, Product, anatomy
from onnxfuse.cuda.templates.gemm.output_layout import stored
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import larger, settled, smaller
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Batch:
    """A batch of products with matrices of their own. Dimensions are outer, middle, inner."""

    extents: Three
    a: Three
    """Strides in left matrices along each dimension; 0 = broadcast."""
    b: Three

    @property
    def count(self) -> int:
        """Number of products."""
        return math.prod(self.extents)

    @property
    def left(self) -> int:
        """Number of distinct left matrices, if there are products."""
        return self._matrices(self.a)

    @property
    def right(self) -> int:
        """The same for right matrices."""
        return self._matrices(self.b)

    def _matrices(self, steps: Three) -> int:
        return 1 + sum((extent - 1) * step for extent, step in zip(self.extents, steps, strict=True))


@dataclass(frozen=True)
class GemmProblem:
    """Sizes of the products: [m, k] by [k, n]."""

    m: int
    n: int
    """Columns of the widest sibling body."""
    k: int
    full: Shape
    """Shape of the outputs, of the widest body: m is the product of all extents but the last."""
    window: WindowGeometry | None = None
    """Spatial extents of a convolution: one row per position, k = window elements * channels."""
    groups: int = 1
    """Groups of a convolution: each a product with n filters, its own channels and columns, and k of its channels."""
    batch: Batch | None = None
    """Batch of products with several right matrices; m is then the rows of each."""
    pitch: int = 0
    """Leading dimension of the left factor in elements: at least k; or m if it is stored [k, m]."""
    bodies: int = 1
    """Number of sibling bodies, each with products of its own."""
    uneven: tuple[int, ...] = ()
    """Columns of each sibling if they differ: matrices of one batch."""

    @property
    def widths(self) -> tuple[int, ...]:
        """The distinct numbers of columns."""
        return self.uneven or (self.n,)

    def columns(self, product: int) -> int:
        """Return the columns of a product, by its index."""
        return self.uneven[product] if self.uneven else self.n

    def full_of(self, body: int) -> Shape:
        """Return the output shape of a body, by its index."""
        return (*self.full[:-1], self.uneven[body]) if self.uneven else self.full

    def across(self, columns: int) -> int:
        """Return how many tiles of so many columns lie next to each other, over all bodies."""
        return sum(-(-n // columns) for n in self.widths) * (1 if self.uneven else self.bodies)

    def side_words(self, columns: int) -> tuple[int, ...]:
        """Return the fields of the kernels' `Sides`, for tiles of so many columns."""
        sides = self.uneven or (self.n,) * self.bodies
        return (*sides, *itertools.accumulate(-(-n // columns) for n in sides))

    @property
    def products(self) -> int:
        """Number of products."""
        return self.groups if self.batch is None else self.batch.count

    @property
    def channels(self) -> int:
        """Channels per group of a convolution."""
        assert self.window is not None
        return self.window.shape[-1] // self.groups

    @property
    def lines(self) -> int:
        """Rows of the innermost matrix of the outputs."""
        return self.full[-2]


def problem(parts: Anatomy, input_shapes: tuple[Shape, ...]) -> GemmProblem:
    """Return the sizes of the products for these shapes of the op's inputs."""
    if parts.prologue is not None:
        input_shapes = (*input_shapes, parts.prologue.shape(input_shapes))
    sizes = [_problem(product, input_shapes[product.a], product.right(input_shapes)) for product in parts.products]
    first, bodies = sizes[0], len(parts.epilogues)
    columns = tuple(size.n for size in sizes)
    if all(size == first for size in sizes[1:]):
        return replace(first, bodies=bodies)
    if bodies == 1 or any(size.window is not None or size.batch is not None for size in sizes):
        counts = ", ".join(map(str, sorted(set(columns))))
        raise UnsupportedError(f"products side by side of {counts} columns")
    widest = functools.reduce(larger, columns)
    return replace(first, n=widest, full=(*first.full[:-1], widest), bodies=bodies, uneven=columns)


def _problem(product: Product, a: Shape, b: Shape) -> GemmProblem:
    if product.sliding is not None:
        return _slid(product.sliding, product.groups, a, b)
    if len(a) < 2 or len(b) < 2:
        raise UnsupportedError(f"a product of ranks {len(a)} and {len(b)}, expected 2 or more")
    k, n = b[:-3:-1] if product.transposed else b[-2:]
    pitch = a[-1]
    if product.a_transposed:
        a = (*a[:-2], a[-1], a[-2])
    if product.terms is not None:
        a = (*a[:-1], smaller(a[-1], product.terms))
    if k != a[-1]:
        raise UnsupportedError(f"a product of {a[-1]} columns and {k} rows")
    if math.prod(b[:-2]) == 1 and len(b) <= len(a):
        return GemmProblem(math.prod(a[:-1]), n, k, (*a[:-1], n), pitch=pitch)
    around = _broadcast(a[:-2], b[:-2])
    return GemmProblem(a[-2], n, k, (*around, a[-2], n), batch=_batch(around, a[:-2], b[:-2]), pitch=pitch)


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise UnsupportedError(f"batches of {list(a)} and {list(b)} products")
    return tuple(y if x == 1 else x for x, y in pairs)


def _batch(around: Shape, a: Shape, b: Shape) -> Batch:
    """Return the batch with contiguous dimensions merged; three at most."""
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
    """Return the stride in matrices of a batch of this shape along each dimension of `around`."""
    padded = (1,) * (len(around) - len(shape)) + shape
    return [0 if d == 1 else math.prod(padded[i + 1 :]) for i, d in enumerate(padded)]


def _slid(sliding: Sliding, groups: int, a: Shape, b: Shape) -> GemmProblem:
    rank = 2 + len(sliding.strides)
    if len(a) != rank or len(b) != rank or groups < 1 or a[-1] != b[-1] * groups or b[0] % groups:
        raise UnsupportedError(f"a convolution of images {list(a)} with filters {list(b)} in {groups} groups")
    window = sliding.over(a, b[1:-1])
    full = (a[0], *window.out, b[0])
    return GemmProblem(math.prod(full[:-1]), b[0] // groups, math.prod(b[1:]), full, window, groups, pitch=b[-1])


def placed(parts: Anatomy, op: FusedOp, input_shapes: tuple[Shape, ...]) -> Anatomy:
    """Return the body with the properties of its prologue that depend on these shapes."""
    if parts.prologue is None:
        return parts
    prologue = parts.prologue
    shape = prologue.shape(input_shapes)
    # A one-row matrix is also a vector; operands of the factor's shape are prefetched.
    shapes = prologue.inputs_of(input_shapes)
    kinds = tuple("cell" if s == shape else operand_kind(s, shape) or _group(s, shape) for s in shapes)
    groups = [math.prod(shape[first:-1]) for first in kinds if isinstance(first, int)]
    if any(rows != groups[0] for rows in groups):
        raise UnsupportedError(f"vectors of terms for groups of {' and '.join(map(str, sorted(set(groups))))} rows")
    named = tuple("group" if isinstance(kind, int) else kind for kind in kinds)
    prologue = replace(prologue, kinds=named, group=groups[0] if groups else 0)
    if not prologue.cells:
        raise UnsupportedError("a left factor that is computed from vectors alone")
    size = parts.factors.bytes
    sizes = [element_types.TYPES[t].size for t in prologue.cell_types]
    in_place = next((i for i, s in zip(prologue.cells, sizes, strict=True) if s == size), None)
    terms = tuple(settled(input_shapes[i][-1]) for i in prologue.joined)
    if prologue.joined and (prologue.cells != (JOINED,) or in_place is None or any(n * size % 16 for n in terms)):
        raise UnsupportedError(f"matrices of {' and '.join(map(str, terms))} terms side by side before a product")
    return replace(parts, prologue=replace(prologue, in_place=in_place, terms=terms))


def _group(shape: Shape, full: Shape) -> int:
    """Return the first dimension of the row groups for which `shape` has one vector of terms each."""
    first = group_kind(shape, full)
    if first is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} before a product of {list(full)}")
    return first


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    parts = anatomy(op)
    size = problem(parts, input_shapes)
    dims: dict[int, Shape] = {}
    for body, epilogue in enumerate(parts.epilogues):
        full = size.full_of(body)
        shapes = epilogue.program.shapes(
            (
                *(full for _ in epilogue.products),
                *(input_shapes[i] for i in epilogue.operands),
                *(() for _ in epilogue.parameters),
            )
        )
        if any(shapes[o.value] != full for o in epilogue.program.outputs):
            raise UnsupportedError("an output of another shape than its product")
        dims.update(dict.fromkeys(epilogue.outputs, stored(full, epilogue.moves).shape if epilogue.moves else full))
    return tuple(dims[o] for o in sorted(dims))


def kind_of(shape: Shape, full: Shape) -> str:
    """Return how an operand lies relative to a matrix of shape `full`; raises if the kernels cannot read it."""
    kind = product_kind(shape, full)
    if kind is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} beside a product of shape {list(full)}")
    return kind


def product_kind(shape: Sequence[object], full: Sequence[object]) -> str | None:
    """Return the layout of an operand of a product: as in `operand_kind`, or `inner`: [m, 1] shared by all matrices."""
    kind = operand_kind(shape, full)
    if kind is not None or len(full) < 3 or not 2 <= len(shape) <= len(full) or full[-2] is None:
        return kind
    return "inner" if (*shape[-2:],) == (full[-2], 1) and all(d == 1 for d in shape[:-2]) else None


def operand_kind(shape: Sequence[object], full: Sequence[object]) -> str | None:
    """Return the layout of an operand in the output: `cell`, `column`, `row` or `uniform`; None for any other.

    Dimensions may be integers, names (a name denotes the same size everywhere), or None if unknown.
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
    """Return the dimension from which on `shape` has ones relative to `full`, except for an equal last one; else None.

    A gate [batch, 1, 1, channels] for images [batch, height, width, channels]: 1. Dimensions as for `operand_kind`.
    """
    if len(shape) != len(full) or len(shape) < 3 or shape[-1] != full[-1] or None in shape:
        return None
    first = next((i for i, (d, f) in enumerate(zip(shape, full, strict=True)) if d != f), len(full) - 1)
    return first if first > 0 and all(d == 1 for d in shape[first:-1]) else None
