"""Products by large weights with nothing around them: ours where rows are few or open, else the library's."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.small import ops, optimize

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def product(shape: list[int | str], dtype: int) -> onnx.ModelProto:
    """Return a product of [*shape, 2048] by a weight that is larger than 2048x2048."""
    weight = numpy_helper.from_array(np.zeros((2048, 3072), helper.tensor_dtype_to_np_dtype(dtype)), "w")
    x, y = (helper.make_tensor_value_info(n, dtype, s) for n, s in (("x", [*shape, 2048]), ("y", None)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("shape", "dtype", "ours"),
    [
        (["N", "S"], HALF, True), (["N", 512], HALF, False), (["N"], HALF, False),
        (["N", "S"], FLOAT, False),
    ],
)  # fmt: skip
def test_an_open_number_of_tokens_is_a_decoders(shape: list[int | str], dtype: int, ours: bool) -> None:
    made, _ = optimize(product(shape, dtype))
    assert ops(made) == (["{MatMul}"] if ours else ["MatMul"])
