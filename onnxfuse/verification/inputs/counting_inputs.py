"""Valid values of operator inputs that are counts, indices or sizes, from the roles that the operators' entries give
them.

The values depend on extents that only a case fixes: an `Extent` expresses what to compute then.
"""

import math
from collections.abc import Sequence
from functools import singledispatch

from onnx import TensorProto

from onnxfuse.ops import inputs as roles
from onnxfuse.symbolic.integer import Int, IntLike
from onnxfuse.verification.inputs import col2im_sizes
from onnxfuse.verification.inputs.counted_extents import UNKNOWN_EXTENT, InputValues, IntegerRange, Site
from onnxfuse.verification.run.tensors import LENGTH


def accepted(site: Site) -> InputValues | None:
    """Return the values that the operator accepts at that input; None if it is data, or unknown."""
    role = None if site.operator is None else site.operator.role(site.position)
    return None if role is None else values(role, site)


@singledispatch
def values(role: roles.Role, site: Site) -> InputValues | None:
    """Return the values of an input with a role; None where any value is valid."""
    return None


def _axis(site: Site, axis: roles.Axis) -> int:
    return axis if isinstance(axis, int) else int(site.attribute(*axis))


def _extent(site: Site, of: str, axis: roles.Axis) -> IntLike:
    return site.extent(site.at(of), _axis(site, axis))


def _within(low: IntLike, high: IntLike, *, real: bool = False, limited: bool = True) -> InputValues:
    return InputValues("within", (IntegerRange(low, high, limited),), real=real)


# ---- numbers


@values.register
def _(role: roles.Mask, site: Site) -> InputValues:
    return InputValues("mask")


@values.register(roles.Count)
@values.register(roles.Offset)
def _(role: roles.Count | roles.Offset, site: Site) -> InputValues:
    return _within(role.least, role.most, limited=False)


@values.register
def _(role: roles.Fraction, site: Site) -> InputValues:
    """Integers only where there is but one: a ratio that must be 0."""
    return _within(role.least, role.most, real=role.least < role.most, limited=False)


@values.register
def _(role: roles.Padding, site: Site) -> InputValues:
    """Reflect padding allows fewer than there are elements."""
    return _within(0, 2 if site.attribute("mode", b"constant") == b"constant" else 1, limited=False)


@values.register
def _(role: roles.ZeroPoint, site: Site) -> InputValues | None:
    """Zero points other than 0 are invalid for products in int32."""
    found = site.types.get(site.node.input[site.position])
    return _within(0, 0, limited=False) if found is not None and found.dtype == TensorProto.INT32 else None


# ---- shapes


@values.register
def _(role: roles.Extents, site: Site) -> InputValues:
    """Small ones, so that the result fits any memory."""
    return _within(1, 4, limited=False)


@values.register
def _(role: roles.TargetShape, site: Site) -> InputValues:
    return InputValues("target")


@values.register
def _(role: roles.BroadcastShape, site: Site) -> InputValues:
    of = site.at(role.of)
    shape = site.shape(of) or ()
    spans = [
        IntegerRange(1, 3) if d == 1 else IntegerRange(site.extent(of, a), site.extent(of, a))
        for a, d in enumerate(shape)
    ]
    return InputValues("each", (IntegerRange(1, 3), *spans))


@values.register(roles.Scales)
@values.register(roles.ResizedShape)
def _resized(role: roles.Scales | roles.ResizedShape, site: Site) -> InputValues:
    """Batch and channels are unchanged."""
    of = site.at(role.of)
    shape = site.shape(of) or ()
    chosen = [int(a) for a in site.attribute("axes", range(len(shape)))]
    spans = []
    for axis in chosen:
        extent = 1 if isinstance(role, roles.Scales) else site.extent(of, axis)
        unchanged = axis in (0, 1) and len(shape) > 2
        spans.append(IntegerRange(extent, extent if unchanged else 2 * extent))
    return InputValues("each", tuple(spans))


@values.register
def _(role: roles.CropRegion, site: Site) -> InputValues:
    if len(site.node.input) == 2:  # Resize of operator set 10
        return _resized(roles.Scales(role.of), site)
    rank = len(site.shape(site.at(role.of)) or ())
    return InputValues("each", (*[IntegerRange(0, 0)] * rank, *[IntegerRange(1, 1)] * rank))


@values.register
def _(role: roles.Boxes, site: Site) -> InputValues:
    """Boxes inside the image: a corner near its first pixel, and a later one."""
    far = [IntegerRange(1, site.extent(site.at(role.of), a)) for a in (-1, -2)]
    return InputValues("each", (IntegerRange(0, 1), IntegerRange(0, 1), *far), real=True)


@values.register
def _(role: roles.GridShape, site: Site) -> InputValues:
    """The batch is that of the matrices."""
    matrix = site.shape(0) or (None, 2, 3)
    return InputValues(
        "each",
        (IntegerRange(site.extent(0, 0), site.extent(0, 0)), *[IntegerRange(1, 4)] * (3 if matrix[1] == 2 else 4)),
    )


@values.register
def _(role: roles.ImageShape, site: Site) -> InputValues:
    return col2im_sizes.image(site)


@values.register
def _(role: roles.BlockShape, site: Site) -> InputValues:
    return col2im_sizes.block(site)


def _unpooled(site: Site) -> Sequence[IntLike]:
    """Return the output extent of each spatial axis of MaxUnpool."""
    kernel = site.attribute("kernel_shape", ())
    strides = site.attribute("strides", [1] * len(kernel))
    pads = site.attribute("pads", [0] * 2 * len(kernel))
    return [
        (site.extent(0, 2 + n) - 1) * s + (k - pads[n] - pads[n + len(kernel)])
        for n, (k, s) in enumerate(zip(kernel, strides, strict=False))
    ]  # fmt: skip


@values.register
def _(role: roles.UnpooledShape, site: Site) -> InputValues:
    every = [site.extent(0, 0), site.extent(0, 1), *_unpooled(site)]
    return InputValues("each", tuple(IntegerRange(e, e) for e in every))


# ---- axes, and lengths along them


@values.register
def _(role: roles.Axes, site: Site) -> InputValues:
    shape, own = site.shape(site.at(role.of)), site.shape(site.position)
    if role.single:
        return InputValues("axes", choices=tuple(a for a, d in enumerate(shape or ()) if d == 1) or (0,))
    count = own[0] if own and isinstance(own[0], int) else 1
    rank = 1 if shape is None else len(shape) + role.inserted * count - role.but_last
    return InputValues("axes", choices=tuple(range(max(rank, 1))))


@values.register
def _(role: roles.Length, site: Site) -> InputValues:
    return _within(1, _extent(site, role.of, role.axis))


@values.register
def _(role: roles.Integer, site: Site) -> InputValues:
    extent = _extent(site, role.of, role.axis)
    return _within(extent, extent)


@values.register
def _(role: roles.StartIndex, site: Site) -> InputValues:
    return _within(0, _extent(site, role.of, role.axis) - _extent(site, role.part, role.along))


@values.register
def _(role: roles.Parts, site: Site) -> InputValues:
    scalar = site.shape(site.position) == ()
    return InputValues("within" if scalar else "parts", (IntegerRange(1, _extent(site, role.of, role.axis)),))


@values.register
def _(role: roles.ScanLength, site: Site) -> InputValues | None:
    """From operator set 9 on there is no such input."""
    body = site.attribute("body", None)
    if body is None or len(body.input) != len(site.node.input) - 1:
        return None
    first = len(site.node.input) - int(site.attribute("num_scan_inputs", 1))
    return _within(1, site.extent(first, 1))


def _cached(site: Site) -> tuple[IntLike, IntLike]:
    """Return the number of new tokens of GroupQueryAttention, and the total including its KV cache."""
    fresh, past = site.extent(0, 1), site.at("past_key")
    return fresh, fresh + site.extent(past, 2) if site.has(past) else fresh


@values.register
def _(role: roles.TotalLength, site: Site) -> InputValues:
    """At most the rows of the rotary table."""
    _, total = _cached(site)
    table = site.at("cos_cache")
    rows = (IntegerRange(0, site.extent(table, 0)),) if site.has(table) else ()
    return InputValues("within", (IntegerRange(total, total), *rows))


# ---- indices


@values.register
def _(role: roles.Indices, site: Site) -> InputValues:
    return _within(0, _extent(site, role.of, role.axis) - 1)


@values.register
def _(role: roles.IndexTuples, site: Site) -> InputValues | None:
    of, start = site.at(role.of), _axis(site, role.first)
    shape, own = site.shape(of), site.shape(site.position)
    if shape is None:
        return _within(0, site.extent(of, start) - 1)
    many = own[-1] if own and isinstance(own[-1], int) else len(shape)
    spans = [IntegerRange(0, site.extent(of, a) - 1) for a in range(start, min(start + many, len(shape)))]
    return InputValues("within", tuple(spans)) if spans else None


@values.register
def _(role: roles.DepthIndex, site: Site) -> InputValues | None:
    """None if the depth is no constant."""
    depth = site.numbers.get(site.node.input[site.at(role.depth)])
    return None if depth is None else _within(0, depth - 1)


@values.register
def _(role: roles.PooledIndex, site: Site) -> InputValues:
    """Indices into the output if it is unpadded; else into the input, which is not larger."""
    shape = site.shape(0) or (None,)
    kernel, pads = site.attribute("kernel_shape", ()), site.attribute("pads", ())
    strides = site.attribute("strides", [1] * len(kernel))
    grown = math.prod(strides) if not any(pads) and all(k >= s for k, s in zip(kernel, strides, strict=False)) else 1
    return _within(0, grown * math.prod(UNKNOWN_EXTENT if d is None else d for d in shape) - 1)


@values.register
def _(role: roles.GroupIndex, site: Site) -> InputValues:
    return _within(0, -(-int(site.attribute("K", 1)) // int(site.attribute("block_size", 1))) - 1)


@values.register
def _(role: roles.LastToken, site: Site) -> InputValues:
    fresh, total = _cached(site)
    table = site.at("cos_cache")
    rows = (IntegerRange(0, site.extent(table, 0) - 1),) if site.has(table) else ()
    return InputValues("within", (IntegerRange(fresh - 1, total - 1), *rows))


@values.register
def _(role: roles.SequenceIndex, site: Site) -> InputValues:
    """Of any entry; the sequence has its length by name if it is an input of the model, else the first is read."""
    return _within(0, Int.name(f"{site.node.input[0]}{LENGTH}") - 1)


# ---- what depends on the node


@values.register
def _(role: roles.ByRank, site: Site) -> InputValues | None:
    shape = site.shape(site.position)
    return values(role.other if shape is None else role.ranks.get(len(shape), role.other), site)


@values.register
def _(role: roles.IfPresent, site: Site) -> InputValues | None:
    return values(role.role if site.has(site.at(role.input)) else role.other, site)
