"""Interface of a kernel template: all properties that other modules use, in one object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from onnxfuse.codegen.program.program import Program
from onnxfuse.cuda.plan.arch import Arch
from onnxfuse.cuda.plan.launch_plan import LaunchPlan, TileTuning
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.strides import Shape

Extents = Sequence[object]
"""A shape whose dimensions may be integers or names; a name denotes the same size everywhere."""

Reads = Callable[[Extents, Extents], str | None]
"""Returns why a kernel cannot read an operand of the first shape in work of the second; None if it can."""


class Growth(StrEnum):
    """Steps by which a fused op grows from its anchor: a template allows them, a rule requests them."""

    WHOLE_INPUT = "whole input"
    """The kernel iterates over the shape of an input of the anchor, whose output is smaller."""
    REDUCTIONS = "reductions"
    """Other reductions over the same axes join."""
    BROADCAST_INPUT = "broadcast input"
    """Producers of a broadcast input join, recomputed for each element."""
    SIBLINGS = "siblings"
    """Anchors that read the same value become one op."""
    LIBRARY_ANCHOR = "library anchor"
    """The anchor remains outside, as a node that the library runs."""
    PROLOGUE = "prologue"
    """Pointwise producers of inputs join."""
    EPILOGUE = "epilogue"
    """Pointwise consumers of outputs join."""
    MOVEMENT = "movement"
    """Data movement joins along with pointwise nodes if that saves traffic."""
    TWINS = "twins"
    """Nodes that apply the same operation to other values, next to a shared operand, join."""
    LEFT_OPERAND = "left operand"
    """The producer of one input joins if only the anchor reads it."""
    JOINED_INPUT = "joined input"
    """The channel Concat that produces one input joins if only the anchor reads it."""
    TRANSPOSED_INPUT = "transposed input"
    """The Transpose that produces an input joins."""
    TRANSPOSED_OUTPUT = "transposed output"
    """The Transpose that reads an output joins."""
    K_MAJOR_WEIGHTS = "k-major weights"
    """Constant weights of products are stored [n, k]."""
    PADDED_ROWS = "padded rows"
    """Rows of constant weights that are left factors are padded to 16-byte boundaries."""
    EXTRA_OUTPUTS = "extra outputs"
    """A consumer of an output that matches a pattern of the rule becomes an additional output."""
    CACHES = "caches"
    """The Concats that extend key and value caches join, and their results become additional outputs."""
    CONCAT = "concat"
    """Fused ops whose outputs are concatenated become one op."""


def _none(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[TileTuning, ...]:
    return ()


def _nothing(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> tuple[TileTuning, ...]:
    return ()


def _nowhere(op: FusedOp) -> tuple[tuple[int, int], ...]:
    return ()


@dataclass(frozen=True)
class Running:
    """What a reduction over no axes is in a program: a running sum along an axis."""

    axis: int
    exclusive: bool
    reverse: bool


@dataclass(frozen=True)
class Planner:
    """From a fused op of the template to its launch plan.

    All but `refuses` and `inplace` raise `UnsupportedError` with the reason in one line where they do not take the op.
    """

    check: Callable[[FusedOp], object]
    """Whether a kernel can be generated for the body, whatever the shapes."""
    output_shapes: Callable[[FusedOp, tuple[Shape, ...]], tuple[Shape, ...]]
    """The shape of each output for these shapes of the inputs."""
    plan: Callable[[FusedOp, tuple[Shape, ...], bool, Arch, TileTuning], LaunchPlan]
    """How to run on inputs of these shapes; the flag: every pointer is a multiple of 16 bytes."""
    refuses: Callable[[FusedOp, Arch], str | None] | None = None
    """Why the body is the better choice on this GPU, None where the kernel is; absent: never."""
    fits: Callable[[FusedOp, Sequence[Extents | None], Arch], str | None] | None = None
    """Why inputs of these shapes, of which parts may be unknown, may have no plan on this GPU, None where they have
    one; absent: all have."""
    inplace: Callable[[FusedOp], tuple[tuple[int, int], ...]] = _nowhere
    """The (input, output) pairs that may share memory, for all shapes, where their types and shapes agree."""
    candidates: Callable[[FusedOp, tuple[Shape, ...], Arch], tuple[TileTuning, ...]] = _none
    """The variants worth measuring on inputs of these shapes, beside the plan's own choice; absent: none.

    Those that make the same plan are measured once. One that raises `UnsupportedError` in `plan` is told as failed.
    """
    stand_ins: Callable[[FusedOp, tuple[Shape, ...], bool, Arch], tuple[TileTuning, ...]] = _nothing
    """The variants that give the same bits as the plan's own choice, fastest first: one may serve while that is
    compiled; absent: none."""
    running: Callable[[FusedOp], tuple[Program, Running]] | None = None
    """The body's program with the running sum that stands in it as a reduction; absent: there are none."""
    general: Callable[[FusedOp, tuple[Shape, ...], Arch], LaunchPlan] | None = None
    """The plan that takes all shapes and alignments, where the template has one; absent: that of the general kernel."""


@dataclass(frozen=True)
class Template:
    """One template: a new one is a folder whose `template.py` lists one of these in `TEMPLATES`, and nothing else."""

    name: str
    """What rules and fused ops call it."""
    order: int
    """Fuse rules take their nodes in this order, strongest first."""
    summary: str
    """What its kernels compute, in a few words for the reference of rules."""
    planner: Planner | None
    """None: there are no kernels, a rule's `realize` does the work."""
    growth: frozenset[Growth] = frozenset()
    """The steps by which its ops may grow."""
    reads: Reads | None = None
    """Absent: it reads every operand that can be broadcast to the work."""
    reads_before: Reads | None = None
    """The same of what a prologue computes a value of the second shape from; absent: it has no such prologue."""
    beside: int = 1
    """Anchors side by side that one launch is meant for, at most: each with an operand and an output of its own."""
    uneven_columns: int = 0
    """Of what the columns of anchors side by side are multiples where they differ; 0: they are equal."""
    looks_up_rows: bool = False
    """Whether it reads rows of a table by numbers known as it runs: a Gather joins."""
    moves_runs: bool = False
    """Whether it moves whole runs of neighbours alone where it reads or writes transposed, as its plans tell."""
    rounds_to_tf32: bool = False
    """Whether it rounds the factors of float32 products to TF32, having no other kernel but for exact anchors."""
    writes_slots: bool = False
    """Whether it can write channels of a larger output."""
    joins_slots: bool = False
    """Whether its ops are made of those of templates that write slots."""
    reads_library_form: bool = False
    """Whether the library's form of an op says what its kernel computes."""
