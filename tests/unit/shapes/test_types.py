"""What is known before a model runs: types, shapes, defaults, attributes that moved; and when it is not valid."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.graph.normalize import normalize
from onnxfuse.model.validate import validate
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, shapes_differ, value_info, value_types
from onnxfuse.support.errors import ModelError
from tests.support.extents import extents


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    """Return the model in `text`."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>' + text)


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ((3, 4), (3, 4), False),
        ((3, 4), (3, 5), True),
        (("N", 4), ("N", 4), False),
        (("N", 4), ("M", 4), True),
        (("N", 4), (1, 4), True),
        ((None, 4), (3, 4), False),
        (("unk__0", 4), (3, 4), False),
        (("unk__0", 4), ("unk__1", 4), False),
        (("unk__0", 4), ("N", 4), False),
        (("unk__0", 4), ("unk__0", 5), True),
        (("N", 4), ("2*N", 4), True),
        (("N", 4), ("(N+1)", 4), True),
        (("N", 4), ("((N-1)//2)", 4), False),
        (("N", 4), ("f(N)", 4), False),
        (("N", 4), ("2*unk__0", 4), False),
        ((4,), (3, 4), True),
        (None, (3, 4), False),
        (None, None, False),
        ((), (), False),
    ],
)
def test_shapes_differ_only_where_it_is_known(
    a: tuple[int | str | None, ...] | None, b: tuple[int | str | None, ...] | None, differ: bool
) -> None:
    """A name is one number everywhere, and another one than every other; what is unknown may be the same."""
    one, other = (None if shape is None else extents(*shape) for shape in (a, b))
    assert shapes_differ(one, other) is differ
    assert shapes_differ(other, one) is differ


def test_types_come_from_onnx_own_inference() -> None:
    """Names of dimensions go through; what has no type is unknown."""
    found = value_types(infer(model("g (float16[N,4] x) => (float16[N,4] y) { a = Relu (x) y = Neg (a) }")).graph)
    assert found["a"] == ValueType(TensorProto.FLOAT16, extents("N", 4))
    assert str(found["a"]) == "float16[N,4]"
    assert str(UNKNOWN) == "unknown[...]"


def test_inference_sees_small_weights_and_never_copies_big_ones() -> None:
    """A Reshape target is read; a weight becomes an input of its type."""
    text = "g (float[4,6] x) => (float[A,B] y) <int64[2] t = {8,3}> { r = Reshape (x, t) y = Neg (r) }"
    made = model(text)
    big = numpy_helper.from_array(np.zeros((64, 64), np.float32), "big")
    made.graph.initializer.append(big)
    inferred = infer(made)
    assert value_types(inferred.graph)["r"].shape == (8, 3)
    assert [t.name for t in inferred.graph.initializer] == ["t"]
    assert value_types(inferred.graph)["big"] == ValueType(TensorProto.FLOAT, (64, 64))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.bool_])
def test_a_weight_of_the_wrong_size_is_told(dtype: type) -> None:
    """A damaged file is not fused, it is refused: name, bytes seen, bytes wanted."""
    made = model("g (float[4] x) => (float[4] y) { y = Neg (x) }")
    weight = numpy_helper.from_array(np.zeros(4, dtype), "w")
    made.graph.initializer.append(weight)
    validate(made)
    made.graph.initializer[0].raw_data += b"\0"
    with pytest.raises(ModelError, match=r"weight 'w' holds \d+ bytes, but its shape \[4\] needs \d+"):
        validate(made)


def test_normalizing_a_normal_model_changes_nothing() -> None:
    """Weights among the inputs of IR 4 and later stay: the caller may give them."""
    made = model("g (float[4] x, float[4] w) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Add (x, w) }")
    before = made.SerializeToString(deterministic=True)
    normalize(made)
    assert made.SerializeToString(deterministic=True) == before


def test_normalizing_an_old_model_makes_its_weights_constants() -> None:
    """IR 3 had to list them as inputs."""
    made = model("g (float[4] x, float[4] w) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Add (x, w) }", 9)
    made.ir_version = 3
    normalize(made)
    assert [i.name for i in made.graph.input] == ["x"]
    onnx.checker.check_model(made, full_check=True)


def test_an_invented_name_is_one_number_and_is_written_nowhere() -> None:
    """It is kept, so that an extent equals itself; in a declaration and a message it is unknown."""
    type_ = ValueType(TensorProto.FLOAT, extents("unk__0", "N", 4))
    assert str(type_) == "float[?,N,4]"
    declared = value_info("x", type_)
    assert [d.dim_param for d in declared.type.tensor_type.shape.dim] == ["", "N", ""]
    assert not declared.type.tensor_type.shape.dim[0].HasField("dim_value")
    text = """g (float[4] x, int64[1] n) => (float[A] y) {
      t = Reshape (x, n) a = Neg (t) y = Abs (a)
    }"""
    found = value_types(infer(model(text)).graph)
    assert found["t"].shape == found["a"].shape
