"""What is scattered over a slice stands between the parts that stay; other scattering stays as it is."""

import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.views.scatter_to_concat import scatter_to_concat
from onnxfuse.shapes.inference import infer
from tests.support.small import fuses, parse

COUNT = """size = Shape (x)  length = Gather (size, p1)  places = Range (p0, length, p1)"""
"""The positions of the second axis."""
NUMBERS = """int64 p0 = {0}, int64 p1 = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
  int64[1] less = {-1}, int64[1] end = {9223372036854775807}"""


def alone(text: str, opset: int = 18) -> list[str]:
    """Return the operators that are left where no rule but one that matches nothing applies."""
    return fuses(text, "softmax", opset=opset)


def with_grid(text: str, indices: np.ndarray, opset: int = 18) -> list[str]:
    model = parse(text, opset)
    model.graph.initializer.append(numpy_helper.from_array(indices, "i"))
    return fuses(model, "softmax")


def grid(*axes: range) -> np.ndarray:
    """Return the positions of all elements of a box as ScatterND has them."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).astype(np.int64)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("axes", "updates", "left"),
    [
        ((range(2), range(1, 5)), "2,4,3", ["Slice", "Concat"]),
        ((range(2), range(4)), "2,4,3", ["Slice", "Concat"]),
        ((range(2), range(1, 4)), "2,3,3", ["Slice", "Slice", "Concat"]),
        ((range(2), range(-4, 0)), "2,4,3", ["Slice", "Concat"]),
        ((range(2), range(1, 5), range(1, 3)), "2,4,2", ["Slice", "Concat", "Slice", "Concat"]),
        ((range(1, 2), range(1, 5)), "1,4,3", ["Slice", "Concat", "Slice", "Concat"]),
        ((range(2),), "2,5,3", []),
    ],
)
def test_a_box_of_known_positions(axes: tuple[range, ...], updates: str, left: list[str], opset: int) -> None:
    text = f"g (float[2,5,3] x, float[{updates}] u) => (float[2,5,3] y) {{ s = ScatterND (x, i, u)  y = Neg (s) }}"
    assert with_grid(text, grid(*axes), opset) == [*left, "Neg"]


@pytest.mark.parametrize("opset", [11, 18])
def test_one_place_of_an_axis_has_no_axis_in_the_positions(opset: int) -> None:
    """x[1] = u of three rows, and of an axis in the middle, whose place in the updates is put in."""
    text = "g (float[2,4] x, float[4] u) => (float[2,4] y) { s = ScatterND (x, i, u)  y = Neg (s) }"
    assert with_grid(text, np.array([1]), opset) == ["Unsqueeze", "Slice", "Concat", "Neg"]
    text = "g (float[3,2,4] x, float[3,4] u) => (float[3,2,4] y) { s = ScatterND (x, i, u)  y = Neg (s) }"
    assert with_grid(text, grid(range(3), range(1))[:, 0], opset) == ["Unsqueeze", "Slice", "Concat", "Neg"]


@pytest.mark.parametrize(
    ("indices", "updates", "why"),
    [
        (grid(range(2), range(0, 5, 2)), "2,3,3", "every second place"),
        (grid(range(2), range(4, 0, -1)), "2,4,3", "backwards"),
        (np.repeat(grid(range(2), range(1, 2)), 4, 1), "2,4,3", "one place four times"),
        (np.moveaxis(grid(range(2), range(2)), 0, 1), "2,2,3", "the axes of the grid are turned"),
        (grid(range(2), range(1)), "2,1,3", "the most of it stays, and is written in place"),
    ],
)
def test_positions_that_are_no_slice_stay(indices: np.ndarray, updates: str, why: str) -> None:
    text = f"g (float[2,5,3] x, float[{updates}] u) => (float[2,5,3] y) {{ s = ScatterND (x, i, u)  y = Neg (s) }}"
    assert with_grid(text, indices) == ["ScatterND", "Neg"], why


def test_what_is_added_to_a_slice_stays() -> None:
    text = """g (float[2,5] x, float[2,4] u) => (float[2,5] y) {
      s = ScatterND <reduction = "add"> (x, i, u)  y = Neg (s)
    }"""
    assert with_grid(text, grid(range(2), range(1, 5))) == ["ScatterND", "Neg"]


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        ("Slice (places, one, end, zero)", ["Slice", "Concat"]),
        ("Slice (places, one, end, zero, one)", ["Slice", "Concat"]),
        ("Slice (places, zero, less, zero)", ["Slice", "Concat"]),
        ("Identity (places)", []),
    ],
)
def test_an_open_axis_is_written_but_for_its_ends(cut: str, left: list[str]) -> None:
    """As the exporter by torch.export writes x[:, 1:] = -x[:, 1:], with the axis in front."""
    text = f"""g (float[N,S,3] x) => (float[S,N,3] y) <{NUMBERS}> {{
      {COUNT}  some = {cut}  i = Unsqueeze (some, less)
      t = Transpose <perm = [1,0,2]> (x)  v = Sin (t)  u = {cut.replace("places", "v")}
      s = ScatterND (t, i, u)  y = Neg (s)
    }}"""
    cuts = ["Slice"] if left else []
    assert alone(text) == ["Transpose", "Sin", *cuts, *left, "Neg"]


@pytest.mark.parametrize(
    "cut", ["Slice (middle, zero, less, zero)", "Slice (places, less, end, zero)", "Slice (places, zero, two, zero)"]
)
def test_of_an_open_axis_what_may_be_anywhere_stays(cut: str) -> None:
    """Without the first and the last one there may be fewer than none; of a few places most of the axis may stay."""
    text = f"""g (float[S,3] x) => (float[S,3] y) <{NUMBERS}> {{
      size = Shape (x)  length = Gather (size, p0)  places = Range (p0, length, p1)
      middle = Slice (places, one, end, zero)
      some = {cut}  i = Unsqueeze (some, less)  v = Sin (x)  u = Gather (v, some)
      w = ScatterND (x, i, u)  y = Neg (w)
    }}"""
    assert "ScatterND" in alone(text)


def test_positions_that_are_cast_from_other_numbers_stay() -> None:
    """A Range up to 3.2 has four numbers."""
    text = """g (float[5,3] x, float[4,3] u) => (float[5,3] y)
    <float none = {0}, float most = {3.2}, float step = {1}, int64[1] last = {-1}> {
      places = Range (none, most, step)  whole = Cast <to = 7> (places)  i = Unsqueeze (whole, last)
      s = ScatterND (x, i, u)  y = Neg (s)
    }"""
    model = parse(text, 18)
    graph = Graph(model.graph, infer(model).graph, 18)
    assert not scatter_to_concat(graph)
    assert fuses(model, "softmax")[-1] == "Neg"


def test_positions_as_the_tracing_exporter_computes_them() -> None:
    """x[:, 1:] = -x[:, 1:]: a Range for each axis, spread over the grid, side by side."""
    text = f"""g (float[N,S,3] x) => (float[N,S,3] y) <{NUMBERS}, int64[2] column = {{-1, 1}}> {{
      {COUNT}  n = Gather (size, p0)  rows = Range (p0, n, p1)  r = Reshape (rows, column)
      c = Slice (places, one, end, zero)
      both = Add (r, c)  wanted = Shape (both)
      re = Expand (r, wanted)  ru = Unsqueeze (re, less)
      ce = Expand (c, wanted)  cu = Unsqueeze (ce, less)
      i = Concat <axis = -1> (ru, cu)
      v = Sin (x)  u = Slice (v, one, end, one)
      s = ScatterND (x, i, u)  y = Neg (s)
    }}"""
    assert alone(text) == ["Sin", "Slice", "Slice", "Concat", "Neg"]


@pytest.mark.parametrize(
    ("indices", "axis", "updates", "left"),
    [
        (np.zeros((1, 3), np.int64), 0, "1,3", ["Slice", "Concat"]),
        (np.full((2, 2), 1, np.int64) + np.array([0, 1]), -1, "2,2", ["Slice", "Concat"]),
        (np.full((1, 2), -1, np.int64), 0, "1,2", ["Slice", "Concat", "Slice", "Concat"]),
        (np.zeros((2, 3), np.int64), 0, "2,3", None),
        (np.array([[0, 1, 0]]), 0, "1,3", None),
    ],
)
def test_elements_of_a_slice(indices: np.ndarray, axis: int, updates: str, left: list[str] | None) -> None:
    """ScatterElements writes a corner of the other axes; different places along them are no slice."""
    if left is None and indices.shape == (2, 3):
        indices = np.array([[0, 1, 0], [1, 0, 1]])
    text = f"""g (float[2,3] x, float[{updates}] u) => (float[2,3] y) {{
      s = ScatterElements <axis = {axis}> (x, i, u)  y = Neg (s)
    }}"""
    assert with_grid(text, indices) == [*(["ScatterElements"] if left is None else left), "Neg"]


def test_one_kernel_writes_a_slice_and_what_stands_around_it() -> None:
    """As torch's exporters write x[:, 1:] += y, whatever dtype: without the step a product of indices stays between."""
    text = f"""g (float16[N,5,4] x, float16[N,4,4] y) => (float16[N,5,4] z) <{NUMBERS}> {{
      a = Sigmoid (x)  t = Transpose <perm = [1,0,2]> (a)  v = Transpose <perm = [1,0,2]> (y)
      b = Slice (t, one, end, zero)  u = Add (b, v)
      s = ScatterND (t, i, u)  z = Transpose <perm = [1,0,2]> (s)
    }}"""
    model = parse(text, 18)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1, 5)[:, None], "i"))
    assert len(fuses(model)) == 1
