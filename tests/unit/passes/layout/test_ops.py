"""Operators between two convolutions mean the same channels last: nothing is turned around them."""

from typing import Any

import pytest

from tests.support.channels_last import CONV, between, nodes, weights
from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse

NEUTRAL: dict[str, tuple[str, dict[str, Any]]] = {
    "Relu": ("y = Relu (x)", {}),
    "Clip": ("y = Clip (x, low, high)", {"extra": ", float low = {-1}, float high = {2}"}),
    "one number per channel": ("y = Mul (x, m)", {"extra": ", " + weights("m", 4, 1, 1)}),
    "one number per channel, batch written": ("y = Add (m, x)", {"extra": ", " + weights("m", 1, 4, 1, 1)}),
    "one number per column": ("y = Mul (x, m)", {"extra": ", " + weights("m", 8)}),
    "one number per row and column": ("y = Add (x, m)", {"extra": ", " + weights("m", 9, 8)}),
    "a whole image": ("y = Add (x, m)", {"extra": ", " + weights("m", 4, 9, 8)}),
    "PRelu": ("y = PRelu (x, m)", {"extra": ", " + weights("m", 4, 1, 1)}),
    "gate": ("s = Sigmoid (x) y = Mul (x, s)", {}),
    "Where": ("c = Greater (x, m) y = Where (c, x, m)", {"extra": ", " + weights("m", 4, 1, 1)}),
    "Concat": ("r = Relu (x) y = Concat <axis = 1> (x, r)", {"channels": 8}),
    "Concat with a weight": (
        "y = Concat <axis = -3> (x, m)",
        {"channels": 5, "extra": ", " + weights("m", 3, 1, 9, 8)},
    ),
    "Concat of rows": ("r = Relu (x) y = Concat <axis = 2> (x, r)", {}),
    "Split": ("p, q = Split <axis = 1> (x) y = Sub (p, q)", {"channels": 2}),
    "Slice": (
        "y = Slice (x, from, to, axes)",
        {"channels": 2, "extra": ", int64[2] from = {1,2}, int64[2] to = {3,100}, int64[2] axes = {1,-1}"},
    ),
    "Pad": ("y = Pad (x, pads)", {"channels": 5, "extra": ", int64[8] pads = {0,1,0,2,0,0,3,1}"}),
    "Pad by what is computed": (
        "n = Shape (x) o = Mod (n, two) z = Sub (n, n) pads = Concat <axis = 0> (z, o) y = Pad (x, pads)",
        {"extra": ", int64 two = {2}"},
    ),
    "reflected": ('y = Pad <mode = "reflect"> (x, pads)', {"extra": ", int64[8] pads = {0,0,1,2,0,0,3,1}"}),
    "Pad of named axes": (
        "y = Pad (x, pads, zero, axes)",
        {"opset": 18, "extra": ", int64[4] pads = {1,0,2,3}, float zero = {0.5}, int64[2] axes = {-1,2}"},
    ),
    "Resize by factors": (
        'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
        " (x, , factors)",
        {"extra": ", float[4] factors = {1,1,2,3}"},
    ),
    "Resize to sizes": (
        'n = Shape <end = 2> (x) sizes = Concat <axis = 0> (n, plane) y = Resize <mode = "nearest"> (x, , , sizes)',
        {"extra": ", int64[2] plane = {5,17}"},
    ),
    "MaxPool": ("y = MaxPool <kernel_shape = [3,2], strides = [2,1], pads = [1,0,1,1]> (x)", {}),
    "AveragePool": ("y = AveragePool <kernel_shape = [3,2], pads = [1,0,1,1], count_include_pad = 1> (x)", {}),
    "LRN": ("y = LRN <size = 3> (x)", {}),
    "DepthToSpace": ("y = DepthToSpace <blocksize = 2> (x)", {"channels": 1}),
    "SpaceToDepth": ("p = Pad (x, pads) y = SpaceToDepth <blocksize = 2> (p)", {
        "channels": 16, "extra": ", int64[8] pads = {0,0,0,0,0,0,1,0}",
    }),
    "BatchNormalization": (
        "y = BatchNormalization <epsilon = 0.01> (x, s, t, m, v2)",
        {"extra": f", {weights('s', 4)}, {weights('t', 4)}, {weights('m', 4)}, float[4] v2 = {{1,2,0.5,3}}"},
    ),
    "two BatchNormalizations of one scale": (
        "p = BatchNormalization (x, s, t, m, v2) q = Tanh (p) y = BatchNormalization (q, s, t, m, v3)",
        {"extra": f", {weights('s', 4)}, {weights('t', 4)}, {weights('m', 4)}, float[4] v2 = {{1,2,0.5,3}}, "
                  "float[4] v3 = {9,4,0.25,1}"},
    ),
    "a Slice and a sum with one list of axes": (
        "p = ReduceSum (x, axes) q = Mul (x, p) y = Slice (q, starts, ends, axes)",
        {"channels": 3, "extra": ", int64[2] axes = {1,2}, int64[2] starts = {1,2}, int64[2] ends = {4,7}"},
    ),
    "softmax over channels": ("y = Softmax <axis = 1> (x)", {}),
    "softmax over columns": ("y = LogSoftmax (x)", {}),
    "mean over the image": ("p = ReduceMean <axes = [2,3]> (x) y = Mul (x, p)", {}),
    "mean over channels": ("p = ReduceMean <axes = [-3]> (x) y = Sub (x, p)", {}),
    "sum over axes as input": (
        "p = ReduceSum (x, axes) y = Sub (x, p)", {"extra": ", int64[2] axes = {1,3}"},
    ),
    "GlobalAveragePool": ("p = GlobalAveragePool (x) s = Sigmoid (p) y = Mul (x, s)", {}),
    "GlobalMaxPool": ("p = GlobalMaxPool (x) y = Add (x, p)", {"opset": 18}),
    "channel shuffle": (
        "a = Reshape (x, apart) t = Transpose <perm = [0,2,1,3,4]> (a) y = Reshape (t, joined)",
        {"extra": ", int64[5] apart = {0,2,2,9,8}, int64[4] joined = {0,4,9,8}"},
    ),
    "Slice by attributes": ("y = Slice <starts = [1,2], ends = [3,9], axes = [1,3]> (x)", {"opset": 9, "channels": 2}),
    "Slice of the first axes": ("y = Slice <starts = [0,1], ends = [2,4]> (x)", {"opset": 9, "channels": 3}),
    "Pad by attributes": ("y = Pad <pads = [0,1,0,2,0,0,3,1]> (x)", {"opset": 9, "channels": 5}),
    "Upsample": ("y = Upsample (x, factors)", {"opset": 9, "extra": ", float[4] factors = {1,1,2,3}"}),
    "Clip by attributes": ("y = Clip <min = -1.0, max = 2.0> (x)", {"opset": 9}),
    "HardSigmoid": ("s = HardSigmoid <alpha = 0.1> (x) y = Mul (x, s)", {}),
    "Cast and back": ("c = Cast <to = 11> (x) y = Cast <to = 1> (c)", {}),
    "channels last already": (
        "t = Transpose <perm = [0,2,3,1]> (x) m = MatMul (t, k) g = Tanh (m) y = Transpose <perm = [0,3,1,2]> (g)",
        {"channels": 5, "extra": ", " + weights("k", 4, 5)},
    ),
}  # fmt: skip
"""Operators between two convolutions: text, and what else the model needs."""


@pytest.mark.parametrize("case", NEUTRAL)
def test_between_convolutions_nothing_is_turned(case: str) -> None:
    """One Transpose where the image comes in, one where the result leaves; each number is what it was."""
    middle, facts = NEUTRAL[case]
    model = between(middle, **facts)
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    left = nodes(model)
    edges = [left[0], left[-1]]
    assert edges == ["Transpose", "Transpose"]
    shuffles = 1 if case == "channel shuffle" else 0
    assert left.count("Transpose") == 2 + shuffles
    assert left.count(CONV) == left.count("MatMul") - (case == "channels last already") == 1


INTERPOLATED = {
    "by factors": ('y = Resize <mode = "linear"> (x, , factors)', ", float[4] factors = {1,1,2,1.5}"),
    "by factors, with an empty region": (
        'y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, none, factors)',
        ", float[0] none = {}, float[4] factors = {1,1,0.5,2}",
    ),
}


@pytest.mark.parametrize("case", INTERPOLATED)
def test_interpolation_between_convolutions_is_one_kernel(case: str) -> None:
    """No Transpose of its own: a kernel reads and writes channels last."""
    middle, extra = INTERPOLATED[case]
    model = between(middle, extra=extra)
    made, _ = optimize(model, "nhwc", "nhwc_conv", "resize")
    assert_same_numbers(model, made)
    left = ops(made)
    assert left.count("{Transpose Resize Transpose}") == 1
    assert left.count("Transpose") == 2


@pytest.mark.parametrize(
    ("middle", "extra"),
    [
        ('y = Resize <mode = "cubic"> (x, , factors)', ", float[4] factors = {1,1,2,2}"),
        ('y = Resize <mode = "linear"> (x, , factors)', ", float[4] factors = {1,2,2,2}"),
        ('y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, region, factors)',
         ", float[8] region = {0,0,0,0,1,1,0.5,0.5}, float[4] factors = {1,1,2,2}"),
    ],
)  # fmt: skip
def test_other_interpolation_stays_channels_first(middle: str, extra: str) -> None:
    """Cubic, over channels, of a part of the image: no kernel takes it, so no layout changes around it."""
    made, _ = optimize(between(middle, extra=extra, channels=8 if "1,2,2,2" in extra else 4))
    assert "Resize" in ops(made)


def test_extents_are_read_from_the_turned_image() -> None:
    """Shape yields the extents of the image as the model knows it."""
    model = parse(f"""g (float[N,2,H,W] image) => (float[N,3,H,W] out, int64[2] plane, int64[4] all)
    <{weights("w", 4, 2, 1, 1)}, {weights("v", 3, 4, 3, 3)}> {{
      x = Conv (image, w)
      plane = Shape <start = 2> (x)
      all = Shape (x)
      out = Conv <pads = [1,1,1,1]> (x, v)
    }}""")
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert nodes(model).count("Transpose") == 2


@pytest.mark.parametrize(
    ("axes", "turned"), [([2, 3], True), ([1], True), ([1, 2, 3], True), ([2], False), ([0], False)]
)
def test_a_reduction_that_drops_its_axes_keeps_the_order_of_the_others(axes: list[int], turned: bool) -> None:
    """What is left of [N,C,H,W] is in the same order channels last, or the reduction reads channels first."""
    model = parse(
        f"""g (float[N,2,8,7] image) => (float[N,4,8,7] y, float[..] m)
    <{weights("w", 4, 2, 3, 3)}, {weights("v", 4, 4, 3, 3)}> {{
      x = Conv <pads = [1,1,1,1]> (image, w)
      m = ReduceMean <axes = {axes}, keepdims = 0> (x)
      y = Conv <pads = [1,1,1,1]> (x, v)
    }}""".replace("float[..] m", f"float[{','.join('N487'[a] for a in range(4) if a not in axes)}] m")
    )
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert nodes(model).count("Transpose") == (2 if turned else 3)


@pytest.mark.parametrize("mean", ["GlobalAveragePool (r)", "ReduceMean <axes = [AXES], keepdims = 0> (r)"])
@pytest.mark.parametrize("size", ["9", "5,4,3"])
def test_means_of_signals_and_volumes_are_taken_channels_last(mean: str, size: str) -> None:
    """Over all places, with or without the axes of extent 1."""
    dimensions = len(size.split(","))
    ones = [] if "keepdims" in mean else [1] * dimensions
    mean = mean.replace("AXES", ",".join(str(2 + d) for d in range(dimensions)))
    kernel = [1] * dimensions
    model = parse(f"""g (float[N,2,{size}] x) => (float[{",".join(map(str, ["N", 3, *ones]))}] y)
    <{weights("w", 4, 2, *kernel)}, {weights("v", 3, 4, *kernel)}> {{
      c = Conv (x, w)
      d = Conv (c, v)
      r = Relu (d)
      y = {mean}
    }}""")
    made, report = optimize(model, "nhwc")
    assert [applied.rule for applied in report.applied] == ["nhwc"]
    assert_same_numbers(model, made)


def test_quantized_values_lie_channels_last_as_others_do() -> None:
    """With one scale they are elementwise work."""
    middle = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
    made = fuses(between(middle, extra=", float s = {0.5}, int8 z = {0}", opset=21), "nhwc")
    assert made[made.index("Add") :] == ["Add", "QuantizeLinear", "DequantizeLinear", "MatMul", "Transpose"]
