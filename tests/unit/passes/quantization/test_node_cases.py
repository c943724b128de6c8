"""onnx's own cases of quantization: the optimized model gives what they expect."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.node_cases import cases_of
from tests.support.small import evaluate, optimize, run

MODULES = (
    "quantizelinear", "dequantizelinear", "dynamicquantizelinear", "qlinearconv", "qlinearmatmul", "matmulinteger",
    "convinteger",
)  # fmt: skip
BY_ORT = ("test_qlinearconv",)
"""Run by ONNX Runtime on the CPU: onnx's reference has no DequantizeLinear of operator set 10. It has the others, of
which ONNX Runtime lacks some: zero points of filters, types of operator set 28."""
CASES = [case for module in MODULES for case in cases_of(module)]


def test_how_many_there_are() -> None:
    assert len(CASES) == 45


@pytest.mark.parametrize("constant", [False, True], ids=["all are inputs", "all but the first are constants"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case(case: Any, constant: bool) -> None:
    """Equal; of constants passes and rules make more than of inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    ((inputs, outputs),) = case.data_sets
    named = dict(zip([i.name for i in model.graph.input], map(_array, inputs), strict=True))
    if constant:
        for value in [*model.graph.input][1:]:
            model.graph.initializer.append(_tensor(named.pop(value.name), value))
            model.graph.input.remove(value)
    made, _ = optimize(model)
    results = (run if case.name in BY_ORT else evaluate)(made, named)
    for got, wanted in zip(results, map(_array, outputs), strict=True):
        assert got.dtype == wanted.dtype
        if np.issubdtype(wanted.dtype, np.floating):
            np.testing.assert_allclose(got, wanted, rtol=case.rtol, atol=case.atol)
        else:
            np.testing.assert_array_equal(got, wanted)


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _tensor(array: np.ndarray, value: onnx.ValueInfoProto) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(array, value.name)
    assert tensor.data_type == value.type.tensor_type.elem_type
    return tensor
