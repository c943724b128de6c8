"""What onnx's schemas say of an operator at a version."""

import pytest

from onnxfuse.model import schema


@pytest.mark.parametrize(
    ("op", "opset", "moved"),
    [
        ("ReduceMean", 13, {"axes": 1}),
        ("ReduceMean", 18, {}),
        ("ReduceSum", 11, {"axes": 1}),
        ("ReduceSum", 13, {}),
        ("Clip", 6, {"min": 1, "max": 2}),
        ("Clip", 11, {}),
        ("Squeeze", 11, {"axes": 1}),
        ("Unsqueeze", 13, {}),
        ("Relu", 6, {}),
    ],
)
def test_attributes_that_became_inputs_are_known(op: str, opset: int, moved: dict[str, int]) -> None:
    """From the entries of the operators, which `tests/unit/ops` compares with the schemas."""
    assert schema.moved(op, "", opset) == moved


def test_defaults_are_those_of_the_version() -> None:
    """Softmax changed its mind in opset 13."""
    assert schema.defaults("Softmax", "", 11)["axis"] == 1
    assert schema.defaults("Softmax", "", 13)["axis"] == -1
    assert schema.defaults("NoSuchOp", "", 13) == {}
