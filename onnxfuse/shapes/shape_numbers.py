"""Integer tensors computed from shapes, symbolic elements included, such as Reshape targets and Pad amounts."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import floordiv

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from onnxfuse import ops
from onnxfuse.shapes.extents import computed
from onnxfuse.shapes.types import Dim
from onnxfuse.shapes.value_facts import LIMIT, Elements, Numbers, Ratio, ValueFacts, attribute, integer
from onnxfuse.symbolic.integer import IntLike, bounds, ceiling, exact_quotient, largest, smallest

Moved = Callable[[ValueFacts, NodeProto, Elements, list[Numbers]], Numbers]
"""Return the elements of a result from those of the first operand and of the others."""


def element_values(known: ValueFacts, node: NodeProto) -> Numbers:
    """Return the known elements of a node's only output. Raises numpy's exceptions for inconsistent inputs."""
    if node.op_type == ops.Shape:
        shape, end = known.shapes.get(node.input[0]), attribute(node, "end")
        part = slice(integer(node, "start", 0), None if end is None else int(end))
        return None if shape is None else np.array(shape[part], object)
    given = [known.numbers.get(v) for v in node.input if v]
    elements = [g for g in given if g is not None]
    if node.op_type in _ELEMENTS:
        compute = (
            _known(_real_quotient) if node.op_type == ops.Div and is_real(known, node) else _ELEMENTS[node.op_type]
        )
        return _elementwise(compute, elements) if len(elements) == len(given) else None
    moved = _MOVED.get(node.op_type)
    return None if moved is None or not given or given[0] is None else moved(known, node, given[0], given[1:])


def is_real(known: ValueFacts, node: NodeProto) -> bool:
    """Return whether the result of a node on integers is of a floating-point type."""
    if node.op_type == ops.Cast:
        return integer(node, "to", 0) in _REALS
    return node.op_type != ops.Shape and not known.reals.isdisjoint(node.input)


_REALS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def _elementwise(compute: Callable[..., Dim | Ratio], given: list[Elements]) -> Numbers:
    if np.broadcast(*given).size > LIMIT:
        return None
    return np.asarray(np.frompyfunc(compute, len(given), 1)(*given), object)


def _quotient(a: IntLike, b: IntLike) -> Dim:
    """Return a / b rounded towards zero, as ONNX does; None if the sign of a symbolic quotient is not known."""
    found = exact_quotient(a, b)
    return a // b if found is None and bounds(a)[0] >= 0 and bounds(b)[0] >= 0 and b != 0 else found


def _real_quotient(a: IntLike, b: IntLike) -> Dim | Ratio:
    """Return a / b of floating-point numbers."""
    found = exact_quotient(a, b)
    return Ratio(a, b) if found is None and isinstance(b, int) and b > 0 else found


def _rounded(by: Callable[[IntLike, IntLike], IntLike]) -> Moved:
    """Return the function of an operator that rounds numbers, whole ones to themselves."""

    def rounded(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
        def element(x: Dim | Ratio) -> Dim:
            return by(x.above, x.below) if isinstance(x, Ratio) else x

        return np.asarray(np.frompyfunc(element, 1, 1)(first), object)

    return rounded


def _cast(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    if is_real(known, node):
        return first
    parts = [x for x in first.reshape(-1) if isinstance(x, Ratio)]
    if any(bounds(x.above)[0] < 0 for x in parts):  # rounded towards zero
        return None
    return _rounded(floordiv)(known, node, first, more)


def _remainder(a: IntLike, b: IntLike) -> Dim:
    """Return the remainder, None where its sign may be that of either operand."""
    plain = (isinstance(a, int) and isinstance(b, int)) or (bounds(a)[0] >= 0 and bounds(b)[0] >= 0)
    return a % b if plain and b != 0 else None


def _equal(a: IntLike, b: IntLike) -> Dim:
    """Return whether two integers are equal, 1 or 0; None if they may be."""
    least, most = bounds(a - b)
    return 1 if least == most == 0 else 0 if least > 0 or most < 0 else None


def _known(compute: Callable[..., Dim | Ratio]) -> Callable[..., Dim | Ratio]:
    return partial(computed, compute)


def _where(condition: Dim, yes: Dim, no: Dim) -> Dim:
    return None if not isinstance(condition, int) else yes if condition else no


_ELEMENTS: Mapping[str, Callable[..., Dim | Ratio]] = {
    ops.Add: _known(lambda a, b: a + b), ops.Sub: _known(lambda a, b: a - b), ops.Mul: _known(lambda a, b: a * b),
    ops.Div: _known(_quotient), ops.Mod: _known(_remainder), ops.Equal: _known(_equal), ops.Max: _known(largest),
    ops.Min: _known(smallest), ops.Where: _where,
}  # fmt: skip


def _same(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    return first


def _unsqueezed(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    written = attribute(node, "axes")
    axes = list(written) if isinstance(written, list) else known.ints(node, 1)
    return None if axes is None else np.expand_dims(first, tuple(axes))


def _squeezed(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    axes = known.axes(node, 1, max(first.ndim, 1))
    if axes is None:
        return np.squeeze(first) if not more else None
    return np.squeeze(first, tuple(axes))


def _reshaped(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    target = attribute(node, "shape") or known.ints(node, 1)
    if target is None:
        return None
    copies = not attribute(node, "allowzero", 0)
    return first.reshape([first.shape[i] if copies and d == 0 else d for i, d in enumerate(target)])


def _turned(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    return np.transpose(first, attribute(node, "perm"))


def _joined(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    parts = [first, *(m for m in more if m is not None)]
    return np.concatenate(parts, integer(node, "axis", 0)) if len(parts) == len(more) + 1 else None


def _gathered(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    indices = more[0]
    if indices is None or not all(isinstance(i, int) for i in indices.reshape(-1)):
        return None
    return np.asarray(np.take(first, indices.astype(np.int64), integer(node, "axis", 0)), object)


def _sliced(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    if known.opset < 10:
        return None
    bounds = [known.ints(node, n) if len(node.input) > n and node.input[n] else [] for n in range(1, 5)]
    starts, ends, axes, steps = bounds
    if starts is None or ends is None or axes is None or steps is None:
        return None
    cut = [slice(None)] * first.ndim
    several = zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True)
    for start, end, axis, step in several:
        cut[axis] = slice(start, end, step)
    return first[tuple(cut)]


def _filled(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    shape = known.ints(node, 0)
    if shape is None or np.prod(shape, dtype=object) > LIMIT:
        return None
    value = attribute(node, "value")
    fill = numpy_helper.to_array(value).reshape(-1) if isinstance(value, onnx.TensorProto) else np.zeros(1, np.float32)
    return np.full(shape, int(fill[0]), object) if fill.dtype.kind == "i" else None


def _one_hot(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    """Repeats of torch's repeat_interleave: 1 except for one axis."""
    places, depth, values = known.ints(node, 0), known.ints(node, 1), more[1]
    if places is None or depth is None or values is None or len(places) * depth[0] > LIMIT:
        return None
    spread = np.full((len(places), depth[0]), values[0], object)
    for row, place in zip(spread, places, strict=True):
        if -depth[0] <= place < depth[0]:
            row[place] = values[1]
    return np.moveaxis(spread.reshape(*first.shape, depth[0]), -1, integer(node, "axis", -1))


def _multiplied(known: ValueFacts, node: NodeProto, first: Elements, more: list[Numbers]) -> Numbers:
    axes = known.axes(node, 1, max(first.ndim, 1))
    if axes is None and (more or attribute(node, "noop_with_empty_axes", 0)):
        return None
    found = first
    for axis in sorted(range(first.ndim) if axes is None else axes, reverse=True):
        found = np.asarray(np.frompyfunc(_ELEMENTS[ops.Mul], 2, 1).reduce(found, axis, initial=1), object)
        found = np.expand_dims(found, axis) if attribute(node, "keepdims", 1) else found
    return found


_MOVED: Mapping[str, Moved] = {
    ops.Identity: _same, ops.Cast: _cast, ops.Ceil: _rounded(ceiling), ops.Floor: _rounded(floordiv),
    ops.Unsqueeze: _unsqueezed, ops.Squeeze: _squeezed, ops.Reshape: _reshaped, ops.Transpose: _turned,
    ops.Concat: _joined, ops.Gather: _gathered, ops.Slice: _sliced, ops.ConstantOfShape: _filled, ops.OneHot: _one_hot,
    ops.ReduceProd: _multiplied,
}  # fmt: skip
