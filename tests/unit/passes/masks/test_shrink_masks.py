"""A mask is as small as it is known to be where scores have their full shape, axes of extent 1 included."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from tests.support.small import NO_RULE, assert_same_numbers, optimize, parse, run

SCALARS = {"a scalar": (), "one element": (1,)}


def model(
    op: str, source: list[int | str], target: list[int], other: tuple[int, ...], dtype: int, opset: int, *, first: bool
) -> onnx.ModelProto:
    """Return `op` of an Expand and a weight; Where has the Expand as its condition."""
    expanded = [helper.make_node("Expand", ["x", "t"], ["e"])]
    kind = TensorProto.BOOL if op == "Where" else dtype
    reads = ["e", "z", "s"] if op == "Where" else ["e", "s"] if first else ["s", "e"]
    inputs = [helper.make_tensor_value_info("x", kind, source)]
    if op == "Where":
        inputs.append(helper.make_tensor_value_info("z", dtype, source))
    numpy = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        [*expanded, helper.make_node(op, reads, ["y"])],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", dtype, None)],
        [
            numpy_helper.from_array(np.array(target, np.int64), "t"),
            numpy_helper.from_array(np.full(other, 2, numpy), "s"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("other", SCALARS.values(), ids=SCALARS)
@pytest.mark.parametrize(("opset", "dtype"), [(13, TensorProto.FLOAT), (22, TensorProto.FLOAT16)])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Where"])
@pytest.mark.parametrize(
    ("source", "target"),
    [([8], [1, 8]), ([8], [1, 1, 8]), (["n"], [1, 1]), (["n", 8], [1, 1, 1]), ([4, 8], [1, 4, 8]), ([8], [2, 8])],
    ids=str,
)
def test_axes_that_an_expand_alone_brings_stay(
    source: list[int | str], target: list[int], op: str, opset: int, dtype: int, other: tuple[int, ...]
) -> None:
    """A result has the rank of the original's, whatever stands first, though each axis that is lost has one element."""
    sizes = [3 if isinstance(d, str) else d for d in source]
    for first in (True, False):
        one = model(op, source, target, other, dtype, opset, first=first)
        feeds = {
            i.name: np.arange(math.prod(sizes))
            .reshape(sizes)
            .astype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
            for i in one.graph.input
        }
        before, after = run(one, feeds)[0], run(onnxfuse.optimize(one), feeds)[0]
        assert after.shape == before.shape
        np.testing.assert_array_equal(after, before)


def test_an_axis_that_another_operand_brings_goes() -> None:
    """Scores have all their axes themselves: the mask's are not written out."""
    one = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3,5] x, float[5] mask) => (float[2,3,5] y) <int64[3] t = {1, 3, 5}> {
            e = Expand(mask, t)
            y = Add(x, e)
        }""")
    assert [n.op_type for n in onnxfuse.optimize(one).graph.node] == ["Add"]


def test_a_number_beside_a_view_without_axes_makes_one() -> None:
    """[1] added to what is viewed as a scalar is [1]: it is not added to the image before the view."""
    one = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,2,1,1] x) => (float[1] y) <float[1,2,1,1] w = {2, 3}, float[1] b = {1}> {
            c = Conv(x, w)
            none = ConstantOfShape(zero)
            s = Reshape(c, none)
            y = Add(s, b)
        }""".replace("none = ConstantOfShape(zero)", "none = Constant <value_ints: ints = []> ()")
    )
    feeds = {"x": np.ones((1, 2, 1, 1), np.float32)}
    (before,), (after,) = run(one, feeds), run(onnxfuse.optimize(one), feeds)
    assert (after.shape, after.tolist()) == (before.shape, before.tolist())


def test_a_value_that_is_read_twice_is_made_smaller_once() -> None:
    """Sub(a, a) of an expanded value reads one smaller value, whose node has a name of its own."""
    text = """g (float[3,1] x, float[2,3,4] s) => (float[2,3,4] y) <int64[3] two = {2,3,1}, float half = {0.5}> {
      [e] v = Expand (x, two)  [a] a = Mul (v, half)  [b] b = Sub (a, a)  [y] y = Add (s, b)
    }"""
    made, _ = optimize(parse(text), NO_RULE)
    assert [n.op_type for n in made.graph.node] == ["Mul", "Sub", "Add"]
    assert_same_numbers(parse(text), made)
