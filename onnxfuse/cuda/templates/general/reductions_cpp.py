"""Reductions in a general kernel: a block per result, for windows a thread; and running sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfuse.codegen.emit.operations import COMBINE
from onnxfuse.codegen.program.program import Reduce, SlidingWindow, reduced_axes
from onnxfuse.codegen.program.window import Counted
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

if TYPE_CHECKING:
    from onnxfuse.cuda.planning.template import Running
    from onnxfuse.cuda.templates.general.values_cpp import Text


def stage(text: Text, reduce: Reduce, shape: Shape, to: str) -> str:
    """Return the loop that computes a reduction in scratch memory."""
    if text.running is not None:
        return _running_sum(text, reduce, shape, to, text.running)
    of, dtype = text.shapes[reduce.arg], text.program.values[reduce.arg].dtype
    axes, wide = sorted(reduced_axes(reduce, len(of))), _wide(dtype)
    position = reduce.kind.startswith("arg")
    if position and len(axes) > 1:
        raise UnsupportedError(f"{reduce.kind} over several axes")
    begin = f"{f'math::Found<{wide}, Index>' if position else wide} found = {_identity(reduce, dtype)};"
    least, last = (str(w in reduce.kind).lower() for w in ("argmin", "_last"))
    if position:
        add = f"math::follow<{least}, {last}>(found, ({wide})r, i);"
    else:
        add = f"found = {COMBINE[reduce.kind].format('found', f'({wide})r')};"
    result = "math::position(found)" if position else f"found / ({wide})terms" if reduce.kind == "mean" else "found"
    computed = element_types.computed(reduce.dtype)
    end = f"keep({to}, n, ({computed})({result}));"
    seen = text.program.values[reduce.arg]
    if isinstance(seen, SlidingWindow):
        loops = [f"for (c[{d}] = 0; c[{d}] < {text.numbers.extent(of, d)}; ++c[{d}])" for d in axes]
        read = f"bool seen; const {element_types.computed(seen.dtype)} r = value{reduce.arg}(t, p, c, seen);"
        passed = "" if seen.counted is Counted.WINDOW else "if (!seen) continue;"
        return text.loop(shape, [begin, "Index terms = 0;", *loops, f"{{ {read} {passed} {add} ++terms; }}", end])
    reduced = tuple(of[d] for d in axes)
    extents = text.numbers.extents(reduced)
    assignments = [f"c[{d}] = k[{i}];" for i, d in enumerate(axes)]
    combine = COMBINE[reduce.kind].format("a", "b")
    lines = [
        begin, f"const Index terms = elements<{len(axes)}>({extents});",
        "for (Index i = thread_index(); i < terms; i += THREADS) {",
        f"Index k[{max(len(axes), 1)}];", f"coordinates<{len(axes)}>(i, {extents}, k);", *assignments,
        *text.scalar(reduce.arg, len(of)), add, "}",
        f"found = together(found, [](auto a, auto b) {{ return {combine}; }});",
        f"if (thread_index() == 0) {end}",
    ]  # fmt: skip
    return text.loop(shape, lines, "block_index()", "(last_block() + 1)")


def _running_sum(text: Text, reduce: Reduce, shape: Shape, to: str, running: Running) -> str:
    """Return the loop with a thread for each line."""
    axis = running.axis % len(shape)
    lines = (*shape[:axis], 1, *shape[axis + 1 :])
    extent, wide = text.numbers.extent(shape, axis), _wide(reduce.dtype)
    where = f"position<{len(shape)}>(c, {text.numbers.extents(shape)})"
    write, add = f"keep({to}, {where}, ({element_types.computed(reduce.dtype)})found);", f"found = found + ({wide})r;"
    work = [write, add] if running.exclusive else [add, write]
    at = f"{extent} - 1 - i" if running.reverse else "i"
    return text.loop(
        lines,
        [
            f"{wide} found = 0;", f"for (Index i = 0; i < {extent}; ++i) {{", f"c[{axis}] = {at};",
            *text.scalar(reduce.arg, len(shape)), *work, "}",
        ],
    )  # fmt: skip


def _wide(dtype: int) -> str:
    """Return the C++ accumulator type, wide enough that rounding of n terms does not matter."""
    if element_types.is_real(dtype):
        return "double"
    return "unsigned long long" if element_types.computed(dtype) == "unsigned long long" else "long long"


def _identity(reduce: Reduce, dtype: int) -> str:
    if reduce.kind in ("sum", "mean", "prod"):
        return str(int(reduce.kind == "prod"))
    upward = reduce.kind in ("max", "argmax", "argmax_last")
    if element_types.is_real(dtype):
        least = f"double_of_bits({'0xFFF0' if upward else '0x7FF0'}ull << 48)"
    else:
        facts = element_types.TYPES[dtype]
        least = element_types.literal(facts.low if upward else facts.high, dtype)
    if not reduce.kind.startswith("arg"):
        return least
    return f"{{{least}, {'0' if reduce.kind.endswith('_last') else '(Index)-1'}}}"
