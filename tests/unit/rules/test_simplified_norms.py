"""ONNX Runtime's SimplifiedLayerNormalization is fused as the RMS norm that it is."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from tests.support.small import run

FORMS = [(13, 1, -1), (17, 10, -1), (17, 1, 2), (18, 10, -1), (21, 1, -1), (23, 1, -1), (23, 10, 2)]


@pytest.mark.parametrize(("opset", "dtype", "axis"), FORMS)
def test_it_is_a_norm_to_the_rules(opset: int, dtype: int, axis: int) -> None:
    """One kernel with what stands around it; the numbers of ONNX Runtime's own kernel."""
    numpy = helper.tensor_dtype_to_np_dtype(dtype)
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "r"], ["a"]),
            helper.make_node("SimplifiedLayerNormalization", ["a", "g"], ["n"], axis=axis, epsilon=1e-6),
            helper.make_node("Relu", ["n"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info(v, dtype, ["b", "s", 64]) for v in ("x", "r")],
        [helper.make_tensor_value_info("y", dtype, ["b", "s", 64])],
        [numpy_helper.from_array(rng.standard_normal(64).astype(numpy), "g")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    made = onnxfuse.optimize(model)
    assert [n.op_type.partition("_")[0] for n in made.graph.node] == ["RmsNorm"]
    assert onnxfuse.optimize(made) == made
    feeds = {v: rng.standard_normal((2, 3, 64)).astype(numpy) for v in ("x", "r")}
    (before,), (after,) = run(model, feeds), run(made, feeds)
    step = np.finfo(before.dtype).eps * np.abs(before).max()
    assert np.abs(before.astype(np.float64) - after.astype(np.float64)).max() <= 2 * step


def test_what_has_a_second_output_stays() -> None:
    """The inverse deviation is ONNX Runtime's to give."""
    graph = helper.make_graph(
        [helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y", "d"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 64])],
        [helper.make_tensor_value_info("y", 1, [2, 64]), helper.make_tensor_value_info("d", 1, [2, 1])],
        [numpy_helper.from_array(np.ones(64, np.float32), "g")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert [n.op_type for n in onnxfuse.optimize(model).graph.node] == ["SimplifiedLayerNormalization"]
