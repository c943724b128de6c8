"""Sliding windows in the body language: semantics of convolutions, pooling and linear Resize, by (domain, op type)."""

from collections.abc import Sequence

from onnxfuse import ops
from onnxfuse.codegen.operators import movement_ops
from onnxfuse.codegen.operators.contraction_ops import INT32, accumulator, integer_factors
from onnxfuse.codegen.operators.node import BodyNode, Handlers, Known, handles
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.movement import Squeezed
from onnxfuse.codegen.program.program import Contraction, Reduce, Resample, SlidingWindow
from onnxfuse.codegen.program.window import CENTRES, Along, Counted, Resizing, Sliding
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

WINDOW: Handlers = {}

DILATED = 19
"""The version of AveragePool with dilations."""

_LISTS = ("kernel_shape", "strides", "dilations", "pads")


@handles(WINDOW, ops.Conv)
def _conv(node: BodyNode) -> tuple[Term, ...]:
    if node.optional(2) is not None:
        raise UnsupportedError("a Conv with a bias of its own")
    x, w = node.term(0), node.term(1)
    if x.dtype != w.dtype:
        raise UnsupportedError(f"a convolution of {element_types.name(x.dtype)} by {element_types.name(w.dtype)}")
    return (_convolved(node, x, w, accumulator(x.dtype), x.dtype),)


@handles(WINDOW, ops.ConvInteger)
def _conv_integer(node: BodyNode) -> tuple[Term, ...]:
    """The convolution in int32, exact."""
    return (_convolved(node, *integer_factors(node), INT32, INT32),)


def _convolved(node: BodyNode, x: Term, w: Term, accumulated: int, dtype: int) -> Term:
    seen = node.builder.term(
        SlidingWindow((x.index, w.index), None, _sliding(node), _dims(node), Counted.WINDOW, x.dtype)
    )
    groups = int(node.number("group", 1))
    return node.builder.term(Contraction((seen.index, w.index), (1, 1), groups, accumulated, dtype))


@handles(WINDOW, ops.MaxPool, ops.AveragePool)
def _pool(node: BodyNode) -> tuple[Term, ...]:
    if (dims := _dims(node)) > 2:
        raise UnsupportedError(f"a pooling over {dims} dimensions, expected 1 or 2")
    x, mean, counted = node.term(0), node.op_type == ops.AveragePool, _counted(node)
    sliding, kernel = _sliding(node, pools=True), _list(node, "kernel_shape")
    if not kernel:
        raise UnsupportedError(f"{node.op_type} without kernel_shape")
    if sliding.auto_pad != "NOTSET" and sliding.dilations != (1, 1):
        # ONNX Runtime 1.31 pads for the undilated window, onnx's shape inference for the dilated one.
        raise UnsupportedError("a pooling with dilations and pads that follow from the size")
    if counted is Counted.WINDOW and sliding.ceil:
        raise UnsupportedError("a mean over padding in windows that pass it")
    return (pooled(x, _along(kernel, 1), sliding, dims, "mean" if mean else "max", counted),)


def _counted(node: BodyNode) -> Counted:
    if node.op_type != ops.AveragePool or not node.number("count_include_pad", 0):
        return Counted.IMAGE
    # ONNX Runtime 1.31 divides by the whole window before this version, also where that is larger than the image.
    return Counted.PADDING if node.opset >= DILATED else Counted.WINDOW


def pooled(x: Term, kernel: Along, sliding: Sliding, dims: int, kind: str, counted: Counted) -> Term:
    """Return the reduction over the windows of images [batch, channels, space...] with `dims` dimensions."""
    taps = tuple(range(-dims, 0))
    seen = x.builder.term(SlidingWindow((x.index,), kernel, sliding, dims, counted, x.dtype))
    result = x.builder.term(Reduce(kind, seen.index, taps, False, x.dtype))
    return x.builder.move(Squeezed(taps), result)


@handles(WINDOW, ops.Resize)
def _resize(node: BodyNode) -> tuple[Known, ...]:
    """Linear Resize: interpolates between adjacent pixels; all other modes are data movement."""
    mode = node.text("mode", "nearest")
    if mode != "linear":
        return movement_ops.MOVEMENT["", ops.Resize](node)
    centre = node.text("coordinate_transformation_mode", "half_pixel")
    if centre not in CENTRES or any(node.attributes.get(a) for a in ("axes", "antialias", "exclude_outside")):
        raise UnsupportedError(f"Resize by {mode}, {centre}, or with axes, antialias or exclude_outside")
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError("Resize that keeps the aspect ratio")
    scales, sizes = ([float(v) for v in node.constant(i).reshape(-1)] if _has(node, i) else [] for i in (2, 3))
    if sorted((len(scales), len(sizes))) != [0, 4] or (scales and scales[:2] != [1, 1]):
        raise UnsupportedError(
            f"Resize by linear with scales {scales} and sizes {sizes}, expected four of either and channels as they are"
        )
    x, factors = node.term(0), (scales[2], scales[3]) if scales else None
    how = Resizing(centre, factors, None if scales else (int(sizes[2]), int(sizes[3])))
    return (node.builder.term(Resample(x.index, how, x.dtype)),)


def _has(node: BodyNode, position: int) -> bool:
    return len(node.operands) > position and node.operands[position] is not None


def _list(node: BodyNode, attribute: str) -> tuple[int, ...]:
    value = node.attributes.get(attribute)
    return tuple(int(n) for n in value) if isinstance(value, list) else ()


def _dims(node: BodyNode) -> int:
    """Return the number of spatial dimensions by the attributes, 0 if they do not determine it."""
    sizes = {len(_list(node, k)) // (2 if k == "pads" else 1) for k in _LISTS if k in node.attributes}
    if len(sizes) > 1 or not sizes <= {1, 2, 3}:
        raise UnsupportedError(f"a convolution over {', '.join(map(str, sorted(sizes)))} dimensions, expected 1 to 3")
    return sizes.pop() if sizes else 0


def _sliding(node: BodyNode, *, pools: bool = False) -> Sliding:
    pads, dims = _list(node, "pads"), _dims(node)
    half = len(pads) // 2
    return Sliding(
        strides=_along(_list(node, "strides"), 1, dims),
        dilations=_along(_list(node, "dilations"), 1, dims),
        pads=(*_along(pads[:half], 0, dims), *_along(pads[half:], 0, dims)),
        auto_pad=node.text("auto_pad", "NOTSET"),
        ceil=bool(node.number("ceil_mode", 0)),
        pools=pools,
    )


def _along(values: Sequence[int], default: int, dims: int = 2) -> Along:
    """Return a value for each dimension, at least for rows and columns; a single one applies to columns."""
    return (default,) * (max(dims, 2) - len(values)) + tuple(int(v) for v in values)
