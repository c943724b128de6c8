"""Valid values of operator inputs that are counts, indices or sizes.

`ENTRIES` has an entry per operator and input; `PLAIN` lists the integer inputs of ONNX's operators that are data. The
values depend on extents that only a case fixes: an `Extent` expresses what to compute then.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.verification.inputs import col2im_sizes
from onnxfuse.verification.inputs.counted_extents import CountedExtent, InputValues, IntegerRange, Site

MICROSOFT = "com.microsoft"


Entry = Callable[[Site], InputValues | None]
Axis = int | tuple[str, int]
"""An axis, or the attribute that holds it, and its default."""


def _axis(site: Site, axis: Axis) -> int:
    return axis if isinstance(axis, int) else int(site.attribute(*axis))


def _span(low: CountedExtent | int, high: CountedExtent | int) -> IntegerRange:
    ends = [e if isinstance(e, CountedExtent) else CountedExtent((), e) for e in (low, high)]
    return IntegerRange(*ends)


def between(low: int, high: int, *, real: bool = False) -> Entry:
    """Integers of one range, independent of shapes."""
    return lambda _: InputValues("within", (_span(low, high),), real=real)


def rows(of: int, axis: Axis) -> Entry:
    """Indices along an axis of input `of`."""
    return lambda site: InputValues("within", (_span(0, site.extent(of, _axis(site, axis)) - 1),))


def length(of: int, axis: Axis, least: int = 1) -> Entry:
    """A length up to the extent of an axis of input `of`."""
    return lambda site: InputValues("within", (_span(least, site.extent(of, _axis(site, axis))),))


def exactly(of: int, axis: Axis) -> Entry:
    """Exactly the extent of an axis of input `of`."""

    def entry(site: Site) -> InputValues:
        extent = site.extent(of, _axis(site, axis))
        return InputValues("within", (_span(extent, extent),))

    return entry


def room(of: int, axis: Axis, what: int, along: Axis) -> Entry:
    """Start offsets in an axis of input `of` such that an axis of input `what` fits."""

    def entry(site: Site) -> InputValues:
        return InputValues(
            "within", (_span(0, site.extent(of, _axis(site, axis)) - site.extent(what, _axis(site, along))),)
        )

    return entry


def tuples(first: int | str) -> Entry:
    """Index tuples into input 0, from the axis `first` on or the one in this attribute."""

    def entry(site: Site) -> InputValues | None:
        start = first if isinstance(first, int) else int(site.attribute(first, 0))
        shape, own = site.shape(0), site.shape(1)
        if shape is None:
            return rows(0, start)(site)
        many = own[-1] if own and isinstance(own[-1], int) else len(shape)
        spans = [_span(0, site.extent(0, a) - 1) for a in range(start, min(start + many, len(shape)))]
        return InputValues("within", tuple(spans)) if spans else None

    return entry


def axes(of: int, more: int = 0, but_last: int = 0) -> Entry:
    """Distinct axes of input `of`; if the result has `more` of them, without the last ones."""

    def entry(site: Site) -> InputValues:
        shape, own = site.shape(of), site.shape(site.position)
        count = own[0] if own and isinstance(own[0], int) else 1
        rank = 1 if shape is None else len(shape) + more * count - but_last
        return InputValues("axes", choices=tuple(range(max(rank, 1))))

    return entry


def _squeezed(site: Site) -> InputValues:
    """Axes of extent 1."""
    shape = site.shape(0) or ()
    return InputValues("axes", choices=tuple(a for a, d in enumerate(shape) if d == 1) or (0,))


def parts(of: int, axis: Axis) -> Entry:
    """Parts that sum to the extent of an axis; a single integer is the size of each part."""

    def entry(site: Site) -> InputValues:
        extent = site.extent(of, _axis(site, axis))
        scalar = site.shape(site.position) == ()
        return InputValues("within" if scalar else "parts", (_span(1, extent),))

    return entry


def by_rank(entries: Mapping[int, Entry], other: Entry) -> Entry:
    """Values that depend on the rank of the input itself."""

    def entry(site: Site) -> InputValues | None:
        shape = site.shape(site.position)
        return (other if shape is None else entries.get(len(shape), other))(site)

    return entry


def where(position: int, entry: Entry, other: Entry) -> Entry:
    """`entry` if the node has the input at `position`."""
    return lambda site: (entry if site.has(position) else other)(site)


def mask(_: Site) -> InputValues:
    """Zeros and ones."""
    return InputValues("mask")


def _depth(site: Site) -> InputValues | None:
    """Indices of OneHot, if its depth is constant."""
    depth = site.numbers.get(site.node.input[1])
    return None if depth is None else InputValues("within", (_span(0, CountedExtent(((depth, ()),), -1)),))


def _expanded(site: Site) -> InputValues:
    """A shape to which input 0 can be broadcast."""
    shape = site.shape(0) or ()
    spans = [_span(1, 3) if d == 1 else _span(site.extent(0, a), site.extent(0, a)) for a, d in enumerate(shape)]
    return InputValues("each", (_span(1, 3), *spans))


def resized(times: int) -> Entry:
    """Sizes of a Resize, or its factors with `times` 0: batch and channels are unchanged."""

    def entry(site: Site) -> InputValues:
        chosen = [int(a) for a in site.attribute("axes", range(len(site.shape(0) or ())))]
        spans = []
        for axis in chosen:
            extent = site.extent(0, axis) if times else CountedExtent((), 1)
            stays = axis in (0, 1) and len(site.shape(0) or ()) > 2
            spans.append(_span(extent, extent if stays else extent.times(2)))
        return InputValues("each", tuple(spans))

    return entry


def _roi_or_scales(site: Site) -> InputValues:
    """Input 1 of Resize: factors in opset 10, a region in [0, 1] from opset 11 on."""
    if len(site.node.input) == 2:
        return resized(0)(site) or InputValues("mask")
    rank = len(site.shape(0) or ())
    return InputValues("each", (*[_span(0, 0)] * rank, *[_span(1, 1)] * rank))


def _region(site: Site) -> InputValues:
    """Boxes inside the image: a corner near its first pixel, and a later one."""
    far = [_span(1, site.extent(0, a)) for a in (-1, -2)]
    return InputValues("each", (_span(0, 1), _span(0, 1), *far), real=True)


def _grid(site: Site) -> InputValues:
    """The size of AffineGrid, whose batch is that of the matrices."""
    matrix = site.shape(0) or (None, 2, 3)
    return InputValues(
        "each", (_span(site.extent(0, 0), site.extent(0, 0)), *[_span(1, 4)] * (3 if matrix[1] == 2 else 4))
    )


def _padding(site: Site) -> InputValues:
    """Padding widths; reflect padding allows fewer than there are elements."""
    return InputValues("within", (_span(0, 2 if site.attribute("mode", b"constant") == b"constant" else 1),))


def _zero_point(site: Site) -> InputValues | None:
    """Zero points other than 0 are invalid for products in int32."""
    found = site.types.get(site.node.input[site.position])
    return InputValues("within", (_span(0, 0),)) if found is not None and found.dtype == TensorProto.INT32 else None


def _unpooled(site: Site) -> Sequence[CountedExtent]:
    """Return the output extent of each spatial axis of MaxUnpool."""
    kernel = site.attribute("kernel_shape", ())
    strides = site.attribute("strides", [1] * len(kernel))
    pads = site.attribute("pads", [0] * 2 * len(kernel))
    return [
        (site.extent(0, 2 + n) - 1).times(s) + (k - pads[n] - pads[n + len(kernel)])
        for n, (k, s) in enumerate(zip(kernel, strides, strict=False))
    ]  # fmt: skip


def _places(site: Site) -> InputValues:
    """Indices into MaxUnpool's output if it is unpadded; else into its input, which is not larger."""
    shape = site.shape(0) or (None,)
    kernel, pads = site.attribute("kernel_shape", ()), site.attribute("pads", ())
    strides = site.attribute("strides", [1] * len(kernel))
    grown = math.prod(strides) if not any(pads) and all(k >= s for k, s in zip(kernel, strides, strict=False)) else 1
    return InputValues("within", (_span(0, CountedExtent(((grown, tuple(shape)),), -1)),))


def _unpooled_shape(site: Site) -> InputValues:
    """The output shape of MaxUnpool."""
    every = [site.extent(0, 0), site.extent(0, 1), *_unpooled(site)]
    return InputValues("each", tuple(_span(e, e) for e in every))


def _steps(site: Site) -> InputValues | None:
    """The sequence length of each row in Scan of opset 8; from opset 9 on there is no such input."""
    body = site.attribute("body", None)
    if body is None or len(body.input) != len(site.node.input) - 1:
        return None
    return length(len(site.node.input) - int(site.attribute("num_scan_inputs", 1)), 1)(site)


def _groups(site: Site) -> InputValues:
    """Blocks per row of MatMulNBits."""
    return InputValues(
        "within", (_span(0, -(-int(site.attribute("K", 1)) // int(site.attribute("block_size", 1))) - 1),)
    )


def _cached(site: Site) -> tuple[CountedExtent, CountedExtent]:
    """Return the number of new tokens of GroupQueryAttention, and the total including its KV cache."""
    fresh = site.extent(0, 1)
    return fresh, fresh + site.extent(3, 2) if site.has(3) else fresh


def _total_length(site: Site) -> InputValues:
    """The total length of GroupQueryAttention, at most the rows of its rotary table."""
    _, total = _cached(site)
    spans = [_span(total, total)]
    if site.has(7):
        spans.append(_span(0, site.extent(7, 0)))
    return InputValues("within", tuple(spans))


def _last_tokens(site: Site) -> InputValues:
    """The last token of each row of GroupQueryAttention."""
    fresh, total = _cached(site)
    spans = [_span(fresh - 1, total - 1)]
    if site.has(7):
        spans.append(_span(0, site.extent(7, 0) - 1))
    return InputValues("within", tuple(spans))


SIZE = between(1, 4)
"""A generic count: small, so that the result fits any memory."""
FIRST = between(0, 0)
"""The first of a sequence of unknown length."""
FLAG = between(0, 1)

ENTRIES: Mapping[tuple[str, str], Mapping[int, Entry]] = {
    ("", ops.AffineGrid): {1: _grid},
    ("", ops.Attention): {6: length(1, -2)},
    ("", ops.BitShift): {1: between(0, 7)},
    ("", ops.BlackmanWindow): {0: between(1, 16)},
    ("", ops.CenterCropPad): {1: SIZE},
    ("", ops.Col2Im): {1: col2im_sizes.image, 2: col2im_sizes.block},
    ("", ops.ConstantOfShape): {0: SIZE},
    ("", ops.CumProd): {1: axes(0)},
    ("", ops.CumSum): {1: axes(0)},
    ("", ops.DFT): {1: between(1, 16), 2: axes(0, but_last=1)},
    ("", ops.DequantizeLinear): {2: _zero_point},
    ("", ops.Dropout): {1: between(0, 0)},
    ("", ops.Expand): {1: _expanded},
    ("", ops.GRU): {4: length(0, ("layout", 0))},
    ("", ops.Gather): {1: rows(0, ("axis", 0))},
    ("", ops.GatherElements): {1: rows(0, ("axis", 0))},
    ("", ops.GatherND): {1: tuples("batch_dims")},
    ("", ops.HammingWindow): {0: between(1, 16)},
    ("", ops.HannWindow): {0: between(1, 16)},
    ("", ops.LSTM): {4: length(0, ("layout", 0))},
    ("", ops.Loop): {0: SIZE},
    ("", ops.MaxUnpool): {1: _places, 2: _unpooled_shape},
    ("", ops.MelWeightMatrix): {
        0: SIZE, 1: between(32, 64), 2: between(8000, 16000), 3: between(0, 500), 4: between(2000, 4000),
    },
    ("", ops.NegativeLogLikelihoodLoss): {1: rows(0, 1)},
    ("", ops.NonMaxSuppression): {2: SIZE, 3: between(0, 1, real=True), 4: between(-1, 1, real=True)},
    ("", ops.OneHot): {0: _depth, 1: SIZE},
    ("", ops.Pad): {1: _padding, 3: axes(0)},
    ("", ops.RNN): {4: length(0, ("layout", 0))},
    ("", ops.Range): {0: FLAG, 1: between(2, 4), 2: between(1, 2)},
    **{("", f"Reduce{name}"): {1: axes(0)} for name in (
        "L1", "L2", "LogSum", "LogSumExp", ops.Max, ops.Mean, ops.Min, "Prod", ops.Sum, "SumSquare",
    )},
    ("", ops.Reshape): {1: lambda _: InputValues("target")},
    ("", ops.Resize): {1: _roi_or_scales, 2: resized(0), 3: resized(1)},
    ("", ops.ReverseSequence): {1: length(0, ("time_axis", 0))},
    ("", ops.RoiAlign): {1: _region, 2: rows(0, 0)},
    ("", ops.RotaryEmbedding): {3: rows(1, 0)},
    ("", ops.STFT): {1: between(1, 4), 3: where(2, exactly(2, 0), length(0, 1))},
    ("", ops.Scan): {0: _steps},
    ("", ops.Scatter): {1: rows(0, ("axis", 0))},
    ("", ops.ScatterElements): {1: rows(0, ("axis", 0))},
    ("", ops.ScatterND): {1: tuples(0)},
    ("", ops.SequenceAt): {1: FIRST},
    ("", ops.SequenceErase): {1: FIRST},
    ("", ops.SequenceInsert): {2: FIRST},
    ("", ops.Slice): {1: FLAG, 2: between(2, 8), 3: axes(0), 4: between(1, 2)},
    ("", ops.SoftmaxCrossEntropyLoss): {1: rows(0, 1)},
    ("", ops.Split): {1: parts(0, ("axis", 0))},
    ("", ops.SplitToSequence): {1: parts(0, ("axis", 0))},
    ("", ops.Squeeze): {1: _squeezed},
    ("", ops.TensorScatter): {2: room(0, ("axis", -2), 1, ("axis", -2))},
    ("", ops.Tile): {1: between(1, 3)},
    ("", ops.TopK): {1: length(0, ("axis", -1))},
    ("", ops.Trilu): {1: between(-2, 2)},
    ("", ops.Unsqueeze): {1: axes(0, more=1)},
    ("", ops.Upsample): {1: resized(0)},
    ("ai.onnx.ml", "ArrayFeatureExtractor"): {1: rows(0, -1)},
    ("ai.onnx.preview.training", "Adagrad"): {1: SIZE},
    ("ai.onnx.preview.training", "Adam"): {1: SIZE},
    ("ai.onnx.preview.training", "Momentum"): {1: SIZE},
    (MICROSOFT, ops.Attention): {3: by_rank({1: length(0, 1)}, mask), 6: room(4, 3, 0, 1)},
    (MICROSOFT, "AttnLSTM"): {4: length(0, 0), 12: length(11, 1)},
    (MICROSOFT, "CropAndResize"): {1: between(0, 1, real=True), 2: rows(0, 0), 3: SIZE},
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): {3: mask, 7: room(5, 2, 0, 1), 8: between(1, 1), 9: rows(9, 1)},
    (MICROSOFT, "DecoderMaskedSelfAttention"): {3: mask, 6: room(4, 3, 0, 1), 7: between(1, 1), 8: rows(8, 1)},
    (MICROSOFT, ops.DequantizeLinear): {2: _zero_point},
    (MICROSOFT, "DynamicQuantizeLSTM"): {4: length(0, 0)},
    (MICROSOFT, "EmbedLayerNormalization"): {0: rows(2, 0), 1: rows(4, 0), 7: mask, 8: rows(3, 0)},
    (MICROSOFT, "ExpandDims"): {1: axes(0)},
    (MICROSOFT, "GatherBlockQuantized"): {1: rows(0, ("gather_axis", 0))},
    (MICROSOFT, ops.GatherND): {1: tuples(0)},
    (MICROSOFT, ops.GroupQueryAttention): {5: _last_tokens, 6: _total_length, 9: where(7, rows(7, 0), SIZE)},
    (MICROSOFT, "LongformerAttention"): {6: mask},
    (MICROSOFT, "MRotaryEmbedding"): {1: rows(2, 0)},
    (MICROSOFT, ops.MatMulNBits): {4: _groups},
    (MICROSOFT, "MaxpoolWithMask"): {1: mask},
    (MICROSOFT, ops.MultiHeadAttention): {4: by_rank({1: length(1, 1)}, mask), 8: room(6, 2, 0, 1), 9: rows(9, 1)},
    (MICROSOFT, "NGramRepeatBlock"): {0: rows(1, 1)},
    (MICROSOFT, ops.Pad): {1: _padding},
    (MICROSOFT, "QAttention"): {5: by_rank({1: length(0, 1)}, mask)},
    (MICROSOFT, "QEmbedLayerNormalization"): {0: rows(2, 0), 1: rows(4, 0), 7: mask},
    (MICROSOFT, "RelativePositionBias"): {1: between(4, 4), 2: between(4, 4)},
    (MICROSOFT, ops.RotaryEmbedding): {1: by_rank({1: room(2, 0, 0, -2)}, rows(2, 0))},
    (MICROSOFT, "SparseAttention"): {7: exactly(3, 2), 8: length(3, 2)},
    (MICROSOFT, "TorchEmbedding"): {1: rows(0, 0), 2: FIRST},
    (MICROSOFT, ops.Trilu): {1: between(-2, 2)},
    (MICROSOFT, "WordConvEmbedding"): {0: rows(3, 0)},
}  # fmt: skip
"""By operator and input position, the values that the input accepts."""

PLAIN: Mapping[tuple[str, str], str] = {
    ("", ops.BitShift): "X", ("", ops.BitwiseAnd): "A B", ("", ops.BitwiseNot): "X", ("", ops.BitwiseOr): "A B",
    ("", ops.BitwiseXor): "A B", ("", ops.DequantizeLinear): "x", ("", ops.Equal): "A B", ("", ops.QLinearConv): "B",
    ("", ops.TfIdfVectorizer): "X", ("ai.onnx.ml", "CategoryMapper"): "X", ("ai.onnx.ml", "LabelEncoder"): "X",
}  # fmt: skip
"""Integer-only inputs of ONNX's operators that are data: any value is valid."""
