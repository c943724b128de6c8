"""Operators on groups of channels have a channels-last form: group normalization and channel shuffle."""

import onnx
import pytest

import onnxfuse
from onnxfuse.model.fused import fused_ops
from tests.support.channels_last import between, weights
from tests.support.small import assert_same_numbers, optimize, parse


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


SHUFFLE = "a = Reshape (x, apart) t = Transpose <perm = [0,2,1,3,4]> (a) y = Reshape (t, joined)"
GROUPS = ", int64[5] apart = {0,2,2,9,8}, int64[4] joined = {0,4,9,8}"
GROUP_NORM = "a = Reshape (x, flat) n = InstanceNormalization (a, s, t) y = Reshape (n, whole)"
NORM = ", int64[3] flat = {0,2,-1}, float[2] s = {2,3}, float[2] t = {-1,1}, int64[4] whole = {0,4,9,8}"


@pytest.mark.parametrize(
    ("middle", "extra"), [(SHUFFLE, GROUPS), (GROUP_NORM, NORM), (GROUP_NORM, NORM.replace("{0,2,-1}", "{0,4,-1}"))]
)
def test_groups_are_split_off_the_last_axis(middle: str, extra: str) -> None:
    """Around them nothing is transposed but the model's own input and output; the numbers are those of the model."""
    extra = extra.replace("float[2] s = {2,3}, float[2] t = {-1,1}", norm(extra))
    model = between(middle, extra=extra)
    made, report = optimize(model, "nhwc")
    assert [one.rule for one in report.applied] == ["nhwc"]
    assert_same_numbers(model, made)


def norm(extra: str) -> str:
    """Return scale and shift of as many groups as `extra` has."""
    groups = 4 if "{0,4,-1}" in extra else 2
    return f"float[{groups}] s = {{{','.join('23456'[:groups])}}}, float[{groups}] t = {{{','.join('12345'[:groups])}}}"


@pytest.mark.parametrize(
    ("middle", "extra", "why"),
    [
        (SHUFFLE.replace("0,2,1,3,4", "0,1,2,4,3"), GROUPS.replace("4,9,8}", "4,8,9}"), "another permutation"),
        (SHUFFLE, GROUPS.replace("0,2,2,9,8", "0,2,2,8,9").replace("4,9,8}", "4,8,9}"), "pixels are mixed, too"),
        (SHUFFLE + " u = Relu (t)", GROUPS, "what is shuffled is read twice"),
        (GROUP_NORM + " u = Relu (n)", NORM, "what is normalized is read twice"),
        (GROUP_NORM, NORM.replace("{0,4,9,8}", "{0,8,9,4}"), "another image comes out"),
    ],
)
def test_other_splits_stay_channels_first(middle: str, extra: str, why: str) -> None:
    """The nodes are there as they were, with what they read channels first."""
    model = between(middle, extra=extra, channels=8 if "{0,8" in extra else 4)
    if " u = " in middle:
        model.graph.output.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, None))
    made, _ = optimize(model, "nhwc")
    kept = {n.op_type for n in model.graph.node} - {"Conv", "Relu"}
    assert kept <= {n.op_type for n in made.graph.node}, why
    reshapes = [list(n.output) for n in model.graph.node if n.op_type == "Reshape"]
    assert [list(n.output) for n in made.graph.node if n.op_type == "Reshape"] == reshapes, why
    assert_same_numbers(model, made)
