"""Types that an operator takes: from ONNX's schemas, ONNX Runtime's for its own operators, or nothing."""

import pytest
from onnx import helper

from onnxfuse.precision.schemas import Types, allowed

FLOATS = {"tensor(float16)", "tensor(float)", "tensor(double)"}


def types(op: str, inputs: int, outputs: int, opset: int = 17, domain: str = "") -> tuple[tuple[Types, ...], ...]:
    """Return the types of each input and each output."""
    read, made = ([f"v{i}" for i in range(n)] for n in (inputs, outputs))
    node = helper.make_node(op, read, made, domain=domain)
    return allowed(node, {"": opset, "com.microsoft": 1})


def test_variables_of_a_schema_stand_for_their_types() -> None:
    """Of a fixed type it is that alone; the operator set decides."""
    (data, axes), (result,) = types("ReduceSum", 2, 1)
    assert data == result >= FLOATS
    assert axes == {"tensor(int64)"}
    assert "tensor(bfloat16)" not in types("MatMul", 2, 1, 9)[0][0]
    assert "tensor(bfloat16)" in types("MatMul", 2, 1, 13)[0][0]


def test_the_last_of_a_schema_stands_for_all_that_follow() -> None:
    """As for operands of any number."""
    (first, *rest), (result,) = types("Concat", 3, 1)
    assert rest == [first, first]
    assert result == first
    assert len(types("Split", 2, 3)[1]) == 3


@pytest.mark.parametrize("op", ["FusedMatMul", "BiasGelu"])
def test_operators_of_onnx_runtime_have_its_schemas(op: str) -> None:
    """The newest of those up to the operator set."""
    inputs, outputs = types(op, 2, 1, domain="com.microsoft")
    assert len(inputs) == 2
    assert all("tensor(float16)" in one for one in (*inputs, *outputs))


def test_unknown_operators_allow_nothing_that_is_known() -> None:
    """For each input and output that the node has."""
    assert types("Nobody", 2, 1, domain="somewhere") == ((Types(), Types()), (Types(),))
    assert types("FusedMatMul", 1, 1, domain="ai.onnx")[0] == (Types(),)
    assert types("Relu", 1, 1, domain="ai.onnx") == types("Relu", 1, 1)
    assert types("Constant", 1, 1)[0] == (Types(),)
