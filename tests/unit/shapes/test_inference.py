"""The extents of images, by name, are those that ONNX Runtime gives for every size."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.shapes import inference, types
from onnxfuse.shapes.extent_values import extent_value
from onnxfuse.shapes.types import DeclaredExtent
from tests.support.extents import extents, written
from tests.support.small import assert_same_numbers, parse, run

SIZES = [{"N": 1, "H": 8, "W": 8}, {"N": 2, "H": 12, "W": 4}, {"N": 1, "H": 6, "W": 10}]

OPERATORS = [
    # an operator, its operator set, and how its last two extents are called
    ("ConvTranspose (x, w)", 17, "(H+1)", "(W+2)"),
    ("ConvTranspose <strides = [2,3]> (x, w)", 17, "2*H", "3*W"),
    ("ConvTranspose <strides = [2,2], pads = [1,0,0,1], output_padding = [1,0]> (x, w)", 17, "2*H", "2*W"),
    ("ConvTranspose <dilations = [3,2], strides = [1,2], group = 2> (x, w)", 17, "(H+3)", "(2*W+3)"),
    ('ConvTranspose <auto_pad = "SAME_UPPER", strides = [2,2]> (x, w)', 17, "2*H", "2*W"),
    ('ConvTranspose <auto_pad = "SAME_LOWER", strides = [1,2], dilations = [2,1]> (x, w)', 17, "H", "2*W"),
    ('ConvTranspose <auto_pad = "SAME_UPPER", strides = [4,4]> (x, w)', 17, "(4*H-2)", "(4*W-1)"),
    ('ConvTranspose <auto_pad = "VALID", strides = [2,2]> (x, w)', 17, "2*H", "(2*W+1)"),
    ("Conv <strides = [2,2]> (x, w)", 17, "((H-2)//2+1)", "((W-3)//2+1)"),
    ("LpPool <kernel_shape = [2,2], strides = [2,1]> (x)", 17, "((H-2)//2+1)", "(W-1)"),
    ("ConvInteger <pads = [0,1,0,1]> (u, v)", 17, "(H-1)", "W"),
    ("QLinearConv (u, s, z, v, s, z, s, z)", 17, "(H-1)", "(W-2)"),
    ("Resize (x, , scales)", 17, "2*H", "(W//4)"),
    ("Resize (x, , thirds)", 17, None, None),
    ("Resize <axes = [3]> (x, , twice)", 19, "H", "2*W"),
    ("Resize (x, scales)", 10, "2*H", "(W//4)"),
    ("Upsample (x, more)", 9, "2*H", "3*W"),
    ("Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x)", 7, "2*H", "3*W"),
    ("Pad (x, around)", 17, "(H+3)", "(W-1)"),
    ("Pad (x, two, , last)", 19, "H", "(W+4)"),
    ("Pad <pads = [0,0,1,0,0,0,2,0]> (x)", 7, "(H+3)", "W"),
    ("DepthToSpace <blocksize = 2> (x)", 17, "2*H", "2*W"),
    ("SpaceToDepth <blocksize = 2> (x)", 17, "(H//2)", "(W//2)"),
    ("Concat <axis = 3> (x, edge)", 17, "H", "(W+1)"),
]  # fmt: skip


def made(operator: str, opset: int) -> onnx.ModelProto:
    """Return a model of one operator over images of named sizes."""
    weight = "float[4,2,2,3] w" if "group" in operator else "float[4,4,2,3] w"
    text = f"""g (float[N,4,H,W] x, {weight}, uint8[N,4,H,W] u, uint8[4,4,2,3] v, float[N,4,H,1] edge)
    => (float[A,B,C,D] y)
    <float[4] scales = {{1,1,2,0.25}}, float[4] more = {{1,1,2,3}}, float[4] thirds = {{1,1,0.3,1.5}},
     int64[4] sizes = {{1,4,9,13}}, float[1] twice = {{2}}, float s = {{1}}, uint8 z = {{0}},
     int64[2] two = {{2,2}}, int64[1] last = {{-1}},
     int64[8] around = {{0,0,1,-1,0,0,2,0}}> {{
       y = {operator}
    }}"""
    model = parse(text, opset)
    if "(u" in operator:
        model.graph.output[0].type.tensor_type.elem_type = 2 if "QLinear" in operator else 6
    return model


def of(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return inputs of these sizes."""
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [sizes.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
        found[value.name] = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found


@pytest.mark.parametrize(("operator", "opset", "height", "width"), OPERATORS, ids=[o[0] for o in OPERATORS])
def test_an_extent_has_the_name_of_its_number(
    operator: str, opset: int, height: DeclaredExtent, width: DeclaredExtent
) -> None:
    """Each name is the number that ONNX Runtime gives, whatever the sizes; and what has no rule has no name."""
    model = made(operator, opset)
    shape = types.value_types(inference.infer(model).graph)["y"].shape
    assert shape is not None
    assert written(tuple(None if types.is_unknown(d) else d for d in shape[2:])) == (height, width)
    for sizes in SIZES:
        told = [None if types.is_unknown(d) else extent_value(d, sizes.__getitem__) for d in shape]
        given = run(model, of(model, sizes))[0].shape
        assert all(t in (None, g) for t, g in zip(told, given, strict=True)), (sizes, told, given)


FOR_ONE_SIZE = [
    ("ConvTranspose <output_shape = [17,17], strides = [2,2]> (x, w)", 17),
    ("Resize (x, , , sizes)", 17),
    ('Resize <axes = [2,3], keep_aspect_ratio_policy = "not_larger"> (x, , , two)', 19),
]


@pytest.mark.parametrize(("operator", "opset"), [*(o[:2] for o in OPERATORS), *FOR_ONE_SIZE])
def test_numbers_are_those_of_onnx_runtime(operator: str, opset: int) -> None:
    """Behind a Reshape whose target is known here alone, too: there ONNX's inference over the graph knows nothing."""
    model = made(operator, opset)
    sizes = SIZES[0]
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in ("H", "W"):
                dim.dim_value = sizes[dim.dim_param]
    hidden = parse(BEHIND, opset)
    node = model.graph.node.pop()
    node.input[:] = ["seen" if v == "x" else v for v in node.input]
    model.graph.node.extend([*hidden.graph.node, node])
    model.graph.initializer.extend(hidden.graph.initializer)
    shape = types.value_types(inference.infer(model).graph)["y"].shape
    assert shape is not None
    assert shape[2:] == run(model, of(model, sizes))[0].shape[2:]


BEHIND = """g (float[N,4,H,W] x) => (float[A,B,C,D] seen) <int64[2] line = {1,-1}> {
  shape = Shape (x) flat = Reshape (x, line) seen = Reshape (flat, shape)
}"""


REPEATED = """g (float[N,H,6] x) => (float[A,B,C] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64[1] least = {-9223372036854775807},
 int64[1] three = {3}, int64[1] four = {4}, int64[2] pairs = {-1,2}, int64 places = {3}> {
  shape = Shape (x)
  width = Slice (shape, last, three, zero)
  left = Mod (width, four)
  behind = Concat <axis = 0> (one, left)
  others = Sub (width, left)
  zeros = ConstantOfShape <value = int64[1] {0}> (others)
  last_first = Concat <axis = 0> (behind, zeros)
  rows = Reshape (last_first, pairs)
  first_first = Slice (rows, last, least, zero, last)
  columns = Transpose <perm = [1,0]> (first_first)
  flat = Reshape (columns, last)
  padded = Pad (x, flat)
  values = Concat <axis = 0> (one, four)
  hot = OneHot (one, places, values)
  repeats = Reshape (hot, last)
  again = Tile (padded, repeats)
  final = Shape (again)
  kept = Reshape (again, final)
  y = Relu (kept)
}"""


def test_paddings_and_repeats_are_computed_from_shapes() -> None:
    """As torch writes the target of `pad`, last axis first, and of `repeat_interleave`; a matrix is turned by rows."""
    model = parse(REPEATED)
    assert types.value_types(inference.infer(model).graph)["again"].shape == extents("N", "4*H", 9)
    inputs = {"x": np.arange(60, dtype=np.float32).reshape(2, 5, 6)}
    assert run(model, inputs)[0].shape == (2, 20, 9)
    once = onnxfuse.optimize(model)
    assert [n.op_type for n in once.graph.node if n.op_type in ("Shape", "Mod", "ConstantOfShape", "Slice")] == []
    assert onnxfuse.optimize(once) == once
    assert_same_numbers(model, once)


def test_a_row_of_a_matrix_is_cut_whole() -> None:
    """A Slice of the first row of pairs is two numbers."""
    text = """g (float[N,6] x) => (float[A,B] y)
    <int64[2,2] pairs = {2,3,-1,1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] all = {-1}> {
      row = Slice (pairs, zero, one, zero) line = Reshape (row, all) tail = Concat <axis = 0> (all, line)
      z = Reshape (x, tail) y = ReduceSum <keepdims = 0> (z, one)
    }"""
    found = types.value_types(inference.infer(parse(text)).graph)
    assert found["z"].shape == extents("N", 2, 3)
