"""Sums, means and extrema of more values than one kernel reads are written as some of some."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from tests.support.small import run


def model(op: str, count: int, dtype: int, opset: int, *, wide: bool = False) -> onnx.ModelProto:
    """Return `op` of so many scaled values, the first of which may have an axis more."""
    numpy = helper.tensor_dtype_to_np_dtype(dtype)
    scaled = [helper.make_node("Mul", ["x", f"c{i}"], [f"m{i}"]) for i in range(count)]
    weights = [numpy_helper.from_array(np.asarray((i % 7 - 3) / 4 + i, numpy), f"c{i}") for i in range(1, count)]
    weights.append(numpy_helper.from_array(np.full((2, 1, 1) if wide else (), 0.5, numpy), "c0"))
    graph = helper.make_graph(
        [*scaled, helper.make_node(op, [f"m{i}" for i in range(count)], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", 8])],
        [helper.make_tensor_value_info("y", dtype, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


FORMS = [(8, TensorProto.FLOAT, False), (13, TensorProto.FLOAT16, False), (21, TensorProto.FLOAT, True)]


@pytest.mark.parametrize(("opset", "dtype", "wide"), FORMS, ids=["opset 8", "float16", "an axis more"])
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_many_values_are_few_kernels(op: str, opset: int, dtype: int, wide: bool) -> None:
    """One kernel for 40 of one shape, the same numbers; optimized again it is the same."""
    count = 40
    one = model(op, count, dtype, opset, wide=wide)
    made = onnxfuse.optimize(one)
    assert len(made.graph.node) <= (20 if wide else 1)
    assert onnxfuse.optimize(made) == made
    feeds = {"x": np.linspace(-2, 2, 24).reshape(3, 8).astype(helper.tensor_dtype_to_np_dtype(dtype))}
    (before,), (after,) = run(one, feeds), run(made, feeds)
    assert (before.shape, before.dtype) == (after.shape, after.dtype)
    step = np.finfo(before.dtype).eps * np.abs(before).max()
    assert np.abs(before.astype(np.float64) - after.astype(np.float64)).max() <= 4 * count**0.5 * step
