"""Access patterns of the row kernels' operands: along a row, and from row to row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.program.unify_axes import Lookup
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.symbolic.branching import gcd
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape, StridedLayout, row_major, slots, vector_width


@dataclass(frozen=True)
class RowOperand:
    """An operand, and its access pattern."""

    operand: Operand
    along: str
    """Along a row: `columns` (one element each), `scalar` (one element), `runs` (contiguous vectors, scattered),
    `spread` (one element per vector, such as per-channel weights in a group) or `gather` (anything else)."""
    outer: str
    """From row to row: `full` (dense), `none` (the same for every row) or `strided`."""
    outer_slot: int
    """Index of its outer stride row among the parameters; -1 if none."""
    row_slot: int
    """Index of its inner stride row among the parameters; -1 if none."""
    reduced: bool
    """Whether a reduction reads it."""
    lookup: Lookup | None = None
    """For a table: the row lookup."""

    @property
    def dense(self) -> bool:
        """As big as the whole op: its vectors are aligned, and each is loaded once."""
        return self.along == "columns" and self.outer == "full"


def patterns(work: Reduced, outer: StridedLayout, inner: StridedLayout) -> tuple[tuple[RowOperand, ...], int]:
    """Return the access pattern of each operand, and the vector width if runs determine it, else 0."""
    operands = work.operands
    rows, columns = math.prod(outer.extents), math.prod(inner.extents)
    sizes = (math.prod(n for n, step in zip(work.full, s, strict=True) if step) for s in work.strides)
    reduced = frozenset(f"in{i}" for i in expressions.reduced_inputs(work.program))
    runs = [
        (o, (*outer_strides, *inner_strides[:-1], inner.extents[-1]))
        for o, outer_strides, inner_strides in zip(operands, outer.strides, inner.strides, strict=True)
        if inner_strides[-1] == 1 and not _contiguous(inner_strides, inner) and all(inner_strides)
    ]
    width = 0
    if runs:
        widest = work.request.tuning.width or vector_width(tuple(o.size for o, _ in runs))
        width = gcd(widest, *(s for _, steps in runs for s in steps)) if work.request.aligned else 1
    kinds: list[tuple[str, str]] = []
    for operand, size, outer_strides, inner_strides in zip(operands, sizes, outer.strides, inner.strides, strict=True):
        in_runs = any(operand is o for o, _ in runs)
        along = "runs" if in_runs else _along(inner_strides, inner, columns)
        own_columns = columns if along in ("columns", "runs") else 1
        # A column vector has no outer axes; it remains one for a single row, so that the kernel is the same.
        dense = (
            along in ("columns", "scalar")
            and size == rows * own_columns
            and all(
                s in (0, step * own_columns) for s, step in zip(outer_strides, row_major(outer.extents), strict=True)
            )
            and (operand.is_output or len(operand.shape) > len(work.axes))
        )
        kinds.append((along, _outer_kind(operand, along, dense, any(outer_strides))))
    outer_slots = slots(how == "strided" for _, how in kinds)
    row_slots = slots(along in ("gather", "runs") for along, _ in kinds)
    placed = (
        RowOperand(operand, along, how, outer_slot, row_slot, operand.name in reduced)
        for operand, (along, how), outer_slot, row_slot in zip(operands, kinds, outer_slots, row_slots, strict=True)
    )
    return tuple(placed), width


def refined(placed: tuple[RowOperand, ...], inner: StridedLayout, width: int) -> tuple[RowOperand, ...]:
    """Refine the patterns: distinguish inputs that are constant along whole vectors from those indexed per element."""

    def stays(p: RowOperand) -> bool:
        strides = inner.strides[placed.index(p)]
        return p.along == "gather" and not p.operand.is_output and strides[-1] == 0

    if inner.extents[-1] % width:
        return placed
    return tuple(replace(p, along="spread") if stays(p) else p for p in placed)


def with_lookups(placed: tuple[RowOperand, ...], lookups: Mapping[str, Lookup]) -> tuple[RowOperand, ...]:
    """Return the patterns with tables distinguished from other operands."""
    along = {p.operand.name: p.along for p in placed}
    for name, lookup in lookups.items():
        if along[name] != "columns":
            raise UnsupportedError("a table whose rows are not those of the reduction")
        if along[f"in{lookup.number}"] != "scalar":
            raise UnsupportedError("Gather by numbers that vary along the row")
    return tuple(replace(p, lookup=lookups.get(p.operand.name)) for p in placed)


def _contiguous(strides: Shape, inner: StridedLayout) -> bool:
    return all(n == 1 or s == step for n, s, step in zip(inner.extents, strides, inner.contiguous, strict=True))


def _along(strides: Shape, inner: StridedLayout, columns: int) -> str:
    if _contiguous(strides, inner):
        return "columns"
    return "gather" if any(strides) else "scalar"


def _outer_kind(operand: Operand, along: str, dense: bool, moves: bool) -> str:
    if dense:
        return "full"
    # An output shared by all rows is written by the first row only: it needs its strides, all 0.
    return "strided" if moves or operand.is_output else "none"
