"""Input of planning and source generation for a product's kernels."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.source import Section, identifier
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.output_layout import Stored, stored
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import Block, Strip
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.branching import settled
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class LeftRows:
    """Rows that each block of a kernel for few rows computes before its products: they are the left factor."""

    sections: tuple[Section, ...]
    """The code, in a namespace of its own: `rows_of_block` with `Pointers` and `Parameters`."""
    words: tuple[int, ...]
    """The fields of its `Parameters`."""
    pointers: tuple[access.Pointer, ...]
    """The first fields of its `Pointers`, which are arguments of the kernel."""
    ahead: tuple[tuple[int, int], ...]
    """Inputs that are brought near while the kernel ahead ends, and their bytes."""


@dataclass(frozen=True)
class GemmSource:
    """Input of planning and source generation for all kernels."""

    op: FusedOp
    parts: Anatomy
    size: GemmProblem
    kinds: tuple[str, ...]
    output_shapes: tuple[Shape, ...]
    left: Callable[[int, int], LeftRows] | None = None
    """The rows that are the left factor, for so many threads of a block and rows at a time; None: it is an input."""

    @property
    def entry(self) -> str:
        return identifier(self.op.name)

    @property
    def program(self) -> BodyProgram:
        return self.parts.epilogues[0].program

    @property
    def source(self) -> str:
        """Kind of the left factor, as used in the names of the templates' files."""
        return "matrix" if self.size.window is None else "window"

    @property
    def first_operand(self) -> int:
        """Index of the first operand among an epilogue's inputs, after its products."""
        return len(self.parts.epilogues[0].products)

    @property
    def left_rows(self) -> int:
        """Rows of the left factor for which a block of few rows has room, a power of two; 0 if it is an input."""
        if self.left is None:
            return 0
        return next(1 << n for n in itertools.count() if self.size.m <= 1 << n)

    @property
    def left_bytes(self) -> int:
        """Bytes of the left factor in shared memory."""
        return self.left_rows * settled(self.size.k) * self.parts.factors.bytes

    @cached_property
    def stored(self) -> tuple[Stored, ...]:
        """Store layout of each epilogue; empty if all outputs are laid out like the products."""
        if not any(epilogue.moves for epilogue in self.parts.epilogues):
            return ()
        return tuple(stored(self.size.full_of(i), e.moves) for i, e in enumerate(self.parts.epilogues))

    @property
    def store_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `Stores`."""
        return tuple(w for s in self.stored for w in s.words(16 // output_bytes(self.parts)))

    @property
    def product_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `Products`."""
        batch = self.size.batch
        if batch is not None:
            return (*batch.extents, *batch.a, *batch.b)
        return (self.size.groups,) if self.size.groups > 1 else ()

    @property
    def group_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `Groups`."""
        prologue = self.parts.prologue
        return () if prologue is None or not prologue.group else strides.divisor(prologue.group, 32)

    @property
    def extremes_of(self) -> int | None:
        """The output of the only epilogue's program of which the op asks for the extremes."""
        wanted, first = self.op.extremes_of, self.parts.epilogues[0].outputs
        return first.index(wanted) if wanted in first and len(self.parts.epilogues) == 1 else None

    @cached_property
    def staged(self) -> int | None:
        """The epilogue input that TMA can load to the location of the first output."""
        operands, before = self.parts.epilogues[0].operands, self.first_operand
        cells = (i for i in expressions.live_inputs(self.program) if i >= before and self.kinds[i - before] == "cell")
        sizes = ((i, element_types.TYPES[self.op.inputs[operands[i - before]]].size) for i in cells)
        first = element_types.TYPES[self.program.outputs[0].dtype].size
        return next((i for i, size in sizes if size == first), None)

    @property
    def staged_bytes(self) -> int:
        """Bytes per cell of it."""
        return 0 if self.staged is None else element_types.TYPES[self.program.outputs[0].dtype].size


@dataclass(frozen=True)
class Fit:
    """Parameters of the sm_80 kernel for a problem."""

    block: Block
    stages: int
    """Stages of the shared-memory ring."""
    shared_bytes: int
    width: int
    """Adjacent cells that a thread computes at a time."""
    a_piece: int
    b_piece: int
    """Bytes per copy of a factor: 2, 4, 8 or 16."""
    along: int
    """Alignment in elements of the rows of the left factor and of its prologue's inputs; at most 16."""
    resident: int
    """Minimum resident blocks per multiprocessor for the compiler, 0 = any."""


@dataclass(frozen=True)
class SkinnyParameters:
    """Parameters of the kernel for few rows for a problem."""

    strip: Strip
    rows: int
    """Rows that a block computes: 8, or 16."""
    stages: int
    """Stages of each warp's ring."""
    shared_bytes: int
    width: int
    """Adjacent cells that a thread finishes."""
    line: int
    """Bytes of a column's packed numbers per step of a warp; 0: the right factor is not packed."""
    resident: int
    """Resident blocks per multiprocessor for the compiler."""
    constant: bool
    """Whether the right factors are weights, which no kernel writes."""
    left: LeftRows | None
    """What computes the left factor; None: it is an input."""
    several: bool = False
    """Whether blocks take several strips in turns."""

    @property
    def left_words(self) -> tuple[int, ...]:
        """The fields of the kernel's `LeftParameters`."""
        return () if self.left is None else self.left.words


def chunk_bytes(dtype: int) -> int:
    """Return the bytes per cell of an output's chunk in shared memory: TMA gives a row of 64 cells no less than 128."""
    return max(2, element_types.TYPES[dtype].size)


def output_bytes(parts: Anatomy) -> int:
    """Return the bytes per cell of an epilogue's outputs."""
    return sum(element_types.TYPES[o.dtype].size for o in parts.epilogues[0].program.outputs)
