"""Channels last inside: every operator means the same, and Transposes stand at the edges of a region alone."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxfuse
from onnxfuse import cuda
from onnxfuse.graph.graph import bodies
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes.layout import layout_min_cut
from onnxfuse.shapes.types import Shape, ValueType
from tests.support import small
from tests.support.channels_last import CONV, between, small_net, weights
from tests.support.small import assert_same_numbers, halved, ops, optimize, parse


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


# ---- the whole model


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
