"""Channels last inside: every operator means the same, and Transposes stand at the edges of a region alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

import onnxfuse
from onnxfuse import cuda
from onnxfuse.graph.graph import bodies
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes.layout import layout_min_cut
from onnxfuse.shapes.types import Shape, ValueType
from tests.support import small
from tests.support.small import assert_same_numbers, fuses, halved, ops, optimize, parse

FIRST = [0, 3, 1, 2]


def weights(name: str, *shape: int) -> str:
    """Return a weight as text: numbers of both signs, none of them alike in a row."""
    numbers = (np.arange(np.prod(shape)) * 7 % 11 - 5) / 4
    return f"float[{','.join(map(str, shape))}] {name} = {{{','.join(map(str, numbers))}}}"


def between(middle: str, *, channels: int = 4, extra: str = "", opset: int = 17, tail: str = "C") -> ModelProto:
    """Return a model in which `middle`, from x [N,4,9,8] to y, stands between two convolutions."""
    text = f"""g (float[N,2,10,9] image) => (float[A,B,{tail},D] out)
    <{weights("w", 4, 2, 2, 2)}, {weights("b", 4)}, {weights("v", 3, channels, 1, 1)}{extra}> {{
      x = Conv (image, w, b)
      {middle}
      out = Conv (y, v)
    }}"""
    return parse(text, opset)


def nodes(model: ModelProto) -> list[str]:
    """Return the operators of a model whose convolutions are one op each, Constants left out."""
    made, _ = optimize(model, "nhwc", "nhwc_conv", "nhwc_pool")
    return [o for o in ops(made) if o != "Constant"]


CONV = "{Transpose Transpose Conv Transpose}"

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


# ---- convolutions


def packed(model: ModelProto) -> tuple[str, list[int], list[int]]:
    """Return the name of the first Conv's weight, its shape, and the permutation that gives ONNX's order back."""
    producers = {o: n for n in model.graph.node for o in n.output}
    conv = next(n for n in model.graph.node if n.op_type == "Conv")
    turn = producers[conv.input[1]]
    weight = next(t for t in model.graph.initializer if t.name == turn.input[0])
    return turn.op_type, list(weight.dims), list(turn.attribute[0].ints)


def chain(conv: str, *shape: int) -> ModelProto:
    """Return the convolution `conv` with a weight of this shape, of an image of 6 channels, and a 1x1 one after it."""
    return parse(f"""g (float[N,6,7,9] image) => (float[N,2,A,B] y)
    <{weights("w", *shape)}, {weights("b", shape[0])}, {weights("v", 2, shape[0], 1, 1)}> {{
      c = {conv} (image, w, b)
      y = Conv (c, v)
    }}""")


@pytest.mark.parametrize(
    ("conv", "shape", "kept", "perm"),
    [
        ("Conv <pads = [1,0,0,2], strides = [1,2]>", (5, 6, 3, 2), [5, 3, 2, 6], FIRST),
        ("Conv <group = 3, pads = [1,1,1,1]>", (9, 2, 3, 3), [9, 3, 3, 2], FIRST),
        ("Conv <group = 6, dilations = [2,1]>", (6, 1, 2, 3), [2, 3, 6, 1], [2, 3, 0, 1]),
        ('Conv <group = 6, auto_pad = "SAME_UPPER">', (12, 1, 3, 3), [12, 3, 3, 1], FIRST),
        ("Conv <strides = [2,2]>", (5, 6, 1, 1), [5, 1, 1, 6], FIRST),
        ("Conv <pads = [1,0,0,0]>", (5, 6, 1, 1), [5, 1, 1, 6], FIRST),
    ],
)
def test_a_weight_is_packed_as_a_channels_last_kernel_reads_it(
    conv: str, shape: tuple[int, ...], kept: list[int], perm: list[int]
) -> None:
    """[out, height, width, in]; [height, width, channels, 1] where each channel has its own filter."""
    model = chain(conv, *shape)
    made, _ = optimize(model, "nhwc")
    assert packed(made) == ("Transpose", kept, perm)
    assert_same_numbers(model, made)


def test_a_filter_of_one_channel_too_long_for_the_depthwise_kernel_is_a_convolution_of_few_channels() -> None:
    """A resampling of a signal, 256 taps: the library took 740 us for what 80 are enough for."""
    model = parse(f"""g (float[N,1,1000,1] x) => (float[N,1,A,1] y)
    <{weights("w", 1, 1, 256, 1)}, {weights("v", 1, 1, 3, 1)}> {{
      c = Conv <strides = [2,1]> (x, w)
      r = Relu (c)
      y = Conv <pads = [1,0,1,0]> (r, v)
    }}""")
    made, report = optimize(model)
    assert {"direct", "depthwise"} <= {applied.rule for applied in report.applied}
    assert_same_numbers(model, made)


def test_a_convolution_of_single_pixels_is_a_product() -> None:
    """Conv 1x1 -> MatMul with the weight [in, out], the bias added along the last axis."""
    model = chain("Conv", 8, 6, 1, 1)
    made, _ = optimize(model, "nhwc")
    assert [n.op_type for n in made.graph.node] == ["Transpose", "MatMul", "Add", "MatMul", "Transpose"]
    assert sorted(list(t.dims) for t in made.graph.initializer) == [[6, 8], [8], [8, 2]]
    assert_same_numbers(model, made)


def test_a_transposed_convolution_is_turned() -> None:
    """Its weight stays as it is: the library takes no other."""
    model = chain("ConvTranspose <strides = [2,1], output_padding = [1,0]>", 6, 6, 3, 2)
    made, _ = optimize(model, "nhwc")
    assert nodes(model)[:3] == ["Transpose", "{Transpose ConvTranspose Transpose}", "Add"]
    assert_same_numbers(model, made)


@given(st.data())
def test_any_convolution_computes_the_same(data: st.DataObject) -> None:
    """Kernels, strides, pads, dilations, groups and channel counts of every kind; a pool and a residual after it."""
    draw = data.draw
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(2)] for _ in range(2))
    group = draw(st.sampled_from((1, 1, 2, 3)))
    inner, outer = (group * draw(st.integers(1, 3)) for _ in range(2))
    same = draw(st.sampled_from(("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")))
    assume(same == "NOTSET" or dilations == [1, 1])
    pads = f", pads = {[draw(st.integers(0, 2)) for _ in range(4)]}" if same == "NOTSET" else ""
    geometry = f'auto_pad = "{same}"{pads}, dilations = {dilations}, strides = {strides}, group = {group}'
    model = parse(f"""g (float[N,{inner},11,10] image) => (float[N,2,A,B] y)
    <{weights("w", outer, inner // group, *kernel)}, {weights("b", outer)}, {weights("v", outer, outer, 1, 1)},
     {weights("u", 2, outer, 2, 2)}> {{
      c = Conv <{geometry}> (image, w, b)
      r = Relu (c)
      d = Conv (r, v)
      s = Add (d, c)
      p = MaxPool <kernel_shape = [2,1], strides = [1,1]> (s)
      y = Conv <pads = [1,1,0,0]> (p, u)
    }}""")
    made, _ = optimize(model)
    assert "Transpose" not in ops(made)[1:-1]
    assert_same_numbers(model, made)


@given(st.data())
def test_signals_and_volumes_compute_the_same(data: st.DataObject) -> None:
    """One and three dimensions: convolutions of every kind, with what stands between them channels last."""
    draw = data.draw
    dimensions = draw(st.sampled_from((1, 1, 3)))
    kernel, strides, dilations = ([draw(st.integers(1, 2)) for _ in range(dimensions)] for _ in range(3))
    group = draw(st.sampled_from((1, 1, 2)))
    inner, outer = (group * draw(st.integers(1, 3)) for _ in range(2))
    pads = [draw(st.integers(0, 1)) for _ in range(2 * dimensions)]
    geometry = f"pads = {pads}, dilations = {dilations}, strides = {strides}, group = {group}"
    size = ",".join(("9", "7", "6")[:dimensions])
    whole, ones = ",".join("ABC"[:dimensions]), [1] * dimensions
    model = parse(f"""g (float[N,{inner},{size}] signal) => (float[N,E,{whole}] y)
    <{weights("w", outer, inner // group, *kernel)}, {weights("b", outer)}, {weights("v", outer, outer, *ones)},
     {weights("gate", outer, *ones)}, {weights("shift", outer)}, float[{outer}] scale = {{{",".join("2" * outer)}}},
     {weights("u", 2 * outer, 2, *([2] * dimensions))}, {weights("t", 2)}> {{
      c = Conv <{geometry}> (signal, w, b)
      r = LeakyRelu <alpha = 0.1> (c)
      n = BatchNormalization (r, scale, shift, shift, scale)
      d = Conv (n, v)
      m = Mul (d, gate)
      s = Add (m, c)
      both = Concat <axis = -{dimensions + 1}> (s, d)
      y = ConvTranspose <strides = {[2] * dimensions}> (both, u, t)
    }}""")
    made, report = optimize(model)
    assert "nhwc" in [applied.rule for applied in report.applied]
    assert_same_numbers(model, made)


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


@pytest.mark.parametrize(
    ("channels", "kernel", "how", "out"),
    [
        (3, (3, 3, 2), "pads = [1,1,0,1,1,1], strides = [1,2,1], dilations = [1,1,1]", "6,4,5"),
        (1, (2, 1, 3), "pads = [0,0,1,2,0,1], strides = [2,1,1], dilations = [3,1,2]", "3,7,3"),
        (4, (1, 3, 3), "pads = [0,1,1,0,1,1], strides = [1,1,1], dilations = [1,1,1]", "6,7,5"),
    ],
)
def test_layers_of_volumes_with_few_channels_are_channels_of_images(
    channels: int, kernel: tuple[int, int, int], how: str, out: str
) -> None:
    """One movement puts the layers that a window sees beside each other; bias and activation join the convolution."""
    model = parse(f"""g (float[N,{channels},6,7,5] x) => (float[N,8,{out}] y)
    <{weights("w", 8, channels, *kernel)}, {weights("b", 8)}, {weights("v", 8, 8, 1, 1, 1)}> {{
      c = Conv <kernel_shape = {list(kernel)}, {how}> (x, w, b)
      r = Relu (c)
      y = Conv (r, v)
    }}""")
    made, _ = optimize(model)
    found = [o for o in ops(made) if o != "Constant"]
    assert [o for o in found if "Conv" in o] == ["{Transpose Transpose Transpose Conv Transpose Add Relu}"]
    assert sum("Transpose" in o and "MatMul" not in o for o in found) == 3
    assert_same_numbers(model, made)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_signal_that_the_model_turns_itself_stays_as_it_lies(opset: int) -> None:
    """Tokens [batch, length, channels] turned for a convolution and back: a row comes and goes, nothing is turned."""
    model = parse(
        f"""g (float[N,64,8] tokens) => (float[N,A,8] y)
    <{weights("w", 8, 4, 4)}, {weights("b", 8)},
     int64[1] first = {{1}}, int64[1] last = {{-2}}, int64[1] along = {{-1}}, int64[1] step = {{2}}> {{
      x = Transpose <perm = [0,2,1]> (tokens)
      c = Conv <group = 2, pads = [2,2]> (x, w, b)
      s = Slice (c, first, last, along, step)
      r = Relu (s)
      y = Transpose <perm = [0,2,1]> (r)
    }}""",
        opset,
    )
    made, report = optimize(model, "nhwc", "nhwc_conv")
    assert [applied.rule for applied in report.applied] == ["nhwc", "nhwc_conv"]
    assert [o for o in ops(made) if o != "Constant"] == ["Unsqueeze", CONV, "Add", "Slice", "Relu", "Squeeze"]
    assert_same_numbers(model, made)


def test_a_signal_is_an_image_of_one_row() -> None:
    """So the kernels of images take it: the region's edges are one Unsqueeze and one Squeeze."""
    model = parse(f"""g (float[N,8,64] x) => (float[N,8,64] y) <{weights("w", 8, 8, 3)}, {weights("v", 8, 8, 5)}> {{
      c = Conv <pads = [1,1]> (x, w)
      r = LeakyRelu (c)
      d = Conv <pads = [4,4], dilations = [2]> (r, v)
      y = Add (d, c)
    }}""")
    made, report = optimize(model)
    assert ops(made).count("Unsqueeze") == ops(made).count("Squeeze") == 1
    taken = [applied.rule for applied in report.applied]
    assert taken.count("implicit_gemm") + taken.count("direct") == 2
    assert_same_numbers(model, made)


# ---- what stays as it is


HOSTILE = "t = Transpose <perm = [3,1,0,2]> (x) s = Sinh (t) y = Transpose <perm = [2,1,3,0]> (s)"


def reasons_of(model: ModelProto) -> str:
    made, report = optimize(model, "nhwc")
    assert made == model
    return "\n".join(near.refusal.reason for near in report.near)


def test_a_region_that_does_not_pay_stays_channels_first() -> None:
    """As many Transposes at the edges as would be saved inside: around one convolution, or around each."""
    assert "as many Transposes" in reasons_of(between(HOSTILE))
    assert "as many Transposes" in reasons_of(
        parse(f"""g (float[N,2,5,6] x) => (float[N,3,4,5] y)
    <{weights("w", 3, 2, 2, 2)}> {{ c = Conv (x, w) y = Relu (c) }}""")
    )


def test_quantized_values_lie_channels_last_as_others_do() -> None:
    """With one scale they are elementwise work."""
    middle = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
    made = fuses(between(middle, extra=", float s = {0.5}, int8 z = {0}", opset=21), "nhwc")
    assert made[made.index("Add") :] == ["Add", "QuantizeLinear", "DequantizeLinear", "MatMul", "Transpose"]


def test_a_convolution_that_subtracts_zero_points_stays() -> None:
    """Its third operand is no bias."""
    numbers = ",".join(str(n) for n in range(32))
    model = parse(
        f"""g (uint8[N,2,6,6] x, uint8 z) => (float[N,2,4,4] y)
<int8[4,2,2,2] w = {{{numbers}}}, int8[2,4,2,2] v = {{{numbers}}}, float s = {{9}}> {{
  a = ConvInteger (x, w, z)
  b = Cast <to = 1> (a)
  q = QuantizeLinear (b, s, z)
  c = ConvInteger (q, v, z)
  y = Cast <to = 1> (c)
}}"""
    )
    made, report = optimize(model, "nhwc")
    assert made == model
    assert report.applied == []


OTHER = {
    "volumes of bfloat16": ("bfloat16[N,1,4,4,4]", "bfloat16[N,1,2,2,2]", "bfloat16[1,1,2,2,2] w = {1,2,3,4,5,6,7,8}"),
    "transposed, of bfloat16": ("bfloat16[N,1,4,4]", "bfloat16[N,1,6,6]", "bfloat16[1,1,2,2] w = {1,2,3,4}"),
    "open channels of bfloat16": ("bfloat16[N,C,9,9]", "bfloat16[N,1,7,7]", "bfloat16[1,1,2,2] w = {1,2,3,4}"),
    "float64": ("double[N,2,9,9]", "double[N,2,9,9]", "double[2,2,1,1] w = {1,2,3,4}"),
    "a weight that is given": ("float[2,2,2,2] w, float[N,2,9,9]", "float[N,2,7,7]", ""),
}


@pytest.mark.parametrize("case", OTHER)
def test_other_convolutions_stay_as_they_are(case: str) -> None:
    """The library's channels-last op takes weights that are known, 16 or 32 bit, and nothing of bfloat16, for which no
    kernel is asked here."""
    image, out, weight = OTHER[case]
    weight = f"<{weight}>" if weight else ""
    op = "ConvTranspose" if case.startswith("transposed") else "Conv"
    model = parse(f"g ({image} x) => ({out} y) {weight} {{ c = {op} (x, w) y = {op} (c, w) }}", 22)
    made, report = optimize(model, "nhwc")
    assert made == model
    assert report.applied == []


# ---- the whole model


def small_net(opset: int = 17) -> ModelProto:
    return between("r = Relu (x) p = GlobalAveragePool (r) s = Sigmoid (p) m = Mul (r, s) y = Add (m, x)", opset=opset)


def test_inputs_and_outputs_keep_names_types_and_layout() -> None:
    """Whatever happens inside; a value that leaves the graph is one of them."""
    model = small_net()
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["N", 4, 1, 1]))
    model.graph.output.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, ["N", 4, 9, 8]))
    made, report = optimize(model)
    assert report.by_rule()["nhwc"] == 1
    assert list(made.graph.input) == list(model.graph.input)
    assert list(made.graph.output) == list(model.graph.output)
    assert_same_numbers(model, made)


def test_batch_and_image_size_stay_open() -> None:
    """The same file runs every size."""
    model = parse(f"""g (float[N,2,H,W] image) => (float[N,3,A,B] y)
    <{weights("w", 6, 2, 3, 3)}, {weights("v", 3, 6, 2, 2)}> {{
      c = Conv (image, w)
      r = Relu (c)
      p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
      y = Conv <pads = [1,1,1,1]> (p, v)
    }}""")
    made, _ = optimize(model)
    assert "Transpose" not in ops(made)[1:-1]
    for batch, height, width in ((1, 4, 4), (2, 9, 6), (5, 7, 12)):
        image = np.random.default_rng(height).standard_normal((batch, 2, height, width), np.float32)
        for one in (made, onnxfuse.unfuse(made)):
            np.testing.assert_allclose(run_one(one, image), run_one(model, image), rtol=1e-5, atol=1e-5)


def run_one(model: ModelProto, image: np.ndarray) -> np.ndarray:
    return small.run(model, {"image": image})[0]


@pytest.mark.parametrize("names", [(), ("nhwc",), ("nhwc", "pointwise"), ("nhwc", "nhwc_pool")])
def test_an_optimized_model_comes_out_as_it_went_in(names: tuple[str, ...]) -> None:
    """Byte by byte, also where no rule takes the convolutions between their Transposes."""
    made, _ = optimize(between("r = Relu (x) y = MaxPool <kernel_shape = [2,2]> (r)"), *names)
    again, report = optimize(made, *names)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert report.applied == []


def test_undo_leaves_a_working_model_that_optimizes_to_the_same() -> None:
    """The fused ops become their nodes; what the layout phase wrote stays, and is no worse to start from."""
    model = small_net()
    made, _ = optimize(model)
    plain = onnxfuse.unfuse(made)
    assert not fused_ops(plain)
    assert_same_numbers(model, plain)
    again, _ = optimize(plain)
    assert ops(again) == ops(made)


def test_half_precision_is_turned_alike() -> None:
    """The same operators, within the error budget of float16."""
    model = halved(small_net())
    made, _ = optimize(model)
    own = CONV.replace("{", "{Transpose ").replace("}", " Add Relu}")  # of the model's own images
    assert ops(made).count(own) == 1
    assert_same_numbers(model, made)


def test_a_region_inside_a_branch_is_turned() -> None:
    """The weights may be those of the outer graph."""
    inner = small_net().graph
    outer = list(inner.initializer)
    del inner.initializer[:]
    del inner.input[:]
    other = helper.make_graph([helper.make_node("Identity", ["other"], ["same"])], "other", [], [
        helper.make_tensor_value_info("same", TensorProto.FLOAT, ["N", 3, 9, 8])
    ])  # fmt: skip
    node = helper.make_node("If", ["c"], ["result"], then_branch=inner, else_branch=other)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 2, 10, 9]),
                helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", 3, 9, 8]),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["N", 3, 9, 8])],
            outer,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    made, _ = optimize(model, "nhwc")
    (branch,) = [b for b in bodies(made.graph.node[0]) if b.name != "other"]
    assert [n.op_type for n in branch.node].count("Transpose") == 5
    seed = next(s for s in range(100) if small.signed_inputs(model, s)["c"])
    assert_same_numbers(model, made, seed)


PADS = "int64[8] pads = {0,0,1,0,0,0,2,3}"


@pytest.mark.parametrize("conv", ["Conv <strides = [2,1]>", "Conv <pads = [1,0,0,1]>", 'Conv <auto_pad = "VALID">'])
def test_zeros_around_the_image_are_the_convolutions_own(conv: str) -> None:
    """Pad and Conv are one Conv: what the Pad adds is added to its padding."""
    model = between(f"p = Pad (x, pads) y = {conv} (p, k)", extra=f", {PADS}, {weights('k', 4, 4, 2, 3)}")
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert "Pad" not in [n.op_type for n in made.graph.node]


@pytest.mark.parametrize(
    ("pad", "conv"),
    [
        ("Pad (x, pads, one)", "Conv (p, k)"),
        ('Pad <mode = "edge"> (x, pads)', "Conv (p, k)"),
        ("Pad (x, pads)", 'Conv <auto_pad = "SAME_UPPER"> (p, k)'),
        ("Pad (x, pads)", "Conv (p, k) q = Relu (p) u = ReduceMean <axes = [2,3]> (q) y = Add (v2, u)"),
    ],
)
def test_other_pads_stay(pad: str, conv: str) -> None:
    """Other numbers than 0, a padding that depends on the size, or a second reader."""
    result = "v2" if "v2" in conv else "y"
    facts = f", {PADS}, float one = {{1}}, {weights('k', 4, 4, 2, 3)}"
    model = between(f"p = {pad} {result} = {conv}", extra=facts)
    made, _ = optimize(model, "nhwc")
    assert_same_numbers(model, made)
    assert "Pad" in [n.op_type for n in made.graph.node]


@pytest.mark.parametrize("side", [32, 1024])
def test_a_group_norm_stands_inside_a_region(side: int) -> None:
    """Between two Transposes that its kernel takes in, whatever a group holds."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,4,{side},{side}] x) => (float[1,4,{side},{side}] y)
    <{weights("k", 4, 4, 3, 3)}, {weights("s", 4)}, {weights("t", 4)}> {{
      a = Conv <pads = [1,1,1,1]> (x, k)
      n = GroupNormalization <num_groups = 2> (a, s, t)
      y = Conv <pads = [1,1,1,1]> (n, k)
    }}"""
    norms = [f.body for f in fused_ops(onnxfuse.optimize(parse(text))).values()]
    found = [{n.op_type for n in body.node} for body in norms]
    assert any({"GroupNormalization", "Transpose"} <= ops for ops in found)


def test_a_convolution_of_a_constant_stays() -> None:
    """ONNX Runtime computes it when it opens the model; turned, it would be turned once more in a second run."""
    model = between("c = Conv (k, w, b) y = Add (x, c)", extra=f", {weights('k', 1, 2, 10, 9)}")
    made, _ = optimize(model, "nhwc", "nhwc_conv", "nhwc_pool")
    constant = next(n for n in made.graph.node if n.op_type == "Conv")
    assert constant.input[0] == "k"
    assert nodes(model).count(CONV) == 1
    assert optimize(made, "nhwc", "nhwc_conv", "nhwc_pool")[0] == made
    assert_same_numbers(model, made)


def test_integers_that_no_kernel_takes_stay_channels_first() -> None:
    """Of 2 channels: converted, they would be converted again and again."""
    model = parse(
        f"""g (uint8[N,2,6,6] x) => (float[N,2,4,4] y)
<int8[4,2,2,2] w = {{{",".join(map(str, range(32)))}}}, int8[2,4,2,2] v = {{{",".join(map(str, range(32)))}}},
 float s = {{9}}, uint8 z = {{0}}> {{
  a = ConvInteger (x, w)
  b = Cast <to = 1> (a)
  q = QuantizeLinear (b, s, z)
  c = ConvInteger (q, v)
  y = Cast <to = 1> (c)
}}"""
    )
    made, _ = optimize(model, "nhwc", "conv_integer")
    assert made == model


@pytest.mark.parametrize(
    ("type_", "shape", "elements"),
    [
        (TensorProto.FLOAT16, (2, 3, 4, 5), 120), (TensorProto.FLOAT, (2, 3, 4, 5), 120),
        (TensorProto.INT8, (2, 3, 4, 5), 60), (TensorProto.UINT8, ("N", 3, 4, 5), 960),
        (TensorProto.FLOAT16, ("N", 3, "H", 5), 15_360),
    ],
)  # fmt: skip
def test_a_transpose_costs_its_elements_and_a_launch(type_: int, shape: Shape, elements: int) -> None:
    """In elements of 16 bits, read and written; what 8 bits have is half of it, and an open extent counts as 32."""
    assert layout_min_cut._cost(ValueType(type_, shape)) == cuda.launch_bytes() // 4 + elements


@pytest.mark.parametrize("shape", [None, (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1)])
def test_what_would_move_nothing_costs_least(shape: Shape) -> None:
    """A Reshape, or what nobody knows."""
    assert layout_min_cut._cost(ValueType(TensorProto.FLOAT16, shape)) == 1
