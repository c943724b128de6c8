"""Convolutions channels last: products, packed weights, other kinds; the same numbers for any of them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import ModelProto

from tests.support.channels_last import CONV, between, nodes, weights
from tests.support.small import assert_same_numbers, ops, optimize, parse

FIRST = [0, 3, 1, 2]


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
