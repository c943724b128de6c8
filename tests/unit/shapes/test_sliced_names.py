"""An extent that is sliced has another name, at every operator set: ONNX's inference of one carries it through."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import type_of
from tests.support.extents import extents
from tests.support.small import run

BOUNDS = [(0, 4, 1), (1, 2**31 - 1, 1), (0, -1, 1), (0, 2**31 - 1, 2), (-2, 2**63 - 1, 1), (-1, -(2**31), -1)]


def sliced(opset: int, start: int, end: int, step: int, form: str) -> onnx.ModelProto:
    """Return a model whose Slice is added to nothing but its own length: by inputs, without axes, by Constant nodes."""
    weights = f"<int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] p = {{{step}}}>"
    nodes = ""
    if form == "nodes":
        weights, values = "", {"s": start, "e": end, "a": 0, "p": step}
        nodes = "".join(f"{k} = Constant <value = int64[1] {{{v}}}> ()\n" for k, v in values.items())
    inputs = "x, s, e" if form == "no axes" else "x, s, e, a, p"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,3] x) => (float[M,3] y, int64[2] n) {weights} {{
        {nodes} y = Slice ({inputs})
        r = Relu (y)
        n = Shape (r)
    }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("opset", [10, 11, 13])
@pytest.mark.parametrize("form", ["inputs", "no axes", "nodes"])
@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_what_is_left_of_a_named_extent_is_not_called_as_the_whole(
    opset: int, form: str, start: int, end: int, step: int
) -> None:
    """Nor is what is computed of its shape; a file may hold what ONNX's inference said."""
    step = 1 if form == "no axes" else step
    model = onnx.shape_inference.infer_shapes(sliced(opset, start, end, step, form))
    shape = type_of(infer(model).graph.output[0].type).shape
    assert shape is not None
    assert shape[1] == 3
    if (start, end, step) != (0, 2**31 - 1, 1):
        assert shape[0] != extents("N")[0]
    for rows in (1, 5, 8):
        feeds = {"x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)}
        for was, now in zip(run(model, feeds), run(onnxfuse.optimize(model), feeds), strict=True):
            np.testing.assert_array_equal(was, now)


def test_a_whole_slice_keeps_the_name() -> None:
    """Its extent is the one that it reads, at operator set 10 too."""
    assert type_of(infer(sliced(10, 0, 2**31 - 1, 1, "inputs")).graph.output[0].type).shape == extents("N", 3)


@pytest.mark.parametrize("end", ["Sub (n, five)", "Min (n, five)", "Sub (five, n)", "Div (n, five)"])
def test_an_extent_that_is_known_is_so_for_every_length(end: str) -> None:
    """An end may be negative for short ones, and then counts from the other end: of no rows, too."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N] x) => (float[M] y)
        <int64[1] five = {{5}}, int64[1] zero = {{0}}> {{
        n = Shape (x) e = {end} y = Slice (x, zero, e, zero)
    }}""")
    shape = type_of(infer(model).graph.output[0].type).shape
    assert shape is not None
    for rows in range(9):
        (y,) = run(model, {"x": np.arange(rows, dtype=np.float32)})
        said = at_sizes(shape[0], {"N": rows})
        assert not isinstance(said, int) or said == len(y)
