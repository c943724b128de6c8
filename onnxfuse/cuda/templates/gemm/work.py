"""All that the plans and the texts of a product's kernels are made from."""

from dataclasses import dataclass
from functools import cached_property

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.emit.source import identifier
from onnxfuse.codegen.program.program import Program
from onnxfuse.cuda.planning.launch_plan import Block, Strip
from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.output_layout import Stored, stored
from onnxfuse.cuda.templates.gemm.problem import Problem
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class Work:
    """All that the plans of the kernels are made from."""

    op: FusedOp
    parts: Anatomy
    size: Problem
    kinds: tuple[str, ...]
    output_shapes: tuple[Shape, ...]

    @property
    def entry(self) -> str:
        return identifier(self.op.name)

    @property
    def program(self) -> Program:
        return self.parts.epilogues[0].program

    @property
    def source(self) -> str:
        """What the left factor is, as the templates' files are named."""
        return "matrix" if self.size.places is None else "window"

    @property
    def first_operand(self) -> int:
        """Among the inputs of an epilogue, which are its products and then its operands."""
        return len(self.parts.epilogues[0].products)

    @cached_property
    def stored(self) -> tuple[Stored, ...]:
        """Of each epilogue, where its cells go; none where all outputs are written as the products lie."""
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

    @cached_property
    def staged(self) -> int | None:
        """The input of an epilogue that the copy engine can fetch to where the first output will be put."""
        operands, first = self.parts.epilogues[0].operands, self.first_operand
        cells = (i for i in expressions.live_inputs(self.program) if i >= first and self.kinds[i - first] == "cell")
        sizes = ((i, element_types.TYPES[self.op.inputs[operands[i - first]]].size) for i in cells)
        return next((i for i, size in sizes if size == element_types.TYPES[self.program.outputs[0].dtype].size), None)

    @property
    def staged_bytes(self) -> int:
        """The bytes that one cell of it takes."""
        return 0 if self.staged is None else element_types.TYPES[self.program.outputs[0].dtype].size


@dataclass(frozen=True)
class Fit:
    """How the kernel for sm_80 is cut for a problem."""

    block: Block
    stages: int
    """Of the ring in shared memory."""
    shared_bytes: int
    width: int
    """Neighbouring cells that a thread computes at a time."""
    a_piece: int
    b_piece: int
    """Bytes that a copy of a factor takes at a time: 2, 4, 8 or 16."""
    along: int
    """Elements on whose boundary each row of the left factor begins, and of what it is computed from; at most 16."""
    resident: int
    """Blocks of a multiprocessor that it leaves registers for, 0 = any."""


@dataclass(frozen=True)
class Columns:
    """How the kernel for few rows is cut for a problem."""

    strip: Strip
    stages: int
    """Of the ring of each warp."""
    shared_bytes: int
    width: int
    """Neighbouring cells that a thread finishes."""
    constant: bool
    """Whether the right factors are weights, which no kernel writes."""


def output_bytes(parts: Anatomy) -> int:
    """Return the bytes that one cell of an epilogue's outputs takes."""
    return sum(element_types.TYPES[o.dtype].size for o in parts.epilogues[0].program.outputs)
