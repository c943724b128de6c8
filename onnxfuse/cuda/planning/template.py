"""Interface of a kernel template: all properties that other modules use, in one object."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.strides import Shape

V = TypeVar("V", bound=Variant)

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
    PRODUCER = "producer"
    """The fused op that computes an input of another one becomes one op with it."""
    SHARED_INPUT = "shared input"
    """Two fused ops that read the same value, and neither the other's result, become one op."""


def _none(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[()]:
    return ()


def _nothing(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch) -> tuple[()]:
    return ()


def _no_times(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> Mapping[V, float]:
    return {}


def _no_time(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> None:
    return None


def _nowhere(op: FusedOp) -> tuple[tuple[int, int], ...]:
    return ()


@dataclass(frozen=True)
class Running:
    """A running sum along an axis, represented in a program as a reduction over no axes."""

    axis: int
    exclusive: bool
    reverse: bool


@dataclass(frozen=True)
class Planner(Generic[V]):
    """The functions that plan a template's fused ops.

    All except `refuses` and `inplace` raise `UnsupportedError` with a one-line reason if they do not support the op.
    """

    check: Callable[[FusedOp], object]
    """Whether a kernel can be generated for the body, irrespective of shapes."""
    output_shapes: Callable[[FusedOp, tuple[Shape, ...]], tuple[Shape, ...]]
    """The shape of each output for these shapes of the inputs."""
    plan: Callable[[FusedOp, tuple[Shape, ...], bool, Arch, V | None], LaunchPlan]
    """The launch plan for inputs of these shapes; the flag: every pointer is a multiple of 16 bytes. Without a variant
    the plan chooses one."""
    refuses: Callable[[FusedOp, Arch], str | None] | None = None
    """Why the body is preferred on this GPU; None if the kernel is; absent: never."""
    fits: Callable[[FusedOp, Sequence[Extents | None], Arch], str | None] | None = None
    """Why inputs of these possibly partial shapes may have no plan on this GPU; None if they have one; absent: all
    have."""
    inplace: Callable[[FusedOp], tuple[tuple[int, int], ...]] = _nowhere
    """The (input, output) pairs that may alias, for all shapes, provided that their types and shapes agree."""
    candidates: Callable[[FusedOp, tuple[Shape, ...], Arch], tuple[V, ...]] = _none
    """The variants worth measuring on inputs of these shapes, in addition to the plan's own choice; absent: none.

    Those with equal plans are measured once. One whose `plan` raises `UnsupportedError` is reported as failed.
    """
    stand_ins: Callable[[FusedOp, tuple[Shape, ...], bool, Arch], tuple[V, ...]] = _nothing
    """The bit-identical variants of the plan's own choice, fastest first, usable as fallback while that compiles;
    absent: none."""
    running: Callable[[FusedOp], tuple[BodyProgram, Running]] | None = None
    """The body's program with its running sum represented as a reduction; absent: there are none."""
    general: Callable[[FusedOp, tuple[Shape, ...], Arch], LaunchPlan] | None = None
    """The plan for all shapes and alignments, if the template has one; absent: that of the general kernel."""
    estimates: Callable[[FusedOp, tuple[Shape, ...], Arch], Mapping[V, float]] = _no_times
    """The estimated microseconds of the variants that were considered; absent: sizes alone decide, not times."""
    microseconds: Callable[[FusedOp, tuple[Shape, ...], Arch], float | None] = _no_time
    """The estimated time of the plan's own choice where sizes alone decide; None or absent: the least that memory
    allows."""
    integers: Callable[[FusedOp], bool] | None = None
    """Whether the kernel multiplies 8-bit integers that the body dequantizes; absent: never."""
    variants: tuple[type[Variant], ...] = ()
    """The kinds of its variants, which tuning files and benchmarks name by their fields; empty: there are none."""


@dataclass(frozen=True)
class Template:
    """A template. To add one, add a folder whose `template.py` lists it in `TEMPLATES`."""

    name: str
    """Its name in rules and fused ops."""
    order: int
    """Priority by which fuse rules take their nodes, highest first."""
    summary: str
    """What its kernels compute, in a few words for the reference of rules."""
    planner: Planner[Any] | None
    """None: there are no kernels, and a rule's `realize` supplies the implementation."""
    growth: frozenset[Growth] = frozenset()
    """The steps by which its ops may grow."""
    reads: Reads | None = None
    """Absent: it reads every operand that can be broadcast to the work."""
    reads_before: Reads | None = None
    """The same for operands from which a prologue computes a value of the second shape; absent: it has no such
    prologue."""
    beside: int = 1
    """Maximum number of sibling anchors per launch, each with an operand and an output of its own."""
    together: int = 0
    """Maximum number of those anchors if a node combines results of several, all of which one body then computes; 0: as
    many as may be siblings."""
    uneven_columns: int = 0
    """Required multiple of the siblings' columns if they differ; 0: they must be equal."""
    looks_up_rows: bool = False
    """Whether it supports row lookup by runtime indices: a Gather joins."""
    moves_runs: bool = False
    """Whether transposed loads and stores are limited to contiguous runs, as its plans report."""
    rounds_to_tf32: bool = False
    """Whether it rounds the factors of float32 products to TF32, except for exact anchors."""
    writes_slots: bool = False
    """Whether it can write a channel slice of a larger output."""
    joins: str = ""
    """Name of the template whose ops it merges with the op that computes their input, by growth step `producer`, or
    with one that shares an input, by `shared input`."""
    of: str = ""
    """Name of the template of that other op; absent: any that leaves extremes."""
    leaves_extremes: bool = False
    """Whether some of its kernels can leave the smallest and the largest element of an output."""
    joins_slots: bool = False
    """Whether its ops are composed of those of templates that write slices."""
    reads_library_form: bool = False
    """Whether the library form of an op describes what its kernel computes."""
