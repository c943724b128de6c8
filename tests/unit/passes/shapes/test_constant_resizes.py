"""Sizes that the types tell are constants; scales come to the same extents whoever rounds."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.passes import pipeline
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

NUMPY: dict[str, Any] = {"float": np.float32, "float16": np.float16}


def resized(sizes: str, mode: str, dtype: str = "float", opset: int = 17, more: str = "") -> onnx.ModelProto:
    """Return a model that resizes images of 7 x 20 to the rows and columns of another value, of as many images."""
    return parse(
        f"""g ({dtype}[N,2,7,20] x, {dtype}[N,{sizes}] like) => ({dtype}[A,B,C,D] y)
      <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}}> {{
      a = Shape (x)  n = Slice (a, zero, two, zero)  b = Shape (like)  hw = Slice (b, two, four, zero)
      sizes = Concat <axis = 0> (n, hw)  r = Resize <mode = "{mode}"{more}> (x, , , sizes)  y = Neg (r) }}""",
        opset,
    )


@pytest.mark.parametrize(
    ("sizes", "mode", "dtype"),
    [
        ("2,14,40", "linear", "float"), ("2,14,40", "nearest", "float"), ("2,7,30", "cubic", "float"),
        ("2,15,41", "linear", "float16"), ("2,14,10", "linear", "float16"),
    ],
)  # fmt: skip
def test_sizes_that_the_types_tell_are_constant_scales(sizes: str, mode: str, dtype: str) -> None:
    """Of any number of images; what asks for sizes is gone."""
    model, made = (resized(sizes, mode, dtype) for _ in range(2))
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made) == {"Resize": 1, "Neg": 1}
    onnx.checker.check_model(made, full_check=True)
    rng = np.random.default_rng(0)
    for images in (1, 3):
        feeds = {
            "x": rng.standard_normal((images, 2, 7, 20)).astype(NUMPY[dtype]),
            "like": np.zeros((images, *map(int, sizes.split(","))), NUMPY[dtype]),
        }
        mine, theirs = (
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
            for m in (made, model)
        )
        assert mine.shape == theirs.shape
        rounding = float(np.finfo(NUMPY[dtype]).eps)  # of numbers around 1
        np.testing.assert_allclose(mine, theirs, rtol=4 * rounding, atol=4 * rounding)


@pytest.mark.parametrize(
    ("sizes", "mode", "dtype", "opset", "more"),
    [
        ("2,15,41", "linear", "float", 17, ""),  # 20 * float32(41 / 20) is less than 41
        ("2,15,41", "nearest", "float16", 17, ""),
        ("2,H,40", "linear", "float", 17, ""),
        ("2,14,40", "linear", "float", 17, ', coordinate_transformation_mode = "tf_crop_and_resize"'),
        ("2,14,40", "linear", "float", 18, ', keep_aspect_ratio_policy = "not_larger"'),
    ],
)
def test_other_sizes_stay_computed(sizes: str, mode: str, dtype: str, opset: int, more: str) -> None:
    made = resized(sizes, mode, dtype, opset, more)
    pipeline.run(made, rules=())
    resize = next(n for n in made.graph.node if n.op_type == "Resize")
    assert len(resize.input) == 4
    assert resize.input[3] not in {w.name for w in made.graph.initializer}


@pytest.mark.parametrize("images", ["10", "N"])
@pytest.mark.parametrize(
    ("mode", "dtype"), [("linear", "float"), ("nearest", "float"), ("nearest", "float16"), ("linear", "float16")]
)
def test_scales_that_round_otherwise_in_double(images: str, mode: str, dtype: str) -> None:
    """ONNX Runtime makes 7 of 10 pixels by 0.7, and 41 of 20 by 2.05; ONNX's inference, in double, 6 and 40.

    Told sizes, ONNX Runtime has the same scales; float16 does not show the next ones, where pixels are interpolated.
    """
    text = f"""g ({dtype}[{images},2,10,20] x) => ({dtype}[A,B,C,D] y) <float[4] scales = {{1, 1, 0.7, 2.05}}> {{
      r = Resize <mode = "{mode}"> (x, , scales)  y = Neg (r) }}"""
    model, made = parse(text), parse(text)
    pipeline.run(made, rules=())
    x = np.random.default_rng(0).standard_normal((10, 2, 10, 20)).astype(NUMPY[dtype])
    mine, theirs = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (made, model)
    )
    assert mine.shape == theirs.shape == (10, 2, 7, 41)
    rounding = float(np.finfo(np.float16).eps) if (mode, dtype) == ("linear", "float16") else 0
    np.testing.assert_allclose(mine, theirs, rtol=4 * rounding, atol=4 * rounding)
    resized = next(v for v in infer(made).graph.value_info if v.name == "r").type.tensor_type.shape
    assert [d.dim_value for d in resized.dim][2:] == [7, 41]


@pytest.mark.parametrize(
    ("shape", "scales"),
    [
        ("N,2,3,20", "1, 1, 3.6666665, 2"),  # 11 rows; sizes come to the number behind it
        ("N,2,10,W", "1, 1, 0.7, 2"),  # how many columns that are is not known
        ("N,2,10,20", "1, 1, 0.75, 2"),  # one number whoever rounds
    ],
)
def test_other_scales_stay(shape: str, scales: str) -> None:
    made = parse(f"""g (float[{shape}] x) => (float[A,B,C,D] y) <float[4] scales = {{{scales}}}> {{
      r = Resize <mode = "linear"> (x, , scales)  y = Neg (r) }}""")
    pipeline.run(made, rules=())
    (resize,) = (n for n in made.graph.node if n.op_type == "Resize")
    assert len(resize.input) == 3
    np.testing.assert_array_equal(
        next(onnx.numpy_helper.to_array(w) for w in made.graph.initializer if w.name == resize.input[2]),
        np.array([float(s) for s in scales.split(",")], np.float32),
    )


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_a_resize_to_sizes_is_valid_in_each_operator_set(opset: int) -> None:
    """Until operator set 13 scales that are not given are a tensor without elements, not an empty name."""
    text = """g (float[1,2,7,20] x, int64[4] sizes) => (float[1,2,14,40] y) <float[0] none = {}> {
      r = Resize <mode = "nearest"> (x, none, none, sizes)  y = Neg (r) }"""
    made = parse(text, opset)
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, [1, 2, 14, 40]))
    pipeline.run(made, rules=())
    onnx.checker.check_model(made, full_check=True)
    resize = next(n for n in made.graph.node if n.op_type == "Resize")
    assert resize.input[3] != "sizes"
